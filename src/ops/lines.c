#include "ops/lines.h"

#include <stdio.h>
#include <string.h>

void lines_init(struct lines *l, const char *prefix)
{
    snprintf(l->prefix, sizeof l->prefix, "%s", prefix);
    buf_init(&l->held, LINES_MAX_LINE);
}

void lines_finish(struct lines *l)
{
    buf_finish(&l->held);
}

/* What is held and n more bytes are a line. */
static void put(struct lines *l, const char *rest, size_t n, struct buf *out, struct buf *plain)
{
    buf_puts(out, l->prefix);
    for (int i = 0; i < (plain ? 2 : 1); i++) {
        struct buf *to = i ? plain : out;

        buf_append(to, buf_str(&l->held), l->held.len);
        buf_append(to, rest, n);
        buf_putc(to, '\n');
    }
    buf_reset(&l->held);
}

void lines_add(struct lines *l, const char *data, size_t n, struct buf *out, struct buf *plain)
{
    while (n > 0) {
        size_t room = LINES_MAX_LINE - l->held.len, look = n < room ? n : room;
        const char *end = memchr(data, '\n', look);
        size_t part = end ? (size_t)(end - data) : look;

        /* What does not fit in one line goes on in the next one. */
        if (end || part == room)
            put(l, data, part, out, plain);
        else if (buf_append(&l->held, data, part) < 0)
            buf_reset(&l->held);
        part += end != NULL;
        data += part;
        n -= part;
    }
}

void lines_end(struct lines *l, struct buf *out, struct buf *plain)
{
    if (l->held.len)
        put(l, "", 0, out, plain);
}
