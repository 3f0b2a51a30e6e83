/* Unicode normalization (UAX 15) in time n log n, whatever runs of combining marks a text holds. */
#ifndef SLUICE_TEXT_NORMAL_H
#define SLUICE_TEXT_NORMAL_H

#include <stddef.h>

struct buf;

enum normal_form { NORMAL_NONE, NORMAL_NFC, NORMAL_NFD, NORMAL_NFKC, NORMAL_NFKD };

/* Appends the normal form of good UTF-8. ERR_NOMEM or buf's status. */
int normal_append(struct buf *out, enum normal_form form, const char *s, size_t n);

#endif
