#include "serve/stop.h"

#include <string.h>

void stop_init(struct stop_filter *f, const struct oai_text *stops, uint32_t n, bool include)
{
    *f = (struct stop_filter){ .stops = stops, .n = n, .include = include };
    buf_init(&f->held, BUF_MAX_BODY);
}

void stop_finish(struct stop_filter *f)
{
    buf_finish(&f->held);
}

/* The place of the stop string in the held text that ends first, so that the cut of the text into
 * pieces does not matter; of those that end together the longest. held.len if there is none. */
static size_t find(struct stop_filter *f)
{
    size_t start = f->held.len, end = SIZE_MAX;

    for (uint32_t i = 0; i < f->n && f->held.len; i++) {
        const struct oai_text *s = &f->stops[i];
        const char *hit = memmem(f->held.data, f->held.len, s->s, s->len);
        size_t at = hit ? (size_t)(hit - f->held.data) : 0;

        if (!hit || at + s->len > end || (at + s->len == end && at > start))
            continue;
        start = at;
        end = at + s->len;
        f->found = s;
    }
    return start;
}

/* Bytes at the end of the held text that begin a stop string, at most its length less one. */
static size_t undecided(const struct stop_filter *f)
{
    size_t most = 0;

    for (uint32_t i = 0; i < f->n; i++) {
        const struct oai_text *s = &f->stops[i];
        size_t n = s->len - 1 < f->held.len ? s->len - 1 : f->held.len;

        for (; n > most; n--)
            if (memcmp(f->held.data + f->held.len - n, s->s, n) == 0)
                most = n;
    }
    return most;
}

int stop_push(struct stop_filter *f, const char *text, size_t len, struct buf *out)
{
    size_t pass;
    int st;

    if (f->n == 0)
        return buf_append(out, text, len);
    if (f->found)
        return out->status;
    if ((st = buf_append(&f->held, text, len)) < 0)
        return st;
    pass = find(f);
    if (f->found) {
        pass += f->include ? f->found->len : 0;
        st = buf_append(out, f->held.data, pass);
        buf_reset(&f->held);
        return st;
    }
    pass = f->held.len - undecided(f);
    if (pass == 0)
        return out->status;
    st = buf_append(out, f->held.data, pass);
    buf_consume(&f->held, pass);
    return st;
}

int stop_flush(struct stop_filter *f, struct buf *out)
{
    int st = out->status;

    if (f->held.len > 0 && !f->found)
        st = buf_append(out, f->held.data, f->held.len);
    buf_reset(&f->held);
    return st;
}
