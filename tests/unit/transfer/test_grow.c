/* Leases that are read while their prompt is still computed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "instance.h"
#include "sys/clock.h"

#define N_TOKENS 75 /* five blocks of 16 */

static const uint32_t p_blocks[5] = { 7, 33, 12, 5, 60 };
static const uint32_t d_blocks[5] = { 50, 2, 31, 9, 17 };
static const unsigned char prompt[TRANSFER_PROMPT_BYTES] = { 4, 5, 6 };

struct pair {
    struct instance p, d;
    struct side *ps, *ds;
};

/* D has asked by name; nothing has begun. */
static void pair_start(struct pair *x, bool shared, double pull_timeout)
{
    struct transfer_source src;

    instance_init(&x->p, true, 1, 1, 2, 16, shared);
    instance_init(&x->d, false, 1, 1, 2, 16, shared);
    x->ps = &x->p.rank[0];
    x->ds = &x->d.rank[0];
    x->ps->opt.pull_timeout = x->ds->opt.pull_timeout = pull_timeout;
    instance_start(&x->p);
    instance_start(&x->d);
    assert_int_equal(transfer_expect(x->ps->t, "x", prompt), 0);
    src = side_source(x->ps, "x", NULL, 0);
    src.prompt = prompt;
    assert_int_equal(transfer_pull(x->ds->t, &src, d_blocks, 5, 0, N_TOKENS - 1, 9), 0);
}

static void pair_finish(struct pair *x)
{
    instance_finish(&x->d);
    instance_finish(&x->p);
}

static void grow(struct pair *x, uint32_t done)
{
    assert_int_equal(transfer_grow(x->ps->t, "x", p_blocks, 5, N_TOKENS, done, 1), 0);
}

/* The forward pass: writes tokens first .. n-1 of each layer, and tells of each. */
static void compute(struct pair *x, uint32_t first, uint32_t n)
{
    const struct kv_layout *l = &x->ps->opt.layout;

    for (uint32_t layer = 0; layer < l->n_layers; layer++) {
        for (uint32_t kv = 0; kv < 2; kv++)
            for (uint32_t head = 0; head < l->kv_heads; head++)
                for (uint32_t token = first; token < n; token++)
                    for (uint32_t dim = 0; dim < l->head_dim; dim++) {
                        uint16_t v = instance_value(layer, kv, head, token, dim);

                        memcpy(x->ps->pool + side_offset(l, layer, kv, p_blocks, head, token, dim),
                               &v, sizeof v);
                    }
        assert_int_equal(transfer_grown(x->ps->t, "x", layer, n), 0);
    }
}

static struct transfer_stats stats(const struct side *s)
{
    struct transfer_stats st;

    transfer_stats(s->t, &st);
    return st;
}

static void wait_sent(const struct pair *x, uint64_t bytes)
{
    double until = clock_now() + SIDE_SECONDS;

    while (stats(x->ps).bytes_sent < bytes) {
        if (clock_now() > until)
            fail_msg("%llu bytes sent, not %llu", (unsigned long long)stats(x->ps).bytes_sent,
                     (unsigned long long)bytes);
        clock_sleep(0.001);
    }
    clock_sleep(0.02);
    assert_int_equal(stats(x->ps).bytes_sent, bytes);
}

static uint64_t bytes_of(const struct pair *x, uint32_t blocks)
{
    return blocks * 16ull * kv_layout_token_bytes(&x->ps->opt.layout);
}

/* Whole blocks go as soon as a layer has them, the rest when the lease is complete. */
static void goes_as_it_grows(bool shared)
{
    static struct pair x;

    pair_start(&x, shared, 10);
    x.ps->opt.batch_blocks = 1;
    clock_sleep(0.02);
    instance_fill(&x.ps->opt.layout, x.ps->pool, p_blocks, 16);
    grow(&x, 16);
    wait_sent(&x, 0); /* batches of a plane's five cells are not ready */
    compute(&x, 16, 50);
    wait_sent(&x, 0);
    compute(&x, 50, N_TOKENS);
    assert_int_equal(side_wait(x.ds, TRANSFER_PULLED, 9).status, 0);
    assert_true(instance_equal(&x.ds->opt.layout, x.ds->pool, d_blocks, 0, N_TOKENS - 1));
    /* DONE has been said; the blocks are P's until it says that it writes no more. */
    clock_sleep(0.05);
    assert_int_equal(side_count(x.ps), 0);
    assert_int_equal(transfer_hold(x.ps->t, "x", p_blocks, 5, N_TOKENS, 1), 0);
    assert_int_equal(side_wait(x.ps, TRANSFER_LEASE_END, 1).end, LEASE_DONE);
    assert_int_equal(transfer_grown(x.ps->t, "x", 0, N_TOKENS), ERR_NOTFOUND);
    pair_finish(&x);
}

static void sent_as_it_grows(void **state)
{
    (void)state;
    goes_as_it_grows(false);
}

static void read_in_place_as_it_grows(void **state)
{
    (void)state;
    goes_as_it_grows(true);
}

/* One layer after the other: each has gone before the next is computed. */
static void layer_by_layer(void **state)
{
    static struct pair x;
    const struct kv_layout *l;

    (void)state;
    pair_start(&x, true, 10);
    l = &x.ps->opt.layout;
    clock_sleep(0.02);
    instance_fill(l, x.ps->pool, p_blocks, N_TOKENS);
    grow(&x, 0);
    for (uint32_t layer = 0; layer < l->n_layers; layer++) {
        assert_int_equal(transfer_grown(x.ps->t, "x", layer, N_TOKENS), 0);
        wait_sent(&x, bytes_of(&x, 5) / l->n_layers * (layer + 1));
    }
    assert_int_equal(stats(x.ps).bytes_early, bytes_of(&x, 5) / l->n_layers * (l->n_layers - 1));
    assert_int_equal(side_wait(x.ds, TRANSFER_PULLED, 9).status, 0);
    assert_true(instance_equal(&x.ds->opt.layout, x.ds->pool, d_blocks, 0, N_TOKENS - 1));
    assert_int_equal(transfer_hold(x.ps->t, "x", p_blocks, 5, N_TOKENS, 1), 0);
    side_wait(x.ps, TRANSFER_LEASE_END, 1);
    pair_finish(&x);
}

/* What the prefill did not tell layer by layer is there when the lease is complete. */
static void completed_at_once(void **state)
{
    static struct pair x;

    (void)state;
    pair_start(&x, false, 10);
    grow(&x, 0);
    instance_fill(&x.ps->opt.layout, x.ps->pool, p_blocks, N_TOKENS);
    assert_int_equal(transfer_hold(x.ps->t, "x", p_blocks, 5, N_TOKENS, 1), 0);
    assert_int_equal(side_wait(x.ds, TRANSFER_PULLED, 9).status, 0);
    assert_true(instance_equal(&x.ds->opt.layout, x.ds->pool, d_blocks, 0, N_TOKENS - 1));
    assert_int_equal(stats(x.ps).bytes_early, 0);
    side_wait(x.ps, TRANSFER_LEASE_END, 1);
    pair_finish(&x);
}

/* A prefill that does not come to its end takes the pull with it. */
static void stopped(void **state)
{
    static struct pair x;

    (void)state;
    log_set_level(LOG_OFF);
    pair_start(&x, true, 10);
    clock_sleep(0.02);
    grow(&x, 0);
    compute(&x, 0, 48);
    transfer_stop_growing(x.ps->t, "x");
    assert_true(side_wait(x.ds, TRANSFER_PULLED, 9).status < 0);
    assert_int_equal(side_wait(x.ps, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    assert_int_equal(stats(x.ps).leases, 0);
    transfer_stop_growing(x.ps->t, "x"); /* nothing to stop */
    pair_finish(&x);
}

/* A consumer that gives up ends the lease, but its blocks stay until the prefill writes no more. */
static void given_up_meanwhile(void **state)
{
    static struct pair x;

    (void)state;
    pair_start(&x, true, 10);
    clock_sleep(0.02);
    grow(&x, 0);
    assert_int_equal(transfer_grown(x.ps->t, "x", 0, N_TOKENS), 0);
    wait_sent(&x, bytes_of(&x, 5) / INSTANCE_LAYERS); /* so it is being read */
    assert_int_equal(transfer_cancel(x.ds->t, 9), 0);
    assert_int_equal(side_wait(x.ds, TRANSFER_PULLED, 9).status, ERR_CANCELED);
    clock_sleep(0.05);
    assert_int_equal(side_count(x.ps), 0);
    compute(&x, 0, N_TOKENS);
    assert_int_equal(transfer_hold(x.ps->t, "x", p_blocks, 5, N_TOKENS, 1), 0);
    assert_int_equal(side_wait(x.ps, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    pair_finish(&x);
}

/* However long the prefill takes, neither side takes the other for gone. */
static void slow_prefill(void **state)
{
    static struct pair x;

    (void)state;
    pair_start(&x, false, 0.4);
    clock_sleep(0.02);
    grow(&x, 0);
    for (uint32_t n = 25; n <= N_TOKENS; n += 25) {
        compute(&x, n - 25, n);
        clock_sleep(0.5);
    }
    assert_int_equal(side_wait(x.ds, TRANSFER_PULLED, 9).status, 0);
    assert_int_equal(transfer_hold(x.ps->t, "x", p_blocks, 5, N_TOKENS, 1), 0);
    side_wait(x.ps, TRANSFER_LEASE_END, 1);
    pair_finish(&x);
}

static void ends_with_the_object(void **state)
{
    static struct pair x;

    (void)state;
    pair_start(&x, true, 10);
    grow(&x, 0);
    pair_finish(&x);
    assert_int_equal(x.ps->n, 1);
    assert_int_equal(x.ps->events[0].end, LEASE_SHUTDOWN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sent_as_it_grows), cmocka_unit_test(read_in_place_as_it_grows),
        cmocka_unit_test(layer_by_layer),   cmocka_unit_test(completed_at_once),
        cmocka_unit_test(stopped),          cmocka_unit_test(given_up_meanwhile),
        cmocka_unit_test(slow_prefill),     cmocka_unit_test(ends_with_the_object),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
