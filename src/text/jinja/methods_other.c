/* The methods of dicts, lists and loops. */

#include "base/status.h"
#include "text/jinja/builtins.h"

BUILTIN(m_get)
{
    const struct value *v = a->v[0] ? dict_find(in->dict, a->v[0]) : NULL;

    if (!a->v[0])
        return render_fail(r, ERR_BADMSG, "get needs a key");
    *out = v ? *v : a->v[1] ? *a->v[1] : (struct value){ .kind = NONE };
    return 0;
}

BUILTIN(m_items)
{
    struct args none = { 0 };

    (void)a;
    return render_call_builtin(r, jinja_find_filter("items", 5), in, &none, out);
}

/* A list over keys or values, which never change once a template can see them. */
static int view(struct render *r, struct value *v, size_t n, struct value *out)
{
    struct list *l = list_new(&r->arena, 0);

    if (!l)
        return render_no_memory(r);
    *l = (struct list){ v, n, n };
    *out = (struct value){ .kind = LIST, .list = l };
    return 0;
}

BUILTIN(m_keys)
{
    (void)a;
    return view(r, in->dict->key, in->dict->n, out);
}

BUILTIN(m_values)
{
    (void)a;
    return view(r, in->dict->val, in->dict->n, out);
}

BUILTIN(m_copy)
{
    (void)r;
    (void)a;
    *out = *in;
    return 0;
}

const struct builtin dict_methods[] = {
    { "copy", m_copy, NULL }, { "get", m_get, "key default" }, { "items", m_items, NULL },
    { "keys", m_keys, NULL }, { "values", m_values, NULL },    { 0 },
};

BUILTIN(m_count)
{
    int64_t n = 0;

    if (!a->v[0])
        return render_fail(r, ERR_BADMSG, "count needs an item");
    for (size_t i = 0; i < in->list->n; i++)
        n += value_equal(&in->list->v[i], a->v[0]);
    *out = value_int(n);
    return 0;
}

BUILTIN(m_index)
{
    for (size_t i = 0; a->v[0] && i < in->list->n; i++)
        if (value_equal(&in->list->v[i], a->v[0])) {
            *out = value_int((int64_t)i);
            return 0;
        }
    return render_fail(r, ERR_BADMSG, "index: the item is not in the list");
}

const struct builtin list_methods[] = {
    { "copy", m_copy, NULL },
    { "count", m_count, "item" },
    { "index", m_index, "item" },
    { 0 },
};

BUILTIN(m_cycle)
{
    if (a->n == 0)
        return render_fail(r, ERR_BADMSG, "cycle needs values");
    *out = a->pos[in->loop->at % a->n];
    return 0;
}

/* Have the arguments changed since the last call in this loop? */
BUILTIN(m_changed)
{
    struct value *last = &in->loop->changed;
    struct list *now = list_new(&r->arena, a->n);

    if (!now)
        return render_no_memory(r);
    for (size_t i = 0; i < a->n; i++)
        now->v[now->n++] = a->pos[i];
    *out = (struct value){ .kind = TUPLE, .list = now };
    if (value_equal(last, out)) {
        *out = value_bool(false);
        return 0;
    }
    *last = *out;
    *out = value_bool(true);
    return 0;
}

const struct builtin loop_methods[] = {
    { "changed", m_changed, "*" },
    { "cycle", m_cycle, "*" },
    { 0 },
};
