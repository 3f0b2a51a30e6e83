/* Limits at the door, and what ends an output. */
#include <string.h>

#include "rig.h"

static int try_n(struct rig *g, uint32_t n, struct err *e)
{
    sched_id id;

    return rig_try(g, (struct ask){ .n = n }, &id, e);
}

static void what_can_never_fit_is_refused_with_both_numbers(void **state)
{
    struct sched_config c = rig_config();
    struct err e = { 0 };
    struct rig g;
    sched_id id;

    (void)state;
    c.n_blocks = 8;
    c.max_model_len = 256;
    rig_open(&g, &c);
    assert_int_equal(try_n(&g, 200, &e), ERR_TOOLONG);
    assert_non_null(strstr(e.text, "200"));
    assert_non_null(strstr(e.text, "128"));
    id = rig_add(&g, (struct ask){ .n = 10 });
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    rig_close(&g);
}

static void a_prompt_needs_room_for_one_token(void **state)
{
    struct sched_config c = rig_config();
    struct err e = { 0 };
    struct rig g;
    sched_id id;

    (void)state;
    c.max_model_len = 64;
    rig_open(&g, &c);
    assert_int_equal(try_n(&g, 64, &e), ERR_TOOLONG);
    assert_non_null(strstr(e.text, "64 tokens"));
    assert_int_equal(try_n(&g, 0, &e), ERR_INVAL);
    id = rig_add(&g, (struct ask){ .n = 63, .max_tokens = 100 }); /* capped to the room */
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_tokens, 1);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    id = rig_add(&g, (struct ask){ .n = 64, .prompt_only = true });
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    rig_close(&g);
}

/* 60 + 4 is the whole context: positions 0 to 62 are computed, never 63 or more. */
static void no_position_beyond_the_context_is_computed(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p;
    uint32_t end = 0;
    struct rig g;

    (void)state;
    c.max_model_len = 64;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 60, .max_tokens = 50 });
    while ((p = rig_step(&g))) {
        end = p->entries[0].start + p->entries[0].n;
        rig_commit(&g, p, RIG_TOKEN);
    }
    assert_int_equal(end, 63);
    assert_int_equal(rig_told(&g, 1)->n_tokens, 4);
    rig_close(&g);
}

/* The last output token is never computed, so the pool may be full without it. */
static void a_request_may_fill_the_pool(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;
    sched_id id;

    (void)state;
    c.n_blocks = 2;
    rig_open(&g, &c);
    id = rig_add(&g, (struct ask){ .n = 30, .max_tokens = 100 });
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_tokens, 3);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    rig_close(&g);
}

static void a_full_queue_says_so(void **state)
{
    struct sched_config c = rig_config();
    struct err e = { 0 };
    struct rig g;

    (void)state;
    c.max_waiting = 2;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 4 });
    rig_add(&g, (struct ask){ .n = 4 });
    assert_int_equal(try_n(&g, 4, &e), ERR_LIMIT);
    rig_once(&g);
    assert_int_equal(try_n(&g, 4, &e), 0);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

/* What a request does when each step gives the same token. */
static const struct told *with_token(struct rig *g, struct ask a, int32_t token)
{
    sched_id id;

    a.n = 5;
    id = rig_add(g, a);
    rig_run(g, token);
    assert_true(rig_told(g, id)->gone);
    return rig_told(g, id);
}

static void end_tokens(void **state)
{
    const struct told *t;
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    t = with_token(&g, (struct ask){ .max_tokens = 3 }, RIG_EOS);
    assert_int_equal(t->n_tokens, 1);
    assert_int_equal(t->finish, FINISH_STOP);
    assert_int_equal(t->last_finish, FINISH_STOP);
    assert_int_equal(t->stop_id, -1);
    t = with_token(&g, (struct ask){ .max_tokens = 3, .ignore_eos = true }, RIG_EOS);
    assert_int_equal(t->n_tokens, 3);
    assert_int_equal(t->finish, FINISH_LENGTH);
    t = with_token(&g, (struct ask){ .max_tokens = 3, .stop_id = 77, .ignore_eos = true }, 77);
    assert_int_equal(t->n_tokens, 1);
    assert_int_equal(t->finish, FINISH_STOP);
    assert_int_equal(t->stop_id, 77);
    rig_close(&g);
}

static void min_tokens_come_before_any_end(void **state)
{
    const struct told *t;
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    t = with_token(&g, (struct ask){ .max_tokens = 9, .min_tokens = 4 }, RIG_EOS);
    assert_int_equal(t->n_tokens, 5);
    assert_int_equal(t->finish, FINISH_STOP);
    t = with_token(&g, (struct ask){ .max_tokens = 9, .min_tokens = 4, .stop_id = 77 }, 77);
    assert_int_equal(t->n_tokens, 5);
    rig_close(&g);
}

static void a_stop_at_the_last_token_is_a_stop(void **state)
{
    const struct told *t;
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    t = with_token(&g, (struct ask){ .max_tokens = 1 }, RIG_EOS);
    assert_int_equal(t->finish, FINISH_STOP);
    t = with_token(&g, (struct ask){ .max_tokens = 1 }, RIG_TOKEN);
    assert_int_equal(t->finish, FINISH_LENGTH);
    assert_int_equal(t->last_finish, FINISH_LENGTH);
    rig_close(&g);
}

static void a_prompt_alone_gives_no_token(void **state)
{
    const struct plan *p;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, (struct ask){ .n = 20, .prompt_only = true, .prompt_logprobs = true });
    p = rig_step(&g);
    rig_expect(p, 0, id, 0, 20, false);
    assert_true(p->entries[0].prompt_logprobs);
    rig_commit(&g, p, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_tokens, 0);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    assert_true(rig_told(&g, id)->gone);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_can_never_fit_is_refused_with_both_numbers),
        cmocka_unit_test(a_prompt_needs_room_for_one_token),
        cmocka_unit_test(no_position_beyond_the_context_is_computed),
        cmocka_unit_test(a_request_may_fill_the_pool),
        cmocka_unit_test(a_full_queue_says_so),
        cmocka_unit_test(end_tokens),
        cmocka_unit_test(min_tokens_come_before_any_end),
        cmocka_unit_test(a_stop_at_the_last_token_is_a_stop),
        cmocka_unit_test(a_prompt_alone_gives_no_token),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
