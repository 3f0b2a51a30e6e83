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
    float *o = s->o + (size_t)i * dim, *p = s->p, sum = 0, max, keep;

    max = scores(p, q, s->k, dim, n, scale);
    max = s->m[i] > max ? s->m[i] : max;
    keep = expf(s->m[i] - max);
    for (uint32_t d = 0; d < dim; d++)
        o[d] *= keep;
    for (uint32_t t = 0; t < n; t++) {
        const float *v = s->v + (size_t)t * dim;

        p[t] = expf(p[t] - max);
        sum += p[t];
        for (uint32_t d = 0; d < dim; d++)
            o[d] += p[t] * v[d];
    }
    s->m[i] = max;
    s->l[i] = s->l[i] * keep + sum;
}

/* Queries [from, to) of the rows starting at r0; a query is (row, head of the group). */
static void attend_slab(const struct attend_job *job, const struct k_seq *seq, uint32_t kv_head,
                        uint32_t r0, uint32_t from, uint32_t to, struct attend_scratch *s)
{
    uint32_t dim = job->kv->head_dim, group = job->heads / job->kv->kv_heads;
    uint32_t end = seq->pos + r0 + (to - 1) / group + 1;

    for (uint32_t i = 0; i < to - from; i++) {
        s->m[i] = -INFINITY;
        s->l[i] = 0;
    }
    memset(s->o, 0, (size_t)(to - from) * dim * sizeof *s->o);
    for (uint32_t first = 0; first < end; first += KV_TILE) {
        uint32_t tile_end = first + KV_TILE < end ? first + KV_TILE : end;

        load_tile(job->kv, seq, kv_head, first, tile_end, s);
        for (uint32_t i = from; i < to; i++) {
            uint32_t row = r0 + i / group, sees = seq->pos + row + 1;
            const float *q = job->q + (size_t)(seq->row + row) * job->ldq +
                             (size_t)(kv_head * group + i % group) * dim;

            if (sees > first)
                attend_tile(s, i - from, q, dim, (sees < tile_end ? sees : tile_end) - first,
                            job->scale);
        }
    }
    for (uint32_t i = from; i < to; i++) {
        float *out = job->out + (size_t)(seq->row + r0 + i / group) * job->ldo +
                     (size_t)(kv_head * group + i % group) * dim;
        float inv = 1 / s->l[i - from];

        for (uint32_t d = 0; d < dim; d++)
            out[d] = s->o[(size_t)(i - from) * dim + d] * inv;
    }
}

void ref_attend(const struct attend_job *job, const struct k_seq *seq, uint32_t kv_head,
                uint32_t r0, uint32_t r1, struct attend_scratch *s)
{
    uint32_t n = (r1 - r0) * (job->heads / job->kv->kv_heads);

    for (uint32_t i = 0; i < n; i += K_ATT_QUERIES)
        attend_slab(job, seq, kv_head, r0, i, i + K_ATT_QUERIES < n ? i + K_ATT_QUERIES : n, s);
}
