/* Prefix caching as a client sees it: what is found, what is counted, what isolates. */
#include "rig.h"

static uint32_t cached_of(struct rig *g, struct ask a)
{
    sched_id id = rig_add(g, a);

    rig_run(g, RIG_TOKEN);
    assert_true(rig_told(g, id)->gone);
    return rig_told(g, id)->n_cached;
}

/* The last prompt token is always computed, so a prompt of whole blocks loses one of them. */
static void a_repeated_prompt_hits_all_but_its_last_token(void **state)
{
    static const struct {
        uint32_t n, cached;
    } cases[] = { { 1, 0 },   { 15, 0 },  { 16, 0 },  { 17, 16 }, { 32, 16 },
                  { 33, 32 }, { 40, 32 }, { 64, 48 }, { 65, 64 } };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig g;

        rig_open(&g, NULL);
        assert_int_equal(cached_of(&g, (struct ask){ .n = cases[i].n }), 0);
        assert_int_equal(cached_of(&g, (struct ask){ .n = cases[i].n }), cases[i].cached);
        assert_int_equal(cached_of(&g, (struct ask){ .n = cases[i].n }), cases[i].cached);
        assert_int_equal(rig_stats(&g).prefix_queries, 3 * cases[i].n);
        assert_int_equal(rig_stats(&g).prefix_hits, 2 * cases[i].cached);
        rig_close(&g);
    }
}

static void the_hit_is_not_computed_again(void **state)
{
    struct rig g;
    const struct plan *p;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    cached_of(&g, (struct ask){ .n = 64 });
    id = rig_add(&g, (struct ask){ .n = 64, .max_tokens = 1 });
    p = rig_step(&g);
    rig_expect(p, 0, id, 48, 16, true);
    rig_commit(&g, p, RIG_TOKEN);
    rig_close(&g);
}

static void a_salt_isolates(void **state)
{
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 64, .salt = "salt:a" }), 0);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 64, .salt = "salt:a" }), 48);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 64, .salt = "salt:b" }), 0);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 64 }), 0);
    rig_close(&g);
}

/* A conversation goes on: the outputs of the first turn are found too. */
static void outputs_are_cached(void **state)
{
    struct rig g;

    (void)state;
    rig_open(&g, NULL);
    sched_id a = rig_add(&g, (struct ask){ .n = 10, .max_tokens = 30 });

    for (int32_t t = 10; t < 40; t++) { /* the outputs continue the prompt's count */
        const struct plan *p = rig_step(&g);

        rig_commit(&g, p, t);
    }
    assert_true(rig_told(&g, a)->gone);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 60 }), 32); /* 39 computed: 2 blocks */
    rig_close(&g);
}

static void a_block_is_found_only_when_its_step_is_done(void **state)
{
    struct sched_config c = rig_config();
    const struct plan *p, *q;
    struct rig g;
    sched_id a, b;

    (void)state;
    c.max_inflight = 2;
    c.max_batched_tokens = 32;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 48, .max_tokens = 1 });
    p = rig_step(&g);
    q = rig_step(&g);
    rig_commit(&g, p, RIG_TOKEN); /* 32 tokens are done, 16 are in flight */
    b = rig_add(&g, (struct ask){ .n = 100, .max_tokens = 1 });
    p = rig_step(&g);
    rig_expect(p, 0, b, 32, 32, false);
    rig_commit(&g, q, RIG_TOKEN);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_true(rig_told(&g, a)->gone);
    rig_close(&g);
}

static void off_means_off(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;

    (void)state;
    c.prefix_caching = false;
    rig_open(&g, &c);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 64 }), 0);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 64 }), 0);
    assert_int_equal(rig_stats(&g).prefix_queries, 0);
    rig_close(&g);
}

/* Log-probabilities of the prompt need every position's logits. */
static void prompt_logprobs_compute_the_whole_prompt(void **state)
{
    struct rig g;
    const struct plan *p;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    cached_of(&g, (struct ask){ .n = 40 });
    id = rig_add(&g, (struct ask){ .n = 40, .max_tokens = 2, .prompt_logprobs = true });
    p = rig_step(&g);
    rig_expect(p, 0, id, 0, 40, true);
    assert_true(p->entries[0].prompt_logprobs);
    rig_commit(&g, p, RIG_TOKEN);
    p = rig_step(&g);
    assert_false(p->entries[0].prompt_logprobs);
    rig_commit(&g, p, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_cached, 0);
    assert_int_equal(rig_stats(&g).prefix_queries, 40);
    rig_close(&g);
}

static void churn_evicts_and_a_taken_block_loses_its_key(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;

    (void)state;
    c.n_blocks = 5;
    rig_open(&g, &c);
    cached_of(&g, (struct ask){ .n = 40, .max_tokens = 1 });
    cached_of(&g, (struct ask){ .n = 64, .first = 100, .max_tokens = 1 });
    assert_int_equal(cached_of(&g, (struct ask){ .n = 40, .max_tokens = 1 }), 16);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 40, .max_tokens = 1 }), 32);
    rig_close(&g);
}

static void reset_forgets_what_is_not_in_use(void **state)
{
    struct rig g;
    sched_id a;

    (void)state;
    rig_open(&g, NULL);
    cached_of(&g, (struct ask){ .n = 40 });
    assert_int_equal(sched_reset_prefix_cache(g.s), 0);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 40 }), 0);
    a = rig_add(&g, (struct ask){ .n = 40, .first = 100 });
    rig_once(&g);
    assert_int_equal(sched_reset_prefix_cache(g.s), ERR_BUSY);
    rig_run(&g, RIG_TOKEN);
    assert_true(rig_told(&g, a)->gone);
    assert_int_equal(cached_of(&g, (struct ask){ .n = 40 }), 0);
    assert_int_equal(sched_reset_prefix_cache(g.s), 0);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_repeated_prompt_hits_all_but_its_last_token),
        cmocka_unit_test(the_hit_is_not_computed_again),
        cmocka_unit_test(a_salt_isolates),
        cmocka_unit_test(outputs_are_cached),
        cmocka_unit_test(a_block_is_found_only_when_its_step_is_done),
        cmocka_unit_test(off_means_off),
        cmocka_unit_test(prompt_logprobs_compute_the_whole_prompt),
        cmocka_unit_test(churn_evicts_and_a_taken_block_loses_its_key),
        cmocka_unit_test(reset_forgets_what_is_not_in_use),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
