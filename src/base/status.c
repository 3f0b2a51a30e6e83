#include "base/status.h"

#include <stdio.h>
#include <string.h>

const char *status_name(int status)
{
    switch (status) {
#define STATUS_CASE(name, value, text)                                                             \
    case name:                                                                                     \
        return #name;
        STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return status >= 0 ? "OK" : "ERR_UNKNOWN";
}

const char *status_text(int status)
{
    switch (status) {
#define STATUS_CASE(name, value, text)                                                             \
    case name:                                                                                     \
        return text;
        STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return status >= 0 ? "success" : "unknown error";
}

int err_vset(struct err *e, int status, const char *fmt, va_list ap)
{
    if (e)
        vsnprintf(e->text, sizeof e->text, fmt, ap);
    return status;
}

int err_set(struct err *e, int status, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    err_vset(e, status, fmt, ap);
    va_end(ap);
    return status;
}

int err_prefix(struct err *e, int status, const char *fmt, ...)
{
    char rest[sizeof e->text];
    va_list ap;
    int n;

    if (!e)
        return status;
    memcpy(rest, e->text, sizeof rest);
    va_start(ap, fmt);
    n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 3 < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %.*s",
                 (int)(sizeof e->text - (size_t)n - 3), rest);
    return status;
}
