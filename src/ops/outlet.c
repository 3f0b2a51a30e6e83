#include "ops/outlet.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define MAX_PENDING                                                                                \
    (8u << 20)     /* OUTLET_ENOUGH, and one read that is all line ends, with prefixes */
#define CHUNK 4096 /* a pipe that polls writable takes so much without blocking */

void outlet_init(struct outlet *o, int fd)
{
    o->fd = fd;
    buf_init(&o->pending, MAX_PENDING);
}

void outlet_finish(struct outlet *o)
{
    buf_finish(&o->pending);
}

/* Whole lines, if there is one, so that others may write lines to the same descriptor. */
static void write_some(struct outlet *o)
{
    size_t n = o->pending.len < CHUNK ? o->pending.len : CHUNK;
    const char *end = memrchr(o->pending.data, '\n', n);
    ssize_t done;

    if (end)
        n = (size_t)(end - o->pending.data) + 1;
    done = write(o->fd, o->pending.data, n);
    if (done >= 0)
        buf_consume(&o->pending, (size_t)done);
    else if (errno != EINTR && errno != EAGAIN)
        o->fd = -1;
}

void outlet_flush(struct outlet *o)
{
    struct pollfd p = { .fd = o->fd, .events = POLLOUT };

    while (o->fd >= 0 && o->pending.len && poll(&p, 1, 0) == 1)
        write_some(o);
    if (o->fd < 0 || o->pending.status < 0)
        buf_reset(&o->pending);
}
