/* Template source to tokens, with trim_blocks and lstrip_blocks on. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "text/jinja/lexer.h"
#include "text/jinja/space.h"
#include "text/utf8.h"

int lexer_fail(struct lexer *l, const char *what)
{
    return err_set(l->e, ERR_BADMSG, "chat template, line %u: %s", l->line, what);
}

int lexer_no_memory(struct lexer *l)
{
    return err_set(l->e, ERR_NOMEM, "no memory for a chat template of %zu bytes", l->n);
}

int lexer_push(struct lexer *l, struct token t)
{
    struct tokens *o = l->out;

    if (o->n == o->cap) {
        size_t cap = o->cap ? 2 * o->cap : 256;
        struct token *p = realloc(o->v, cap * sizeof *p);

        if (!p)
            return lexer_no_memory(l);
        o->v = p;
        o->cap = cap;
    }
    t.line = l->line;
    o->v[o->n++] = t;
    return 0;
}

static int push_kind(struct lexer *l, enum token_kind kind)
{
    return lexer_push(l, (struct token){ .kind = kind });
}

void lexer_skip(struct lexer *l, size_t n)
{
    assert(n <= l->n - l->at);
    for (; n > 0; n--)
        l->line += l->s[l->at++] == '\n';
}

bool lexer_at(const struct lexer *l, const char *text)
{
    size_t n = strlen(text);

    return l->n - l->at >= n && memcmp(l->s + l->at, text, n) == 0;
}

static void skip_space(struct lexer *l)
{
    lexer_skip(l, space_prefix(l->s + l->at, l->n - l->at));
}

/* Behind a tag: '-' takes all white space, a block or comment one line break. `mark` is the character
 * before the closing one. */
static void end_tag(struct lexer *l, char mark, bool variable)
{
    size_t from = l->at;

    if (mark == '-')
        skip_space(l);
    else if (mark != '+' && !variable && lexer_at(l, "\n"))
        lexer_skip(l, 1);
    l->line_start = l->at > from && l->s[l->at - 1] == '\n';
}

/* The end of the text before a tag, with what the tag strips from it. */
static size_t strip_before(const struct lexer *l, size_t from, size_t to, char mark, bool variable)
{
    size_t line = to;

    if (mark == '-')
        return to - space_suffix(l->s + from, to - from);
    if (mark == '+' || variable)
        return to;
    while (line > from && l->s[line - 1] != '\n')
        line--;
    if ((line > from || l->line_start) && space_prefix(l->s + line, to - line) == to - line)
        return line;
    return to;
}

static int push_data(struct lexer *l, size_t from, size_t to)
{
    if (from == to)
        return 0;
    return lexer_push(l, (struct token){ .kind = TOK_DATA, .text = { l->s + from, to - from } });
}

static int lex_comment(struct lexer *l)
{
    const char *end = memmem(l->s + l->at, l->n - l->at, "#}", 2);
    char mark;

    if (!end)
        return lexer_fail(l, "a comment is not closed with #}");
    mark = end > l->s + l->at ? end[-1] : '\0';
    lexer_skip(l, (size_t)(end + 2 - (l->s + l->at)));
    end_tag(l, mark, false);
    return 0;
}

/* "raw" and the end of the tag follow, maybe: moves behind it if so. */
static bool take_word_tag(struct lexer *l, const char *word, char *mark)
{
    struct lexer was = *l;

    skip_space(l);
    if (lexer_at(l, word)) {
        lexer_skip(l, strlen(word));
        skip_space(l);
        *mark = lexer_at(l, "-%}") ? '-' : lexer_at(l, "+%}") ? '+' : '\0';
        lexer_skip(l, *mark ? 1 : 0);
        if (lexer_at(l, "%}")) {
            lexer_skip(l, 2);
            return true;
        }
    }
    *l = was;
    return false;
}

/* Behind {% raw %}: all up to {% endraw %} is text. */
static int lex_raw(struct lexer *l, char raw_mark)
{
    size_t from;

    if (raw_mark == '-')
        skip_space(l);
    from = l->at;
    while (l->at < l->n) {
        size_t to = l->at;
        char mark = '\0', end;

        if (!lexer_at(l, "{%")) {
            lexer_skip(l, 1);
            continue;
        }
        lexer_skip(l, 2);
        if (lexer_at(l, "-") || lexer_at(l, "+")) {
            mark = l->s[l->at];
            lexer_skip(l, 1);
        }
        if (take_word_tag(l, "endraw", &end)) {
            int st = push_data(l, from, strip_before(l, from, to, mark, false));

            end_tag(l, end, false);
            return st;
        }
    }
    return lexer_fail(l, "{% raw %} is not closed with {% endraw %}");
}

/* The inside of a tag up to its end, which is }} or %}. */
static int lex_inside(struct lexer *l, bool variable)
{
    const char *end = variable ? "}}" : "%}";
    int st;

    l->depth = 0;
    for (;;) {
        char mark = lexer_peek(l, 0);
        size_t k = mark == '-' || (mark == '+' && !variable) ? 1 : 0;

        if (l->depth == 0 && lexer_peek(l, k) == end[0] && lexer_peek(l, k + 1) == end[1]) {
            lexer_skip(l, k + 2);
            if ((st = push_kind(l, variable ? TOK_VAR_END : TOK_BLOCK_END)) < 0)
                return st;
            end_tag(l, k ? mark : '\0', variable);
            return 0;
        }
        if (l->at == l->n)
            return lexer_fail(l,
                              variable ? "{{ is not closed with }}" : "{% is not closed with %}");
        k = space_prefix(l->s + l->at, l->n - l->at);
        if (k)
            lexer_skip(l, k);
        else if ((st = lexer_token(l)) < 0)
            return st;
    }
}

/* The next "{{", "{%" or "{#", or the end. */
static size_t find_tag(const struct lexer *l)
{
    size_t at = l->at;

    for (; at + 1 < l->n; at++)
        if (l->s[at] == '{' && strchr("{%#", l->s[at + 1]) && l->s[at + 1])
            return at;
    return l->n;
}

static int lex_tag(struct lexer *l)
{
    size_t from = l->at, open = find_tag(l), to;
    char kind, mark = '\0', raw_mark;
    bool variable, signed_;
    int st;

    if (open == l->n) {
        st = push_data(l, from, l->n);
        lexer_skip(l, l->n - l->at);
        return st;
    }
    kind = l->s[open + 1];
    variable = kind == '{';
    if (open + 2 < l->n && (l->s[open + 2] == '-' || l->s[open + 2] == '+'))
        mark = l->s[open + 2];
    signed_ = mark == '-' || (mark == '+' && !variable);
    to = strip_before(l, from, open, mark, variable);
    if ((st = push_data(l, from, to)) < 0)
        return st;
    lexer_skip(l, open + 2 + signed_ - l->at);
    if (kind == '#')
        return lex_comment(l);
    if (kind == '%' && take_word_tag(l, "raw", &raw_mark))
        return lex_raw(l, raw_mark);
    if ((st = push_kind(l, variable ? TOK_VAR_BEGIN : TOK_BLOCK_BEGIN)) < 0)
        return st;
    return lex_inside(l, variable);
}

/* Line ends become \n, and the last one is dropped. */
static char *normalize(struct arena *a, const char *s, size_t *n)
{
    char *copy = arena_alloc(a, *n + 1);
    size_t len = 0;

    if (!copy)
        return NULL;
    for (size_t i = 0; i < *n; i++) {
        if (s[i] == '\r' && i + 1 < *n && s[i + 1] == '\n')
            continue;
        copy[len++] = s[i] == '\r' ? '\n' : s[i];
    }
    if (len > 0 && copy[len - 1] == '\n')
        len--;
    copy[len] = '\0';
    *n = len;
    return copy;
}

int jinja_lex(struct tokens *out, struct arena *a, const char *source, size_t len, struct err *e)
{
    struct lexer l = { .n = len, .line = 1, .line_start = true, .out = out, .arena = a, .e = e };
    int st;

    if (utf8_valid_prefix(source, len) < len)
        return lexer_fail(&l, "the template is not UTF-8");
    if (!(l.s = normalize(a, source, &l.n)))
        return lexer_no_memory(&l);
    while (l.at < l.n)
        if ((st = lex_tag(&l)) < 0)
            return st;
    return push_kind(&l, TOK_EOF);
}
