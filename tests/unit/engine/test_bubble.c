#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/bubble.h"

static void add(struct bubble *b, double *wait, double s0, double e0, double s1, double e1)
{
    struct engine_step_times t = { .n_stages = 2, .stage = { { s0, e0 }, { s1, e1 } } };

    bubble_add(b, wait, &t);
}

static void expect(const double *wait, double first, double second)
{
    assert_true(fabs(wait[0] - first) < 1e-9);
    assert_true(fabs(wait[1] - second) < 1e-9);
}

/* The second stage waits for the first chunk; then both are busy; at the end the first has nothing more. */
static void a_full_pipeline(void **state)
{
    struct bubble b = { 0 };
    double wait[2] = { 0 };

    (void)state;
    add(&b, wait, 100, 101, 101, 102);
    expect(wait, 0, 1);
    add(&b, wait, 101, 102, 102, 103);
    add(&b, wait, 102, 103, 103, 104);
    expect(wait, 0, 1);
}

/* From the end of the one to the beginning of the other there was no work: only what the first stage
 * missed at the end of the one, and the second at the beginning of the other, counts. */
static void an_empty_pipeline_waits_for_nobody(void **state)
{
    struct bubble b = { 0 };
    double wait[2] = { 0 };

    (void)state;
    add(&b, wait, 100, 101, 101, 102);
    add(&b, wait, 500, 501, 501, 502);
    expect(wait, 1, 2);
}

/* One request's decode: one stage works, the other waits, in turn. */
static void stages_that_take_turns(void **state)
{
    struct bubble b = { 0 };
    double wait[2] = { 0 };

    (void)state;
    for (int i = 0; i < 4; i++)
        add(&b, wait, 10 + 2 * i, 11 + 2 * i, 11 + 2 * i, 12 + 2 * i);
    expect(wait, 3, 4);
}

/* A slow second stage holds up the first one only in what it is not given, not in what it computes. */
static void a_slow_stage(void **state)
{
    struct bubble b = { 0 };
    double wait[2] = { 0 };

    (void)state;
    add(&b, wait, 0, 1, 1, 4);
    add(&b, wait, 1, 2, 4, 7);
    add(&b, wait, 4, 5, 7, 10);
    expect(wait, 2, 1);
}

static void clocks_that_differ_a_little(void **state)
{
    struct bubble b = { 0 };
    double wait[2] = { 0 };

    (void)state;
    add(&b, wait, 0, 1, 0.9, 2);
    add(&b, wait, 1, 2, 1.9, 3); /* before it had ended, by rank 0's clock */
    assert_true(wait[0] >= 0 && wait[1] >= 0 && wait[1] < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_pipeline),
        cmocka_unit_test(an_empty_pipeline_waits_for_nobody),
        cmocka_unit_test(stages_that_take_turns),
        cmocka_unit_test(a_slow_stage),
        cmocka_unit_test(clocks_that_differ_a_little),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
