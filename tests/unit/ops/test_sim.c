/* The simulator: published cases, other numbers of stages, several clients. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "ops/sim.h"

static struct sim_plan plan_of(const char *model)
{
    struct sim_plan p = { .stages = { 2 },
                          .n_stages = 1,
                          .fixed = true,
                          .best = true,
                          .equal_time = true,
                          .optimal = true,
                          .json = true };
    struct err e = { "" };

    if (sim_model_load(&p.model, model, &e) < 0)
        fail_msg("%s", e.text);
    p.base = (struct sim_options){ .seed = 1,
                                   .base = 32768,
                                   .smooth = 1,
                                   .n_requests = 1,
                                   .n_tokens_least = p.model.prompt,
                                   .n_tokens_most = p.model.prompt,
                                   .n_output = 1,
                                   .n_warm_up = 5,
                                   .concurrency = 1,
                                   .max_seqs = 8 };
    return p;
}

static json_t *report(const struct sim_plan *p)
{
    struct err e = { "" };
    struct buf out;
    json_t *root;

    buf_init(&out, BUF_MAX_REPLY);
    if (sim_report(p, &out, &e) < 0)
        fail_msg("%s", e.text);
    root = json_loads(buf_str(&out), 0, NULL);
    assert_non_null(root);
    buf_finish(&out);
    return root;
}

static double figure(const json_t *root, int stages, const char *policy, const char *name)
{
    const json_t *row;
    size_t i;

    json_array_foreach(json_object_get(root, "runs"), i,
                       row) if (json_integer_value(json_object_get(row, "stages")) == stages &&
                                strcmp(json_string_value(json_object_get(row, "policy")), policy) ==
                                    0) return json_number_value(json_object_get(row, name));
    fail_msg("no row of %s at %d stages", policy, stages);
    return 0;
}

static void expect_near(double got, double want, double within)
{
    if (!(fabs(got / want - 1) <= within))
        fail_msg("%.3f instead of %.3f", got, want);
}

/* Seconds to the first token: chunks of 32,768 tokens, and of equal time. */
static void published_cases_are_met(void **state)
{
    static const struct {
        const char *model;
        double fixed, equal_time;
    } cases[] = { { "deepseek", 27.0, 22.5 }, { "qwen3", 61.4, 53.6 } };

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct sim_plan p = plan_of(cases[i].model);
        json_t *r = report(&p);
        double planned = figure(r, 2, "optimal", "ttft_mean_s");

        expect_near(figure(r, 2, "static", "ttft_mean_s"), cases[i].fixed, 0.03);
        expect_near(figure(r, 2, "equal-time", "ttft_mean_s"), cases[i].equal_time, 0.03);
        expect_near(figure(r, 2, "static", "published_s"), cases[i].fixed, 1e-9);
        assert_true(planned < figure(r, 2, "equal-time", "ttft_mean_s"));
        assert_true(planned < figure(r, 2, "static-best", "ttft_mean_s"));
        assert_true(planned > figure(r, 2, "optimal", "bound_s"));
        json_decref(r);
    }
}

/* What 4, 8 and 16 stages would give: the optimum of an independent planner, where there is one. */
static void more_stages_help(void **state)
{
    struct sim_plan p = plan_of("deepseek");
    json_t *r = report(&p);
    double last = figure(r, 2, "optimal", "ttft_mean_s");

    (void)state;
    json_decref(r);
    memcpy(p.stages, (uint32_t[]){ 4, 8, 16 }, 3 * sizeof p.stages[0]);
    p.n_stages = 3;
    r = report(&p);
    expect_near(figure(r, 4, "optimal", "ttft_mean_s"), 12.61, 0.01);
    expect_near(figure(r, 8, "optimal", "ttft_mean_s"), 7.44, 0.01);
    expect_near(figure(r, 4, "static", "ttft_mean_s"), 21.0, 0.01);
    expect_near(figure(r, 8, "static", "ttft_mean_s"), 18.1, 0.01);
    for (int stages = 4; stages <= 16; stages *= 2) {
        double now = figure(r, stages, "optimal", "ttft_mean_s");

        assert_true(now < last && now < figure(r, stages, "static-best", "ttft_mean_s"));
        last = now;
    }
    json_decref(r);
}

/* Four clients, prompts from 4k to 64k, four steps in flight: tokens a second, from an independent
 * simulation of the same rules. */
static void several_clients_share_the_stages(void **state)
{
    static const struct {
        double hit, tokens_per_second;
    } cases[] = {
        { 0.99, 16.9e3 * 16 }, { 0.9, 4.37e3 * 16 }, { 0.5, 1.25e3 * 16 }, { 0, .8e3 * 16 }
    };

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct sim_plan p = plan_of("deepseek");
        double got, fixed;
        json_t *r;

        p.base.hit_ratio = cases[i].hit;
        p.base.concurrency = 4;
        p.base.n_requests = 120;
        p.base.n_tokens_least = 4096;
        p.base.n_tokens_most = 65536;
        p.base.window = 4;
        r = report(&p);
        got = figure(r, 2, "optimal", "prompt_tokens_per_s");
        fixed = figure(r, 2, "static", "prompt_tokens_per_s");
        expect_near(got, cases[i].tokens_per_second, 0.12);
        assert_true(got > 1.05 * fixed);
        assert_true(figure(r, 2, "optimal", "bubble") < figure(r, 2, "static", "bubble"));
        json_decref(r);
    }
}

/* The same seed, the same figures; requests that come at random, decode and differ in times. */
static void a_run_repeats_itself(void **state)
{
    struct sim_plan p = plan_of("qwen3");
    json_t *a, *b;

    (void)state;
    p.base.rate = 1;
    p.base.jitter = 0.1;
    p.base.n_requests = 60;
    p.base.n_tokens_least = 500;
    p.base.n_tokens_most = 30000;
    p.base.n_output = 20;
    p.base.short_first = (struct sched_short_first){ true, 4000, 5 };
    a = report(&p);
    b = report(&p);
    assert_true(json_equal(a, b));
    json_decref(b);
    p.base.seed = 2;
    b = report(&p);
    assert_false(json_equal(a, b));
    json_decref(a);
    json_decref(b);
}

/* Told nothing, the scheduler comes near what it does with the model, although it has seen chunks of one
 * size only. */
static void a_model_is_learned(void **state)
{
    struct sim_plan p = plan_of("deepseek");
    double known, fixed, learned;
    json_t *r = report(&p);

    (void)state;
    known = figure(r, 2, "optimal", "ttft_mean_s");
    fixed = figure(r, 2, "static", "ttft_mean_s");
    json_decref(r);
    p.base.unknown = true;
    p.base.jitter = 0.02;
    p.base.n_warm_up = 12;
    r = report(&p);
    learned = figure(r, 2, "optimal", "ttft_mean_s");
    json_decref(r);
    expect_near(learned, known, 0.1);
    assert_true(learned < 0.92 * fixed);
}

static int load_text(struct sim_model *m, const char *text, struct err *e)
{
    char path[] = "/tmp/sluice-sim-XXXXXX";
    int fd = mkstemp(path), st;

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    close(fd);
    st = sim_model_load(m, path, e);
    unlink(path);
    return st;
}

static void models_come_from_files(void **state)
{
    struct sim_model m;
    struct err e = { "" };

    (void)state;
    assert_int_equal(load_text(&m, "{\"a\": 1e-6, \"b\": 0.1, \"c\": 3, \"stages\": 4}", &e), 0);
    assert_true(m.stages == 4 && m.time.b > 0.0999 && m.time.kappa > 0.4);
    assert_int_equal(
        load_text(&m, "{\"stages\": [{\"a\": 1, \"b\": 2, \"c\": 3, \"kappa\": 1}, {}]}", &e), 0);
    assert_true(m.stages == 2 && m.time.kappa > 0.99);
    assert_int_equal(load_text(&m, "{\"a\": 1, \"stages\": 2}", &e), ERR_INVAL);
    assert_int_equal(load_text(&m, "{\"a\": 1, \"b\": 1, \"c\": 1, \"stages\": 0}", &e), ERR_INVAL);
    assert_true(load_text(&m, "no JSON", &e) < 0);
    assert_int_equal(sim_model_load(&m, "/nonexistent", &e), ERR_NOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_cases_are_met),
        cmocka_unit_test(more_stages_help),
        cmocka_unit_test(several_clients_share_the_stages),
        cmocka_unit_test(a_run_repeats_itself),
        cmocka_unit_test(a_model_is_learned),
        cmocka_unit_test(models_come_from_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
