#include "text/jinja/parser.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/template.h"

int parser_fail(struct parser *p, int status, const char *fmt, ...)
{
    char what[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return err_set(p->e, status, "chat template, line %u: %s", p->at->line, what);
}

int parser_no_memory(struct parser *p)
{
    return parser_fail(p, ERR_NOMEM, "no memory for the template");
}

int parser_unexpected(struct parser *p, const char *what)
{
    static const char *const names[] = { [TOK_EOF] = "the end of the template",
                                         [TOK_DATA] = "text",
                                         [TOK_VAR_BEGIN] = "{{",
                                         [TOK_VAR_END] = "}}",
                                         [TOK_BLOCK_BEGIN] = "{%",
                                         [TOK_BLOCK_END] = "%}",
                                         [TOK_INT] = "a number",
                                         [TOK_FLOAT] = "a number",
                                         [TOK_STRING] = "a string" };
    const struct token *t = p->at;

    if (t->kind == TOK_NAME || t->kind == TOK_OP)
        return parser_fail(p, ERR_BADMSG, "unexpected '%.*s', expected %s",
                           (int)(t->text.n > 60 ? 60 : t->text.n), t->text.s, what);
    return parser_fail(p, ERR_BADMSG, "unexpected %s, expected %s", names[t->kind], what);
}

struct node *parser_node(struct parser *p, enum node_kind kind)
{
    struct node *n = arena_zalloc(&p->t->arena, sizeof *n);

    if (n) {
        n->kind = kind;
        n->line = p->at->line;
    }
    return n;
}

int parser_push(struct parser *p, struct nodes *l, struct node *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 4;
        struct node **v = arena_alloc(&p->t->arena, cap * sizeof *v);

        if (!v)
            return parser_no_memory(p);
        if (l->n)
            memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
    return 0;
}

static void deepen(uint32_t *depth, const struct node *child)
{
    if (child && child->depth >= *depth)
        *depth = child->depth + 1;
}

int parser_seal(struct parser *p, struct node *n, const struct nodes *kids, struct node **out)
{
    uint32_t depth = 1;

    if (kids) {
        n->kid = kids->v;
        n->n = kids->n;
    }
    deepen(&depth, n->a);
    deepen(&depth, n->b);
    deepen(&depth, n->c);
    for (size_t i = 0; i < n->n; i++)
        deepen(&depth, n->kid[i]);
    for (size_t i = 0; i < n->call.n_pos; i++)
        deepen(&depth, n->call.pos[i]);
    for (size_t i = 0; i < n->call.n_named; i++)
        deepen(&depth, n->call.named[i]);
    if (n->macro)
        deepen(&depth, n->macro->body);
    n->depth = depth;
    if (depth > TEMPLATE_MAX_DEPTH)
        return parser_fail(p, ERR_LIMIT, "nested or chained more than %d deep", TEMPLATE_MAX_DEPTH);
    *out = n;
    return 0;
}

bool parser_is(const struct parser *p, enum token_kind kind, const char *text)
{
    const struct token *t = p->at;

    return t->kind == kind &&
           (!text || (t->text.n == strlen(text) && memcmp(t->text.s, text, t->text.n) == 0));
}

bool parser_take(struct parser *p, enum token_kind kind, const char *text)
{
    bool is = parser_is(p, kind, text);

    if (is && kind != TOK_EOF)
        p->at++;
    return is;
}

int parser_expect(struct parser *p, enum token_kind kind, const char *text)
{
    if (parser_take(p, kind, text))
        return 0;
    return parser_unexpected(p, text                    ? text
                                : kind == TOK_BLOCK_END ? "%}"
                                : kind == TOK_VAR_END   ? "}}"
                                                        : "a name");
}

int parser_name(struct parser *p, struct str *out)
{
    *out = p->at->text;
    return parser_expect(p, TOK_NAME, NULL);
}

int parser_symbol(struct parser *p, const struct str *name, uint32_t *sym)
{
    struct symbols *s = &p->t->symbols;

    for (uint32_t i = 0; i < s->n; i++)
        if (s->v[i].n == name->n && memcmp(s->v[i].s, name->s, name->n) == 0) {
            *sym = i;
            return 0;
        }
    if (s->n == JINJA_MAX_NAMES)
        return parser_fail(p, ERR_LIMIT, "more than %u different names", JINJA_MAX_NAMES);
    if (s->n == s->cap) {
        uint32_t cap = s->cap ? 2 * s->cap : 32;
        struct str *v = realloc(s->v, cap * sizeof *v);

        if (!v)
            return parser_no_memory(p);
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n] = *name;
    *sym = s->n++;
    return 0;
}

int parser_enter(struct parser *p)
{
    if (++p->depth > TEMPLATE_MAX_DEPTH)
        return parser_fail(p, ERR_LIMIT, "nested more than %d deep", TEMPLATE_MAX_DEPTH);
    return 0;
}

void parser_leave(struct parser *p)
{
    p->depth--;
}

int parser_make(struct parser *p, enum node_kind kind, struct node *a, struct node *b,
                struct node **out)
{
    struct node *n = parser_node(p, kind);

    if (!n)
        return parser_no_memory(p);
    n->a = a;
    n->b = b;
    return parser_seal(p, n, NULL, out);
}
