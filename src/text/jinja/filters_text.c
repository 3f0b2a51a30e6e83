/* Filters that give text or a number. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/jinja/builtins.h"
#include "text/template.h"

static int f_case(struct render *r, const struct value *in, enum letter_case how, struct value *out)
{
    struct str s;
    int st = render_text(r, in, &s);

    return st < 0 ? st : change_case(r, &s, how, out);
}

BUILTIN(f_upper)
{
    (void)a;
    return f_case(r, in, CASE_UPPER, out);
}

BUILTIN(f_lower)
{
    (void)a;
    return f_case(r, in, CASE_LOWER, out);
}

BUILTIN(f_capitalize)
{
    (void)a;
    return f_case(r, in, CASE_CAPITALIZE, out);
}

BUILTIN(f_title)
{
    (void)a;
    return f_case(r, in, CASE_WORDS, out);
}

BUILTIN(f_string)
{
    struct str s;
    int st = render_text(r, in, &s);

    (void)a;
    *out = value_str(s.s, s.n);
    return st;
}

BUILTIN(f_trim)
{
    struct str s, chars;
    int st;

    if ((st = render_text(r, in, &s)) < 0 || (st = arg_text(r, a, 0, NULL, &chars)) < 0)
        return st;
    s = strip_text(&s, &chars, 3);
    *out = value_str(s.s, s.n);
    return 0;
}

BUILTIN(f_replace)
{
    struct str s, from, to;
    int64_t count;
    int st;

    if ((st = render_text(r, in, &s)) < 0 || (st = arg_text(r, a, 0, "", &from)) < 0 ||
        (st = arg_text(r, a, 1, "", &to)) < 0 || (st = arg_int(r, a, 2, -1, &count)) < 0)
        return st;
    return replace_text(r, &s, &from, &to, count, out);
}

BUILTIN(f_escape)
{
    static const struct {
        char c;
        const char *text;
    } names[] = {
        { '&', "&amp;" }, { '<', "&lt;" }, { '>', "&gt;" }, { '"', "&#34;" }, { '\'', "&#39;" }
    };
    struct str s;
    struct buf b;
    int st = render_text(r, in, &s);

    (void)a;
    if (st < 0)
        return st;
    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (size_t i = 0; i < s.n; i++) {
        const char *text = NULL;

        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            if (s.s[i] == names[k].c)
                text = names[k].text;
        if (text)
            buf_puts(&b, text);
        else
            buf_putc(&b, s.s[i]);
    }
    return render_take(r, &b, out);
}

/* Every line but the first (and the empty ones) gets a prefix: blanks or a given text. */
BUILTIN(f_indent)
{
    struct str s, prefix = { 0 };
    int64_t width = 4;
    bool first = arg_truth(a, 1, false), blank = arg_truth(a, 2, false), start = true;
    struct buf b;
    int st = render_text(r, in, &s);

    if (st == 0 && a->v[0] && a->v[0]->kind == STRING)
        prefix = a->v[0]->str;
    else if (st == 0)
        st = arg_int(r, a, 0, 4, &width);
    if (st < 0)
        return st;
    if (width < 0 || width > 1000)
        return render_fail(r, ERR_LIMIT, "an indent of %lld is not from 0 to 1000",
                           (long long)width);
    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (size_t i = 0; i < s.n; i++) {
        if (start && (i > 0 || first) && (blank || s.s[i] != '\n')) {
            if (prefix.s)
                buf_append(&b, prefix.s, prefix.n);
            else
                buf_printf(&b, "%*s", (int)width, "");
        }
        buf_putc(&b, s.s[i]);
        start = s.s[i] == '\n';
    }
    return render_take(r, &b, out);
}

BUILTIN(f_tojson)
{
    const char *type = "";
    int64_t indent;
    struct buf b;
    int st = arg_int(r, a, 0, -1, &indent);

    if (st < 0)
        return st;
    if (a->v[1] && value_truth(a->v[1]))
        return render_fail(r, ERR_UNSUPPORTED, "tojson with ensure_ascii is not supported");
    if (indent > 100)
        return render_fail(r, ERR_LIMIT, "an indent of %lld is above 100", (long long)indent);
    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    st = value_write_json(&b, in, indent < 0 ? -1 : (int)indent, 0, &type);
    if (st < 0 && !b.status) {
        buf_finish(&b);
        return render_fail(r, ERR_BADMSG, "object of type %s is not JSON serializable", type);
    }
    return render_take(r, &b, out);
}

BUILTIN(f_format)
{
    struct str s;
    int st = render_text(r, in, &s);

    return st < 0 ? st : render_format(r, &s, a->pos, a->n, out);
}

/* Text as Python's int() or float() reads it; false if it is none. */
static bool read_number(struct render *r, const struct value *in, double *f)
{
    struct str s;
    char *end, *copy;

    if (in->kind != STRING)
        return false;
    s = strip_text(&in->str, &(struct str){ 0 }, 3);
    if (!s.n || !(copy = arena_copy(&r->arena, s.s, s.n)))
        return false;
    *f = strtod(copy, &end);
    return end == copy + s.n && isfinite(*f);
}

BUILTIN(f_int)
{
    int64_t def;
    double f = 0;
    int st = arg_int(r, a, 0, 0, &def);

    if (st < 0)
        return st;
    if (in->kind == UNDEFINED)
        return render_undefined(r, in);
    *out = value_int(def);
    if (value_as_int(in, &out->i))
        return 0;
    if (in->kind == FLOAT)
        f = in->f;
    else if (!read_number(r, in, &f))
        return 0;
    if (fabs(f) < 9e18)
        out->i = (int64_t)f;
    if (in->kind == STRING && fabs(f) > 9e15)
        out->i = strtoll(arena_copy(&r->arena, in->str.s, in->str.n) ?: "0", NULL, 10);
    return 0;
}

BUILTIN(f_float)
{
    double f = a->v[0] && is_number(a->v[0]) ? value_as_double(a->v[0]) : 0.0, own;

    if (in->kind == UNDEFINED)
        return render_undefined(r, in);
    if (is_number(in))
        f = value_as_double(in);
    else if (read_number(r, in, &own))
        f = own;
    *out = (struct value){ .kind = FLOAT, .f = f };
    return 0;
}

BUILTIN(f_abs)
{
    (void)a;
    if (!is_number(in))
        return render_fail(r, ERR_BADMSG, "abs needs a number, not '%s'", value_type(in));
    *out = *in;
    if (in->kind == FLOAT)
        out->f = fabs(in->f);
    else if (value_as_int(in, &out->i)) {
        out->kind = INT;
        if (out->i == INT64_MIN)
            return render_fail(r, ERR_LIMIT, "a number is too large");
        out->i = llabs(out->i);
    }
    return 0;
}

/* "common" (half to even, as Python's round), "ceil" or "floor"; always a float. */
BUILTIN(f_round)
{
    int64_t digits;
    double scale;
    int st = arg_int(r, a, 0, 0, &digits);

    if (st < 0)
        return st;
    if (!is_number(in))
        return render_fail(r, ERR_BADMSG, "round needs a number, not '%s'", value_type(in));
    if (digits < -15 || digits > 15)
        return render_fail(r, ERR_LIMIT, "round to %lld digits", (long long)digits);
    scale = pow(10, (double)digits);
    *out = (struct value){ .kind = FLOAT, .f = value_as_double(in) * scale };
    if (a->v[1] && value_is(a->v[1], "ceil"))
        out->f = ceil(out->f) / scale;
    else if (a->v[1] && value_is(a->v[1], "floor"))
        out->f = floor(out->f) / scale;
    else
        out->f = rint(out->f) / scale;
    return 0;
}

BUILTIN(f_wordcount)
{
    struct str s;
    int64_t n = 0;
    int st = render_text(r, in, &s);

    (void)a;
    for (size_t i = 0; st == 0 && i < s.n; i++)
        n += !strchr(" \t\n\r\f\v", s.s[i]) && (i == 0 || strchr(" \t\n\r\f\v", s.s[i - 1]));
    *out = value_int(n);
    return st;
}

const struct builtin text_filters[] = {
    { "abs", f_abs, NULL },
    { "capitalize", f_capitalize, NULL },
    { "e", f_escape, NULL },
    { "escape", f_escape, NULL },
    { "float", f_float, "default" },
    { "forceescape", f_escape, NULL },
    { "format", f_format, "*" },
    { "indent", f_indent, "width first blank" },
    { "int", f_int, "default base" },
    { "lower", f_lower, NULL },
    { "replace", f_replace, "old new count" },
    { "round", f_round, "precision method" },
    { "safe", f_string, NULL },
    { "string", f_string, NULL },
    { "title", f_title, NULL },
    { "tojson", f_tojson, "indent ensure_ascii" },
    { "trim", f_trim, "chars" },
    { "upper", f_upper, NULL },
    { "wordcount", f_wordcount, NULL },
    { 0 },
};
