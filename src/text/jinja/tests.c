/* Tests: what may follow "is". */
#include <string.h>

#include "base/status.h"
#include "text/jinja/builtins.h"

/* A test of the value's kind alone. */
#define KIND_TEST(name, condition)                                                                 \
    BUILTIN(name)                                                                                  \
    {                                                                                              \
        (void)r;                                                                                   \
        (void)in;                                                                                  \
        (void)a;                                                                                   \
        *out = value_bool(condition);                                                              \
        return 0;                                                                                  \
    }

KIND_TEST(t_defined, in->kind != UNDEFINED)
KIND_TEST(t_undefined, in->kind == UNDEFINED)
KIND_TEST(t_none, in->kind == NONE)
KIND_TEST(t_boolean, in->kind == BOOL)
KIND_TEST(t_true, in->kind == BOOL && in->b)
KIND_TEST(t_false, in->kind == BOOL && !in->b)
KIND_TEST(t_integer, in->kind == INT)
KIND_TEST(t_float, in->kind == FLOAT)
KIND_TEST(t_number, is_number(in))
KIND_TEST(t_string, in->kind == STRING)
KIND_TEST(t_mapping, in->kind == DICT)
KIND_TEST(t_sequence, in->kind == STRING || in->kind == DICT || is_seq(in) || in->kind == UNDEFINED)
KIND_TEST(t_iterable, in->kind == STRING || in->kind == DICT || is_seq(in) ||
                          in->kind == UNDEFINED || in->kind == LOOP)
KIND_TEST(t_callable,
          in->kind == MACRO || in->kind == FUNCTION || in->kind == METHOD || in->kind == UNDEFINED)
KIND_TEST(t_escaped, false)

/* Does a text stay as it is, with at least one letter that has a case? */
static int has_case(struct render *r, const struct value *in, enum letter_case how,
                    struct value *out)
{
    enum letter_case other = how == CASE_UPPER ? CASE_LOWER : CASE_UPPER;
    struct value same, changed;
    struct str s;
    int st;

    if ((st = render_text(r, in, &s)) < 0 || (st = change_case(r, &s, how, &same)) < 0 ||
        (st = change_case(r, &s, other, &changed)) < 0)
        return st;
    *out = value_bool(same.str.n == s.n && memcmp(same.str.s, s.s, s.n) == 0 &&
                      !value_equal(&same, &changed));
    return 0;
}

BUILTIN(t_upper)
{
    (void)a;
    return has_case(r, in, CASE_UPPER, out);
}

BUILTIN(t_lower)
{
    (void)a;
    return has_case(r, in, CASE_LOWER, out);
}

/* in modulo the argument, or modulo 2. */
static int remainder_of(struct render *r, const struct value *in, const struct value *by,
                        struct value *out)
{
    const struct value two = value_int(2);

    return render_binary(r, OP_MOD, in, by ? by : &two, out);
}

BUILTIN(t_even)
{
    int st = remainder_of(r, in, NULL, out);

    (void)a;
    *out = value_bool(st == 0 && !value_truth(out));
    return st;
}

BUILTIN(t_odd)
{
    int st = remainder_of(r, in, NULL, out);

    (void)a;
    *out = value_bool(st == 0 && value_truth(out));
    return st;
}

BUILTIN(t_divisibleby)
{
    int st = remainder_of(r, in, a->v[0], out);

    *out = value_bool(st == 0 && !value_truth(out));
    return st;
}

static int compare(struct render *r, enum op op, const struct value *in, const struct args *a,
                   struct value *out)
{
    bool holds = false;
    int st;

    if (!a->v[0])
        return render_fail(r, ERR_BADMSG, "a comparison needs an argument");
    st = render_compare(r, op, in, a->v[0], &holds);
    *out = value_bool(holds);
    return st;
}

#define COMPARE_TEST(name, op)                                                                     \
    BUILTIN(name)                                                                                  \
    {                                                                                              \
        return compare(r, op, in, a, out);                                                         \
    }

COMPARE_TEST(t_eq, OP_EQ)
COMPARE_TEST(t_ne, OP_NE)
COMPARE_TEST(t_lt, OP_LT)
COMPARE_TEST(t_le, OP_LE)
COMPARE_TEST(t_gt, OP_GT)
COMPARE_TEST(t_ge, OP_GE)
COMPARE_TEST(t_in, OP_IN)

/* Identity: of what cannot change, kind and value; of the rest, the object. */
BUILTIN(t_sameas)
{
    const struct value *b = a->v[0];

    if (!b)
        return render_fail(r, ERR_BADMSG, "sameas needs an argument");
    *out = value_bool(in->kind == b->kind &&
                      (is_seq(in) || in->kind == DICT ? in->list == b->list : value_equal(in, b)));
    return 0;
}

const struct builtin tests[] = {
    { "!=", t_ne, "other" },          { "<", t_lt, "other" },
    { "<=", t_le, "other" },          { "==", t_eq, "other" },
    { ">", t_gt, "other" },           { ">=", t_ge, "other" },
    { "boolean", t_boolean, NULL },   { "callable", t_callable, NULL },
    { "defined", t_defined, NULL },   { "divisibleby", t_divisibleby, "num" },
    { "eq", t_eq, "other" },          { "equalto", t_eq, "other" },
    { "escaped", t_escaped, NULL },   { "even", t_even, NULL },
    { "false", t_false, NULL },       { "float", t_float, NULL },
    { "ge", t_ge, "other" },          { "greaterthan", t_gt, "other" },
    { "gt", t_gt, "other" },          { "in", t_in, "seq" },
    { "integer", t_integer, NULL },   { "iterable", t_iterable, NULL },
    { "le", t_le, "other" },          { "lessthan", t_lt, "other" },
    { "lower", t_lower, NULL },       { "lt", t_lt, "other" },
    { "mapping", t_mapping, NULL },   { "ne", t_ne, "other" },
    { "none", t_none, NULL },         { "number", t_number, NULL },
    { "odd", t_odd, NULL },           { "sameas", t_sameas, "other" },
    { "sequence", t_sequence, NULL }, { "string", t_string, NULL },
    { "true", t_true, NULL },         { "undefined", t_undefined, NULL },
    { "upper", t_upper, NULL },       { 0 },
};
