/* What string methods and filters both do. */
#include <string.h>
#include <utf8proc.h>

#include "text/jinja/builtins.h"
#include "text/jinja/space.h"
#include "text/template.h"
#include "text/utf8.h"

static bool holds_char(const struct str *chars, const char *c, size_t len)
{
    return memmem(chars->s, chars->n, c, len) != NULL;
}

struct str strip_text(const struct str *s, const struct str *chars, int side)
{
    const char *from = s->s, *to = s->s + s->n;
    size_t len;

    if (!chars->s) {
        if (side & 1)
            from += space_prefix(from, (size_t)(to - from));
        if (side & 2)
            to -= space_suffix(from, (size_t)(to - from));
        return (struct str){ from, (size_t)(to - from) };
    }
    while (side & 1 && from < to) {
        utf8_get(from, &len);
        if (!holds_char(chars, from, len))
            break;
        from += len;
    }
    while (side & 2 && from < to) {
        const char *c = to - 1;

        while (c > from && ((unsigned char)*c & 0xc0) == 0x80)
            c--;
        if (!holds_char(chars, c, (size_t)(to - c)))
            break;
        to = c;
    }
    return (struct str){ from, (size_t)(to - from) };
}

int replace_text(struct render *r, const struct str *s, const struct str *from,
                 const struct str *to, int64_t count, struct value *out)
{
    struct str rest = *s;
    const char *hit;
    struct buf b;

    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (; from->n > 0 && count != 0 && (hit = memmem(rest.s, rest.n, from->s, from->n)); count--) {
        buf_append(&b, rest.s, (size_t)(hit - rest.s));
        buf_append(&b, to->s, to->n);
        rest = (struct str){ hit + from->n, rest.n - (size_t)(hit - rest.s) - from->n };
    }
    for (; from->n == 0 && count != 0; count--) { /* the empty text stands before every character */
        size_t len = 0;

        buf_append(&b, to->s, to->n);
        if (rest.n == 0)
            break;
        utf8_get(rest.s, &len);
        buf_append(&b, rest.s, len);
        rest = (struct str){ rest.s + len, rest.n - len };
    }
    buf_append(&b, rest.s, rest.n);
    return render_take(r, &b, out);
}

int change_case(struct render *r, const struct str *s, enum letter_case how, struct value *out)
{
    bool inside = false; /* of a word, or of the text (capitalize) */
    struct buf b;

    buf_init(&b, TEMPLATE_MAX_OUTPUT);
    for (size_t at = 0, len; at < s->n; at += len) {
        int32_t cp = (int32_t)utf8_get(s->s + at, &len);
        bool up = how == CASE_UPPER || (how >= CASE_CAPITALIZE && !inside);
        int32_t changed = up ? utf8proc_toupper(cp) : utf8proc_tolower(cp);
        char c[UTF8_MAX];

        if (cp == 0xdf && how == CASE_UPPER) /* the one common letter that becomes two */
            buf_puts(&b, "SS");
        else
            buf_append(&b, c, utf8_put(c, (uint32_t)changed));
        inside = how == CASE_CAPITALIZE ||
                 (how == CASE_WORDS ? !space_is((uint32_t)cp) && !(cp < 0x80 && strchr("-({[<", cp))
                                    : utf8proc_toupper(cp) != utf8proc_tolower(cp));
    }
    return render_take(r, &b, out);
}
