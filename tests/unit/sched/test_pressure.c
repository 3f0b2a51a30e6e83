/* Too few blocks: who waits, who yields, and that somebody always gets on. */
#include <string.h>

#include "rig.h"

static struct sched_config small_pool(uint32_t n_blocks)
{
    struct sched_config c = rig_config();

    c.n_blocks = n_blocks;
    return c;
}

/* Six requests of 4 to 7 blocks each in a pool of 12. */
static void everyone_finishes_and_no_step_is_lost(void **state)
{
    struct sched_config c = small_pool(12);
    struct rig g;
    sched_id id[6];

    (void)state;
    rig_open(&g, &c);
    for (int i = 0; i < 6; i++)
        id[i] = rig_add(&g, (struct ask){ .n = 40, .first = 1000 * i, .max_tokens = 60 });
    assert_in_range(rig_run(&g, RIG_TOKEN), 60, 6 * 60);
    for (int i = 0; i < 6; i++) {
        assert_true(rig_told(&g, id[i])->gone);
        assert_int_equal(rig_told(&g, id[i])->n_tokens, 60);
        assert_int_equal(rig_told(&g, id[i])->finish, FINISH_LENGTH);
    }
    rig_close(&g);
}

/* Both fit at first; when both grow, the younger gives way, keeps its tokens and comes back. */
static void the_younger_yields_and_resumes(void **state)
{
    struct sched_config c = small_pool(5);
    const struct plan *p;
    struct rig g;
    sched_id old, young;

    (void)state;
    c.prefix_caching = false;
    rig_open(&g, &c);
    old = rig_add(&g, (struct ask){ .n = 30, .max_tokens = 20 });
    young = rig_add(&g, (struct ask){ .n = 30, .first = 100, .max_tokens = 20 });
    for (int i = 0; i < 3; i++)
        assert_int_equal(rig_once(&g), 2); /* 32 tokens each: four blocks, one is left */
    p = rig_step(&g);
    assert_int_equal(p->n_entries, 1);
    rig_expect(p, 0, old, 32, 1, true);
    rig_commit(&g, p, RIG_TOKEN);
    assert_string_equal(rig_state(&g, old), "RUN");
    assert_int_equal(rig_told(&g, young)->n_tokens, 3);
    while (strcmp(rig_state(&g, old), "") != 0)
        rig_once(&g);
    assert_int_equal(rig_stats(&g).preemptions, 1);
    assert_string_equal(rig_state(&g, young), "WAIT");
    p = rig_step(&g);
    rig_expect(p, 0, young, 0, 33, true);
    assert_int_equal(p->entries[0].out_index, 3);
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, young)->n_tokens, 20);
    assert_int_equal(rig_told(&g, young)->n_preempted, 1);
    assert_int_equal(rig_told(&g, old)->n_preempted, 0);
    rig_close(&g);
}

/* A younger one whose blocks are read while it is computed: the older waits until they are free. */
static void one_that_is_pinned_does_not_yield(void **state)
{
    struct sched_config c = small_pool(11);
    struct rig g;
    sched_id old, young;

    (void)state;
    c.prefix_caching = false;
    c.max_batched_tokens = 3;
    rig_open(&g, &c);
    old = rig_add(&g, (struct ask){ .n = 16, .max_tokens = 60 });
    while (rig_told(&g, old)->n_tokens == 0)
        rig_once(&g);
    young = rig_add(&g,
                    (struct ask){ .n = 128, .first = 100, .role = SCHED_PRODUCE, .pinned = true });
    rig_run(&g, RIG_TOKEN);
    assert_string_equal(rig_state(&g, young), "HELD");
    assert_string_equal(rig_state(&g, old), "RUN");
    assert_int_equal(rig_told(&g, old)->n_tokens, 33); /* its fourth block was the younger one's */
    assert_int_equal(rig_stats(&g).preemptions, 0);
    assert_int_equal(sched_release(g.s, young, 0), 0);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, old)->n_tokens, 60);
    rig_close(&g);
}

/* With priorities it is the least urgent that yields, not the youngest. */
static void the_less_urgent_yields(void **state)
{
    struct sched_config c = small_pool(5);
    struct rig g;
    sched_id a, b;

    (void)state;
    c.priority = true;
    rig_open(&g, &c);
    a = rig_add(&g, (struct ask){ .n = 30, .max_tokens = 20, .priority = 9 });
    b = rig_add(&g, (struct ask){ .n = 30, .first = 100, .max_tokens = 20, .priority = 1 });
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, a)->n_preempted, 1);
    assert_int_equal(rig_told(&g, b)->n_preempted, 0);
    rig_close(&g);
}

/* Hits are counted when a request comes in, not when it comes back. */
static void coming_back_is_no_hit(void **state)
{
    struct sched_config c = small_pool(5);
    struct rig g;
    sched_id young;

    (void)state;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 30, .max_tokens = 20 });
    young = rig_add(&g, (struct ask){ .n = 30, .first = 100, .max_tokens = 20 });
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_stats(&g).preemptions, 1);
    assert_int_equal(rig_stats(&g).prefix_queries, 60);
    assert_int_equal(rig_stats(&g).prefix_hits, 0);
    assert_int_equal(rig_told(&g, young)->n_cached, 0);
    assert_int_equal(rig_stats(&g).prompt_tokens, 60);
    assert_int_equal(rig_stats(&g).generation_tokens, 40);
    rig_close(&g);
}

/* Blocks for its prompt are there, but the one that runs will need the last. */
static void a_newcomer_leaves_room_for_those_who_run(void **state)
{
    struct sched_config c = small_pool(4);
    struct rig g;
    sched_id b;

    (void)state;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 32, .max_tokens = 10 });
    rig_once(&g);
    b = rig_add(&g, (struct ask){ .n = 32, .first = 100, .max_tokens = 2 });
    for (int i = 0; i < 8; i++)
        assert_int_equal(rig_once(&g), 1);
    assert_string_equal(rig_state(&g, b), "WAIT");
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_stats(&g).preemptions, 0);
    rig_close(&g);
}

/* A request whose last block is there already needs no room beside it. */
static void what_cannot_grow_any_more_needs_no_room(void **state)
{
    struct sched_config c = small_pool(4);
    struct rig g;

    (void)state;
    rig_open(&g, &c);
    rig_add(&g, (struct ask){ .n = 24, .max_tokens = 8 });
    rig_once(&g);
    rig_add(&g, (struct ask){ .n = 24, .first = 100, .max_tokens = 8 });
    assert_int_equal(rig_once(&g), 2);
    rig_run(&g, RIG_TOKEN);
    rig_close(&g);
}

/* Two plans are out, one request in each. When the older needs a block, the younger's are not to
 * be had before its plan is back. */
static void nobody_in_flight_is_preempted(void **state)
{
    struct sched_config c = small_pool(6);
    const struct plan *p, *q;
    struct rig g;
    sched_id old, young;

    (void)state;
    c.max_inflight = 2;
    c.max_batched_tokens = 36;
    c.prefix_caching = false;
    rig_open(&g, &c);
    old = rig_add(&g, (struct ask){ .n = 36, .max_tokens = 30 });
    young = rig_add(&g, (struct ask){ .n = 31, .first = 100, .max_tokens = 30 });
    p = rig_step(&g);
    q = rig_step(&g);
    for (uint32_t i = 0; i < 12; i++) { /* the younger takes the last block at position 32 */
        rig_commit(&g, p, RIG_TOKEN);
        rig_expect(p = rig_step(&g), 0, old, 36 + i, 1, true);
        rig_commit(&g, q, RIG_TOKEN);
        rig_expect(q = rig_step(&g), 0, young, 31 + i, 1, true);
    }
    rig_commit(&g, p, RIG_TOKEN);
    assert_null(rig_step(&g));
    assert_string_equal(rig_state(&g, old), "RUN");
    assert_int_equal(rig_stats(&g).preemptions, 0);
    rig_commit(&g, q, RIG_TOKEN);
    p = rig_step(&g);
    rig_expect(p, 0, old, 48, 1, true);
    assert_string_equal(rig_state(&g, young), "WAIT");
    rig_commit(&g, p, RIG_TOKEN);
    rig_run(&g, RIG_TOKEN);
    assert_int_equal(rig_told(&g, young)->n_tokens, 30);
    rig_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_finishes_and_no_step_is_lost),
        cmocka_unit_test(the_younger_yields_and_resumes),
        cmocka_unit_test(the_less_urgent_yields),
        cmocka_unit_test(coming_back_is_no_hit),
        cmocka_unit_test(a_newcomer_leaves_room_for_those_who_run),
        cmocka_unit_test(what_cannot_grow_any_more_needs_no_room),
        cmocka_unit_test(nobody_in_flight_is_preempted),
        cmocka_unit_test(one_that_is_pinned_does_not_yield),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
