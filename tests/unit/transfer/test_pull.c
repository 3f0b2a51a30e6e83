#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "side.h"

/* Distinct blocks in no order: i * step + at, modulo the pool's size (step is odd, the pool 64). */
static void pick(uint32_t *out, uint32_t n, uint32_t step, uint32_t at)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = (i * step + at) % 64;
}

static uint32_t blocks_for(uint32_t tokens, uint32_t block_tokens)
{
    return (tokens + block_tokens - 1) / block_tokens;
}

static uint64_t expected_bytes(const struct side *p, const struct side *d, uint32_t first,
                               uint32_t n)
{
    uint32_t a = p->opt.layout.block_tokens, b = d->opt.layout.block_tokens;
    uint32_t cell = a < b ? a : b;

    return (uint64_t)blocks_for(n - first, cell) * cell * kv_layout_token_bytes(&p->opt.layout);
}

static void one_pull(struct side *p, struct side *d, uint32_t first, uint32_t n,
                     bool check_untouched)
{
    uint32_t pb[64], db[64];
    uint32_t np = blocks_for(n, p->opt.layout.block_tokens);
    uint32_t nd = blocks_for(n, d->opt.layout.block_tokens);
    struct transfer_source src;
    struct transfer_event ev;
    int at_p = p->n, at_d = d->n;

    pick(pb, np, 27, 5);
    pick(db, nd, 13, 40);
    src = side_source(p, "lease", pb, np);
    assert_int_equal(transfer_hold(p->t, "lease", pb, np, n, 77), 0);
    assert_int_equal(transfer_pull(d->t, &src, db, nd, first, n, 88), 0);
    ev = side_event(d, at_d);
    assert_int_equal(ev.kind, TRANSFER_PULLED);
    assert_int_equal(ev.user, 88);
    assert_string_equal(ev.status < 0 ? d->why : "", "");
    assert_int_equal(ev.bytes, expected_bytes(p, d, first, n));
    assert_true(side_equal(p, pb, d, db, first, n));
    if (check_untouched) /* a random byte is 0xee once in 256 */
        assert_in_range(side_written(d), ev.bytes - ev.bytes / 64, ev.bytes);
    ev = side_event(p, at_p);
    assert_int_equal(ev.kind, TRANSFER_LEASE_END);
    assert_int_equal(ev.user, 77);
    assert_int_equal(ev.end, LEASE_DONE);
}

struct shape {
    uint32_t p, d, first, n;
};

static const struct shape shapes[] = {
    { 16, 16, 0, 1 },    { 16, 16, 0, 16 },   { 16, 16, 0, 17 },    { 16, 16, 48, 200 },
    { 16, 16, 0, 1000 }, { 32, 32, 32, 333 }, { 32, 16, 0, 333 },   { 32, 16, 64, 81 },
    { 16, 32, 0, 333 },  { 16, 64, 64, 500 }, { 64, 16, 128, 130 }, { 16, 64, 0, 16 },
};

static void run_shapes(bool shared, bool checksums)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        struct side p, d;

        side_init(&p, true, s->p, shared);
        side_init(&d, false, s->d, shared);
        p.opt.checksums = d.opt.checksums = checksums;
        side_start(&p);
        side_start(&d);
        one_pull(&p, &d, s->first, s->n, true);
        one_pull(&p, &d, s->first, s->n, false); /* over the same connection */
        side_finish(&d);
        side_finish(&p);
    }
}

static void reads_in_place(void **state)
{
    (void)state;
    run_shapes(true, true);
}

static void is_sent(void **state)
{
    (void)state;
    run_shapes(false, true);
}

static void without_checksums(void **state)
{
    (void)state;
    run_shapes(true, false);
    run_shapes(false, false);
}

/* Latents: one plane a layer, one head. */
static void latents(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int shared = 0; shared < 2; shared++) {
            const struct shape *s = &shapes[i];
            struct side p, d;

            side_init(&p, true, s->p, shared);
            side_init(&d, false, s->d, shared);
            p.opt.layout.planes = d.opt.layout.planes = 1;
            p.opt.layout.kv_heads = d.opt.layout.kv_heads = 1;
            p.opt.layout.head_dim = d.opt.layout.head_dim = 48;
            side_start(&p);
            side_start(&d);
            one_pull(&p, &d, s->first, s->n, true);
            side_finish(&d);
            side_finish(&p);
        }
}

/* How many bytes of the draft layer's planes are not `value`, in the cells of tokens first .. n-1. */
static uint64_t draft_bytes_not(const struct side *d, const uint32_t *blocks, uint32_t first,
                                uint32_t n, unsigned char value)
{
    const struct kv_layout *l = &d->opt.layout;
    uint64_t wrong = 0;

    for (uint32_t kv = 0; kv < l->planes; kv++)
        for (uint32_t head = 0; head < l->kv_heads; head++)
            for (uint32_t token = first; token < n; token++)
                for (uint32_t dim = 0; dim < l->head_dim; dim++)
                    for (uint32_t b = 0; b < l->elem_bytes; b++)
                        wrong +=
                            d->pool[side_offset(l, l->n_layers - 1, kv, blocks, head, token, dim) +
                                    b] != value;
    return wrong;
}

/* The layer of drafts on one side only: what both have is moved, and the consumer's own is zeroed. */
static void draft_layer_on_one_side(void **state)
{
    uint32_t pb[3] = { 5, 9, 1 }, db[5] = { 8, 30, 2, 7, 60 };
    struct transfer_source src;

    (void)state;
    log_set_level(LOG_OFF);
    for (int who = 0; who < 2; who++)
        for (int shared = 0; shared < 2; shared++) {
            struct side p, d;

            side_init(&p, true, 32, shared);
            side_init(&d, false, 16, shared);
            (who ? &d : &p)->opt.layout.n_layers++;
            (who ? &d : &p)->opt.layout.n_draft = 1;
            side_start(&p);
            side_start(&d);
            src = side_source(&p, "lease", pb, 3);
            assert_int_equal(transfer_hold(p.t, "lease", pb, 3, 75, 1), 0);
            assert_int_equal(transfer_pull(d.t, &src, db, 5, 32, 75, 2), 0);
            assert_int_equal(side_event(&d, 0).status, 0);
            assert_true(side_equal(&p, pb, &d, db, 32, 75));
            if (who) {
                assert_int_equal(draft_bytes_not(&d, db, 32, 75, 0), 0);
                assert_int_equal(draft_bytes_not(&d, db, 0, 32, 0xee), 0);
            }
            side_finish(&d);
            side_finish(&p);
        }
    log_set_level(LOG_INFO);
}

/* 46 MB with large batches: rendezvous, many credits. */
static void large_pull_is_sent(void **state)
{
    uint32_t pb[125], db[125];
    struct transfer_source src;
    struct side p, d;

    (void)state;
    side_init(&p, true, 16, false);
    side_init(&d, false, 16, false);
    p.opt.batch_blocks = d.opt.batch_blocks = 0;
    p.opt.layout = d.opt.layout = (struct kv_layout){ .planes = 2,
                                                      .n_layers = 30,
                                                      .kv_heads = 3,
                                                      .head_dim = 64,
                                                      .elem_bytes = 2,
                                                      .block_tokens = 16,
                                                      .n_blocks = 125 };
    side_start(&p);
    side_start(&d);
    for (uint32_t i = 0; i < 125; i++) {
        pb[i] = i * 7 % 125;
        db[i] = 124 - i;
    }
    src = side_source(&p, "big", pb, 125);
    assert_int_equal(transfer_hold(p.t, "big", pb, 125, 2000, 1), 0);
    assert_int_equal(transfer_pull(d.t, &src, db, 125, 0, 2000, 2), 0);
    assert_int_equal(side_event(&d, 0).status, 0);
    assert_int_equal(side_event(&d, 0).bytes, 46080000);
    assert_true(side_equal(&p, pb, &d, db, 0, 2000));
    side_finish(&d);
    side_finish(&p);
}

static void only_done(void **state)
{
    uint32_t blocks[2] = { 3, 4 };
    struct transfer_source src;
    struct side p, d;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&d, false, 16, true);
    side_start(&p);
    side_start(&d);
    src = side_source(&p, "x", blocks, 2);
    assert_int_equal(transfer_hold(p.t, "x", blocks, 2, 20, 1), 0);
    assert_int_equal(transfer_hold(p.t, "x", blocks, 2, 20, 1), ERR_EXISTS);
    assert_int_equal(transfer_pull(d.t, &src, blocks, 2, 20, 20, 2), 0);
    assert_int_equal(side_event(&d, 0).status, 0);
    assert_int_equal(side_event(&d, 0).bytes, 0);
    assert_int_equal(side_event(&p, 0).end, LEASE_DONE);
    assert_int_equal(side_written(&d), 0);
    /* The lease is gone: a second DONE says so. */
    assert_int_equal(transfer_pull(d.t, &src, blocks, 2, 20, 20, 3), 0);
    assert_int_equal(side_event(&d, 1).status, ERR_NOTFOUND);
    side_finish(&d);
    side_finish(&p);
}

static void concurrent_pulls(bool shared)
{
    enum { N = 16 };
    uint32_t pb[N][4], db[N][4];
    char id[N][16];
    struct transfer_stats st;
    struct side p, d;

    side_init(&p, true, 16, shared);
    side_init(&d, false, 16, shared);
    p.opt.batch_blocks = 1;
    side_start(&p);
    side_start(&d);
    for (uint32_t i = 0; i < N; i++) {
        struct transfer_source src;

        pick(pb[i], 4, 1, 4 * i);
        pick(db[i], 4, 17, 3 + 4 * i * 17);
        snprintf(id[i], sizeof id[i], "lease-%u", i);
        src = side_source(&p, id[i], pb[i], 4);
        assert_int_equal(transfer_hold(p.t, id[i], pb[i], 4, 50 + i % 15, i), 0);
        assert_int_equal(transfer_pull(d.t, &src, db[i], 4, 0, 50 + i % 15, 100 + i), 0);
    }
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(side_wait(&d, TRANSFER_PULLED, 100 + i).status, 0);
        assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, i).end, LEASE_DONE);
        assert_true(side_equal(&p, pb[i], &d, db[i], 0, 50 + i % 15));
    }
    transfer_stats(d.t, &st);
    assert_int_equal(st.pulls, 0);
    assert_int_equal(st.pulls_ok, N);
    assert_int_equal(st.pulls_failed + st.checksum_errors + st.protocol_errors, 0);
    assert_int_equal(st.bytes_received, N * 64 * kv_layout_token_bytes(&p.opt.layout));
    transfer_stats(p.t, &st);
    assert_int_equal(st.leases, 0);
    assert_int_equal(st.leases_total, N);
    assert_int_equal(st.bytes_sent, N * 64 * kv_layout_token_bytes(&p.opt.layout));
    assert_int_equal(st.peers, 1);
    side_finish(&d);
    side_finish(&p);
}

static void many_at_once(void **state)
{
    (void)state;
    concurrent_pulls(true);
    concurrent_pulls(false);
}

/* Numbers that cannot be right are refused at once; no event follows. */
static void bad_pulls(void **state)
{
    uint32_t blocks[4] = { 0, 1, 2, 3 }, outside[1] = { 64 };
    struct transfer_source src;
    struct side p, d;

    (void)state;
    side_init(&p, true, 32, true);
    side_init(&d, false, 16, true);
    side_start(&p);
    side_start(&d);
    src = side_source(&p, "x", blocks, 2);
    assert_int_equal(transfer_pull(d.t, &src, blocks, 4, 16, 40, 1), ERR_MISMATCH); /* first */
    assert_int_equal(transfer_pull(d.t, &src, blocks, 2, 0, 40, 1), ERR_MISMATCH);  /* dst short */
    assert_int_equal(transfer_pull(d.t, &src, blocks, 4, 0, 65, 1), ERR_MISMATCH);  /* src short */
    assert_int_equal(transfer_pull(d.t, &src, outside, 1, 0, 16, 1), ERR_MISMATCH);
    src.block_tokens = 24;
    assert_int_equal(transfer_pull(d.t, &src, blocks, 4, 0, 40, 1), ERR_MISMATCH);
    assert_int_equal(transfer_hold(p.t, "x", outside, 1, 16, 1), ERR_RANGE);
    assert_int_equal(transfer_hold(p.t, "x", blocks, 1, 33, 1), ERR_INVAL);
    assert_int_equal(transfer_hold(p.t, "", blocks, 1, 32, 1), ERR_INVAL);
    side_finish(&d);
    side_finish(&p);
    assert_int_equal(p.n + d.n, 0);
}

static void leaves_nothing(void **state)
{
    int fds, threads;

    (void)state;
    run_shapes(true, true); /* what libraries keep for ever is there now */
    fds = count_fds();
    threads = count_threads();
    run_shapes(true, true);
    run_shapes(false, true);
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_threads(), threads);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_in_place),    cmocka_unit_test(is_sent),
        cmocka_unit_test(without_checksums), cmocka_unit_test(large_pull_is_sent),
        cmocka_unit_test(only_done),         cmocka_unit_test(many_at_once),
        cmocka_unit_test(bad_pulls),         cmocka_unit_test(leaves_nothing),
        cmocka_unit_test(latents),           cmocka_unit_test(draft_layer_on_one_side),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
