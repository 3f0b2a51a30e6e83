/* Operations of all ranks of a group, made of sends and receives between pairs. Sums are taken in order
 * of ranks. Short ones go everywhere at once; long ones are cut into a slice a rank, each summed by
 * its rank and handed round. */
#include <string.h>

#include "base/status.h"
#include "comm/group_internal.h"

/* Up to so many bytes every rank gets everything and sums for itself. */
#define SHORT_BYTES 8192
#define SUM_BLOCK   1024        /* floats */
#define COLLECTIVE  0x80000000u /* tags of collectives; callers' own are below */

static int begin(struct group *g)
{
    g->n_ops = 0;
    g->turn = (g->turn + 1) & 0x7fffffff;
    return g->base->broken;
}

static uint32_t tag_of(const struct group *g)
{
    return COLLECTIVE | g->turn;
}

static int add_send(struct group *g, uint32_t to, const void *data, size_t bytes)
{
    return group_start_send(g, &g->op[g->n_ops++], to, tag_of(g), data, bytes);
}

static int add_recv(struct group *g, uint32_t from, void *data, size_t bytes)
{
    return group_start_recv(g, &g->op[g->n_ops++], from, tag_of(g), data, bytes);
}

static int finish(struct group *g, int st)
{
    for (uint32_t i = 0; st == 0 && i < g->n_ops; i++)
        st = group_wait(g, &g->op[i]);
    return st;
}

/* The n-th other rank, starting with the next one, so that not all send to the same. */
static uint32_t other(const struct group *g, uint32_t n)
{
    return (g->rank + 1 + n) % g->size;
}

/* bytes of `part` from every rank, rank r's at all + r * bytes. */
static int exchange_all(struct group *g, char *all, const void *part, size_t bytes)
{
    int st = begin(g);

    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++)
        st = add_recv(g, other(g, i), all + other(g, i) * bytes, bytes);
    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++)
        st = add_send(g, other(g, i), part, bytes);
    if (st == 0 && part != all + g->rank * bytes)
        memcpy(all + g->rank * bytes, part, bytes);
    return finish(g, st);
}

int group_barrier(struct group *g)
{
    char mine = 0, all[GROUP_MAX_RANKS];

    return exchange_all(g, all, &mine, 1);
}

/* From a rank to twice as many each round. */
int group_broadcast(struct group *g, uint32_t root, void *data, size_t bytes)
{
    uint32_t me = (g->rank + g->size - root) % g->size, reach = 1;
    int st = begin(g);

    while (me >= reach * 2)
        reach *= 2;
    if (st == 0 && me > 0) {
        st = finish(g, add_recv(g, (me - reach + root) % g->size, data, bytes));
        g->n_ops = 0;
        reach *= 2;
    }
    for (; st == 0 && me < reach && me + reach < g->size; reach *= 2)
        st = add_send(g, (me + reach + root) % g->size, data, bytes);
    return finish(g, st);
}

int group_all_gather(struct group *g, void *all, const void *part, size_t bytes)
{
    return exchange_all(g, all, part, bytes);
}

/* out = the parts of all ranks, n floats each, in order of ranks; rank r's at parts + r * n, but this
 * rank's own at `own`, which may be out. One pass over memory, a block at a time. */
static void sum_parts(const struct group *g, float *out, const float *parts, const float *own,
                      size_t n)
{
    float sum[SUM_BLOCK];

    for (size_t at = 0; at < n; at += SUM_BLOCK) {
        size_t len = n - at < SUM_BLOCK ? n - at : SUM_BLOCK;

        for (uint32_t r = 0; r < g->size; r++) {
            const float *p = (r == g->rank ? own : parts + r * n) + at;

            if (r == 0)
                memcpy(sum, p, len * sizeof *p);
            for (size_t i = 0; r > 0 && i < len; i++)
                sum[i] += p[i];
        }
        memcpy(out + at, sum, len * sizeof *out);
    }
}

/* Slice r of `sum` goes from every rank to rank r; `at` tells where it begins, in floats. */
static int sum_slice(struct group *g, float *out, const float *x, const size_t *at)
{
    float *parts = (float *)(void *)g->base->scratch;
    size_t n = at[g->rank + 1] - at[g->rank];
    int st = begin(g);

    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++)
        st = add_recv(g, other(g, i), parts + other(g, i) * n, n * sizeof *x);
    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++) {
        uint32_t r = other(g, i);

        st = add_send(g, r, x + at[r], (at[r + 1] - at[r]) * sizeof *x);
    }
    if ((st = finish(g, st)) == 0)
        sum_parts(g, out, parts, x + at[g->rank], n);
    return st;
}

static int too_large(const struct group *g, size_t bytes)
{
    return bytes > g->base->o.scratch
               ? group_break(g->base, ERR_LIMIT, "a sum over %zu bytes: the group was made for %zu",
                             bytes, g->base->o.scratch)
               : 0;
}

static void slices(const struct group *g, size_t n, size_t at[GROUP_MAX_RANKS + 1])
{
    for (uint32_t r = 0; r <= g->size; r++)
        at[r] = n * r / g->size;
}

int group_all_reduce(struct group *g, float *x, size_t n)
{
    size_t at[GROUP_MAX_RANKS + 1];
    int st;

    if (g->size == 1)
        return 0;
    if (n * sizeof *x <= SHORT_BYTES && n * sizeof *x * g->size <= g->base->o.scratch) {
        float *parts = (float *)(void *)g->base->scratch;

        if ((st = exchange_all(g, g->base->scratch, x, n * sizeof *x)) == 0)
            sum_parts(g, x, parts, parts + g->rank * n, n);
        return st;
    }
    slices(g, n, at);
    /* a slice is rounded up for each rank */
    if ((st = too_large(g, (n + g->size) * sizeof *x)) < 0 ||
        (st = sum_slice(g, x + at[g->rank], x, at)) < 0 || (st = begin(g)) < 0)
        return st;
    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++) {
        uint32_t r = other(g, i);

        st = add_recv(g, r, x + at[r], (at[r + 1] - at[r]) * sizeof *x);
    }
    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++)
        st = add_send(g, other(g, i), x + at[g->rank], (at[g->rank + 1] - at[g->rank]) * sizeof *x);
    return finish(g, st);
}

int group_reduce_scatter(struct group *g, float *out, const float *x, size_t n)
{
    size_t at[GROUP_MAX_RANKS + 1];
    int st = too_large(g, g->size * n * sizeof *x);

    slices(g, g->size * n, at);
    return st < 0 ? st : sum_slice(g, out, x, at);
}

int group_all_to_all(struct group *g, const void *send, const size_t *send_at,
                     const size_t *send_bytes, void *recv, const size_t *recv_at,
                     const size_t *recv_bytes)
{
    const char *from = send;
    char *to = recv;
    int st = begin(g);

    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++) {
        uint32_t r = other(g, i);

        if (recv_bytes[r])
            st = add_recv(g, r, to + recv_at[r], recv_bytes[r]);
    }
    for (uint32_t i = 0; st == 0 && i + 1 < g->size; i++) {
        uint32_t r = other(g, i);

        if (send_bytes[r])
            st = add_send(g, r, from + send_at[r], send_bytes[r]);
    }
    if (st == 0)
        memcpy(to + recv_at[g->rank], from + send_at[g->rank], send_bytes[g->rank]);
    return finish(g, st);
}
