/* The methods of strings. */
#include <string.h>
#include <utf8proc.h>

#include "base/status.h"
#include "text/jinja/builtins.h"
#include "text/jinja/space.h"
#include "text/template.h"
#include "text/utf8.h"

static int strip(struct render *r, const struct value *in, const struct args *a, int side,
                 struct value *out)
{
    struct str chars = { 0 }, s;
    int st = a->v[0] && a->v[0]->kind != NONE ? need_string(r, "strip", a->v[0], &chars) : 0;

    if (st < 0)
        return st;
    s = strip_text(&in->str, &chars, side);
    *out = value_str(s.s, s.n);
    return 0;
}

BUILTIN(m_strip)
{
    return strip(r, in, a, 3, out);
}

BUILTIN(m_lstrip)
{
    return strip(r, in, a, 1, out);
}

BUILTIN(m_rstrip)
{
    return strip(r, in, a, 2, out);
}

static int push_text(struct render *r, struct list *l, const char *s, size_t n)
{
    return list_push(&r->arena, l, value_str(s, n)) < 0 ? render_no_memory(r) : 0;
}

/* At runs of white space; nothing empty comes out. */
static int split_space(struct render *r, struct list *l, struct str s, int64_t max)
{
    int st = 0;

    s = strip_text(&s, &(struct str){ 0 }, max < 0 ? 3 : 1);
    while (st == 0 && s.n > 0) {
        size_t at = 0, len;

        while (at < s.n && !space_is(utf8_get(s.s + at, &len)))
            at += len;
        if (max >= 0 && (int64_t)l->n == max)
            at = s.n - space_suffix(s.s, s.n);
        st = push_text(r, l, s.s, at);
        at += space_prefix(s.s + at, s.n - at);
        s = (struct str){ s.s + at, s.n - at };
    }
    return st;
}

static int split_at(struct render *r, struct list *l, struct str s, const struct str *sep,
                    int64_t max)
{
    const char *hit;
    int st = 0;

    while (st == 0 && (max < 0 || (int64_t)l->n < max) &&
           (hit = memmem(s.s, s.n, sep->s, sep->n))) {
        st = push_text(r, l, s.s, (size_t)(hit - s.s));
        s = (struct str){ hit + sep->n, s.n - (size_t)(hit - s.s) - sep->n };
    }
    return st < 0 ? st : push_text(r, l, s.s, s.n);
}

BUILTIN(m_split)
{
    struct list *l = list_new(&r->arena, 8);
    struct str sep = { 0 };
    int64_t max;
    int st = arg_int(r, a, 1, -1, &max);

    if (st == 0 && a->v[0] && a->v[0]->kind != NONE)
        st = need_string(r, "split", a->v[0], &sep);
    if (st < 0)
        return st;
    if (!l)
        return render_no_memory(r);
    if (sep.s && sep.n == 0)
        return render_fail(r, ERR_BADMSG, "split: the separator is empty");
    *out = (struct value){ .kind = LIST, .list = l };
    return sep.s ? split_at(r, l, in->str, &sep, max) : split_space(r, l, in->str, max);
}

/* The last place of sep in s, NULL if there is none. */
static const char *find_last(const struct str *s, const struct str *sep)
{
    if (sep->n > s->n)
        return NULL;
    for (const char *p = s->s + s->n - sep->n;; p--) {
        if (memcmp(p, sep->s, sep->n) == 0)
            return p;
        if (p == s->s)
            return NULL;
    }
}

/* From the right: the parts are collected backwards and turned round. */
BUILTIN(m_rsplit)
{
    struct list *l = list_new(&r->arena, 8);
    struct str s = in->str, sep;
    const char *hit;
    int64_t max;
    int st;

    if (!a->v[0] || a->v[0]->kind == NONE)
        return render_fail(r, ERR_UNSUPPORTED, "rsplit without a separator is not supported");
    if ((st = need_string(r, "rsplit", a->v[0], &sep)) < 0 || (st = arg_int(r, a, 1, -1, &max)) < 0)
        return st;
    if (!l || sep.n == 0)
        return l ? render_fail(r, ERR_BADMSG, "rsplit: the separator is empty")
                 : render_no_memory(r);
    while (st == 0 && (max < 0 || (int64_t)l->n < max) && (hit = find_last(&s, &sep))) {
        st = push_text(r, l, hit + sep.n, s.n - (size_t)(hit - s.s) - sep.n);
        s.n = (size_t)(hit - s.s);
    }
    if (st < 0 || (st = push_text(r, l, s.s, s.n)) < 0)
        return st;
    for (size_t i = 0; i < l->n / 2; i++) {
        struct value v = l->v[i];

        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
    *out = (struct value){ .kind = LIST, .list = l };
    return 0;
}

BUILTIN(m_splitlines)
{
    struct list *l = list_new(&r->arena, 8);
    bool keep = arg_truth(a, 0, false);
    const char *s = in->str.s, *end = s + in->str.n;
    int st = l ? 0 : render_no_memory(r);

    while (st == 0 && s < end) {
        size_t n = 0, brk = 0;

        while (s + n < end && s[n] != '\n' && s[n] != '\r')
            n++;
        if (s + n < end)
            brk = s[n] == '\r' && s + n + 1 < end && s[n + 1] == '\n' ? 2 : 1;
        st = push_text(r, l, s, keep ? n + brk : n);
        s += n + brk;
    }
    *out = (struct value){ .kind = LIST, .list = l };
    return st;
}

static bool ends(const struct str *s, const struct str *with, bool front)
{
    return with->n <= s->n && memcmp(front ? s->s : s->s + s->n - with->n, with->s, with->n) == 0;
}

/* startswith and endswith take one text or a tuple of them. */
static int affix(struct render *r, const struct value *in, const struct args *a, bool front,
                 struct value *out)
{
    const struct value *v = a->v[0];
    struct str with;
    int st;

    *out = value_bool(false);
    if (v && v->kind == TUPLE) {
        for (size_t i = 0; !out->b && i < v->list->n; i++)
            out->b = v->list->v[i].kind == STRING && ends(&in->str, &v->list->v[i].str, front);
        return 0;
    }
    if (!v)
        return render_fail(r, ERR_BADMSG, "startswith and endswith need an argument");
    if ((st = need_string(r, front ? "startswith" : "endswith", v, &with)) == 0)
        out->b = ends(&in->str, &with, front);
    return st;
}

BUILTIN(m_startswith)
{
    return affix(r, in, a, true, out);
}

BUILTIN(m_endswith)
{
    return affix(r, in, a, false, out);
}

static int remove_affix(struct render *r, const struct value *in, const struct args *a, bool front,
                        struct value *out)
{
    struct str with;
    int st = arg_text(r, a, 0, "", &with);

    *out = *in;
    if (st == 0 && ends(&in->str, &with, front))
        *out = value_str(in->str.s + (front ? with.n : 0), in->str.n - with.n);
    return st;
}

BUILTIN(m_removeprefix)
{
    return remove_affix(r, in, a, true, out);
}

BUILTIN(m_removesuffix)
{
    return remove_affix(r, in, a, false, out);
}

BUILTIN(m_replace)
{
    struct str from, to;
    int64_t count;
    int st;

    if (!a->v[0] || !a->v[1])
        return render_fail(r, ERR_BADMSG, "replace needs two arguments");
    if ((st = need_string(r, "replace", a->v[0], &from)) < 0 ||
        (st = need_string(r, "replace", a->v[1], &to)) < 0 ||
        (st = arg_int(r, a, 2, -1, &count)) < 0)
        return st;
    return replace_text(r, &in->str, &from, &to, count, out);
}

#define CASE_METHOD(name, how)                                                                     \
    BUILTIN(name)                                                                                  \
    {                                                                                              \
        (void)a;                                                                                   \
        return change_case(r, &in->str, how, out);                                                 \
    }

CASE_METHOD(m_upper, CASE_UPPER)
CASE_METHOD(m_lower, CASE_LOWER)
CASE_METHOD(m_capitalize, CASE_CAPITALIZE)
CASE_METHOD(m_title, CASE_TITLE)

/* Characters before a place in s. */
static int64_t index_at(const struct str *s, const char *at)
{
    int64_t n = 0;

    for (const char *p = s->s; p < at; p++)
        n += ((unsigned char)*p & 0xc0) != 0x80;
    return n;
}

BUILTIN(m_find)
{
    const char *hit;
    struct str what;
    int st = arg_text(r, a, 0, "", &what);

    if (st < 0)
        return st;
    hit = what.n ? memmem(in->str.s, in->str.n, what.s, what.n) : in->str.s;
    *out = value_int(hit ? index_at(&in->str, hit) : -1);
    return 0;
}

BUILTIN(m_rfind)
{
    const char *hit;
    struct str what;
    int st = arg_text(r, a, 0, "", &what);

    if (st < 0)
        return st;
    hit = find_last(&in->str, &what);
    *out = value_int(hit ? index_at(&in->str, hit) : -1);
    return 0;
}

BUILTIN(m_count)
{
    struct str what, rest = in->str;
    const char *hit;
    int st = arg_text(r, a, 0, "", &what);

    *out = value_int(0);
    if (st < 0 || what.n == 0)
        return st;
    while ((hit = memmem(rest.s, rest.n, what.s, what.n))) {
        out->i++;
        rest = (struct str){ hit + what.n, rest.n - (size_t)(hit - rest.s) - what.n };
    }
    return 0;
}

BUILTIN(m_join)
{
    const struct value *items;
    struct str one;
    struct buf b;
    size_t n;
    int st;

    if (!a->v[0])
        return render_fail(r, ERR_BADMSG, "join needs a sequence");
    if ((st = render_items(r, a->v[0], &items, &n)) < 0)
        return st;
    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (size_t i = 0; st == 0 && i < n; i++) {
        if (i)
            buf_append(&b, in->str.s, in->str.n);
        if ((st = need_string(r, "join", &items[i], &one)) == 0)
            buf_append(&b, one.s, one.n);
    }
    if (st == 0)
        return render_take(r, &b, out);
    buf_finish(&b);
    return st;
}

/* Is every character (and there is one) of these categories? */
static bool all_in(const struct str *s, uint32_t categories)
{
    for (size_t at = 0, len; at < s->n; at += len)
        if (!(categories & 1u << utf8proc_category((int32_t)utf8_get(s->s + at, &len))))
            return false;
    return s->n > 0;
}

#define LETTERS                                                                                    \
    (1u << UTF8PROC_CATEGORY_LU | 1u << UTF8PROC_CATEGORY_LL | 1u << UTF8PROC_CATEGORY_LT |        \
     1u << UTF8PROC_CATEGORY_LM | 1u << UTF8PROC_CATEGORY_LO)
#define DIGITS (1u << UTF8PROC_CATEGORY_ND)

#define CLASS_METHOD(name, condition)                                                              \
    BUILTIN(name)                                                                                  \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)a;                                                                                   \
        *out = value_bool(condition);                                                              \
        return 0;                                                                                  \
    }

CLASS_METHOD(m_isalpha, all_in(&in->str, LETTERS))
CLASS_METHOD(m_isdigit, all_in(&in->str, DIGITS))
CLASS_METHOD(m_isalnum, all_in(&in->str, LETTERS | DIGITS))
CLASS_METHOD(m_isspace, in->str.n > 0 && space_prefix(in->str.s, in->str.n) == in->str.n)

BUILTIN(m_isupper)
{
    struct args none = { 0 };

    (void)a;
    return render_call_builtin(r, jinja_find_test("upper", 5), in, &none, out);
}

BUILTIN(m_islower)
{
    struct args none = { 0 };

    (void)a;
    return render_call_builtin(r, jinja_find_test("lower", 5), in, &none, out);
}

const struct builtin string_methods[] = {
    { "capitalize", m_capitalize, NULL },
    { "count", m_count, "sub" },
    { "endswith", m_endswith, "suffix" },
    { "find", m_find, "sub" },
    { "isalnum", m_isalnum, NULL },
    { "isalpha", m_isalpha, NULL },
    { "isdecimal", m_isdigit, NULL },
    { "isdigit", m_isdigit, NULL },
    { "islower", m_islower, NULL },
    { "isspace", m_isspace, NULL },
    { "isupper", m_isupper, NULL },
    { "join", m_join, "iterable" },
    { "lower", m_lower, NULL },
    { "lstrip", m_lstrip, "chars" },
    { "removeprefix", m_removeprefix, "prefix" },
    { "removesuffix", m_removesuffix, "suffix" },
    { "replace", m_replace, "old new count" },
    { "rfind", m_rfind, "sub" },
    { "rsplit", m_rsplit, "sep maxsplit" },
    { "rstrip", m_rstrip, "chars" },
    { "split", m_split, "sep maxsplit" },
    { "splitlines", m_splitlines, "keepends" },
    { "startswith", m_startswith, "prefix" },
    { "strip", m_strip, "chars" },
    { "title", m_title, NULL },
    { "upper", m_upper, NULL },
    { 0 },
};
