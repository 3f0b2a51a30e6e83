#include "text/jinja/space.h"

#include "text/utf8.h"

bool space_is(uint32_t cp)
{
    return utf8_is_space(cp) || (cp >= 0x1c && cp <= 0x1f);
}

size_t space_prefix(const char *s, size_t n)
{
    size_t at = 0, len;

    while (at < n && space_is(utf8_get(s + at, &len)))
        at += len;
    return at;
}

size_t space_suffix(const char *s, size_t n)
{
    size_t end = n, len;

    while (end > 0) {
        size_t at = end - 1;

        while (at > 0 && ((unsigned char)s[at] & 0xc0) == 0x80)
            at--;
        if (!space_is(utf8_get(s + at, &len)))
            break;
        end = at;
    }
    return n - end;
}
