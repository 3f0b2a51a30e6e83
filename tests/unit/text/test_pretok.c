#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/pretok.h"
#include "text/regex.h"

static int show(void *arg, const char *word, size_t len)
{
    struct buf *b = arg;

    buf_putc(b, '[');
    buf_append(b, word, len);
    return buf_putc(b, ']');
}

static void check_split(const struct pretok *p, const char *text, const char *want)
{
    struct pretok_work w;
    struct buf b;

    buf_init(&b, 4096);
    assert_int_equal(pretok_work_init(&w), 0);
    assert_int_equal(pretok_run(p, &w, text, strlen(text), show, &b), 0);
    assert_string_equal(buf_str(&b), want);
    pretok_work_finish(&w);
    buf_finish(&b);
}

static void check_pattern(const char *pattern, enum pretok_split split, bool invert,
                          const char *text, const char *want)
{
    struct pretok p = { 0 };
    struct err e = { 0 };

    if (pretok_add(&p, pattern, strlen(pattern), false, split, invert, &e) < 0)
        fail_msg("%s", e.text);
    check_split(&p, text, want);
    pretok_finish(&p);
}

/* The example of HuggingFace's documentation: "the-final--countdown" at "-". */
static void behaviors(void **state)
{
    const char *text = "the-final--countdown";

    (void)state;
    check_pattern("-", PRETOK_REMOVED, false, text, "[the][final][countdown]");
    check_pattern("-", PRETOK_ISOLATED, false, text, "[the][-][final][-][-][countdown]");
    check_pattern("-", PRETOK_PREVIOUS, false, text, "[the-][final-][-][countdown]");
    check_pattern("-", PRETOK_NEXT, false, text, "[the][-final][-][-countdown]");
    check_pattern("-", PRETOK_CONTIGUOUS, false, text, "[the][-][final][--][countdown]");
    check_pattern("[a-z]+", PRETOK_REMOVED, true, text, "[the][final][countdown]");
    check_pattern("(?=l)", PRETOK_ISOLATED, false, text, "[the-fina][l--countdown]");
    check_pattern("-", PRETOK_ISOLATED, false, "", "");
}

/* Unicode's White_Space: with U+0085, without U+180E and U+FEFF. */
static void spaces(void **state)
{
    (void)state;
    check_pattern("\\s+", PRETOK_ISOLATED, false,
                  "a\xc2\x85"
                  "b\u180ec\ufeffd\u3000e",
                  "[a][\xc2\x85][b\u180ec\ufeffd][\u3000][e]");
    check_pattern("[^\\s\\p{L}]+", PRETOK_ISOLATED, false,
                  "a\u180e \xc2\x85"
                  "b",
                  "[a][\u180e][ \xc2\x85"
                  "b]");
    check_pattern("[\\S]+", PRETOK_ISOLATED, false,
                  "a\u180e \xc2\x85"
                  "b",
                  "[a\u180e][ \xc2\x85][b]");
    check_pattern("\\w+", PRETOK_ISOLATED, false, "e\u0301_1 ½", "[e\u0301_1][ ½]");
    check_pattern("\\s+$", PRETOK_ISOLATED, false, "a  \nb", "[a][  ][\nb]");
}

static void named(void **state)
{
    static const struct {
        const char *name, *text, *want;
    } rows[] = {
        { "gpt-2", "Hello  world's 123!\n\n x", "[Hello][ ][ world]['s][ 123][!][\n\n][ x]" },
        { "smollm", "a 12½", "[a][ ][1][2][½]" },
        { "llama-bpe", "I'LL 12345 go.\r\n\r\n", "[I]['LL][ ][123][45][ go][.\r\n\r\n]" },
        { "qwen2", "x12 _y", "[x][1][2][ _][y]" },
        { "deepseek-v3", "ab中文12345かな .x\n", "[ab][中文][123][45][かな][ .][x][\n]" },
        { "deepseek-llm", "Hi, 世界12\n", "[Hi][,][ ][世界][1][2][\n]" },
        { "deepseek-coder", "a b.c\n1", "[a][ b][.][c][\n][1]" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pretok p = { 0 };
        struct pretok_named how;
        struct err e = { 0 };

        if (pretok_add_named(&p, rows[i].name, &how, &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(how.nfc, strcmp(rows[i].name, "qwen2") == 0);
        check_split(&p, rows[i].text, rows[i].want);
        pretok_finish(&p);
    }
}

static void unknown_names(void **state)
{
    static const char *const names[] = { "", "bpe", "llama", "smoll", "smollm starcoder" };

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct pretok p = { 0 };
        struct pretok_named how;
        struct err e = { 0 };

        assert_int_equal(pretok_add_named(&p, names[i], &how, &e), ERR_UNSUPPORTED);
        assert_non_null(strstr(e.text, names[i]));
    }
}

static void bad_patterns(void **state)
{
    static const struct {
        const char *pattern;
        int status;
    } rows[] = { { "(", ERR_BADMSG },
                 { "[a", ERR_BADMSG },
                 { "[\\p{L}&&[^a]]", ERR_UNSUPPORTED },
                 { "[a[b]]", ERR_UNSUPPORTED },
                 { "[\\W]", ERR_UNSUPPORTED } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pretok p = { 0 };
        struct err e = { 0 };

        assert_int_equal(pretok_add(&p, rows[i].pattern, strlen(rows[i].pattern), false,
                                    PRETOK_ISOLATED, false, &e),
                         rows[i].status);
        assert_non_null(strstr(e.text, rows[i].pattern));
    }
}

/* A pattern that backtracks without end is stopped. */
static void hostile_pattern(void **state)
{
    const char *pattern = "(a|aa|a)+[0-9]";
    struct pretok p = { 0 };
    struct pretok_work w;
    struct err e = { 0 };
    struct buf b;
    char text[64];

    (void)state;
    memset(text, 'a', sizeof text);
    buf_init(&b, 4096);
    assert_int_equal(pretok_add(&p, pattern, strlen(pattern), false, PRETOK_ISOLATED, false, &e),
                     0);
    assert_int_equal(pretok_work_init(&w), 0);
    assert_int_equal(pretok_run(&p, &w, text, sizeof text, show, &b), ERR_LIMIT);
    pretok_work_finish(&w);
    pretok_finish(&p);
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(behaviors),    cmocka_unit_test(spaces),
        cmocka_unit_test(named),        cmocka_unit_test(unknown_names),
        cmocka_unit_test(bad_patterns), cmocka_unit_test(hostile_pattern),
    };

    return cmocka_run_group_tests_name("pretok", tests, NULL, NULL);
}
