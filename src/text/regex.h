/* Patterns of tokenizer files, written for Oniguruma or Rust's regex, in PCRE2's dialect. */
#ifndef SLUICE_TEXT_REGEX_H
#define SLUICE_TEXT_REGEX_H

#include <stddef.h>

struct buf;
struct err;

#define REGEX_MAX_SOURCE 65536u /* bytes of a pattern */

/* Appends the pattern so that PCRE2 (UTF, UCP) takes it as it was meant:
 *   \s, \S   Unicode's White_Space (PCRE2 adds U+180E)
 *   \w, \W   letters, marks, decimal digits, connectors (PCRE2 10.42 leaves out marks)
 *   \uHHHH   \x{HHHH}
 * ERR_UNSUPPORTED for set operations in classes ("&&", a class in a class), which PCRE2 would take
 * for plain characters, and for \W in a class. */
int regex_translate(struct buf *out, const char *pattern, size_t len, struct err *e);

#endif
