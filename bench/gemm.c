/* bench/gemm: products of int8 weights (a scale an output) and int8 activations (a scale a token),
 * as a W8A8 checkpoint has them, against the measured peak of the instructions that they are made of
 * and against oneDNN. Called by the script of the same name.
 *
 *     gemm [--json FILE] [--threads N] [--runs N] [--isa ISA]
 *
 * Both multiply the same numbers from packed weights and quantized activations to floats; oneDNN is
 * spared the scales of the tokens, and without VNNI its sums of pairs saturate in 16 bits. Runs
 * alternate, and the best of each counts. A figure is marked as noisy if the process did not get its
 * threads' CPU time; one thread is timed by its CPU time. */
#include "base/status.h"
#include "compute_peak.h"
#include "figures.h"
#include "gemm_onednn.h"
#include "kernel/kernel.h"
#include "sys/clock.h"

#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_RUNS   64
#define MAX_TOKENS 1024
#define LONG       4e-3 /* seconds of a run at least */
#define NOISE      0.15

/* Outputs and inputs of a layer's matrices. */
static const struct shape {
    const char *name;
    uint32_t rows, cols;
} shapes[] = {
    { "deepseek_expert_up", 4096, 7168 },
    { "deepseek_expert_down", 7168, 2048 },
    { "deepseek_q_b", 24576, 1536 },
    { "qwen3_4b_qkv", 6144, 2560 },
};
static const uint32_t counts[] = { 1, 8, 64, 256, 1024 };
#define N_SHAPES (sizeof shapes / sizeof shapes[0])
#define N_COUNTS (sizeof counts / sizeof counts[0])

struct options {
    const char *json, *isa;
    uint32_t threads;
    int runs;
};

/* Ours and theirs, in operations a second; theirs is 0 if there is none. */
struct result {
    const struct shape *shape;
    uint32_t n;
    double ours, theirs;
    bool noisy;
};

struct bench {
    struct kernels *k;
    struct peak peak;
    struct result results[N_SHAPES * N_COUNTS];
    int n_results;
};

/* One matrix with what it is multiplied by. */
struct product {
    const struct kernels *k;
    const struct shape *shape;
    int8_t *w, *xq;
    float *scale, *x, *y;
    struct k_matrix *m;
    struct k_act *a;
    uint32_t n;
    struct onednn *theirs;
};

static int parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){ .threads = 2, .runs = 9 };
    for (int i = 1; i < argc; i += 2) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;

        if (!next)
            return ERR_INVAL;
        if (strcmp(argv[i], "--json") == 0)
            o->json = next;
        else if (strcmp(argv[i], "--isa") == 0)
            o->isa = next;
        else if (strcmp(argv[i], "--threads") == 0)
            o->threads = (uint32_t)strtoul(next, NULL, 10);
        else if (strcmp(argv[i], "--runs") == 0)
            o->runs = atoi(next);
        else
            return ERR_INVAL;
    }
    return o->runs > 0 && o->runs <= MAX_RUNS && o->threads ? 0 : ERR_INVAL;
}

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* One thread is timed by its own CPU time, which other processes disturb little. */
static double now(const struct product *p)
{
    return p->k->threads == 1 ? cpu_seconds() : clock_now();
}

static int8_t some_byte(size_t i)
{
    return (int8_t)((i * 2654435761u >> 13) % 255 - 127);
}

static void product_destroy(struct product *p)
{
    const struct kernels *k = p->k;

    if (p->m)
        k->unpack_free(k, p->m);
    k->act_destroy(k, p->a);
    k->free(k, p->x, MAX_TOKENS * (size_t)p->shape->cols * sizeof *p->x);
    k->free(k, p->y, MAX_TOKENS * (size_t)p->shape->rows * sizeof *p->y);
    free(p->w);
    free(p->xq);
    free(p->scale);
}

static int product_create(struct product *p, const struct kernels *k, const struct shape *s,
                          struct err *e)
{
    size_t nw = (size_t)s->rows * s->cols, nx = MAX_TOKENS * (size_t)s->cols;
    struct k_part part = { .type = K_I8, .rows = s->rows, .stride = s->cols };

    *p = (struct product){ .k = k, .shape = s };
    p->w = malloc(nw);
    p->xq = malloc(nx);
    p->scale = malloc(s->rows * sizeof *p->scale);
    p->x = k->alloc(k, nx * sizeof *p->x);
    p->y = k->alloc(k, MAX_TOKENS * (size_t)s->rows * sizeof *p->y);
    if (!p->w || !p->xq || !p->scale || !p->x || !p->y)
        return err_set(e, ERR_NOMEM, "no memory for a matrix of %u x %u", s->rows, s->cols);
    for (size_t i = 0; i < nw; i++)
        p->w[i] = some_byte(i);
    for (size_t i = 0; i < nx; i++)
        p->x[i] = p->xq[i] = some_byte(i + 77);
    for (uint32_t i = 0; i < s->rows; i++)
        p->scale[i] = 1.0f / (float)(i % 100 + 1);
    part.data = p->w;
    part.scale = p->scale;
    return k->pack(k, &p->m, &part, 1, s->cols, K_MATH_FAST, e);
}

static void linear(void *arg)
{
    const struct product *p = arg;

    p->k->linear(p->k, p->y, p->shape->rows, p->a, p->m, p->n, false);
}

static void ours(struct product *p)
{
    p->k->run(p->k, linear, p);
}

static void theirs(struct product *p)
{
    onednn_run(p->theirs);
}

/* Seconds of one call, the mean of as many as make a run long enough. */
static double once(void (*fn)(struct product *p), struct product *p, int *calls)
{
    for (;;) {
        double t = now(p);

        for (int i = 0; i < *calls; i++)
            fn(p);
        t = now(p) - t;
        if (t >= LONG)
            return t / *calls;
        *calls *= 2;
    }
}

static void best(double *t, double other)
{
    if (*t == 0 || other < *t)
        *t = other;
}

static void measure(struct bench *b, struct product *p, const struct options *o)
{
    double t_ours = 0, t_theirs = 0, wall, cpu, ops;
    int calls_ours = 1, calls_theirs = 1;

    p->k->act_load(p->k, p->a, p->x, p->shape->cols, p->n, p->shape->cols);
    p->theirs = onednn_create(p->w, p->scale, p->shape->rows, p->shape->cols, p->xq, p->y, p->n);
    wall = clock_now();
    cpu = cpu_seconds();
    for (int i = 0; i < o->runs; i++) {
        best(&t_ours, once(ours, p, &calls_ours));
        if (p->theirs)
            best(&t_theirs, once(theirs, p, &calls_theirs));
    }
    ops = 2.0 * p->n * p->shape->rows * p->shape->cols;
    b->results[b->n_results++] = (struct result){
        .shape = p->shape,
        .n = p->n,
        .ours = ops / t_ours,
        .theirs = p->theirs ? ops / t_theirs : 0,
        .noisy = cpu_seconds() - cpu < (1 - NOISE) * (clock_now() - wall) * o->threads,
    };
    onednn_destroy(p->theirs);
}

static int measure_shape(struct bench *b, const struct shape *s, const struct options *o,
                         struct err *e)
{
    struct product p;
    int st = product_create(&p, b->k, s, e);

    for (size_t i = 0; st == 0 && i < N_COUNTS; i++) {
        p.n = counts[i];
        st = b->k->act_create(b->k, &p.a, p.n, s->cols, b->k->matrix_form(p.m));
        if (st == 0)
            measure(b, &p, o);
        b->k->act_destroy(b->k, p.a);
        p.a = NULL;
    }
    product_destroy(&p);
    return st;
}

static void print_table(const struct bench *b, const struct options *o)
{
    printf("%s, %u threads, best of %d runs; peak of the exact int8 instructions %.0f Gop/s\n",
           b->k->detail, o->threads, o->runs, b->peak.wide / 1e9);
    printf("against %s\n", onednn_name());
    printf("%-22s %13s %7s %10s %8s %10s %8s\n", "matrix", "size", "tokens", "Gop/s", "of peak",
           "oneDNN", "ratio");
    for (const struct result *f = b->results; f < b->results + b->n_results; f++) {
        printf("%-22s %5ux%-7u %7u %10.1f%c %6.1f%%", f->shape->name, f->shape->rows,
               f->shape->cols, f->n, f->ours / 1e9, f->noisy ? '*' : ' ',
               100 * f->ours / b->peak.wide);
        if (f->theirs > 0)
            printf(" %10.1f %7.2fx\n", f->theirs / 1e9, f->ours / f->theirs);
        else
            printf(" %10s\n", "none");
    }
    for (const struct result *f = b->results; f < b->results + b->n_results; f++)
        if (f->noisy) {
            puts("* noisy: other processes took CPU time; measure again on a quiet machine");
            break;
        }
}

static int write_json(const struct bench *b, const char *path, struct err *e)
{
    struct figure figures[1 + 2 * N_SHAPES * N_COUNTS], *f = figures;

    *f++ = (struct figure){
        .name = "int8_chain_peak", .unit = "Gop/s", .against = "", .value = b->peak.wide / 1e9
    };
    for (const struct result *r = b->results; r < b->results + b->n_results; r++, f += 2) {
        f[0] = (struct figure){ .unit = "Gop/s",
                                .against = "peak of the exact int8 chain",
                                .value = r->ours / 1e9,
                                .ratio = r->ours / b->peak.wide,
                                .noisy = r->noisy };
        f[1] = (struct figure){ .unit = "Gop/s",
                                .against = onednn_name(),
                                .value = r->theirs / 1e9,
                                .ratio = r->theirs > 0 ? r->ours / r->theirs : 0,
                                .noisy = r->noisy };
        snprintf(f[0].name, sizeof f[0].name, "%s_m%u_of_peak", r->shape->name, r->n);
        snprintf(f[1].name, sizeof f[1].name, "%s_m%u_of_onednn", r->shape->name, r->n);
    }
    if (figures_write(path, figures, (size_t)(f - figures)) < 0)
        return err_set(e, ERR_IO, "cannot write %s", path);
    return 0;
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct options o;
    struct err e = { 0 };
    struct k_options ko;
    int st;

    if (parse(&o, argc, argv) < 0) {
        fprintf(stderr, "usage: gemm [--json FILE] [--threads N] [--runs N] [--isa ISA]\n");
        return 2;
    }
    ko = (struct k_options){ .isa = o.isa, .threads = o.threads };
    omp_set_num_threads((int)o.threads);
    st = kernels_open(&b.k, &ko, &e);
    if (st == 0) {
        onednn_limit(b.k->detail);
        peak_measure(&b.peak, b.k->detail, (int)o.threads);
    }
    for (size_t i = 0; st == 0 && i < N_SHAPES; i++)
        st = measure_shape(&b, &shapes[i], &o, &e);
    if (st == 0) {
        print_table(&b, &o);
        if (o.json)
            st = write_json(&b, o.json, &e);
    }
    kernels_close(b.k);
    if (st < 0)
        fprintf(stderr, "gemm: %s\n", e.text);
    return st < 0;
}
