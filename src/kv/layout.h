/* Where a block's numbers stand in memory. Shared by the forward pass, the pool and the links.
 *
 * One plane a (layer, K or V): plane p = 2 * layer + (0 for K, 1 for V); planes follow one another,
 * each holds all blocks of the pool:
 *
 *     offset(layer, kv, block) = ((planes * layer + kv) * n_blocks + block) * block_bytes
 *
 * Inside a block: [kv_head] runs of head_bytes = block_tokens * head_dim * elem_bytes; K runs are
 * [token / 16][dim][16], V runs [token][dim]. So a head range of a block is one run, blocks that
 * are neighbours in the pool are one run, and a block of 32 tokens is, head by head, two blocks of
 * 16 tokens one after the other.
 *
 * A latent cache (multi-head latent attention) has one plane a layer, p = layer, and one head, whose
 * runs are [token][head_dim]. */
#ifndef SLUICE_KV_LAYOUT_H
#define SLUICE_KV_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KV_LAYOUT_GROUP 16 /* block_tokens is a multiple of this (kernel.h: KV_GROUP) */

#define KV_LAYOUT_MAX_DRAFT 16 /* layers for drafts */

struct kv_layout {
    uint32_t n_layers;    /* layers of this rank */
    uint32_t first_layer; /* global index of its first layer */
    uint32_t
        n_draft; /* of n_layers, the last ones: only drafts read them (multi-token prediction) */
    uint32_t planes;     /* of a layer: 2 (K and V), or 1 (latents) */
    uint32_t kv_heads;   /* of this rank */
    uint32_t first_head; /* global index of its first KV head; with latents 0 */
    /* Of the whole model: what ranks of other instances are matched by. Drafts are numbered from
     * all_layers on. 0: this rank has all of them from its first on. */
    uint32_t all_layers, all_heads;
    uint32_t head_dim;
    uint32_t elem_bytes; /* 4: float32, 2: float16 */
    uint32_t block_tokens;
    uint32_t n_blocks;
};

/* The numbers above, where they are 0 what that stands for. */
uint32_t kv_layout_all_layers(const struct kv_layout *l);
uint32_t kv_layout_all_heads(const struct kv_layout *l);
uint32_t kv_layout_main_layers(const struct kv_layout *l); /* of n_layers, without drafts */
/* Whether the parts lie inside the whole: layers, drafts, heads. For what a peer says. */
bool kv_layout_is_sound(const struct kv_layout *l);

uint64_t kv_layout_head_bytes(const struct kv_layout *l);
uint64_t kv_layout_block_bytes(const struct kv_layout *l); /* one block of one plane */
uint64_t kv_layout_token_bytes(const struct kv_layout *l); /* one token over all planes */
uint64_t kv_layout_pool_bytes(const struct kv_layout *l);
/* Offset of a block in plane kv (0 .. planes-1) of a layer (local to this rank). */
uint64_t kv_layout_offset(const struct kv_layout *l, uint32_t layer, uint32_t kv, uint32_t block);

#endif
