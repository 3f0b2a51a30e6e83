/* Status codes and error sentences.
 *
 * A function that can fail returns 0 (or a non-negative count) on success and a negative status
 * from the list below on failure. Results leave through out-parameters, which are written on
 * success only. Where a person must act on the failure, the function also takes a `struct err *`
 * and puts a sentence there: what was wrong, the value, where, and what to do. Library code
 * returns; only the top (src/main, src/serve, src/proxy) logs. */
#ifndef SLUICE_BASE_STATUS_H
#define SLUICE_BASE_STATUS_H

#include <stdarg.h>

/* name, value, text */
#define STATUS_LIST(X)                                                                             \
    X(ERR_NOMEM, -1, "out of memory")                                                              \
    X(ERR_INVAL, -2, "invalid argument")                                                           \
    X(ERR_RANGE, -3, "value out of range")                                                         \
    X(ERR_TOOLONG, -4, "too long")                                                                 \
    X(ERR_NOBLOCKS, -5, "no free KV blocks")                                                       \
    X(ERR_BADMSG, -6, "malformed message")                                                         \
    X(ERR_NOTFOUND, -7, "not found")                                                               \
    X(ERR_EXISTS, -8, "already exists")                                                            \
    X(ERR_IO, -9, "input/output error")                                                            \
    X(ERR_AGAIN, -10, "not now")                                                                   \
    X(ERR_TIMEOUT, -11, "timed out")                                                               \
    X(ERR_CANCELED, -12, "canceled")                                                               \
    X(ERR_CLOSED, -13, "connection closed")                                                        \
    X(ERR_AUTH, -14, "not authorized")                                                             \
    X(ERR_MISMATCH, -15, "the two sides do not match")                                             \
    X(ERR_UNSUPPORTED, -16, "not supported")                                                       \
    X(ERR_CORRUPT, -17, "data corrupt")                                                            \
    X(ERR_LIMIT, -18, "limit reached")                                                             \
    X(ERR_BUSY, -19, "busy")

enum status {
#define STATUS_ENUM(name, value, text) name = (value),
    STATUS_LIST(STATUS_ENUM)
#undef STATUS_ENUM
};

/* "ERR_NOMEM" and "out of memory"; "OK" and "success" for 0 and above. Never NULL. */
const char *status_name(int status);
const char *status_text(int status);

/* A sentence for a person. Zero-initialise it; text is "" until an error is set. */
struct err {
    char text[1024];
};

/* Puts the sentence into e (cut if too long; e may be NULL) and returns status. */
int err_set(struct err *e, int status, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int err_vset(struct err *e, int status, const char *fmt, va_list ap)
    __attribute__((format(printf, 3, 0)));

/* Puts "prefix: " before the sentence already in e. Returns status. */
int err_prefix(struct err *e, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
