/* Attention. Scores: lanes are keys, summed over dim; values: lanes are dims, summed over
 * positions. Up to SET queries share what is loaded. */
#include "kernel/x86/vec.h"

#include <math.h>
#include <string.h>

/* Queries and vectors (of keys or of dims) in a register tile. */
#if LANES == 16
#define SET  6
#define VECS 4
#else
#define SET  6
#define VECS 2
#endif
#define GROUPS (KV_TILE / KV_GROUP)
#define PARTS  (KV_GROUP / LANES) /* vectors in a group */
#define ROWS   (KV_TILE / LANES)  /* vectors in a tile */

/* A tile of keys and values where the arithmetic reads them: in the pool, or converted. */
struct kv_tile {
    const void *k[GROUPS]; /* [dim][16] */
    const void *v[GROUPS]; /* [16][dim] */
    uint32_t first, n;     /* position of its first key, and keys that are there */
};

/* Groups that are not there repeat the last one; what they give is masked. */
static void tile_in_pool(struct kv_tile *t, const struct attend_slab *b, uint32_t first,
                         uint32_t end)
{
    const struct k_kv *kv = b->job->kv;
    size_t size = kv->type == K_F32 ? 4 : 2;

    t->first = first;
    t->n = end - first < KV_TILE ? end - first : KV_TILE;
    for (uint32_t g = 0; g < GROUPS; g++) {
        uint32_t last = (t->n - 1) / KV_GROUP, pos = first + (g < last ? g : last) * KV_GROUP;
        size_t at = kv_group_offset(kv, b->seq->blocks[pos / kv->block_tokens], b->kv_head,
                                    pos % kv->block_tokens);

        t->k[g] = (const char *)kv->k + at * size;
        t->v[g] = (const char *)kv->v + at * size;
    }
}

static void widen(float *out, const void *in, size_t n)
{
    for (size_t i = 0; i < n; i += LANES)
        v_store(out + i, v_load_any(in, i, false));
}

/* Moves a float16 tile to the scratch as float32. */
static void tile_convert(struct kv_tile *t, const struct attend_slab *b)
{
    size_t size = (size_t)KV_GROUP * b->dim;
    uint32_t last = (t->n - 1) / KV_GROUP;

    for (uint32_t g = 0; g < GROUPS; g++) {
        size_t at = (g < last ? g : last) * size;

        if (g <= last) {
            widen(b->s->k + at, t->k[g], size);
            widen(b->s->v + at, t->v[g], size);
        }
        t->k[g] = b->s->k + at;
        t->v[g] = b->s->v + at;
    }
}

/* s->p[j][key] = q.k for n queries and VECS vectors of keys from `from` on. */
ALWAYS_INLINE void scores(const struct attend_slab *b, const struct kv_tile *t,
                          const float *const q[SET], int from, const int n, const bool wide)
{
    vec acc[SET][VECS];

    for (int j = 0; j < n; j++)
        for (int c = 0; c < VECS; c++)
            acc[j][c] = v_zero();
#pragma GCC unroll 4
    for (uint32_t d = 0; d < b->dim; d++) {
        vec k[VECS];

        for (int c = 0; c < VECS; c++)
            k[c] = v_load_any(t->k[(from + c) / PARTS],
                              (size_t)d * KV_GROUP + (size_t)((from + c) % PARTS * LANES), wide);
        for (int j = 0; j < n; j++) {
            vec qs = v_splat(q[j][d]);

            for (int c = 0; c < VECS; c++)
                acc[j][c] = v_fma(k[c], qs, acc[j][c]);
        }
    }
    for (int j = 0; j < n; j++)
        for (int c = 0; c < VECS; c++)
            v_store(b->s->p + j * KV_TILE + (from + c) * LANES, acc[j][c]);
}

/* Scales and masks the scores p of query i; returns its new maximum. */
ALWAYS_INLINE float mask_scores(const struct attend_slab *b, const struct kv_tile *t, uint32_t i,
                                float *p)
{
    uint32_t end = attend_sees(b, i), n = end > t->first ? end - t->first : 0;
    vec top = v_splat(b->s->piece.m[i - b->from]), scale = v_splat(b->job->scale);

    for (uint32_t g = 0; g < ROWS; g++) {
        vec x = v_mul(v_load(p + g * LANES), scale);

        if (n < KV_TILE)
            x = v_select(first_lanes(n > g * LANES ? n - g * LANES : 0), x, v_splat(-INFINITY));
        v_store(p + g * LANES, x);
        top = v_max(x, top);
    }
    return v_max_lane(top);
}

/* p = exp(p - max); their sum. */
ALWAYS_INLINE float weights(float *p, float max)
{
    vec sum[2] = { v_zero(), v_zero() };

    for (int g = 0; g < ROWS; g++) {
        vec x = v_exp(v_sub(v_load(p + g * LANES), v_splat(max)));

        v_store(p + g * LANES, x);
        sum[g % 2] = v_add(sum[g % 2], x);
    }
    return v_sum(v_add(sum[0], sum[1]));
}

/* Turns the scores of n queries into weights; keep[j]: what sums so far shrink by. */
ALWAYS_INLINE void softmax(const struct attend_slab *b, const struct kv_tile *t, uint32_t i,
                           float *keep, const int n)
{
    float *m = b->s->piece.m + (i - b->from), *l = b->s->piece.l + (i - b->from), max[SET];

    for (int j = 0; j < n; j++) {
        max[j] = mask_scores(b, t, i + (uint32_t)j, b->s->p + j * KV_TILE);
        keep[j] = m[j] - max[j];
        m[j] = max[j];
    }
    v_store(keep, v_exp(v_load(keep)));
    for (int j = 0; j < n; j++)
        l[j] = l[j] * keep[j] + weights(b->s->p + j * KV_TILE, max[j]);
}

/* o[j] = o[j] * keep[j] + sum of p[j][key] * v[key] for keys [0, end); nv vectors of dims from d. */
ALWAYS_INLINE void values(const struct attend_slab *b, const struct kv_tile *t, uint32_t i,
                          uint32_t d, uint32_t end, const float *keep, const int n, const int nv,
                          const bool wide)
{
    float *o = b->s->piece.o + (size_t)(i - b->from) * b->dim + d;
    vec acc[SET][VECS];

    for (int j = 0; j < n; j++)
        for (int c = 0; c < nv; c++)
            acc[j][c] = v_mul(v_load(o + (size_t)j * b->dim + c * LANES), v_splat(keep[j]));
    for (uint32_t key = 0; key < end; key += KV_GROUP) {
        const float *p = b->s->p + key;
        const void *group = t->v[key / KV_GROUP];
        size_t at = d;

        for (uint32_t left = end - key < KV_GROUP ? end - key : KV_GROUP; left;
             left--, at += b->dim, p++) {
            vec v[VECS];

            for (int c = 0; c < nv; c++)
                v[c] = v_load_any(group, at + (size_t)(c * LANES), wide);
            for (int j = 0; j < n; j++) {
                vec w = v_splat(p[j * KV_TILE]);

                for (int c = 0; c < nv; c++)
                    acc[j][c] = v_fma(w, v[c], acc[j][c]);
            }
        }
    }
    for (int j = 0; j < n; j++)
        for (int c = 0; c < nv; c++)
            v_store(o + (size_t)j * b->dim + c * LANES, acc[j][c]);
}

/* n queries from i on against one tile. */
ALWAYS_INLINE void step(const struct attend_slab *b, const struct kv_tile *t, uint32_t i,
                        const int n, const bool wide)
{
    uint32_t most = attend_sees(b, i + (uint32_t)n - 1), end, d = 0;
    float keep[16] = { 0 };
    const float *q[SET];

    if (most <= t->first)
        return;
    end = most - t->first < t->n ? most - t->first : t->n;
    for (int j = 0; j < n; j++)
        q[j] = b->job->q + attend_at(b, i + (uint32_t)j, b->job->ldq);
    for (int from = 0; from < ROWS; from += VECS)
        scores(b, t, q, from, n, wide);
    softmax(b, t, i, keep, n);
    for (; d + VECS * LANES <= b->dim; d += VECS * LANES)
        values(b, t, i, d, end, keep, n, VECS, wide);
    for (; d < b->dim; d += LANES)
        values(b, t, i, d, end, keep, n, 1, wide);
}

typedef void step_fn(const struct attend_slab *b, const struct kv_tile *t, uint32_t i);

#define STEP_FN(name, n, wide)                                                                     \
    static void name(const struct attend_slab *b, const struct kv_tile *t, uint32_t i)             \
    {                                                                                              \
        step(b, t, i, n, wide);                                                                    \
    }
STEP_FN(step_6, 6, true)
STEP_FN(step_3, 3, true)
STEP_FN(step_1, 1, true)
STEP_FN(step_6_half, 6, false)
STEP_FN(step_3_half, 3, false)
STEP_FN(step_1_half, 1, false)

static void attend_tile(const struct attend_slab *b, const struct kv_tile *t, bool wide)
{
    step_fn *six = wide ? step_6 : step_6_half, *three = wide ? step_3 : step_3_half;
    step_fn *one = wide ? step_1 : step_1_half;
    uint32_t i = b->from;

    for (; i + 6 <= b->to; i += 6)
        six(b, t, i);
    for (; i + 3 <= b->to; i += 3)
        three(b, t, i);
    for (; i < b->to; i++)
        one(b, t, i);
}

void ISA(attend_sum)(const struct attend_slab *b, uint32_t piece)
{
    uint32_t n = b->to - b->from, first = piece * KV_PIECE, end = attend_sees(b, b->to - 1);
    bool wide = b->job->kv->type == K_F32, convert = !wide && n >= 2 * SET;
    struct attend_sums *s = &b->s->piece;

    end = end < first + KV_PIECE ? end : first + KV_PIECE;
    for (uint32_t i = 0; i < n; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    memset(s->o, 0, (size_t)n * b->dim * sizeof *s->o);
    for (; first < end; first += KV_TILE) {
        struct kv_tile t;

        tile_in_pool(&t, b, first, end);
        if (convert)
            tile_convert(&t, b);
        attend_tile(b, &t, wide || convert);
    }
}

/* Sums of query i of the piece to those of all before. */
static void add_query(const struct attend_slab *b, uint32_t i)
{
    struct attend_sums *all = &b->s->all;
    const struct attend_sums *x = &b->s->piece;
    float max = all->m[i] > x->m[i] ? all->m[i] : x->m[i];
    float by[LANES] = { all->m[i] - max, x->m[i] - max };
    float *o = all->o + (size_t)i * b->dim;

    v_store(by, v_exp(v_load(by)));
    for (uint32_t d = 0; d < b->dim; d += LANES)
        v_store(o + d, v_fma(v_load(x->o + (size_t)i * b->dim + d), v_splat(by[1]),
                             v_mul(v_load(o + d), v_splat(by[0]))));
    all->l[i] = x->l[i] * by[1] + all->l[i] * by[0];
    all->m[i] = max;
}

void ISA(attend_add)(const struct attend_slab *b, uint32_t piece)
{
    uint32_t n = b->to - b->from;
    struct attend_sums *all = &b->s->all;

    if (piece == 0) {
        memcpy(all->o, b->s->piece.o, (size_t)n * b->dim * sizeof *all->o);
        memcpy(all->m, b->s->piece.m, n * sizeof *all->m);
        memcpy(all->l, b->s->piece.l, n * sizeof *all->l);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (attend_sees(b, b->from + i) > piece * KV_PIECE)
            add_query(b, i);
}

void ISA(attend_finish)(const struct attend_slab *b)
{
    for (uint32_t i = b->from; i < b->to; i++) {
        float *out = b->job->out + attend_at(b, i, b->job->ldo);
        const float *o = b->s->all.o + (size_t)(i - b->from) * b->dim;
        vec inv = v_splat(1 / b->s->all.l[i - b->from]);

        for (uint32_t d = 0; d < b->dim; d += LANES)
            v_store(out + d, v_mul(v_load(o + d), inv));
    }
}
