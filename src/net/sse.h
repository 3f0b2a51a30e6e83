/* Server-sent events: an incremental splitter, pure. Events end at a blank line (LF or CRLF); `data:`
 * with or without a space; comment lines. Bytes may come in any pieces. */
#ifndef SLUICE_NET_SSE_H
#define SLUICE_NET_SSE_H

#include <stddef.h>

#include "base/buf.h"

#define SSE_MAX_EVENT (16u << 20)

struct sse {
    struct buf pending; /* bytes of an unfinished event */
    size_t scanned;     /* of pending, without an end of event */
    struct buf data;    /* the data of the event that fn is looking at */
};

struct sse_event {
    const char *raw; /* the event's bytes, with its blank line */
    size_t raw_len;
    const char *data; /* its data lines joined by LF, NUL-terminated; NULL if it has none */
    size_t data_len;
};

void sse_init(struct sse *s);
void sse_finish(struct sse *s);
/* Takes bytes; calls fn for each whole event (pointers borrowed for the call); a non-zero return of
 * fn stops and is returned. ERR_TOOLONG, ERR_NOMEM. */
int sse_push(struct sse *s, const void *bytes, size_t len,
             int (*fn)(void *arg, const struct sse_event *ev), void *arg);
/* Bytes of an event that never ended: non-zero when the stream was cut in the middle of one. */
size_t sse_left(const struct sse *s);

#endif
