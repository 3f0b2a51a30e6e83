/* UTF-8, strictly (Unicode 15, table 3-7): no overlong forms, no surrogates, nothing above U+10FFFF.
 * A bad sequence counts as one U+FFFD for each maximal bad part, as HTML and Python read it. */
#ifndef SLUICE_TEXT_UTF8_H
#define SLUICE_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;

#define UTF8_REPLACEMENT     "\xef\xbf\xbd" /* U+FFFD */
#define UTF8_REPLACEMENT_LEN 3u
#define UTF8_MAX             4u /* bytes of a character */

enum utf8_kind {
    UTF8_GOOD,  /* *len bytes are a character */
    UTF8_BAD,   /* *len bytes (1 to 3) are a maximal bad part */
    UTF8_SHORT, /* all n bytes are the beginning of a character */
};

/* Looks at the n > 0 bytes at s. */
enum utf8_kind utf8_scan(const char *s, size_t n, size_t *len);

/* The character at s, which must be good, and its length. */
uint32_t utf8_get(const char *s, size_t *len);
/* Writes 1 to 4 bytes, returns how many. cp must not be above U+10FFFF. */
size_t utf8_put(char out[UTF8_MAX], uint32_t cp);

/* How many bytes from the start of s are good. n if all are. */
size_t utf8_valid_prefix(const char *s, size_t n);
/* Appends s with every bad part replaced by U+FFFD. Returns buf's status. */
int utf8_append_clean(struct buf *out, const char *s, size_t n);

/* Unicode's White_Space, what \s means to Rust. */
bool utf8_is_space(uint32_t cp);

#endif
