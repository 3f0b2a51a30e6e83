/* Measures what expert parallelism costs, and what it hides: steps of a model with experts in two
 * processes of this host that share them, with the shared expert computed while rows travel and
 * without, against a process that has them all and computes the rows of one.
 *
 *     experts MODEL [--rows N] [--json FILE]
 *
 * The three take turns, step by step, and compute the same bits; medians, in rows a second of one
 * process. Each process has one thread (OMP_NUM_THREADS changes that). A figure is marked as noisy
 * (*) if other processes took the CPU in more than one step of ten. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rand.h"
#include "base/status.h"
#include "comm/group.h"
#include "figures.h"
#include "kv/layout.h"
#include "model/model.h"
#include "sys/clock.h"
#include "two_ranks.h"

#define STEPS      11
#define WARM_STEPS 2
#define BLOCK      16
#define LIMIT      300 /* seconds for everything: then a rank has hung */

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench/experts: %s\n", what);
    exit(1);
}

/* ---- a model that one prompt goes through again and again ---- */

struct bed {
    struct model *m;
    struct model_work *w;
    unsigned char *pool;
    struct k_kv *planes;
    uint32_t *blocks, *pos;
    int32_t *ids;
    struct k_seq seq;
    struct model_batch batch;
};

static void make_planes(struct bed *b, const struct kernels *k, uint32_t rows)
{
    struct model_kv_shape s;
    struct kv_layout l;

    model_kv_shape(b->m, &s);
    l = (struct kv_layout){ .planes = s.latent ? 1 : 2,
                            .n_layers = s.n_layers,
                            .kv_heads = s.kv_heads,
                            .head_dim = s.head_dim,
                            .elem_bytes = model_kv_type(b->m) == K_F32 ? 4 : 2,
                            .block_tokens = BLOCK,
                            .n_blocks = (rows + BLOCK - 1) / BLOCK };
    b->pool = k->alloc(k, kv_layout_pool_bytes(&l));
    b->planes = calloc(s.n_layers, sizeof *b->planes);
    if (!b->pool || !b->planes)
        die("out of memory");
    for (uint32_t i = 0; i < s.n_layers; i++)
        b->planes[i] = (struct k_kv){ .k = b->pool + kv_layout_offset(&l, i, 0, 0),
                                      .v = s.latent ? NULL
                                                    : b->pool + kv_layout_offset(&l, i, 1, 0),
                                      .type = model_kv_type(b->m),
                                      .block_tokens = BLOCK,
                                      .kv_heads = s.kv_heads,
                                      .head_dim = s.head_dim,
                                      .latent = s.latent };
}

static void make_batch(struct bed *b, uint32_t rows, uint32_t rank)
{
    uint32_t vocab = model_config(b->m)->vocab;

    b->blocks = calloc((rows + BLOCK - 1) / BLOCK, sizeof *b->blocks);
    b->pos = calloc(rows, sizeof *b->pos);
    b->ids = calloc(rows, sizeof *b->ids);
    if (!b->blocks || !b->pos || !b->ids)
        die("out of memory");
    for (uint32_t i = 0; i < (rows + BLOCK - 1) / BLOCK; i++)
        b->blocks[i] = i;
    for (uint32_t i = 0; i < rows; i++) {
        b->pos[i] = i;
        b->ids[i] = (int32_t)(rand_uniform(rank, i, 0) * vocab);
    }
    b->seq = (struct k_seq){ 0, rows, 0, b->blocks };
    b->batch = (struct model_batch){
        .n = rows, .ids = b->ids, .pos = b->pos, .seqs = &b->seq, .n_seqs = 1
    };
}

static void bed_open(struct bed *b, const struct kernels *k, const char *path,
                     struct model_part part, uint32_t rows, uint32_t rank)
{
    const struct model_options o = { .path = path, .part = part };
    struct err e = { "" };

    if (model_open(&b->m, k, &o, &e) < 0 || model_work_create(&b->w, b->m, rows, 1, &e) < 0)
        die(e.text);
    make_planes(b, k, rows);
    make_batch(b, rows, rank);
}

/* ---- two ranks ---- */

static void exchange(void *arg, const void *send, const size_t *send_at, const size_t *send_bytes,
                     void *recv, const size_t *recv_at, const size_t *recv_bytes)
{
    struct group *g = arg;

    if (group_all_to_all(g, send, send_at, send_bytes, recv, recv_at, recv_bytes) < 0)
        die(group_why(g));
}

enum { ALONE, SHARED, OVERLAPPED, KINDS };
static const char *const kinds[KINDS] = { "alone", "shared", "overlapped" };

struct times {
    double of[KINDS][STEPS];
    bool noisy;
};

static long times_displaced(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

/* Rank 1 waits while rank 0 computes alone. */
static double run_step(struct bed *b, struct group *g, bool alone)
{
    double began;

    if (group_barrier(g) < 0)
        die(group_why(g));
    began = clock_now();
    if (!alone || group_rank(g) == 0)
        model_forward(b->m, b->w, b->planes, &b->batch);
    return clock_now() - began;
}

/* What is measured must also be right. */
static void check_same(const struct bed *a, const struct bed *b)
{
    size_t n = (size_t)a->batch.n * model_config(a->m)->hidden;

    if (memcmp(model_states(a->w), model_states(b->w), n * sizeof(float)) != 0)
        die("ranks that share experts compute other numbers than one process");
}

static void measure(struct times *t, struct bed beds[KINDS], struct group *g)
{
    long before = 0;

    for (int i = -WARM_STEPS; i < STEPS; i++) {
        if (i == 0)
            before = times_displaced();
        for (int kind = 0; kind < KINDS; kind++) {
            double s = run_step(&beds[kind], g, kind == ALONE);

            if (i >= 0)
                t->of[kind][i] = s;
        }
    }
    t->noisy = times_displaced() - before > KINDS * STEPS / 10;
}

struct bench {
    const char *path;
    uint32_t rows;
    struct times t;
};

static void live(void *arg, struct group *g, uint32_t rank)
{
    const struct k_options ko = { .threads = getenv("OMP_NUM_THREADS") ? 0 : 1 };
    struct model_peers peers = { .arg = g, .exchange = exchange };
    struct model_part part = { .ep_rank = rank, .ep_size = RANKS, .peers = &peers };
    struct bed beds[KINDS] = { 0 };
    struct bench *b = arg;
    struct kernels *k;
    struct err e = { "" };

    if (kernels_open(&k, &ko, &e) < 0)
        die(e.text);
    if (rank == 0)
        bed_open(&beds[ALONE], k, b->path, (struct model_part){ 0 }, b->rows, rank);
    bed_open(&beds[SHARED], k, b->path, part, b->rows, rank);
    part.overlap_shared_expert = true;
    bed_open(&beds[OVERLAPPED], k, b->path, part, b->rows, rank);
    measure(&b->t, beds, g);
    check_same(&beds[SHARED], &beds[OVERLAPPED]);
    if (rank == 0)
        check_same(&beds[ALONE], &beds[SHARED]);
}

/* ---- what is said ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report(struct times *t, uint32_t rows, const char *json)
{
    struct figure f[KINDS];
    double alone = 0;

    printf("%-24s %10s %8s\n", "two ranks", "rows/s", "of alone");
    for (int kind = 0; kind < KINDS; kind++) {
        double s;

        qsort(t->of[kind], STEPS, sizeof t->of[kind][0], by_value);
        s = t->of[kind][STEPS / 2];
        alone = kind == ALONE ? s : alone;
        f[kind] = (struct figure){
            .unit = "rows/s", .value = rows / s, .ratio = alone / s, .noisy = t->noisy
        };
        f[kind].against = kinds[ALONE];
        snprintf(f[kind].name, sizeof f[kind].name, "experts_%s_%u", kinds[kind], rows);
        printf("%-24s %10.1f%c %8.3f\n", f[kind].name, f[kind].value, f[kind].noisy ? '*' : ' ',
               f[kind].ratio);
    }
    if (json && figures_write(json, f, KINDS) < 0)
        die("cannot write the JSON file");
}

int main(int argc, char **argv)
{
    const char *json = NULL, *usage = "usage: experts MODEL [--rows N] [--json FILE]";
    static struct bench b;
    unsigned long rows = 256;

    if (argc < 2 || argc % 2)
        die(usage);
    for (int i = 2; i < argc; i += 2) {
        if (strcmp(argv[i], "--json") == 0)
            json = argv[i + 1];
        else if (strcmp(argv[i], "--rows") == 0)
            rows = strtoul(argv[i + 1], NULL, 10);
        else
            die(usage);
    }
    if (rows < 1 || rows > K_MAX_TOKENS)
        die("--rows is out of range");
    b.path = argv[1];
    b.rows = (uint32_t)rows;
    two_ranks(0, LIMIT, live, &b);
    report(&b.t, b.rows, json);
    return 0;
}
