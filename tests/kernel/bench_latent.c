/* kernel_check --bench: latent attention and experts, in the sizes of DeepSeek-V2-Lite. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>

#define LATENT 512
#define ROPE   64
#define NOPE   128
#define HEADS  16
#define TOKENS 2048
#define BLOCK  32
#define ROWS   256

struct latent_op {
    const struct kernels *k;
    struct k_kv kv;
    struct k_seq seq;
    uint32_t heads;
    float *q, *out, *kv_rows;
};

static struct k_heads vectors(float *p, uint32_t heads, uint32_t dim)
{
    return (struct k_heads){ p, (size_t)heads * dim, dim };
}

static void do_latent(void *arg)
{
    const struct latent_op *op = arg;
    struct k_heads q = vectors(op->q, op->heads, LATENT + ROPE), pe = q;

    pe.p += LATENT;
    op->k->attend_latent(op->k, vectors(op->out, op->heads, LATENT), q, pe, op->heads, 0.1f,
                         &op->kv, &op->seq, 1);
}

static void do_expanded(void *arg)
{
    const struct latent_op *op = arg;
    struct k_heads key = vectors(op->kv_rows, HEADS, 2 * NOPE), value = key;

    value.p += NOPE;
    op->k->attend_expanded(op->k, vectors(op->out, HEADS, NOPE), vectors(op->q, HEADS, NOPE + ROPE),
                           key, op->q, ROPE, value, HEADS, NOPE, ROPE, NOPE, 0.1f, &op->seq, NULL);
}

static void one_latent(struct latent_op *op, uint32_t n, uint32_t pos, uint32_t heads,
                       enum k_type type)
{
    double keys = n * (pos + (n + 1) / 2.0), s;
    char name[64];

    op->seq.n = n;
    op->seq.pos = pos;
    op->heads = heads;
    op->kv.type = type;
    s = bench_seconds(do_latent, op);
    snprintf(name, sizeof name, "attend_latent %s %u x %u at %u", k_type_info[type].name, n, heads,
             pos);
    bench_report(name, s, 2.0 * heads * (2 * LATENT + ROPE) * keys, "Gflop/s");
    if (n == 1)
        bench_report("  cache read", s, keys * (LATENT + ROPE) * k_type_info[type].bytes, "GB/s");
}

static void one_expanded(struct latent_op *op, uint32_t n, uint32_t pos)
{
    double keys = n * (pos + (n + 1) / 2.0);
    char name[64];

    op->seq.n = n;
    op->seq.pos = pos;
    snprintf(name, sizeof name, "attend_expanded %u x %u at %u", n, HEADS, pos);
    bench_report(name, bench_seconds(do_expanded, op), 2.0 * HEADS * (2 * NOPE + ROPE) * keys,
                 "Gflop/s");
}

void bench_latent(struct check *c, struct rng *r)
{
    size_t plane = sizeof(float) * TOKENS * (LATENT + ROPE);
    size_t rows = ROWS * (size_t)HEADS * (LATENT + ROPE), kv = TOKENS * (size_t)HEADS * 2 * NOPE;
    uint32_t blocks[TOKENS / BLOCK];
    struct latent_op op = {
        .k = c->one,
        .kv = { .block_tokens = BLOCK, .kv_heads = 1, .head_dim = LATENT + ROPE, .latent = LATENT },
        .seq = { .blocks = blocks }
    };

    for (uint32_t i = 0; i < TOKENS / BLOCK; i++)
        blocks[i] = i;
    op.kv.k = get(c->one, plane);
    op.q = get(c->one, rows * sizeof(float));
    op.out = get(c->one, rows * sizeof(float));
    op.kv_rows = get(c->one, kv * sizeof(float));
    rng_fill(r, op.q, rows);
    rng_fill(r, op.kv_rows, kv);
    one_latent(&op, 1, 2047, 16, K_F16);
    one_latent(&op, 1, 2047, 16, K_F32);
    one_latent(&op, 1, 2047, 128, K_F16);
    one_latent(&op, ROWS, 0, 16, K_F16);
    one_latent(&op, ROWS, 1024, 16, K_F16);
    one_expanded(&op, ROWS, 0);
    one_expanded(&op, ROWS, 1024);
    c->one->free(c->one, op.kv.k, plane);
    c->one->free(c->one, op.q, rows * sizeof(float));
    c->one->free(c->one, op.out, rows * sizeof(float));
    c->one->free(c->one, op.kv_rows, kv * sizeof(float));
}

#define EXPERTS 64
#define TOP_K   6
#define HIDDEN  2048
#define INNER   1408

struct moe_op {
    const struct kernels *k;
    struct k_matrix *w[EXPERTS];
    struct k_act *a;
    struct k_routes *r;
    struct k_router how;
    float *x, *y, *logits;
    uint32_t n;
};

static void do_route(void *arg)
{
    const struct moe_op *op = arg;

    op->k->route(op->k, op->r, op->logits, EXPERTS, op->n, &op->how);
}

static void do_experts(void *arg)
{
    const struct moe_op *op = arg;

    op->k->linear_experts(op->k, op->y, INNER, op->a, (const struct k_matrix *const *)op->w, op->r,
                          op->n);
}

static void do_combine(void *arg)
{
    const struct moe_op *op = arg;

    op->k->combine(op->k, op->x, HIDDEN, op->y, INNER, op->r, op->n, INNER, true);
}

static void one_moe(struct moe_op *op, uint32_t n)
{
    uint32_t active = 0;
    char name[64];
    double s;

    op->n = n;
    do_route(op);
    for (uint32_t e = 0; e < EXPERTS; e++)
        active += op->r->first[e + 1] > op->r->first[e];
    op->k->act_sorted(op->k, op->a, op->x, HIDDEN, op->r, n, HIDDEN);
    s = bench_seconds(do_experts, op);
    snprintf(name, sizeof name, "linear_experts Q8_0 %u x %u", n, TOP_K);
    bench_report(name, s, 2.0 * n * TOP_K * HIDDEN * INNER, "Gop/s");
    bench_report("  weights as packed", s, active * (double)op->k->matrix_bytes(op->w[0]), "GB/s");
    snprintf(name, sizeof name, "route %u of %u, %u tokens", TOP_K, EXPERTS, n);
    bench_report(name, bench_seconds(do_route, op), n * 1e6, "thousand tokens/s");
    snprintf(name, sizeof name, "combine %u tokens", n);
    bench_report(name, bench_seconds(do_combine, op), 4.0 * n * TOP_K * INNER, "GB/s");
}

void bench_moe(struct check *c, struct rng *r)
{
    size_t nx = ROWS * (size_t)HIDDEN, ny = ROWS * (size_t)TOP_K * INNER;
    struct moe_op op = {
        .k = c->one,
        .how = { .experts = EXPERTS, .top_k = TOP_K, .groups = 1, .top_groups = 1, .scale = 1 }
    };
    void *w = random_weights(r, K_Q8_0, (size_t)HIDDEN * INNER);
    struct k_part part = {
        .type = K_Q8_0, .rows = INNER, .data = w, .stride = k_type_bytes(K_Q8_0, HIDDEN)
    };

    for (int e = 0; e < EXPERTS; e++)
        if (op.k->pack(op.k, &op.w[e], &part, 1, HIDDEN, K_MATH_FAST, NULL) < 0)
            abort();
    if (op.k->act_create(op.k, &op.a, ROWS * TOP_K, HIDDEN, K_FORM_Q8) < 0 ||
        op.k->routes_create(op.k, &op.r, ROWS, EXPERTS, TOP_K) < 0)
        abort();
    op.x = get(op.k, nx * sizeof(float));
    op.y = get(op.k, ny * sizeof(float));
    op.logits = get(op.k, ROWS * EXPERTS * sizeof(float));
    rng_fill(r, op.x, nx);
    rng_fill(r, op.logits, ROWS * EXPERTS);
    one_moe(&op, 1);
    one_moe(&op, 8);
    one_moe(&op, ROWS);
    for (int e = 0; e < EXPERTS; e++)
        op.k->unpack_free(op.k, op.w[e]);
    op.k->act_destroy(op.k, op.a);
    op.k->routes_destroy(op.k, op.r);
    op.k->free(op.k, op.x, nx * sizeof(float));
    op.k->free(op.k, op.y, ny * sizeof(float));
    op.k->free(op.k, op.logits, ROWS * EXPERTS * sizeof(float));
    free(w);
}
