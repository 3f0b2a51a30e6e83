/* Attention in portable C: tiles of KV_TILE absolute positions, softmax rescaled tile by tile. */
#include "kernel/ref/ref.h"

#include <math.h>
#include <string.h>

static void load_floats(float *dst, const void *src, enum k_type type, size_t at, size_t n)
{
    if (type == K_F32)
        memcpy(dst, (const float *)src + at, n * sizeof *dst);
    else
        k_dequant(K_F16, dst, (const uint16_t *)src + at, n);
}

/* Keys and values of positions [first, end) of the tile as floats. Slots past `end` that share a
 * group with it are read too; what they hold never enters a sum. */
static void load_tile(const struct k_kv *kv, const struct k_seq *seq, uint32_t head, uint32_t first,
                      uint32_t end, struct attend_scratch *s)
{
    size_t group = (size_t)KV_GROUP * kv->head_dim;

    for (uint32_t pos = first; pos < end; pos += KV_GROUP) {
        uint32_t n = end - pos < KV_GROUP ? end - pos : KV_GROUP;
        size_t at = kv_group_offset(kv, seq->blocks[pos / kv->block_tokens], head,
                                    pos % kv->block_tokens);
        size_t to = (pos - first) / KV_GROUP * group;

        load_floats(s->k + to, kv->k, kv->type, at, group);
        load_floats(s->v + to, kv->v, kv->type, at, (size_t)n * kv->head_dim);
    }
}

/* p = q.k * scale for n keys of the tile; the largest. */
static float scores(float *p, const float *q, const float *k, uint32_t dim, uint32_t n, float scale)
{
    float max = -INFINITY;

    for (uint32_t g = 0; g < n; g += KV_GROUP, k += (size_t)KV_GROUP * dim) {
        float dot[KV_GROUP] = { 0 };
        uint32_t left = n - g < KV_GROUP ? n - g : KV_GROUP;

        for (uint32_t d = 0; d < dim; d++)
            for (uint32_t j = 0; j < KV_GROUP; j++)
                dot[j] += q[d] * k[d * KV_GROUP + j];
        for (uint32_t j = 0; j < left; j++) {
            p[g + j] = dot[j] * scale;
            max = p[g + j] > max ? p[g + j] : max;
        }
    }
    return max;
}

/* One query against the n keys of the tile that it may see. */
static void attend_tile(struct attend_scratch *s, uint32_t i, const float *q, uint32_t dim,
                        uint32_t n, float scale)
{
    float *o = s->piece.o + (size_t)i * dim, *p = s->p, sum = 0, max, keep;

    max = scores(p, q, s->k, dim, n, scale);
    max = s->piece.m[i] > max ? s->piece.m[i] : max;
    keep = expf(s->piece.m[i] - max);
    for (uint32_t d = 0; d < dim; d++)
        o[d] *= keep;
    for (uint32_t t = 0; t < n; t++) {
        const float *v = s->v + (size_t)t * dim;

        p[t] = expf(p[t] - max);
        sum += p[t];
        for (uint32_t d = 0; d < dim; d++)
            o[d] += p[t] * v[d];
    }
    s->piece.m[i] = max;
    s->piece.l[i] = s->piece.l[i] * keep + sum;
}

void ref_attend_sum(const struct attend_slab *b, uint32_t piece)
{
    uint32_t first = piece * KV_PIECE, end = attend_sees(b, b->to - 1);
    struct attend_scratch *s = b->s;

    end = end < first + KV_PIECE ? end : first + KV_PIECE;
    for (uint32_t i = 0; i < b->to - b->from; i++) {
        s->piece.m[i] = -INFINITY;
        s->piece.l[i] = 0;
    }
    memset(s->piece.o, 0, (size_t)(b->to - b->from) * b->dim * sizeof *s->piece.o);
    for (; first < end; first += KV_TILE) {
        uint32_t tile_end = first + KV_TILE < end ? first + KV_TILE : end;

        load_tile(b->job->kv, b->seq, b->kv_head, first, tile_end, s);
        for (uint32_t i = b->from; i < b->to; i++) {
            uint32_t n = attend_sees(b, i) < tile_end ? attend_sees(b, i) : tile_end;

            if (n > first)
                attend_tile(s, i - b->from, b->job->q + attend_at(b, i, b->job->ldq), b->dim,
                            n - first, b->job->scale);
        }
    }
}

static void add_query(struct attend_sums *all, const struct attend_sums *x, uint32_t i,
                      uint32_t dim)
{
    float max = all->m[i] > x->m[i] ? all->m[i] : x->m[i];
    float keep = expf(all->m[i] - max), add = expf(x->m[i] - max);

    for (size_t d = (size_t)i * dim; d < (size_t)(i + 1) * dim; d++)
        all->o[d] = all->o[d] * keep + x->o[d] * add;
    all->l[i] = all->l[i] * keep + x->l[i] * add;
    all->m[i] = max;
}

void ref_attend_add(const struct attend_slab *b, uint32_t piece)
{
    for (uint32_t i = 0; i < b->to - b->from; i++)
        if (piece == 0 || attend_sees(b, b->from + i) > piece * KV_PIECE) {
            if (piece == 0) {
                b->s->all.m[i] = -INFINITY;
                b->s->all.l[i] = 0;
                memset(b->s->all.o + (size_t)i * b->dim, 0, b->dim * sizeof(float));
            }
            add_query(&b->s->all, &b->s->piece, i, b->dim);
        }
}

void ref_attend_finish(const struct attend_slab *b)
{
    for (uint32_t i = b->from; i < b->to; i++) {
        float *out = b->job->out + attend_at(b, i, b->job->ldo);
        float inv = 1 / b->s->all.l[i - b->from];

        for (uint32_t d = 0; d < b->dim; d++)
            out[d] = b->s->all.o[(size_t)(i - b->from) * b->dim + d] * inv;
    }
}
