/* The same events in one piece and byte by byte; together with what is left they are the input. */
#include <assert.h>
#include <string.h>

#include "net/sse.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* Writes raw bytes and data with separators, so that other borders give another text. */
static int on_event(void *arg, const struct sse_event *ev)
{
    struct buf *b = arg;

    assert(!ev->data || strlen(ev->data) <= ev->data_len);
    buf_append(b, ev->raw, ev->raw_len);
    buf_putc(b, '|');
    if (ev->data)
        buf_append(b, ev->data, ev->data_len);
    return buf_putc(b, '|');
}

static size_t split(struct buf *out, const unsigned char *data, size_t size, size_t piece)
{
    struct sse s;
    size_t left;

    sse_init(&s);
    buf_init(out, BUF_MAX_BODY);
    for (size_t at = 0; at < size; at += piece)
        assert(sse_push(&s, data + at, size - at < piece ? size - at : piece, on_event, out) == 0);
    left = sse_left(&s);
    sse_finish(&s);
    return left;
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
    struct buf a, b;

    assert(split(&a, data, size, size ? size : 1) == split(&b, data, size, 1));
    assert(a.len == b.len && memcmp(buf_str(&a), buf_str(&b), a.len) == 0);
    buf_finish(&a);
    buf_finish(&b);
    return 0;
}
