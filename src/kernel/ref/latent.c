/* Latent attention in portable C: the queries of a slab are the inner loop, 16 at a time, which a
 * compiler makes vectors of. */
#include "kernel/ref/ref.h"

#include <math.h>
#include <string.h>

#define LANES 16

void ref_row_store(enum k_type type, void *to, const float *x, uint32_t n)
{
    if (type == K_F32) {
        memcpy(to, x, n * sizeof *x);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        ((uint16_t *)to)[i] = k_float_to_half(x[i]);
}

void ref_row_load(enum k_type type, float *to, const void *from, uint32_t n)
{
    if (type == K_F32)
        memcpy(to, from, n * sizeof *to);
    else
        k_dequant(K_F16, to, from, n);
}

void ref_latent_queries(const struct latent_slab *b)
{
    uint32_t lanes = latent_lanes(b), n = b->to - b->from;
    uint32_t rope = b->job->rope, plain = b->job->dim - rope;

    if (n < lanes)
        memset(b->s->q, 0, (size_t)b->job->dim * lanes * sizeof *b->s->q);
    for (uint32_t i = 0; i < n; i++) {
        const float *q = latent_vector(b, &b->job->q, b->from + i);
        const float *pe = latent_vector(b, &b->job->pe, b->from + i);

        for (uint32_t d = 0; d < plain; d++)
            b->s->q[d * lanes + i] = q[d];
        for (uint32_t d = 0; d < rope; d++)
            b->s->q[(plain + d) * lanes + i] = pe[d];
    }
}

/* Keys and values of positions [first, first + n) as floats. */
static void load_tile(const struct latent_slab *b, uint32_t first, uint32_t n)
{
    const struct latent_job *job = b->job;
    uint32_t plain = job->dim - job->rope;

    for (uint32_t i = 0; i < n; i++) {
        float *row = b->s->k + (size_t)i * LATENT_ROW;
        size_t pos = first + i;

        if (latent_absorbed(job)) {
            size_t at = latent_at(&job->kv, b->seq, first + i);

            ref_row_load(job->kv.type, row,
                         (const char *)job->kv.k + at * (job->kv.type == K_F32 ? 4 : 2), job->dim);
            continue;
        }
        pos -= job->first;
        memcpy(row, job->k.p + pos * job->k.row + b->head * job->k.head, plain * sizeof *row);
        memcpy(row + plain, job->k_pe + pos * job->ld_pe, job->rope * sizeof *row);
        memcpy(row + job->dim, job->v.p + pos * job->v.row + b->head * job->v.head,
               job->v_dim * sizeof *row);
    }
}

/* p[key][lane] of n keys and LANES lanes: their dot products, times the scale. */
static void scores(const struct latent_slab *b, uint32_t lane, uint32_t n)
{
    uint32_t lanes = latent_lanes(b);

    for (uint32_t key = 0; key < n; key++) {
        const float *q = b->s->q + lane, *k = b->s->k + (size_t)key * LATENT_ROW;
        float dot[LANES] = { 0 };

        for (uint32_t d = 0; d < b->job->dim; d++, q += lanes)
            for (uint32_t j = 0; j < LANES; j++)
                dot[j] += q[j] * k[d];
        for (uint32_t j = 0; j < LANES; j++)
            b->s->p[key * lanes + lane + j] = dot[j] * b->job->scale;
    }
}

/* Query b->from + i against the n keys of the tile that it sees; their scores are in p. */
static void add_tile(const struct latent_slab *b, uint32_t i, uint32_t n)
{
    uint32_t lanes = latent_lanes(b), v_dim = b->job->v_dim;
    struct latent_sums *s = &b->s->piece;
    float *p = b->s->p + i, *o = s->o + (size_t)i * v_dim, max = s->m[i], keep, sum = 0;

    for (uint32_t key = 0; key < n; key++)
        max = p[key * lanes] > max ? p[key * lanes] : max;
    keep = expf(s->m[i] - max);
    for (uint32_t d = 0; d < v_dim; d++)
        o[d] *= keep;
    for (uint32_t key = 0; key < n; key++) {
        const float *v = b->s->k + (size_t)key * LATENT_ROW + latent_value(b->job);
        float w = expf(p[key * lanes] - max);

        sum += w;
        for (uint32_t d = 0; d < v_dim; d++)
            o[d] += w * v[d];
    }
    s->m[i] = max;
    s->l[i] = s->l[i] * keep + sum;
}

static void sums_clear(struct latent_sums *s, uint32_t n, uint32_t v_dim)
{
    for (uint32_t i = 0; i < n; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    memset(s->o, 0, (size_t)n * v_dim * sizeof *s->o);
}

void ref_latent_sum(const struct latent_slab *b, uint32_t piece)
{
    uint32_t first = piece * KV_PIECE, end = latent_sees(b, b->to - 1);

    end = end < first + KV_PIECE ? end : first + KV_PIECE;
    sums_clear(&b->s->piece, b->to - b->from, b->job->v_dim);
    for (; first < end; first += KV_TILE) {
        uint32_t n = end - first < KV_TILE ? end - first : KV_TILE;

        load_tile(b, first, n);
        for (uint32_t lane = 0; lane < latent_lanes(b); lane += LANES)
            scores(b, lane, n);
        for (uint32_t i = b->from; i < b->to; i++) {
            uint32_t sees = latent_sees(b, i);

            if (sees > first)
                add_tile(b, i - b->from, sees - first < n ? sees - first : n);
        }
    }
}

static void add_query(struct latent_sums *all, const struct latent_sums *x, uint32_t i,
                      uint32_t v_dim)
{
    float max = all->m[i] > x->m[i] ? all->m[i] : x->m[i];
    float keep = expf(all->m[i] - max), add = expf(x->m[i] - max);

    for (size_t d = (size_t)i * v_dim; d < (size_t)(i + 1) * v_dim; d++)
        all->o[d] = all->o[d] * keep + x->o[d] * add;
    all->l[i] = all->l[i] * keep + x->l[i] * add;
    all->m[i] = max;
}

void ref_latent_add(const struct latent_slab *b, uint32_t piece)
{
    uint32_t n = b->to - b->from;

    if (piece == 0)
        sums_clear(&b->s->all, n, b->job->v_dim);
    for (uint32_t i = 0; i < n; i++)
        if (latent_sees(b, b->from + i) > piece * KV_PIECE)
            add_query(&b->s->all, &b->s->piece, i, b->job->v_dim);
}

void ref_latent_finish(const struct latent_slab *b)
{
    uint32_t v_dim = b->job->v_dim;

    for (uint32_t i = 0; i < b->to - b->from; i++) {
        float *out = latent_vector(b, &b->job->out, b->from + i);
        float inv = 1 / b->s->all.l[i];

        for (uint32_t d = 0; d < v_dim; d++)
            out[d] = b->s->all.o[(size_t)i * v_dim + d] * inv;
    }
}
