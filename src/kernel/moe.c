/* Mixture of experts: the choice of experts, and the products of rows that are sorted by expert. */
#include "kernel/moe.h"

#include "base/status.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a tile at most: whole register tiles of every ISA. */
#define TILE_ROWS 96
/* Up to so many tokens the weights are what is read: each thread reads long runs of them. */
#define FEW_TOKENS 4
/* Pieces a thread that the tiles of more tokens are cut into: they differ in rows. */
#define TILE_PIECES 16

/* Sorted rows [from, to), all of one expert. */
struct tile {
    uint32_t expert, from, to;
};

/* What struct k_routes keeps to itself. */
struct plan {
    uint8_t *order;     /* [token][top_k]: its choices by rising expert */
    struct tile *tiles; /* [n_tiles], by rising expert */
    uint32_t n_tiles;
};

/* Tiles that n tokens can give, whatever their experts are. */
static uint32_t most_tiles(const struct k_routes *r, uint32_t n)
{
    uint32_t pairs = n * r->top_k;

    return (pairs < r->experts ? pairs : r->experts) + pairs / TILE_ROWS;
}

int routes_create(const struct kernels *k, struct k_routes **out, uint32_t max_tokens,
                  uint32_t experts, uint32_t top_k)
{
    size_t pairs = (size_t)max_tokens * top_k;
    struct k_routes *r;
    struct plan *p;

    if (max_tokens > K_MAX_TOKENS || experts < 1 || experts > K_MAX_EXPERTS || top_k < 1 ||
        top_k > K_MAX_TOP_K || top_k > experts)
        return ERR_LIMIT;
    r = calloc(1, sizeof *r);
    p = calloc(1, sizeof *p);
    if (!r || !p) {
        free(r);
        free(p);
        return ERR_NOMEM;
    }
    *r = (struct k_routes){
        .max_tokens = max_tokens, .top_k = top_k, .experts = experts, .self = p
    };
    if (!(r->expert = k->alloc(k, pairs * sizeof *r->expert)) ||
        !(r->weight = k->alloc(k, pairs * sizeof *r->weight)) ||
        !(r->row = k->alloc(k, pairs * sizeof *r->row)) ||
        !(r->token = k->alloc(k, pairs * sizeof *r->token)) ||
        !(r->first = k->alloc(k, (experts + 1) * sizeof *r->first)) ||
        !(p->order = k->alloc(k, pairs * sizeof *p->order)) ||
        !(p->tiles = k->alloc(k, most_tiles(r, max_tokens) * sizeof *p->tiles))) {
        routes_destroy(k, r);
        return ERR_NOMEM;
    }
    *out = r;
    return 0;
}

void routes_destroy(const struct kernels *k, struct k_routes *r)
{
    struct plan *p;
    size_t pairs;

    if (!r)
        return;
    p = r->self;
    pairs = (size_t)r->max_tokens * r->top_k;
    k->free(k, r->expert, pairs * sizeof *r->expert);
    k->free(k, r->weight, pairs * sizeof *r->weight);
    k->free(k, r->row, pairs * sizeof *r->row);
    k->free(k, r->token, pairs * sizeof *r->token);
    k->free(k, r->first, (r->experts + 1) * sizeof *r->first);
    k->free(k, p->order, pairs * sizeof *p->order);
    k->free(k, p->tiles, most_tiles(r, r->max_tokens) * sizeof *p->tiles);
    free(p);
    free(r);
}

/* The scores of one token. Sums in double: hundreds of experts would cost float32 some digits. */
static void score(float *s, const float *x, const struct k_router *how)
{
    double sum = 0;
    float max = x[0];

    if (how->sigmoid) {
        for (uint32_t e = 0; e < how->experts; e++)
            s[e] = 1 / (1 + expf(-x[e]));
        return;
    }
    for (uint32_t e = 1; e < how->experts; e++)
        max = x[e] > max ? x[e] : max;
    for (uint32_t e = 0; e < how->experts; e++)
        sum += (double)(s[e] = expf(x[e] - max));
    for (uint32_t e = 0; e < how->experts; e++)
        s[e] = (float)((double)s[e] / sum);
}

/* The first of the largest among those that are not taken; there is one. */
static uint32_t best(const float *x, const bool *taken, uint32_t n)
{
    uint32_t at = 0;

    while (taken[at])
        at++;
    for (uint32_t i = at + 1; i < n; i++)
        if (!taken[i] && x[i] > x[at])
            at = i;
    return at;
}

static float group_score(const float *x, uint32_t n, bool two)
{
    float first = -INFINITY, second = -INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        if (x[i] > first) {
            second = first;
            first = x[i];
        } else if (x[i] > second) {
            second = x[i];
        }
    }
    return two && n > 1 ? first + second : first;
}

/* Marks the experts as taken whose group is not among the best. */
static void drop_groups(bool *taken, const float *x, const struct k_router *how)
{
    uint32_t size = how->experts / how->groups;
    float of[K_MAX_EXPERTS];
    bool stays[K_MAX_EXPERTS] = { false };

    for (uint32_t g = 0; g < how->groups; g++)
        of[g] = group_score(x + g * size, size, how->group_two);
    for (uint32_t i = 0; i < how->top_groups; i++)
        stays[best(of, stays, how->groups)] = true;
    for (uint32_t e = 0; e < how->experts; e++)
        taken[e] = !stays[e / size];
}

/* The experts of one token by falling selection score. */
static void choose(uint32_t *expert, const float *s, const struct k_router *how)
{
    bool taken[K_MAX_EXPERTS] = { false };
    float x[K_MAX_EXPERTS];

    for (uint32_t e = 0; e < how->experts; e++)
        x[e] = how->bias ? s[e] + how->bias[e] : s[e];
    if (how->top_groups < how->groups)
        drop_groups(taken, x, how);
    for (uint32_t i = 0; i < how->top_k; i++) {
        expert[i] = best(x, taken, how->experts);
        taken[expert[i]] = true;
    }
}

static void weigh(float *weight, const uint32_t *expert, const float *s, const struct k_router *how)
{
    float sum = 0;

    for (uint32_t i = 0; i < how->top_k; i++)
        sum += s[expert[i]];
    for (uint32_t i = 0; i < how->top_k; i++)
        weight[i] = (how->normalize ? s[expert[i]] / (sum + 1e-20f) : s[expert[i]]) * how->scale;
}

static void order_choices(uint8_t *order, const uint32_t *expert, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = i;

        for (; at > 0 && expert[order[at - 1]] > expert[i]; at--)
            order[at] = order[at - 1];
        order[at] = (uint8_t)i;
    }
}

struct route_job {
    struct k_routes *r;
    const float *logits;
    size_t ld;
    uint32_t n, pieces;
    struct k_router how;
};

static void route_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct route_job *j = arg;
    const struct plan *p = j->r->self;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);
    float s[K_MAX_EXPERTS];

    (void)thread;
    for (uint32_t i = from; i < to; i++) {
        size_t at = (size_t)i * j->how.top_k;

        score(s, j->logits + i * j->ld, &j->how);
        choose(j->r->expert + at, s, &j->how);
        weigh(j->r->weight + at, j->r->expert + at, s, &j->how);
        order_choices(p->order + at, j->r->expert + at, j->how.top_k);
    }
}

/* Tiles of each expert's rows. */
static void cut_tiles(const struct k_routes *r, struct plan *p)
{
    p->n_tiles = 0;
    for (uint32_t e = 0; e < r->experts; e++)
        for (uint32_t row = r->first[e]; row < r->first[e + 1]; row += TILE_ROWS) {
            uint32_t end = r->first[e + 1];

            p->tiles[p->n_tiles++] = (struct tile){ e, row,
                                                    end - row < TILE_ROWS ? end : row + TILE_ROWS };
        }
}

/* Sorts the pairs by expert, those of one by token: counts, first rows, then rows in order. */
static void sort_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct route_job *j = arg;
    struct k_routes *r = j->r;
    uint32_t pairs = j->n * r->top_k, next[K_MAX_EXPERTS];

    (void)item;
    (void)thread;
    memset(r->first, 0, (r->experts + 1) * sizeof *r->first);
    for (uint32_t i = 0; i < pairs; i++)
        r->first[r->expert[i] + 1]++;
    for (uint32_t e = 0; e < r->experts; e++)
        r->first[e + 1] += r->first[e];
    memcpy(next, r->first, r->experts * sizeof *next);
    for (uint32_t i = 0; i < pairs; i++) {
        uint32_t row = next[r->expert[i]]++;

        r->row[i] = row;
        r->token[row] = i / r->top_k;
    }
    cut_tiles(r, r->self);
}

void route(const struct kernels *k, struct k_routes *r, const float *logits, size_t ld, uint32_t n,
           const struct k_router *how)
{
    struct route_job job = { r, logits, ld, n, pieces(k, n), *how };

    assert(n <= r->max_tokens && how->experts == r->experts && how->top_k == r->top_k);
    assert(how->groups >= 1 && how->experts % how->groups == 0 && how->top_groups >= 1);
    assert(how->top_groups <= how->groups &&
           how->experts / how->groups * how->top_groups >= how->top_k);
    team_items(&cpu_of(k)->team, job.pieces, route_item, &job, sizeof job);
    team_items(&cpu_of(k)->team, 1, sort_item, &job, sizeof job);
}

void routes_given(const struct kernels *k, struct k_routes *r, const uint32_t *token,
                  const uint32_t *first)
{
    uint32_t n = first[r->experts];

    (void)k;
    assert(r->top_k == 1 && n <= r->max_tokens);
    memcpy(r->token, token, n * sizeof *token);
    memcpy(r->first, first, (r->experts + 1) * sizeof *first);
    cut_tiles(r, r->self);
}

struct experts_split {
    const struct kernels *k;
    struct linear_job job; /* without its matrix */
    const struct k_matrix *const *w;
    const struct plan *plan;
    uint32_t units, items;
};

/* A piece of all units of all tiles. How many there are is known only here: the table of the tiles
 * may have been written by the operation before. */
static void experts_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct experts_split *s = arg;
    const struct k_act *a = s->job.a;
    uint32_t from, to = piece(s->plan->n_tiles * s->units, s->items, item, &from);

    while (from < to) {
        const struct tile *t = &s->plan->tiles[from / s->units];
        uint32_t unit = from % s->units;
        uint32_t end = to - from < s->units - unit ? unit + to - from : s->units;
        struct linear_job job = s->job;

        job.w = s->w[t->expert];
        assert((a->forms & matrix_form(job.w)) == matrix_form(job.w) && a->cols == job.w->cols);
        linear_units(&cpu_of(s->k)->impl, &job, unit, end, t->from, t->to,
                     a->scratch + thread * a->scratch_bytes);
        from += end - unit;
    }
}

void linear_experts(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                    const struct k_matrix *const *w, const struct k_routes *r, uint32_t n)
{
    struct experts_split s = {
        .k = k, .job = { .y = y, .ldy = ldy, .a = a }, .w = w, .plan = r->self
    };
    uint32_t most = (n <= FEW_TOKENS ? PIECES : TILE_PIECES) * k->threads;

    assert(n <= r->max_tokens && (uint64_t)n * r->top_k <= a->max_tokens);
    s.units = matrix_units(w[0]);
    s.items = most_tiles(r, n) * s.units;
    s.items = s.items < most ? s.items : most;
    team_items(&cpu_of(k)->team, s.items, experts_item, &s, sizeof s);
}

struct combine_job {
    float *y;
    const float *x;
    size_t ldy, ldx;
    const struct k_routes *r;
    uint32_t n, cols, pieces;
    bool add;
};

/* Columns whose sums are kept at a time. */
#define CHUNK 64

static void combine_token(const struct combine_job *j, uint32_t i)
{
    const struct k_routes *r = j->r;
    const uint8_t *order = ((const struct plan *)r->self)->order + (size_t)i * r->top_k;

    for (uint32_t from = 0; from < j->cols; from += CHUNK) {
        uint32_t n = j->cols - from < CHUNK ? j->cols - from : CHUNK;
        float sum[CHUNK] = { 0 }, *y = j->y + i * j->ldy + from;

        for (uint32_t c = 0; c < r->top_k; c++) {
            size_t at = (size_t)i * r->top_k + order[c];
            const float *x = j->x + r->row[at] * j->ldx + from;

            for (uint32_t d = 0; d < n; d++)
                sum[d] += r->weight[at] * x[d];
        }
        for (uint32_t d = 0; d < n; d++)
            y[d] = j->add ? y[d] + sum[d] : sum[d];
    }
}

static void combine_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct combine_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++)
        combine_token(j, i);
}

void combine(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
             const struct k_routes *r, uint32_t n, uint32_t cols, bool add)
{
    struct combine_job job = { y, x, ldy, ldx, r, n, cols, pieces(k, n), add };

    team_items(&cpu_of(k)->team, job.pieces, combine_item, &job, sizeof job);
}
