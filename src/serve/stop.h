/* Stop strings in a stream of text: what may be shown, and whether one was found. Pure.
 *
 * The longest end of the text that could still become a stop string is held back; the rest is let
 * through. The same text gives the same output however it is cut. */
#ifndef SLUICE_SERVE_STOP_H
#define SLUICE_SERVE_STOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "wire/openai.h"

struct stop_filter {
    const struct oai_text *stops; /* borrowed */
    uint32_t n;
    bool include;                 /* let a found stop string through */
    const struct oai_text *found; /* NULL: none yet */
    struct buf held;
};

void stop_init(struct stop_filter *f, const struct oai_text *stops, uint32_t n, bool include);
void stop_finish(struct stop_filter *f);

/* Appends to out what became certain with this text. Once a stop string is found (the one that ends
 * first; of several that end together the longest) f->found is set and everything later is dropped.
 * Returns out's status or ERR_NOMEM. */
int stop_push(struct stop_filter *f, const char *text, size_t len, struct buf *out);
/* The text has ended, or must not be looked at (min_tokens): what is held is let through. */
int stop_flush(struct stop_filter *f, struct buf *out);

#endif
