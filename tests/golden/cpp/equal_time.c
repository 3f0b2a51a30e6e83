/* The reference policy against its vectors, exactly. */
#include "cases.h"

#include "sched/equal_time.h"

static json_t *root;

static int open_cases(void **state)
{
    (void)state;
    root = cases_load("predictor_vectors.json");
    return 0;
}

static int close_cases(void **state)
{
    (void)state;
    json_decref(root);
    return 0;
}

static struct equal_time policy_of(const json_t *c)
{
    const char *model = text(c, "model");

    return (struct equal_time){
        .model = strcmp(model, "startup") == 0   ? EQUAL_TIME_STARTUP
                 : strcmp(model, "history") == 0 ? EQUAL_TIME_HISTORY
                                                 : EQUAL_TIME_NONE,
        .a = num(c, "a"),
        .b = num(c, "b"),
        .c = num(c, "c"),
        .target = num(c, "target"),
        .base = (uint32_t)count(c, "base"),
        .page = (uint32_t)count(c, "page"),
        .smooth = num(c, "smooth"),
        .min_chunk = (uint32_t)count(c, "min_chunk"),
    };
}

static void check_chunks(const struct equal_time *m, const json_t *cases, const char *id)
{
    const json_t *x;
    size_t i;

    json_array_foreach(cases, i, x)
    {
        uint32_t got = equal_time_chunk(m, count(x, "history"), 0);

        if (got != count(x, "chunk"))
            fail_msg("%s behind %g tokens: %u, expected %g", id, num(x, "history"), got,
                     num(x, "chunk"));
    }
}

static void near(const char *id, const char *what, double got, double want, double by)
{
    if (!(fabs(got - want) <= by))
        fail_msg("%s: %s is %.12g, expected %.12g", id, what, got, want);
}

static void test_lengths(void **state)
{
    json_t *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "profile_lengths"), i, c)
    {
        const json_t *want = json_object_get(c, "lengths");
        uint32_t got[64], n = equal_time_lengths((uint32_t)count(c, "base"), got);

        assert_int_equal(n, json_array_size(want));
        for (uint32_t j = 0; j < n; j++)
            assert_int_equal(got[j], (uint32_t)item(want, j));
    }
    assert_int_equal(i, 12);
}

static size_t numbers(double *out, const json_t *a)
{
    size_t n = json_array_size(a);

    assert_true(n <= EQUAL_TIME_MAX_SAMPLES);
    for (size_t i = 0; i < n; i++)
        out[i] = item(a, i);
    return n;
}

static void test_fit(void **state)
{
    json_t *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "fit"), i, c)
    {
        double length[EQUAL_TIME_MAX_SAMPLES], ms[EQUAL_TIME_MAX_SAMPLES], most = 0, tol, base;
        size_t n = numbers(length, json_object_get(c, "lengths"));
        const json_t *predict = json_object_get(c, "predict");
        struct equal_time m = policy_of(predict ? predict : c);
        const char *id = text(c, "id");

        numbers(ms, json_object_get(c, "ms"));
        m.base = (uint32_t)count(c, "base");
        assert_int_equal(equal_time_fit(&m, length, ms, (uint32_t)n),
                         json_is_true(json_object_get(c, "ok")));
        if (!json_is_true(json_object_get(c, "ok")) || json_object_get(c, "note"))
            continue;
        for (size_t j = 0; j < n; j++)
            most = fmax(most, ms[j]);
        tol = num(c, "rel_tol") > 0 ? num(c, "rel_tol") : 1e-6;
        base = m.base;
        near(id, "a", m.a, num(c, "a"), tol * most / (base * base));
        near(id, "b", m.b, num(c, "b"), tol * most / base);
        near(id, "c", m.c, num(c, "c"), tol * most);
        near(id, "target", m.target, num(c, "target"), tol * num(c, "target"));
        check_chunks(&m, json_object_get(predict, "cases"), id);
    }
    assert_int_equal(i, 56);
}

static void test_predict(void **state)
{
    json_t *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "predict"), i, c)
    {
        struct equal_time m = policy_of(c);
        double ms = equal_time_of(&m, num(c, "time_of"), num(c, "history"));

        if (equal_time_chunk(&m, count(c, "history"), num(c, "budget")) != count(c, "chunk"))
            fail_msg("%s: expected %g", text(c, "id"), num(c, "chunk"));
        near(text(c, "id"), "time", ms, num(c, "time_ms"), 1e-9 * fabs(num(c, "time_ms")));
    }
    assert_int_equal(i, 160);
}

static void feed(struct equal_time *m, const json_t *step)
{
    const json_t *batch = json_object_get(step, "batch"), *x;
    uint32_t chunk[64];
    uint64_t history[64];
    size_t n;

    json_array_foreach(batch, n, x)
    {
        chunk[n] = (uint32_t)item(x, 0);
        history[n] = (uint64_t)item(x, 1);
    }
    equal_time_measured(m, chunk, history, (uint32_t)n, num(step, "ms"));
}

static void test_calibrate(void **state)
{
    json_t *c, *x;
    size_t i, k;

    (void)state;
    json_array_foreach(json_object_get(root, "calibrate"), i, c)
    {
        double length[64], ms[EQUAL_TIME_MAX_SAMPLES];
        uint32_t lengths[64], n;
        struct equal_time m = policy_of(c);
        const json_t *end = json_object_get(c, "final");
        const json_t *model = json_object_get(end, "history_model");

        m.max_fit = (uint32_t)count(c, "max_fit");
        n = equal_time_lengths(m.base, lengths);
        for (uint32_t j = 0; j < n; j++)
            length[j] = lengths[j];
        numbers(ms, json_object_get(c, "profile_ms"));
        assert_true(equal_time_fit(&m, length, ms, n));
        json_array_foreach(json_object_get(c, "steps"), k, x)
        {
            feed(&m, x);
            near(text(c, "id"), "target", m.target, num(x, "target_after"),
                 1e-6 * num(x, "target_after"));
            assert_int_equal(m.frozen, json_is_true(json_object_get(x, "frozen")));
            assert_int_equal(m.n_rows + m.frozen, count(x, "rows"));
        }
        if (json_is_array(model) && num(end, "rank") == 3) {
            near(text(c, "id"), "a", m.a, item(model, 0), 1e-5 * fabs(item(model, 0)));
            near(text(c, "id"), "b", m.b, item(model, 1), 1e-5 * fabs(item(model, 1)));
            near(text(c, "id"), "c", m.c, item(model, 2), 1e-5 * fabs(item(model, 2)));
        }
        check_chunks(&m, json_object_get(c, "predict"), text(c, "id"));
    }
    assert_int_equal(i, 40);
}

static uint32_t requests(struct equal_time_request *out, const json_t *a)
{
    const json_t *x;
    size_t n;

    json_array_foreach(a, n, x)
        out[n] = (struct equal_time_request){ count(x, "prompt"), count(x, "total"),
                                              count(x, "done"), count(x, "hit") };
    return (uint32_t)n;
}

static void test_split(void **state)
{
    json_t *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "step"), i, c)
    {
        const json_t *want = json_object_get(c, "expect");
        struct equal_time m = policy_of(c);
        struct equal_time_step s = { count(c, "token_budget"), count(c, "max_model_len"),
                                     count(c, "long_prefill_threshold"),
                                     json_is_true(json_object_get(c, "timing_phase")) };
        struct equal_time_request running[64], waiting[64];
        uint32_t nr = requests(running, json_object_get(c, "running")), seen = 0;
        uint32_t nw = requests(waiting, json_object_get(c, "waiting"));
        uint64_t tokens[128];

        equal_time_split(&m, &s, running, nr, waiting, nw, tokens);
        for (uint32_t k = 0; k < nr + nw; k++) {
            const json_t *q = k < nr ? json_array_get(json_object_get(c, "running"), k)
                                     : json_array_get(json_object_get(c, "waiting"), k - nr);
            const json_t *w = json_array_get(want, seen);

            if (!tokens[k])
                continue;
            assert_string_equal(text(q, "id"), text(w, "id"));
            assert_int_equal(tokens[k], count(w, "tokens"));
            seen++;
        }
        assert_int_equal(seen, json_array_size(want));
    }
    assert_int_equal(i, 90);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lengths), cmocka_unit_test(test_fit),
        cmocka_unit_test(test_predict), cmocka_unit_test(test_calibrate),
        cmocka_unit_test(test_split),
    };

    return cmocka_run_group_tests(tests, open_cases, close_cases);
}
