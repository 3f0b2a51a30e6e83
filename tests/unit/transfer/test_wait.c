#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "play.h"
#include "sys/clock.h"
#include "transfer/await.h"

/* Digests of two prompts. */
static const unsigned char mine[TRANSFER_PROMPT_BYTES] = { 1, 2, 3 };
static const unsigned char other[TRANSFER_PROMPT_BYTES] = { 1, 2, 4 };

static struct transfer_source by_name(const struct side *p, const char *id)
{
    struct transfer_source src = side_source(p, id, NULL, 0);

    src.engine_id = "the engine before"; /* a name is enough */
    src.prompt = mine;
    return src;
}

static void ask(struct side *d, const struct side *p, const char *id, uint64_t user)
{
    struct transfer_source src = by_name(p, id);

    assert_int_equal(transfer_pull(d->t, &src, play_blocks, 4, 0, 60, user), 0);
}

/* Until n pulls wait on p. */
static void until_waiting(struct side *p, uint32_t n)
{
    double until = clock_now() + SIDE_SECONDS;
    struct transfer_stats st;

    do {
        transfer_stats(p->t, &st);
        if (clock_now() > until)
            fail_msg("%u pulls wait, not %u", st.waiting, n);
        clock_sleep(0.001);
    } while (st.waiting != n);
}

static void whole(struct side *p, struct side *d, uint64_t user)
{
    assert_int_equal(side_wait(d, TRANSFER_PULLED, user).status, 0);
    assert_int_equal(side_wait(p, TRANSFER_LEASE_END, user).end, LEASE_DONE);
    assert_true(side_equal(p, play_blocks, d, play_blocks, 0, 60));
}

static void before_the_lease_begins(void **state)
{
    struct side p, d;

    (void)state;
    for (int asked_first = 0; asked_first < 2; asked_first++) {
        play_pair(&p, &d);
        if (asked_first) {
            ask(&d, &p, "x", 1);
            until_waiting(&p, 1);
        }
        assert_int_equal(transfer_expect(p.t, "x", mine), 0);
        assert_int_equal(transfer_expect(p.t, "x", mine), ERR_EXISTS);
        if (!asked_first) {
            ask(&d, &p, "x", 1);
            until_waiting(&p, 1);
        }
        assert_int_equal(side_count(&d), 0);
        play_hold(&p, "x", 1);
        whole(&p, &d, 1);
        until_waiting(&p, 0);
        play_pair_finish(&p, &d);
    }
}

static void after_the_lease_began(void **state)
{
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    play_hold(&p, "x", 1);
    assert_int_equal(transfer_expect(p.t, "x", mine), ERR_EXISTS);
    ask(&d, &p, "x", 1);
    whole(&p, &d, 1);
    ask(&d, &p, "x", 2); /* fetched already: said at once */
    assert_int_equal(side_wait(&d, TRANSFER_PULLED, 2).status, ERR_NOTFOUND);
    play_pair_finish(&p, &d);
}

static void nobody_knows_the_name(void **state)
{
    struct side p, d;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&d, false, 16, true);
    p.opt.pull_timeout = 0.05;
    side_start(&p);
    side_start(&d);
    ask(&d, &p, "x", 1);
    assert_int_equal(side_event(&d, 0).status, ERR_TIMEOUT);
    assert_non_null(strstr(d.why, "no prefill of this name"));
    until_waiting(&p, 0);
    play_pair_finish(&p, &d);
}

/* The prefill is in hand for ever: the consumer gives up. */
static void a_wait_has_an_end(void **state)
{
    struct side p, d;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&d, false, 16, true);
    d.opt.lease_seconds = 0.1;
    side_start(&p);
    side_start(&d);
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    ask(&d, &p, "x", 1);
    assert_int_equal(side_event(&d, 0).status, ERR_TIMEOUT);
    until_waiting(&p, 0);
    play_pair_finish(&p, &d);
}

static void a_prefill_that_fails(void **state)
{
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    ask(&d, &p, "x", 1);
    until_waiting(&p, 1);
    transfer_drop(p.t, "x");
    assert_int_equal(side_event(&d, 0).status, ERR_NOTFOUND);
    ask(&d, &p, "x", 2);
    assert_int_equal(side_event(&d, 1).status, ERR_NOTFOUND);
    transfer_drop(p.t, "never seen");
    ask(&d, &p, "never seen", 3);
    assert_int_equal(side_event(&d, 2).status, ERR_NOTFOUND);
    /* The name may be used anew. */
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    ask(&d, &p, "x", 4);
    play_hold(&p, "x", 4);
    whole(&p, &d, 4);
    play_pair_finish(&p, &d);
}

/* Two requests with one name: no KV goes to the wrong one, whenever that is found. */
static void another_prompt(void **state)
{
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    ask(&d, &p, "x", 1);
    until_waiting(&p, 1);
    assert_int_equal(transfer_expect(p.t, "x", other), 0);
    assert_int_equal(side_event(&d, 0).status, ERR_MISMATCH);
    ask(&d, &p, "x", 2);
    assert_int_equal(side_event(&d, 1).status, ERR_MISMATCH);
    play_hold(&p, "x", 9);
    ask(&d, &p, "x", 3);
    assert_int_equal(side_event(&d, 2).status, ERR_MISMATCH);
    play_hold(&p, "not by name", 10);
    ask(&d, &p, "not by name", 4);
    assert_int_equal(side_event(&d, 3).status, ERR_MISMATCH);
    assert_int_equal(side_written(&d), 0);
    play_pair_finish(&p, &d);
}

static void release(struct side *d, const struct side *p, const char *id)
{
    struct transfer_source src = by_name(p, id);

    assert_int_equal(transfer_release_remote(d->t, &src), 0);
}

static void given_up(void **state)
{
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    /* While it waits. */
    assert_int_equal(transfer_expect(p.t, "a", mine), 0);
    ask(&d, &p, "a", 1);
    until_waiting(&p, 1);
    assert_int_equal(transfer_cancel(d.t, 1), 0);
    assert_int_equal(side_event(&d, 0).status, ERR_CANCELED);
    until_waiting(&p, 0);
    release(&d, &p, "a");
    /* Before anything is known here; the next answer comes behind it on the same connection. */
    release(&d, &p, "b");
    ask(&d, &p, "c", 2);
    until_waiting(&p, 1);
    play_hold(&p, "a", 5);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 5).end, LEASE_ABORTED);
    assert_int_equal(transfer_expect(p.t, "b", mine), 0);
    play_hold(&p, "b", 6);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 6).end, LEASE_ABORTED);
    assert_int_equal(transfer_expect(p.t, "c", mine), 0);
    play_hold(&p, "c", 2);
    whole(&p, &d, 2);
    play_pair_finish(&p, &d);
}

/* Who asked for another prompt under this name has nothing to give up. */
static void not_given_up_by_another_prompt(void **state)
{
    struct transfer_source src;
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    src = by_name(&p, "x");
    src.prompt = other;
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    assert_int_equal(transfer_release_remote(d.t, &src), 0);
    ask(&d, &p, "x", 1);
    until_waiting(&p, 1);
    play_hold(&p, "x", 1);
    whole(&p, &d, 1);
    assert_int_equal(transfer_expect(p.t, "y", mine), 0);
    play_hold(&p, "y", 2);
    src.transfer_id = "y";
    assert_int_equal(transfer_release_remote(d.t, &src), 0);
    ask(&d, &p, "y", 2);
    whole(&p, &d, 2);
    src.transfer_id = "z";
    assert_int_equal(transfer_release_remote(d.t, &src), 0);
    ask(&d, &p, "behind", 3);
    until_waiting(&p, 1);
    assert_int_equal(transfer_expect(p.t, "z", mine), 0);
    play_hold(&p, "z", 4);
    ask(&d, &p, "z", 4);
    whole(&p, &d, 4);
    play_pair_finish(&p, &d);
}

/* The whole prompt is cached here: nothing to fetch, nothing to wait for. */
static void nothing_to_fetch(void **state)
{
    struct transfer_source src;
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    src = by_name(&p, "x");
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    assert_int_equal(transfer_pull(d.t, &src, play_blocks, 4, 64, 64, 1), 0);
    assert_int_equal(side_event(&d, 0).status, 0);
    ask(&d, &p, "behind", 2);
    until_waiting(&p, 1);
    play_hold(&p, "x", 3);
    assert_int_equal(side_event(&p, 0).end, LEASE_ABORTED);
    play_pair_finish(&p, &d);
}

static void the_consumer_goes(void **state)
{
    struct raw r;
    struct side p;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_connect(&r, transfer_port(p.t));
    raw_ask(&r, "x", 60, 10, mine);
    for (int i = 0; i < 3; i++)
        raw_expect(&r, MESSAGE_WAIT);
    until_waiting(&p, 1);
    raw_finish(&r);
    until_waiting(&p, 0);
    side_finish(&p);
}

static void the_producer_goes(void **state)
{
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    ask(&d, &p, "x", 1);
    until_waiting(&p, 1);
    side_finish(&p);
    assert_int_equal(side_event(&d, 0).status, ERR_CLOSED);
    side_finish(&d);
}

static void twice_on_one_connection(void **state)
{
    struct side p;
    struct raw r;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_connect(&r, transfer_port(p.t));
    raw_ask(&r, "x", 60, 1000, mine);
    raw_ask(&r, "y", 60, 1000, mine); /* the same pull id */
    raw_expect_closed(&r);
    until_waiting(&p, 0);
    raw_finish(&r);
    side_finish(&p);
}

/* More of the prompt than the lease has: an error of this pull, not of the connection. */
static void longer_than_the_lease(void **state)
{
    struct side p;
    struct raw r;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_connect(&r, transfer_port(p.t));
    assert_int_equal(transfer_expect(p.t, "x", mine), 0);
    play_hold(&p, "x", 1);
    raw_ask(&r, "x", 61, 1000, mine);
    assert_int_equal(raw_expect(&r, MESSAGE_RESULT)->u.result.status, ERR_MISMATCH);
    raw_finish(&r);
    side_finish(&p);
}

/* ---- the table ---- */

static void deadlines(void **state)
{
    struct await_table t;

    (void)state;
    await_table_init(&t);
    assert_int_equal(await_ask(&t, "a", mine, 10), 0);
    assert_int_equal(await_ask(&t, "b", mine, 20), 0);
    assert_int_equal(await_expect(&t, "a", mine), 0);
    assert_int_equal(await_ask(&t, "", mine, 20), ERR_INVAL);
    assert_false(await_expire(&t, 19));
    assert_true(await_expire(&t, 20));
    assert_null(await_find(&t, "b"));
    assert_non_null(await_find(&t, "a"));
    await_drop(&t, "a", 30);
    assert_int_equal(await_ask(&t, "a", mine, 99), ERR_NOTFOUND);
    assert_true(await_expire(&t, 30));
    assert_int_equal(t.n, 0);
    await_table_finish(&t);
}

static void a_full_table_forgets_the_oldest(void **state)
{
    struct await_table t;
    char name[16];

    (void)state;
    await_table_init(&t);
    for (int i = 0; i < AWAIT_MAX; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(i == 0 ? await_expect(&t, name, mine) : await_ask(&t, name, mine, 5), 0);
    }
    await_drop(&t, "more", 5);
    assert_int_equal(t.n, AWAIT_MAX);
    assert_non_null(await_find(&t, "0"));
    assert_null(await_find(&t, "1"));
    assert_non_null(await_find(&t, "more"));
    await_table_finish(&t);
    for (int i = 0; i < AWAIT_MAX; i++) {
        snprintf(name, sizeof name, "%d", i);
        assert_int_equal(await_expect(&t, name, mine), 0);
    }
    assert_int_equal(await_expect(&t, "more", mine), ERR_LIMIT);
    await_table_finish(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_the_lease_begins),
        cmocka_unit_test(after_the_lease_began),
        cmocka_unit_test(nobody_knows_the_name),
        cmocka_unit_test(a_wait_has_an_end),
        cmocka_unit_test(a_prefill_that_fails),
        cmocka_unit_test(another_prompt),
        cmocka_unit_test(given_up),
        cmocka_unit_test(not_given_up_by_another_prompt),
        cmocka_unit_test(nothing_to_fetch),
        cmocka_unit_test(the_consumer_goes),
        cmocka_unit_test(the_producer_goes),
        cmocka_unit_test(twice_on_one_connection),
        cmocka_unit_test(longer_than_the_lease),
        cmocka_unit_test(deadlines),
        cmocka_unit_test(a_full_table_forgets_the_oldest),
    };

    log_set_level(LOG_OFF);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
