#include "rig.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rand.h"
#include "base/status.h"
#include "model/safetensors.h"
#include "sys/map.h"

static int failed;

static void die(const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    exit(1);
}

static void *xcalloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);

    if (!p)
        die("no memory");
    return p;
}

static void shuffle(uint32_t *order, uint32_t n, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        order[i] = i;
    for (uint32_t i = n; seed && i > 1; i--) {
        uint32_t j = (uint32_t)(rand_uniform(seed, i, 0) * i), t = order[i - 1];

        order[i - 1] = order[j];
        order[j] = t;
    }
}

static void make_pool(struct rig *r, const struct rig_options *o)
{
    uint32_t block = o->block_tokens ? o->block_tokens : 16;
    struct model_kv_shape shape;

    model_kv_shape(r->m, &shape);
    r->kv = (struct kv_layout){
        .planes = shape.latent ? 1 : 2,
        .n_layers = shape.n_layers,
        .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim,
        .elem_bytes = model_kv_type(r->m) == K_F32 ? 4 : 2,
        .block_tokens = block,
        .n_blocks = (o->pool_tokens + block - 1) / block + 64, /* every sequence rounds up */
    };
    r->pool = r->k->alloc(r->k, kv_layout_pool_bytes(&r->kv));
    if (!r->pool)
        die("no memory for the pool");
    r->planes = xcalloc(shape.n_layers, sizeof *r->planes);
    for (uint32_t i = 0; i < shape.n_layers; i++)
        r->planes[i] = (struct k_kv){
            .k = r->pool + kv_layout_offset(&r->kv, i, 0, 0),
            .v = shape.latent ? NULL : r->pool + kv_layout_offset(&r->kv, i, 1, 0),
            .type = model_kv_type(r->m),
            .block_tokens = block,
            .kv_heads = shape.kv_heads,
            .head_dim = shape.head_dim,
            .latent = shape.latent,
        };
    r->order = xcalloc(r->kv.n_blocks, sizeof *r->order);
    shuffle(r->order, r->kv.n_blocks, o->shuffle);
}

void rig_open(struct rig *r, const struct rig_options *o)
{
    struct k_options ko = { .isa = o->isa, .threads = o->threads };
    struct model_options mo = { .path = o->path,
                                .dtype = o->dtype,
                                .kv_dtype = o->kv_dtype,
                                .hf_overrides = o->hf_overrides,
                                .mtp = o->mtp,
                                .first_layer = o->first_layer,
                                .n_layers = o->n_layers,
                                .part = o->part };
    struct err e = { 0 };

    *r = (struct rig){ .max_tokens = o->max_tokens, .max_logits = o->max_logits };
    if (kernels_open(&r->k, &ko, &e) < 0 || model_open(&r->m, r->k, &mo, &e) < 0 ||
        model_work_create(&r->w, r->m, o->max_tokens, o->max_logits, &e) < 0)
        die("%s", e.text);
    make_pool(r, o);
}

void rig_close(struct rig *r)
{
    r->k->free(r->k, r->pool, kv_layout_pool_bytes(&r->kv));
    free(r->planes);
    free(r->order);
    model_work_destroy(r->w);
    model_close(r->m);
    kernels_close(r->k);
}

void rig_seq_init(struct rig *r, struct rig_seq *s, uint32_t max_tokens)
{
    uint32_t n = (max_tokens + r->kv.block_tokens - 1) / r->kv.block_tokens;

    if (r->handed + n > r->kv.n_blocks)
        die("the pool of %u blocks is too small", r->kv.n_blocks);
    s->blocks = xcalloc(n, sizeof *s->blocks);
    memcpy(s->blocks, r->order + r->handed, n * sizeof *s->blocks);
    r->handed += n;
    s->cap = n * r->kv.block_tokens;
    s->len = 0;
    s->output = false;
}

void rig_seq_finish(struct rig_seq *s)
{
    free(s->blocks);
    *s = (struct rig_seq){ 0 };
}

void rig_forget(struct rig *r)
{
    r->handed = 0;
}

void rig_step(struct rig *r, const struct rig_feed *feeds, uint32_t n_feeds)
{
    int32_t *ids = xcalloc(r->max_tokens, sizeof *ids);
    uint32_t *pos = xcalloc(r->max_tokens, sizeof *pos);
    struct k_seq *seqs = xcalloc(n_feeds, sizeof *seqs);
    uint32_t *n_prompt_rows = xcalloc(n_feeds, sizeof *n_prompt_rows);
    struct model_batch b = {
        .ids = ids, .pos = pos, .seqs = seqs, .n_seqs = n_feeds, .n_prompt_rows = n_prompt_rows
    };

    for (uint32_t i = 0; i < n_feeds; i++) {
        struct rig_seq *s = feeds[i].seq;

        assert(b.n + feeds[i].n <= r->max_tokens && s->len + feeds[i].n <= s->cap);
        seqs[i] = (struct k_seq){ b.n, feeds[i].n, s->len, s->blocks };
        n_prompt_rows[i] = s->output ? 0 : feeds[i].n;
        for (uint32_t j = 0; j < feeds[i].n; j++) {
            ids[b.n] = feeds[i].ids[j];
            pos[b.n++] = s->len++;
        }
    }
    model_forward(r->m, r->w, r->planes, &b);
    free(ids);
    free(pos);
    free(seqs);
    free(n_prompt_rows);
}

const float *rig_logits(struct rig *r, const uint32_t *rows, uint32_t n)
{
    size_t ld;
    const float *x = model_logits(r->m, r->w, rows, n, &ld);

    if (ld != model_config(r->m)->vocab)
        die("rows of logits are %zu apart", ld);
    return x;
}

const float *rig_prefill(struct rig *r, struct rig_seq *s, const int32_t *ids, uint32_t n,
                         uint32_t chunk)
{
    uint32_t last = 0;

    if (chunk == 0 || chunk > r->max_tokens)
        chunk = r->max_tokens;
    for (uint32_t at = 0; at < n; at += chunk) {
        struct rig_feed f = { s, ids + at, n - at < chunk ? n - at : chunk };

        rig_step(r, &f, 1);
        last = f.n - 1;
    }
    return rig_logits(r, &last, 1);
}

uint32_t argmax(const float *x, uint32_t n)
{
    uint32_t best = 0;

    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

const char *golden_path(const char *name)
{
    static char path[4096];
    const char *shared = getenv("SLUICE_SHARED");

    snprintf(path, sizeof path, "%s/golden/%s", shared ? shared : TEST_ROOT "/../shared", name);
    if (access(path, R_OK) == 0)
        return path;
    snprintf(path, sizeof path, "%s/tests/data/golden/%s", TEST_ROOT, name);
    return access(path, R_OK) == 0 ? path : NULL;
}

const char *golden_model(void)
{
    static char path[4096];
    const char *model = getenv("SLUICE_MODEL"), *home = getenv("HOME");

    if (model)
        snprintf(path, sizeof path, "%s", model);
    else
        snprintf(path, sizeof path, "%s/.cache/sluice/SmolLM2-135M-Instruct.Q4_1.gguf",
                 home ? home : "");
    if (access(path, R_OK) < 0) {
        printf("skipped: no model at %s\n", path);
        exit(77);
    }
    return path;
}

struct golden {
    struct map map;
    struct safetensors *st;
};

struct golden *golden_open(const char *path)
{
    struct golden *g = xcalloc(1, sizeof *g);
    struct err e = { 0 };

    if (!path)
        die("a golden file is missing");
    if (map_open(&g->map, path, &e) < 0 ||
        safetensors_parse(&g->st, g->map.data, g->map.size, &e) < 0)
        die("%s: %s", path, e.text);
    return g;
}

void golden_close(struct golden *g)
{
    safetensors_free(g->st);
    map_close(&g->map);
    free(g);
}

static const void *find(const struct golden *g, const char *name, const char *dtype, size_t *n)
{
    size_t count;
    const struct tensor *t = safetensors_tensors(g->st, &count);

    for (size_t i = 0; i < count; i++)
        if (strcmp(t[i].name, name) == 0 && strcmp(t[i].dtype, dtype) == 0) {
            *n = (size_t)t[i].bytes / 4;
            return t[i].data;
        }
    return NULL;
}

const float *golden_f32(const struct golden *g, const char *name, size_t *n)
{
    return find(g, name, "F32", n);
}

const int32_t *golden_i32(const struct golden *g, const char *name, size_t *n)
{
    return find(g, name, "I32", n);
}

uint32_t golden_count(const struct golden *g, const char *prefix)
{
    size_t count;
    const struct tensor *t = safetensors_tensors(g->st, &count);
    uint32_t n = 0;

    for (size_t i = 0; i < count; i++)
        n += strncmp(t[i].name, prefix, strlen(prefix)) == 0;
    return n;
}

double max_diff(const float *a, const float *b, size_t n)
{
    double max = 0;

    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - (double)b[i]);

        if (!(d <= max)) /* a NaN counts */
            max = d;
    }
    return max;
}

double rms_diff(const float *a, const float *b, size_t n)
{
    double sum = 0;

    for (size_t i = 0; i < n; i++)
        sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / (double)n);
}

void expect(bool ok, const char *fmt, ...)
{
    va_list ap;

    if (ok)
        return;
    failed++;
    fputs("FAILED: ", stdout);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    putchar('\n');
}

int failures(void)
{
    if (failed)
        printf("%d checks failed\n", failed);
    return failed ? 1 : 0;
}
