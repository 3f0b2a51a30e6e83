/* Multi-head latent attention inside the CPU backend, in its two forms: absorbed, where the cached
 * latents are keys and values of all heads; and expanded, where each head has keys and values of its
 * own that stand as floats. Both come to the same arithmetic on a tile of keys as floats.
 *
 * A query is a (row, head) pair. A slab of them shares each tile: so decoding one row reads the
 * cache once for all its heads. Queries are the lanes of the scores and dims those of the values, so
 * that keys need not be transposed: only the slab's queries are, once. */
#ifndef SLUICE_KERNEL_LATENT_H
#define SLUICE_KERNEL_LATENT_H

#include "kernel/cpu.h"

/* Queries in a slab, at most; and those of them that there is room for whatever the dims are. */
#define LATENT_QUERIES 256
#define LATENT_SURE    128
/* Lanes beside the queries; see latent_lanes(). */
#define LATENT_SPARE 16
#define LATENT_LANES (LATENT_QUERIES + LATENT_SPARE)
/* Floats from one key to the next in the scratch: room for its value, and an odd number of cache
 * lines, so that a column of keys does not fall on few of them. */
#define LATENT_ROW (2 * K_MAX_LATENT_DIM + 16)

struct latent_job {
    struct k_heads out, q, pe; /* pe holds the last `rope` numbers of a query, q those before */
    uint32_t dim, rope, v_dim; /* dim: of keys, with the rotated part */
    float scale;
    struct k_kv kv;      /* absorbed form: the cache; k is NULL in the expanded form: */
    struct k_heads k, v; /* [position][head] */
    const float *k_pe;   /* [position], ld_pe apart */
    size_t ld_pe;
    uint32_t first; /* the position of their first row */
};

/* Softmax sums, as struct attend_sums has them. */
struct latent_sums {
    _Alignas(64) float o[LATENT_SURE * K_MAX_LATENT_DIM]; /* [query][v_dim] */
    float m[LATENT_LANES], l[LATENT_LANES];
};

/* One thread's scratch. */
struct latent_scratch {
    _Alignas(64) float q[K_MAX_LATENT_DIM * (LATENT_SURE + LATENT_SPARE)]; /* [dim][lane] */
    float k[KV_TILE * LATENT_ROW];   /* [key]: the key; in expanded form its value follows */
    float p[KV_TILE * LATENT_LANES]; /* [key][lane]: scores, then weights */
    struct latent_sums piece, all;
};

/* Queries [from, to) of a sequence, counted by row and within a row by head: its heads are
 * head .. head + heads - 1. */
struct latent_slab {
    const struct latent_job *job;
    const struct k_seq *seq;
    uint32_t head, heads;
    uint32_t from, to;
    struct latent_scratch *s;
};

/* Keys that query i sees, counted from position 0. */
static inline uint32_t latent_sees(const struct latent_slab *b, uint32_t i)
{
    return b->seq->pos + i / b->heads + 1;
}

/* Pieces that hold the keys of the slab's last query. */
static inline uint32_t latent_pieces(const struct latent_slab *b)
{
    return (latent_sees(b, b->to - 1) + KV_PIECE - 1) / KV_PIECE;
}

/* The vector of query i in q, pe or out. */
static inline float *latent_vector(const struct latent_slab *b, const struct k_heads *x, uint32_t i)
{
    return x->p + (b->seq->row + i / b->heads) * x->row + (b->head + i % b->heads) * x->head;
}

/* Lanes of the scratch's q and p: the slab's queries, and as many more as make an odd number of
 * cache lines, so that a column does not fall on few of them. */
static inline uint32_t latent_lanes(const struct latent_slab *b)
{
    return ((b->to - b->from + 15) / 16 | 1) * 16;
}

static inline bool latent_absorbed(const struct latent_job *job)
{
    return job->kv.k != NULL;
}

/* Where a key's value stands in its row of the scratch: the value of a latent is itself. */
static inline uint32_t latent_value(const struct latent_job *job)
{
    return latent_absorbed(job) ? 0 : job->dim;
}

/* The number of the latent cache with which position pos begins. */
static inline size_t latent_at(const struct k_kv *kv, const struct k_seq *seq, uint32_t pos)
{
    return ((size_t)seq->blocks[pos / kv->block_tokens] * kv->block_tokens +
            pos % kv->block_tokens) *
           kv->head_dim;
}

/* Queries that there is room for. */
static inline uint32_t latent_room(uint32_t dim, uint32_t v_dim)
{
    uint32_t n = LATENT_SURE * K_MAX_LATENT_DIM / (dim > v_dim ? dim : v_dim) & ~31u;

    return n < LATENT_QUERIES ? n : LATENT_QUERIES;
}

/* latent.c, expanded.c: the [team] operations */
void latent_write(const struct kernels *k, const struct k_kv *kv, const float *c, size_t ldc,
                  const float *pe, size_t ldpe, const struct k_seq *seqs, uint32_t n_seqs);
void latent_read(const struct kernels *k, float *c, size_t ldc, float *pe, size_t ldpe,
                 const struct k_kv *kv, const struct k_seq *seq, uint32_t from, uint32_t to);
void attend_latent(const struct kernels *k, struct k_heads out, struct k_heads q, struct k_heads pe,
                   uint32_t heads, float scale, const struct k_kv *kv, const struct k_seq *seqs,
                   uint32_t n_seqs);
void attend_expanded(const struct kernels *k, struct k_heads out, struct k_heads q,
                     struct k_heads k_nope, const float *k_pe, size_t ld_pe, struct k_heads v,
                     uint32_t heads, uint32_t nope, uint32_t rope, uint32_t v_dim, float scale,
                     const struct k_seq *seq, const struct k_span *span);

#endif
