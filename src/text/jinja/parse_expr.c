/* Operators, by falling precedence: signs, **, * / // %, ~, + -, comparisons, not, and, or,
 * "x if y else z". */
#include <string.h>

#include "text/jinja/parser.h"

typedef int rule(struct parser *p, struct node **out);

static int parse_unary(struct parser *p, bool with_filter, struct node **out);

static int parse_signed(struct parser *p, struct node **out)
{
    enum node_kind kind = parser_take_op(p, "-") ? N_NEG : N_POS;
    struct node *n;
    int st;

    if (kind == N_POS)
        p->at++;
    if ((st = parse_unary(p, false, &n)) < 0)
        return st;
    return parser_make(p, kind, n, NULL, out);
}

static int parse_unary(struct parser *p, bool with_filter, struct node **out)
{
    struct node *n = NULL;
    int st = parser_enter(p);

    if (st == 0)
        st = parser_op(p, "-") || parser_op(p, "+") ? parse_signed(p, &n) : parse_primary(p, &n);
    if (st == 0)
        st = parse_postfix(p, n, &n);
    if (st == 0 && with_filter)
        st = parse_filters_and_tests(p, n, &n);
    parser_leave(p);
    *out = n;
    return st;
}

static int parse_operand(struct parser *p, struct node **out)
{
    return parse_unary(p, true, out);
}

struct op_name {
    const char *text;
    enum op op;
};

/* left op right op ..., grouped from the left. */
static int parse_chain(struct parser *p, const struct op_name *ops, rule *part, struct node **out)
{
    struct node *left, *n;
    int st = part(p, &left);

    while (st == 0) {
        const struct op_name *op = ops;

        while (op->text && !parser_take_op(p, op->text))
            op++;
        if (!op->text)
            break;
        if (!(n = parser_node(p, N_BINARY)))
            return parser_no_memory(p);
        n->op = op->op;
        n->a = left;
        if ((st = part(p, &n->b)) == 0)
            st = parser_seal(p, n, NULL, &left);
    }
    *out = left;
    return st;
}

static int parse_power(struct parser *p, struct node **out)
{
    static const struct op_name ops[] = { { "**", OP_POW }, { 0 } };

    return parse_chain(p, ops, parse_operand, out);
}

static int parse_product(struct parser *p, struct node **out)
{
    static const struct op_name ops[] = {
        { "*", OP_MUL }, { "/", OP_DIV }, { "//", OP_FLOORDIV }, { "%", OP_MOD }, { 0 }
    };

    return parse_chain(p, ops, parse_power, out);
}

static int parse_concat(struct parser *p, struct node **out)
{
    struct nodes parts = { 0 };
    struct node *n;
    int st = parse_product(p, &n);

    if (st < 0 || !parser_op(p, "~")) {
        *out = n;
        return st;
    }
    st = parser_push(p, &parts, n);
    while (st == 0 && parser_take_op(p, "~"))
        if ((st = parse_product(p, &n)) == 0)
            st = parser_push(p, &parts, n);
    if (st < 0)
        return st;
    if (!(n = parser_node(p, N_CONCAT)))
        return parser_no_memory(p);
    return parser_seal(p, n, &parts, out);
}

static int parse_sum(struct parser *p, struct node **out)
{
    static const struct op_name ops[] = { { "+", OP_ADD }, { "-", OP_SUB }, { 0 } };

    return parse_chain(p, ops, parse_concat, out);
}

static bool take_comparison(struct parser *p, enum op *op)
{
    static const struct op_name ops[] = { { "==", OP_EQ }, { "!=", OP_NE }, { "<=", OP_LE },
                                          { ">=", OP_GE }, { "<", OP_LT },  { ">", OP_GT } };

    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (parser_take_op(p, ops[i].text)) {
            *op = ops[i].op;
            return true;
        }
    *op = OP_IN;
    if (parser_take(p, TOK_NAME, "in"))
        return true;
    if (!parser_is(p, TOK_NAME, "not") || p->at[1].kind != TOK_NAME || p->at[1].text.n != 2 ||
        memcmp(p->at[1].text.s, "in", 2) != 0)
        return false;
    p->at += 2;
    *op = OP_NOT_IN;
    return true;
}

static int parse_compare(struct parser *p, struct node **out)
{
    struct nodes operands = { 0 };
    struct node *left, *n;
    enum op op;
    int st = parse_sum(p, &left);

    while (st == 0 && take_comparison(p, &op)) {
        if (!(n = parser_node(p, N_OPERAND)))
            return parser_no_memory(p);
        n->op = op;
        if ((st = parse_sum(p, &n->a)) == 0 && (st = parser_seal(p, n, NULL, &n)) == 0)
            st = parser_push(p, &operands, n);
    }
    if (st < 0 || operands.n == 0) {
        *out = left;
        return st;
    }
    if (!(n = parser_node(p, N_COMPARE)))
        return parser_no_memory(p);
    n->a = left;
    return parser_seal(p, n, &operands, out);
}

static int parse_not(struct parser *p, struct node **out)
{
    struct node *n;
    int st;

    if (!parser_take(p, TOK_NAME, "not"))
        return parse_compare(p, out);
    if ((st = parser_enter(p)) < 0 || (st = parse_not(p, &n)) < 0)
        return st;
    parser_leave(p);
    return parser_make(p, N_NOT, n, NULL, out);
}

static int parse_logic(struct parser *p, const char *word, enum node_kind kind, rule *part,
                       struct node **out)
{
    struct node *left, *right;
    int st = part(p, &left);

    while (st == 0 && parser_take(p, TOK_NAME, word))
        if ((st = part(p, &right)) == 0)
            st = parser_make(p, kind, left, right, &left);
    *out = left;
    return st;
}

static int parse_and(struct parser *p, struct node **out)
{
    return parse_logic(p, "and", N_AND, parse_not, out);
}

int parse_or(struct parser *p, struct node **out)
{
    return parse_logic(p, "or", N_OR, parse_and, out);
}

/* then [if test [else other]] ... */
static int parse_condition(struct parser *p, struct node **out)
{
    struct node *then, *n;
    int st = parse_or(p, &then);

    while (st == 0 && parser_take(p, TOK_NAME, "if")) {
        if (!(n = parser_node(p, N_COND)))
            return parser_no_memory(p);
        n->b = then;
        if ((st = parse_or(p, &n->a)) == 0 && parser_take(p, TOK_NAME, "else"))
            st = parse_expression(p, &n->c);
        if (st == 0)
            st = parser_seal(p, n, NULL, &then);
    }
    *out = then;
    return st;
}

int parse_expression(struct parser *p, struct node **out)
{
    int st = parser_enter(p);

    if (st == 0)
        st = parse_condition(p, out);
    parser_leave(p);
    return st;
}

int parse_tuple(struct parser *p, struct node **out)
{
    struct nodes items = { 0 };
    struct node *n;
    int st = parse_expression(p, &n);

    if (st < 0 || !parser_op(p, ",")) {
        *out = n;
        return st;
    }
    st = parser_push(p, &items, n);
    while (st == 0 && parser_take_op(p, ",")) {
        if (p->at->kind == TOK_BLOCK_END || p->at->kind == TOK_VAR_END)
            break;
        if ((st = parse_expression(p, &n)) == 0)
            st = parser_push(p, &items, n);
    }
    if (st < 0)
        return st;
    if (!(n = parser_node(p, N_TUPLE)))
        return parser_no_memory(p);
    return parser_seal(p, n, &items, out);
}
