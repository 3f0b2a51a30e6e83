#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "serve/prom.h"

static void families_values_and_labels(void **state)
{
    struct buf b, l;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    buf_init(&l, BUF_MAX_LINE);
    prom_label(&l, "engine", "0");
    prom_label(&l, "model_name", "a\"b\\c\nd");
    prom_family(&b, "vllm:x_total", "counter", "Things.");
    prom_value(&b, "vllm:x_total", buf_str(&l), 3);
    prom_value(&b, "bare", "", 0.25);
    assert_string_equal(
        buf_str(&b), "# HELP vllm:x_total Things.\n# TYPE vllm:x_total counter\n"
                     "vllm:x_total{engine=\"0\",model_name=\"a\\\"b\\\\c\\nd\"} 3.0\nbare 0.25\n");
    buf_finish(&l);
    buf_finish(&b);
}

static void histograms_are_cumulative(void **state)
{
    static const double bounds[] = { 0.1, 1, 10 };
    struct prom_hist h;
    struct buf b;

    (void)state;
    prom_hist_init(&h, bounds, 3);
    prom_hist_add(&h, 0.1); /* a bound belongs to its bucket */
    prom_hist_add(&h, 0.5);
    prom_hist_add(&h, 100);
    assert_int_equal(prom_hist_count(&h), 3);
    buf_init(&b, BUF_MAX_LINE);
    prom_hist_put(&b, "h", "a=\"1\"", &h);
    prom_hist_put(&b, "h", "", &h);
    assert_string_equal(buf_str(&b),
                        "h_bucket{a=\"1\",le=\"0.1\"} 1\nh_bucket{a=\"1\",le=\"1.0\"} 2\n"
                        "h_bucket{a=\"1\",le=\"10.0\"} 2\nh_bucket{a=\"1\",le=\"+Inf\"} 3\n"
                        "h_sum{a=\"1\"} 100.6\nh_count{a=\"1\"} 3\n"
                        "h_bucket{le=\"0.1\"} 1\nh_bucket{le=\"1.0\"} 2\nh_bucket{le=\"10.0\"} 2\n"
                        "h_bucket{le=\"+Inf\"} 3\nh_sum 100.6\nh_count 3\n");
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_values_and_labels),
        cmocka_unit_test(histograms_are_cumulative),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
