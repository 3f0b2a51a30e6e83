/* A prompt's KV from elsewhere: orders, results, late and missing ones. */
#include "rig.h"

static struct ask consume(uint32_t n, int32_t first)
{
    return (struct ask){ .n = n, .first = first, .max_tokens = 2, .role = SCHED_CONSUME };
}

static void all_but_the_last_token_is_pulled(void **state)
{
    const struct plan *p;
    struct sched_pull o;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, consume(40, 0));
    assert_null(rig_step(&g));
    o = rig_pull(&g);
    assert_int_equal(o.id, id);
    assert_int_equal(o.first_token, 0);
    assert_int_equal(o.n_tokens, 39);
    assert_int_equal(o.n_blocks, 3);
    assert_int_equal(sched_next_pull(g.s, &o), 0);
    assert_int_equal(rig_stats(&g).n_waiting_kv, 1);
    assert_false(rig_told(&g, id)->started);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    assert_string_equal(rig_state(&g, id), "READY");
    p = rig_step(&g);
    rig_expect(p, 0, id, 39, 1, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_external, 39);
    assert_int_equal(rig_told(&g, id)->n_cached, 0);
    assert_int_equal(rig_stats(&g).external_queries, 40);
    assert_int_equal(rig_stats(&g).external_hits, 39);
    rig_close(&g);
}

/* What came by transfer is in this instance's cache too; only the rest is ordered, and an order
 * for nothing is still an order, because the other side must be told. */
static void only_what_is_not_here_is_pulled(void **state)
{
    static const struct {
        uint32_t n, first;
    } cases[] = { { 15, 0 }, { 16, 0 }, { 17, 16 }, { 32, 16 }, { 33, 32 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig g;

        rig_open(&g, NULL);
        for (int again = 0; again < 3; again++) {
            sched_id id = rig_add(&g, consume(cases[i].n, 0));
            struct sched_pull o;

            rig_step(&g);
            o = rig_pull(&g);
            assert_int_equal(o.first_token, again ? cases[i].first : 0);
            assert_int_equal(o.n_tokens, cases[i].n - 1);
            sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
            rig_run(&g, RIG_TOKEN);
            assert_true(rig_told(&g, id)->gone);
            assert_int_equal(rig_told(&g, id)->n_tokens, 2);
            assert_int_equal(rig_told(&g, id)->n_external, cases[i].n - 1 - o.first_token);
        }
        rig_close(&g);
    }
}

/* The other side has blocks of another size: a pull starts where blocks of both start. */
static void a_pull_starts_on_a_border_of_both(void **state)
{
    static const struct {
        uint32_t multiple, first;
    } cases[] = {
        { 0, 80 }, { 8, 80 }, { 16, 80 }, { 24, 48 }, { 32, 64 }, { 64, 64 }, { 128, 0 }
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct ask a = consume(90, 0);
        struct sched_pull o;
        struct rig g;

        rig_open(&g, NULL);
        rig_add(&g, (struct ask){ .n = 90, .max_tokens = 1 });
        rig_run(&g, RIG_TOKEN);
        a.hit_multiple = cases[i].multiple;
        rig_add(&g, a);
        rig_step(&g);
        o = rig_pull(&g);
        assert_int_equal(o.first_token, cases[i].first);
        sched_pull_done(g.s, o.id, SCHED_PULL_OK, 0);
        rig_run(&g, RIG_TOKEN);
        assert_int_equal(rig_told(&g, o.id)->n_cached, cases[i].first);
        rig_close(&g);
    }
}

/* Nothing of the pulled blocks is used or cached; the prefix that was here is. */
static void a_lost_pull_is_computed_here(void **state)
{
    const struct plan *p;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    rig_add(&g, (struct ask){ .n = 20, .max_tokens = 1 });
    rig_run(&g, RIG_TOKEN);
    id = rig_add(&g, consume(60, 0));
    rig_step(&g);
    assert_int_equal(rig_pull(&g).first_token, 16);
    sched_pull_done(g.s, id, SCHED_PULL_RECOMPUTE, 0);
    p = rig_step(&g);
    rig_expect(p, 0, id, 16, 44, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_external, 0);
    assert_int_equal(rig_told(&g, id)->n_cached, 16);
    assert_int_equal(rig_told(&g, id)->n_tokens, 2);
    rig_close(&g);
}

static void a_failed_pull_is_not_in_the_cache(void **state)
{
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, consume(40, 0));
    rig_step(&g);
    rig_pull(&g);
    sched_pull_done(g.s, id, SCHED_PULL_FAIL, 0);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_ERROR);
    assert_true(rig_told(&g, id)->gone);
    id = rig_add(&g, (struct ask){ .n = 40 });
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_cached, 0);
    rig_close(&g);
}

static void an_aborted_pull_keeps_its_blocks_until_it_ends(void **state)
{
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, consume(40, 0));
    rig_step(&g);
    rig_pull(&g);
    assert_int_equal(sched_abort(g.s, id, FINISH_ABORT, 0), 0);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_ABORT);
    assert_false(rig_told(&g, id)->gone);
    assert_int_equal(rig_stats(&g).blocks_used, 3);
    assert_int_equal(sched_abort(g.s, id, FINISH_ABORT, 0), ERR_NOTFOUND);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    assert_true(rig_told(&g, id)->gone);
    assert_int_equal(rig_stats(&g).blocks_used, 0);
    id = rig_add(&g, (struct ask){ .n = 40 }); /* what came late is not in the cache */
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_cached, 0);
    rig_close(&g);
}

static void an_order_nobody_fetched_needs_no_fence(void **state)
{
    struct sched_pull o;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, consume(40, 0));
    rig_step(&g);
    assert_string_equal(rig_state(&g, id), "PULL");
    sched_abort(g.s, id, FINISH_ABORT, 0);
    assert_true(rig_told(&g, id)->gone);
    assert_int_equal(sched_next_pull(g.s, &o), 0);
    rig_close(&g);
}

static void late_and_second_answers_change_nothing(void **state)
{
    const struct plan *p;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, consume(40, 0));
    rig_step(&g);
    rig_pull(&g);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    sched_pull_done(g.s, id, SCHED_PULL_FAIL, 0); /* READY */
    p = rig_step(&g);
    sched_pull_done(g.s, id, SCHED_PULL_FAIL, 0); /* RUN */
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    sched_pull_done(g.s, id, SCHED_PULL_FAIL, 0); /* gone */
    sched_pull_done(g.s, 999, SCHED_PULL_OK, 0);
    rig_close(&g);
}

/* The head of the queue is too big for what is free; the arrival behind it runs all the same. */
static void a_big_head_does_not_hide_an_arrival(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p;
    struct rig g;
    sched_id small, big;

    (void)state;
    c.n_blocks = 8;
    rig_open(&g, &c);
    small = rig_add(&g, consume(40, 0));
    rig_step(&g);
    rig_pull(&g);
    big = rig_add(&g, consume(100, 500));
    assert_null(rig_step(&g));
    assert_string_equal(rig_state(&g, big), "WAIT");
    sched_pull_done(g.s, small, SCHED_PULL_OK, 0);
    p = rig_step(&g);
    rig_expect(p, 0, small, 39, 1, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_pull(&g).id, big);
    sched_pull_done(g.s, big, SCHED_PULL_OK, 0);
    rig_run(&g, RIG_TOKEN);
    assert_true(rig_told(&g, big)->gone);
    rig_close(&g);
}

static void pulls_are_ordered_while_all_plans_are_out(void **state)
{
    const struct plan *p;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    rig_add(&g, (struct ask){ .n = 20 });
    p = rig_step(&g);
    id = rig_add(&g, consume(40, 100));
    assert_null(rig_step(&g));
    assert_int_equal(rig_pull(&g).id, id);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

/* Pulls are ordered as far as those who run keep room to grow. */
static void pulls_leave_room_for_those_who_run(void **state)
{
    struct sched_config c = rig_config();
    struct sched_pull o;
    struct rig g;

    (void)state;
    c.n_blocks = 8;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 16, .max_tokens = 40 });
    rig_once(&g);
    for (int i = 1; i <= 3; i++)
        rig_add(&g, consume(32, 100 * i));
    rig_once(&g); /* 6 free: 2 and room for 2, then 4 + 2 are too many with another one's growth */
    assert_int_equal(sched_next_pull(g.s, &o), 1);
    assert_int_equal(sched_next_pull(g.s, &o), 0);
    assert_int_equal(rig_stats(&g).n_waiting_kv, 1);
    for (int i = 0; i < 30; i++)
        assert_int_equal(rig_once(&g), 1);
    assert_int_equal(rig_stats(&g).preemptions, 0);
    for (;;) {
        sched_pull_done(g.s, o.id, SCHED_PULL_OK, 0);
        rig_run(&g, RIG_TOKEN);
        if (!sched_next_pull(g.s, &o))
            break;
    }
    rig_close(&g);
}

/* A place in RUN is missing, not blocks; and the one that runs needs the blocks of those who wait
 * with theirs. They give way, whatever their age. */
static void arrivals_that_wait_give_way(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;
    sched_id run, pulled;

    (void)state;
    c.n_blocks = 6;
    c.max_seqs = 1;
    rig_open(&g, &c);
    pulled = rig_add(&g, consume(40, 0));
    rig_step(&g);
    rig_pull(&g);
    run = rig_add(&g, (struct ask){ .n = 16, .first = 500, .max_tokens = 60 });
    rig_once(&g);
    sched_pull_done(g.s, pulled, SCHED_PULL_OK, 0);
    assert_string_equal(rig_state(&g, pulled), "READY");
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, run)->n_tokens, 60);
    assert_int_equal(rig_told(&g, run)->n_preempted, 0);
    assert_int_equal(rig_told(&g, pulled)->n_preempted, 1);
    assert_int_equal(rig_told(&g, pulled)->n_tokens, 2);
    rig_close(&g);
}

static void prompt_logprobs_pull_nothing(void **state)
{
    const struct plan *p;
    struct sched_pull o;
    struct rig g;
    sched_id id;
    struct ask a = consume(40, 0);

    (void)state;
    rig_open(&g, NULL);
    a.prompt_logprobs = true;
    id = rig_add(&g, a);
    rig_step(&g);
    o = rig_pull(&g);
    assert_int_equal(o.first_token, o.n_tokens);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    p = rig_step(&g);
    rig_expect(p, 0, id, 0, 40, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_external, 0);
    rig_close(&g);
}

/* The prefill's token is told when the pull is ordered; with the whole prompt's KV here, the next step
 * makes the second one. */
static void the_first_token_comes_along(void **state)
{
    struct ask a = consume(40, 0);
    const struct plan *p;
    struct sched_pull o;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    a.first_out = 77;
    id = rig_add(&g, a);
    assert_null(rig_step(&g));
    assert_true(rig_told(&g, id)->started);
    assert_int_equal(rig_told(&g, id)->n_tokens, 1);
    assert_int_equal(rig_told(&g, id)->token[0], 77);
    o = rig_pull(&g);
    assert_int_equal(o.n_tokens, 40);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    p = rig_step(&g);
    rig_expect(p, 0, id, 40, 1, true);
    assert_int_equal(p->entries[0].tokens[0], 77);
    assert_int_equal(p->entries[0].out_index, 1);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_tokens, 2);
    assert_int_equal(rig_told(&g, id)->n_external, 40);
    assert_int_equal(rig_stats(&g).prompt_tokens, 40);
    assert_int_equal(rig_stats(&g).generation_tokens, 2);
    rig_close(&g);
}

/* If it ends the output, nothing is pulled at all. */
static void a_first_token_may_be_the_last(void **state)
{
    (void)state;
    for (int eos = 0; eos < 2; eos++) {
        struct ask a = consume(40, 0);
        struct sched_pull o;
        struct rig g;
        sched_id id;

        rig_open(&g, NULL);
        a.first_out = eos ? RIG_EOS : 77;
        a.max_tokens = eos ? 4 : 1;
        id = rig_add(&g, a);
        assert_null(rig_step(&g));
        assert_int_equal(sched_next_pull(g.s, &o), 0);
        assert_int_equal(rig_told(&g, id)->n_tokens, 1);
        assert_int_equal(rig_told(&g, id)->finish, eos ? FINISH_STOP : FINISH_LENGTH);
        assert_true(rig_told(&g, id)->gone);
        rig_close(&g);
    }
}

/* A lost pull: the prompt is computed here, and what was told stays. */
static void a_first_token_outlives_a_lost_pull(void **state)
{
    struct ask a = consume(40, 0);
    const struct plan *p;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    a.first_out = 77;
    id = rig_add(&g, a);
    rig_step(&g);
    rig_pull(&g);
    sched_pull_done(g.s, id, SCHED_PULL_RECOMPUTE, 0);
    p = rig_step(&g);
    rig_expect(p, 0, id, 0, 41, true);
    assert_int_equal(p->entries[0].out_index, 1);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->token[0], 77);
    assert_int_equal(rig_told(&g, id)->n_tokens, 2);
    rig_close(&g);
}

/* Where only the last prompt token is missing it is computed with the first output token. */
static void a_last_prompt_token_alone_is_not_pulled(void **state)
{
    struct ask a = consume(33, 0);
    const struct plan *p;
    struct sched_pull o;
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    rig_add(&g, (struct ask){ .n = 33, .max_tokens = 1 });
    rig_run(&g, RIG_TOKEN);
    a.first_out = 77;
    rig_add(&g, a);
    rig_step(&g);
    o = rig_pull(&g);
    assert_int_equal(o.first_token, 32);
    assert_int_equal(o.n_tokens, 32);
    sched_pull_done(g.s, o.id, SCHED_PULL_OK, 0);
    p = rig_step(&g);
    rig_expect(p, 0, o.id, 32, 2, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_but_the_last_token_is_pulled),
        cmocka_unit_test(only_what_is_not_here_is_pulled),
        cmocka_unit_test(a_pull_starts_on_a_border_of_both),
        cmocka_unit_test(a_lost_pull_is_computed_here),
        cmocka_unit_test(a_failed_pull_is_not_in_the_cache),
        cmocka_unit_test(an_aborted_pull_keeps_its_blocks_until_it_ends),
        cmocka_unit_test(an_order_nobody_fetched_needs_no_fence),
        cmocka_unit_test(late_and_second_answers_change_nothing),
        cmocka_unit_test(a_big_head_does_not_hide_an_arrival),
        cmocka_unit_test(pulls_are_ordered_while_all_plans_are_out),
        cmocka_unit_test(pulls_leave_room_for_those_who_run),
        cmocka_unit_test(arrivals_that_wait_give_way),
        cmocka_unit_test(prompt_logprobs_pull_nothing),
        cmocka_unit_test(the_first_token_comes_along),
        cmocka_unit_test(a_first_token_may_be_the_last),
        cmocka_unit_test(a_first_token_outlives_a_lost_pull),
        cmocka_unit_test(a_last_prompt_token_alone_is_not_pulled),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
