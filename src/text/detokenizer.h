/* Streaming detokenizer: token ids go in one by one, valid UTF-8 comes out. A character whose bytes
 * span tokens is held back until it is whole; what was emitted is never taken back; the pieces
 * joined (with the flush) equal tokenizer_decode of all ids. */
#ifndef SLUICE_TEXT_DETOKENIZER_H
#define SLUICE_TEXT_DETOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct tokenizer;

/* Plain state, copied by assignment. */
struct detok {
    const struct tokenizer *tok;
    bool skip_special;
    uint8_t held; /* bytes of an unfinished character */
    unsigned char hold[4];
};

void detok_init(struct detok *d, const struct tokenizer *tok, bool skip_special);
/* Appends the text that became certain with this id. Returns buf's status. */
int detok_push(struct detok *d, int32_t id, struct buf *out);
/* Appends U+FFFD for a character that never became whole. */
int detok_flush(struct detok *d, struct buf *out);

#endif
