/* bench/compute: prefill and decode of one model against what the machine can do at most, measured
 * in the same run. Called by the script of the same name.
 *
 *     compute MODEL [--json FILE] [--threads N] [--runs N] [--isa ISA]
 *
 * The bound of a prefill is its linear work at the int8 peak plus its attention at the float peak;
 * that of a decode step is the packed weights at the rate at which memory is read.
 *
 * A figure is marked as noisy if the process got less CPU time than its threads asked for while it
 * was taken, or if the peaks measured before and after everything differ: then other processes had
 * their share of the machine, and it says little. */
#include "base/status.h"
#include "compute_peak.h"
#include "figures.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "sys/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_PROMPT   2048
#define DECODE_AT    128 /* tokens in the cache when decoding starts */
#define DECODE_STEPS 48
#define BLOCK        32
#define MAX_RUNS     32
#define MAX_FIGURES  16
#define NOISE        0.15 /* what a quiet machine stays below */

struct options {
    const char *model, *json, *isa;
    uint32_t threads;
    int runs;
};

/* A repeated measurement. */
struct timing {
    double seconds; /* the median */
    bool noisy;
};

struct bench {
    struct kernels *k;
    struct model *m;
    struct model_work *w;
    struct k_kv *kv;
    size_t plane;
    int32_t ids[MAX_PROMPT];
    uint32_t pos[MAX_PROMPT], blocks[MAX_PROMPT / BLOCK + 8];
    struct figure figures[MAX_FIGURES];
    int n_figures;
};

static int parse(struct options *o, int argc, char **argv)
{
    *o = (struct options){ .threads = 2, .runs = 5 };
    for (int i = 1; i < argc; i++) {
        const char *next = i + 1 < argc ? argv[i + 1] : NULL;

        if (argv[i][0] != '-') {
            o->model = argv[i];
            continue;
        }
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
        i++;
    }
    return o->model && o->runs > 0 && o->runs <= MAX_RUNS && o->threads ? 0 : ERR_INVAL;
}

static int open_bench(struct bench *b, const struct options *o, struct err *e)
{
    struct k_options ko = { .isa = o->isa, .threads = o->threads };
    struct model_options mo = { .path = o->model, .max_model_len = MAX_PROMPT + BLOCK };
    const struct model_config *c;
    uint32_t n_blocks = MAX_PROMPT / BLOCK + 8;
    int st;

    if ((st = kernels_open(&b->k, &ko, e)) < 0 || (st = model_open(&b->m, b->k, &mo, e)) < 0 ||
        (st = model_work_create(&b->w, b->m, MAX_PROMPT, 1, e)) < 0)
        return st;
    c = model_config(b->m);
    b->plane = (size_t)n_blocks * c->kv_heads * BLOCK * c->head_dim *
               (model_kv_type(b->m) == K_F32 ? 4 : 2);
    b->kv = calloc(c->n_layers, sizeof *b->kv);
    for (uint32_t i = 0; b->kv && i < c->n_layers; i++) {
        b->kv[i] = (struct k_kv){ b->k->alloc(b->k, b->plane),
                                  b->k->alloc(b->k, b->plane),
                                  model_kv_type(b->m),
                                  BLOCK,
                                  c->kv_heads,
                                  c->head_dim,
                                  0 };
        if (!b->kv[i].k || !b->kv[i].v)
            return err_set(e, ERR_NOMEM, "no memory for the KV cache");
    }
    for (uint32_t i = 0; i < n_blocks; i++)
        b->blocks[i] = i;
    for (uint32_t i = 0; i < MAX_PROMPT; i++) {
        b->ids[i] = (int32_t)(1000 + i * 7919u % (c->vocab / 2));
        b->pos[i] = i;
    }
    return b->kv ? 0 : err_set(e, ERR_NOMEM, "no memory for the KV cache");
}

static void close_bench(struct bench *b)
{
    for (uint32_t i = 0; b->kv && i < model_config(b->m)->n_layers; i++) {
        b->k->free(b->k, b->kv[i].k, b->plane);
        b->k->free(b->k, b->kv[i].v, b->plane);
    }
    free(b->kv);
    model_work_destroy(b->w);
    model_close(b->m);
    kernels_close(b->k);
}

/* Rows [from, from + n) of the prompt, and the greedy token after the last. */
static int32_t step(struct bench *b, uint32_t from, uint32_t n)
{
    struct k_seq seq = { .n = n, .pos = from, .blocks = b->blocks };
    struct model_batch batch = { n, b->ids + from, b->pos + from, &seq, 1, NULL };
    struct k_sample s = { .top_p = 1, .repetition = 1, .n_top = -1, .forced = -1 };
    uint32_t last = n - 1;
    struct k_choice out;
    float *logits;
    size_t ld;

    model_forward(b->m, b->w, b->kv, &batch);
    logits = model_logits(b->m, b->w, &last, 1, &ld);
    b->k->sample(b->k, &out, logits, ld, model_config(b->m)->vocab, &s, 1);
    return out.id;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof *v, by_value);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* CPU time of all threads of this process. */
static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* True if the threads had to wait for a CPU since the given times. */
static bool disturbed(const struct bench *b, double wall, double cpu)
{
    return cpu_seconds() - cpu < (1 - NOISE) * (clock_now() - wall) * b->k->threads;
}

static struct timing time_prefill(struct bench *b, uint32_t n, int runs)
{
    double t[MAX_RUNS], wall, cpu;
    struct timing out;

    step(b, 0, n);
    wall = clock_now();
    cpu = cpu_seconds();
    for (int i = 0; i < runs; i++) {
        t[i] = clock_now();
        step(b, 0, n);
        t[i] = clock_now() - t[i];
    }
    out.noisy = disturbed(b, wall, cpu);
    out.seconds = median(t, runs);
    return out;
}

/* One decode step: the median of the medians of all runs. */
static struct timing time_decode(struct bench *b, int runs)
{
    double t[DECODE_STEPS], each[MAX_RUNS], wall = clock_now(), cpu = cpu_seconds();
    struct timing out;

    for (int r = 0; r < runs; r++) {
        int32_t id = step(b, 0, DECODE_AT);

        for (uint32_t i = 0; i < DECODE_STEPS; i++) {
            b->ids[DECODE_AT + i] = id;
            t[i] = clock_now();
            id = step(b, DECODE_AT + i, 1);
            t[i] = clock_now() - t[i];
        }
        each[r] = median(t, DECODE_STEPS);
    }
    out.noisy = disturbed(b, wall, cpu);
    out.seconds = median(each, runs);
    return out;
}

static double prefill_bound(const struct bench *b, const struct peak *p, uint32_t n)
{
    const struct model_config *c = model_config(b->m);
    double q = (double)c->heads * c->head_dim, kv = (double)c->kv_heads * c->head_dim;
    double layer = (double)c->hidden * (2 * q + 2 * kv + 3.0 * c->ffn);
    double linear = 2 * (c->n_layers * layer * n + (double)c->vocab * c->hidden);
    double attention = 4 * q * c->n_layers * (n * (n + 1.0) / 2);

    return linear / p->int8 + attention / p->flops;
}

static void add(struct bench *b, const char *name, double value, const char *unit,
                const char *against, double ratio, bool noisy)
{
    struct figure *f = &b->figures[b->n_figures++];

    *f = (struct figure){
        .unit = unit, .against = against, .value = value, .ratio = ratio, .noisy = noisy
    };
    snprintf(f->name, sizeof f->name, "%s", name);
}

/* The share of the bound and the tokens a second of a timing of n tokens. */
static void add_timing(struct bench *b, const char *share, const char *rate, const char *against,
                       double bound, uint32_t n, struct timing t, bool peaks_moved)
{
    bool noisy = t.noisy || peaks_moved;

    add(b, share, bound / t.seconds, "1", against, bound / t.seconds, noisy);
    add(b, rate, n / t.seconds, "tok/s", against, bound / t.seconds, noisy);
}

static bool moved(double a, double b)
{
    return (a > b ? a - b : b - a) > NOISE * (a > b ? a : b);
}

/* The better of two measurements of a peak; false if they differ by more than noise. */
static bool merge_peaks(struct peak *p, const struct peak *after)
{
    bool same = !moved(p->int8, after->int8) && !moved(p->flops, after->flops) &&
                !moved(p->read, after->read);

    p->int8 = p->int8 > after->int8 ? p->int8 : after->int8;
    p->flops = p->flops > after->flops ? p->flops : after->flops;
    p->read = p->read > after->read ? p->read : after->read;
    return same;
}

static void measure(struct bench *b, const struct options *o)
{
    struct timing t512, t2048, t1;
    struct peak p, after;
    bool noisy;

    peak_measure(&p, b->k->detail, (int)o->threads);
    t512 = time_prefill(b, 512, o->runs);
    t2048 = time_prefill(b, 2048, o->runs);
    t1 = time_decode(b, o->runs);
    peak_measure(&after, b->k->detail, (int)o->threads);
    noisy = !merge_peaks(&p, &after);
    add(b, "int8_peak", p.int8 / 1e9, "Gop/s", "", 0, noisy);
    add(b, "float_peak", p.flops / 1e9, "Gflop/s", "", 0, noisy);
    add(b, "memory_read", p.read / 1e9, "GB/s", "", 0, noisy);
    add_timing(b, "prefill512_of_bound", "prefill512_tok_s", "bound", prefill_bound(b, &p, 512),
               512, t512, noisy);
    add_timing(b, "prefill2048_of_bound", "prefill2048_tok_s", "bound", prefill_bound(b, &p, 2048),
               2048, t2048, noisy);
    add_timing(b, "decode1_of_read", "decode1_tok_s", "memory read",
               (double)model_weight_bytes(b->m) / p.read, 1, t1, noisy);
}

static void print_table(const struct bench *b, const struct options *o)
{
    bool noisy = false;

    printf("%s, %u threads, median of %d runs\n", b->k->detail, o->threads, o->runs);
    printf("%-22s %12s  %-8s %6s\n", "figure", "value", "unit", "ratio");
    for (int i = 0; i < b->n_figures; i++) {
        const struct figure *f = &b->figures[i];

        printf("%-22s %12.3f%c %-8s", f->name, f->value, f->noisy ? '*' : ' ', f->unit);
        if (f->ratio > 0)
            printf(" %5.1f%% of %s", 100 * f->ratio, f->against);
        putchar('\n');
        noisy = noisy || f->noisy;
    }
    if (noisy)
        printf("* warning: noisy. Other processes took CPU time, or the peaks before and after "
               "differ by more than %.0f%%; measure again on a quiet machine\n",
               100 * NOISE);
}

int main(int argc, char **argv)
{
    static struct bench b;
    struct options o;
    struct err e = { 0 };
    int st;

    if (parse(&o, argc, argv) < 0) {
        fprintf(stderr,
                "usage: compute MODEL [--json FILE] [--threads N] [--runs N] [--isa ISA]\n");
        return 2;
    }
    st = open_bench(&b, &o, &e);
    if (st == 0) {
        measure(&b, &o);
        print_table(&b, &o);
        if (o.json && (st = figures_write(o.json, b.figures, (size_t)b.n_figures)) < 0)
            err_set(&e, st, "cannot write %s", o.json);
    }
    close_bench(&b);
    if (st < 0)
        fprintf(stderr, "compute: %s\n", e.text);
    return st < 0;
}
