#include "text/jinja/builtins.h"

#include <string.h>

#include "base/status.h"

static const struct builtin *find(const struct builtin *table, const char *name, size_t n)
{
    for (; table->name; table++)
        if (strlen(table->name) == n && memcmp(table->name, name, n) == 0)
            return table;
    return NULL;
}

const struct builtin *jinja_find_filter(const char *name, size_t n)
{
    const struct builtin *b = find(text_filters, name, n);

    if (!b)
        b = find(sequence_filters, name, n);
    return b ? b : find(select_filters, name, n);
}

const struct builtin *jinja_find_test(const char *name, size_t n)
{
    return find(tests, name, n);
}

const struct builtin *jinja_find_function(const char *name, size_t n)
{
    return find(functions, name, n);
}

const struct builtin *jinja_find_method(const struct value *self, const char *name, size_t n)
{
    switch (self->kind) {
    case STRING:
        return find(string_methods, name, n);
    case DICT:
        return find(dict_methods, name, n);
    case LIST:
    case TUPLE:
        return find(list_methods, name, n);
    case LOOP:
        return find(loop_methods, name, n);
    default:
        return NULL;
    }
}

int arg_text(struct render *r, const struct args *a, int i, const char *def, struct str *out)
{
    if (a->v[i])
        return render_text(r, a->v[i], out);
    *out = (struct str){ def, def ? strlen(def) : 0 };
    return 0;
}

int arg_int(struct render *r, const struct args *a, int i, int64_t def, int64_t *out)
{
    *out = def;
    if (!a->v[i] || a->v[i]->kind == NONE || value_as_int(a->v[i], out))
        return 0;
    return render_fail(r, ERR_BADMSG, "an integer is needed, not '%s'", value_type(a->v[i]));
}

bool arg_truth(const struct args *a, int i, bool def)
{
    return a->v[i] ? value_truth(a->v[i]) : def;
}

int need_string(struct render *r, const char *what, const struct value *in, struct str *out)
{
    if (in->kind == UNDEFINED)
        return render_undefined(r, in);
    if (in->kind != STRING)
        return render_fail(r, ERR_BADMSG, "%s needs a string, not '%s'", what, value_type(in));
    *out = in->str;
    return 0;
}

/* One step of a path: digits are an index. */
static struct value step(const char *s, size_t n)
{
    int64_t i = 0;

    for (size_t k = 0; k < n; k++) {
        if (s[k] < '0' || s[k] > '9' || i > VALUE_MAX_ITEMS)
            return value_str(s, n);
        i = 10 * i + (s[k] - '0');
    }
    return n ? value_int(i) : value_str(s, n);
}

int attr_path(struct render *r, const struct value *object, const struct value *path,
              struct value *out)
{
    struct value at = *object;
    const char *p = path->str.s, *end;
    int st = 0;

    if (path->kind != STRING)
        return render_item(r, object, path, out);
    for (end = p + path->str.n; st == 0 && p <= end;) {
        const char *dot = memchr(p, '.', (size_t)(end - p));
        size_t n = (size_t)((dot ? dot : end) - p);
        struct value index = step(p, n), next;

        st = render_item(r, &at, &index, &next);
        at = next;
        p += n + 1;
    }
    if (st == 0)
        *out = at;
    return st;
}

int list_of(struct render *r, const struct value *v, struct list **out)
{
    const struct value *items;
    size_t n;
    struct list *l;
    int st = render_items(r, v, &items, &n);

    if (st < 0)
        return st;
    if (!(l = list_new(&r->arena, n)))
        return render_no_memory(r);
    if (n)
        memcpy(l->v, items, n * sizeof *items);
    l->n = n;
    *out = l;
    return 0;
}
