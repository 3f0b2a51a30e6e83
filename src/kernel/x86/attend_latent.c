/* Latent attention, absorbed and expanded. Scores: lanes are queries, summed over dim, so that a
 * number of a key is loaded into all lanes and keys stand as they are cached. Values: lanes are
 * dims, summed over positions. */
#include "kernel/latent.h"
#include "kernel/x86/vec.h"

#include <math.h>
#include <string.h>

/* Keys in a register tile of scores beside three, two or one vectors of queries. */
#if LANES == 16
#define KEYS_3 8
#define KEYS_2 8
#define KEYS_1 16
#else
#define KEYS_3 4
#define KEYS_2 4
#define KEYS_1 8
#endif

/* Queries and vectors of dims in a register tile of values. */
#define SET 6
#if LANES == 16
#define VECS 4
#else
#define VECS 2
#endif

static void row_store(enum k_type type, void *to, const float *x, uint32_t n)
{
    for (uint32_t d = 0; d < n; d += LANES) {
        if (type == K_F32)
            v_store((float *)to + d, v_load(x + d));
        else
            v_store_half((uint16_t *)to + d, v_load(x + d));
    }
}

static void row_load(enum k_type type, float *to, const void *from, uint32_t n)
{
    for (uint32_t d = 0; d < n; d += LANES)
        v_store(to + d, v_load_any(from, d, type == K_F32));
}

/* A tile of keys, which are in the scratch. */
struct tile {
    uint32_t first, n;        /* position of its first key, and keys that are there */
    uint32_t from;            /* the first query (from b->from on) that sees some of them */
    float keep[LATENT_LANES]; /* what the sums of a query so far shrink by */
};

static const char *cached_key(const struct latent_slab *b, size_t pos)
{
    const struct k_kv *kv = &b->job->kv;
    size_t size = kv->type == K_F32 ? sizeof(float) : sizeof(uint16_t);

    return (const char *)kv->k + latent_at(kv, b->seq, (uint32_t)pos) * size;
}

static const float *own_row(const struct latent_slab *b, const struct k_heads *x, size_t pos)
{
    return x->p + pos * x->row + b->head * x->head;
}

static void load_key(const struct latent_slab *b, size_t pos, float *row)
{
    const struct latent_job *job = b->job;
    uint32_t plain = job->dim - job->rope;

    if (latent_absorbed(job)) {
        row_load(job->kv.type, row, cached_key(b, pos), job->dim);
        return;
    }
    pos -= job->first;
    row_load(K_F32, row, own_row(b, &job->k, pos), plain);
    row_load(K_F32, row + plain, job->k_pe + pos * job->ld_pe, job->rope);
    row_load(K_F32, row + job->dim, own_row(b, &job->v, pos), job->v_dim);
}

/* n numbers (a multiple of 16) of LANES queries from lane on, times the scale, to columns. */
static void put_queries(const struct latent_slab *b, const struct k_heads *x, float *to,
                        uint32_t lanes, uint32_t lane, uint32_t n)
{
    vec scale = v_splat(b->job->scale);

    for (uint32_t d = 0; d < n; d += LANES) {
        vec v[LANES];

        for (uint32_t j = 0; j < LANES; j++) {
            uint32_t i = b->from + lane + j;

            v[j] = i < b->to ? v_mul(v_load(latent_vector(b, x, i) + d), scale) : v_zero();
        }
        v_transpose(v);
        for (uint32_t j = 0; j < LANES; j++)
            v_store(to + (size_t)(d + j) * lanes + lane, v[j]);
    }
}

static void latent_queries(const struct latent_slab *b)
{
    const struct latent_job *job = b->job;
    uint32_t lanes = latent_lanes(b), plain = job->dim - job->rope;

    for (uint32_t lane = 0; lane < b->to - b->from; lane += LANES) {
        put_queries(b, &job->q, b->s->q, lanes, lane, plain);
        put_queries(b, &job->pe, b->s->q + (size_t)plain * lanes, lanes, lane, job->rope);
    }
}

/* p[key][lane] = q.k for nv vectors of queries and `keys` keys. */
ALWAYS_INLINE void scores(const struct latent_slab *b, uint32_t lanes, uint32_t lane, uint32_t key,
                          const int nv, const int keys)
{
    const float *q = b->s->q + lane, *k = b->s->k + (size_t)key * LATENT_ROW;
    float *p = b->s->p + (size_t)key * lanes + lane;
    vec acc[16][3];

    for (int j = 0; j < keys; j++)
        for (int v = 0; v < nv; v++)
            acc[j][v] = v_zero();
    for (uint32_t d = 0; d < b->job->dim; d++, q += lanes) {
        vec x[3];

        for (int v = 0; v < nv; v++)
            x[v] = v_load(q + v * LANES);
        for (int j = 0; j < keys; j++) {
            vec ks = v_splat(k[(size_t)j * LATENT_ROW + d]);

            for (int v = 0; v < nv; v++)
                acc[j][v] = v_fma(ks, x[v], acc[j][v]);
        }
    }
    for (int j = 0; j < keys; j++)
        for (int v = 0; v < nv; v++)
            v_store(p + (size_t)j * lanes + v * LANES, acc[j][v]);
}

typedef void scores_fn(const struct latent_slab *b, uint32_t lanes, uint32_t lane, uint32_t n);

#define SCORES_FN(name, nv, keys)                                                                  \
    static void name(const struct latent_slab *b, uint32_t lanes, uint32_t lane, uint32_t n)       \
    {                                                                                              \
        for (uint32_t key = 0; key < n; key += keys)                                               \
            scores(b, lanes, lane, key, nv, keys);                                                 \
    }
SCORES_FN(scores_3, 3, KEYS_3)
SCORES_FN(scores_2, 2, KEYS_2)
SCORES_FN(scores_1, 1, KEYS_1)

/* Keys of the tile that query b->from + i sees. */
static uint32_t seen_keys(const struct latent_slab *b, const struct tile *t, uint32_t i)
{
    uint32_t end = latent_sees(b, b->from + i);

    if (end <= t->first)
        return 0;
    return end - t->first < t->n ? end - t->first : t->n;
}

/* Makes LANES scores of keys that the query does not see -inf; some of them were not computed. */
static void mask_scores(const struct latent_slab *b, const struct tile *t, uint32_t lanes,
                        uint32_t lane)
{
    float *p = b->s->p + lane, sees[LANES];
    vec n;

    for (uint32_t j = 0; j < LANES; j++)
        sees[j] = (float)(b->from + lane + j < b->to ? seen_keys(b, t, lane + j) : t->n);
    n = v_load(sees);
    for (uint32_t key = 0; key < t->n; key++, p += lanes)
        v_store(p, v_select(v_less(v_splat((float)key), n), v_load(p), v_splat(-INFINITY)));
}

/* Turns the scores of LANES queries into weights. */
static void softmax(const struct latent_slab *b, struct tile *t, uint32_t lanes, uint32_t lane)
{
    float *p = b->s->p + lane, *m = b->s->piece.m + lane, *l = b->s->piece.l + lane;
    vec top = v_load(m), keep, sum = v_zero();

    if (seen_keys(b, t, lane) < t->n)
        mask_scores(b, t, lanes, lane);
    for (uint32_t key = 0; key < t->n; key++)
        top = v_max(v_load(p + (size_t)key * lanes), top);
    keep = v_exp(v_sub(v_load(m), top));
    for (uint32_t key = 0; key < t->n; key++, p += lanes) {
        vec x = v_exp(v_sub(v_load(p), top));

        v_store(p, x);
        sum = v_add(sum, x);
    }
    v_store(m, top);
    v_store(l, v_fma(v_load(l), keep, sum));
    v_store(t->keep + lane, keep);
}

/* o[j] = o[j] * keep[j] + sum of p[key][j] * v[key] for n queries from i on and nv vectors of dims
 * from d on. */
ALWAYS_INLINE void values(const struct latent_slab *b, const struct tile *t, uint32_t lanes,
                          uint32_t i, uint32_t d, const int n, const int nv)
{
    uint32_t v_dim = b->job->v_dim, end = seen_keys(b, t, i + (uint32_t)n - 1);
    float *o = b->s->piece.o + (size_t)i * v_dim + d;
    const float *p = b->s->p + i, *row = b->s->k + latent_value(b->job) + d;
    vec acc[SET][VECS];

    for (int j = 0; j < n; j++)
        for (int c = 0; c < nv; c++)
            acc[j][c] = v_mul(v_load(o + (size_t)j * v_dim + c * LANES), v_splat(t->keep[i + j]));
    for (uint32_t key = 0; key < end; key++, row += LATENT_ROW, p += lanes) {
        vec v[VECS];

        for (int c = 0; c < nv; c++)
            v[c] = v_load(row + c * LANES);
        for (int j = 0; j < n; j++) {
            vec w = v_splat(p[j]);

            for (int c = 0; c < nv; c++)
                acc[j][c] = v_fma(w, v[c], acc[j][c]);
        }
    }
    for (int j = 0; j < n; j++)
        for (int c = 0; c < nv; c++)
            v_store(o + (size_t)j * v_dim + c * LANES, acc[j][c]);
}

/* All queries, nv vectors of dims. */
ALWAYS_INLINE void values_at(const struct latent_slab *b, const struct tile *t, uint32_t lanes,
                             uint32_t d, const int nv)
{
    uint32_t n = b->to - b->from, i = t->from;

    for (; i + SET <= n; i += SET)
        values(b, t, lanes, i, d, SET, nv);
    for (; i + SET / 2 <= n; i += SET / 2)
        values(b, t, lanes, i, d, SET / 2, nv);
    for (; i < n; i++)
        values(b, t, lanes, i, d, 1, nv);
}

static void values_wide(const struct latent_slab *b, const struct tile *t, uint32_t lanes,
                        uint32_t d)
{
    values_at(b, t, lanes, d, VECS);
}

static void values_narrow(const struct latent_slab *b, const struct tile *t, uint32_t lanes,
                          uint32_t d)
{
    values_at(b, t, lanes, d, 1);
}

/* Scores and weights of the queries that see some of the tile, in whole vectors. */
static void weigh_tile(const struct latent_slab *b, struct tile *t, uint32_t lanes)
{
    uint32_t n = b->to - b->from, lane = t->from - t->from % LANES;

    while (lane < n) {
        uint32_t left = (n - lane + LANES - 1) / LANES, nv = left < 3 ? left : left == 4 ? 2 : 3;
        uint32_t last = lane + nv * LANES < n ? lane + nv * LANES - 1 : n - 1;

        (nv == 3 ? scores_3 : nv == 2 ? scores_2 : scores_1)(b, lanes, lane, seen_keys(b, t, last));
        for (; nv; nv--, lane += LANES)
            softmax(b, t, lanes, lane);
    }
}

static void attend_tile(const struct latent_slab *b, struct tile *t)
{
    uint32_t lanes = latent_lanes(b), d = 0;

    while (seen_keys(b, t, t->from) == 0)
        t->from++;
    for (uint32_t i = 0; i < t->n; i++)
        load_key(b, t->first + i, b->s->k + (size_t)i * LATENT_ROW);
    weigh_tile(b, t, lanes);
    for (; d + VECS * LANES <= b->job->v_dim; d += VECS * LANES)
        values_wide(b, t, lanes, d);
    for (; d < b->job->v_dim; d += LANES)
        values_narrow(b, t, lanes, d);
}

static void latent_sum(const struct latent_slab *b, uint32_t piece)
{
    uint32_t n = b->to - b->from, first = piece * KV_PIECE, end = latent_sees(b, b->to - 1);
    struct latent_sums *s = &b->s->piece;

    end = end < first + KV_PIECE ? end : first + KV_PIECE;
    for (uint32_t i = 0; i < latent_lanes(b); i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    memset(s->o, 0, (size_t)n * b->job->v_dim * sizeof *s->o);
    for (; first < end; first += KV_TILE) {
        struct tile t = { .first = first, .n = end - first < KV_TILE ? end - first : KV_TILE };

        attend_tile(b, &t);
    }
}

/* Sums of query i of the piece to those of all before. */
static void add_query(const struct latent_slab *b, uint32_t i)
{
    struct latent_sums *all = &b->s->all;
    const struct latent_sums *x = &b->s->piece;
    float max = all->m[i] > x->m[i] ? all->m[i] : x->m[i];
    float by[LANES] = { all->m[i] - max, x->m[i] - max };
    size_t at = (size_t)i * b->job->v_dim;

    v_store(by, v_exp(v_load(by)));
    for (uint32_t d = 0; d < b->job->v_dim; d += LANES)
        v_store(all->o + at + d, v_fma(v_load(x->o + at + d), v_splat(by[1]),
                                       v_mul(v_load(all->o + at + d), v_splat(by[0]))));
    all->l[i] = x->l[i] * by[1] + all->l[i] * by[0];
    all->m[i] = max;
}

static void latent_add(const struct latent_slab *b, uint32_t piece)
{
    uint32_t n = b->to - b->from;
    struct latent_sums *all = &b->s->all;

    if (piece == 0) {
        memcpy(all->o, b->s->piece.o, (size_t)n * b->job->v_dim * sizeof *all->o);
        memcpy(all->m, b->s->piece.m, n * sizeof *all->m);
        memcpy(all->l, b->s->piece.l, n * sizeof *all->l);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        if (latent_sees(b, b->from + i) > piece * KV_PIECE)
            add_query(b, i);
}

static void latent_finish(const struct latent_slab *b)
{
    for (uint32_t i = 0; i < b->to - b->from; i++) {
        float *out = latent_vector(b, &b->job->out, b->from + i);
        const float *o = b->s->all.o + (size_t)i * b->job->v_dim;
        vec inv = v_splat(1 / b->s->all.l[i]);

        for (uint32_t d = 0; d < b->job->v_dim; d += LANES)
            v_store(out + d, v_mul(v_load(o + d), inv));
    }
}

void ISA(latent_fill)(struct cpu_impl *f)
{
    f->row_store = row_store;
    f->row_load = row_load;
    f->latent_queries = latent_queries;
    f->latent_sum = latent_sum;
    f->latent_add = latent_add;
    f->latent_finish = latent_finish;
}
