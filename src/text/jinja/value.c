#include "text/jinja/value.h"

#include <string.h>

#include "base/status.h"
#include "text/jinja/arena.h"
#include "text/template.h"

bool value_as_int(const struct value *v, int64_t *i)
{
    if (v->kind != INT && v->kind != BOOL)
        return false;
    *i = v->kind == INT ? v->i : v->b;
    return true;
}

double value_as_double(const struct value *v)
{
    return v->kind == FLOAT ? v->f : v->kind == INT ? (double)v->i : v->b;
}

bool value_is(const struct value *v, const char *text)
{
    size_t n = strlen(text);

    return v->kind == STRING && v->str.n == n && memcmp(v->str.s, text, n) == 0;
}

bool value_truth(const struct value *v)
{
    switch (v->kind) {
    case UNDEFINED:
    case NONE:
        return false;
    case BOOL:
        return v->b;
    case INT:
        return v->i != 0;
    case FLOAT:
        return v->f != 0;
    case STRING:
        return v->str.n > 0;
    case LIST:
    case TUPLE:
        return v->list->n > 0;
    case DICT:
        return v->dict->n > 0;
    default:
        return true;
    }
}

static bool equal_at(const struct value *a, const struct value *b, int depth);

static bool equal_lists(const struct list *a, const struct list *b, int depth)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!equal_at(&a->v[i], &b->v[i], depth + 1))
            return false;
    return true;
}

static bool equal_dicts(const struct dict *a, const struct dict *b, int depth)
{
    if (a->n != b->n)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        const struct value *v = dict_find(b, &a->key[i]);

        if (!v || !equal_at(&a->val[i], v, depth + 1))
            return false;
    }
    return true;
}

/* What nests deeper than a template may is never equal. */
static bool equal_at(const struct value *a, const struct value *b, int depth)
{
    int64_t i, j;

    if (depth > TEMPLATE_MAX_DEPTH)
        return false;

    if (is_number(a) && is_number(b))
        return value_as_int(a, &i) && value_as_int(b, &j)
                   ? i == j
                   : value_as_double(a) == value_as_double(b);
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case UNDEFINED:
    case NONE:
        return true;
    case STRING:
        return a->str.n == b->str.n && memcmp(a->str.s, b->str.s, a->str.n) == 0;
    case LIST:
    case TUPLE:
        return a->list == b->list || equal_lists(a->list, b->list, depth);
    case DICT:
        return a->dict == b->dict || equal_dicts(a->dict, b->dict, depth);
    case NAMESPACE:
        return a->dict == b->dict;
    case LOOP:
        return a->loop == b->loop;
    default:
        return a->fn == b->fn; /* one pointer of the union as good as another */
    }
}

bool value_equal(const struct value *a, const struct value *b)
{
    return equal_at(a, b, 0);
}

static int sign(int c)
{
    return (c > 0) - (c < 0);
}

/* UTF-8 sorts as its code points do. */
static int order_strings(const struct str *a, const struct str *b)
{
    int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);

    return c ? sign(c) : (a->n > b->n) - (a->n < b->n);
}

static bool order_at(const struct value *a, const struct value *b, int depth, int *order)
{
    int64_t i, j;

    if (value_as_int(a, &i) && value_as_int(b, &j)) {
        *order = (i > j) - (i < j);
        return true;
    }
    if (is_number(a) && is_number(b)) {
        double x = value_as_double(a), y = value_as_double(b);

        *order = (x > y) - (x < y);
        return true;
    }
    if (a->kind == STRING && b->kind == STRING) {
        *order = order_strings(&a->str, &b->str);
        return true;
    }
    if (!is_seq(a) || a->kind != b->kind || depth > TEMPLATE_MAX_DEPTH)
        return false;
    for (size_t k = 0; k < a->list->n && k < b->list->n; k++)
        if (!value_equal(&a->list->v[k], &b->list->v[k]))
            return order_at(&a->list->v[k], &b->list->v[k], depth + 1, order);
    *order = (a->list->n > b->list->n) - (a->list->n < b->list->n);
    return true;
}

bool value_order(const struct value *a, const struct value *b, int *order)
{
    return order_at(a, b, 0, order);
}

const char *value_type(const struct value *v)
{
    static const char *const names[] = { [UNDEFINED] = "Undefined", [NONE] = "NoneType",
                                         [BOOL] = "bool",           [INT] = "int",
                                         [FLOAT] = "float",         [STRING] = "str",
                                         [LIST] = "list",           [TUPLE] = "tuple",
                                         [DICT] = "dict",           [NAMESPACE] = "Namespace",
                                         [LOOP] = "LoopContext",    [MACRO] = "Macro",
                                         [FUNCTION] = "function",   [METHOD] = "method" };

    return names[v->kind];
}

struct list *list_new(struct arena *a, size_t cap)
{
    struct list *l = arena_zalloc(a, sizeof *l);

    if (!l || (cap && !(l->v = arena_alloc(a, cap * sizeof *l->v))))
        return NULL;
    l->cap = cap;
    return l;
}

int list_push(struct arena *a, struct list *l, struct value v)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 8;
        struct value *p = l->n < VALUE_MAX_ITEMS ? arena_alloc(a, cap * sizeof *p) : NULL;

        if (!p)
            return ERR_LIMIT;
        if (l->n)
            memcpy(p, l->v, l->n * sizeof *p);
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = v;
    return 0;
}

struct dict *dict_new(struct arena *a, size_t cap)
{
    struct dict *d = arena_zalloc(a, sizeof *d);

    if (!d || (cap && (!(d->key = arena_alloc(a, cap * sizeof *d->key)) ||
                       !(d->val = arena_alloc(a, cap * sizeof *d->val)))))
        return NULL;
    d->cap = cap;
    return d;
}

static int dict_grow(struct arena *a, struct dict *d)
{
    struct dict *big = d->n < VALUE_MAX_ITEMS ? dict_new(a, d->cap ? 2 * d->cap : 8) : NULL;

    if (!big)
        return ERR_LIMIT;
    if (d->n) {
        memcpy(big->key, d->key, d->n * sizeof *d->key);
        memcpy(big->val, d->val, d->n * sizeof *d->val);
    }
    big->n = d->n;
    *d = *big;
    return 0;
}

static size_t dict_index(const struct dict *d, const struct value *key)
{
    size_t i = 0;

    while (i < d->n && !value_equal(&d->key[i], key))
        i++;
    return i;
}

int dict_set(struct arena *a, struct dict *d, struct value key, struct value val)
{
    size_t i = dict_index(d, &key);

    if (i == d->n) {
        int st = d->n == d->cap ? dict_grow(a, d) : 0;

        if (st < 0)
            return st;
        d->key[d->n++] = key;
    }
    d->val[i] = val;
    return 0;
}

const struct value *dict_find(const struct dict *d, const struct value *key)
{
    size_t i = dict_index(d, key);

    return i < d->n ? &d->val[i] : NULL;
}

const struct value *dict_find_text(const struct dict *d, const char *s, size_t n)
{
    struct value key = value_str(s, n);

    return dict_find(d, &key);
}

static int from_object(struct arena *a, json_t *j, int depth, struct value *out)
{
    struct dict *d = dict_new(a, json_object_size(j));
    const char *key;
    json_t *v;
    int st;

    if (!d)
        return ERR_NOMEM;
    *out = (struct value){ .kind = DICT, .dict = d };
    json_object_foreach(j, key, v)
    {
        d->key[d->n] = value_str(key, strlen(key));
        if ((st = value_from_json(a, v, depth + 1, &d->val[d->n])) < 0)
            return st;
        d->n++;
    }
    return 0;
}

static int from_array(struct arena *a, json_t *j, int depth, struct value *out)
{
    struct list *l = list_new(a, json_array_size(j));
    json_t *v;
    size_t i;
    int st;

    if (!l)
        return ERR_NOMEM;
    *out = (struct value){ .kind = LIST, .list = l };
    json_array_foreach(j, i, v)
    {
        if ((st = value_from_json(a, v, depth + 1, &l->v[l->n])) < 0)
            return st;
        l->n++;
    }
    return 0;
}

int value_from_json(struct arena *a, json_t *j, int depth, struct value *out)
{
    if (depth > TEMPLATE_MAX_DEPTH)
        return ERR_LIMIT;
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return from_object(a, j, depth, out);
    case JSON_ARRAY:
        return from_array(a, j, depth, out);
    case JSON_STRING:
        *out = value_str(json_string_value(j), json_string_length(j));
        return 0;
    case JSON_INTEGER:
        *out = value_int(json_integer_value(j));
        return 0;
    case JSON_REAL:
        *out = (struct value){ .kind = FLOAT, .f = json_real_value(j) };
        return 0;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(j));
        return 0;
    case JSON_NULL:
        break;
    }
    *out = (struct value){ .kind = NONE };
    return 0;
}
