/* A growing list of token ids. */
#ifndef SLUICE_TEXT_IDS_H
#define SLUICE_TEXT_IDS_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/status.h"

struct ids {
    int32_t *v; /* owned */
    size_t n, cap;
};

/* No more ids than bytes of text are ever pushed, so the text's maximum bounds the list. */
static inline int ids_push(struct ids *l, int32_t id)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        int32_t *p = realloc(l->v, cap * sizeof *p);

        if (!p)
            return ERR_NOMEM;
        l->v = p;
        l->cap = cap;
    }
    l->v[l->n++] = id;
    return 0;
}

#endif
