/* What a pull moves, piece by piece, seen from one side.
 *
 * A piece is one cell of one plane: cell_tokens tokens (the smaller of the two sides' block sizes) of K
 * or V, or of the latents, of one layer, all heads of the range, head after head. Both sides number the pieces alike,
 * whatever their blocks are, plane after plane, so that neighbours in memory are neighbours here. A
 * piece is one run of memory where the side's block is one cell and its heads are all meant, else
 * one run a head. The layer and head ranges are global: a rank that owns a part takes part in a
 * pull of that part. */
#ifndef SLUICE_TRANSFER_PLAN_H
#define SLUICE_TRANSFER_PLAN_H

#include <stdint.h>

#include "kv/layout.h"
#include "transfer/checksum.h"

/* Tokens, layers and heads, as both sides name them. */
struct plan_range {
    uint32_t first_layer, n_layers; /* global layer numbers */
    uint32_t first_head, n_heads;
    uint32_t first_token,
        n_tokens; /* tokens first_token .. n_tokens-1; first is a multiple of a cell */
    uint32_t cell_tokens;
};

struct plan {
    struct kv_layout layout; /* this side's */
    struct plan_range range;
    const uint32_t *blocks; /* this side's ids from position 0 on; borrowed */
    uint32_t first_cell, n_cells;
    uint32_t block_cells; /* cells in one block of this side */
    uint64_t head_bytes;  /* of a cell */
    uint64_t run_bytes;   /* memory in one piece: head_bytes, or all heads */
    uint32_t runs;        /* of a piece */
    uint64_t piece_bytes;
    uint64_t n_pieces;
};

/* ERR_RANGE if the range does not lie inside this side's layers, heads and blocks, or is empty. */
int plan_init(struct plan *p, const struct kv_layout *layout, const struct plan_range *range,
              const uint32_t *blocks, uint32_t n_blocks);

/* Offset in this side's pool of run r of a piece. */
uint64_t plan_offset(const struct plan *p, uint64_t piece, uint32_t run);

/* From the pool to the bytes that travel, back, and from pool to pool (copies a piece). sum may be
 * NULL; it is taken of what was written, while that is still in the cache. */
void plan_gather(const struct plan *p, const void *pool, uint64_t piece, void *out,
                 struct checksum *sum);
void plan_scatter(const struct plan *p, void *pool, uint64_t piece, const void *in,
                  struct checksum *sum);
void plan_copy(const struct plan *to, void *pool, const struct plan *from, const void *from_pool,
               uint64_t piece, struct checksum *sum);
/* Zeros in the piece's place. */
void plan_clear(const struct plan *p, void *pool, uint64_t piece);
/* Only the checksum. */
void plan_check(const struct plan *p, const void *pool, uint64_t piece, struct checksum *sum);

#endif
