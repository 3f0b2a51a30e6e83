/* The estimator against traces with jitter, outliers, drift and bad values. */
#include "cases.h"

#include "sched/latency.h"

static double relative(const struct latency *l, double chunk, double history, double truth)
{
    struct latency_step s = { 0 };

    latency_step_add(l, &s, chunk, history);
    return fabs(latency_predict(l, &s) / truth - 1);
}

static void profile(struct latency *l, const json_t *trace)
{
    const json_t *samples = json_object_get(trace, "profile"), *x;
    struct latency_sample s[LATENCY_MAX_SAMPLES];
    size_t n;

    json_array_foreach(samples, n, x)
        s[n] = (struct latency_sample){ (uint32_t)item(x, 0), (uint64_t)item(x, 1), item(x, 2) };
    latency_init(l, 0.5);
    latency_profile(l, s, (uint32_t)n);
}

static void check_grid(const struct latency *l, const json_t *grid, const struct stage_time *truth,
                       const json_t *check, const char *id)
{
    const json_t *p;
    double sum = 0;
    size_t i;

    json_array_foreach(grid, i, p)
        sum += relative(l, item(p, 0), item(p, 1),
                        num(check, "scale") * stage_time_of(truth, item(p, 0), item(p, 1)));
    if (sum / (double)i > num(check, "max_mean_err"))
        fail_msg("%s after %g steps: mean error %.4f, at most %.3f", id, num(check, "after"),
                 sum / (double)i, num(check, "max_mean_err"));
}

static void check_range(const json_t *range, const char *name, double v, const char *id)
{
    const json_t *r = json_object_get(range, name);

    if (r && !(v >= item(r, 0) && v <= item(r, 1)))
        fail_msg("%s: %s is %g, not within %g to %g", id, name, v, item(r, 0), item(r, 1));
}

static void run_trace(const json_t *t, const json_t *grid)
{
    const json_t *steps = json_object_get(t, "steps"), *checks = json_object_get(t, "checks"), *x;
    const json_t *range = json_object_get(t, "coef_range");
    struct stage_time truth = stage_of(json_object_get(t, "truth")), got = truth;
    size_t i, next = 0, last = (size_t)count(t, "visited_points_last");
    double visited = 0;
    struct latency l;

    profile(&l, t);
    json_array_foreach(steps, i, x)
    {
        struct latency_step s = { 0 };

        latency_step_add(&l, &s, item(x, 0), item(x, 1));
        latency_measured(&l, &s, item(x, 2));
        got = latency_coefficients(&l);
        assert_true(got.a >= 0 && got.b >= 0 && got.g >= 0 && got.c >= 0);
        if (i + last >= json_array_size(steps))
            visited += relative(&l, item(x, 0), item(x, 1),
                                stage_time_of(&truth, item(x, 0), item(x, 1)));
        for (; next < json_array_size(checks) &&
               count(json_array_get(checks, next), "after") == i + 1;
             next++)
            check_grid(&l, grid, &truth, json_array_get(checks, next), text(t, "id"));
    }
    assert_int_equal(next, json_array_size(checks));
    check_range(range, "a", got.a, text(t, "id"));
    check_range(range, "b", got.b, text(t, "id"));
    check_range(range, "g", got.g, text(t, "id"));
    check_range(range, "c", got.c, text(t, "id"));
    if (last)
        assert_true(visited / (double)last <= num(t, "visited_max_err"));
}

static void test_traces(void **state)
{
    json_t *root = cases_load("estimator_traces.json"), *t;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "traces"), i, t)
        run_trace(t, json_object_get(root, "grid"));
    assert_int_equal(i, 24);
    json_decref(root);
}

/* f = 2e-4 l^2 + 0.02 l + 3, whose first sample is thirty times too slow: a cold start. */
static void test_cold_first_sample(void **state)
{
    struct latency_sample s[32];
    struct latency clean, cold;

    (void)state;
    for (uint32_t i = 0; i < 32; i++) {
        double c = 512 - 16 * i;

        s[i] = (struct latency_sample){ (uint32_t)c, 0, 2e-4 * c * c + 0.02 * c + 3 };
    }
    latency_init(&clean, 1);
    latency_profile(&clean, s, 32);
    s[0].ms *= 30;
    latency_init(&cold, 1);
    latency_profile(&cold, s, 32);
    for (double ms = 5; ms < 60; ms += 5) {
        struct stage_time a = latency_coefficients(&clean), b = latency_coefficients(&cold);
        double x = stage_time_chunk(&a, NULL, 0, ms), y = stage_time_chunk(&b, NULL, 0, ms);

        assert_true(fabs(x / y - 1) < 0.05);
    }
}

/* Half the linear part's cost below 2,048 tokens is the reading of the weights. */
static void test_floor(void **state)
{
    struct latency_sample s[64];
    struct latency l;
    struct stage_time got;
    uint32_t n = 0;

    (void)state;
    for (uint32_t c = 128; c <= 32768; c *= 2)
        for (uint32_t h = 0; h <= 98304; h += 32768)
            s[n++] = (struct latency_sample){
                c, h, 1.5e-6 * c * (h + 0.5 * c) + 0.04 * fmax(c, 2048) + 1e-3 * h + 5
            };
    latency_init(&l, 0.5);
    latency_profile(&l, s, n);
    got = latency_coefficients(&l);
    assert_true(fabs(got.w / (0.04 * 2048) - 1) < 0.1);
    assert_true(fabs(got.b / 0.04 - 1) < 0.05);
}

/* Never measured is not converged; a steady stream is, after as many steps as are asked for. */
static void test_converges(void **state)
{
    struct stage_time truth = { .a = 1.5e-6, .b = 0.04, .g = 1e-3, .c = 25, .kappa = 0.5 };
    struct latency_step point = { 0 };
    struct latency l;

    (void)state;
    latency_init(&l, 0.5);
    latency_step_add(&l, &point, 8192, 65536);
    assert_false(latency_converged(&l, &point, 1));
    for (int i = 0; i < 100; i++) {
        struct latency_step s = { 0 };
        double c = 1024 * (1 + i % 7), h = 16384 * (i % 5);

        latency_step_add(&l, &s, c, h);
        latency_measured(&l, &s, stage_time_of(&truth, c, h) * (1 + 0.02 * (i % 3 - 1)));
    }
    assert_true(latency_converged(&l, &point, 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traces),
        cmocka_unit_test(test_cold_first_sample),
        cmocka_unit_test(test_floor),
        cmocka_unit_test(test_converges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
