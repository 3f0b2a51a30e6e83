#include "text/jinja/arena.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK (64u << 10) /* bytes of an ordinary chunk */

struct arena_chunk {
    struct arena_chunk *below;
    size_t used, size;
    alignas(max_align_t) char data[];
};

void arena_init(struct arena *a, size_t max)
{
    *a = (struct arena){ .max = max };
}

void arena_finish(struct arena *a)
{
    while (a->top) {
        struct arena_chunk *c = a->top;

        a->top = c->below;
        free(c);
    }
    arena_init(a, a->max);
}

static bool add_chunk(struct arena *a, size_t n)
{
    size_t size = n > CHUNK / 2 ? 2 * n : CHUNK; /* multiples of the alignment, as n is */
    struct arena_chunk *c;

    if (n > a->max || a->total > a->max - n)
        return false;
    if (a->total + size > a->max)
        size = n;
    if (!(c = malloc(sizeof *c + size)))
        return false;
    *c = (struct arena_chunk){ .below = a->top, .size = size };
    a->top = c;
    a->total += size;
    return true;
}

/* Makes n a multiple of the alignment. */
static size_t round_up(size_t n)
{
    return (n + alignof(max_align_t) - 1) & ~(alignof(max_align_t) - 1);
}

void *arena_alloc(struct arena *a, size_t n)
{
    char *p;

    if (n > SIZE_MAX / 4)
        return NULL;
    n = round_up(n ? n : 1);
    if ((!a->top || a->top->size - a->top->used < n) && !add_chunk(a, n))
        return NULL;
    p = a->top->data + a->top->used;
    a->top->used += n;
    a->tail = NULL;
    return p;
}

void *arena_zalloc(struct arena *a, size_t n)
{
    void *p = arena_alloc(a, n);

    return p ? memset(p, 0, n) : NULL;
}

char *arena_copy(struct arena *a, const char *s, size_t n)
{
    char *p = arena_alloc(a, n + 1);

    if (!p)
        return NULL;
    if (n)
        memcpy(p, s, n);
    a->tail = p + n;
    *a->tail = '\0';
    return p;
}

char *arena_join(struct arena *a, const char *s, size_t n, const char *t, size_t m)
{
    char *end = a->top ? a->top->data + a->top->size : NULL, *p;

    if (a->tail && s + n == a->tail && m < (size_t)(end - a->tail)) {
        p = a->tail - n;
        a->top->used = round_up((size_t)(a->tail + m + 1 - a->top->data));
    } else {
        if (!(p = arena_alloc(a, n + m + 1)))
            return NULL;
        if (n)
            memcpy(p, s, n);
    }
    if (m)
        memmove(p + n, t, m);
    a->tail = p + n + m;
    *a->tail = '\0';
    return p;
}
