/* The policy by itself: spreading, ties, what puts a node out and what brings it back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"
#include "proxy/route.h"

#define N 4

static struct route route;
static struct route_node nodes[N];

static int setup(void **state)
{
    (void)state;
    memset(&route, 0, sizeof route);
    memset(nodes, 0, sizeof nodes);
    route.fail_limit = 3;
    route.ok_limit = 2;
    route.wait_limit = 2;
    for (int i = 0; i < N; i++) {
        nodes[i].id = 100 + (uint64_t)i;
        nodes[i].state = ROUTE_ACTIVE;
        assert_int_equal(route_add(&route, &nodes[i]), 0);
    }
    return 0;
}

static struct route_node *pick(double score)
{
    return route_pick(&route, score, NULL, 0);
}

static void burst_is_spread_evenly(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_non_null(pick(route_score(400)));
    for (int i = 0; i < N; i++)
        assert_int_equal(nodes[i].requests, 25);
}

static void equals_take_turns(void **state)
{
    struct route_node *first = pick(1);

    (void)state;
    route_release(first, 1);
    for (int i = 0; i < N - 1; i++) {
        struct route_node *n = pick(1);

        assert_ptr_not_equal(n, first);
        route_release(n, 1);
    }
    assert_ptr_equal(pick(1), first);
}

static void short_ones_avoid_the_long(void **state)
{
    struct route_node *long_one = pick(route_score(800));

    (void)state;
    for (int i = 0; i < 9; i++)
        assert_ptr_not_equal(pick(route_score(40)), long_one);
}

static void mixed_load_is_within_twice(void **state)
{
    double low = 1e9, high = 0;

    (void)state;
    for (int i = 0; i < 400; i++)
        pick(route_score(i % 10 == 0 ? 4000 : 40));
    for (int i = 0; i < N; i++) {
        low = nodes[i].tokens < low ? nodes[i].tokens : low;
        high = nodes[i].tokens > high ? nodes[i].tokens : high;
    }
    assert_true(high <= 2 * low);
}

static void held_kv_weighs(void **state)
{
    (void)state;
    for (int i = 1; i < N; i++)
        route_hold(&nodes[i], 100);
    assert_ptr_equal(pick(29), &nodes[0]);
    assert_ptr_equal(pick(29), &nodes[0]); /* 29 < 0.3 x 100 */
    assert_ptr_not_equal(pick(29), &nodes[0]);
    for (int i = 1; i < N; i++)
        route_unhold(&nodes[i], 100);
    for (int i = 1; i < N; i++)
        assert_true(nodes[i].kv == 0);
}

static void loads_do_not_drift(void **state)
{
    struct route_node *n[1000];

    (void)state;
    for (int round = 0; round < 10; round++) {
        for (int i = 0; i < 1000; i++)
            n[i] = pick(0.1 * (i + 1));
        for (int i = 0; i < 1000; i++)
            route_release(n[i], 0.1 * (i + 1));
    }
    for (int i = 0; i < N; i++)
        assert_true(nodes[i].tokens == 0 && nodes[i].requests == 0);
}

static void tried_ones_are_passed_over(void **state)
{
    const uint64_t tried[] = { 100, 101, 103 };
    const uint64_t all[] = { 100, 101, 102, 103 };

    (void)state;
    for (int i = 0; i < 5; i++)
        assert_ptr_equal(route_pick(&route, 1, tried, 3), &nodes[2]);
    assert_null(route_pick(&route, 1, all, 4));
}

static void refused_connection_puts_out_at_once(void **state)
{
    (void)state;
    assert_true(route_report(&route, &nodes[1], ROUTE_NO_CONNECT));
    assert_int_equal(nodes[1].state, ROUTE_FAILED);
    for (int i = 0; i < 20; i++)
        assert_ptr_not_equal(pick(1), &nodes[1]);
}

static void errors_count_in_a_row(void **state)
{
    (void)state;
    for (int i = 0; i < 10; i++) {
        assert_false(route_report(&route, &nodes[0], ROUTE_ERROR));
        assert_false(route_report(&route, &nodes[0], ROUTE_ERROR));
        assert_false(route_report(&route, &nodes[0], ROUTE_OK));
    }
    for (int i = 0; i < 2; i++)
        assert_false(route_report(&route, &nodes[0], ROUTE_ERROR));
    /* A good probe does not forgive them. */
    assert_false(route_report_probe(&route, &nodes[0], ROUTE_OK));
    assert_true(route_report(&route, &nodes[0], ROUTE_ERROR));
    assert_int_equal(nodes[0].state, ROUTE_FAILED);
    assert_false(route_report(&route, &nodes[0], ROUTE_ERROR));
}

static void probes_bring_back(void **state)
{
    (void)state;
    route_report(&route, &nodes[0], ROUTE_NO_CONNECT);
    assert_false(route_report_probe(&route, &nodes[0], ROUTE_OK));
    assert_false(route_report_probe(&route, &nodes[0], ROUTE_ERROR)); /* starts again */
    assert_false(route_report_probe(&route, &nodes[0], ROUTE_OK));
    assert_true(route_report_probe(&route, &nodes[0], ROUTE_OK));
    assert_int_equal(nodes[0].state, ROUTE_ACTIVE);
}

static void probes_put_out(void **state)
{
    (void)state;
    assert_true(route_report_probe(&route, &nodes[0], ROUTE_NO_CONNECT));
    assert_false(route_report_probe(&route, &nodes[1], ROUTE_ERROR));
    assert_false(route_report_probe(&route, &nodes[1], ROUTE_ERROR));
    assert_true(route_report_probe(&route, &nodes[1], ROUTE_ERROR));
    assert_int_equal(route_count(&route, ROUTE_FAILED), 2);
}

static void nobody_is_nobody(void **state)
{
    (void)state;
    for (int i = 0; i < N; i++)
        route_report(&route, &nodes[i], ROUTE_NO_CONNECT);
    assert_null(pick(1));
}

static void pending_waits_for_a_good_probe(void **state)
{
    (void)state;
    nodes[0].state = nodes[1].state = ROUTE_PENDING;
    for (int i = 0; i < 8; i++)
        assert_int_equal(pick(1)->state, ROUTE_ACTIVE);
    assert_false(route_report_probe(&route, &nodes[0], ROUTE_NO_CONNECT));
    assert_true(route_report_probe(&route, &nodes[0], ROUTE_OK)); /* one is enough */
    assert_false(route_report_probe(&route, &nodes[1], ROUTE_NO_CONNECT));
    assert_true(route_report_probe(&route, &nodes[1], ROUTE_NO_CONNECT));
    assert_int_equal(nodes[1].state, ROUTE_FAILED);
}

static void draining_stays_draining(void **state)
{
    (void)state;
    nodes[0].state = ROUTE_DRAINING;
    for (int i = 0; i < 8; i++)
        assert_ptr_not_equal(pick(1), &nodes[0]);
    assert_false(route_report(&route, &nodes[0], ROUTE_NO_CONNECT));
    assert_false(route_report_probe(&route, &nodes[0], ROUTE_OK));
    assert_int_equal(nodes[0].state, ROUTE_DRAINING);
    route_remove(&route, &nodes[0]);
    assert_int_equal(route.n, N - 1);
}

#define TEST(fn) cmocka_unit_test_setup(fn, setup)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(burst_is_spread_evenly),
        TEST(equals_take_turns),
        TEST(short_ones_avoid_the_long),
        TEST(mixed_load_is_within_twice),
        TEST(held_kv_weighs),
        TEST(loads_do_not_drift),
        TEST(tried_ones_are_passed_over),
        TEST(refused_connection_puts_out_at_once),
        TEST(errors_count_in_a_row),
        TEST(probes_bring_back),
        TEST(probes_put_out),
        TEST(nobody_is_nobody),
        TEST(pending_waits_for_a_good_probe),
        TEST(draining_stays_draining),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
