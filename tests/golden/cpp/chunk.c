/* Flow lines and plans against the reference cases. */
#include "cases.h"

#include "sched/chunk.h"

static void test_flow_line(void **state)
{
    json_t *root = cases_load("planner_cases.json"), *c, *v;
    size_t i, k;

    (void)state;
    json_array_foreach(json_object_get(root, "flowline"), i, c)
    {
        struct stage_time stages[FLOW_MAX_STAGES];
        uint32_t chunks[256];
        struct flow w = { .stages = stages,
                          .link = { num(c, "lat_ms"), num(c, "ms_per_token") },
                          .window = (uint32_t)count(c, "window"),
                          .dispatch_ms = num(c, "dispatch_ms") };
        double got;

        json_array_foreach(json_object_get(c, "stages"), k, v) stages[w.n_stages++] = stage_of(v);
        json_array_foreach(json_object_get(c, "chunks"), k, v)
            chunks[k] = (uint32_t)json_integer_value(v);
        got = flow_makespan(&w, chunks, (uint32_t)k, count(c, "history"), NULL, NULL);
        if (fabs(got - num(c, "makespan_ms")) > 1e-9 * got)
            fail_msg("flow line %zu: %.9f ms, expected %.9f", i, got, num(c, "makespan_ms"));
    }
    assert_int_equal(i, 60);
    json_decref(root);
}

static struct chunk_task task_of(const json_t *c)
{
    return (struct chunk_task){ .time = stage_of(c),
                                .link = { num(c, "lat_ms"), num(c, "ms_per_token") },
                                .n_stages = (uint32_t)count(c, "stages"),
                                .tokens = count(c, "tokens"),
                                .history = count(c, "history"),
                                .align = (uint32_t)count(c, "align"),
                                .min_chunk = (uint32_t)count(c, "min_chunk"),
                                .max_chunk = (uint32_t)count(c, "max_chunk") };
}

/* The chunks cover the prompt within the limits, and take what the plan says. */
static void check_plan(const struct chunk_plan *p, const struct chunk_task *t)
{
    struct stage_time stages[FLOW_MAX_STAGES];
    struct flow w = { .stages = stages, .n_stages = t->n_stages, .link = t->link };
    uint64_t sum = t->history;

    for (uint32_t k = 0; k < p->n; k++) {
        sum += p->chunk[k];
        assert_true(!t->max_chunk || p->chunk[k] <= t->max_chunk);
        if (k + 1 < p->n)
            assert_true(p->chunk[k] % t->align == 0 && p->chunk[k] >= t->min_chunk);
    }
    assert_int_equal(sum, t->tokens);
    for (uint32_t s = 0; s < t->n_stages; s++) {
        double r = t->ratio ? t->ratio[s] : 1;

        stages[s] = t->time;
        stages[s].a *= r;
        stages[s].b *= r;
        stages[s].g *= r;
        stages[s].c *= r;
        stages[s].w *= r;
    }
    assert_true(fabs(flow_makespan(&w, p->chunk, p->n, t->history, NULL, NULL) - p->makespan_ms) <
                1e-6 * p->makespan_ms);
}

static struct chunk_plan plan;

static void test_identical_stages(void **state)
{
    json_t *root = cases_load("planner_cases.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "identical"), i, c)
    {
        struct chunk_task t = task_of(c);
        double most = num(c, "opt_ms") * (1 + num(c, "tol"));

        chunk_plan(&plan, &t);
        check_plan(&plan, &t);
        if (plan.makespan_ms > most)
            fail_msg("case %zu (%s): %.3f ms in %u chunks, at most %.3f", i, text(c, "tag"),
                     plan.makespan_ms, plan.n, most);
        assert_true(chunk_bound(&t) <= num(c, "opt_ms"));
    }
    assert_int_equal(i, 156);
    json_decref(root);
}

static void test_proportional_stages(void **state)
{
    json_t *root = cases_load("planner_cases.json"), *c, *v;
    size_t i, k;

    (void)state;
    json_array_foreach(json_object_get(root, "proportional"), i, c)
    {
        struct chunk_task t = task_of(c);
        double ratio[FLOW_MAX_STAGES], most = num(c, "best_known_ms") * (1 + num(c, "tol_ramp"));

        json_array_foreach(json_object_get(c, "ratio"), k, v) ratio[k] = json_number_value(v);
        t.ratio = ratio;
        t.n_stages = (uint32_t)k;
        chunk_plan(&plan, &t);
        check_plan(&plan, &t);
        if (plan.makespan_ms > most)
            fail_msg("case %zu (%s, %s): %.3f ms in %u chunks, at most %.3f", i, text(c, "tag"),
                     text(c, "layout"), plan.makespan_ms, plan.n, most);
    }
    assert_int_equal(i, 48);
    json_decref(root);
}

/* The published cases: what fixed chunks take, and that the plan is within 0.1 % of the best known. */
static void test_published(void **state)
{
    json_t *root = cases_load("planner_cases.json"), *c;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "headline"), i, c)
    {
        struct chunk_task t = { .time = stage_of(json_object_get(c, "coef")),
                                .n_stages = (uint32_t)count(c, "stages"),
                                .tokens = count(c, "tokens"),
                                .align = 128,
                                .min_chunk = 128 };

        chunk_plan(&plan, &t);
        check_plan(&plan, &t);
        assert_true(plan.makespan_ms <= 1.001 * num(c, "opt_ms"));
        chunk_plan_static(&plan, &t, 32768);
        assert_true(fabs(plan.makespan_ms - num(c, "model_static32k_ms")) < 1);
    }
    assert_int_equal(i, 6);
    json_decref(root);
}

/* Nothing to do, one token, limits that exclude each other, chunks that would be too many. */
static void test_edges(void **state)
{
    struct chunk_task t = { .time = { .a = 1e-6, .b = 0.04, .c = 25, .kappa = 0.5 },
                            .n_stages = 2,
                            .tokens = 4096,
                            .history = 4096,
                            .align = 128 };

    (void)state;
    chunk_plan(&plan, &t);
    assert_int_equal(plan.n, 0);
    t.history = 4095;
    chunk_plan(&plan, &t);
    assert_int_equal(plan.n, 1);
    assert_int_equal(plan.chunk[0], 1);
    t.history = 0;
    t.min_chunk = 8192;
    t.max_chunk = 1024;
    chunk_plan(&plan, &t);
    check_plan(
        &plan,
        &(struct chunk_task){
            .time = t.time, .n_stages = 2, .tokens = 4096, .align = 128, .max_chunk = 1024 });
    t.min_chunk = t.max_chunk = 0;
    t.tokens = 100u << 20;
    t.time.c = 0;
    chunk_plan(&plan, &t);
    assert_true(plan.n >= 1 && plan.n <= CHUNK_PLAN_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flow_line),
        cmocka_unit_test(test_identical_stages),
        cmocka_unit_test(test_proportional_stages),
        cmocka_unit_test(test_published),
        cmocka_unit_test(test_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
