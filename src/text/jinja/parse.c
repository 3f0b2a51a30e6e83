/* Statements. */
#include <string.h>

#include "base/status.h"
#include "text/jinja/parser.h"

static int parse_body(struct parser *p, const char *const *ends, struct node **out);

static int end_block(struct parser *p)
{
    return parser_expect(p, TOK_BLOCK_END, NULL);
}

/* The closing "{% endx %}", of which the name is next. */
static int close_block(struct parser *p, const char *name)
{
    int st = parser_expect(p, TOK_NAME, name);

    return st < 0 ? st : end_block(p);
}

/* A body and the tag that ends it. */
static int parse_block(struct parser *p, const char *end, struct node **out)
{
    const char *const ends[] = { end, NULL };
    int st = end_block(p);

    if (st == 0)
        st = parse_body(p, ends, out);
    return st < 0 ? st : close_block(p, end);
}

static int parse_if(struct parser *p, struct node *n, struct node **out)
{
    static const char *const ends[] = { "elif", "else", "endif", NULL };
    struct nodes parts = { 0 };
    struct node *part;
    int st;

    do {
        if ((st = parse_tuple(p, &part)) < 0 || (st = parser_push(p, &parts, part)) < 0 ||
            (st = end_block(p)) < 0 || (st = parse_body(p, ends, &part)) < 0 ||
            (st = parser_push(p, &parts, part)) < 0)
            return st;
    } while (parser_take(p, TOK_NAME, "elif"));
    if (parser_take(p, TOK_NAME, "else")) {
        if ((st = end_block(p)) < 0 || (st = parse_body(p, ends + 2, &n->c)) < 0)
            return st;
    }
    if ((st = close_block(p, "endif")) < 0)
        return st;
    return parser_seal(p, n, &parts, out);
}

/* a, b, c or (a, b, c). */
static int parse_names(struct parser *p, struct target *t)
{
    bool round = parser_take(p, TOK_OP, "(");
    uint32_t sym[16];
    struct str name;
    int st;

    do {
        if (t->n == sizeof sym / sizeof *sym)
            return parser_fail(p, ERR_LIMIT, "more than %zu names are assigned to", t->n);
        if ((st = parser_name(p, &name)) < 0 || (st = parser_symbol(p, &name, &sym[t->n])) < 0)
            return st;
        t->n++;
    } while (parser_take(p, TOK_OP, ","));
    t->unpack = t->n > 1;
    if (round && (st = parser_expect(p, TOK_OP, ")")) < 0)
        return st;
    if (!(t->sym = arena_alloc(&p->t->arena, t->n * sizeof *t->sym)))
        return parser_no_memory(p);
    memcpy(t->sym, sym, t->n * sizeof *t->sym);
    return 0;
}

static int parse_for(struct parser *p, struct node *n, struct node **out)
{
    static const char *const ends[] = { "else", "endfor", NULL };
    struct nodes condition = { 0 };
    struct node *test;
    int st;

    if ((st = parse_names(p, &n->target)) < 0 || (st = parser_expect(p, TOK_NAME, "in")) < 0 ||
        (st = parse_or(p, &n->a)) < 0)
        return st;
    if (parser_take(p, TOK_NAME, "if") &&
        ((st = parse_expression(p, &test)) < 0 || (st = parser_push(p, &condition, test)) < 0))
        return st;
    if (parser_is(p, TOK_NAME, "recursive"))
        return parser_fail(p, ERR_UNSUPPORTED, "recursive loops are not supported");
    p->loops++;
    if ((st = end_block(p)) < 0 || (st = parse_body(p, ends, &n->b)) < 0)
        return st;
    p->loops--;
    if (parser_take(p, TOK_NAME, "else") &&
        ((st = end_block(p)) < 0 || (st = parse_body(p, ends + 1, &n->c)) < 0))
        return st;
    if ((st = close_block(p, "endfor")) < 0)
        return st;
    return parser_seal(p, n, &condition, out);
}

/* A node that stands for the text of a block. */
static int captured(struct parser *p, struct node **out)
{
    struct node *n = parser_node(p, N_CAPTURED);

    return n ? parser_seal(p, n, NULL, out) : parser_no_memory(p);
}

static int parse_set(struct parser *p, struct node *n, struct node **out)
{
    int st = parse_names(p, &n->target);

    if (st == 0 && n->target.n == 1 && parser_take(p, TOK_OP, "."))
        st = parser_name(p, &n->target.member);
    if (st < 0)
        return st;
    if (parser_take(p, TOK_OP, "=")) {
        if ((st = parse_tuple(p, &n->a)) < 0 || (st = end_block(p)) < 0)
            return st;
        return parser_seal(p, n, NULL, out);
    }
    n->kind = N_SET_BLOCK;
    if ((st = captured(p, &n->a)) < 0)
        return st;
    if (parser_take(p, TOK_OP, "|") && (st = parse_filters(p, n->a, &n->a)) < 0)
        return st;
    if ((st = parse_block(p, "endset", &n->b)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

static int parse_filter_block(struct parser *p, struct node *n, struct node **out)
{
    struct node *text;
    int st;

    if ((st = captured(p, &text)) < 0 || (st = parse_filters(p, text, &n->a)) < 0 ||
        (st = parse_block(p, "endfilter", &n->b)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

/* The parameters behind "(": names, some with defaults. */
static int parse_parameters(struct parser *p, struct macro *m)
{
    struct nodes names = { 0 }, defs = { 0 };
    struct arena *a = &p->t->arena;
    int st;

    while (!parser_take(p, TOK_OP, ")")) {
        struct node *name = parser_node(p, N_NAME), *def = NULL;

        if (!name)
            return parser_no_memory(p);
        if ((st = parser_name(p, &name->text)) < 0 ||
            (st = parser_symbol(p, &name->text, &name->sym)) < 0)
            return st;
        if (parser_take(p, TOK_OP, "=") && (st = parse_expression(p, &def)) < 0)
            return st;
        if ((st = parser_push(p, &names, name)) < 0 || (st = parser_push(p, &defs, def)) < 0)
            return st;
        if (!parser_take(p, TOK_OP, ",") && !parser_is(p, TOK_OP, ")"))
            return parser_unexpected(p, ")");
    }
    m->n = names.n;
    m->def = defs.v;
    m->param = arena_alloc(a, (names.n + 1) * sizeof *m->param);
    m->param_name = arena_alloc(a, (names.n + 1) * sizeof *m->param_name);
    if (!m->param || !m->param_name)
        return parser_no_memory(p);
    for (size_t i = 0; i < names.n; i++) {
        m->param[i] = names.v[i]->sym;
        m->param_name[i] = names.v[i]->text;
    }
    return 0;
}

/* The body of a macro or call block: it stands outside the loops around it. */
static int parse_macro_body(struct parser *p, struct macro *m, const char *end)
{
    uint32_t loops = p->loops;
    int st;

    p->loops = 0;
    st = parse_block(p, end, &m->body);
    p->loops = loops;
    return st;
}

static int parse_macro(struct parser *p, struct node *n, struct node **out)
{
    struct macro *m = arena_zalloc(&p->t->arena, sizeof *m);
    int st;

    if (!m)
        return parser_no_memory(p);
    if ((st = parser_name(p, &m->name)) < 0 || (st = parser_symbol(p, &m->name, &n->sym)) < 0 ||
        (st = parser_expect(p, TOK_OP, "(")) < 0 || (st = parse_parameters(p, m)) < 0 ||
        (st = parse_macro_body(p, m, "endmacro")) < 0)
        return st;
    n->macro = m;
    return parser_seal(p, n, NULL, out);
}

static int parse_call_block(struct parser *p, struct node *n, struct node **out)
{
    struct macro *m = arena_zalloc(&p->t->arena, sizeof *m);
    int st;

    if (!m)
        return parser_no_memory(p);
    m->name = (struct str){ "caller", 6 };
    if (parser_take(p, TOK_OP, "(") && (st = parse_parameters(p, m)) < 0)
        return st;
    if ((st = parse_expression(p, &n->a)) < 0)
        return st;
    if (n->a->kind != N_CALL)
        return parser_fail(p, ERR_BADMSG, "{%% call %%} needs a call of a macro");
    if ((st = parse_macro_body(p, m, "endcall")) < 0)
        return st;
    n->macro = m;
    return parser_seal(p, n, NULL, out);
}

static int parse_jump(struct parser *p, struct node *n, struct node **out)
{
    int st;

    if (p->loops == 0)
        return parser_fail(p, ERR_BADMSG, "break and continue stand in loops only");
    if ((st = end_block(p)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

/* {% generation %} marks what an assistant said, for training; here it is only its body. */
static int parse_generation(struct parser *p, struct node *n, struct node **out)
{
    (void)n;
    return parse_block(p, "endgeneration", out);
}

static int parse_statement(struct parser *p, struct node **out)
{
    static const struct {
        const char *name;
        enum node_kind kind;
        int (*parse)(struct parser *, struct node *, struct node **);
    } statements[] = {
        { "if", N_IF, parse_if },
        { "for", N_FOR, parse_for },
        { "set", N_SET, parse_set },
        { "macro", N_MACRO, parse_macro },
        { "call", N_CALL_BLOCK, parse_call_block },
        { "filter", N_FILTER_BLOCK, parse_filter_block },
        { "break", N_BREAK, parse_jump },
        { "continue", N_CONTINUE, parse_jump },
        { "generation", N_BODY, parse_generation },
    };

    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        struct node *n;

        if (!parser_take(p, TOK_NAME, statements[i].name))
            continue;
        if (!(n = parser_node(p, statements[i].kind)))
            return parser_no_memory(p);
        return statements[i].parse(p, n, out);
    }
    return parser_unexpected(p, "a statement (if, for, set, macro, call, filter, break, continue)");
}

static int parse_data(struct parser *p, struct node **out)
{
    struct node *n = parser_node(p, N_DATA);

    if (!n)
        return parser_no_memory(p);
    n->text = p->at++->text;
    return parser_seal(p, n, NULL, out);
}

static int parse_output(struct parser *p, struct node **out)
{
    struct node *n = parser_node(p, N_OUTPUT);
    int st;

    if (!n)
        return parser_no_memory(p);
    if ((st = parse_tuple(p, &n->a)) < 0 || (st = parser_expect(p, TOK_VAR_END, NULL)) < 0)
        return st;
    return parser_seal(p, n, NULL, out);
}

/* Is the next tag one that ends the body? Then its name is next. */
static bool take_end(struct parser *p, const char *const *ends)
{
    if (!parser_is(p, TOK_BLOCK_BEGIN, NULL) || p->at[1].kind != TOK_NAME)
        return false;
    p->at++;
    for (; *ends; ends++)
        if (parser_is(p, TOK_NAME, *ends))
            return true;
    p->at--;
    return false;
}

/* The tag that is missing at the end of the template: the last in the list closes the block. */
static int unclosed(struct parser *p, const char *const *ends)
{
    while (ends[1])
        ends++;
    return parser_unexpected(p, *ends);
}

/* ends NULL: up to the end of the template. */
static int parse_statements(struct parser *p, const char *const *ends, struct nodes *list)
{
    struct node *n;
    int st = 0;

    while (st == 0) {
        if (parser_is(p, TOK_EOF, NULL))
            return ends ? unclosed(p, ends) : 0;
        if (ends && take_end(p, ends))
            return 0;
        if (parser_is(p, TOK_DATA, NULL))
            st = parse_data(p, &n);
        else if (parser_take(p, TOK_VAR_BEGIN, NULL))
            st = parse_output(p, &n);
        else if (parser_take(p, TOK_BLOCK_BEGIN, NULL))
            st = parse_statement(p, &n);
        else
            return parser_unexpected(p, "text or a tag");
        if (st == 0)
            st = parser_push(p, list, n);
    }
    return st;
}

static int parse_body(struct parser *p, const char *const *ends, struct node **out)
{
    struct nodes list = { 0 };
    struct node *n = parser_node(p, N_BODY);
    int st = n ? parser_enter(p) : parser_no_memory(p);

    if (st == 0)
        st = parse_statements(p, ends, &list);
    if (st == 0)
        st = parser_seal(p, n, &list, out);
    parser_leave(p);
    return st;
}

int jinja_parse(struct template *t, struct token *tokens, struct err *e)
{
    struct parser p = { .t = t, .at = tokens, .e = e };
    const struct str loop = { "loop", 4 }, caller = { "caller", 6 };
    int st;

    if ((st = parser_symbol(&p, &loop, &t->sym_loop)) < 0 ||
        (st = parser_symbol(&p, &caller, &t->sym_caller)) < 0)
        return st;
    return parse_body(&p, NULL, &t->body);
}
