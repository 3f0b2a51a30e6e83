/* Which ranks of a producer have what a rank of a consumer needs. Pure.
 *
 * The two sides may be split differently: layers over pipeline stages, KV heads over tensor-parallel
 * ranks. Layers and heads are named by their numbers in the whole model. Where several ranks of a stage
 * have the same heads (more ranks than heads; latents, which every rank has whole), one of them is
 * chosen by a seed, so that requests spread over all. */
#ifndef SLUICE_TRANSFER_RANKS_H
#define SLUICE_TRANSFER_RANKS_H

#include <stdbool.h>
#include <stdint.h>

#include "transfer/transfer.h"

struct err;

/* What to ask of one rank: a rectangle of layers and heads. */
struct rank_part {
    uint32_t rank;
    uint32_t first_layer, n_layers;
    uint32_t first_head, n_heads;
};

/* Sizes of a shape, 0 counting as 1. */
uint32_t shape_ranks(const struct transfer_shape *s);

/* ERR_MISMATCH with a sentence if the fields cannot be those of rank `rank` of a model of this layout. */
int rank_check(const struct transfer_rank *r, uint32_t rank, const struct kv_layout *whole,
               struct err *e);

/* The parts of what `own` holds, at most one a rank: out has room for all ranks of the shape. Layers for
 * drafts that no rank has are left out. ERR_MISMATCH with a sentence with both sides' values if there is a
 * layer or head that no rank has. */
int ranks_plan(struct rank_part *out, uint32_t *n_out, const struct transfer_rank *ranks,
               const struct transfer_shape *shape, const struct kv_layout *own, uint32_t seed,
               struct err *e);

/* Whether the parts cover layers first_layer .. end_layer - 1 of all heads of `own`, each exactly once. */
bool ranks_tile(const struct rank_part *parts, uint32_t n, const struct kv_layout *own,
                uint32_t end_layer);

#endif
