/* A template as a tree, and how source becomes one: jinja_lex cuts it into tokens, the parser builds
 * nodes from them. */
#ifndef SLUICE_TEXT_JINJA_AST_H
#define SLUICE_TEXT_JINJA_AST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text/jinja/arena.h"
#include "text/jinja/value.h"

struct err;

enum token_kind {
    TOK_EOF,
    TOK_DATA,      /* text: to be written as it is */
    TOK_VAR_BEGIN, /* {{ */
    TOK_VAR_END,
    TOK_BLOCK_BEGIN, /* {% */
    TOK_BLOCK_END,
    TOK_NAME,
    TOK_INT,
    TOK_FLOAT,
    TOK_STRING, /* text: without quotes and escapes */
    TOK_OP,     /* text: one or two characters */
};

struct token {
    enum token_kind kind;
    uint32_t line;
    struct str text;
    int64_t i;
    double f;
};

struct tokens {
    struct token *v; /* malloc'ed; the last one is TOK_EOF */
    size_t n, cap;
};

/* Texts live in the arena. ERR_BADMSG with the line; ERR_NOMEM. tokens->v is freed by the caller,
 * also on failure. */
int jinja_lex(struct tokens *out, struct arena *a, const char *source, size_t len, struct err *e);

/* What the fields of a node hold:                     a         b        c       kid */
enum node_kind {
    /* expressions */
    N_CONST, /* value */
    N_NAME,  /* sym, text */
    N_LIST,  /*                                                                items */
    N_TUPLE, /*                                                                items */
    N_DICT,  /*                                                                key, value, ... */
    N_ATTR,  /* text: the name                      object */
    N_ITEM,  /*                                     object    index */
    N_SLICE, /*                                     object                     start, stop, step (or NULL) */
    N_CALL,     /* call                                function */
    N_FILTER,   /* fn, call                            input */
    N_TEST,     /* fn, call                            input */
    N_NOT,      /*                                     operand */
    N_NEG,      /*                                     operand */
    N_POS,      /*                                     operand */
    N_AND,      /*                                     left      right */
    N_OR,       /*                                     left      right */
    N_BINARY,   /* op                                  left      right */
    N_COMPARE,  /*                                     left                       N_OPERAND ... */
    N_OPERAND,  /* op                                  right */
    N_CONCAT,   /*                                                                parts */
    N_COND,     /*                                     test      then     else (or NULL) */
    N_CAPTURED, /* the text of the block that a filter or set works on */
    /* statements */
    N_BODY,   /*                                                                statements */
    N_DATA,   /* text */
    N_OUTPUT, /*                                     expression */
    N_IF,     /*                                                        else    test, body, ... */
    N_FOR, /* target                              iterable  body     else    condition (or none) */
    N_SET, /* target                              value */
    N_SET_BLOCK,    /* target                             filters   body */
    N_FILTER_BLOCK, /*                                 filters   body */
    N_MACRO,        /* sym, macro */
    N_CALL_BLOCK,   /* macro: the caller                 call */
    N_BREAK,
    N_CONTINUE,
};

enum op {
    OP_ADD,
    OP_SUB,
    OP_MUL,
    OP_DIV,
    OP_FLOORDIV,
    OP_MOD,
    OP_POW,
    OP_EQ,
    OP_NE,
    OP_LT,
    OP_LE,
    OP_GT,
    OP_GE,
    OP_IN,
    OP_NOT_IN,
};

/* What is assigned to: names, or a member of a namespace. */
struct target {
    uint32_t *sym;
    size_t n;
    struct str member; /* s is NULL: plain names */
    bool unpack;       /* a tuple of names, even if of one */
};

/* The arguments of a call. */
struct call {
    struct node **pos;
    size_t n_pos;
    struct str *name; /* of the named ones */
    struct node **named;
    size_t n_named;
};

struct macro {
    struct str name;
    uint32_t *param;
    struct str *param_name;
    struct node **def; /* default or NULL */
    size_t n;
    struct node *body;
};

struct node {
    enum node_kind kind;
    enum op op;
    bool negate; /* N_TEST: is not */
    uint32_t line, depth, sym;
    struct str text;
    struct value value;
    struct node *a, *b, *c;
    struct node **kid;
    size_t n;
    struct call call;
    const struct builtin *fn;
    struct target target;
    const struct macro *macro;
};

#define JINJA_MAX_NAMES 4096u /* different names in a template */

/* Names are numbered as they occur. */
struct symbols {
    struct str *v; /* malloc'ed */
    uint32_t n, cap;
};

struct template
{
    struct arena arena;
    struct symbols symbols;
    uint32_t sym_loop, sym_caller;
    struct node *body;
};

/* Builds t->body; t's arena is ready. ERR_BADMSG, ERR_NOMEM, ERR_LIMIT. */
int jinja_parse(struct template *t, struct token *tokens, struct err *e);

/* By name; NULL if there is none. */
const struct builtin *jinja_find_filter(const char *name, size_t n);
const struct builtin *jinja_find_test(const char *name, size_t n);
const struct builtin *jinja_find_function(const char *name, size_t n);
const struct builtin *jinja_find_method(const struct value *self, const char *name, size_t n);

#endif
