/* The reference cases through the scheduler: a prompt that is alone gets the chunks of its plan, or the best
 * fixed ones where the plan's gain is too small or too uncertain, and is done when the pipeline says. */
#include "cases.h"

#include "../../unit/sched/line.h"
#include "sched/guard.h"

static struct line g;
static struct chunk_plan plan;

static struct chunk_task task_of(const json_t *c)
{
    struct chunk_task t = { .time = stage_of(c),
                            .link = { num(c, "lat_ms"), num(c, "ms_per_token") },
                            .n_stages = (uint32_t)count(c, "stages"),
                            .tokens = count(c, "tokens"),
                            .history = count(c, "history"),
                            .align = (uint32_t)count(c, "align"),
                            .min_chunk = (uint32_t)count(c, "min_chunk"),
                            .max_chunk = (uint32_t)count(c, "max_chunk") };

    if (t.max_chunk == 0) /* a step holds any chunk */
        t.max_chunk = (uint32_t)t.tokens;
    return t;
}

/* What the scheduler cannot be told: blocks are multiples of 16 tokens, a pipeline has two stages at least. */
static bool can_be_told(const struct chunk_task *t)
{
    return t->align % 16 == 0 && t->n_stages >= 2 && t->n_stages <= LINE_STAGES &&
           t->history % t->align == 0 && t->history + 1 < t->tokens && t->min_chunk <= t->max_chunk;
}

static void begin(const struct chunk_task *t)
{
    struct sched_config c = line_config(t->n_stages, t->max_chunk, (uint32_t)t->tokens + 1);
    struct stage_time stages[LINE_STAGES];

    c.block_tokens = t->align;
    c.n_blocks = 3 * ((uint32_t)t->tokens / t->align + 2);
    c.chunks.min_chunk = t->min_chunk;
    c.chunks.timing = false;
    line_open(&g, &c, &t->time);
    for (uint32_t i = 0; i < t->n_stages; i++)
        stages[i] = t->time;
    assert_int_equal(sched_set_latency(g.s, stages, t->n_stages, &t->link, NULL), 0);
    if (t->history > 0) {
        line_add(&g, (uint32_t)t->history + 1, 0, 1);
        line_run(&g, LINE_LOG);
    }
    g.n_log = 0;
}

/* True if it was planned; false if chunks were fixed. */
static bool run_case(const struct chunk_task *t, size_t i)
{
    struct chunk_rule rule = chunk_rule_fixed(chunk_best_static(t), t->tokens,
                                              t->tokens - t->history);
    uint64_t h = t->history;
    bool planned;

    chunk_plan(&plan, t);
    planned = guard_prefers(t, &plan.rule, &rule);
    rule = planned ? plan.rule : rule;
    begin(t);
    line_add(&g, (uint32_t)t->tokens, 0, 1);
    line_run(&g, LINE_LOG);
    for (uint32_t k = 0; k < g.n_log; k++) {
        if (g.log[k].start != h || g.log[k].n != chunk_rule_next(&rule, k, h))
            fail_msg("case %zu, chunk %u: %u tokens behind %u, the plan has %u behind %llu", i, k,
                     g.log[k].n, g.log[k].start, chunk_rule_next(&rule, k, h),
                     (unsigned long long)h);
        h += g.log[k].n;
    }
    assert_true(h == t->tokens && (!planned || g.n_log == plan.n));
    line_close(&g);
    return planned;
}

static void test_through_the_scheduler(void **state)
{
    json_t *root = cases_load("planner_cases.json"), *c;
    uint32_t planned = 0, run = 0;
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(root, "identical"), i, c)
    {
        struct chunk_task t = task_of(c);
        double opt = num(c, "opt_ms"), tol = num(c, "tol");

        if (!can_be_told(&t))
            continue;
        run++;
        planned += run_case(&t, i);
        assert_true(plan.makespan_ms <= (1 + tol) * opt);
    }
    assert_true(run >= 120 && planned >= 60);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_through_the_scheduler) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
