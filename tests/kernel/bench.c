/* kernel_check --bench ISA: how fast each operation is on one thread, by that thread's own CPU time,
 * so that a busy machine disturbs it little. */
#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_N    512
#define TRIES    7
#define AT_LEAST 2e-3 /* seconds a try */

/* One operation with its arguments. */
struct op {
    const struct kernels *k;
    void (*fn)(const struct op *op);
    struct k_act *a;
    const struct k_matrix *m;
    float *x, *y;
    uint32_t n, cols, rows;
    const struct k_kv *kv;
    const struct k_seq *seq;
};

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

double bench_seconds(void (*fn)(void *arg), void *arg)
{
    double best = 1e9;
    int calls = 1;

    fn(arg);
    for (int i = 0; i < TRIES;) {
        double t = cpu_seconds();

        for (int j = 0; j < calls; j++)
            fn(arg);
        t = cpu_seconds() - t;
        best = t / calls < best ? t / calls : best;
        if (t < AT_LEAST)
            calls *= 2;
        else
            i++;
    }
    return best;
}

void bench_report(const char *what, double s, double work, const char *unit)
{
    printf("%-34s %10.2f us %10.2f %s\n", what, s * 1e6, work / s * 1e-9, unit);
}

static void do_op(void *arg)
{
    const struct op *op = arg;

    op->fn(op);
}

static double seconds(struct op *op)
{
    return bench_seconds(do_op, op);
}

static void do_linear(const struct op *op)
{
    op->k->linear(op->k, op->y, op->rows, op->a, op->m, op->n, false);
}

static void do_load(const struct op *op)
{
    op->k->act_load(op->k, op->a, op->x, op->cols, op->n, op->cols);
}

static void do_swiglu(const struct op *op)
{
    op->k->act_swiglu(op->k, op->a, op->x, 2 * (size_t)op->cols, op->n, op->cols);
}

static void bench_linear(struct check *c, struct rng *r, enum k_type type, enum k_math math)
{
    static const uint32_t counts[] = { 1, 2, 8, 512 };
    struct op op = { .k = c->one, .fn = do_linear, .cols = 768, .rows = 3072 };
    struct k_part part = { .type = type, .rows = op.rows, .stride = k_type_bytes(type, op.cols) };
    float *scale = get(c->one, op.rows * sizeof *scale); /* for the types that want some */
    void *w = random_weights(r, type, (size_t)op.cols * op.rows);
    struct k_matrix *m;
    char name[64];
    double s;

    rng_fill(r, scale, op.rows);
    part.scale = scale;
    part.data = w;
    if (c->one->pack(c->one, &m, &part, 1, op.cols, math, NULL) < 0 ||
        c->one->act_create(c->one, &op.a, MAX_N, op.cols, c->one->matrix_form(m)) < 0)
        abort();
    op.m = m;
    op.x = get(c->one, MAX_N * (size_t)op.cols * sizeof *op.x);
    op.y = get(c->one, MAX_N * (size_t)op.rows * sizeof *op.y);
    rng_fill(r, op.x, MAX_N * (size_t)op.cols);
    for (int i = 0; i < 4; i++) {
        op.n = counts[i];
        do_load(&op);
        snprintf(name, sizeof name, "linear %s %s, %u rows", k_type_info[type].name,
                 math == K_MATH_FAST ? "fast" : "float", op.n);
        s = seconds(&op);
        bench_report(name, s, 2.0 * op.n * op.cols * op.rows, "Gop/s");
        if (op.n == 1)
            bench_report("  weights as packed", s, (double)c->one->matrix_bytes(m), "GB/s");
    }
    c->one->unpack_free(c->one, m);
    c->one->act_destroy(c->one, op.a);
    c->one->free(c->one, op.x, MAX_N * (size_t)op.cols * sizeof *op.x);
    c->one->free(c->one, op.y, MAX_N * (size_t)op.rows * sizeof *op.y);
    c->one->free(c->one, scale, op.rows * sizeof *scale);
    free(w);
}

static void do_static(const struct op *op)
{
    static const struct k_static s = { 0.0078125f, 3, NULL, NULL };

    op->k->act_static(op->k, op->a, op->n, &s);
}

static void bench_acts(struct check *c, struct rng *r, uint32_t form, const char *what)
{
    struct op op = { .k = c->one, .fn = do_load, .cols = 1536, .n = 128 };
    size_t n = 2 * (size_t)op.n * op.cols;
    char name[64];

    if (c->one->act_create(c->one, &op.a, op.n, op.cols, form) < 0)
        abort();
    op.x = get(c->one, n * sizeof *op.x);
    rng_fill(r, op.x, n);
    snprintf(name, sizeof name, "act_load 128 x 1536 to %s", what);
    bench_report(name, seconds(&op), op.n * op.cols, "Gelem/s");
    op.fn = do_swiglu;
    snprintf(name, sizeof name, "act_swiglu 128 x 1536 to %s", what);
    bench_report(name, seconds(&op), op.n * op.cols, "Gelem/s");
    c->one->act_destroy(c->one, op.a);
    c->one->free(c->one, op.x, n * sizeof *op.x);
}

static void bench_static(struct check *c, struct rng *r)
{
    struct op op = { .k = c->one, .fn = do_load, .cols = 1536, .n = 128 };
    size_t n = (size_t)op.n * op.cols;

    if (c->one->act_create(c->one, &op.a, op.n, op.cols, K_FORM_I8S) < 0)
        abort();
    op.x = get(c->one, n * sizeof *op.x);
    rng_fill(r, op.x, n);
    do_load(&op);
    op.fn = do_static;
    bench_report("act_static 128 x 1536", seconds(&op), op.n * op.cols, "Gelem/s");
    c->one->act_destroy(c->one, op.a);
    c->one->free(c->one, op.x, n * sizeof *op.x);
}

static void do_attend(const struct op *op)
{
    op->k->attend(op->k, op->y, 576, op->x, 576, 9, 0.125f, op->kv, op->seq, 1);
}

static void do_kv_write(const struct op *op)
{
    op->k->kv_write(op->k, op->kv, op->x, op->x + 192, 576, op->seq, 1);
}

static void bench_attend(struct check *c, struct rng *r)
{
    static const struct k_seq seqs[] = { { .n = 512 },
                                         { .n = 512, .pos = 1536 },
                                         { .n = 1, .pos = 511 } };
    enum { TOKENS = 2048, BLOCK = 32 };
    size_t plane = 2 * TOKENS * 192, n = MAX_N * 576;
    struct k_kv kv = { .type = K_F16, .block_tokens = BLOCK, .kv_heads = 3, .head_dim = 64 };
    struct op op = { .k = c->one, .kv = &kv };
    uint32_t blocks[TOKENS / BLOCK];
    char name[64];

    kv.k = get(c->one, plane);
    kv.v = get(c->one, plane);
    op.x = get(c->one, n * sizeof *op.x);
    op.y = get(c->one, n * sizeof *op.y);
    rng_fill(r, op.x, n);
    for (uint32_t i = 0; i < TOKENS / BLOCK; i++)
        blocks[i] = i;
    for (size_t i = 0; i < sizeof seqs / sizeof seqs[0]; i++) {
        struct k_seq s = seqs[i];
        double keys = s.n * (s.pos + (s.n + 1) / 2.0);

        s.blocks = blocks;
        op.seq = &s;
        op.fn = do_kv_write;
        snprintf(name, sizeof name, "kv_write %u rows", s.n);
        bench_report(name, seconds(&op), s.n * 384, "Gelem/s");
        op.fn = do_attend;
        snprintf(name, sizeof name, "attend %u rows at %u", s.n, s.pos);
        bench_report(name, seconds(&op), 4.0 * 9 * 64 * keys, "Gflop/s");
    }
    c->one->free(c->one, kv.k, plane);
    c->one->free(c->one, kv.v, plane);
    c->one->free(c->one, op.x, n * sizeof *op.x);
    c->one->free(c->one, op.y, n * sizeof *op.y);
}

void bench_all(struct check *c)
{
    static const enum k_type types[] = { K_Q4_1, K_Q8_0, K_Q4_K, K_Q5_0, K_Q5_K, K_Q6_K };
    struct rng r = { 9 };

    printf("%s, one thread\n", c->one->detail);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        bench_linear(c, &r, types[i], K_MATH_FAST);
    bench_linear(c, &r, K_Q4_1, K_MATH_FLOAT);
    bench_linear(c, &r, K_F32, K_MATH_FLOAT);
    bench_linear(c, &r, K_F16, K_MATH_FLOAT);
    bench_linear(c, &r, K_BF16, K_MATH_FLOAT);
    bench_linear(c, &r, K_BF16, K_MATH_FAST);
    bench_linear(c, &r, K_I8, K_MATH_FAST);
    bench_linear(c, &r, K_F8_E4M3, K_MATH_FLOAT);
    bench_acts(c, &r, K_FORM_Q8, "int8 in blocks");
    bench_acts(c, &r, K_FORM_I8, "int8");
    bench_static(c, &r);
    bench_attend(c, &r);
    bench_latent(c, &r);
    bench_moe(c, &r);
}
