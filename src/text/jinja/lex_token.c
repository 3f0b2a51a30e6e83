/* Names, numbers, strings and operators. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "text/jinja/lexer.h"
#include "text/template.h"
#include "text/utf8.h"

static bool is_name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           (unsigned char)c >= 0x80;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Digits and single underscores from k on. */
static size_t digits(const struct lexer *l, size_t k)
{
    while (is_digit(lexer_peek(l, k)) ||
           (lexer_peek(l, k) == '_' && is_digit(lexer_peek(l, k + 1))))
        k++;
    return k;
}

static int lex_number(struct lexer *l)
{
    struct token t = { .kind = TOK_INT };
    size_t len = digits(l, 0), exp;
    char text[64];
    size_t n = 0;

    if (lexer_peek(l, len) == '.' && is_digit(lexer_peek(l, len + 1))) {
        t.kind = TOK_FLOAT;
        len = digits(l, len + 1);
    }
    if (lexer_peek(l, len) == 'e' || lexer_peek(l, len) == 'E') {
        exp = len + 1 + (lexer_peek(l, len + 1) == '+' || lexer_peek(l, len + 1) == '-');
        if (is_digit(lexer_peek(l, exp))) {
            t.kind = TOK_FLOAT;
            len = digits(l, exp);
        }
    }
    for (size_t i = 0; i < len && n < sizeof text - 1; i++)
        if (lexer_peek(l, i) != '_')
            text[n++] = lexer_peek(l, i);
    text[n] = '\0';
    errno = 0;
    t.i = strtoll(text, NULL, 10);
    if (t.kind == TOK_INT && (errno || n == sizeof text - 1))
        return lexer_fail(l, "a number is too large");
    t.f = strtod(text, NULL);
    lexer_skip(l, len);
    return lexer_push(l, t);
}

/* The code of n hex digits, -1 if they are not there. */
static int64_t hex(const char *s, size_t left, size_t n)
{
    char text[9] = { 0 }, *end;
    int64_t v;

    if (left < n)
        return -1;
    memcpy(text, s, n);
    v = strtoll(text, &end, 16);
    return end == text + n && v >= 0 && v <= 0x10ffff ? v : -1;
}

/* Python's escapes. s begins behind the backslash; returns the bytes taken, 0 for a bad escape. */
static size_t put_escape(struct buf *out, const char *s, size_t n)
{
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *p = strchr(from, s[0]);
    size_t take = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    char c[UTF8_MAX];
    int64_t cp = 0;

    if (s[0] == '\n')
        return 1;
    if (s[0] && p) {
        buf_putc(out, to[p - from]);
        return 1;
    }
    if (take) {
        if ((cp = hex(s + 1, n - 1, take)) < 0 || (cp >= 0xd800 && cp < 0xe000))
            return 0;
        take++;
    }
    for (; take < 3 && take < n && s[0] != 'x' && s[take] >= '0' && s[take] <= '7'; take++)
        cp = cp * 8 + s[take] - '0';
    if (!take) {
        buf_putc(out, '\\'); /* an unknown escape stays as it is */
        buf_putc(out, s[0]);
        return 1;
    }
    buf_append(out, c, utf8_put(c, (uint32_t)cp));
    return take;
}

static int lex_string(struct lexer *l)
{
    const char *s = l->s + l->at + 1, *end = l->s + l->n;
    char quote = l->s[l->at], *copy;
    struct buf text;
    int st;

    buf_init(&text, TEMPLATE_MAX_SOURCE);
    while (s < end && *s != quote) {
        size_t took = 1;

        if (*s != '\\')
            buf_putc(&text, *s);
        else if (++s == end || (took = put_escape(&text, s, (size_t)(end - s))) == 0)
            break;
        s += took;
    }
    if (s >= end || *s != quote) {
        buf_finish(&text);
        return lexer_fail(l, "a string is not closed, or has a bad escape");
    }
    copy = arena_copy(l->arena, buf_str(&text), text.len);
    st = !copy || text.status
             ? lexer_no_memory(l)
             : lexer_push(l, (struct token){ .kind = TOK_STRING, .text = { copy, text.len } });
    buf_finish(&text);
    lexer_skip(l, (size_t)(s + 1 - (l->s + l->at)));
    return st;
}

static int lex_operator(struct lexer *l)
{
    static const char *const pairs[] = { "//", "**", "==", "!=", "<=", ">=" };
    static const char singles[] = "+-*/%~=<>|.:,()[]{}";
    char c = lexer_peek(l, 0);
    size_t len = 0;
    struct token t = { .kind = TOK_OP };

    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (lexer_at(l, pairs[i]))
            len = 2;
    if (!len && c && strchr(singles, c))
        len = 1;
    if (!len)
        return lexer_fail(l, "a character that has no place in an expression");
    if (len == 1 && strchr("([{", c))
        l->depth++;
    if (len == 1 && strchr(")]}", c))
        l->depth--;
    if (l->depth < 0)
        return lexer_fail(l, "a closing bracket without an opening one");
    t.text = (struct str){ l->s + l->at, len };
    lexer_skip(l, len);
    return lexer_push(l, t);
}

int lexer_token(struct lexer *l)
{
    char c = lexer_peek(l, 0);
    size_t len = 0;
    struct token t = { .kind = TOK_NAME };

    if (is_digit(c))
        return lex_number(l);
    if (c == '"' || c == '\'')
        return lex_string(l);
    while (is_name_char(lexer_peek(l, len)))
        len++;
    if (!len)
        return lex_operator(l);
    t.text = (struct str){ l->s + l->at, len };
    lexer_skip(l, len);
    return lexer_push(l, t);
}
