/* JSON as text: what is one object, what is in it, and edits that leave the rest alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "proxy/splice.h"

#define TEXT(literal) ((struct splice_text){ literal, sizeof literal - 1 })

/* On a copy without a byte to spare. */
static int check(const char *text, size_t *at)
{
    size_t len = strlen(text);
    char *copy = malloc(len ? len : 1);
    int st;

    assert_non_null(copy);
    memcpy(copy, text, len);
    st = splice_check(copy, len, at);
    free(copy);
    return st;
}

static void good_objects(void **state)
{
    static const char *const rows[] = {
        "{}",
        " {\n} ",
        "{\"a\":1}",
        "{\"a\":[1,-2,0.5,1e9,1E-9,0,true,false,null,\"\\u00e9\\n\\\"\",{},[]], \"a\":{ }}",
        "{\"a\":123456789012345678901234567890,\"b\":1e400}",
    };
    size_t at;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(check(rows[i], &at), 0);
}

static void bad_objects(void **state)
{
    static const struct {
        const char *text;
        size_t at;
    } rows[] = {
        { "", 0 },
        { "[1]", 0 },
        { "{", 1 },
        { "{\"a\"}", 4 },
        { "{\"a\":}", 5 },
        { "{\"a\":1,}", 7 },
        { "{,}", 1 },
        { "{\"a\":01}", 6 },
        { "{\"a\":+1}", 5 },
        { "{\"a\":1.}", 7 },
        { "{\"a\":.5}", 5 },
        { "{\"a\":1e}", 7 },
        { "{\"a\":tru}", 8 },
        { "{\"a\":nan}", 6 },
        { "{\"a\":\"\n\"}", 6 },
        { "{\"a\":\"\\x\"}", 7 },
        { "{\"a\":\"\\u12g4\"}", 10 },
        { "{\"a\":\"", 6 },
        { "{'a':1}", 1 },
        { "{} x", 3 },
        { "{\"a\":[1 2]}", 8 },
        { "{\"a\":[1,]}", 8 },
    };
    size_t at;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(check(rows[i].text, &at), ERR_BADMSG);
        assert_int_equal(at, rows[i].at);
    }
}

static void nesting_is_bounded(void **state)
{
    char text[4 * SPLICE_MAX_DEPTH] = "{\"a\":";
    size_t at, n = strlen(text), deep = SPLICE_MAX_DEPTH - 1;

    (void)state;
    memset(text + n, '[', deep);
    memset(text + n + deep, ']', deep);
    strcpy(text + n + 2 * deep, "}");
    assert_int_equal(check(text, &at), 0);
    deep++;
    memset(text + n, '[', deep);
    memset(text + n + deep, ']', deep);
    strcpy(text + n + 2 * deep, "}");
    assert_int_equal(check(text, &at), ERR_TOOLONG);
}

static void assert_text(struct splice_text t, const char *want)
{
    assert_non_null(t.p);
    assert_int_equal(t.len, strlen(want));
    assert_memory_equal(t.p, want, t.len);
}

static void lookups(void **state)
{
    static const char *const path[] = { "u", "d", "c", NULL };
    static const char *const wrong[] = { "u", "x", "c", NULL };
    struct splice_text o = TEXT(
        " { \"a\" : 1 ,\"b\":[1,[2,3], {\"a\":9}],\"\\u0063\":\"v\",\"a\":2,"
        "\"u\":{\"d\":{\"c\":-7},\"x\":1}} ");
    long long v;

    (void)state;
    assert_text(splice_get(o, "a"), "2"); /* the last one counts */
    assert_text(splice_get(o, "c"), "\"v\"");
    assert_null(splice_get(o, "d").p);
    assert_int_equal(splice_array_len(splice_get(o, "b")), 3);
    assert_int_equal(splice_array_len(splice_get(o, "a")), 0);
    assert_int_equal(splice_array_len(TEXT("[ ]")), 0);
    assert_text(splice_path(o, path), "-7");
    assert_null(splice_path(o, wrong).p);
    assert_true(splice_integer(&v, splice_path(o, path)));
    assert_int_equal(v, -7);
    assert_false(splice_integer(&v, splice_get(o, "b")));
    assert_false(splice_integer(&v, TEXT("1.0")));
    assert_false(splice_integer(&v, TEXT("1234567890123456789012")));
    assert_false(splice_integer(&v, splice_get(o, "d")));
    assert_true(splice_is(TEXT("true"), "true"));
    assert_false(splice_is(TEXT("\"true\""), "true"));
}

static void edits(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        { "{}", "{\"set\":1}" },
        { "{\"x\":1.50}", "{\"x\":1.50,\"set\":1}" },
        { "{ \"set\" : [2] , \"x\":1 }", "{ \"set\" : 1 , \"x\":1 }" },
        { "{\"del\":{\"set\":3}}", "{\"set\":1}" },
        { "{\"a\":1, \"del\":2, \"b\":3}", "{\"a\":1, \"b\":3,\"set\":1}" },
        { "{\"del\":2, \"b\":3,\"del\":4}", "{ \"b\":3,\"set\":1}" },
        { "{\"rep\":9,\"set\":0,\"rep\":8}", "{\"rep\":\"r\",\"set\":1,\"rep\":\"r\"}" },
        { "{\"s\\u0065t\":0}", "{\"s\\u0065t\":1}" },
    };
    const struct splice_edit e[] = { { "set", SPLICE_SET, TEXT("1") },
                                     { "rep", SPLICE_REPLACE, TEXT("\"r\"") },
                                     { "del", SPLICE_DELETE, { NULL, 0 } } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf b;

        buf_init(&b, 1000);
        assert_int_equal(
            splice_edit(&b, (struct splice_text){ rows[i].in, strlen(rows[i].in) }, e, 3), 0);
        assert_string_equal(buf_str(&b), rows[i].out);
        buf_finish(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_objects),
        cmocka_unit_test(bad_objects),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(lookups),
        cmocka_unit_test(edits),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
