/* Error objects are valid JSON whatever they quote. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/buf.h"
#include "proxy/fault.h"

static void texts_are_cleaned(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        { "", "" },
        { "plain \xed\x95\x9c \xf0\x9f\x99\x82", "plain \xed\x95\x9c \xf0\x9f\x99\x82" },
        { "cut \xed\x95", "cut ??" },
        { "\xff\xc0\x80 \xed\xa0\x80 \xf4\x90\x80\x80 \xe0\x80\x80", "??? ??? ???? ???" },
        { "a\nb\x7f", "a?b?" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[64];

        strcpy(text, rows[i].in);
        fault_clean(text);
        assert_string_equal(text, rows[i].out);
    }
}

static void object_has_its_shape(void **state)
{
    struct buf b;

    (void)state;
    buf_init(&b, 1000);
    fault_object(&b, 404, "model", "no \"x\"\n");
    assert_string_equal(buf_str(&b),
                        "{\"error\":{\"message\":\"no \\\"x\\\"?\",\"type\":\"Not Found\","
                        "\"param\":\"model\",\"code\":404}}");
    buf_reset(&b);
    fault_body(&b, 502, "gone");
    assert_string_equal(buf_str(&b), "{\"error\":{\"message\":\"gone\",\"type\":\"Bad Gateway\","
                                     "\"param\":null,\"code\":502}}");
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_are_cleaned),
        cmocka_unit_test(object_has_its_shape),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
