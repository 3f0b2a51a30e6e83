/* Added tokens: strings that are tokens wherever they stand in a text, before anything else is
 * done with it. The leftmost match counts, of several the longest. */
#ifndef SLUICE_TEXT_ADDED_H
#define SLUICE_TEXT_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;

#define ADDED_MAX       (1u << 20) /* tokens */
#define ADDED_MAX_BYTES 4096u      /* of one token */

enum {
    ADDED_SPECIAL = 1,
    ADDED_LSTRIP = 2,      /* takes the white space before it */
    ADDED_RSTRIP = 4,      /* and after it */
    ADDED_SINGLE_WORD = 8, /* not beside a letter or digit */
};

struct added_token {
    char *text; /* owned */
    size_t len;
    int32_t id;
    unsigned flags;
};

struct added {
    struct added_token *token; /* sorted by added_seal */
    uint32_t n, cap;
    uint32_t first[257]; /* tokens that begin with byte b: first[b] to first[b + 1] */
};

struct added_hit {
    size_t start, stop; /* in the text */
    int32_t id;
};

void added_finish(struct added *a);
/* text is not empty. */
int added_add(struct added *a, const char *text, size_t len, int32_t id, unsigned flags,
              struct err *e);
/* No more tokens will come: before the first added_next. */
void added_seal(struct added *a);

/* The first match in text at or after `at`; hit->start is not before `at`. With plain, special
 * tokens are text. */
bool added_next(const struct added *a, const char *text, size_t len, size_t at, bool plain,
                struct added_hit *hit);

#endif
