/* Outputs that begin on one instance and go on on another. */
#include <string.h>

#include "rig.h"

static struct ask given(uint32_t n, int32_t first)
{
    return (struct ask){
        .n = n, .first = first, .max_tokens = 20, .role = SCHED_CONSUME, .give_back = true
    };
}

/* Both prompts are here; nothing is computed yet. */
static void pull_both(struct rig *g)
{
    struct sched_pull o;
    int n = 0;

    assert_null(rig_step(g));
    for (; sched_next_pull(g->s, &o); n++)
        sched_pull_done(g->s, o.id, SCHED_PULL_OK, 0);
    assert_int_equal(n, 2);
}

/* Both fit at first; when both grow the younger ends, and is not computed again here. */
static void without_blocks_it_is_given_back(void **state)
{
    struct sched_config c = rig_config();
    struct rig g;
    sched_id old, young;

    (void)state;
    c.n_blocks = 6;
    c.prefix_caching = false;
    rig_open(&g, &c);
    old = rig_add(&g, given(30, 0));
    young = rig_add(&g, given(30, 100));
    pull_both(&g);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, old)->finish, FINISH_LENGTH);
    assert_int_equal(rig_told(&g, old)->n_tokens, 20);
    assert_int_equal(rig_told(&g, young)->finish, FINISH_RECOMPUTE);
    assert_in_range(rig_told(&g, young)->n_tokens, 1, 19);
    assert_true(rig_told(&g, young)->gone);
    assert_int_equal(rig_stats(&g).given_back, 1);
    assert_int_equal(rig_stats(&g).preemptions, 0);
    rig_close(&g);
}

/* Behind the output so far: positions go on, max_tokens counts it, and the KV of all of it is pulled. */
static void it_goes_on_where_it_was(void **state)
{
    struct ask a = given(45, 0);
    const struct plan *p;
    struct sched_pull o;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    a.n_output = 5;
    a.first_out = RIG_TOKEN + 1;
    id = rig_add(&g, a);
    rig_step(&g);
    o = rig_pull(&g);
    assert_int_equal(o.first_token, 0);
    assert_int_equal(o.n_tokens, 45);
    assert_int_equal(rig_told(&g, id)->n_tokens, 6);
    assert_int_equal(rig_told(&g, id)->token[5], RIG_TOKEN + 1);
    sched_pull_done(g.s, id, SCHED_PULL_OK, 0);
    p = rig_step(&g);
    rig_expect(p, 0, id, 45, 1, true);
    assert_int_equal(p->entries[0].out_index, 6);
    assert_int_equal(p->entries[0].n_prompt, 40);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_tokens, 20);
    assert_int_equal(rig_told(&g, id)->finish, FINISH_LENGTH);
    rig_close(&g);
}

/* The prefill of it chooses one token, at its place, and holds the blocks of all. */
static void the_prefill_goes_on_too(void **state)
{
    struct ask a = { .n = 45, .max_tokens = 1, .n_output = 5, .role = SCHED_PRODUCE };
    const uint32_t *blocks;
    const struct plan *p;
    uint32_t n_blocks, n_tokens;
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    id = rig_add(&g, a);
    p = rig_step(&g);
    rig_expect(p, 0, id, 0, 45, true);
    assert_int_equal(p->entries[0].out_index, 5);
    assert_int_equal(p->entries[0].n_prompt, 40);
    rig_commit(&g, p, RIG_TOKEN);
    assert_int_equal(rig_told(&g, id)->n_tokens, 6);
    assert_true(rig_told(&g, id)->held);
    assert_int_equal(sched_held(g.s, id, &blocks, &n_blocks, &n_tokens), 0);
    assert_int_equal(n_tokens, 45);
    assert_int_equal(n_blocks, 3);
    sched_release(g.s, id, 0);
    rig_close(&g);
}

static void bad_outputs_are_refused(void **state)
{
    struct ask a = given(30, 0);
    struct err e = { "" };
    struct rig g;
    sched_id id;

    (void)state;
    rig_open(&g, NULL);
    a.n_output = 30;
    assert_int_equal(rig_try(&g, a, &id, &e), ERR_INVAL);
    a.n_output = 20;
    assert_int_equal(rig_try(&g, a, &id, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "20 output tokens"));
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_blocks_it_is_given_back),
        cmocka_unit_test(it_goes_on_where_it_was),
        cmocka_unit_test(the_prefill_goes_on_too),
        cmocka_unit_test(bad_outputs_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
