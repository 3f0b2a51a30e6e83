/* What a step computes: order, budget, chunks, plans in flight. */
#include <string.h>

#include "rig.h"

static void decode_first_then_prompts_in_order(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p;
    struct rig g;
    sched_id a, b, d;

    (void)state;
    c.max_batched_tokens = 32;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 8, .max_tokens = 3 });
    rig_once(&g);
    b = rig_add(&g, (struct ask){ .n = 40, .first = 100, .max_tokens = 1 });
    d = rig_add(&g, (struct ask){ .n = 40, .first = 200, .max_tokens = 1 });
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 2);
    rig_expect(p, 0, a, 8, 1, true);
    rig_expect(p, 1, b, 0, 31, false);
    assert_int_equal(p->n_tokens, 32);
    assert_int_equal(p->n_prefill_tokens, 31);
    rig_commit(&g, p, RIG_TOKEN);
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 3);
    rig_expect(p, 0, a, 9, 1, true);
    rig_expect(p, 1, b, 31, 9, true);
    rig_expect(p, 2, d, 0, 22, false);
    rig_commit(&g, p, RIG_TOKEN);
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 1);
    rig_expect(p, 0, d, 22, 18, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_close(&g);
}

static void an_entry_says_what_the_sampler_needs(void **state)
{
    struct rig g;
    const struct plan_entry *e;
    const struct plan *p;
    sched_id a;

    (void)state;
    rig_open(&g, NULL);
    a = rig_add(&g, (struct ask){ .n = 17, .first = 7, .min_tokens = 2, .max_tokens = 3 });
    for (uint32_t i = 0; i < 3; i++) {
        p = rig_step(&g);
        e = p->entries;
        assert_int_equal(e->id, a);
        assert_int_equal(e->out_index, i);
        assert_int_equal(e->sampling->min_tokens, 2);
        assert_int_equal(e->n_draft + e->want_drafts, 0);
        assert_int_equal(e->n_prompt, 17);
        assert_int_equal(e->n_all, 17 + i);
        assert_ptr_equal(e->tokens, e->all_tokens + e->start);
        assert_int_equal(e->all_tokens[16], 23);
        assert_int_equal(e->n_blocks, 2);
        assert_int_equal(e->eos_ids[0], RIG_EOS);
        rig_commit(&g, p, RIG_TOKEN + (int32_t)i);
        if (i > 0)
            assert_int_equal(e->all_tokens[16 + i], RIG_TOKEN + (int32_t)i - 1);
    }
    assert_int_equal(rig_told(&g, a)->token[2], RIG_TOKEN + 2);
    rig_close(&g);
}

static void chunks_overlap_but_a_token_must_be_known(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p1, *p2;
    struct rig g;
    sched_id a;

    (void)state;
    c.max_batched_tokens = 32;
    c.max_inflight = 3;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 64, .max_tokens = 2 });
    p1 = rig_step(&g);
    p2 = rig_step(&g);
    rig_expect(p1, 0, a, 0, 32, false);
    rig_expect(p2, 0, a, 32, 32, true);
    assert_int_equal(p2->seq, p1->seq + 1);
    assert_null(rig_step(&g));
    rig_commit(&g, p1, RIG_TOKEN);
    assert_null(rig_step(&g));
    rig_commit(&g, p2, RIG_TOKEN);
    p1 = rig_step(&g);
    rig_expect(p1, 0, a, 64, 1, true);
    rig_commit(&g, p1, RIG_TOKEN);
    assert_int_equal(rig_told(&g, a)->finish, FINISH_LENGTH);
    rig_close(&g);
}

static void no_more_plans_than_allowed(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p[2];
    struct rig g;

    (void)state;
    c.max_inflight = 2;
    c.max_batched_tokens = 16;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 64, .max_tokens = 1 });
    p[0] = rig_step(&g);
    p[1] = rig_step(&g);
    assert_non_null(p[1]);
    assert_null(rig_step(&g));
    rig_commit(&g, p[0], RIG_TOKEN);
    assert_non_null(p[0] = rig_step(&g));
    rig_commit(&g, p[1], RIG_TOKEN);
    rig_commit(&g, p[0], RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

static void no_more_requests_than_allowed(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;

    (void)state;
    c.max_seqs = 2;
    rig_open(&g, &c);
    for (int i = 0; i < 3; i++)
        rig_add(&g, (struct ask){ .n = 4, .first = 100 * i, .max_tokens = 2 });
    assert_int_equal(rig_once(&g), 2);
    assert_int_equal(rig_stats(&g).n_waiting, 1);
    assert_int_equal(rig_once(&g), 2);
    assert_int_equal(rig_once(&g), 1);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

static void long_prompts_leave_room_for_others(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p;
    struct rig g;
    sched_id a, b;

    (void)state;
    c.long_prefill_threshold = 24;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 100, .max_tokens = 1 });
    b = rig_add(&g, (struct ask){ .n = 10, .first = 500, .max_tokens = 1 });
    p = rig_step(&g);
    rig_expect(p, 0, a, 0, 24, false);
    rig_expect(p, 1, b, 0, 10, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

static void without_chunks_a_prompt_waits_for_its_step(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p;
    struct rig g;
    sched_id a, b;

    (void)state;
    c.chunked_prefill = false;
    c.max_model_len = c.max_batched_tokens;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 40, .max_tokens = 1 });
    b = rig_add(&g, (struct ask){ .n = 30, .first = 100, .max_tokens = 1 });
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 1);
    rig_expect(p, 0, a, 0, 40, true);
    assert_string_equal(rig_state(&g, b), "WAIT");
    rig_commit(&g, p, RIG_TOKEN);
    p = rig_step(&g);
    rig_expect(p, 0, b, 0, 30, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_close(&g);
}

static void priority_goes_before_arrival_only_if_asked(void **state)
{
    struct sched_config c = rig_config();

    (void)state;
    c.max_seqs = 1;
    for (int by_priority = 0; by_priority < 2; by_priority++) {
        struct rig g;
        sched_id a, b;

        c.priority = by_priority;
        rig_open(&g, &c);
        a = rig_add(&g, (struct ask){ .n = 4, .priority = 5 });
        b = rig_add(&g, (struct ask){ .n = 4, .first = 100, .priority = -1 });
        rig_once(&g);
        assert_string_equal(rig_state(&g, by_priority ? b : a), "RUN");
        assert_string_equal(rig_state(&g, by_priority ? a : b), "WAIT");
        rig_run(&g, RIG_TOKEN);
        rig_close(&g);
    }
}

static void a_failed_step_ends_its_requests(void **state)
{
    struct rig g;
    const struct plan *p;
    sched_id a, b;

    (void)state;
    rig_open(&g, NULL);
    a = rig_add(&g, (struct ask){ .n = 40 });
    p = rig_step(&g);
    b = rig_add(&g, (struct ask){ .n = 40, .max_tokens = 1 });
    sched_commit(g.s, &(struct step_result){ .seq = p->seq, .failed = true }, 0);
    assert_int_equal(rig_told(&g, a)->finish, FINISH_ERROR);
    assert_true(rig_told(&g, a)->gone);
    rig_run(&g, RIG_TOKEN); /* nothing of the failed step is found in the cache */
    assert_int_equal(rig_told(&g, b)->n_cached, 0);
    assert_int_equal(rig_told(&g, b)->finish, FINISH_LENGTH);
    rig_close(&g);
}

static void impossible_configurations_are_refused(void **state)
{
    struct sched_config c = rig_config();
    struct err e = { 0 };
    struct sched *s;

    (void)state;
    c.block_tokens = 24;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "24"));
    c = rig_config();
    c.chunked_prefill = false;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "64"));
    assert_non_null(strstr(e.text, "512"));
    c = rig_config();
    c.max_inflight = 0;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    c = rig_config();
    c.max_seqs = 0;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    c = rig_config();
    c.n_blocks = 0;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decode_first_then_prompts_in_order),
        cmocka_unit_test(an_entry_says_what_the_sampler_needs),
        cmocka_unit_test(chunks_overlap_but_a_token_must_be_known),
        cmocka_unit_test(no_more_plans_than_allowed),
        cmocka_unit_test(no_more_requests_than_allowed),
        cmocka_unit_test(long_prompts_leave_room_for_others),
        cmocka_unit_test(without_chunks_a_prompt_waits_for_its_step),
        cmocka_unit_test(priority_goes_before_arrival_only_if_asked),
        cmocka_unit_test(a_failed_step_ends_its_requests),
        cmocka_unit_test(impossible_configurations_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
