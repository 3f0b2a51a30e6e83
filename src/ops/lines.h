/* What a process writes, cut into whole lines with a prefix each, so that the lines of several
 * processes may stand in one stream. */
#ifndef SLUICE_OPS_LINES_H
#define SLUICE_OPS_LINES_H

#include <stddef.h>

#include "base/buf.h"

#define LINES_MAX_LINE   (16u << 10) /* bytes; a longer line becomes several */
#define LINES_MAX_PREFIX 32

struct lines {
    char prefix[LINES_MAX_PREFIX];
    struct buf held; /* the line that has no end yet */
};

void lines_init(struct lines *l, const char *prefix); /* cut if too long */
void lines_finish(struct lines *l);

/* Takes n bytes. Lines that are whole now are appended to out, with the prefix, and to plain (may be
 * NULL) without. Failures stay in the status of these buffers. */
void lines_add(struct lines *l, const char *data, size_t n, struct buf *out, struct buf *plain);
/* Nothing more comes: the last line goes out even if it has no end. */
void lines_end(struct lines *l, struct buf *out, struct buf *plain);

#endif
