/* The model with dense weights: the GGUF file written once more with every matrix as bfloat16,
 * float16 or float32. At the default dtype its perplexity must be within 1 % of float32 on the same
 * weights. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../unit/model/gguf_build.h"
#include "base/status.h"
#include "model/gguf.h"
#include "smollm2.h"
#include "sys/map.h"

#define ALIGNMENT 32u

/* Types, as the file numbers them. */
static const struct dense {
    const char *name;
    enum k_type type;
    uint32_t number;
} types[] = { { "bfloat16", K_BF16, 30 }, { "float16", K_F16, 1 }, { "float32", K_F32, 0 } };

static const char *const u32_keys[] = {
    "llama.block_count",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.rope.dimension_count",
    "llama.context_length",
    "llama.vocab_size",
};
static const char *const f32_keys[] = {
    "llama.rope.freq_base",
    "llama.attention.layer_norm_rms_epsilon",
};
#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void put_keys(struct buf *b, const struct gguf *g)
{
    struct err e = { 0 };

    put_key_text(b, "general.architecture", "llama");
    for (size_t i = 0; i < COUNT(u32_keys); i++) {
        uint64_t v = 0;

        expect(gguf_u64(g, u32_keys[i], &v, &e) == 0, "%s", e.text);
        put_key_u32(b, u32_keys[i], (uint32_t)v);
    }
    for (size_t i = 0; i < COUNT(f32_keys); i++) {
        double v = 0;

        expect(gguf_f64(g, f32_keys[i], &v, &e) == 0, "%s", e.text);
        put_key_f32(b, f32_keys[i], (float)v);
    }
}

static uint64_t elements(const struct tensor *t)
{
    return t->n_dims == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
}

/* Vectors stay float32, as converters leave them. */
static enum k_type type_of(const struct tensor *t, const struct dense *d)
{
    return t->n_dims == 2 ? d->type : K_F32;
}

static uint64_t bytes_of(const struct tensor *t, const struct dense *d)
{
    return k_type_bytes(type_of(t, d), elements(t));
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void put_head(struct buf *b, const struct gguf *g, const struct dense *d)
{
    uint64_t n, offset = 0;
    const struct tensor *t = gguf_tensors(g, &n);

    put_header(b, 3, n, 1 + COUNT(u32_keys) + COUNT(f32_keys));
    put_keys(b, g);
    for (uint64_t i = 0; i < n; i++) {
        if (t[i].n_dims == 2) {
            put_matrix(b, t[i].name, t[i].shape[0], t[i].shape[1], d->number, offset);
        } else {
            put_text(b, t[i].name);
            put_u32(b, 1);
            put_u64(b, t[i].shape[0]);
            put_u32(b, 0);
            put_u64(b, offset);
        }
        offset += padded(bytes_of(&t[i], d));
    }
    pad_to(b, ALIGNMENT);
}

/* Numbers of a tensor, rounded to the type, and the padding behind them. False if out of memory or
 * of disk. */
static bool write_tensor(FILE *f, const struct tensor *t, const struct dense *d)
{
    uint64_t n = elements(t), bytes = bytes_of(t, d);
    enum k_type type = type_of(t, d);
    float *x = malloc(n * sizeof *x);
    char *out = calloc(1, padded(bytes));
    bool ok = x && out;

    if (ok)
        k_dequant(t->type, x, t->data, n);
    for (uint64_t i = 0; ok && i < n; i++) {
        uint16_t v = type == K_F16 ? k_float_to_half(x[i]) : k_float_to_bf16(x[i]);

        if (type == K_F32)
            memcpy(out + 4 * i, &x[i], 4);
        else
            memcpy(out + 2 * i, &v, 2);
    }
    ok = ok && fwrite(out, 1, padded(bytes), f) == padded(bytes);
    free(x);
    free(out);
    return ok;
}

static void write_dense(const char *path, const struct gguf *g, const struct dense *d)
{
    uint64_t n;
    const struct tensor *t = gguf_tensors(g, &n);
    FILE *f = fopen(path, "wb");
    struct buf b;
    bool ok;

    buf_init(&b, BUF_MAX_REPLY);
    put_head(&b, g, d);
    ok = f && b.status == 0 && fwrite(b.data, 1, b.len, f) == b.len;
    for (uint64_t i = 0; ok && i < n; i++)
        ok = write_tensor(f, &t[i], d);
    if (f)
        ok = fclose(f) == 0 && ok;
    expect(ok, "cannot write %s", path);
    buf_finish(&b);
}

static double perplexity(const char *path, enum model_dtype dtype, const char *isa)
{
    struct rig_options o = { .path = path,
                             .dtype = dtype,
                             .isa = isa,
                             .pool_tokens = 1600,
                             .max_tokens = LOGIT_ROWS,
                             .max_logits = LOGIT_ROWS };
    struct rig r;
    double p;

    rig_open(&r, &o);
    p = text_perplexity(&r);
    printf("%s, dtype %s: perplexity %.5f\n", r.k->detail,
           dtype == MODEL_DTYPE_AUTO ? "auto" : "float32", p);
    rig_close(&r);
    return p;
}

static void check_type(const char *path, const struct gguf *g, const struct dense *d)
{
    double exact, fast;

    write_dense(path, g, d);
    printf("weights in %s\n", d->name);
    exact = perplexity(path, MODEL_DTYPE_FLOAT32, NULL);
    fast = perplexity(path, MODEL_DTYPE_AUTO, NULL);
    printf("auto against float32: %+.4f %%\n", 100 * (fast / exact - 1));
    expect(exact > 1 && fabs(fast / exact - 1) <= 1e-2,
           "weights in %s: perplexity %g, at float32 %g", d->name, fast, exact);
    unlink(path);
}

void test_dense(bool all)
{
    char path[] = "/tmp/sluice-dense-XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    struct err e = { 0 };
    struct gguf *g = NULL;
    struct map map;

    if (fd < 0 || map_open(&map, golden_model(), &e) < 0 ||
        gguf_parse(&g, map.data, map.size, &e) < 0) {
        expect(false, "%s", fd < 0 ? "no temporary file" : e.text);
        return;
    }
    close(fd);
    for (size_t i = 0; i < (all ? COUNT(types) : 1); i++)
        check_type(path, g, &types[i]);
    gguf_free(g);
    map_close(&map);
}
