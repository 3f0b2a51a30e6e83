#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "text/normal.h"
#include "text/utf8.h"

static void every_character_round_trips(void **state)
{
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10ffff; cp++) {
        char c[UTF8_MAX];
        size_t n = utf8_put(c, cp), len;
        bool surrogate = cp >= 0xd800 && cp < 0xe000;

        assert_int_equal(utf8_scan(c, n, &len), surrogate ? UTF8_BAD : UTF8_GOOD);
        if (surrogate)
            continue;
        assert_int_equal(len, n);
        assert_int_equal(utf8_get(c, &len), cp);
        for (size_t k = 1; k < n; k++)
            assert_int_equal(utf8_scan(c, k, &len), UTF8_SHORT);
    }
}

/* One U+FFFD for each maximal bad part. */
static void bad_parts_are_replaced(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        { "abc", "abc" },
        { "a\xff", "a\xef\xbf\xbd" },
        { "\xc3(", "\xef\xbf\xbd(" },
        { "\xe2\x82(", "\xef\xbf\xbd(" },
        { "\xe2\x82", "\xef\xbf\xbd" },
        { "\xc0\x80", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf0\x9f\x98\xf0\x9f\x98\x80", "\xef\xbf\xbd\xf0\x9f\x98\x80" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;

        buf_init(&b, 100);
        assert_int_equal(utf8_append_clean(&b, rows[i].in, strlen(rows[i].in)), 0);
        assert_string_equal(buf_str(&b), rows[i].out);
        buf_finish(&b);
    }
}

static void normal_forms(void **state)
{
    static const struct {
        enum normal_form form;
        const char *in, *out;
    } rows[] = {
        { NORMAL_NFC, "e\u0301", "é" },
        { NORMAL_NFC, "q\u0307\u0323", "q\u0323\u0307" }, /* marks in the order of their classes */
        { NORMAL_NFC, "\u1100\u1161\u11a8", "각" },
        { NORMAL_NFC, "\u212b", "Å" },
        { NORMAL_NFC, "ﬁ", "ﬁ" },
        { NORMAL_NFKC, "ﬁ", "fi" },
        { NORMAL_NFD, "é", "e\u0301" },
        { NORMAL_NONE, "e\u0301", "e\u0301" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf b;

        buf_init(&b, 100);
        assert_int_equal(normal_append(&b, rows[i].form, rows[i].in, strlen(rows[i].in)), 0);
        assert_string_equal(buf_str(&b), rows[i].out);
        buf_finish(&b);
    }
}

/* 200,000 marks of falling class: in quadratic time this would take minutes. */
static void long_runs_of_marks(void **state)
{
    struct buf in, out;

    (void)state;
    buf_init(&in, BUF_MAX_BODY);
    buf_init(&out, BUF_MAX_BODY);
    buf_puts(&in, "x");
    for (int i = 0; i < 100000; i++)
        buf_puts(&in, "\u0301\u0323");
    assert_int_equal(normal_append(&out, NORMAL_NFC, in.data, in.len), 0);
    assert_int_equal(out.len, in.len); /* x with both marks has no composed form of its own */
    assert_memory_equal(out.data + 1, "\u0323\u0323", 4);
    buf_finish(&in);
    buf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_character_round_trips),
        cmocka_unit_test(bad_parts_are_replaced),
        cmocka_unit_test(normal_forms),
        cmocka_unit_test(long_runs_of_marks),
    };

    return cmocka_run_group_tests_name("utf8", tests, NULL, NULL);
}
