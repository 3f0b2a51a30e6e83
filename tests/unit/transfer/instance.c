#include "instance.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"

void instance_layout(struct kv_layout *l, uint32_t pp, uint32_t tp, uint32_t rank, uint32_t heads,
                     uint32_t block_tokens)
{
    uint32_t stage = rank / tp, place = rank % tp;
    uint32_t all_heads = heads ? heads : 1;

    *l = (struct kv_layout){
        .planes = heads ? 2 : 1,
        .first_layer = stage,
        .n_layers = stage + 1 < pp ? 1 : INSTANCE_LAYERS - stage,
        .all_layers = INSTANCE_LAYERS,
        .all_heads = all_heads,
        .head_dim = heads ? 16 : 48,
        .elem_bytes = 2,
        .block_tokens = block_tokens,
        .n_blocks = 64,
    };
    l->kv_heads = tp < all_heads ? all_heads / tp : 1;
    l->first_head = tp < all_heads ? place * l->kv_heads : place * all_heads / tp;
}

void instance_init(struct instance *in, bool produce, uint32_t pp, uint32_t tp, uint32_t heads,
                   uint32_t block_tokens, bool shared)
{
    memset(in, 0, sizeof *in);
    in->pp = pp;
    in->tp = tp;
    in->n = pp * tp;
    in->heads = heads;
    assert_true(in->n <= INSTANCE_RANKS_MAX);
    for (uint32_t r = 0; r < in->n; r++) {
        struct side *s = &in->rank[r];

        side_init(s, produce, block_tokens, shared);
        s->opt.shape = (struct transfer_shape){ .pp = pp, .tp = tp };
        s->opt.rank = r;
        instance_layout(&s->opt.layout, pp, tp, r, heads, block_tokens);
    }
}

void instance_start(struct instance *in)
{
    static struct transfer_rank ranks[INSTANCE_RANKS_MAX];

    for (uint32_t r = in->n; r-- > 0;) {
        struct side *s = &in->rank[r];
        const struct kv_layout *l = &s->opt.layout;

        if (r == 0 && s->opt.produce) {
            s->opt.ranks = ranks;
            s->opt.n_ranks = in->n;
        }
        side_start(s);
        strcpy(ranks[r].host, transfer_host(s->t));
        ranks[r].port = transfer_port(s->t);
        ranks[r].first_layer = l->first_layer;
        ranks[r].n_layers = l->n_layers;
        ranks[r].first_head = l->first_head;
        ranks[r].n_heads = l->kv_heads;
    }
}

void instance_finish(struct instance *in)
{
    for (uint32_t r = 0; r < in->n; r++)
        side_finish(&in->rank[r]);
}

uint16_t instance_value(uint32_t layer, uint32_t kv, uint32_t head, uint32_t token, uint32_t dim)
{
    uint32_t x = ((layer * 2 + kv) * 8 + head) * 4096 + token;

    x = (x * 64 + dim + 1) * 2654435761u;
    return (uint16_t)(x ^ x >> 16);
}

static uint64_t differ(const struct kv_layout *l, unsigned char *pool, const uint32_t *blocks,
                       uint32_t first, uint32_t n, bool write)
{
    uint64_t wrong = 0;

    for (uint32_t plane = 0; plane < l->planes * l->n_layers; plane++)
        for (uint32_t head = 0; head < l->kv_heads; head++)
            for (uint32_t token = first; token < n; token++)
                for (uint32_t dim = 0; dim < l->head_dim; dim++) {
                    uint32_t layer = plane / l->planes, kv = plane % l->planes;
                    uint16_t want = instance_value(l->first_layer + layer, kv, l->first_head + head,
                                                   token, dim);
                    unsigned char *at = pool + side_offset(l, layer, kv, blocks, head, token, dim);

                    if (write)
                        memcpy(at, &want, sizeof want);
                    wrong += memcmp(at, &want, sizeof want) != 0;
                }
    return wrong;
}

void instance_fill(const struct kv_layout *l, unsigned char *pool, const uint32_t *blocks,
                   uint32_t n)
{
    differ(l, pool, blocks, 0, n, true);
}

bool instance_equal(const struct kv_layout *l, const unsigned char *pool, const uint32_t *blocks,
                    uint32_t first, uint32_t n)
{
    return differ(l, (unsigned char *)(uintptr_t)pool, blocks, first, n, false) == 0;
}

void instance_hold(struct instance *p, const char *id, const uint32_t *blocks, uint32_t n_blocks,
                   uint32_t n_tokens, uint64_t user)
{
    for (uint32_t r = 0; r < p->n; r++) {
        instance_fill(&p->rank[r].opt.layout, p->rank[r].pool, blocks, n_tokens);
        assert_int_equal(transfer_hold(p->rank[r].t, id, blocks, n_blocks, n_tokens, user + r), 0);
    }
}

void instance_pull(struct instance *d, const struct transfer_source *src, const uint32_t *dst,
                   uint32_t n_dst, uint32_t first, uint32_t n_tokens, uint64_t user)
{
    struct transfer_source s = *src;

    s.keep = d->n > 1;
    for (uint32_t r = 0; r < d->n; r++)
        assert_int_equal(transfer_pull(d->rank[r].t, &s, dst, n_dst, first, n_tokens, user + r), 0);
}
