#include "base/buf.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define BUF_FIRST 256u

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){ .max = max };
}

void buf_finish(struct buf *b)
{
    free(b->data);
    *b = (struct buf){ .max = b->max };
}

void buf_reset(struct buf *b)
{
    b->len = 0;
    b->status = 0;
    if (b->data)
        b->data[0] = '\0';
}

static int fail(struct buf *b, int status)
{
    size_t max = b->max;

    free(b->data);
    *b = (struct buf){ .max = max, .status = status };
    return status;
}

/* Makes room for n more bytes and the NUL. */
static int reserve(struct buf *b, size_t n)
{
    size_t want, cap = b->cap ? b->cap : BUF_FIRST;
    char *p;

    if (b->status)
        return b->status;
    if (n > b->max - b->len)
        return fail(b, ERR_TOOLONG);
    want = b->len + n + 1;
    if (want <= b->cap)
        return 0;
    while (cap < want)
        cap *= 2;
    p = realloc(b->data, cap);
    if (!p)
        return fail(b, ERR_NOMEM);
    b->data = p;
    b->cap = cap;
    return 0;
}

int buf_append(struct buf *b, const void *data, size_t n)
{
    int st = reserve(b, n);

    if (st < 0)
        return st;
    if (n)
        memcpy(b->data + b->len, data, n);
    b->len += n;
    b->data[b->len] = '\0';
    return 0;
}

int buf_puts(struct buf *b, const char *text)
{
    return buf_append(b, text, strlen(text));
}

int buf_putc(struct buf *b, char c)
{
    return buf_append(b, &c, 1);
}

int buf_printf(struct buf *b, const char *fmt, ...)
{
    va_list ap;
    int n, st;

    va_start(ap, fmt);
    n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return fail(b, ERR_INVAL);
    if ((st = reserve(b, (size_t)n)) < 0)
        return st;
    va_start(ap, fmt);
    vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->len += (size_t)n;
    return 0;
}

void buf_consume(struct buf *b, size_t n)
{
    assert(n <= b->len);
    if (n == 0)
        return;
    b->len -= n;
    memmove(b->data, b->data + n, b->len + 1);
}

void buf_truncate(struct buf *b, size_t n)
{
    assert(n <= b->len);
    b->len = n;
    if (b->data)
        b->data[n] = '\0';
}

char *buf_take(struct buf *b, size_t *len)
{
    char *p = b->data;

    if (len)
        *len = b->len;
    *b = (struct buf){ .max = b->max };
    return p;
}

const char *buf_str(const struct buf *b)
{
    return b->data ? b->data : "";
}
