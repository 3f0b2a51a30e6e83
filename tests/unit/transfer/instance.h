/* An instance of several ranks for the tests: a side for each, whose pools hold known numbers. */
#ifndef SLUICE_TESTS_TRANSFER_INSTANCE_H
#define SLUICE_TESTS_TRANSFER_INSTANCE_H

#include "side.h"

#define INSTANCE_RANKS_MAX 16
#define INSTANCE_LAYERS    5

struct instance {
    uint32_t pp, tp, n; /* n = pp * tp */
    uint32_t heads;     /* of the model; 0: latents */
    struct side rank[INSTANCE_RANKS_MAX];
};

/* The layout of a rank. Layers are split unevenly: the last stage has what is left; heads evenly, or, where
 * there are more ranks than heads, neighbours have the same one. */
void instance_layout(struct kv_layout *l, uint32_t pp, uint32_t tp, uint32_t rank, uint32_t heads,
                     uint32_t block_tokens);
/* Change .opt of the ranks, then instance_start. */
void instance_init(struct instance *in, bool produce, uint32_t pp, uint32_t tp, uint32_t heads,
                   uint32_t block_tokens, bool shared);
/* Ranks other than 0 first, since rank 0 tells consumers where they are. */
void instance_start(struct instance *in);
void instance_finish(struct instance *in);

/* The element that belongs at a place of the model, whoever holds it. */
uint16_t instance_value(uint32_t layer, uint32_t kv, uint32_t head, uint32_t token, uint32_t dim);
/* Writes, or compares, the elements of tokens first .. n-1 in the blocks of a pool. */
void instance_fill(const struct kv_layout *l, unsigned char *pool, const uint32_t *blocks,
                   uint32_t n);
bool instance_equal(const struct kv_layout *l, const unsigned char *pool, const uint32_t *blocks,
                    uint32_t first, uint32_t n);

/* On all ranks: rank r reports user + r. */
void instance_hold(struct instance *p, const char *id, const uint32_t *blocks, uint32_t n_blocks,
                   uint32_t n_tokens, uint64_t user);
void instance_pull(struct instance *d, const struct transfer_source *src, const uint32_t *dst,
                   uint32_t n_dst, uint32_t first, uint32_t n_tokens, uint64_t user);

#endif
