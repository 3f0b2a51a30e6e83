/* What `sluice calibrate` reads from a page of metrics. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "ops/chunk_figures.h"

/* A name that looks like everything that is looked for. */
#define NAME "engine=\"0\",model_name=\"a} 7 {mode=\\\"x\\\",b\""

static char page[4096];

static int read_page(struct chunk_figures *f, const char *text, struct err *e)
{
    snprintf(page, sizeof page, "%s", text);
    return chunk_figures_read(f, page, e);
}

static void expect(double got, double want)
{
    if (fabs(got - want) > 1e-12)
        fail_msg("%g instead of %g", got, want);
}

static void all_figures_are_found(void **state)
{
    struct chunk_figures f;

    (void)state;
    assert_int_equal(read_page(&f,
                               "# HELP sluice:chunk_mode How prompts are cut.\n"
                               "# TYPE sluice:chunk_mode gauge\n"
                               "sluice:chunk_mode{" NAME ",mode=\"planned\"} 1.0\n"
                               "vllm:prompt_tokens_total{" NAME "} 4\n"
                               "sluice:chunk_plans_total{" NAME "} 3.0\n"
                               "sluice:chunk_plans_fixed_total{" NAME "} 1.0\n"
                               "sluice:chunk_plan_chunks{" NAME "} 7\n"
                               "sluice:chunk_plan_first_tokens{" NAME "} 512\n"
                               "sluice:chunk_plan_last_tokens{" NAME "} 48\n"
                               "sluice:chunk_plan_seconds{" NAME "} 1.25\n"
                               "sluice:chunk_bound_seconds{" NAME "} 1.125\n"
                               "sluice:chunk_steps_total{" NAME "} 21\n"
                               "sluice:chunk_predicted_seconds_total{" NAME "} 3.5\n"
                               "sluice:chunk_measured_seconds_total{" NAME "} 3.25\n"
                               "sluice:chunk_fit_error{" NAME "} 0.03\n"
                               "sluice:chunk_load{" NAME "} 1.5\n"
                               "sluice:chunk_fit{" NAME ",coefficient=\"a\"} 1.6e-06\n"
                               "sluice:chunk_fit{" NAME ",coefficient=\"b\"} 0.04\n"
                               "sluice:chunk_fit{" NAME ",coefficient=\"w\"} 9\n"
                               "sluice:chunk_fit{" NAME ",coefficient=\"g\"} 0.001\n"
                               "sluice:chunk_fit{" NAME ",coefficient=\"c\"} 25\n"
                               "sluice:chunk_fit{" NAME ",coefficient=\"kappa\"} 0.5\n",
                               NULL),
                     0);
    assert_string_equal(f.mode, "planned");
    expect(f.plans, 3);
    expect(f.plan_chunks, 7);
    expect(f.plan_first, 512);
    expect(f.plan_last, 48);
    expect(f.plan_seconds, 1.25);
    expect(f.bound_seconds, 1.125);
    expect(f.steps, 21);
    expect(f.predicted_seconds, 3.5);
    expect(f.measured_seconds, 3.25);
    expect(f.error, 0.03);
    expect(f.load, 1.5);
    expect(f.fit.a, 1.6e-6);
    expect(f.fit.b, 0.04);
    expect(f.fit.w, 9);
    expect(f.fit.g, 0.001);
    expect(f.fit.c, 25);
    expect(f.fit.kappa, 0.5);
}

static void pages_without_figures(void **state)
{
    static const char *const pages[] = {
        "",
        "vllm:num_requests_running{" NAME "} 0\n",
        "sluice:chunk_load{" NAME "} 1\n",
        "sluice:chunk_mode{" NAME "} 1\n",
        "sluice:chunk_mode{" NAME ",mode=\"planned\"} one\n",
        "sluice:chunk_mode{mode=\"a mode with too long a name\"} 1\n",
    };
    struct chunk_figures f;

    (void)state;
    for (size_t i = 0; i < sizeof pages / sizeof pages[0]; i++) {
        struct err e = { "" };

        assert_int_equal(read_page(&f, pages[i], &e), ERR_NOTFOUND);
        assert_non_null(strstr(e.text, "profiling_chunk_config"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_figures_are_found),
        cmocka_unit_test(pages_without_figures),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
