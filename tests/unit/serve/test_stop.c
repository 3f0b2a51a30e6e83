#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "serve/stop.h"

#define TEXT "ABCDEFGHIJ"

static const char text[] = TEXT;

static struct oai_text word(const char *s)
{
    union {
        const char *in;
        char *out;
    } u = { .in = s };

    return (struct oai_text){ u.out, strlen(s) };
}

struct script {
    const char *stops[2];
    bool include;
    const char *want;  /* what is shown in the end */
    const char *found; /* NULL: none */
};

static const struct script scripts[] = {
    { { "EFG", NULL }, false, "ABCD", "EFG" },
    { { "EFG", NULL }, true, "ABCDEFG", "EFG" },
    { { "CX", "EFGHIJ" }, false, "ABCD", "EFGHIJ" },
    { { "IJK", NULL }, false, TEXT, NULL }, /* half a match at the end is let through */
    { { "J", NULL }, false, "ABCDEFGHI", "J" },
    { { "A", NULL }, false, "", "A" },
    { { TEXT, NULL }, false, "", TEXT },
    { { "EFGHIJ", "GH" }, false, "ABCDEF", "GH" }, /* the one that ends first */
    { { "H", "FGH" }, false, "ABCDE", "FGH" },     /* the longer of two that end together */
    { { "x", "ABCDEFGHIJK" }, false, TEXT, NULL },
};

/* Pushes the text in three pieces and returns what was shown. */
static void run(const struct script *s, size_t first, size_t second)
{
    struct oai_text stops[2];
    uint32_t n = 0;
    struct stop_filter f;
    struct buf out;

    for (int i = 0; i < 2; i++)
        if (s->stops[i])
            stops[n++] = word(s->stops[i]);
    buf_init(&out, 100);
    stop_init(&f, stops, n, s->include);
    assert_int_equal(stop_push(&f, text, first, &out), 0);
    assert_int_equal(stop_push(&f, text + first, second - first, &out), 0);
    assert_int_equal(stop_push(&f, text + second, strlen(TEXT) - second, &out), 0);
    assert_int_equal(stop_flush(&f, &out), 0);
    assert_string_equal(buf_str(&out), s->want);
    if (s->found)
        assert_string_equal(f.found->s, s->found);
    else
        assert_null(f.found);
    stop_finish(&f);
    buf_finish(&out);
}

static void the_cut_does_not_matter(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++)
        for (size_t a = 0; a <= strlen(TEXT); a++)
            for (size_t b = a; b <= strlen(TEXT); b++)
                run(&scripts[i], a, b);
}

static void only_what_may_begin_a_stop_is_held(void **state)
{
    struct oai_text stops[] = { word("EFG") };
    struct stop_filter f;
    struct buf out;

    (void)state;
    buf_init(&out, 100);
    stop_init(&f, stops, 1, false);
    stop_push(&f, "ABCDE", 5, &out);
    assert_string_equal(buf_str(&out), "ABCD");
    stop_push(&f, "FX", 2, &out);
    assert_string_equal(buf_str(&out), "ABCDEFX");
    stop_push(&f, "EE", 2, &out);
    assert_string_equal(buf_str(&out), "ABCDEFXE");
    stop_finish(&f);
    buf_finish(&out);
}

static void without_stops_all_passes(void **state)
{
    struct stop_filter f;
    struct buf out;

    (void)state;
    buf_init(&out, 100);
    stop_init(&f, NULL, 0, false);
    stop_push(&f, "a\0b", 3, &out);
    assert_int_equal(out.len, 3);
    stop_finish(&f);
    buf_finish(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cut_does_not_matter),
        cmocka_unit_test(only_what_may_begin_a_stop_is_held),
        cmocka_unit_test(without_stops_all_passes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
