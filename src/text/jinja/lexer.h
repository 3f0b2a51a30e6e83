/* What the two halves of the lexer share: tags and text (lex.c), and what stands in tags (lex_token.c). */
#ifndef SLUICE_TEXT_JINJA_LEXER_H
#define SLUICE_TEXT_JINJA_LEXER_H

#include "text/jinja/ast.h"

struct lexer {
    const char *s; /* the source with \n line ends */
    size_t n, at;
    uint32_t line;
    bool line_start; /* the last token ended with a line break that it took with it */
    int depth;       /* of brackets inside the tag */
    struct tokens *out;
    struct arena *arena;
    struct err *e;
};

/* Set the error, "chat template, line N: ...", and return ERR_BADMSG or ERR_NOMEM. */
int lexer_fail(struct lexer *l, const char *what);
int lexer_no_memory(struct lexer *l);

int lexer_push(struct lexer *l, struct token t);
void lexer_skip(struct lexer *l, size_t n); /* moves on, counting lines */
bool lexer_at(const struct lexer *l, const char *text);

/* The character k places on, NUL behind the end. */
static inline char lexer_peek(const struct lexer *l, size_t k)
{
    return k < l->n - l->at ? l->s[l->at + k] : '\0';
}

/* The next token of a tag: a name, number, string or operator. */
int lexer_token(struct lexer *l);

#endif
