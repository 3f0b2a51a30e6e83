/* Holds for a remote decode, aborts in every state, and what is told. */
#include <stdio.h>
#include <string.h>

#include "rig.h"

static struct ask produce(uint32_t n)
{
    return (struct ask){ .n = n, .max_tokens = 8, .role = SCHED_PRODUCE };
}

static void a_prefill_ends_after_one_token_and_is_held(void **state)
{
    const uint32_t *blocks;
    uint32_t n_blocks, n_tokens;
    const struct told *t;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, produce(40));
    assert_int_equal(sched_held(g.s, id, &blocks, &n_blocks, &n_tokens), ERR_NOTFOUND);
    assert_int_equal(rig_run(&g, RIG_TOKEN), 1);
    t = rig_told(&g, id);
    assert_true(t->ended && t->held && !t->gone);
    assert_int_equal(t->n_tokens, 1);
    assert_int_equal(t->finish, FINISH_LENGTH);
    assert_int_equal(sched_held(g.s, id, &blocks, &n_blocks, &n_tokens), 0);
    assert_int_equal(n_blocks, 3);
    assert_int_equal(n_tokens, 40);
    assert_int_equal(rig_stats(&g).n_held, 1);
    assert_int_equal(rig_stats(&g).blocks_used, 3);
    assert_int_equal(sched_release(g.s, id, 0), 0);
    assert_int_equal(sched_release(g.s, id, 0), ERR_NOTFOUND);
    assert_true(rig_told(&g, id)->gone);
    rig_close(&g);
}

/* The decode side meets the same end token by itself. */
static void an_end_token_is_held_too(void **state)
{
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, produce(20));
    rig_run(&g, RIG_EOS);
    assert_true(rig_told(&g, id)->held);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_STOP);
    sched_release(g.s, id, 0);
    rig_close(&g);
}

/* Held blocks may be shared, but nobody gets them before the release. */
static void held_blocks_stay_whatever_comes(void **state)
{
    struct sched_config c = rig_config();
    const uint32_t *blocks;
    uint32_t n_blocks, n_tokens;
    const struct plan *p;
    struct rig g;
    sched_id held, other;

    (void)state;
    c.n_blocks = 5;
    rig_open(&g, &c);
    held = rig_add(&g, produce(40));
    rig_run(&g, RIG_TOKEN);
    other = rig_add(&g, (struct ask){ .n = 60, .first = 100, .max_tokens = 2 });
    assert_null(rig_step(&g)); /* four blocks wanted, two free */
    assert_int_equal(sched_held(g.s, held, &blocks, &n_blocks, &n_tokens), 0);
    assert_int_equal(sched_release(g.s, held, 0), 0);
    p = rig_step(&g);
    rig_expect(p, 0, other, 0, 60, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

static void an_aborted_or_failed_prefill_is_not_held(void **state)
{
    const struct plan *p;
    struct rig g;
    sched_id a, b;

    (void)state;
    rig_open(&g, NULL);
    a = rig_add(&g, produce(100));
    rig_once(&g);
    assert_int_equal(sched_abort(g.s, a, FINISH_ABORT, 0), 0);
    assert_true(rig_told(&g, a)->gone && !rig_told(&g, a)->held);
    b = rig_add(&g, produce(20));
    p = rig_step(&g);
    sched_commit(g.s, &(struct step_result){ .seq = p->seq, .failed = true }, 0);
    assert_int_equal(rig_told(&g, b)->finish, FINISH_ERROR);
    assert_true(rig_told(&g, b)->gone && !rig_told(&g, b)->held);
    rig_close(&g);
}

static void an_abort_ends_a_hold(void **state)
{
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, produce(20));
    rig_run(&g, RIG_TOKEN);
    assert_true(rig_told(&g, id)->ended);
    assert_int_equal(sched_abort(g.s, id, FINISH_ABORT, 0), 0);
    assert_true(rig_told(&g, id)->gone);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH); /* its client heard of no abort */
    rig_close(&g);
}

static void an_abort_in_the_queue_or_between_steps_is_at_once(void **state)
{
    struct rig g;
    sched_id a, b;

    (void)state;
    rig_open(&g, NULL);
    a = rig_add(&g, (struct ask){ .n = 200 });
    b = rig_add(&g, (struct ask){ .n = 20, .first = 500, .max_tokens = 1 });
    rig_once(&g); /* a quarter of the first prompt */
    assert_int_equal(sched_abort(g.s, a, FINISH_ABORT, 0), 0);
    assert_true(rig_told(&g, a)->gone);
    assert_int_equal(rig_told(&g, a)->finish, FINISH_ABORT);
    assert_int_equal(rig_run(&g, RIG_TOKEN), 1); /* the short one goes next */
    assert_true(rig_told(&g, b)->gone);
    a = rig_add(&g, (struct ask){ .n = 200 });
    assert_int_equal(sched_abort(g.s, a, FINISH_ABORT, 0), 0);
    assert_false(rig_told(&g, a)->started);
    assert_true(rig_told(&g, a)->gone);
    assert_null(rig_step(&g));
    rig_close(&g);
}

/* The worker still writes: blocks return with the last plan that names the request. */
static void an_abort_in_flight_waits_for_its_plans(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p, *q;
    struct rig g;
    sched_id id;

    (void)state;
    c.max_inflight = 2;
    rig_open(&g, &c);
    id = rig_add(&g, (struct ask){ .n = 100 });
    p = rig_step(&g);
    q = rig_step(&g);
    assert_int_equal(sched_abort(g.s, id, FINISH_ABORT, 0), 0);
    assert_true(rig_told(&g, id)->ended && !rig_told(&g, id)->gone);
    assert_int_equal(rig_stats(&g).blocks_used, 7);
    rig_commit(&g, p, RIG_TOKEN);
    assert_false(rig_told(&g, id)->gone);
    rig_commit(&g, q, RIG_TOKEN);
    assert_true(rig_told(&g, id)->gone);
    assert_int_equal(rig_told(&g, id)->n_tokens, 0);
    rig_close(&g);
}

static void a_quiet_abort_tells_only_that_it_is_gone(void **state)
{
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, (struct ask){ .n = 20 });
    rig_once(&g);
    assert_int_equal(sched_abort(g.s, id, FINISH_NONE, 0), 0);
    assert_false(rig_told(&g, id)->ended);
    assert_true(rig_told(&g, id)->gone);
    assert_int_equal(sched_abort(g.s, id, FINISH_ABORT, 0), ERR_NOTFOUND);
    rig_close(&g);
}

/* Nothing is lost when the caller reads its events only in the end. */
static void events_wait_for_a_late_reader(void **state)
{
    static const enum sched_event_kind want[] = { SCHED_EV_START, SCHED_EV_TOKEN, SCHED_EV_TOKEN,
                                                  SCHED_EV_TOKEN, SCHED_EV_END,   SCHED_EV_GONE };
    struct sched_event e;
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    rig_add(&g, (struct ask){ .n = 20, .max_tokens = 3 });
    rig_run(&g, RIG_TOKEN);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        assert_int_equal(sched_next_event(g.s, &e), 1);
        assert_int_equal(e.kind, want[i]);
        assert_int_equal(e.finish, i == 3 || i == 4 ? FINISH_LENGTH : FINISH_NONE);
    }
    assert_int_equal(sched_next_event(g.s, &e), 0);
    rig_close(&g);
}

static void note_move(void *arg, double now, sched_id id, const char *from, const char *to,
                      const char *why)
{
    char *at = (char *)arg + strlen(arg);

    (void)now;
    assert_int_equal(id, 1);
    assert_true(why[0] != '\0');
    snprintf(at, 200 - strlen(arg), "%s>%s ", from, to);
}

static void every_move_is_traced(void **state)
{
    char moves[200] = "";
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    sched_set_trace(g.s, note_move, moves);
    rig_add(&g, (struct ask){ .n = 20, .role = SCHED_CONSUME, .max_tokens = 1 });
    rig_step(&g);
    rig_pull(&g);
    sched_pull_done(g.s, 1, SCHED_PULL_OK, 0);
    rig_run(&g, RIG_TOKEN);
    assert_string_equal(moves, "NEW>WAIT WAIT>PULL PULL>READY READY>RUN RUN>DONE DONE>GONE ");
    rig_close(&g);
}

static void destroying_a_busy_scheduler_frees_everything(void **state)
{
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    rig_add(&g, produce(20));
    rig_run(&g, RIG_TOKEN);
    rig_add(&g, (struct ask){ .n = 20, .role = SCHED_CONSUME });
    rig_add(&g, (struct ask){ .n = 200 });
    assert_non_null(rig_step(&g));
    sched_destroy(g.s);
    sched_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefill_ends_after_one_token_and_is_held),
        cmocka_unit_test(an_end_token_is_held_too),
        cmocka_unit_test(held_blocks_stay_whatever_comes),
        cmocka_unit_test(an_aborted_or_failed_prefill_is_not_held),
        cmocka_unit_test(an_abort_ends_a_hold),
        cmocka_unit_test(an_abort_in_the_queue_or_between_steps_is_at_once),
        cmocka_unit_test(an_abort_in_flight_waits_for_its_plans),
        cmocka_unit_test(a_quiet_abort_tells_only_that_it_is_gone),
        cmocka_unit_test(events_wait_for_a_late_reader),
        cmocka_unit_test(every_move_is_traced),
        cmocka_unit_test(destroying_a_busy_scheduler_frees_everything),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
