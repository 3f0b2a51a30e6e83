/* Functions: range, namespace, dict, raise_exception, strftime_now. */
#include <string.h>
#include <time.h>

#include "base/status.h"
#include "text/jinja/builtins.h"

BUILTIN(g_range)
{
    int64_t n[3] = { 0, 0, 1 };
    struct list *l = list_new(&r->arena, 0);

    (void)in;
    if (!l)
        return render_no_memory(r);
    if (a->n < 1 || a->n > 3 || a->n_named)
        return render_fail(r, ERR_BADMSG, "range takes one to three integers");
    for (size_t i = 0; i < a->n; i++)
        if (!value_as_int(&a->pos[i], &n[a->n == 1 ? 1 : i]))
            return render_fail(r, ERR_BADMSG, "range takes integers, not '%s'",
                               value_type(&a->pos[i]));
    if (n[2] == 0)
        return render_fail(r, ERR_BADMSG, "the step of range is 0");
    for (int64_t i = n[0]; n[2] > 0 ? i < n[1] : i > n[1];) {
        if (list_push(&r->arena, l, value_int(i)) < 0)
            return render_no_memory(r);
        if (__builtin_add_overflow(i, n[2], &i))
            break;
    }
    *out = (struct value){ .kind = LIST, .list = l };
    return 0;
}

/* A dict from the arguments' names, and from a dict given first. */
static int named_dict(struct render *r, const struct args *a, struct dict **out)
{
    struct dict *d = dict_new(&r->arena, a->n_named);
    int st = d ? 0 : ERR_LIMIT;

    if (a->n > 1 || (a->n == 1 && a->pos[0].kind != DICT))
        return render_fail(r, ERR_BADMSG, "one dict and named values are taken");
    for (size_t i = 0; st == 0 && a->n == 1 && i < a->pos[0].dict->n; i++)
        st = dict_set(&r->arena, d, a->pos[0].dict->key[i], a->pos[0].dict->val[i]);
    for (size_t i = 0; st == 0 && i < a->n_named; i++)
        st = dict_set(&r->arena, d, value_str(a->name[i].s, a->name[i].n), a->named[i]);
    *out = d;
    return st < 0 ? render_no_memory(r) : 0;
}

BUILTIN(g_namespace)
{
    struct dict *d;
    int st = named_dict(r, a, &d);

    (void)in;
    if (st == 0)
        *out = (struct value){ .kind = NAMESPACE, .dict = d };
    return st;
}

BUILTIN(g_dict)
{
    struct dict *d;
    int st = named_dict(r, a, &d);

    (void)in;
    if (st == 0)
        *out = (struct value){ .kind = DICT, .dict = d };
    return st;
}

/* The template refuses its input: its words are the whole error. */
BUILTIN(g_raise_exception)
{
    struct str s;
    int st = arg_text(r, a, 0, "the template raised an exception", &s);

    (void)in;
    *out = (struct value){ .kind = NONE };
    return st < 0 ? st : err_set(r->e, ERR_INVAL, "%.*s", (int)(s.n > 900 ? 900 : s.n), s.s);
}

BUILTIN(g_strftime_now)
{
    time_t t = (time_t)(r->now ? value_as_double(r->now) : 0);
    char format[256], text[512];
    struct str s;
    struct tm tm;
    int st = arg_text(r, a, 0, "%Y-%m-%d", &s);

    (void)in;
    if (st < 0)
        return st;
    if (s.n >= sizeof format || !localtime_r(&t, &tm))
        return render_fail(r, ERR_BADMSG,
                           "strftime_now: the format is too long or the time too far");
    memcpy(format, s.s, s.n);
    format[s.n] = '\0';
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    return render_string(r, text, strftime(text, sizeof text, format, &tm), out);
#pragma GCC diagnostic pop
}

const struct builtin functions[] = {
    { "dict", g_dict, "*" },
    { "namespace", g_namespace, "*" },
    { "raise_exception", g_raise_exception, "message" },
    { "range", g_range, "*" },
    { "strftime_now", g_strftime_now, "format" },
    { 0 },
};
