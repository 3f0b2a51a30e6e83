/* Measures what ranks exchange in a step: sums (tensor parallel), gathers and all-to-alls (expert
 * parallel) and sends of hidden states (pipeline parallel), between two processes of this host,
 * against memcpy of the same bytes in the same run.
 *
 *     coll [--json FILE]
 *
 * Bytes are those of the whole tensor that a rank has in the end: of an all-gather it brings half
 * itself, of an all-to-all it keeps half. A send is half of a round trip. Medians; both ranks and
 * memcpy use the same buffers again and again, as a step does. A figure is marked as noisy (*) if
 * other processes took the CPU in more than one round of ten. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/status.h"
#include "comm/group.h"
#include "figures.h"
#include "sys/clock.h"
#include "two_ranks.h"

#define MAX_BYTES   (16u << 20)
#define MAX_ROUNDS  500
#define MIN_ROUNDS  5
#define WARM_ROUNDS 3
#define BUDGET      0.3 /* seconds for the rounds of one figure */
#define LIMIT       20  /* seconds for everything: then a rank has hung */

struct side {
    struct group *g;
    char *x, *y; /* MAX_BYTES each */
    bool noisy;  /* the last median */
};

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "bench/coll: %s\n", what);
    exit(1);
}

static int all_reduce(struct side *s, size_t bytes)
{
    return group_all_reduce(s->g, (float *)(void *)s->x, bytes / sizeof(float));
}

static int all_gather(struct side *s, size_t bytes)
{
    return group_all_gather(s->g, s->y, s->x, bytes / RANKS);
}

static int all_to_all(struct side *s, size_t bytes)
{
    const size_t at[RANKS] = { 0, bytes / RANKS }, n[RANKS] = { bytes / RANKS, bytes / RANKS };

    return group_all_to_all(s->g, s->x, at, n, s->y, at, n);
}

static int there_and_back(struct side *s, size_t bytes)
{
    bool first = group_rank(s->g) == 0;
    int st = first ? group_send(s->g, 1, 1, s->x, bytes) : group_recv(s->g, 0, 1, s->y, bytes);

    if (st < 0)
        return st;
    return first ? group_recv(s->g, 1, 2, s->y, bytes) : group_send(s->g, 0, 2, s->y, bytes);
}

/* Not inlined, or the compiler sees that nobody reads the copy. */
static __attribute__((noinline)) int copy(struct side *s, size_t bytes)
{
    memcpy(s->y, s->x, bytes);
    __asm__ volatile("" ::: "memory");
    return 0;
}

static const struct operation {
    const char *name;
    int (*run)(struct side *s, size_t bytes);
    int trips; /* one run is so many of what is reported */
    size_t min_bytes;
} operations[] = {
    { "all_reduce", all_reduce, 1, 4096 },
    { "all_gather", all_gather, 1, 4096 },
    { "all_to_all", all_to_all, 1, 4096 },
    { "send", there_and_back, 2, 1u << 20 },
};
#define N_OPERATIONS (sizeof operations / sizeof *operations)

static const struct operation memory_copy = { "memcpy", copy, 1, 0 };
static const struct {
    size_t bytes;
    const char *name;
} sizes[] = { { 4096, "4k" }, { 65536, "64k" }, { 1u << 20, "1m" }, { MAX_BYTES, "16m" } };
#define N_SIZES (sizeof sizes / sizeof *sizes)

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double run_once(const struct operation *op, struct side *s, size_t bytes)
{
    double began = clock_now();

    if (op->run(s, bytes) < 0)
        die(group_why(s->g));
    return (clock_now() - began) / op->trips;
}

static uint32_t rounds_for(double seconds)
{
    double fit = BUDGET / (seconds + 1e-9);

    return fit > MAX_ROUNDS ? MAX_ROUNDS : fit < MIN_ROUNDS ? MIN_ROUNDS : (uint32_t)fit;
}

static long times_displaced(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_nivcsw;
}

/* The median of n rounds, in seconds. */
static double median(const struct operation *op, struct side *s, size_t bytes, uint32_t n)
{
    double v[MAX_ROUNDS];
    long before = times_displaced();

    for (uint32_t i = 0; i < n; i++)
        v[i] = run_once(op, s, bytes);
    s->noisy = times_displaced() - before > n / 10;
    qsort(v, n, sizeof *v, by_value);
    return v[n / 2];
}

static double warm_up(const struct operation *op, struct side *s, size_t bytes)
{
    double last = 0;

    for (int i = 0; i < WARM_ROUNDS; i++)
        last = run_once(op, s, bytes);
    return last * op->trips;
}

/* Called by both ranks; rank 0 says how many rounds there are. */
static double measure(const struct operation *op, struct side *s, size_t bytes)
{
    uint32_t n = rounds_for(warm_up(op, s, bytes));

    if (group_broadcast(s->g, 0, &n, sizeof n) < 0)
        die(group_why(s->g));
    return median(op, s, bytes, n);
}

static struct figure figure_of(const struct side *s, const struct operation *op, size_t size,
                               double t, double copied)
{
    struct figure f = { .unit = "GB/s",
                        .against = "memcpy",
                        .value = (double)sizes[size].bytes / t * 1e-9,
                        .ratio = copied / t,
                        .noisy = s->noisy };

    snprintf(f.name, sizeof f.name, "%s_%s", op->name, sizes[size].name);
    return f;
}

/* One rank's part; rank 0 fills f. Returns the number of figures. The other rank sleeps while
 * rank 0 measures memcpy. */
static size_t take_part(struct side *s, struct figure *f)
{
    bool first = group_rank(s->g) == 0;
    size_t n = 0;

    for (size_t i = 0; i < N_SIZES; i++) {
        size_t bytes = sizes[i].bytes;
        double copied = 0;

        if (first) {
            copied = median(&memory_copy, s, bytes, rounds_for(warm_up(&memory_copy, s, bytes)));
            f[n++] = figure_of(s, &memory_copy, i, copied, copied);
        }
        for (size_t k = 0; k < N_OPERATIONS; k++) {
            double t = bytes < operations[k].min_bytes ? 0 : measure(&operations[k], s, bytes);

            if (first && t > 0)
                f[n++] = figure_of(s, &operations[k], i, t, copied);
        }
    }
    return n;
}

struct results {
    struct figure f[N_SIZES * (N_OPERATIONS + 1)];
    size_t n;
};

static void live(void *arg, struct group *g, uint32_t rank)
{
    struct side s = { .g = g, .x = calloc(1, MAX_BYTES), .y = calloc(1, MAX_BYTES) };
    struct results *r = arg;

    (void)rank;
    if (!s.x || !s.y)
        die("out of memory");
    memset(s.x, 0, MAX_BYTES); /* pages of its own */
    r->n = take_part(&s, r->f);
    free(s.x);
    free(s.y);
}

int main(int argc, char **argv)
{
    const char *json = argc == 3 && strcmp(argv[1], "--json") == 0 ? argv[2] : NULL;
    static struct results r;
    const struct figure *f = r.f;

    if (argc > 1 && !json)
        die("usage: coll [--json FILE]");
    two_ranks(MAX_BYTES + 4096, LIMIT, live, &r);
    printf("%-16s %8s  %10s\n", "two ranks", "GB/s", "of memcpy");
    for (size_t i = 0; i < r.n; i++)
        printf("%-16s %8.3f%c %10.3f\n", f[i].name, f[i].value, f[i].noisy ? '*' : ' ', f[i].ratio);
    if (json && figures_write(json, r.f, r.n) < 0)
        die("cannot write the JSON file");
    return 0;
}
