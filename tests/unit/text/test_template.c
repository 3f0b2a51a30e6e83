/* The expected texts are Jinja2's (Python). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/status.h"
#include "text/template.h"

static const char variables[] =
    "{\"n\":7,\"f\":2.5,\"t\":true,\"none\":null,\"e\":[],\"s\":\"Hello, wörld\",\"w\":\" \\t pad "
    "\\n\","
    "\"a\":[1,2,3,\"x\",null,true,2.5],\"d\":{\"k\":\"v\",\"l\":[1,2],\"z\":{\"y\":1}},"
    "\"ms\":[{\"role\":\"user\",\"content\":\"hi\\n\"},{\"role\":\"assistant\",\"content\":\" yo "
    "\"}]}";

static int render(const char *source, const char *vars, char **text, struct err *e)
{
    json_t *j = json_loads(vars, 0, NULL);
    struct template *t = NULL;
    size_t len;
    int st = template_compile(&t, source, strlen(source), e);

    assert_non_null(j);
    *text = NULL;
    if (st == 0)
        st = template_render(t, j, text, &len, e);
    template_destroy(t);
    json_decref(j);
    return st;
}

struct row {
    const char *source, *want;
};

static void check_rows(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct err e = { 0 };
        char *text;

        if (render(rows[i].source, variables, &text, &e) < 0)
            fail_msg("%s: %s", rows[i].source, e.text);
        assert_string_equal(text, rows[i].want);
        free(text);
    }
}

#define CHECK(rows) check_rows(rows, sizeof rows / sizeof *rows)

static void values(void **state)
{
    static const struct row rows[] = {
        { "{{ none }} {{ t }} {{ n }} {{ f }} {{ q }}.", "None True 7 2.5 ." },
        { "{{ a }}", "[1, 2, 3, 'x', None, True, 2.5]" },
        { "{{ d }}", "{'k': 'v', 'l': [1, 2], 'z': {'y': 1}}" },
        { "{{ (1,) }}{{ (1, 'a') }}{{ () }}", "(1,)(1, 'a')()" },
        { "{{ ['a\"b', \"it's\", '\\n\\x01'] }}", "['a\"b', \"it's\", '\\n\\x01']" },
        { "{{ 1e16 }} {{ 1e15 }} {{ 1e-5 }} {{ 0.0001 }} {{ 1/3 }} {{ 4/2 }}",
          "1e+16 1000000000000000.0 1e-05 0.0001 0.3333333333333333 2.0" },
        { "{{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ t + 1 }}",
          "-4 2 1024 0.5 3.0 2" },
        { "{{ 'a' ~ 1 ~ none ~ t }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 'a' 'b' }}",
          "a1NoneTrue abab [1, 2] ab" },
        { "{{ 1 < 2 < 3 }} {{ 1 == 1.0 }} {{ 1 == true }} {{ 'a' == 1 }} {{ [1] == [1] }}",
          "True True True False True" },
        { "{{ 'x' in s }} {{ 'wö' in s }} {{ 2 in a }} {{ 'k' in d }} {{ 9 not in a }}",
          "False True True True True" },
        { "{{ n if t else 2 }} {{ 'x' if none }}. {{ e or 'or' }} {{ not e }}", "7 . or True" },
        { "{{ s[0] }}{{ s[-1] }}{{ s[7:9] }}{{ s[::-1][0:3] }}{{ a[1:3] }}{{ a[-2:] }}",
          "Hdwödlr[2, 3][True, 2.5]" },
        { "{{ '\\u00e9\\x41\\'\\d' }}", "éA'\\d" },
    };

    (void)state;
    CHECK(rows);
}

static void statements(void **state)
{
    static const struct row rows[] = {
        { "{% for x in [4, 5] %}{{ loop.index }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last "
          "}} "
          "{% endfor %}",
          "11TrueFalse 20FalseTrue " },
        { "{% for x in e %}a{% else %}empty{% endfor %}", "empty" },
        { "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}", "k=v;l=[1, 2];z={'y': 1};" },
        { "{% for x in [1,2,3,4] if x is even %}{{ loop.index }}:{{ x }} {% endfor %}",
          "1:2 2:4 " },
        { "{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break "
          "%}"
          "{% endif %}{{ x }}{% endfor %}",
          "13" },
        { "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "21" },
        { "{% set ns = namespace(x=1) %}{% for i in [1,2] %}{% set ns.x = ns.x + i %}{% endfor %}"
          "{{ ns.x }}",
          "4" },
        { "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21" },
        { "{% set x | upper %} b{{ n }} {% endset %}[{{ x }}]", "[ B7 ]" },
        { "{% macro m(a, b='d') %}<{{ a }}{{ b }}>{% endmacro %}{{ m(1) }}{{ m(b=4) }}",
          "<1d><4>" },
        { "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(3) }}",
          "3210" },
        { "{% macro m() %}[{{ caller() }}]{% endmacro %}{% call m() %}hey{% endcall %}", "[hey]" },
        { "{% filter upper %}abc{% endfilter %}{% generation %}x{% endgeneration %}", "ABCx" },
        { "{% if n == 1 %}1{% elif n == 7 %}7{% else %}x{% endif %}", "7" },
    };

    (void)state;
    CHECK(rows);
}

static void white_space(void **state)
{
    static const struct row rows[] = {
        { "  {% if t %}\n  yes\n  {% endif %}\nend\n", "  yes\nend" },
        { "a\n  {%- if t %}\n\n x\n  {%- endif -%}\n\n  b", "a\n xb" },
        { "a {{- ' b ' -}} c", "a b c" },
        { "{# c #}\nx\n  {# c #}\ny {#- z -#}  w", "x\nyw" },
        { "  {%+ if t %}x{% endif +%}\ny", "  x\ny" },
        { "a\r\n{{ n }}\r\nb\r\n", "a\n7\nb" },
        { "{% raw %}{{ x }} {% if %}{% endraw %} z", "{{ x }} {% if %} z" },
        { "{{ {'x': {}} }}{{ '}}' }}", "{'x': {}}}}" },
    };

    (void)state;
    CHECK(rows);
}

static void filters(void **state)
{
    static const struct row rows[] = {
        { "{{ d | tojson }}", "{\"k\": \"v\", \"l\": [1, 2], \"z\": {\"y\": 1}}" },
        { "{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
          "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}" },
        { "{{ 'é\"\\n\\x01<' | tojson }}", "\"é\\\"\\n\\u0001<\"" },
        { "{{ w | trim }}|{{ 'xxaxx' | trim('x') }}|{{ none | trim }}", "pad|a|None" },
        { "{{ s | length }} {{ a | length }} {{ q | length }}", "12 7 0" },
        { "{{ a | first }} {{ a | last }} {{ a | join('-') }}", "1 2.5 1-2-3-x-None-True-2.5" },
        { "{{ ms | map(attribute='role') | join(' ') }} {{ ['a'] | map('upper') | list }}",
          "user assistant ['A']" },
        { "{{ ms | selectattr('role', 'equalto', 'user') | list | length }}", "1" },
        { "{{ [1, 2, 3] | reject('even') | list }} {{ a | select('string') | list }}",
          "[1, 3] ['x']" },
        { "{{ q | default('x') }} {{ none | default('x') }} {{ '' | default('x', true) }}",
          "x None x" },
        { "{{ '3' | int }} {{ 'x' | int(9) }} {{ 3.9 | int }} {{ 'x' | float(1.5) }}",
          "3 9 3 1.5" },
        { "{{ ['b', 'A'] | sort }} {{ [3, 1] | sort(reverse=true) }} {{ [3, 1] | min }}",
          "['A', 'b'] [3, 1] 1" },
        { "{{ d | items | list | first }} {{ d | dictsort | last }}",
          "('k', 'v') ('z', {'y': 1})" },
        { "{{ 'a\\nb' | indent(2) }} {{ '%s-%03d' | format('a', 7) }} {{ '%.1f' % 2.25 }}",
          "a\n  b a-007 2.2" },
        { "{{ s | upper }} {{ 'ab cd' | title }} {{ 'hE' | capitalize }} {{ 'aaa' | replace('a', "
          "'b', 2) }}",
          "HELLO, WÖRLD Ab Cd He bba" },
    };

    (void)state;
    CHECK(rows);
}

static void methods_and_tests(void **state)
{
    static const struct row rows[] = {
        { "{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1)[1] }} {{ ' a  b '.split() }}",
          "['a', 'b', 'c'] b,c ['a', 'b']" },
        { "{{ '\\n a \\n'.strip('\\n') }}|{{ ' a '.lstrip() }}|{{ ' a '.rstrip() }}|",
          " a |a | a|" },
        { "{{ s.startswith('Hell') }} {{ s.endswith(('x', 'd')) }} {{ s.find('w') }}",
          "True True 7" },
        { "{{ d.get('k') }} {{ d.get('q') }} {{ d.get('q', 1) }} {{ d.keys() | list }}",
          "v None 1 ['k', 'l', 'z']" },
        { "{{ q is defined }} {{ n is not defined }} {{ none is none }} {{ d.q is defined }}",
          "False False True False" },
        { "{{ s is string }} {{ d is mapping }} {{ s is iterable }} {{ a is sequence }} {{ n is "
          "number }}",
          "True True True True True" },
        { "{{ t is true }} {{ n is true }} {{ t is boolean }} {{ t is integer }} {{ n is odd }}",
          "True False True False True" },
        { "{{ range(3) | list }} {{ range(5, 0, -2) | list }} {{ dict(a=1).a }}",
          "[0, 1, 2] [5, 3, 1] 1" },
    };

    (void)state;
    CHECK(rows);
}

static void errors(void **state)
{
    static const struct {
        const char *source;
        int status;
        const char *words;
    } rows[] = {
        { "a\n{% if t %}", ERR_BADMSG,
          "line 2: unexpected the end of the template, expected endif" },
        { "{% endif %}", ERR_BADMSG, "unexpected 'endif'" },
        { "{{ n | nosuch }}", ERR_UNSUPPORTED, "no filter 'nosuch'" },
        { "{{ n is nosuch }}", ERR_UNSUPPORTED, "no test 'nosuch'" },
        { "{{ 'abc }}", ERR_BADMSG, "string is not closed" },
        { "{{ n", ERR_BADMSG, "not closed with }}" },
        { "{# n", ERR_BADMSG, "comment is not closed" },
        { "{% break %}", ERR_BADMSG, "loops only" },
        { "{% include 'x' %}", ERR_BADMSG, "unexpected 'include'" },
        { "\xff", ERR_BADMSG, "not UTF-8" },
        { "\n{{ q.x }}", ERR_BADMSG, "line 2: 'q' is undefined" },
        { "{{ 'a' + none }}", ERR_BADMSG, "for +: 'str' and 'NoneType'" },
        { "{{ n + 9223372036854775807 }}", ERR_LIMIT, "does not fit 64 bits" },
        { "{{ 1 // 0 }}", ERR_BADMSG, "division by zero" },
        { "{{ q | tojson }}", ERR_BADMSG, "not JSON serializable" },
        { "{{ n() }}", ERR_BADMSG, "'int' object is not callable" },
        { "{{ s | trim(1, 2) }}", ERR_BADMSG, "trim takes at most 1 arguments" },
        { "{{ raise_exception('no ' ~ n) }}", ERR_INVAL, "no 7" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = { 0 };
        char *text;

        assert_int_equal(render(rows[i].source, variables, &text, &e), rows[i].status);
        if (!strstr(e.text, rows[i].words))
            fail_msg("%s: '%s' lacks '%s'", rows[i].source, e.text, rows[i].words);
    }
}

static void check_limit(const char *source)
{
    struct err e = { 0 };
    char *text;

    assert_int_equal(render(source, variables, &text, &e), ERR_LIMIT);
    assert_true(e.text[0] != '\0');
}

/* Whatever a template does, it ends. */
static void limits(void **state)
{
    struct buf deep;

    (void)state;
    check_limit("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}");
    check_limit("{{ range(100000000) }}");
    check_limit("{{ 'abcdefgh' * 100000000 }}");
    check_limit("{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}");
    check_limit(
        "{% set ns = namespace(s='abcdefgh') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}"
        "{% endfor %}");
    check_limit(
        "{% set x %}{% for a in range(9999) %}{{ 'abcdefgh' * 9999 }}{% endfor %}{% endset %}");
    buf_init(&deep, BUF_MAX_BODY);
    buf_puts(&deep, "{{ ");
    for (int i = 0; i < 5000; i++)
        buf_puts(&deep, "(");
    for (int i = 0; i < 5000; i++)
        buf_puts(&deep, ")");
    buf_puts(&deep, " }}");
    check_limit(buf_str(&deep));
    buf_reset(&deep);
    buf_puts(&deep, "{{ 1");
    for (int i = 0; i < 5000; i++)
        buf_puts(&deep, " + 1");
    buf_puts(&deep, " }}");
    check_limit(buf_str(&deep));
    buf_reset(&deep);
    for (int i = 0; i < 5000; i++)
        buf_puts(&deep, "{% if t %}");
    check_limit(buf_str(&deep));
    buf_finish(&deep);
}

/* `now` is seconds since 1970; without it the function is not there, and templates fall back. */
static void time_of_day(void **state)
{
    const char *source = "{{ strftime_now('%Y') if strftime_now is defined else 'none' }}";
    struct err e = { 0 };
    char *text;

    (void)state;
    assert_int_equal(render(source, "{}", &text, &e), 0);
    assert_string_equal(text, "none");
    free(text);
    assert_int_equal(render(source, "{\"now\":1752000000}", &text, &e), 0);
    assert_string_equal(text, "2025");
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values),
        cmocka_unit_test(statements),
        cmocka_unit_test(white_space),
        cmocka_unit_test(filters),
        cmocka_unit_test(methods_and_tests),
        cmocka_unit_test(errors),
        cmocka_unit_test(limits),
        cmocka_unit_test(time_of_day),
    };

    return cmocka_run_group_tests_name("template", tests, NULL, NULL);
}
