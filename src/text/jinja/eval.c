/* Expressions. */

#include "base/status.h"
#include "text/jinja/render.h"
#include "text/template.h"

static int eval_kids(struct render *r, struct node *const *kid, size_t n, struct value **out)
{
    struct value *v = arena_alloc(&r->arena, (n + 1) * sizeof *v);
    int st;

    if (!v)
        return render_no_memory(r);
    for (size_t i = 0; i < n; i++)
        if ((st = render_eval(r, kid[i], &v[i])) < 0)
            return st;
    *out = v;
    return 0;
}

static int eval_args(struct render *r, const struct call *c, struct args *a)
{
    struct value *pos = NULL, *named = NULL;
    int st;

    if ((st = eval_kids(r, c->pos, c->n_pos, &pos)) < 0 ||
        (st = eval_kids(r, c->named, c->n_named, &named)) < 0)
        return st;
    *a = (struct args){
        .pos = pos, .n = c->n_pos, .name = c->name, .named = named, .n_named = c->n_named
    };
    return 0;
}

static int eval_list(struct render *r, const struct node *n, struct value *out)
{
    struct list *l = list_new(&r->arena, 0);
    int st = l ? eval_kids(r, n->kid, n->n, &l->v) : render_no_memory(r);

    if (st < 0)
        return st;
    l->n = l->cap = n->n;
    *out = (struct value){ .kind = n->kind == N_LIST ? LIST : TUPLE, .list = l };
    return 0;
}

static int eval_dict(struct render *r, const struct node *n, struct value *out)
{
    struct dict *d = dict_new(&r->arena, n->n / 2);
    struct value key, val;
    int st;

    if (!d)
        return render_no_memory(r);
    for (size_t i = 0; i < n->n; i += 2) {
        if ((st = render_eval(r, n->kid[i], &key)) < 0 ||
            (st = render_eval(r, n->kid[i + 1], &val)) < 0)
            return st;
        if (dict_set(&r->arena, d, key, val) < 0)
            return render_no_memory(r);
    }
    *out = (struct value){ .kind = DICT, .dict = d };
    return 0;
}

static int eval_attr(struct render *r, const struct node *n, struct value *out)
{
    struct value object;
    int st = render_eval(r, n->a, &object);

    r->line = n->line;
    return st < 0 ? st : render_attr(r, &object, &n->text, out);
}

static int eval_item(struct render *r, const struct node *n, struct value *out)
{
    struct value object, index;
    int st;

    if ((st = render_eval(r, n->a, &object)) < 0 || (st = render_eval(r, n->b, &index)) < 0)
        return st;
    return render_item(r, &object, &index, out);
}

static int eval_slice(struct render *r, const struct node *n, struct value *out)
{
    struct value object, part[3] = { { .kind = NONE }, { .kind = NONE }, { .kind = NONE } };
    int st = render_eval(r, n->a, &object);

    for (size_t i = 0; st == 0 && i < 3; i++)
        if (n->kid[i])
            st = render_eval(r, n->kid[i], &part[i]);
    return st < 0 ? st : render_slice(r, &object, part, out);
}

static int eval_call(struct render *r, const struct node *n, struct value *out)
{
    struct value function;
    struct args a;
    int st;

    if ((st = render_eval(r, n->a, &function)) < 0 || (st = eval_args(r, &n->call, &a)) < 0)
        return st;
    r->line = n->line;
    return render_call(r, &function, &a, out);
}

/* A filter or test. */
static int eval_applied(struct render *r, const struct node *n, struct value *out)
{
    struct value in;
    struct args a;
    int st;

    if ((st = render_eval(r, n->a, &in)) < 0 || (st = eval_args(r, &n->call, &a)) < 0)
        return st;
    r->line = n->line;
    st = render_call_builtin(r, n->fn, &in, &a, out);
    if (st == 0 && n->kind == N_TEST && n->negate)
        *out = value_bool(!value_truth(out));
    return st;
}

static int eval_signed(struct render *r, const struct node *n, struct value *out)
{
    const struct value zero = value_int(0), minus = value_int(-1);
    struct value v;
    int st = render_eval(r, n->a, &v);

    if (st < 0)
        return st;
    if (v.kind == UNDEFINED)
        return render_undefined(r, &v);
    if (!is_number(&v))
        return render_fail(r, ERR_BADMSG, "bad operand type for a sign: '%s'", value_type(&v));
    return n->kind == N_NEG ? render_binary(r, OP_MUL, &v, &minus, out)
                            : render_binary(r, OP_ADD, &v, &zero, out);
}

/* and, or: the operand that decided. */
static int eval_logic(struct render *r, const struct node *n, struct value *out)
{
    int st = render_eval(r, n->a, out);

    if (st < 0 || value_truth(out) == (n->kind == N_OR))
        return st;
    return render_eval(r, n->b, out);
}

static int eval_binary(struct render *r, const struct node *n, struct value *out)
{
    struct value a, b;
    int st;

    if ((st = render_eval(r, n->a, &a)) < 0 || (st = render_eval(r, n->b, &b)) < 0)
        return st;
    r->line = n->line;
    return render_binary(r, n->op, &a, &b, out);
}

/* a < b < c is a < b and b < c. */
static int eval_compare(struct render *r, const struct node *n, struct value *out)
{
    struct value left, right;
    bool holds = true;
    int st = render_eval(r, n->a, &left);

    for (size_t i = 0; st == 0 && holds && i < n->n; i++) {
        if ((st = render_eval(r, n->kid[i]->a, &right)) == 0)
            st = render_compare(r, n->kid[i]->op, &left, &right, &holds);
        left = right;
    }
    *out = value_bool(holds);
    return st;
}

static int eval_concat(struct render *r, const struct node *n, struct value *out)
{
    struct buf b;
    int st = 0;

    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (size_t i = 0; st == 0 && i < n->n; i++) {
        struct value v;

        if ((st = render_eval(r, n->kid[i], &v)) == 0)
            value_write(&b, &v);
    }
    if (st == 0)
        return render_take(r, &b, out);
    buf_finish(&b);
    return st;
}

static int eval_condition(struct render *r, const struct node *n, struct value *out)
{
    static const struct str nothing = { "the inline if without else", 26 };
    struct value test;
    int st = render_eval(r, n->a, &test);

    if (st < 0)
        return st;
    if (value_truth(&test))
        return render_eval(r, n->b, out);
    if (n->c)
        return render_eval(r, n->c, out);
    *out = (struct value){ .kind = UNDEFINED, .str = nothing };
    return 0;
}

static int eval_not(struct render *r, const struct node *n, struct value *out)
{
    struct value v;
    int st = render_eval(r, n->a, &v);

    *out = value_bool(st == 0 && !value_truth(&v));
    return st;
}

static int eval_node(struct render *r, const struct node *n, struct value *out)
{
    switch (n->kind) {
    case N_CONST:
        *out = n->value;
        return 0;
    case N_NAME:
        *out = render_lookup(r, n->sym, &n->text);
        return 0;
    case N_LIST:
    case N_TUPLE:
        return eval_list(r, n, out);
    case N_DICT:
        return eval_dict(r, n, out);
    case N_ATTR:
        return eval_attr(r, n, out);
    case N_ITEM:
        return eval_item(r, n, out);
    case N_SLICE:
        return eval_slice(r, n, out);
    case N_CALL:
        return eval_call(r, n, out);
    case N_FILTER:
    case N_TEST:
        return eval_applied(r, n, out);
    case N_NOT:
        return eval_not(r, n, out);
    case N_NEG:
    case N_POS:
        return eval_signed(r, n, out);
    case N_AND:
    case N_OR:
        return eval_logic(r, n, out);
    case N_BINARY:
        return eval_binary(r, n, out);
    case N_COMPARE:
        return eval_compare(r, n, out);
    case N_CONCAT:
        return eval_concat(r, n, out);
    case N_COND:
        return eval_condition(r, n, out);
    case N_CAPTURED:
        *out = r->captured;
        return 0;
    default:
        return render_fail(r, ERR_INVAL, "a statement where an expression must be");
    }
}

int render_eval(struct render *r, const struct node *n, struct value *out)
{
    int st;

    r->line = n->line;
    if (++r->steps > TEMPLATE_MAX_STEPS)
        return render_fail(r, ERR_LIMIT, "more than %u steps", TEMPLATE_MAX_STEPS);
    if (++r->nested > RENDER_MAX_NESTED)
        return render_fail(r, ERR_LIMIT, "nested more than %u deep", RENDER_MAX_NESTED);
    st = eval_node(r, n, out);
    r->nested--;
    return st;
}
