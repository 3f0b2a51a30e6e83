/* Filters over sequences and dicts. */
#include <stdlib.h>

#include "base/status.h"
#include "text/jinja/builtins.h"
#include "text/template.h"

BUILTIN(f_default)
{
    bool missing = in->kind == UNDEFINED || (arg_truth(a, 1, false) && !value_truth(in));

    (void)r;
    *out = !missing ? *in : a->v[0] ? *a->v[0] : value_str("", 0);
    return 0;
}

BUILTIN(f_length)
{
    const struct value *items;
    size_t n;
    int st = render_items(r, in, &items, &n);

    (void)a;
    *out = value_int((int64_t)n);
    return st;
}

static int end_of(struct render *r, const struct value *in, bool last, struct value *out)
{
    static const struct str nothing = { "an item of an empty sequence", 28 };
    const struct value *items;
    size_t n;
    int st = render_items(r, in, &items, &n);

    if (st < 0)
        return st;
    *out = n ? items[last ? n - 1 : 0] : (struct value){ .kind = UNDEFINED, .str = nothing };
    return 0;
}

BUILTIN(f_first)
{
    (void)a;
    return end_of(r, in, false, out);
}

BUILTIN(f_last)
{
    (void)a;
    return end_of(r, in, true, out);
}

BUILTIN(f_join)
{
    const struct value *items;
    struct str sep;
    struct buf b;
    size_t n;
    int st;

    if ((st = render_items(r, in, &items, &n)) < 0 || (st = arg_text(r, a, 0, "", &sep)) < 0)
        return st;
    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (size_t i = 0; st == 0 && i < n; i++) {
        struct value v = items[i];

        if (a->v[1])
            st = attr_path(r, &items[i], a->v[1], &v);
        if (i)
            buf_append(&b, sep.s, sep.n);
        if (st == 0)
            value_write(&b, &v);
    }
    if (st == 0)
        return render_take(r, &b, out);
    buf_finish(&b);
    return st;
}

BUILTIN(f_list)
{
    struct list *l;
    int st = list_of(r, in, &l);

    (void)a;
    if (st == 0)
        *out = (struct value){ .kind = LIST, .list = l };
    return st;
}

BUILTIN(f_reverse)
{
    struct list *l;
    struct buf b;
    int st = list_of(r, in, &l);

    (void)a;
    if (st < 0)
        return st;
    if (in->kind == STRING) {
        buf_init(&b, in->str.n + 1);
        for (size_t i = l->n; i-- > 0;)
            buf_append(&b, l->v[i].str.s, l->v[i].str.n);
        return render_take(r, &b, out);
    }
    for (size_t i = 0; i < l->n / 2; i++) {
        struct value v = l->v[i];

        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = v;
    }
    *out = (struct value){ .kind = LIST, .list = l };
    return 0;
}

/* A list of (key, value). */
static int pairs(struct render *r, const struct dict *d, struct list **out)
{
    struct list *l = list_new(&r->arena, d->n);

    for (size_t i = 0; l && i < d->n; i++) {
        struct list *pair = list_new(&r->arena, 2);

        if (!pair)
            return render_no_memory(r);
        pair->v[0] = d->key[i];
        pair->v[1] = d->val[i];
        pair->n = 2;
        l->v[l->n++] = (struct value){ .kind = TUPLE, .list = pair };
    }
    *out = l;
    return l ? 0 : render_no_memory(r);
}

BUILTIN(f_items)
{
    static struct dict empty;
    struct list *l;
    int st;

    (void)a;
    if (in->kind != DICT && in->kind != UNDEFINED)
        return render_fail(r, ERR_BADMSG, "items needs a mapping, not '%s'", value_type(in));
    if ((st = pairs(r, in->kind == DICT ? in->dict : &empty, &l)) == 0)
        *out = (struct value){ .kind = LIST, .list = l };
    return st;
}

/* What is sorted, with what it is sorted by. */
struct keyed {
    struct value key, value;
    size_t at;
    bool *failed;
};

static int compare_keyed(const void *x, const void *y)
{
    const struct keyed *a = x, *b = y;
    int order = 0;

    if (!value_order(&a->key, &b->key, &order))
        *a->failed = true;
    return order ? order : (a->at > b->at) - (a->at < b->at);
}

static int fold(struct render *r, struct value *v)
{
    return v->kind == STRING ? change_case(r, &v->str, CASE_LOWER, v) : 0;
}

/* Sorts l in place, stably. path NULL: by the items themselves. */
static int sort_list(struct render *r, struct list *l, const struct value *path, bool reverse,
                     bool exact_case)
{
    struct keyed *k = arena_alloc(&r->arena, (l->n + 1) * sizeof *k);
    bool failed = false;
    int st = k ? 0 : render_no_memory(r);

    for (size_t i = 0; st == 0 && i < l->n; i++) {
        k[i] = (struct keyed){ l->v[i], l->v[i], reverse ? l->n - i : i, &failed };
        if (path)
            st = attr_path(r, &l->v[i], path, &k[i].key);
        if (st == 0 && !exact_case)
            st = fold(r, &k[i].key);
    }
    if (st < 0)
        return st;
    qsort(k, l->n, sizeof *k, compare_keyed);
    if (failed)
        return render_fail(r, ERR_BADMSG, "sort: items of different types cannot be compared");
    for (size_t i = 0; i < l->n; i++)
        l->v[i] = k[reverse ? l->n - 1 - i : i].value;
    return 0;
}

BUILTIN(f_sort)
{
    const struct value *path = a->v[2] && a->v[2]->kind != NONE ? a->v[2] : NULL;
    struct list *l;
    int st = list_of(r, in, &l);

    if (st == 0)
        st = sort_list(r, l, path, arg_truth(a, 0, false), arg_truth(a, 1, false));
    if (st == 0)
        *out = (struct value){ .kind = LIST, .list = l };
    return st;
}

BUILTIN(f_dictsort)
{
    bool by_value = a->v[1] && value_is(a->v[1], "value");
    const struct value at = value_int(by_value ? 1 : 0);
    struct list *l;
    int st;

    if (in->kind != DICT)
        return render_fail(r, ERR_BADMSG, "dictsort needs a mapping, not '%s'", value_type(in));
    if ((st = pairs(r, in->dict, &l)) < 0 ||
        (st = sort_list(r, l, &at, arg_truth(a, 2, false), arg_truth(a, 0, false))) < 0)
        return st;
    *out = (struct value){ .kind = LIST, .list = l };
    return 0;
}

static int extreme(struct render *r, const struct value *in, int sign, struct value *out)
{
    struct list *l;
    int order, st = list_of(r, in, &l);

    if (st < 0 || (st = end_of(r, in, false, out)) < 0)
        return st;
    for (size_t i = 1; i < l->n; i++) {
        if (!value_order(&l->v[i], out, &order))
            return render_fail(r, ERR_BADMSG, "'%s' and '%s' cannot be compared",
                               value_type(&l->v[i]), value_type(out));
        if (order == sign)
            *out = l->v[i];
    }
    return 0;
}

BUILTIN(f_min)
{
    (void)a;
    return extreme(r, in, -1, out);
}

BUILTIN(f_max)
{
    (void)a;
    return extreme(r, in, 1, out);
}

BUILTIN(f_sum)
{
    struct list *l;
    int st = list_of(r, in, &l);

    *out = a->v[1] ? *a->v[1] : value_int(0);
    for (size_t i = 0; st == 0 && i < l->n; i++) {
        struct value v = l->v[i], sum = *out;

        if (a->v[0])
            st = attr_path(r, &l->v[i], a->v[0], &v);
        if (st == 0)
            st = render_binary(r, OP_ADD, &sum, &v, out);
    }
    return st;
}

BUILTIN(f_unique)
{
    struct list *l, *seen;
    int st = list_of(r, in, &l);

    if (st < 0)
        return st;
    if (!(seen = list_new(&r->arena, l->n)))
        return render_no_memory(r);
    *out = (struct value){ .kind = LIST, .list = list_new(&r->arena, l->n) };
    if (!out->list)
        return render_no_memory(r);
    for (size_t i = 0, k; i < l->n; i++) {
        struct value key = l->v[i];

        if (!arg_truth(a, 0, false) && (st = fold(r, &key)) < 0)
            return st;
        for (k = 0; k < seen->n && !value_equal(&seen->v[k], &key);)
            k++;
        if ((r->steps += (uint32_t)(k / 16)) > TEMPLATE_MAX_STEPS)
            return render_fail(r, ERR_LIMIT, "more than %u steps", TEMPLATE_MAX_STEPS);
        if (k < seen->n)
            continue;
        seen->v[seen->n++] = key;
        out->list->v[out->list->n++] = l->v[i];
    }
    return 0;
}

BUILTIN(f_attr)
{
    struct str name;
    int st = arg_text(r, a, 0, "", &name);

    return st < 0 ? st : render_attr(r, in, &name, out);
}

const struct builtin sequence_filters[] = {
    { "attr", f_attr, "name" },
    { "count", f_length, NULL },
    { "d", f_default, "default_value boolean" },
    { "default", f_default, "default_value boolean" },
    { "dictsort", f_dictsort, "case_sensitive by reverse" },
    { "first", f_first, NULL },
    { "items", f_items, NULL },
    { "join", f_join, "d attribute" },
    { "last", f_last, NULL },
    { "length", f_length, NULL },
    { "list", f_list, NULL },
    { "max", f_max, NULL },
    { "min", f_min, NULL },
    { "reverse", f_reverse, NULL },
    { "sort", f_sort, "reverse case_sensitive attribute" },
    { "sum", f_sum, "attribute start" },
    { "unique", f_unique, "case_sensitive" },
    { 0 },
};
