/* profiling_chunk_config and short_request_first_config: what is taken, and what each mistake is called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "serve/chunk_config.h"

static const struct chunk_config_place usual = { .pp = 2,
                                                 .max_batched_tokens = 32768,
                                                 .chunked_prefill = true };

static int read_text(struct chunk_config *c, const char *text, const struct chunk_config_place *at,
                     struct err *e)
{
    json_t *v;
    int st;

    if (json_read(&v, text, strlen(text), NULL, e) < 0)
        fail_msg("%s: %s", text, e->text);
    st = chunk_config_read(c, v, at, e);
    json_decref(v);
    return st;
}

static struct chunk_config accepted(const char *text)
{
    struct chunk_config c;
    struct err e = { "" };

    if (read_text(&c, text, &usual, &e) < 0)
        fail_msg("%s: %s", text, e.text);
    return c;
}

#define UNDER(inner) "{\"scheduler_config\": {\"profiling_chunk_config\": {" inner "}}}"
#define ON           "\"enabled\": true"
#define FIRST(inner) "{\"scheduler_config\": {\"short_request_first_config\": {" inner "}}}"

static void what_is_documented_is_taken(void **state)
{
    struct chunk_config c = accepted(
        UNDER(ON ", \"smooth_factor\": 0.8, \"min_chunk\": 4096, \"need_timing\": false, "
                 "\"max_fit_chunk\": 50, \"policy\": \"equal-time\""));

    (void)state;
    assert_int_equal(c.chunks.policy, SCHED_CHUNK_EQUAL_TIME);
    assert_int_equal(c.chunks.n_stages, 2);
    assert_true(c.chunks.smooth > 0.79 && c.chunks.smooth < 0.81);
    assert_int_equal(c.chunks.min_chunk, 4096);
    assert_false(c.chunks.timing);
    assert_int_equal(c.chunks.max_fit, 50);
    assert_int_equal(c.n_notes, 0);
}

static void the_rest_has_defaults(void **state)
{
    struct chunk_config c = accepted(UNDER(ON));

    (void)state;
    assert_int_equal(c.chunks.policy, SCHED_CHUNK_OPTIMAL);
    assert_true(c.chunks.smooth > 0.99);
    assert_int_equal(c.chunks.min_chunk, 0);
    assert_true(c.chunks.timing);
    assert_int_equal(c.chunks.max_fit, 30);
    assert_false(c.short_first.enabled);
    c = accepted("{}");
    assert_int_equal(c.chunks.policy, SCHED_CHUNK_OFF);
    assert_int_equal(c.n_notes, 0);
    assert_int_equal(chunk_config_read(&c, NULL, &usual, NULL), 0);
    assert_int_equal(c.chunks.policy, SCHED_CHUNK_OFF);
}

/* enabled false, or forgotten: off, and nothing is measured, whatever else is set. */
static void off_is_off(void **state)
{
    static const char *const texts[] = {
        UNDER("\"enabled\": false, \"need_timing\": true, \"min_chunk\": 99999999"),
        UNDER("\"enabled\": false, \"smooth_factor\": 0.0, \"max_fit_chunk\": 1, \"policy\": 7"),
        UNDER("\"enabled\": false, \"something_new\": [1]"),
        UNDER("\"need_timing\": true"),
        "{\"profiling_chunk_config\": {\"enabled\": false}}",
    };
    const struct chunk_config_place one_stage = { .pp = 1,
                                                  .max_batched_tokens = 16,
                                                  .balance = true };
    const struct sched_chunks off = { 0 };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        struct chunk_config c;
        struct err e = { "" };

        assert_int_equal(read_text(&c, texts[i], &one_stage, &e), 0);
        assert_memory_equal(&c.chunks, &off, sizeof off);
    }
}

static void the_old_place_is_read(void **state)
{
    struct chunk_config c = accepted(
        "{\"profiling_chunk_config\":{\"enabled\":true, \"smooth_factor\":1.0, "
        "\"min_chunk\":4096}}");

    (void)state;
    assert_int_equal(c.chunks.policy, SCHED_CHUNK_OPTIMAL);
    assert_int_equal(c.chunks.min_chunk, 4096);
    assert_int_equal(c.n_notes, 1);
    assert_non_null(strstr(c.note[0].text, "scheduler_config"));
    c = accepted("{\"profiling_chunk_config\": {\"enabled\": true}, \"scheduler_config\": "
                 "{\"profiling_chunk_config\": {\"enabled\": false}}}");
    assert_int_equal(c.chunks.policy, SCHED_CHUNK_OFF);
    assert_true(c.note[0].warning);
}

static void a_large_min_chunk_is_cut(void **state)
{
    struct chunk_config c = accepted(UNDER(ON ", \"min_chunk\": 40000"));

    (void)state;
    assert_int_equal(c.chunks.min_chunk, 32768);
    assert_int_equal(c.n_notes, 1);
    assert_true(c.note[0].warning);
    assert_non_null(strstr(c.note[0].text, "40000"));
    assert_non_null(strstr(c.note[0].text, "32768"));
}

struct mistake {
    const char *text, *names, *says;
};

static void mistakes_are_named(void **state)
{
    static const struct mistake mistakes[] = {
        { UNDER(ON ", \"smooth_factor\": 0"), "smooth_factor", "above 0" },
        { UNDER(ON ", \"smooth_factor\": 1.1"), "smooth_factor", "1.1" },
        { UNDER(ON ", \"smooth_factor\": \"0.8\""), "smooth_factor", "without quotes" },
        { UNDER(ON ", \"min_chunk\": 0"), "min_chunk", "0" },
        { UNDER(ON ", \"min_chunk\": -5"), "min_chunk", "-5" },
        { UNDER(ON ", \"min_chunk\": 10.5"), "min_chunk", "10.5" },
        { UNDER(ON ", \"min_chunk\": []"), "min_chunk", "number" },
        { UNDER(ON ", \"max_fit_chunk\": 5"), "max_fit_chunk", "6" },
        { UNDER(ON ", \"need_timing\": \"false\""), "need_timing", "without quotes" },
        { UNDER("\"enabled\": \"true\""), "enabled", "without quotes" },
        { UNDER("\"enabled\": \"True\""), "enabled", "write true" },
        { UNDER("\"enabled\": 1"), "enabled", "true or false" },
        { UNDER("\"enable\": true"), "enable", "enabled" },
        { UNDER(ON ", \"smoth_factor\": 1"), "smoth_factor", "smooth_factor" },
        { UNDER(ON ", \"min\xe2\x80\x93"
                   "chunk\": 512"),
          "min_chunk", "dash" },
        { UNDER(ON ", \"min-chunk\": 512"), "min_chunk", "dash" },
        { UNDER(ON ", \"policy\": \"fastest\""), "policy", "equal-time" },
        { UNDER(ON ", \"policy\": 3"), "policy", "equal-time" },
        { "{\"scheduler_config\": {\"profiling_chunk_config\": true}}", "profiling_chunk_config",
          "object" },
        { "{\"scheduler_config\": {\"profiling\xe2\x80\x93"
          "chunk_config\": {}}}",
          "profiling_chunk_config", "dash" },
        { "{\"profiling-chunk-config\": {}}", "profiling_chunk_config", "dash" },
        { "{\"enable_balance_scheduling\": true, \"profiling_chunk_config\": {\"enabled\": true}}",
          "enabled", "balance" },
        { "{\"scheduler_config\": {\"enable_balance_scheduling\": true, "
          "\"profiling_chunk_config\": "
          "{\"enabled\": true}}}",
          "enabled", "balance" },
        { FIRST("\"enabled\": true, \"threshold\": -1"), "threshold", "-1" },
        { FIRST("\"enabled\": true, \"long_max_wait_ms\": -2"), "long_max_wait_ms", "-2" },
        { FIRST("\"enabled\": true, \"treshold\": 5"), "treshold", "threshold" },
        { FIRST("\"enabled\": \"false\""), "enabled", "without quotes" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        struct chunk_config c;
        struct err e = { "" };

        if (read_text(&c, mistakes[i].text, &usual, &e) != ERR_INVAL)
            fail_msg("taken: %s", mistakes[i].text);
        if (!strstr(e.text, mistakes[i].names) || !strstr(e.text, mistakes[i].says))
            fail_msg("%s: %s", mistakes[i].text, e.text);
    }
}

static void other_options_must_go_with_it(void **state)
{
    struct chunk_config_place at = usual;
    struct chunk_config c;
    struct err e = { "" };

    (void)state;
    at.pp = 1;
    assert_int_equal(read_text(&c, UNDER(ON), &at, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "--pipeline-parallel-size is 1"));
    at = usual;
    at.chunked_prefill = false;
    assert_int_equal(read_text(&c, UNDER(ON), &at, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "chunked"));
    at = usual;
    at.balance = true;
    assert_int_equal(read_text(&c, UNDER(ON), &at, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "VLLM_ASCEND_BALANCE_SCHEDULING"));
    at = usual;
    at.priority = true;
    assert_int_equal(read_text(&c, UNDER(ON), &at, &e), 0);
    assert_int_equal(read_text(&c, FIRST(ON), &at, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "priority"));
}

static void short_requests_first(void **state)
{
    struct chunk_config c = accepted(FIRST(ON ", \"threshold\": 512, \"long_max_wait_ms\": 2000"));

    (void)state;
    assert_true(c.short_first.enabled && c.short_first.threshold == 512);
    assert_true(c.short_first.long_max_wait > 1.99 && c.short_first.long_max_wait < 2.01);
    c = accepted(FIRST(ON));
    assert_true(c.short_first.enabled && c.short_first.threshold == 256);
    c = accepted(FIRST("\"enabled\": false, \"threshold\": -3"));
    assert_false(c.short_first.enabled);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_documented_is_taken),
        cmocka_unit_test(the_rest_has_defaults),
        cmocka_unit_test(off_is_off),
        cmocka_unit_test(the_old_place_is_read),
        cmocka_unit_test(a_large_min_chunk_is_cut),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(other_options_must_go_with_it),
        cmocka_unit_test(short_requests_first),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
