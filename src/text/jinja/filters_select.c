/* Filters that apply another filter or test to each item. */
#include <string.h>

#include "base/status.h"
#include "text/jinja/builtins.h"

/* The arguments from `from` on, and the named ones. */
static struct args rest(const struct args *a, size_t from)
{
    from = from < a->n ? from : a->n;
    return (struct args){ .pos = a->pos + from,
                          .n = a->n - from,
                          .name = a->name,
                          .named = a->named,
                          .n_named = a->n_named };
}

static const struct value *named(const struct args *a, const char *name)
{
    for (size_t i = 0; i < a->n_named; i++)
        if (strlen(name) == a->name[i].n && memcmp(name, a->name[i].s, a->name[i].n) == 0)
            return &a->named[i];
    return NULL;
}

/* map(attribute="x", default=y) or map("filter", ...). */
BUILTIN(f_map)
{
    const struct value *path = named(a, "attribute"), *def = named(a, "default");
    const struct builtin *fn = NULL;
    struct list *l;
    int st = list_of(r, in, &l);

    if (st < 0)
        return st;
    if (!path && (a->n == 0 || a->pos[0].kind != STRING ||
                  !(fn = jinja_find_filter(a->pos[0].str.s, a->pos[0].str.n))))
        return render_fail(r, ERR_BADMSG, "map needs attribute=... or the name of a filter");
    for (size_t i = 0; st == 0 && i < l->n; i++) {
        struct args more = rest(a, 1);
        struct value v = l->v[i];

        st = path ? attr_path(r, &v, path, &l->v[i])
                  : render_call_builtin(r, fn, &v, &more, &l->v[i]);
        if (st == 0 && path && def && l->v[i].kind == UNDEFINED)
            l->v[i] = *def;
    }
    *out = (struct value){ .kind = LIST, .list = l };
    return st;
}

/* Does v pass the test whose name is argument k? Without a name: is it true? */
static int passes(struct render *r, const struct value *v, const struct args *a, size_t k,
                  bool *out)
{
    const struct builtin *test;
    struct args more = rest(a, k + 1);
    struct value yes;
    int st;

    *out = value_truth(v);
    if (k >= a->n)
        return 0;
    if (a->pos[k].kind != STRING || !(test = jinja_find_test(a->pos[k].str.s, a->pos[k].str.n)))
        return render_fail(r, ERR_BADMSG, "select and reject need the name of a test");
    if ((st = render_call_builtin(r, test, v, &more, &yes)) == 0)
        *out = value_truth(&yes);
    return st;
}

/* The items that pass (want true) or do not, by themselves or by their attribute. */
static int choose(struct render *r, const struct value *in, const struct args *a, bool by_attr,
                  bool want, struct value *out)
{
    struct list *l;
    size_t kept = 0;
    int st = list_of(r, in, &l);

    if (st == 0 && by_attr && a->n == 0)
        return render_fail(r, ERR_BADMSG, "selectattr and rejectattr need an attribute");
    for (size_t i = 0; st == 0 && i < l->n; i++) {
        struct value v = l->v[i];
        bool pass = false;

        if (by_attr)
            st = attr_path(r, &l->v[i], &a->pos[0], &v);
        if (st == 0)
            st = passes(r, &v, a, by_attr ? 1 : 0, &pass);
        if (pass == want)
            l->v[kept++] = l->v[i];
    }
    if (st < 0)
        return st;
    l->n = kept;
    *out = (struct value){ .kind = LIST, .list = l };
    return 0;
}

BUILTIN(f_select)
{
    return choose(r, in, a, false, true, out);
}

BUILTIN(f_reject)
{
    return choose(r, in, a, false, false, out);
}

BUILTIN(f_selectattr)
{
    return choose(r, in, a, true, true, out);
}

BUILTIN(f_rejectattr)
{
    return choose(r, in, a, true, false, out);
}

const struct builtin select_filters[] = {
    { "map", f_map, "*" },
    { "reject", f_reject, "*" },
    { "rejectattr", f_rejectattr, "*" },
    { "select", f_select, "*" },
    { "selectattr", f_selectattr, "*" },
    { 0 },
};
