#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/status.h"
#include "engine/engine.h"
#include "serve/trace.h"

static char path[] = "trace-test-XXXXXX";

static json_t *read_back(void)
{
    json_error_t why;
    json_t *v = json_load_file(path, 0, &why);

    if (!v)
        fail_msg("%s", why.text);
    return v;
}

static double number(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

static void a_row_a_stage(void **state)
{
    struct engine_step_times s = { .seq = 7,
                                   .n_tokens = 130,
                                   .n_prefill_tokens = 128,
                                   .n_requests = 3,
                                   .n_parts = 3,
                                   .part = { { 44, 128, 256 }, { 45, 1, 9 }, { 46, 1, 10 } },
                                   .n_stages = 2,
                                   .stage = { { 1000.5, 1000.75 }, { 1000.75, 1001.25 } } };
    struct trace *t;
    struct err e = { "" };
    json_t *all, *ev, *parts;

    (void)state;
    assert_int_equal(trace_open(&t, path, &e), 0);
    trace_step(t, &s);
    s.seq = 8;
    s.stage[0] = (struct engine_stage_time){ 1000.75, 1001 };
    trace_step(t, &s);
    trace_close(t);
    all = read_back();
    assert_int_equal(json_array_size(all), 2 + 4); /* two names, two steps of two stages */
    ev = json_array_get(all, 1);
    assert_string_equal(json_string_value(json_object_get(ev, "ph")), "M");
    ev = json_array_get(all, 3);
    assert_string_equal(json_string_value(json_object_get(ev, "name")), "step 7");
    assert_int_equal(number(ev, "tid"), 1);
    assert_true(number(ev, "ts") == 250e3 && number(ev, "dur") == 500e3);
    assert_int_equal(number(json_object_get(ev, "args"), "prefill"), 128);
    parts = json_object_get(json_object_get(ev, "args"), "requests");
    assert_int_equal(json_array_size(parts), 3);
    assert_int_equal(number(json_array_get(parts, 0), "id"), 44);
    assert_int_equal(number(json_array_get(parts, 0), "tokens"), 128);
    assert_int_equal(number(json_array_get(parts, 2), "history"), 10);
    ev = json_array_get(all, 4); /* step 8 begins while step 7 is in the next stage */
    assert_true(number(ev, "ts") == 250e3 && number(ev, "dur") == 250e3);
    json_decref(all);
}

static void without_a_step_it_is_an_empty_list(void **state)
{
    struct trace *t;
    struct err e = { "" };
    json_t *all;

    (void)state;
    assert_int_equal(trace_open(&t, path, &e), 0);
    trace_close(t);
    all = read_back();
    assert_int_equal(json_array_size(all), 0);
    json_decref(all);
    trace_close(NULL);
}

static void a_bad_path_is_named(void **state)
{
    struct err e = { "" };
    struct trace *t;

    (void)state;
    assert_int_equal(trace_open(&t, "no/such/folder", &e), ERR_IO);
    assert_non_null(strstr(e.text, "--trace: no/such/folder cannot be written"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_row_a_stage),
        cmocka_unit_test(without_a_step_it_is_an_empty_list),
        cmocka_unit_test(a_bad_path_is_named),
    };
    int fd = mkstemp(path), code;

    if (fd < 0)
        return 1;
    close(fd);
    code = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path);
    return code;
}
