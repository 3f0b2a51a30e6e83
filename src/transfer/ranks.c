#include "transfer/ranks.h"

#include "base/status.h"

uint32_t shape_ranks(const struct transfer_shape *s)
{
    return (s->pp ? s->pp : 1) * (s->tp ? s->tp : 1);
}

static bool has(uint32_t first, uint32_t n, uint32_t i)
{
    return i >= first && i - first < n;
}

int rank_check(const struct transfer_rank *r, uint32_t rank, const struct kv_layout *whole,
               struct err *e)
{
    uint64_t layers = (uint64_t)kv_layout_all_layers(whole) + KV_LAYOUT_MAX_DRAFT;
    uint32_t heads = kv_layout_all_heads(whole);

    if (r->port && r->host[0] && r->n_layers && r->n_heads &&
        (uint64_t)r->first_layer + r->n_layers <= layers &&
        (uint64_t)r->first_head + r->n_heads <= heads)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "rank %u of the producer is said to hold %u layers from %u on and %u KV heads "
                   "from %u on at '%s' port %u; the model has %u layers and %u KV heads",
                   rank, r->n_layers, r->first_layer, r->n_heads, r->first_head, r->host, r->port,
                   kv_layout_all_layers(whole), heads);
}

/* The first rank of a stage that has this layer; the number of ranks if there is none. */
static uint32_t stage_of(const struct transfer_rank *ranks, uint32_t n, uint32_t tp, uint32_t layer)
{
    uint32_t r = 0;

    while (r < n && !has(ranks[r].first_layer, ranks[r].n_layers, layer))
        r += tp;
    return r;
}

/* The rank of a stage from which a head is taken: the seed chooses among those that have it. */
static uint32_t owner_of(const struct transfer_rank *ranks, uint32_t stage, uint32_t tp,
                         uint32_t layer, uint32_t head, uint32_t seed)
{
    uint32_t n = 0, nth;

    for (uint32_t r = stage; r < stage + tp; r++)
        n += has(ranks[r].first_layer, ranks[r].n_layers, layer) &&
             has(ranks[r].first_head, ranks[r].n_heads, head);
    nth = n ? seed % n : 0;
    for (uint32_t r = stage; n && r < stage + tp; r++)
        if (has(ranks[r].first_layer, ranks[r].n_layers, layer) &&
            has(ranks[r].first_head, ranks[r].n_heads, head) && nth-- == 0)
            return r;
    return UINT32_MAX;
}

static int lacks(struct err *e, const struct transfer_shape *shape, const struct kv_layout *own,
                 uint32_t layer, uint32_t head)
{
    return err_set(e, ERR_MISMATCH,
                   "layers %u to %u and KV heads %u to %u are needed here, but of the producer's "
                   "ranks (pipeline %u, tensor %u) none has layer %u, head %u",
                   own->first_layer, own->first_layer + own->n_layers - 1, own->first_head,
                   own->first_head + own->kv_heads - 1, shape->pp ? shape->pp : 1,
                   shape->tp ? shape->tp : 1, layer, head);
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* The heads of `own` in the layers that one stage has, from the one given on. The parts come from
 * different ranks, since each goes on where the one before had nothing more. */
static int plan_stage(struct rank_part *out, uint32_t *n, const struct transfer_rank *ranks,
                      const struct transfer_shape *shape, const struct kv_layout *own,
                      uint32_t stage, uint32_t layer, uint32_t seed, struct err *e)
{
    uint32_t tp = shape->tp ? shape->tp : 1;
    uint32_t own_end = own->first_layer + own->n_layers;
    uint32_t head = own->first_head, head_end = own->first_head + own->kv_heads;

    while (head < head_end) {
        uint32_t r = owner_of(ranks, stage, tp, layer, head, seed);
        struct rank_part *p = &out[*n];

        if (r == UINT32_MAX)
            return lacks(e, shape, own, layer, head);
        p->rank = r;
        p->first_layer = layer;
        p->n_layers = smaller(own_end, ranks[r].first_layer + ranks[r].n_layers) - layer;
        p->first_head = head;
        p->n_heads = smaller(head_end, ranks[r].first_head + ranks[r].n_heads) - head;
        head += p->n_heads;
        (*n)++;
    }
    return 0;
}

int ranks_plan(struct rank_part *out, uint32_t *n_out, const struct transfer_rank *ranks,
               const struct transfer_shape *shape, const struct kv_layout *own, uint32_t seed,
               struct err *e)
{
    uint32_t n = shape_ranks(shape), tp = shape->tp ? shape->tp : 1, n_parts = 0;
    uint32_t layer = own->first_layer, end = own->first_layer + own->n_layers;
    int st;

    while (layer < end) {
        uint32_t stage = stage_of(ranks, n, tp, layer);

        if (stage >= n && layer >= kv_layout_all_layers(own))
            break; /* layers for drafts */
        if (stage >= n || n_parts >= n)
            return lacks(e, shape, own, layer, own->first_head);
        if ((st = plan_stage(out, &n_parts, ranks, shape, own, stage, layer, seed, e)) < 0)
            return st;
        layer = out[n_parts - 1].first_layer + out[n_parts - 1].n_layers;
    }
    if (!ranks_tile(out, n_parts, own, layer))
        return err_set(e, ERR_MISMATCH,
                       "the producer's %u ranks do not hold layers %u to %u and KV heads %u to %u "
                       "in pieces that fit together",
                       n, own->first_layer, end - 1, own->first_head,
                       own->first_head + own->kv_heads - 1);
    *n_out = n_parts;
    return 0;
}

static bool overlap(uint32_t a, uint32_t na, uint32_t b, uint32_t nb)
{
    return a < b + nb && b < a + na;
}

/* Rectangles inside the whole, of its area, none upon another. */
bool ranks_tile(const struct rank_part *parts, uint32_t n, const struct kv_layout *own,
                uint32_t end_layer)
{
    uint64_t area = 0;

    for (uint32_t i = 0; i < n; i++) {
        const struct rank_part *p = &parts[i];

        if (p->first_layer < own->first_layer || p->first_layer + p->n_layers > end_layer ||
            p->first_head < own->first_head ||
            p->first_head + p->n_heads > own->first_head + own->kv_heads)
            return false;
        area += (uint64_t)p->n_layers * p->n_heads;
        for (uint32_t k = 0; k < i; k++)
            if (overlap(p->first_layer, p->n_layers, parts[k].first_layer, parts[k].n_layers) &&
                overlap(p->first_head, p->n_heads, parts[k].first_head, parts[k].n_heads))
                return false;
    }
    return area == (uint64_t)(end_layer - own->first_layer) * own->kv_heads;
}
