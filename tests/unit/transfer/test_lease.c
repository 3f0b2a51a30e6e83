#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "transfer/lease.h"

static const uint32_t blocks[3] = { 4, 5, 6 };

static int add(struct lease_table *t, const char *id, uint64_t user, double deadline)
{
    return lease_add(t, id, blocks, 3, 40, user, deadline);
}

/* Takes the next ended lease; its user, or 0. */
static uint64_t take(struct lease_table *t, double now, enum transfer_lease_end *how)
{
    struct lease *l = lease_take_ended(t, now);
    uint64_t user = l ? l->user : 0;

    if (l)
        *how = l->how;
    lease_free(l);
    return user;
}

static void adds_and_finds(void **state)
{
    char too_long[TRANSFER_ID_MAX + 1];
    struct lease_table t;

    (void)state;
    lease_table_init(&t);
    memset(too_long, 'x', TRANSFER_ID_MAX);
    too_long[TRANSFER_ID_MAX] = '\0';
    assert_int_equal(add(&t, "a", 1, 10), 0);
    assert_int_equal(add(&t, "a", 2, 10), ERR_EXISTS);
    assert_int_equal(add(&t, "", 2, 10), ERR_INVAL);
    assert_int_equal(add(&t, too_long, 2, 10), ERR_INVAL);
    assert_int_equal(lease_add(&t, "b", blocks, 0, 40, 1, 10), ERR_INVAL);
    assert_int_equal(lease_add(&t, "b", blocks, LEASE_BLOCKS_MAX + 1, 40, 1, 10), ERR_LIMIT);
    assert_non_null(lease_find(&t, "a"));
    assert_null(lease_find(&t, "b"));
    assert_memory_equal(lease_find(&t, "a")->blocks, blocks, sizeof blocks);
    lease_table_finish(&t);
}

static void expires_in_order(void **state)
{
    enum transfer_lease_end how;
    struct lease_table t;

    (void)state;
    lease_table_init(&t);
    assert_true(lease_next(&t) == HUGE_VAL);
    add(&t, "a", 1, 10);
    add(&t, "b", 2, 11);
    assert_true(lease_next(&t) == 10);
    assert_int_equal(take(&t, 9.99, &how), 0);
    assert_int_equal(take(&t, 11, &how), 1);
    assert_int_equal(how, LEASE_EXPIRED);
    assert_int_equal(take(&t, 11, &how), 2);
    assert_int_equal(take(&t, 1e9, &how), 0);
    assert_int_equal(t.n, 0);
    lease_table_finish(&t);
}

static void readers_hold_it(void **state)
{
    enum transfer_lease_end how;
    struct lease_table t;
    struct lease *l;

    (void)state;
    lease_table_init(&t);
    add(&t, "a", 1, 10);
    l = lease_find(&t, "a");
    lease_read_begin(l);
    assert_true(lease_next(&t) == HUGE_VAL);
    assert_int_equal(take(&t, 20, &how), 0); /* past the deadline, but read */
    lease_end(l, LEASE_ABORTED);
    lease_end(l, LEASE_DONE); /* the first cause stays */
    assert_null(lease_find(&t, "a"));
    assert_int_equal(add(&t, "a", 2, 10), ERR_EXISTS); /* its blocks are not free yet */
    assert_int_equal(take(&t, 20, &how), 0);
    lease_read_end(l);
    assert_true(lease_next(&t) <= 0);
    assert_int_equal(take(&t, 0, &how), 1);
    assert_int_equal(how, LEASE_ABORTED);
    assert_int_equal(add(&t, "a", 2, 10), 0);
    lease_table_finish(&t);
}

static void full(void **state)
{
    enum transfer_lease_end how;
    struct lease_table t;
    char id[16];
    uint32_t n = 0;

    (void)state;
    lease_table_init(&t);
    for (uint32_t i = 0; i < LEASE_MAX; i++) {
        snprintf(id, sizeof id, "%u", i);
        assert_int_equal(add(&t, id, i + 1, 10), 0);
    }
    assert_int_equal(add(&t, "more", 1, 10), ERR_LIMIT);
    lease_end(lease_find(&t, "4000"), LEASE_DONE);
    assert_int_equal(take(&t, 0, &how), 4001);
    assert_int_equal(add(&t, "more", 1, 10), 0);
    lease_end_all(&t, LEASE_SHUTDOWN);
    while (take(&t, 0, &how))
        n += how == LEASE_SHUTDOWN;
    assert_int_equal(n, LEASE_MAX);
    lease_table_finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adds_and_finds),
        cmocka_unit_test(expires_in_order),
        cmocka_unit_test(readers_hold_it),
        cmocka_unit_test(full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
