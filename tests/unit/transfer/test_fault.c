#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "play.h"
#include "sys/clock.h"

static void expires(void **state)
{
    struct transfer_stats st;
    struct side p;

    (void)state;
    side_init(&p, true, 16, true);
    p.opt.lease_seconds = 0.05;
    side_start(&p);
    play_hold(&p, "a", 1);
    play_hold(&p, "b", 2);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_EXPIRED);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 2).end, LEASE_EXPIRED);
    transfer_stats(p.t, &st);
    assert_int_equal(st.leases, 0);
    assert_int_equal(st.leases_expired, 2);
    side_finish(&p);
}

static void aborts_and_shuts_down(void **state)
{
    struct side p;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    play_hold(&p, "a", 1);
    play_hold(&p, "b", 2);
    assert_int_equal(transfer_abort_hold(p.t, "a"), 0);
    assert_int_equal(transfer_abort_hold(p.t, "c"), ERR_NOTFOUND);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    assert_int_equal(transfer_abort_hold(p.t, "a"), ERR_NOTFOUND);
    transfer_destroy(p.t);
    p.t = NULL;
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 2).end, LEASE_SHUTDOWN);
    side_finish(&p);
}

static void released_from_afar(void **state)
{
    struct transfer_source src;
    struct side p, d;

    (void)state;
    play_pair(&p, &d);
    play_hold(&p, "a", 1);
    src = side_source(&p, "a", play_blocks, 4);
    assert_int_equal(transfer_release_remote(d.t, &src), 0);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    play_pair_finish(&p, &d);
}

/* While a consumer reads in place, an aborted lease stays until it says that it has stopped. */
static void abort_waits_for_reader(void **state)
{
    struct message stop = { .kind = MESSAGE_STOP, .u.id = 1 };
    struct side p;
    struct raw r;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_connect(&r, transfer_port(p.t));
    play_hold(&p, "a", 1);
    raw_pull(&r, "a", 60, 1, true);
    raw_expect(&r, MESSAGE_GRANT);
    raw_expect(&r, MESSAGE_DATA);
    assert_int_equal(transfer_abort_hold(p.t, "a"), 0);
    raw_expect(&r, MESSAGE_RESULT);
    assert_int_equal(r.last.u.result.status, ERR_CANCELED);
    assert_int_equal(side_count(&p), 0); /* nobody has said STOP */
    raw_send(&r, &stop, NULL, 0);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    raw_finish(&r);
    side_finish(&p);
}

/* A reader that says nothing more loses its connection, and so its lease. */
static void silent_reader(void **state)
{
    struct side p;
    struct raw r;

    (void)state;
    side_init(&p, true, 16, true);
    p.opt.pull_timeout = 0.1;
    side_start(&p);
    raw_init(&r, &p);
    raw_connect(&r, transfer_port(p.t));
    play_hold(&p, "a", 1);
    raw_pull(&r, "a", 60, 1, true);
    raw_expect(&r, MESSAGE_GRANT);
    raw_expect(&r, MESSAGE_DATA);
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    raw_expect_closed(&r);
    raw_finish(&r);
    side_finish(&p);
}

/* 3 layers x 2 x 4 cells = 24 pieces in 6 batches, the last of which has a wrong bit. */
static void corrupt_byte(void **state)
{
    static struct play s;
    struct transfer_stats st;

    (void)state;
    play_start(&s, 10);
    for (uint64_t b = 0; b < 6; b++)
        play_batch(&s, b, b == 5);
    raw_expect(&s.r, MESSAGE_CREDIT); /* 4 of the 6 were on their way from the start */
    raw_expect(&s.r, MESSAGE_CREDIT);
    raw_expect(&s.r, MESSAGE_STOP);
    assert_int_equal(side_event(&s.d, 0).status, ERR_CORRUPT);
    assert_non_null(strstr(s.d.why, "checksum"));
    transfer_stats(s.d.t, &st);
    assert_int_equal(st.checksum_errors, 1);
    assert_int_equal(st.pulls, 0);
    play_finish(&s);
}

/* The parts may come in any order, each once; the pull ends with the RESULT of its DONE. */
static void any_order(void **state)
{
    static struct play s;
    static const int order[] = { 2, 0, 1, 3, 5, 4 };
    struct message m = { .kind = MESSAGE_RESULT };

    (void)state;
    play_start(&s, 10);
    for (int i = 0; i < 6; i++)
        play_batch(&s, (uint64_t)order[i], false);
    raw_expect(&s.r, MESSAGE_CREDIT);
    raw_expect(&s.r, MESSAGE_CREDIT);
    raw_expect(&s.r, MESSAGE_DONE);
    assert_string_equal(s.r.last.u.name.lease, "x");
    assert_int_equal(side_count(&s.d), 0); /* not before the producer has confirmed */
    m.u.result.id = s.r.last.u.name.id;
    raw_send(&s.r, &m, NULL, 0);
    assert_int_equal(side_event(&s.d, 0).status, 0);
    assert_int_equal(side_event(&s.d, 0).bytes, 24 * 1536);
    play_finish(&s);
}

static void twice_the_same(void **state)
{
    static struct play s;
    struct transfer_stats st;

    (void)state;
    log_set_level(LOG_OFF);
    play_start(&s, 10);
    play_batch(&s, 1, false);
    play_batch(&s, 1, false);
    raw_expect_closed(&s.r);
    assert_int_equal(side_event(&s.d, 0).status, ERR_BADMSG);
    transfer_stats(s.d.t, &st);
    assert_int_equal(st.protocol_errors, 1);
    play_finish(&s);
}

/* The producer stops in the middle without closing. */
static void no_progress(void **state)
{
    static struct play s;
    double t0;

    (void)state;
    play_start(&s, 0.15);
    t0 = clock_now();
    play_batch(&s, 0, false);
    assert_int_equal(side_event(&s.d, 0).status, ERR_TIMEOUT);
    assert_true(clock_now() - t0 >= 0.1 && clock_now() - t0 < 5);
    assert_non_null(strstr(s.d.why, "no progress"));
    play_finish(&s);
}

/* After the report of a canceled pull nothing lands in its play_blocks, though data still comes. */
static void canceled(void **state)
{
    static struct play s;
    struct message m = { .kind = MESSAGE_RESULT };
    uint64_t written;

    (void)state;
    play_start(&s, 10);
    play_batch(&s, 0, false);
    raw_expect(&s.r, MESSAGE_CREDIT);
    assert_int_equal(transfer_cancel(s.d.t, 9), 0);
    assert_int_equal(side_event(&s.d, 0).status, ERR_CANCELED);
    written = side_written(&s.d);
    assert_true(written > 0);
    raw_expect(&s.r, MESSAGE_STOP);
    play_batch(&s, 1, false);
    play_batch(&s, 2, false);
    /* An error on the ended pull is answered: by then the data before it has been looked at. */
    m.u.result.id = s.pull.pull;
    m.u.result.status = ERR_CANCELED;
    raw_send(&s.r, &m, NULL, 0);
    raw_expect(&s.r, MESSAGE_STOP);
    assert_int_equal(transfer_cancel(s.d.t, 9), 0); /* unknown by now: nothing happens */
    assert_int_equal(side_written(&s.d), written);
    assert_int_equal(side_count(&s.d), 1);
    play_finish(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expires),
        cmocka_unit_test(aborts_and_shuts_down),
        cmocka_unit_test(released_from_afar),
        cmocka_unit_test(abort_waits_for_reader),
        cmocka_unit_test(silent_reader),
        cmocka_unit_test(corrupt_byte),
        cmocka_unit_test(any_order),
        cmocka_unit_test(twice_the_same),
        cmocka_unit_test(no_progress),
        cmocka_unit_test(canceled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
