#include "net/sse.h"

#include <string.h>

#include "base/status.h"

void sse_init(struct sse *s)
{
    *s = (struct sse){ 0 };
    buf_init(&s->pending, SSE_MAX_EVENT);
    buf_init(&s->data, SSE_MAX_EVENT);
}

void sse_finish(struct sse *s)
{
    buf_finish(&s->pending);
    buf_finish(&s->data);
}

size_t sse_left(const struct sse *s)
{
    return s->pending.len;
}

/* The bytes of the event that starts at p, its blank line included; 0 while there is no blank line.
 * *scanned: how far earlier calls looked. */
static size_t event_end(const char *p, size_t len, size_t *scanned)
{
    size_t at = *scanned;
    const char *lf;

    while (at < len && (lf = memchr(p + at, '\n', len - at))) {
        size_t i = (size_t)(lf - p);

        if (i == 0 || p[i - 1] == '\n' || (p[i - 1] == '\r' && (i == 1 || p[i - 2] == '\n')))
            return i + 1;
        at = i + 1;
    }
    *scanned = len;
    return 0;
}

/* Adds the value if the line is a data field. */
static void take_line(struct sse *s, struct sse_event *ev, const char *line, size_t len)
{
    if (len < 5 || memcmp(line, "data:", 5) != 0)
        return;
    line += 5;
    len -= 5;
    if (len && *line == ' ') {
        line++;
        len--;
    }
    if (ev->data)
        buf_putc(&s->data, '\n');
    buf_append(&s->data, line, len);
    ev->data = buf_str(&s->data);
}

static int parse_event(struct sse *s, struct sse_event *ev, const char *raw, size_t len)
{
    size_t at = 0;

    *ev = (struct sse_event){ .raw = raw, .raw_len = len };
    buf_reset(&s->data);
    while (at < len) {
        const char *lf = memchr(raw + at, '\n', len - at);
        size_t n = lf ? (size_t)(lf - raw) - at : len - at;

        take_line(s, ev, raw + at, n && raw[at + n - 1] == '\r' ? n - 1 : n);
        at += n + 1;
    }
    if (ev->data) {
        ev->data = buf_str(&s->data);
        ev->data_len = s->data.len;
    }
    return s->data.status;
}

int sse_push(struct sse *s, const void *bytes, size_t len,
             int (*fn)(void *arg, const struct sse_event *ev), void *arg)
{
    size_t done = 0, n;
    int st = buf_append(&s->pending, bytes, len);

    if (st < 0)
        return st;
    while (st == 0 && (n = event_end(s->pending.data + done, s->pending.len - done, &s->scanned))) {
        struct sse_event ev;

        st = parse_event(s, &ev, s->pending.data + done, n);
        if (st == 0)
            st = fn(arg, &ev);
        done += n;
        s->scanned = 0;
    }
    buf_consume(&s->pending, done);
    return st;
}
