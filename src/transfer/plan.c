#include "transfer/plan.h"

#include <assert.h>
#include <string.h>

#include "base/status.h"

/* Whether first .. first + n - 1 lies in 0 .. have - 1. */
static int inside(uint64_t first, uint64_t n, uint64_t have)
{
    return n > 0 && first < have && n <= have - first;
}

static int range_fits(const struct kv_layout *l, const struct plan_range *r, uint32_t n_blocks)
{
    if (r->first_layer < l->first_layer ||
        !inside(r->first_layer - l->first_layer, r->n_layers, l->n_layers) ||
        r->first_head < l->first_head ||
        !inside(r->first_head - l->first_head, r->n_heads, l->kv_heads))
        return 0;
    if (r->cell_tokens == 0 || r->cell_tokens % KV_LAYOUT_GROUP != 0 ||
        l->block_tokens % r->cell_tokens != 0 || r->first_token % r->cell_tokens != 0)
        return 0;
    return r->first_token < r->n_tokens && r->n_tokens <= (uint64_t)n_blocks * l->block_tokens;
}

int plan_init(struct plan *p, const struct kv_layout *l, const struct plan_range *r,
              const uint32_t *blocks, uint32_t n_blocks)
{
    uint32_t last;

    if (!range_fits(l, r, n_blocks))
        return ERR_RANGE;
    *p = (struct plan){ .layout = *l, .range = *r, .blocks = blocks };
    p->first_cell = r->first_token / r->cell_tokens;
    last = (r->n_tokens - 1) / r->cell_tokens;
    p->n_cells = last - p->first_cell + 1;
    p->block_cells = l->block_tokens / r->cell_tokens;
    for (uint32_t b = p->first_cell / p->block_cells; b <= last / p->block_cells; b++)
        if (blocks[b] >= l->n_blocks)
            return ERR_RANGE;
    p->head_bytes = (uint64_t)r->cell_tokens * l->head_dim * l->elem_bytes;
    p->piece_bytes = r->n_heads * p->head_bytes;
    p->runs = p->block_cells == 1 ? 1 : r->n_heads;
    p->run_bytes = p->piece_bytes / p->runs;
    p->n_pieces = (uint64_t)l->planes * r->n_layers * p->n_cells;
    return 0;
}

uint64_t plan_offset(const struct plan *p, uint64_t piece, uint32_t run)
{
    uint32_t plane = (uint32_t)(piece / p->n_cells);
    uint32_t cell = p->first_cell + (uint32_t)(piece % p->n_cells);
    uint32_t planes = p->layout.planes;
    uint32_t layer = p->range.first_layer - p->layout.first_layer + plane / planes;
    uint64_t head = p->range.first_head - p->layout.first_head + run;

    assert(piece < p->n_pieces && run < p->runs);
    return kv_layout_offset(&p->layout, layer, plane % planes, p->blocks[cell / p->block_cells]) +
           head * kv_layout_head_bytes(&p->layout) + cell % p->block_cells * p->head_bytes;
}

void plan_gather(const struct plan *p, const void *pool, uint64_t piece, void *out,
                 struct checksum *sum)
{
    unsigned char *to = out;

    for (uint32_t r = 0; r < p->runs; r++, to += p->run_bytes)
        memcpy(to, (const char *)pool + plan_offset(p, piece, r), p->run_bytes);
    if (sum)
        checksum_add(sum, out, p->piece_bytes);
}

void plan_scatter(const struct plan *p, void *pool, uint64_t piece, const void *in,
                  struct checksum *sum)
{
    const unsigned char *from = in;

    for (uint32_t r = 0; r < p->runs; r++, from += p->run_bytes) {
        char *to = (char *)pool + plan_offset(p, piece, r);

        memcpy(to, from, p->run_bytes);
        if (sum)
            checksum_add(sum, to, p->run_bytes);
    }
}

void plan_copy(const struct plan *to, void *pool, const struct plan *from, const void *from_pool,
               uint64_t piece, struct checksum *sum)
{
    /* The side with more, shorter runs sets the step; both walk the heads in the same order. */
    uint32_t runs = to->runs > from->runs ? to->runs : from->runs;
    uint64_t bytes = to->piece_bytes / runs;

    assert(to->piece_bytes == from->piece_bytes);
    for (uint32_t r = 0; r < runs; r++) {
        uint64_t d = to->runs == 1 ? plan_offset(to, piece, 0) + r * bytes
                                   : plan_offset(to, piece, r);
        uint64_t s = from->runs == 1 ? plan_offset(from, piece, 0) + r * bytes
                                     : plan_offset(from, piece, r);

        memcpy((char *)pool + d, (const char *)from_pool + s, bytes);
        if (sum)
            checksum_add(sum, (char *)pool + d, bytes);
    }
}

void plan_clear(const struct plan *p, void *pool, uint64_t piece)
{
    for (uint32_t r = 0; r < p->runs; r++)
        memset((char *)pool + plan_offset(p, piece, r), 0, p->run_bytes);
}

void plan_check(const struct plan *p, const void *pool, uint64_t piece, struct checksum *sum)
{
    for (uint32_t r = 0; r < p->runs; r++)
        checksum_add(sum, (const char *)pool + plan_offset(p, piece, r), p->run_bytes);
}
