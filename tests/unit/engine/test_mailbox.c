#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "engine/mailbox.h"
#include "sys/clock.h"

static int notified, notify_status;
static bool no_memory;

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);

void *__wrap_malloc(size_t n)
{
    return no_memory ? NULL : __real_malloc(n);
}

static int on_notify(void *arg)
{
    (void)arg;
    notified++;
    return notify_status;
}

static void mail_keeps_its_order(void **state)
{
    struct inbox b;
    struct mail m[3] = { { .kind = MAIL_SUBMIT }, { .kind = MAIL_CANCEL }, { .kind = MAIL_RESET } };
    struct mail *got;

    (void)state;
    engine_inbox_init(&b);
    for (int i = 0; i < 3; i++)
        engine_inbox_post(&b, &m[i]);
    got = engine_inbox_take(&b, 0);
    for (int i = 0; i < 3; i++, got = got->next)
        assert_ptr_equal(got, &m[i]);
    assert_null(got);
    assert_null(engine_inbox_take(&b, 0));
    engine_inbox_finish(&b);
}

static void an_empty_inbox_waits_no_longer_than_asked(void **state)
{
    struct inbox b;
    double t0 = clock_now();

    (void)state;
    engine_inbox_init(&b);
    assert_null(engine_inbox_take(&b, 0.02));
    assert_true(clock_now() - t0 >= 0.015);
    engine_inbox_finish(&b);
}

/* Nobody was waiting when it was told to wake up: then it does not begin to. */
static void a_wake_up_is_kept(void **state)
{
    struct inbox b;
    double began = clock_now();

    (void)state;
    engine_inbox_init(&b);
    engine_inbox_wake(&b);
    assert_null(engine_inbox_take(&b, 600));
    assert_true(clock_now() - began < 300);
    began = clock_now();
    assert_null(engine_inbox_take(&b, 0.05)); /* once */
    assert_true(clock_now() - began > 0.04);
    engine_inbox_finish(&b);
}

static void events_survive_growth_and_wrap(void **state)
{
    struct outbox o;
    struct engine_event ev[5];

    (void)state;
    assert_int_equal(engine_outbox_init(&o, 2, on_notify, NULL), 0);
    for (uint64_t i = 0; i < 2; i++)
        engine_outbox_put(&o, &(struct engine_event){ .kind = ENGINE_TOKEN, .id = i });
    assert_int_equal(engine_outbox_take(&o, ev, 1), 1);
    for (uint64_t i = 2; i < 6; i++)
        engine_outbox_put(&o, &(struct engine_event){ .kind = ENGINE_TOKEN, .id = i });
    assert_int_equal(engine_outbox_take(&o, ev, 5), 5);
    for (uint64_t i = 0; i < 5; i++)
        assert_int_equal(ev[i].id, i + 1);
    engine_outbox_finish(&o);
}

static void the_front_is_told_once_until_it_has_fetched_all(void **state)
{
    struct outbox o;
    struct engine_event ev[4];

    (void)state;
    notified = 0;
    assert_int_equal(engine_outbox_init(&o, 4, on_notify, NULL), 0);
    engine_outbox_flush(&o);
    assert_int_equal(notified, 0);
    engine_outbox_put(&o, &(struct engine_event){ .id = 1 });
    engine_outbox_put(&o, &(struct engine_event){ .id = 2 });
    engine_outbox_flush(&o);
    engine_outbox_flush(&o);
    assert_int_equal(notified, 1);
    assert_int_equal(engine_outbox_take(&o, ev, 1), 1);
    engine_outbox_flush(&o);
    assert_int_equal(notified, 1);
    assert_int_equal(engine_outbox_take(&o, ev, 4), 1);
    engine_outbox_put(&o, &(struct engine_event){ .id = 3 });
    engine_outbox_flush(&o);
    assert_int_equal(notified, 2);
    engine_outbox_finish(&o);
}

static void a_front_that_could_not_be_told_is_told_again(void **state)
{
    struct outbox o;

    (void)state;
    notified = 0;
    notify_status = ERR_NOMEM;
    assert_int_equal(engine_outbox_init(&o, 4, on_notify, NULL), 0);
    engine_outbox_put(&o, &(struct engine_event){ .id = 1 });
    engine_outbox_flush(&o);
    notify_status = 0;
    engine_outbox_flush(&o);
    engine_outbox_flush(&o);
    assert_int_equal(notified, 2);
    engine_outbox_finish(&o);
}

/* The end of a request has its place, whatever else has filled the memory. */
static void a_reserved_place_is_there_without_memory(void **state)
{
    struct engine_event ev[3];
    struct outbox o;

    (void)state;
    assert_int_equal(engine_outbox_init(&o, 2, NULL, NULL), 0);
    assert_int_equal(engine_outbox_reserve(&o), 0);
    no_memory = true;
    assert_int_equal(engine_outbox_put(&o, &(struct engine_event){ .id = 1 }), 0);
    assert_int_equal(engine_outbox_put(&o, &(struct engine_event){ .id = 2 }), ERR_NOMEM);
    assert_int_equal(engine_outbox_reserve(&o), ERR_NOMEM);
    engine_outbox_put_reserved(&o, &(struct engine_event){ .id = 3 });
    assert_int_equal(engine_outbox_take(&o, ev, 3), 2);
    assert_int_equal(ev[1].id, 3);
    assert_int_equal(engine_outbox_reserve(&o), 0);
    assert_int_equal(engine_outbox_reserve(&o), 0);
    assert_int_equal(engine_outbox_put(&o, &(struct engine_event){ .id = 4 }), ERR_NOMEM);
    engine_outbox_unreserve(&o);
    assert_int_equal(engine_outbox_put(&o, &(struct engine_event){ .id = 5 }), 0);
    no_memory = false;
    assert_int_equal(engine_outbox_put(&o, &(struct engine_event){ .id = 6 }), 0);
    engine_outbox_put_reserved(&o, &(struct engine_event){ .id = 7 });
    assert_int_equal(engine_outbox_take(&o, ev, 3), 3);
    assert_int_equal(ev[2].id, 7);
    engine_outbox_finish(&o);
}

static struct job *new_job(uint64_t id)
{
    const int32_t prompt[] = { 1 };
    struct sampling sp;
    struct engine_request r = { .prompt = prompt, .n_prompt = 1, .sampling = &sp };
    struct job *j = NULL;

    sampling_init(&sp);
    assert_int_equal(engine_job_create(&j, &r), 0);
    j->id = id;
    return j;
}

/* A cancel needs no memory, is posted once at a time, and finds no job that has gone. */
static void cancels_travel_in_their_job(void **state)
{
    struct engine_job_table t = { 0 };
    struct job *a = new_job(1), *b = new_job(1 + JOB_BUCKETS);
    enum finish finish;

    (void)state;
    engine_job_table_init(&t);
    engine_job_table_add(&t, a);
    engine_job_table_add(&t, b);
    no_memory = true;
    assert_null(engine_job_table_cancel(&t, 2, FINISH_ABORT));
    assert_ptr_equal(engine_job_table_cancel(&t, 1, FINISH_STOP), &a->cancel);
    assert_null(engine_job_table_cancel(&t, 1, FINISH_ABORT));
    assert_ptr_equal(engine_job_table_cancel(&t, 1 + JOB_BUCKETS, FINISH_STOP), &b->cancel);
    assert_true(engine_job_table_canceled(&t, a, &finish));
    assert_int_equal(finish, FINISH_ABORT);
    assert_ptr_equal(engine_job_table_cancel(&t, 1, FINISH_STOP), &a->cancel);
    assert_true(engine_job_table_canceled(&t, a, &finish));
    assert_int_equal(finish, FINISH_STOP);
    engine_job_table_end(&t, a);
    assert_null(engine_job_table_cancel(&t, 1, FINISH_ABORT));
    engine_job_table_end(&t, b); /* its cancel is on its way */
    assert_null(engine_job_table_cancel(&t, 1 + JOB_BUCKETS, FINISH_ABORT));
    assert_false(engine_job_table_canceled(&t, b, &finish));
    no_memory = false;
    engine_job_table_finish(&t);
}

static void too_many_waiting_events_are_reported(void **state)
{
    static struct engine_event ev[OUTBOX_HIGH + 1];
    struct outbox o;

    (void)state;
    assert_int_equal(engine_outbox_init(&o, 4, NULL, NULL), 0);
    for (uint32_t i = 0; i < OUTBOX_HIGH; i++)
        engine_outbox_put(&o, &(struct engine_event){ .id = i });
    assert_false(engine_outbox_full(&o));
    engine_outbox_put(&o, &(struct engine_event){ .id = OUTBOX_HIGH });
    assert_true(engine_outbox_full(&o));
    assert_int_equal(engine_outbox_take(&o, ev, OUTBOX_HIGH + 1), OUTBOX_HIGH + 1);
    assert_false(engine_outbox_full(&o));
    engine_outbox_finish(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mail_keeps_its_order),
        cmocka_unit_test(an_empty_inbox_waits_no_longer_than_asked),
        cmocka_unit_test(a_wake_up_is_kept),
        cmocka_unit_test(events_survive_growth_and_wrap),
        cmocka_unit_test(the_front_is_told_once_until_it_has_fetched_all),
        cmocka_unit_test(a_front_that_could_not_be_told_is_told_again),
        cmocka_unit_test(a_reserved_place_is_there_without_memory),
        cmocka_unit_test(cancels_travel_in_their_job),
        cmocka_unit_test(too_many_waiting_events_are_reported),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
