/* Measures tensor parallelism: steps of two ranks (processes of this host, a thread each) against one
 * process of one thread, and between the ranks sums that all get (all-reduce) against sequence
 * parallelism (reduce-scatter, norm of a share of the rows, all-gather). Called by the script of the
 * same name.
 *
 *     tp MODEL [--json FILE]
 *
 * Rounds of both ways alternate; figures are medians of rank 0. "waiting" is the share of a step that
 * it spends in exchanges, the wait for the other rank included. A figure is marked as noisy if its
 * process waited for the CPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/group.h"
#include "figures.h"
#include "model/model.h"
#include "sys/clock.h"
#include "two_ranks.h"

#define ROWS   256 /* of a prompt's step */
#define BLOCK  (ROWS + KV_GROUP)
#define ROUNDS 9
#define LIMIT  300 /* seconds for everything: then a rank has hung */

enum way { ALONE, REDUCE, SEQUENCE, WAYS };

/* A model, and what its steps need. */
struct bed {
    struct model *m;
    struct model_work *w;
    struct k_kv *planes;
};

struct side {
    struct group *g;
    struct kernels *k;
    struct model_peers peers;
    double waiting; /* seconds in exchanges since it was reset */
    struct bed beds[WAYS];
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench/tp: %s\n", what);
    exit(1);
}

/* ---- exchanges ---- */

static void check(struct side *s, int st, double began)
{
    if (st < 0)
        die(group_why(s->g));
    s->waiting += clock_now() - began;
}

static void all_reduce(void *arg, float *x, size_t n)
{
    struct side *s = arg;
    double began = clock_now();

    check(s, group_all_reduce(s->g, x, n), began);
}

static void reduce_scatter(void *arg, float *out, const float *x, size_t n)
{
    struct side *s = arg;
    double began = clock_now();

    check(s, group_reduce_scatter(s->g, out, x, n), began);
}

static void all_gather(void *arg, void *all, const void *part, size_t bytes)
{
    struct side *s = arg;
    double began = clock_now();

    check(s, group_all_gather(s->g, all, part, bytes), began);
}

/* ---- a model ---- */

static void open_bed(struct side *s, enum way way, const char *path)
{
    struct model_options o = { .path = path, .max_model_len = BLOCK };
    struct bed *b = &s->beds[way];
    struct model_kv_shape shape;
    struct err e = { "" };
    size_t bytes;

    if (way != ALONE)
        o.part = (struct model_part){ .tp_rank = group_rank(s->g),
                                      .tp_size = RANKS,
                                      .sequence_parallel = way == SEQUENCE,
                                      .peers = &s->peers };
    if (model_open(&b->m, s->k, &o, &e) < 0 || model_work_create(&b->w, b->m, ROWS, 1, &e) < 0)
        die(e.text);
    model_kv_shape(b->m, &shape);
    b->planes = calloc(shape.n_layers, sizeof *b->planes);
    bytes = (size_t)shape.kv_heads * BLOCK * shape.head_dim *
            k_type_info[model_kv_type(b->m)].bytes;
    for (uint32_t i = 0; b->planes && i < shape.n_layers; i++)
        b->planes[i] = (struct k_kv){ .k = s->k->alloc(s->k, bytes),
                                      .v = shape.latent ? NULL : s->k->alloc(s->k, bytes),
                                      .type = model_kv_type(b->m),
                                      .block_tokens = BLOCK,
                                      .kv_heads = shape.kv_heads,
                                      .head_dim = shape.head_dim,
                                      .latent = shape.latent };
}

/* Positions [from, from + n) and the logits of the last. */
static void step(struct side *s, enum way way, uint32_t from, uint32_t n)
{
    static const uint32_t block = 0;
    struct bed *b = &s->beds[way];
    int32_t ids[ROWS];
    uint32_t pos[ROWS], last = n - 1, n_prompt = n > 1 ? n : 0;
    struct k_seq seq = { 0, n, from, &block };
    const struct model_batch batch = { n, ids, pos, &seq, 1, &n_prompt };
    size_t ld;

    for (uint32_t i = 0; i < n; i++) {
        pos[i] = from + i;
        ids[i] = (int32_t)((pos[i] * 7919u + 13) % model_config(b->m)->vocab);
    }
    model_forward(b->m, b->w, b->planes, &batch);
    model_logits(b->m, b->w, &last, 1, &ld);
}

/* ---- measuring ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double median(double v[ROUNDS])
{
    qsort(v, ROUNDS, sizeof *v, by_value);
    return v[ROUNDS / 2];
}

static long times_displaced(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

struct times {
    double step[WAYS], waiting[WAYS];
    bool noisy;
};

/* Steps of n rows from a position on, every way in turn. */
static void measure(struct side *s, struct times *t, uint32_t from, uint32_t n)
{
    double seconds[WAYS][ROUNDS], waiting[WAYS][ROUNDS];
    bool first = group_rank(s->g) == 0;
    long before = times_displaced();

    for (uint32_t i = 0; i < ROUNDS; i++)
        for (enum way way = ALONE; way < WAYS; way++) {
            double began;

            if (group_barrier(s->g) < 0)
                die(group_why(s->g));
            s->waiting = 0;
            began = clock_now();
            if (way != ALONE || first)
                step(s, way, from, n);
            seconds[way][i] = clock_now() - began;
            waiting[way][i] = s->waiting;
        }
    t->noisy = times_displaced() - before > WAYS * ROUNDS / 5;
    for (enum way way = ALONE; way < WAYS; way++) {
        t->step[way] = median(seconds[way]);
        t->waiting[way] = median(waiting[way]);
    }
}

/* Rank 0 fills f. Returns how many. */
static size_t report(const struct times *t, uint32_t n, struct figure *f)
{
    static const char *const names[WAYS] = { "one_process", "two_ranks", "sequence_parallel" };
    size_t count = 0;

    for (enum way way = ALONE; way < WAYS; way++) {
        struct figure *x = &f[count++];

        *x = (struct figure){ .unit = "tokens/s",
                              .against = way == SEQUENCE ? "two_ranks" : "one_process",
                              .value = n / t->step[way],
                              .ratio = t->step[way == SEQUENCE ? REDUCE : ALONE] / t->step[way],
                              .noisy = t->noisy };
        snprintf(x->name, sizeof x->name, "%s_%u", names[way], n);
        if (way == ALONE)
            continue;
        x = &f[count++];
        *x = (struct figure){ .unit = "of the step",
                              .against = "",
                              .value = t->waiting[way] / t->step[way],
                              .noisy = t->noisy };
        snprintf(x->name, sizeof x->name, "%s_%u_waiting", names[way], n);
    }
    return count;
}

struct results {
    const char *path;
    struct figure f[4 * WAYS];
    size_t n;
};

static void live(void *arg, struct group *g, uint32_t rank)
{
    struct k_options ko = { .threads = 1 };
    struct side s = { .g = g,
                      .peers = { .arg = &s,
                                 .all_reduce = all_reduce,
                                 .reduce_scatter = reduce_scatter,
                                 .all_gather = all_gather } };
    struct results *r = arg;
    struct times t;
    struct err e = { "" };

    if (kernels_open(&s.k, &ko, &e) < 0)
        die(e.text);
    for (enum way way = ALONE; way < WAYS; way++)
        if (way != ALONE || rank == 0)
            open_bed(&s, way, r->path);
    measure(&s, &t, 0, ROWS);
    r->n = report(&t, ROWS, r->f);
    measure(&s, &t, ROWS, 1);
    r->n += report(&t, 1, r->f + r->n);
}

int main(int argc, char **argv)
{
    const char *json = argc == 4 && strcmp(argv[2], "--json") == 0 ? argv[3] : NULL;
    static struct results r;
    const struct figure *f = r.f;

    if (argc != 2 && !json)
        die("usage: tp MODEL [--json FILE]");
    r.path = argv[1];
    two_ranks((size_t)64 << 20, LIMIT, live, &r);
    for (size_t i = 0; i < r.n; i++)
        printf("%-32s %10.3f%c %-12s %6.3f %s%s\n", f[i].name, f[i].value, f[i].noisy ? '*' : ' ',
               f[i].unit, f[i].ratio, f[i].ratio > 0 ? "of " : "", f[i].against);
    if (json && figures_write(json, r.f, r.n) < 0)
        die("cannot write the JSON file");
    return 0;
}
