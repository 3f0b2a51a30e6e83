#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"

static int read_text(const char *text, struct json_fault *f)
{
    json_t *v = NULL;
    int st = json_read(&v, text, strlen(text), f, NULL);

    json_decref(v);
    return st;
}

static void reads_any_value(void **state)
{
    (void)state;
    assert_int_equal(read_text("{\"a\":[1,2.5,null]}", NULL), 0);
    assert_int_equal(read_text("7", NULL), 0);
    assert_int_equal(read_text("\"nul \\u0000 inside\"", NULL), 0);
}

static void refuses_what_parsers_disagree_about(void **state)
{
    (void)state;
    assert_int_equal(read_text("{\"a\":1,\"a\":2}", NULL), ERR_BADMSG);
    assert_int_equal(read_text("{\"a\":1} x", NULL), ERR_BADMSG);
    assert_int_equal(read_text("\"\xff\"", NULL), ERR_BADMSG);
    assert_int_equal(read_text("", NULL), ERR_BADMSG);
    assert_int_equal(read_text("NaN", NULL), ERR_BADMSG);
}

static void bounds_the_depth(void **state)
{
    char text[2 * (JSON_MAX_DEPTH + 1)];
    struct json_fault f;
    size_t n = JSON_MAX_DEPTH;

    (void)state;
    memset(text, '[', n);
    memset(text + n, ']', n);
    text[2 * n] = '\0';
    assert_int_equal(read_text(text, &f), 0);
    n++;
    memset(text, '[', n);
    text[n] = '\0';
    assert_int_equal(read_text(text, &f), ERR_BADMSG);
    assert_int_equal(f.offset, JSON_MAX_DEPTH);
    assert_int_equal(read_text("\"[[[[\\\"[[[[\"", &f), 0);
}

static void names_the_number_that_is_too_large(void **state)
{
    struct json_fault f;

    (void)state;
    assert_int_equal(read_text("{\"a\":1,\"temperature\" : -1e999}", &f), ERR_BADMSG);
    assert_true(f.overflow);
    assert_string_equal(f.key, "temperature");
    assert_int_equal(read_text("{\"seed\":99999999999999999999}", &f), ERR_BADMSG);
    assert_string_equal(f.key, "seed");
    assert_int_equal(read_text("[1e999]", &f), ERR_BADMSG);
    assert_string_equal(f.key, "");
}

static void says_where_a_text_ends_too_early(void **state)
{
    struct json_fault f;

    (void)state;
    assert_int_equal(read_text("{\"model\":", &f), ERR_BADMSG);
    assert_int_equal(f.offset, 9);
    assert_false(f.overflow);
}

static void writes_strings(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    json_put_string(&b, "a\"\\\n\t\x01\0é", 9);
    assert_string_equal(buf_str(&b), "\"a\\\"\\\\\\n\\t\\u0001\\u0000é\"");
    buf_reset(&b);
    json_put_text(&b, NULL);
    assert_string_equal(buf_str(&b), "null");
    buf_finish(&b);
}

static void writes_the_shortest_number(void **state)
{
    static const struct {
        double v;
        const char *text;
    } rows[] = { { 0.1, "0.1" },      { -2.366866111755371, "-2.366866111755371" },
                 { 1, "1.0" },        { -0.0, "-0.0" },
                 { 1e300, "1e+300" }, { 0.3 - 0.1, "0.19999999999999998" } };
    struct buf b;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        buf_reset(&b);
        json_put_double(&b, rows[i].v);
        assert_string_equal(buf_str(&b), rows[i].text);
    }
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_any_value),
        cmocka_unit_test(refuses_what_parsers_disagree_about),
        cmocka_unit_test(bounds_the_depth),
        cmocka_unit_test(names_the_number_that_is_too_large),
        cmocka_unit_test(says_where_a_text_ends_too_early),
        cmocka_unit_test(writes_strings),
        cmocka_unit_test(writes_the_shortest_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
