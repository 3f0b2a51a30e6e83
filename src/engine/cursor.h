/* Reading from bytes that came from elsewhere: nothing beyond their end. Internal to src/engine. */
#ifndef SLUICE_ENGINE_CURSOR_H
#define SLUICE_ENGINE_CURSOR_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct cursor {
    const char *p;
    size_t n; /* bytes left */
};

static inline int cursor_get(struct cursor *c, void *out, size_t n)
{
    if (n > c->n)
        return ERR_BADMSG;
    if (n)
        memcpy(out, c->p, n);
    c->p += n;
    c->n -= n;
    return 0;
}

/* n elements, allocated (never NULL on success). */
static inline int cursor_copy(struct cursor *c, void **out, uint32_t n, size_t size)
{
    if (n > c->n / size)
        return ERR_BADMSG;
    if (!(*out = malloc((n ? n : 1) * size)))
        return ERR_NOMEM;
    return cursor_get(c, *out, n * size);
}

#endif
