/* The operands of expressions: names, literals, brackets; .x, [x] and (x) behind them; filters and tests. */

#include "base/status.h"
#include "text/jinja/parser.h"

static int make_const(struct parser *p, struct value v, struct node **out)
{
    struct node *n = parser_node(p, N_CONST);

    if (!n)
        return parser_no_memory(p);
    n->value = v;
    return parser_seal(p, n, NULL, out);
}

/* Adjacent strings are one. */
static int parse_string(struct parser *p, struct node **out)
{
    struct str text = p->at++->text;

    for (; parser_is(p, TOK_STRING, NULL); p->at++) {
        text.s = arena_join(&p->t->arena, text.s, text.n, p->at->text.s, p->at->text.n);
        if (!text.s)
            return parser_no_memory(p);
        text.n += p->at->text.n;
    }
    return make_const(p, value_str(text.s, text.n), out);
}

static int parse_name(struct parser *p, struct node **out)
{
    static const struct {
        const char *name;
        struct value value;
    } constants[] = {
        { "true", { .kind = BOOL, .b = true } },
        { "True", { .kind = BOOL, .b = true } },
        { "false", { .kind = BOOL, .b = false } },
        { "False", { .kind = BOOL, .b = false } },
        { "none", { .kind = NONE } },
        { "None", { .kind = NONE } },
    };
    struct node *n;
    int st;

    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (parser_take(p, TOK_NAME, constants[i].name))
            return make_const(p, constants[i].value, out);
    if (!(n = parser_node(p, N_NAME)))
        return parser_no_memory(p);
    n->text = p->at++->text;
    if ((st = parser_symbol(p, &n->text, &n->sym)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

/* Expressions up to the closing bracket; *comma says whether there was a comma. */
static int parse_items(struct parser *p, const char *close, struct nodes *items, bool *comma)
{
    int st;

    *comma = false;
    while (!parser_take_op(p, close)) {
        struct node *item;

        if ((st = parse_expression(p, &item)) < 0 || (st = parser_push(p, items, item)) < 0)
            return st;
        if (parser_take_op(p, ","))
            *comma = true;
        else if (!parser_op(p, close))
            return parser_unexpected(p, close);
    }
    return 0;
}

static int parse_bracket(struct parser *p, bool round, struct node **out)
{
    struct nodes items = { 0 };
    struct node *n;
    bool comma;
    int st = parse_items(p, round ? ")" : "]", &items, &comma);

    if (st < 0)
        return st;
    if (round && items.n == 1 && !comma) {
        *out = items.v[0];
        return 0;
    }
    if (!(n = parser_node(p, round ? N_TUPLE : N_LIST)))
        return parser_no_memory(p);
    return parser_seal(p, n, &items, out);
}

static int parse_dict(struct parser *p, struct node **out)
{
    struct nodes items = { 0 };
    struct node *n = parser_node(p, N_DICT), *part;
    int st;

    if (!n)
        return parser_no_memory(p);
    while (!parser_take_op(p, "}")) {
        if ((st = parse_expression(p, &part)) < 0 || (st = parser_push(p, &items, part)) < 0 ||
            (st = parser_expect(p, TOK_OP, ":")) < 0 || (st = parse_expression(p, &part)) < 0 ||
            (st = parser_push(p, &items, part)) < 0)
            return st;
        if (!parser_take_op(p, ",") && !parser_op(p, "}"))
            return parser_unexpected(p, "}");
    }
    return parser_seal(p, n, &items, out);
}

int parse_primary(struct parser *p, struct node **out)
{
    const struct token *t = p->at;

    switch (t->kind) {
    case TOK_NAME:
        return parse_name(p, out);
    case TOK_STRING:
        return parse_string(p, out);
    case TOK_INT:
        p->at++;
        return make_const(p, value_int(t->i), out);
    case TOK_FLOAT:
        p->at++;
        return make_const(p, (struct value){ .kind = FLOAT, .f = t->f }, out);
    default:
        break;
    }
    if (parser_take_op(p, "("))
        return parse_bracket(p, true, out);
    if (parser_take_op(p, "["))
        return parse_bracket(p, false, out);
    if (parser_take_op(p, "{"))
        return parse_dict(p, out);
    return parser_unexpected(p, "an expression");
}

/* name=value, the name being there. */
static int parse_named(struct parser *p, struct nodes *named, struct nodes *names)
{
    struct node *name = parser_node(p, N_NAME), *value;
    int st;

    if (!name)
        return parser_no_memory(p);
    name->text = p->at->text;
    p->at += 2;
    if ((st = parse_expression(p, &value)) < 0 || (st = parser_push(p, named, value)) < 0)
        return st;
    return parser_push(p, names, name);
}

/* The arguments behind "(". */
static int parse_call(struct parser *p, struct call *call)
{
    struct nodes pos = { 0 }, named = { 0 }, names = { 0 };
    int st;

    while (!parser_take_op(p, ")")) {
        struct node *value;

        if (parser_is(p, TOK_NAME, NULL) && p->at[1].kind == TOK_OP && p->at[1].text.n == 1 &&
            p->at[1].text.s[0] == '=') {
            if ((st = parse_named(p, &named, &names)) < 0)
                return st;
        } else if (parser_op(p, "*") || parser_op(p, "**")) {
            return parser_fail(p, ERR_UNSUPPORTED, "unpacked arguments are not supported");
        } else if ((st = parse_expression(p, &value)) < 0 ||
                   (st = parser_push(p, &pos, value)) < 0) {
            return st;
        }
        if (!parser_take_op(p, ",") && !parser_op(p, ")"))
            return parser_unexpected(p, ")");
    }
    *call = (struct call){ .pos = pos.v, .n_pos = pos.n, .named = named.v, .n_named = named.n };
    call->name = arena_alloc(&p->t->arena, (names.n + 1) * sizeof *call->name);
    for (size_t i = 0; call->name && i < names.n; i++)
        call->name[i] = names.v[i]->text;
    return call->name ? 0 : parser_no_memory(p);
}

/* One part of [a:b:c], NULL if it is left out. */
static int parse_slice_part(struct parser *p, struct nodes *parts)
{
    struct node *part = NULL;
    int st;

    if (!parser_op(p, ":") && !parser_op(p, "]") && (st = parse_expression(p, &part)) < 0)
        return st;
    return parser_push(p, parts, part);
}

/* Behind "[". */
static int parse_subscript(struct parser *p, struct node *object, struct node **out)
{
    struct nodes parts = { 0 };
    bool slice;
    struct node *n;
    int st = parse_slice_part(p, &parts);

    slice = parser_op(p, ":");
    while (st == 0 && parts.n < 3 && parser_take_op(p, ":"))
        st = parse_slice_part(p, &parts);
    while (st == 0 && slice && parts.n < 3)
        st = parser_push(p, &parts, NULL);
    if (st < 0)
        return st;
    if (!slice && !parts.v[0])
        return parser_unexpected(p, "an index");
    if ((st = parser_expect(p, TOK_OP, "]")) < 0)
        return st;
    if (!slice)
        return parser_make(p, N_ITEM, object, parts.v[0], out);
    if (!(n = parser_node(p, N_SLICE)))
        return parser_no_memory(p);
    n->a = object;
    return parser_seal(p, n, &parts, out);
}

/* Behind ".": a name, or a number as an index. */
static int parse_attribute(struct parser *p, struct node *object, struct node **out)
{
    struct node *n;
    int st;

    if (parser_is(p, TOK_INT, NULL)) {
        if ((st = make_const(p, value_int(p->at->i), &n)) < 0)
            return st;
        p->at++;
        return parser_make(p, N_ITEM, object, n, out);
    }
    if (!(n = parser_node(p, N_ATTR)))
        return parser_no_memory(p);
    n->a = object;
    if ((st = parser_name(p, &n->text)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

static int parse_called(struct parser *p, struct node *function, struct node **out)
{
    struct node *n = parser_node(p, N_CALL);
    int st;

    if (!n)
        return parser_no_memory(p);
    n->a = function;
    if ((st = parse_call(p, &n->call)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

int parse_postfix(struct parser *p, struct node *n, struct node **out)
{
    int st = 0;

    while (st == 0) {
        if (parser_take_op(p, "."))
            st = parse_attribute(p, n, &n);
        else if (parser_take_op(p, "["))
            st = parse_subscript(p, n, &n);
        else if (parser_take_op(p, "("))
            st = parse_called(p, n, &n);
        else
            break;
    }
    *out = n;
    return st;
}

static int parse_filter(struct parser *p, struct node *input, struct node **out)
{
    struct node *n = parser_node(p, N_FILTER);
    struct str name;
    int st;

    if (!n)
        return parser_no_memory(p);
    if ((st = parser_name(p, &name)) < 0)
        return st;
    if (!(n->fn = jinja_find_filter(name.s, name.n)))
        return parser_fail(p, ERR_UNSUPPORTED, "no filter '%.*s'", (int)name.n, name.s);
    n->a = input;
    if (parser_take_op(p, "(") && (st = parse_call(p, &n->call)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

int parse_filters(struct parser *p, struct node *input, struct node **out)
{
    int st = parse_filter(p, input, &input);

    while (st == 0 && parser_take_op(p, "|"))
        st = parse_filter(p, input, &input);
    *out = input;
    return st;
}

/* Does an argument without parentheses follow a test's name? */
static bool argument_follows(const struct parser *p)
{
    static const char *const not_one[] = { "else", "or", "and", "is", "if", "in", "not" };

    for (size_t i = 0; i < sizeof not_one / sizeof *not_one; i++)
        if (parser_is(p, TOK_NAME, not_one[i]))
            return false;
    return p->at->kind == TOK_NAME || p->at->kind == TOK_STRING || p->at->kind == TOK_INT ||
           p->at->kind == TOK_FLOAT || parser_op(p, "[") || parser_op(p, "{");
}

/* Behind "is". */
static int parse_test(struct parser *p, struct node *input, struct node **out)
{
    struct node *n = parser_node(p, N_TEST), *arg;
    struct nodes args = { 0 };
    struct str name;
    int st;

    if (!n)
        return parser_no_memory(p);
    n->negate = parser_take(p, TOK_NAME, "not");
    if ((st = parser_name(p, &name)) < 0)
        return st;
    if (!(n->fn = jinja_find_test(name.s, name.n)))
        return parser_fail(p, ERR_UNSUPPORTED, "no test '%.*s'", (int)name.n, name.s);
    n->a = input;
    if (parser_take_op(p, "(")) {
        if ((st = parse_call(p, &n->call)) < 0)
            return st;
    } else if (argument_follows(p)) {
        if ((st = parse_primary(p, &arg)) < 0 || (st = parse_postfix(p, arg, &arg)) < 0 ||
            (st = parser_push(p, &args, arg)) < 0)
            return st;
        n->call.pos = args.v;
        n->call.n_pos = args.n;
    }
    return parser_seal(p, n, NULL, out);
}

int parse_filters_and_tests(struct parser *p, struct node *n, struct node **out)
{
    int st = 0;

    while (st == 0) {
        if (parser_take_op(p, "|"))
            st = parse_filter(p, n, &n);
        else if (parser_take(p, TOK_NAME, "is"))
            st = parse_test(p, n, &n);
        else if (parser_take_op(p, "("))
            st = parse_called(p, n, &n);
        else
            break;
    }
    *out = n;
    return st;
}
