#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "instance.h"
#include "raw.h"
#include "sys/clock.h"
#include "transfer/lease.h"
#include "transfer/ranks.h"

static const uint32_t p_blocks[8] = { 7, 33, 12, 5, 60, 1, 40, 22 };
static const uint32_t d_blocks[8] = { 50, 2, 31, 9, 17, 63, 0, 44 };

/* ---- which rank gives what ---- */

static void ranks_of(struct transfer_rank *out, struct kv_layout *layouts, uint32_t pp, uint32_t tp,
                     uint32_t heads, uint32_t block_tokens)
{
    for (uint32_t r = 0; r < pp * tp; r++) {
        struct kv_layout *l = &layouts[r];

        instance_layout(l, pp, tp, r, heads, block_tokens);
        out[r] = (struct transfer_rank){ "10.0.0.1",  (uint16_t)(36000 + r), l->first_layer,
                                         l->n_layers, l->first_head,         l->kv_heads };
    }
}

/* The bytes of all parts, copied by their plans from pools of known numbers. */
static void copy_parts(const struct rank_part *parts, uint32_t n, const struct kv_layout *from,
                       unsigned char *const *pools, const struct kv_layout *own, uint32_t tokens)
{
    uint32_t cell = from->block_tokens < own->block_tokens ? from->block_tokens : own->block_tokens;
    unsigned char *pool = malloc(kv_layout_pool_bytes(own));
    uint64_t bytes = 0;

    memset(pool, 0xee, kv_layout_pool_bytes(own));
    for (uint32_t i = 0; i < n; i++) {
        const struct plan_range r = { parts[i].first_layer,
                                      parts[i].n_layers,
                                      parts[i].first_head,
                                      parts[i].n_heads,
                                      0,
                                      tokens,
                                      cell };
        struct plan a, b;

        assert_int_equal(plan_init(&a, &from[parts[i].rank], &r, p_blocks, 8), 0);
        assert_int_equal(plan_init(&b, own, &r, d_blocks, 8), 0);
        for (uint64_t piece = 0; piece < a.n_pieces; piece++)
            plan_copy(&b, pool, &a, pools[parts[i].rank], piece, NULL);
        bytes += a.n_pieces * a.piece_bytes;
    }
    assert_true(instance_equal(own, pool, d_blocks, 0, tokens));
    assert_int_equal(bytes, (tokens + cell - 1) / cell * cell * kv_layout_token_bytes(own));
    free(pool);
}

static void one_pair(uint32_t pp, uint32_t tp, uint32_t dp_pp, uint32_t d_tp, uint32_t heads,
                     uint32_t p_block, uint32_t d_block)
{
    enum { TOKENS = 75 };
    struct transfer_shape shape = { .pp = pp, .tp = tp };
    struct kv_layout layouts[INSTANCE_RANKS_MAX], own;
    struct transfer_rank ranks[INSTANCE_RANKS_MAX];
    struct rank_part parts[INSTANCE_RANKS_MAX];
    unsigned char *pools[INSTANCE_RANKS_MAX];
    struct err e = { "" };
    uint32_t n;

    ranks_of(ranks, layouts, pp, tp, heads, p_block);
    for (uint32_t r = 0; r < pp * tp; r++) {
        pools[r] = malloc(kv_layout_pool_bytes(&layouts[r]));
        memset(pools[r], 0x11, kv_layout_pool_bytes(&layouts[r]));
        instance_fill(&layouts[r], pools[r], p_blocks, TOKENS);
        assert_int_equal(rank_check(&ranks[r], r, &layouts[0], &e), 0);
    }
    for (uint32_t d = 0; d < dp_pp * d_tp; d++) {
        instance_layout(&own, dp_pp, d_tp, d, heads, d_block);
        if (ranks_plan(parts, &n, ranks, &shape, &own, 1234567 + d, &e) < 0)
            fail_msg("%s", e.text);
        assert_true(ranks_tile(parts, n, &own, own.first_layer + own.n_layers));
        if (!heads) /* latents once, however many ranks have them: one part a stage */
            assert_in_range(n, 1, pp);
        copy_parts(parts, n, layouts, pools, &own, TOKENS);
    }
    for (uint32_t r = 0; r < pp * tp; r++)
        free(pools[r]);
}

static bool divides(uint32_t tp, uint32_t heads)
{
    return heads == 0 || tp % heads == 0 || heads % tp == 0;
}

/* Every pair of layouts: each byte of each consumer's rank comes once, and is the right one. */
static void every_pair(void **state)
{
    static const uint32_t heads[] = { 0, 1, 2, 4, 3 }, tps[] = { 1, 2, 4, 3 };
    static const uint32_t blocks[][2] = { { 16, 16 }, { 16, 32 }, { 32, 16 } };

    (void)state;
    for (uint32_t h = 0; h < 5; h++)
        for (uint32_t pp = 1; pp <= 3; pp++)
            for (uint32_t a = 0; a < 4; a++)
                for (uint32_t b = 0; b < 4; b++)
                    for (uint32_t k = 0; k < 3; k++)
                        if (divides(tps[a], heads[h]) && divides(tps[b], heads[h]))
                            one_pair(pp, tps[a], k == 2 ? 2 : 1, tps[b], heads[h], blocks[k][0],
                                     blocks[k][1]);
}

static void replicas_take_turns(void **state)
{
    struct transfer_shape shape = { .pp = 1, .tp = 4 };
    struct kv_layout layouts[INSTANCE_RANKS_MAX], own;
    struct transfer_rank ranks[INSTANCE_RANKS_MAX];
    struct rank_part parts[INSTANCE_RANKS_MAX];
    uint32_t n, count[4] = { 0 };
    struct err e;

    (void)state;
    ranks_of(ranks, layouts, 1, 4, 0, 16);
    instance_layout(&own, 1, 1, 0, 0, 16);
    for (uint32_t i = 0; i < 400; i++) {
        char id[16];

        snprintf(id, sizeof id, "request-%u", i);
        assert_int_equal(ranks_plan(parts, &n, ranks, &shape, &own, lease_hash(id), &e), 0);
        assert_int_equal(n, 1);
        count[parts[0].rank]++;
    }
    for (uint32_t r = 0; r < 4; r++)
        assert_in_range(count[r], 50, 150);
}

/* What no rank has, or two have in pieces that do not fit, is refused before anything is asked. */
static void holes_are_refused(void **state)
{
    struct transfer_shape shape = { .pp = 2, .tp = 2 };
    struct kv_layout layouts[INSTANCE_RANKS_MAX], own;
    struct transfer_rank ranks[INSTANCE_RANKS_MAX];
    struct rank_part parts[INSTANCE_RANKS_MAX];
    struct err e;
    uint32_t n;

    (void)state;
    instance_layout(&own, 1, 1, 0, 4, 16);
    ranks_of(ranks, layouts, 2, 2, 4, 16);
    assert_int_equal(ranks_plan(parts, &n, ranks, &shape, &own, 0, &e), 0);
    assert_int_equal(n, 4);
    ranks[2].first_layer = ranks[3].first_layer = 2;
    assert_int_equal(ranks_plan(parts, &n, ranks, &shape, &own, 0, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "layers 0 to 4 and KV heads 0 to 3 are needed here"));
    assert_non_null(strstr(e.text, "pipeline 2, tensor 2"));
    assert_non_null(strstr(e.text, "layer 1, head 0"));
    ranks_of(ranks, layouts, 2, 2, 4, 16);
    ranks[3].first_head = 3;
    assert_int_equal(ranks_plan(parts, &n, ranks, &shape, &own, 0, &e), ERR_MISMATCH);
    assert_non_null(strstr(e.text, "layer 1, head 2"));
    ranks_of(ranks, layouts, 2, 2, 4, 16);
    ranks[3].n_layers--; /* the layers of a stage's ranks differ */
    assert_int_equal(ranks_plan(parts, &n, ranks, &shape, &own, 0, &e), ERR_MISMATCH);
    ranks[1].n_heads = 3;
    assert_int_equal(rank_check(&ranks[1], 1, &own, &e), ERR_MISMATCH);
    ranks[1].n_heads = UINT32_MAX;
    assert_int_equal(rank_check(&ranks[1], 1, &own, &e), ERR_MISMATCH);
}

static void tiles(void **state)
{
    struct rank_part p[3] = { { 0, 0, 2, 0, 4 }, { 1, 2, 3, 0, 2 }, { 2, 2, 3, 2, 2 } };
    struct kv_layout own;

    (void)state;
    instance_layout(&own, 1, 1, 0, 4, 16);
    assert_true(ranks_tile(p, 3, &own, 5));
    assert_false(ranks_tile(p, 2, &own, 5));
    p[2].first_head = 1; /* twice, and a hole */
    assert_false(ranks_tile(p, 3, &own, 5));
    p[2].first_head = 3; /* outside */
    assert_false(ranks_tile(p, 3, &own, 5));
}

/* ---- over connections ---- */

static struct transfer_source source(const struct instance *p, const char *id, uint32_t n_tokens)
{
    uint32_t b = p->rank[0].opt.layout.block_tokens;

    return side_source(&p->rank[0], id, p_blocks, (n_tokens + b - 1) / b);
}

static uint32_t blocks_of(const struct side *s, uint32_t n_tokens)
{
    uint32_t b = s->opt.layout.block_tokens;

    return (n_tokens + b - 1) / b;
}

static uint64_t sent(const struct instance *p)
{
    struct transfer_stats st;
    uint64_t n = 0;

    for (uint32_t r = 0; r < p->n; r++) {
        transfer_stats(p->rank[r].t, &st);
        n += st.bytes_sent;
        assert_int_equal(st.protocol_errors + st.checksum_errors + st.refused, 0);
    }
    return n;
}

/* What the engine of the consumer does when all its ranks have the bytes. */
static void say_done(struct instance *p, struct instance *d, const char *id, uint64_t user)
{
    struct transfer_source src = source(p, id, 0);

    if (d->n == 1)
        return;
    assert_int_equal(transfer_done(d->rank[0].t, &src, user), 0);
    assert_int_equal(side_wait(&d->rank[0], TRANSFER_PULLED, user).status, 0);
}

/* What the engine of the producer does when the lease of rank 0 has ended. */
static void end_leases(struct instance *p, const char *id, uint64_t user)
{
    assert_int_equal(side_wait(&p->rank[0], TRANSFER_LEASE_END, user).end, LEASE_DONE);
    for (uint32_t r = 1; r < p->n; r++) {
        assert_int_equal(transfer_abort_hold(p->rank[r].t, id), 0);
        assert_int_equal(side_wait(&p->rank[r], TRANSFER_LEASE_END, user + r).end, LEASE_ABORTED);
    }
}

static void pull_once(struct instance *p, struct instance *d, const char *id, uint32_t first,
                      uint32_t n_tokens)
{
    struct transfer_source src = source(p, id, n_tokens);
    uint32_t a = p->rank[0].opt.layout.block_tokens, b = d->rank[0].opt.layout.block_tokens;
    uint32_t cell = a < b ? a : b;
    uint64_t before = sent(p), all = 0;

    instance_hold(p, id, p_blocks, src.n_blocks, n_tokens, 100);
    instance_pull(d, &src, d_blocks, blocks_of(&d->rank[0], n_tokens), first, n_tokens, 200);
    for (uint32_t r = 0; r < d->n; r++) {
        struct side *s = &d->rank[r];
        struct transfer_event ev = side_wait(s, TRANSFER_PULLED, 200 + r);

        assert_string_equal(ev.status < 0 ? s->why : "", "");
        assert_true(instance_equal(&s->opt.layout, s->pool, d_blocks, first, n_tokens));
        assert_int_equal(ev.bytes, (n_tokens - first + cell - 1) / cell * cell *
                                       kv_layout_token_bytes(&s->opt.layout));
        all += ev.bytes;
    }
    assert_int_equal(sent(p) - before, all);
    say_done(p, d, id, 300);
    end_leases(p, id, 100);
    for (uint32_t r = 0; r < p->n; r++)
        side_wait_idle(&p->rank[r]);
    for (uint32_t r = 0; r < d->n; r++)
        side_wait_idle(&d->rank[r]);
}

struct pair {
    uint32_t p_pp, p_tp, d_pp, d_tp, heads, p_block, d_block;
};

static void run_pair(const struct pair *x, bool shared)
{
    static struct instance p, d;

    instance_init(&p, true, x->p_pp, x->p_tp, x->heads, x->p_block, shared);
    instance_init(&d, false, x->d_pp, x->d_tp, x->heads, x->d_block, shared);
    instance_start(&p);
    instance_start(&d);
    pull_once(&p, &d, "first", 0, 75);
    instance_finish(&d);
    instance_finish(&p);
}

static void pairs_over_connections(void **state)
{
    static const struct pair pairs[] = {
        { 1, 1, 1, 2, 4, 16, 16 }, { 2, 1, 1, 1, 2, 16, 32 }, { 3, 2, 1, 4, 4, 32, 16 },
        { 1, 4, 1, 2, 2, 16, 16 }, { 2, 3, 1, 3, 3, 16, 16 }, { 2, 2, 1, 1, 0, 16, 16 },
        { 2, 2, 2, 2, 4, 16, 32 }, { 1, 3, 1, 1, 3, 32, 16 }, { 1, 4, 1, 2, 0, 32, 32 },
        { 2, 1, 3, 1, 1, 16, 16 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        run_pair(&pairs[i], i % 2 == 0);
}

/* Two requests over the same connections, the second from a prefix on. */
static void again_over_the_same(void **state)
{
    static struct instance p, d;

    (void)state;
    instance_init(&p, true, 2, 2, 4, 16, true);
    instance_init(&d, false, 1, 2, 4, 16, true);
    instance_start(&p);
    instance_start(&d);
    pull_once(&p, &d, "first", 0, 100);
    for (uint32_t r = 0; r < p.n; r++)
        p.rank[r].n = 0;
    for (uint32_t r = 0; r < d.n; r++)
        d.rank[r].n = 0;
    pull_once(&p, &d, "second", 32, 75);
    instance_finish(&d);
    instance_finish(&p);
}

/* The news of a lease reaches the producer's other ranks later than the consumer does. */
static void lease_begins_late(void **state)
{
    static struct instance p, d;
    struct transfer_source src;

    (void)state;
    instance_init(&p, true, 2, 1, 2, 16, true);
    instance_init(&d, false, 1, 1, 2, 16, true);
    instance_start(&p);
    instance_start(&d);
    src = source(&p, "x", 40);
    for (uint32_t r = 0; r < 2; r++)
        instance_fill(&p.rank[r].opt.layout, p.rank[r].pool, p_blocks, 40);
    assert_int_equal(transfer_hold(p.rank[0].t, "x", p_blocks, 3, 40, 1), 0);
    assert_int_equal(transfer_pull(d.rank[0].t, &src, d_blocks, 3, 0, 40, 9), 0);
    clock_sleep(0.1);
    assert_int_equal(side_count(&d.rank[0]), 0);
    assert_int_equal(transfer_hold(p.rank[1].t, "x", p_blocks, 3, 40, 2), 0);
    assert_int_equal(side_wait(&d.rank[0], TRANSFER_PULLED, 9).status, 0);
    assert_true(instance_equal(&d.rank[0].opt.layout, d.rank[0].pool, d_blocks, 0, 40));
    /* One that has ended there is not waited for. */
    assert_int_equal(transfer_abort_hold(p.rank[1].t, "x"), 0);
    side_wait(&p.rank[1], TRANSFER_LEASE_END, 2);
    assert_int_equal(side_wait(&p.rank[0], TRANSFER_LEASE_END, 1).end, LEASE_DONE);
    assert_int_equal(transfer_hold(p.rank[0].t, "x", p_blocks, 3, 40, 3), 0);
    assert_int_equal(transfer_pull(d.rank[0].t, &src, d_blocks, 3, 0, 40, 10), 0);
    assert_int_equal(side_wait(&d.rank[0], TRANSFER_PULLED, 10).status, ERR_NOTFOUND);
    transfer_release_remote(d.rank[0].t, &src); /* the part from rank 0 may have been over */
    assert_int_equal(side_wait(&p.rank[0], TRANSFER_LEASE_END, 3).end, LEASE_ABORTED);
    instance_finish(&d);
    instance_finish(&p);
}

static void by_name(void **state)
{
    static const unsigned char prompt[TRANSFER_PROMPT_BYTES] = { 1, 2, 3 };
    static struct instance p, d;
    struct transfer_source src;

    (void)state;
    instance_init(&p, true, 2, 2, 4, 16, true);
    instance_init(&d, false, 1, 2, 4, 16, true);
    instance_start(&p);
    instance_start(&d);
    src = source(&p, "named", 0);
    src.prompt = prompt;
    instance_pull(&d, &src, d_blocks, 5, 0, 75, 200);
    for (uint32_t r = 0; r < p.n; r++)
        assert_int_equal(transfer_expect(p.rank[r].t, "named", prompt), 0);
    clock_sleep(0.05);
    instance_hold(&p, "named", p_blocks, 5, 75, 100);
    for (uint32_t r = 0; r < d.n; r++) {
        assert_int_equal(side_wait(&d.rank[r], TRANSFER_PULLED, 200 + r).status, 0);
        assert_true(instance_equal(&d.rank[r].opt.layout, d.rank[r].pool, d_blocks, 0, 75));
    }
    assert_int_equal(transfer_done(d.rank[0].t, &src, 300), 0);
    assert_int_equal(side_wait(&d.rank[0], TRANSFER_PULLED, 300).status, 0);
    end_leases(&p, "named", 100);
    instance_finish(&d);
    instance_finish(&p);
}

/* ---- failures ---- */

/* Rank 1 of the producer is played by hand; rank 0 is real, and says of rank 1 what `lie` makes of it. */
struct half {
    struct instance p, d;
    struct raw r;
    struct message_pull pull;
};

static void half_start(struct half *h, void (*lie)(struct transfer_rank *r))
{
    struct transfer_rank ranks[2] = { { "127.0.0.1", 1, 0, 0, 0, 0 } };
    struct side *zero = &h->p.rank[0];

    instance_init(&h->p, true, 2, 1, 2, 16, true);
    instance_init(&h->d, false, 1, 1, 2, 16, true);
    raw_init(&h->r, &h->p.rank[1]);
    ranks[1] = (struct transfer_rank){ "127.0.0.1", raw_listen(&h->r), 1, 4, 0, 2 };
    if (lie)
        lie(&ranks[1]);
    zero->opt.ranks = ranks;
    zero->opt.n_ranks = 2;
    side_start(zero);
    instance_start(&h->d);
}

static void half_finish(struct half *h)
{
    instance_finish(&h->d);
    side_finish(&h->p.rank[0]);
}

static void half_pull(struct half *h)
{
    struct transfer_source src = source(&h->p, "x", 60);

    instance_fill(&h->p.rank[0].opt.layout, h->p.rank[0].pool, p_blocks, 60);
    assert_int_equal(transfer_hold(h->p.rank[0].t, "x", p_blocks, 4, 60, 1), 0);
    assert_int_equal(transfer_pull(h->d.rank[0].t, &src, d_blocks, 4, 0, 60, 9), 0);
}

/* A rank that is gone in the middle of its part ends the pull at once, and the parts of the others; the lease on
 * rank 0 can then be ended, and nothing is written any more. */
static void rank_dies(void **state)
{
    static struct half h;
    struct message grant = { .kind = MESSAGE_GRANT };
    unsigned char ids[16];
    uint64_t written;
    double t0;

    (void)state;
    half_start(&h, NULL);
    half_pull(&h);
    raw_accept(&h.r);
    h.pull = raw_expect(&h.r, MESSAGE_PULL)->u.pull;
    assert_int_equal(h.pull.range.first_layer, 1);
    assert_int_equal(h.pull.range.n_layers, 4);
    assert_true(h.pull.wait_ms > 0);
    for (int i = 0; i < 4; i++)
        message_put_u32(ids + 4 * i, p_blocks[i]);
    grant.u.grant.pull = h.pull.pull;
    grant.u.grant.n_blocks = 4;
    grant.u.grant.batch_pieces = 4;
    raw_send(&h.r, &grant, ids, sizeof ids);
    assert_int_equal(side_count(&h.d.rank[0]), 0);
    t0 = clock_now();
    raw_finish(&h.r);
    assert_true(side_wait(&h.d.rank[0], TRANSFER_PULLED, 9).status < 0);
    assert_true(clock_now() - t0 < 5); /* by the broken connection: the timeouts are longer */
    written = side_written(&h.d.rank[0]);
    /* Rank 0's part may have been over: then its lease stays until somebody lets go. */
    if (transfer_abort_hold(h.p.rank[0].t, "x") == 0)
        clock_sleep(0.05);
    assert_int_equal(side_wait(&h.p.rank[0], TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    assert_int_equal(side_written(&h.d.rank[0]), written);
    half_finish(&h);
}

static void no_layer(struct transfer_rank *r)
{
    r->first_layer++;
    r->n_layers--;
}
static void fewer_heads(struct transfer_rank *r)
{
    r->n_heads = 1;
}
static void too_many(struct transfer_rank *r)
{
    r->n_layers = KV_LAYOUT_MAX_DRAFT + INSTANCE_LAYERS;
}

/* What rank 0 says of the others cannot be, or lacks something: no pull begins, the consumer is not ready. */
static void map_is_wrong(void **state)
{
    static void (*const lies[])(struct transfer_rank *) = { no_layer, fewer_heads };
    static const char *const why[] = { "none has layer 1, head 0", "none has layer 1, head 1" };
    struct transfer_stats st;
    struct err e = { "" };
    static struct half h;

    (void)state;
    log_set_level(LOG_OFF);
    for (size_t i = 0; i < 2; i++) {
        half_start(&h, lies[i]);
        half_pull(&h);
        assert_int_equal(side_wait(&h.d.rank[0], TRANSFER_PULLED, 9).status, ERR_MISMATCH);
        assert_non_null(strstr(h.d.rank[0].why, why[i]));
        assert_int_equal(side_written(&h.d.rank[0]), 0);
        assert_int_equal(side_wait(&h.p.rank[0], TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
        assert_int_equal(
            transfer_probe(h.d.rank[0].t, "127.0.0.1", transfer_port(h.p.rank[0].t), &e),
            ERR_MISMATCH);
        transfer_stats(h.d.rank[0].t, &st);
        assert_int_equal(st.mismatching, 1);
        assert_int_equal(st.matching, 0);
        raw_finish(&h.r);
        half_finish(&h);
    }
}

/* Rank 0 of a producer does not begin with a table that cannot be right. */
static void own_map_is_checked(void **state)
{
    struct transfer_rank ranks[2] = { { "127.0.0.1", 1, 0, 1, 0, 2 },
                                      { "127.0.0.1", 1, 1, 4, 0, 2 } };
    struct instance p;
    struct err e = { "" };

    (void)state;
    for (int i = 0; i < 2; i++) {
        instance_init(&p, true, 2, 1, 2, 16, false);
        if (i == 0)
            too_many(&ranks[1]);
        p.rank[0].opt.ranks = ranks;
        p.rank[0].opt.n_ranks = i == 0 ? 2 : 1;
        assert_int_equal(side_try_start(&p.rank[0], &e), ERR_INVAL);
        assert_non_null(strstr(e.text, i == 0 ? "rank 1 of the producer" : "1 of 2 ranks"));
        side_finish(&p.rank[0]);
    }
}

/* Rank 1 is there, but is not what rank 0 has said of it. */
static void rank_is_another(void **state)
{
    static struct half h;

    (void)state;
    log_set_level(LOG_OFF);
    half_start(&h, NULL);
    h.r.identity.layout.first_layer = 2;
    h.r.identity.layout.n_layers = 3;
    half_pull(&h);
    raw_accept(&h.r);
    assert_int_equal(side_wait(&h.d.rank[0], TRANSFER_PULLED, 9).status, ERR_MISMATCH);
    assert_non_null(strstr(h.d.rank[0].why, "with layers 1 to 4"));
    assert_non_null(strstr(h.d.rank[0].why, "rank 1 with layers 2 to 4"));
    raw_finish(&h.r);
    half_finish(&h);
}

/* The KV port of another rank than the first is no place to pull from. */
static void rank_0_must_be_named(void **state)
{
    static struct instance p, d;
    struct transfer_source src;

    (void)state;
    instance_init(&p, true, 2, 1, 2, 16, true);
    instance_init(&d, false, 1, 1, 2, 16, true);
    instance_start(&p);
    instance_start(&d);
    instance_hold(&p, "x", p_blocks, 3, 40, 1);
    src = source(&p, "x", 40);
    src.port = transfer_port(p.rank[1].t);
    assert_int_equal(transfer_pull(d.rank[0].t, &src, d_blocks, 3, 0, 40, 9), 0);
    assert_int_equal(side_wait(&d.rank[0], TRANSFER_PULLED, 9).status, ERR_MISMATCH);
    assert_non_null(strstr(d.rank[0].why, "rank 1 of 'engine-p'; that of rank 0 must be named"));
    instance_finish(&d);
    instance_finish(&p);
}

/* A pull that is canceled while its parts wait ends all of them, and the leases they would have read. */
static void canceled(void **state)
{
    static struct half h;

    (void)state;
    half_start(&h, NULL);
    half_pull(&h);
    raw_accept(&h.r);
    h.pull = raw_expect(&h.r, MESSAGE_PULL)->u.pull;
    assert_int_equal(transfer_cancel(h.d.rank[0].t, 9), 0);
    assert_int_equal(side_wait(&h.d.rank[0], TRANSFER_PULLED, 9).status, ERR_CANCELED);
    assert_int_equal(raw_expect(&h.r, MESSAGE_STOP)->u.id, h.pull.pull);
    assert_int_equal(side_count(&h.d.rank[0]), 1);
    raw_finish(&h.r);
    half_finish(&h);
}

/* All ranks of a producer are started anew at the same ports: the next pull finds them. */
static void all_ranks_restart(void **state)
{
    static struct instance p, q, d;

    (void)state;
    log_set_level(LOG_OFF);
    instance_init(&p, true, 2, 1, 2, 16, true);
    instance_init(&d, false, 1, 1, 2, 16, true);
    instance_start(&p);
    instance_start(&d);
    pull_once(&p, &d, "first", 0, 75);
    instance_init(&q, true, 2, 1, 2, 16, true);
    for (uint32_t r = 0; r < p.n; r++)
        q.rank[r].opt.port = transfer_port(p.rank[r].t);
    instance_finish(&p);
    instance_start(&q);
    d.rank[0].n = 0;
    pull_once(&q, &d, "second", 0, 75);
    instance_finish(&d);
    instance_finish(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair),
        cmocka_unit_test(replicas_take_turns),
        cmocka_unit_test(holes_are_refused),
        cmocka_unit_test(tiles),
        cmocka_unit_test(pairs_over_connections),
        cmocka_unit_test(again_over_the_same),
        cmocka_unit_test(lease_begins_late),
        cmocka_unit_test(by_name),
        cmocka_unit_test(rank_dies),
        cmocka_unit_test(map_is_wrong),
        cmocka_unit_test(own_map_is_checked),
        cmocka_unit_test(rank_is_another),
        cmocka_unit_test(rank_0_must_be_named),
        cmocka_unit_test(canceled),
        cmocka_unit_test(all_ranks_restart),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
