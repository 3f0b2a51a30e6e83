#include "ops/runner.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "kv/layout.h"

#define BLOCK_TOKENS 64
#define N_BLOCKS     (RUNNER_MAX_TOKENS / BLOCK_TOKENS)
#define LOGIT_ROWS   64

struct runner {
    const struct kernels *k;
    struct model *m;
    struct model_work *w;
    struct kv_layout layout;
    unsigned char *pool;
    struct k_kv *kv; /* [layers] */
    uint32_t blocks[N_BLOCKS];
    uint32_t pos[RUNNER_MAX_TOKENS];
};

static void set_planes(struct runner *r, const struct model_kv_shape *s)
{
    for (uint32_t i = 0; i < s->n_layers; i++) {
        uint64_t v = r->layout.planes == 2 ? kv_layout_offset(&r->layout, i, 1, 0) : 0;

        r->kv[i] = (struct k_kv){
            .k = r->pool + kv_layout_offset(&r->layout, i, 0, 0),
            .v = v ? r->pool + v : NULL,
            .type = model_kv_type(r->m),
            .block_tokens = BLOCK_TOKENS,
            .kv_heads = s->kv_heads,
            .head_dim = s->head_dim,
            .latent = s->latent,
        };
    }
    for (uint32_t i = 0; i < N_BLOCKS; i++)
        r->blocks[i] = i;
    for (uint32_t i = 0; i < RUNNER_MAX_TOKENS; i++)
        r->pos[i] = i;
}

static int make_pool(struct runner *r, struct err *e)
{
    struct model_kv_shape s;

    model_kv_shape(r->m, &s);
    r->layout = (struct kv_layout){
        .n_layers = s.n_layers,
        .planes = s.latent ? 1 : 2,
        .kv_heads = s.kv_heads,
        .head_dim = s.head_dim,
        .elem_bytes = model_kv_type(r->m) == K_F32 ? 4 : 2,
        .block_tokens = BLOCK_TOKENS,
        .n_blocks = N_BLOCKS,
    };
    r->pool = r->k->alloc(r->k, kv_layout_pool_bytes(&r->layout));
    r->kv = calloc(s.n_layers, sizeof *r->kv);
    if (!r->pool || !r->kv)
        return err_set(e, ERR_NOMEM, "no memory for keys and values of %d tokens",
                       RUNNER_MAX_TOKENS);
    set_planes(r, &s);
    return 0;
}

static int fill(struct runner *r, const char *path, enum model_dtype dtype, struct err *e)
{
    struct model_options o = { .path = path, .dtype = dtype };
    struct model_config c;
    int st = model_read_config(&c, path, NULL, e);

    if (st < 0)
        return st;
    o.max_model_len = c.max_position < RUNNER_MAX_TOKENS ? c.max_position : RUNNER_MAX_TOKENS;
    if ((st = model_open(&r->m, r->k, &o, e)) < 0 ||
        (st = model_work_create(&r->w, r->m, RUNNER_MAX_TOKENS, LOGIT_ROWS, e)) < 0)
        return st;
    return make_pool(r, e);
}

int runner_create(struct runner **out, const struct kernels *k, const char *path,
                  enum model_dtype dtype, struct err *e)
{
    struct runner *r = calloc(1, sizeof *r);
    int st;

    if (!r)
        return err_set(e, ERR_NOMEM, "no memory");
    r->k = k;
    if ((st = fill(r, path, dtype, e)) < 0) {
        runner_destroy(r);
        return st;
    }
    *out = r;
    return 0;
}

void runner_destroy(struct runner *r)
{
    if (!r)
        return;
    r->k->free(r->k, r->pool, kv_layout_pool_bytes(&r->layout));
    free(r->kv);
    model_work_destroy(r->w);
    model_close(r->m);
    free(r);
}

const struct model_config *runner_config(const struct runner *r)
{
    return model_config(r->m);
}

void runner_probe(struct runner *r, model_probe_fn *fn, void *arg)
{
    model_set_probe(r->w, fn, arg);
}

void runner_step(struct runner *r, const int32_t *ids, uint32_t n)
{
    const struct k_seq seq = { .n = n, .blocks = r->blocks };
    const struct model_batch b = { .n = n, .ids = ids, .pos = r->pos, .seqs = &seq, .n_seqs = 1 };

    assert(n <= RUNNER_MAX_TOKENS);
    model_forward(r->m, r->w, r->kv, &b);
}

static double surprise(const float *x, uint32_t vocab, int32_t id)
{
    double top = -INFINITY, sum = 0;

    for (uint32_t i = 0; i < vocab; i++)
        top = (double)x[i] > top ? (double)x[i] : top;
    for (uint32_t i = 0; i < vocab; i++)
        sum += exp((double)x[i] - top);
    return log(sum) + top - (double)x[id];
}

/* A piece of at most RUNNER_MAX_TOKENS tokens. */
static double score_piece(struct runner *r, const int32_t *ids, uint32_t n)
{
    uint32_t vocab = model_config(r->m)->vocab, rows[LOGIT_ROWS];
    double sum = 0;
    size_t ld;

    runner_step(r, ids, n);
    for (uint32_t at = 0; at + 1 < n; at += LOGIT_ROWS) {
        uint32_t m = n - 1 - at < LOGIT_ROWS ? n - 1 - at : LOGIT_ROWS;
        const float *x;

        for (uint32_t i = 0; i < m; i++)
            rows[i] = at + i;
        x = model_logits(r->m, r->w, rows, m, &ld);
        for (uint32_t i = 0; i < m; i++)
            sum += surprise(x + i * ld, vocab, ids[at + i + 1]);
    }
    return sum;
}

double runner_score(struct runner *r, const int32_t *ids, size_t n)
{
    uint32_t most = model_config(r->m)->max_position;
    size_t counted = 0;
    double sum = 0;

    if (most > RUNNER_MAX_TOKENS)
        most = RUNNER_MAX_TOKENS;
    for (size_t at = 0; at + 1 < n; at += most) {
        uint32_t m = n - at < most ? (uint32_t)(n - at) : most;

        sum += score_piece(r, ids + at, m);
        counted += m - 1;
    }
    return sum / (double)counted;
}
