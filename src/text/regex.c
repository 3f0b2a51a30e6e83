#include "text/regex.h"

#include <stdbool.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"

#define SPACE                                                                                      \
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"  \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE                                                                                  \
    "\\x{00}-\\x{08}\\x{0e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}"                \
    "\\x{1681}-\\x{1fff}\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}"                 \
    "\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"

static bool is_hex(char c)
{
    return c && strchr("0123456789abcdefABCDEF", c);
}

/* The escape at p (n bytes are left, at least one: the backslash). Returns the bytes taken, or 0 for
 * \W in a class. */
static size_t put_escape(struct buf *out, const char *p, size_t n, bool in_class)
{
    const char *open = in_class ? "" : "[", *close = in_class ? "" : "]";
    char c = n > 1 ? p[1] : '\0';

    switch (c) {
    case 's':
        buf_printf(out, "%s" SPACE "%s", open, close);
        return 2;
    case 'S':
        buf_printf(out, "%s" NOT_SPACE "%s", open, close);
        return 2;
    case 'w':
        buf_printf(out, "%s" WORD "%s", open, close);
        return 2;
    case 'W':
        buf_puts(out, "[^" WORD "]");
        return in_class ? 0 : 2;
    case 'u':
        if (n >= 6 && is_hex(p[2]) && is_hex(p[3]) && is_hex(p[4]) && is_hex(p[5])) {
            buf_printf(out, "\\x{%.4s}", p + 2);
            return 6;
        }
        break;
    }
    buf_append(out, p, n > 1 ? 2 : 1);
    return n > 1 ? 2 : 1;
}

/* Something in a class that Oniguruma reads as a set operation. */
static bool is_set_operation(const char *p, size_t n)
{
    return n > 1 && ((p[0] == '&' && p[1] == '&') || (p[0] == '[' && p[1] != ':'));
}

/* Length of "[:name:]" at p, 0 if it is not one. */
static size_t posix_class(const char *p, size_t n)
{
    const char *end;

    if (n < 4 || p[0] != '[' || p[1] != ':' || !(end = memmem(p + 2, n - 2, ":]", 2)))
        return 0;
    return (size_t)(end - p) + 2;
}

int regex_translate(struct buf *out, const char *pattern, size_t len, struct err *e)
{
    bool in_class = false;

    if (len > REGEX_MAX_SOURCE)
        return err_set(e, ERR_LIMIT, "a pattern of %zu bytes is longer than %u", len,
                       REGEX_MAX_SOURCE);
    for (size_t i = 0, took; i < len; i += took) {
        const char *p = pattern + i;
        size_t n = len - i;

        took = 1;
        if (*p == '\\') {
            if ((took = put_escape(out, p, n, in_class)) == 0)
                return err_set(e, ERR_UNSUPPORTED, "\\W in a class, at byte %zu of '%.200s'", i,
                               pattern);
        } else if (in_class && (took = posix_class(p, n)) > 0) {
            buf_append(out, p, took);
        } else if (in_class && is_set_operation(p, n)) {
            return err_set(e, ERR_UNSUPPORTED,
                           "a set operation in a class, at byte %zu of '%.200s'", i, pattern);
        } else if (!in_class && *p == '[') {
            /* A bracket right after the opening one is a member. */
            took = n > 1 && p[1] == '^' ? 2 : 1;
            if (took < n && p[took] == ']')
                took++;
            buf_append(out, p, took);
            in_class = true;
        } else {
            took = 1;
            in_class = in_class && *p != ']';
            buf_putc(out, *p);
        }
    }
    return out->status;
}
