/* When a plan is used, and when fixed chunks are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "sched/guard.h"

static const struct chunk_task task = { .time = { 1.589e-6, 0.042, 1.26e-3, 25, 0.5, 0 },
                                        .n_stages = 2,
                                        .tokens = 131072,
                                        .align = 128,
                                        .min_chunk = 128,
                                        .max_chunk = 32768 };

static void a_clear_gain_is_taken(void **state)
{
    static struct chunk_plan p;
    struct chunk_rule base = chunk_rule_fixed(32768, task.tokens, task.tokens);
    struct chunk_rule best = chunk_rule_fixed(chunk_best_static(&task), task.tokens, task.tokens);

    (void)state;
    chunk_plan(&p, &task);
    assert_int_equal(best.fixed, 8192);
    assert_true(guard_prefers(&task, &p.rule, &base));
    assert_true(guard_prefers(&task, &p.rule, &best));
    assert_false(guard_prefers(&task, &best, &p.rule));   /* a loss */
    assert_false(guard_prefers(&task, &p.rule, &p.rule)); /* no gain */
}

/* A plan that is only good if the fixed cost is as small as the model has it. */
static void a_risky_gain_is_not(void **state)
{
    struct chunk_task t = task;
    struct chunk_rule small = chunk_rule_fixed(1536, t.tokens, t.tokens);
    struct chunk_rule large = chunk_rule_fixed(6144, t.tokens, t.tokens);

    (void)state;
    t.time = (struct stage_time){ 1.4e-6, 0.05, 0, 10, 0.5, 0 };
    assert_true(chunk_cost(&t, &t.time, &small) * 1.01 < chunk_cost(&t, &t.time, &large));
    assert_false(guard_prefers(&t, &small, &large));
}

/* The share of n prompts that plans are wanted for, when they take `plan` and fixed chunks `fixed`. */
static double serve(struct guard *g, int n, double plan, double fixed)
{
    int planned = 0;

    for (int i = 0; i < n; i++) {
        bool want = guard_wants_plan(g, 100000);
        double noise = 0.02 * (i % 3 - 1);

        planned += want;
        guard_note(g, 100000, want, (want ? plan : fixed) + noise);
    }
    return planned / (double)n;
}

static void plans_that_turn_out_slower_stop(void **state)
{
    struct guard g = { 0 };

    (void)state;
    assert_true(serve(&g, 400, 1.3, 1.1) < 0.5);
    assert_true(serve(&g, 160, 1.3, 1.1) < 0.1);
    assert_true(guard_wants_plan(&g, 1000)); /* of other lengths nothing is known */
}

static void plans_that_are_faster_go_on(void **state)
{
    struct guard g = { 0 };

    (void)state;
    assert_true(serve(&g, 256, 1.1, 1.2) > 0.9);
    assert_true(serve(&g, 160, 1.1, 1.2) > 0.999); /* enough is known */
}

static void strange_figures_are_left_out(void **state)
{
    struct guard g = { 0 };

    (void)state;
    for (int i = 0; i < 100; i++) {
        guard_note(&g, 5000, true, 1.0 / 0.0);
        guard_note(&g, 5000, true, -1);
        guard_note(&g, 5000, false, 0.0 / 0.0);
        guard_note(&g, 5000, false, 0);
    }
    assert_true(guard_wants_plan(&g, 5000));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_clear_gain_is_taken),
        cmocka_unit_test(a_risky_gain_is_not),
        cmocka_unit_test(plans_that_turn_out_slower_stop),
        cmocka_unit_test(plans_that_are_faster_go_on),
        cmocka_unit_test(strange_figures_are_left_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
