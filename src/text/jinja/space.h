/* White space as Python's str methods see it. */
#ifndef SLUICE_TEXT_JINJA_SPACE_H
#define SLUICE_TEXT_JINJA_SPACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* White_Space, and the four separators U+001C to U+001F. */
bool space_is(uint32_t cp);
/* Bytes of white space at the beginning and at the end of good UTF-8. */
size_t space_prefix(const char *s, size_t n);
size_t space_suffix(const char *s, size_t n);

#endif
