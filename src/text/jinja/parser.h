/* What the two halves of the parser share: expressions (parse_expr.c) and statements (parse.c). */
#ifndef SLUICE_TEXT_JINJA_PARSER_H
#define SLUICE_TEXT_JINJA_PARSER_H

#include "text/jinja/ast.h"

struct parser {
    struct template *t;
    const struct token *at; /* the next token; the last is TOK_EOF */
    uint32_t depth;         /* of nested rules */
    uint32_t loops;         /* loops around the statement */
    struct err *e;
};

/* A list of nodes that is being built. */
struct nodes {
    struct node **v;
    size_t n, cap;
};

/* Sets the error, "chat template, line N: ...", and returns status. */
int parser_fail(struct parser *p, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int parser_no_memory(struct parser *p);
/* "unexpected 'x', expected what". */
int parser_unexpected(struct parser *p, const char *what);

/* A node at the current line; NULL without memory. */
struct node *parser_node(struct parser *p, enum node_kind kind);
int parser_push(struct parser *p, struct nodes *l, struct node *n);
/* Moves the list into the node and sets the node's depth; ERR_LIMIT if it is too deep. Every node
 * passes here when its fields are filled. */
int parser_seal(struct parser *p, struct node *n, const struct nodes *kids, struct node **out);

/* A sealed node of one or two children. */
int parser_make(struct parser *p, enum node_kind kind, struct node *a, struct node *b,
                struct node **out);

bool parser_is(const struct parser *p, enum token_kind kind, const char *text); /* text NULL: any */
bool parser_take(struct parser *p, enum token_kind kind, const char *text);     /* and moves on */
int parser_expect(struct parser *p, enum token_kind kind, const char *text);
int parser_name(struct parser *p, struct str *out); /* takes a name */
int parser_symbol(struct parser *p, const struct str *name, uint32_t *sym);

/* Rules may nest only so deep. */
int parser_enter(struct parser *p);
void parser_leave(struct parser *p);

static inline bool parser_op(const struct parser *p, const char *text)
{
    return parser_is(p, TOK_OP, text);
}

static inline bool parser_take_op(struct parser *p, const char *text)
{
    return parser_take(p, TOK_OP, text);
}

/* A name, literal or bracket; what stands directly behind it; filters, tests and calls after that. */
int parse_primary(struct parser *p, struct node **out);
int parse_postfix(struct parser *p, struct node *n, struct node **out);
int parse_filters_and_tests(struct parser *p, struct node *n, struct node **out);
/* An expression; tuple: "a, b" is a tuple. */
int parse_expression(struct parser *p, struct node **out);
int parse_tuple(struct parser *p, struct node **out);
int parse_or(struct parser *p, struct node **out); /* without "if ... else" */
/* The chain of "name(...) | name ..." behind input. */
int parse_filters(struct parser *p, struct node *input, struct node **out);

#endif
