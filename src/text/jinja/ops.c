/* Operators. */
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "text/jinja/render.h"
#include "text/template.h"

static const char *const op_text[] = {
    [OP_ADD] = "+", [OP_SUB] = "-",  [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//",
    [OP_MOD] = "%", [OP_POW] = "**", [OP_EQ] = "==", [OP_NE] = "!=", [OP_LT] = "<",
    [OP_LE] = "<=", [OP_GT] = ">",   [OP_GE] = ">=", [OP_IN] = "in", [OP_NOT_IN] = "not in",
};

static int mismatch(struct render *r, enum op op, const struct value *a, const struct value *b)
{
    if (a->kind == UNDEFINED)
        return render_undefined(r, a);
    if (b->kind == UNDEFINED)
        return render_undefined(r, b);
    return render_fail(r, ERR_BADMSG, "unsupported operand types for %s: '%s' and '%s'",
                       op_text[op], value_type(a), value_type(b));
}

/* base ** exp for exp >= 0. */
static bool int_power(int64_t base, int64_t exp, int64_t *out)
{
    *out = 1;
    for (; exp > 0; exp >>= 1) {
        if (exp & 1 && __builtin_mul_overflow(*out, base, out))
            return false;
        if (exp > 1 && __builtin_mul_overflow(base, base, &base))
            return false;
    }
    return true;
}

/* Rounds towards minus infinity, as Python does; j is not 0. */
static int64_t floor_div(int64_t i, int64_t j)
{
    return i / j - (i % j != 0 && (i < 0) != (j < 0));
}

static bool int_op(enum op op, int64_t i, int64_t j, int64_t *out)
{
    switch (op) {
    case OP_ADD:
        return !__builtin_add_overflow(i, j, out);
    case OP_SUB:
        return !__builtin_sub_overflow(i, j, out);
    case OP_MUL:
        return !__builtin_mul_overflow(i, j, out);
    case OP_FLOORDIV:
        if (i == INT64_MIN && j == -1)
            return false;
        *out = floor_div(i, j);
        return true;
    case OP_MOD:
        *out = j == -1 ? 0 : i - floor_div(i, j) * j;
        return true;
    default:
        return int_power(i, j, out);
    }
}

static double float_op(enum op op, double x, double y)
{
    switch (op) {
    case OP_ADD:
        return x + y;
    case OP_SUB:
        return x - y;
    case OP_MUL:
        return x * y;
    case OP_DIV:
        return x / y;
    case OP_FLOORDIV:
        return floor(x / y);
    case OP_MOD:
        return x - floor(x / y) * y;
    default:
        return pow(x, y);
    }
}

static int number_op(struct render *r, enum op op, const struct value *a, const struct value *b,
                     struct value *out)
{
    bool divides = op == OP_DIV || op == OP_FLOORDIV || op == OP_MOD;
    int64_t i, j;

    if (divides && value_as_double(b) == 0)
        return render_fail(r, ERR_BADMSG, "division by zero");
    if (op != OP_DIV && value_as_int(a, &i) && value_as_int(b, &j) && !(op == OP_POW && j < 0)) {
        *out = value_int(0);
        return int_op(op, i, j, &out->i)
                   ? 0
                   : render_fail(r, ERR_LIMIT, "%lld %s %lld does not fit 64 bits", (long long)i,
                                 op_text[op], (long long)j);
    }
    *out = (struct value){ .kind = FLOAT,
                           .f = float_op(op, value_as_double(a), value_as_double(b)) };
    return 0;
}

static int join_strings(struct render *r, const struct str *a, const struct str *b,
                        struct value *out)
{
    char *text = a->n + b->n > TEMPLATE_MAX_OUTPUT ? NULL
                                                   : arena_join(&r->arena, a->s, a->n, b->s, b->n);

    if (!text)
        return render_no_memory(r);
    *out = value_str(text, a->n + b->n);
    return 0;
}

static int join_lists(struct render *r, const struct value *a, const struct value *b,
                      struct value *out)
{
    struct list *l = list_new(&r->arena, a->list->n + b->list->n);

    if (!l)
        return render_no_memory(r);
    for (size_t i = 0; i < a->list->n; i++)
        l->v[l->n++] = a->list->v[i];
    for (size_t i = 0; i < b->list->n; i++)
        l->v[l->n++] = b->list->v[i];
    *out = (struct value){ .kind = a->kind, .list = l };
    return 0;
}

static int repeat(struct render *r, const struct value *v, int64_t times, struct value *out)
{
    bool text = v->kind == STRING;
    size_t unit = text ? v->str.n : v->list->n, n = times > 0 ? (size_t)times : 0;
    struct list *l;
    struct buf b;

    if (unit && n > (text ? TEMPLATE_MAX_OUTPUT : VALUE_MAX_ITEMS) / unit)
        return render_no_memory(r);
    if (text) {
        buf_init(&b, TEMPLATE_MAX_OUTPUT);
        for (size_t i = 0; unit && i < n; i++)
            buf_append(&b, v->str.s, unit);
        return render_take(r, &b, out);
    }
    if (!(l = list_new(&r->arena, unit * n)))
        return render_no_memory(r);
    for (size_t i = 0; i < unit * n; i++)
        l->v[l->n++] = v->list->v[i % unit];
    *out = (struct value){ .kind = v->kind, .list = l };
    return 0;
}

int render_binary(struct render *r, enum op op, const struct value *a, const struct value *b,
                  struct value *out)
{
    int64_t times;

    if (is_number(a) && is_number(b))
        return number_op(r, op, a, b, out);
    if (op == OP_ADD && a->kind == STRING && b->kind == STRING)
        return join_strings(r, &a->str, &b->str, out);
    if (op == OP_ADD && is_seq(a) && a->kind == b->kind)
        return join_lists(r, a, b, out);
    if (op == OP_MUL && (a->kind == STRING || is_seq(a)) && value_as_int(b, &times))
        return repeat(r, a, times, out);
    if (op == OP_MUL && (b->kind == STRING || is_seq(b)) && value_as_int(a, &times))
        return repeat(r, b, times, out);
    if (op == OP_MOD && a->kind == STRING)
        return b->kind == TUPLE ? render_format(r, &a->str, b->list->v, b->list->n, out)
                                : render_format(r, &a->str, b, 1, out);
    return mismatch(r, op, a, b);
}

/* item in container. */
static int contains(struct render *r, const struct value *item, const struct value *in, bool *out)
{
    *out = false;
    switch (in->kind) {
    case UNDEFINED:
        return 0;
    case STRING:
        if (item->kind == UNDEFINED)
            return render_undefined(r, item);
        if (item->kind != STRING)
            return render_fail(r, ERR_BADMSG,
                               "'in <string>' requires a string on its left, not '%s'",
                               value_type(item));
        *out = item->str.n == 0 || memmem(in->str.s, in->str.n, item->str.s, item->str.n);
        return 0;
    case LIST:
    case TUPLE:
        for (size_t i = 0; !*out && i < in->list->n; i++)
            *out = value_equal(&in->list->v[i], item);
        return 0;
    case DICT:
        *out = dict_find(in->dict, item) != NULL;
        return 0;
    default:
        return render_fail(r, ERR_BADMSG, "'%s' object is not a container", value_type(in));
    }
}

int render_compare(struct render *r, enum op op, const struct value *a, const struct value *b,
                   bool *out)
{
    int order, st;

    if (op == OP_EQ || op == OP_NE) {
        *out = value_equal(a, b) == (op == OP_EQ);
        return 0;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        if ((st = contains(r, a, b, out)) == 0 && op == OP_NOT_IN)
            *out = !*out;
        return st;
    }
    if (!value_order(a, b, &order))
        return mismatch(r, op, a, b);
    *out = op == OP_LT   ? order < 0
           : op == OP_LE ? order <= 0
           : op == OP_GT ? order > 0
                         : order >= 0;
    return 0;
}
