/* A growing byte buffer with a named maximum (after curl's dynbuf). The bytes are always followed
 * by a NUL that is not counted. After a failed append the buffer is empty and stays failed
 * (buf_status) until buf_reset, so a writer may append many times and check once. */
#ifndef SLUICE_BASE_BUF_H
#define SLUICE_BASE_BUF_H

#include <stdarg.h>
#include <stddef.h>

struct buf {
    char *data; /* NULL until the first append */
    size_t len; /* bytes in use, without the NUL */
    size_t cap; /* bytes allocated */
    size_t max; /* len never exceeds this */
    int status; /* 0, ERR_NOMEM or ERR_TOOLONG */
};

/* The maxima of the house. */
#define BUF_MAX_LINE  (64u << 10)  /* a log line, a header, a path */
#define BUF_MAX_REPLY (64u << 20)  /* an HTTP reply body */
#define BUF_MAX_BODY  (256u << 20) /* anything else */

void buf_init(struct buf *b, size_t max);
void buf_finish(struct buf *b); /* frees; the buffer may be used again after buf_init */
void buf_reset(struct buf *b);  /* len = 0, keeps the memory, clears the status */

int buf_append(struct buf *b, const void *data, size_t n);
int buf_puts(struct buf *b, const char *text);
int buf_putc(struct buf *b, char c);
int buf_printf(struct buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Drops the first n bytes (n <= len). */
void buf_consume(struct buf *b, size_t n);
/* Keeps the first n bytes (n <= len). */
void buf_truncate(struct buf *b, size_t n);
/* Hands the bytes over: the caller frees them. NULL if nothing was written or the buffer failed. */
char *buf_take(struct buf *b, size_t *len);
/* The bytes as a string, "" when empty. Borrowed until the next change. */
const char *buf_str(const struct buf *b);

#endif
