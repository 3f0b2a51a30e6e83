#include "text/utf8.h"

#include <assert.h>

#include "base/buf.h"

/* What may follow a lead byte: how many bytes, and the bounds of the first of them. */
static bool lead(unsigned char c, size_t *len, unsigned char *lo, unsigned char *hi)
{
    *lo = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;
    *hi = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;
    *len = c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
    return c < 0x80 || (c >= 0xc2 && c <= 0xf4);
}

enum utf8_kind utf8_scan(const char *s, size_t n, size_t *len)
{
    const unsigned char *u = (const unsigned char *)s;
    unsigned char lo, hi;
    size_t want;

    assert(n > 0);
    *len = 1;
    if (!lead(u[0], &want, &lo, &hi))
        return UTF8_BAD;
    for (; *len < want; ++*len, lo = 0x80, hi = 0xbf) {
        if (*len == n)
            return UTF8_SHORT;
        if (u[*len] < lo || u[*len] > hi)
            return UTF8_BAD;
    }
    return UTF8_GOOD;
}

uint32_t utf8_get(const char *s, size_t *len)
{
    const unsigned char *u = (const unsigned char *)s;

    if (u[0] < 0x80) {
        *len = 1;
        return u[0];
    }
    if (u[0] < 0xe0) {
        *len = 2;
        return (u[0] & 0x1fu) << 6 | (u[1] & 0x3fu);
    }
    if (u[0] < 0xf0) {
        *len = 3;
        return (u[0] & 0xfu) << 12 | (u[1] & 0x3fu) << 6 | (u[2] & 0x3fu);
    }
    *len = 4;
    return (u[0] & 7u) << 18 | (u[1] & 0x3fu) << 12 | (u[2] & 0x3fu) << 6 | (u[3] & 0x3fu);
}

size_t utf8_put(char out[UTF8_MAX], uint32_t cp)
{
    static const unsigned char mark[] = { 0, 0, 0xc0, 0xe0, 0xf0 };
    size_t len = cp < 0x80 ? 1 : cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;

    assert(cp <= 0x10ffff);
    for (size_t i = len; i-- > 1; cp >>= 6)
        out[i] = (char)(0x80 | (cp & 0x3f));
    out[0] = (char)(len == 1 ? cp : mark[len] | cp);
    return len;
}

size_t utf8_valid_prefix(const char *s, size_t n)
{
    size_t at = 0, len;

    while (at < n) {
        if ((unsigned char)s[at] < 0x80)
            len = 1;
        else if (utf8_scan(s + at, n - at, &len) != UTF8_GOOD)
            break;
        at += len;
    }
    return at;
}

int utf8_append_clean(struct buf *out, const char *s, size_t n)
{
    while (n > 0) {
        size_t good = utf8_valid_prefix(s, n), bad;

        buf_append(out, s, good);
        s += good;
        n -= good;
        if (n == 0)
            break;
        utf8_scan(s, n, &bad);
        buf_append(out, UTF8_REPLACEMENT, UTF8_REPLACEMENT_LEN);
        s += bad;
        n -= bad;
    }
    return out->status;
}

bool utf8_is_space(uint32_t cp)
{
    return (cp >= 0x9 && cp <= 0xd) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}
