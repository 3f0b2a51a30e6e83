#include "kernel/arena.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define PIECE_ALIGNMENT 64

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* A mapping that begins and ends with a huge page; what is mapped around it to get there goes. */
static char *map_aligned(size_t bytes)
{
    size_t whole = bytes + ARENA_HUGE_PAGE;
    char *p = mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *at;

    if (p == MAP_FAILED)
        return NULL;
    at = p + (round_up((uintptr_t)p, ARENA_HUGE_PAGE) - (uintptr_t)p);
    if (at > p)
        munmap(p, (size_t)(at - p));
    munmap(at + bytes, whole - bytes - (size_t)(at - p));
    madvise(at, bytes, MADV_HUGEPAGE); /* a wish: without it everything works, a little slower */
    return at;
}

static int make_room(struct k_arena *a)
{
    size_t room = a->room ? 2 * a->room : 16;
    struct k_arena_slab *more;

    if (a->n < a->room)
        return 0;
    more = realloc(a->slabs, room * sizeof *more);
    if (!more)
        return -1;
    a->slabs = more;
    a->room = room;
    return 0;
}

/* What is too large to share a slab gets one that it fills, and the one that was being filled stays
 * the last. */
static struct k_arena_slab *new_slab(struct k_arena *a, size_t bytes)
{
    bool large = bytes > ARENA_SLAB_BYTES / 2;
    size_t size = large ? round_up(bytes, ARENA_HUGE_PAGE) : ARENA_SLAB_BYTES;
    struct k_arena_slab *s;
    char *base;

    if (make_room(a) < 0 || !(base = map_aligned(size)))
        return NULL;
    s = &a->slabs[a->n++];
    if (large && s > a->slabs) {
        s[0] = s[-1];
        s--;
    }
    *s = (struct k_arena_slab){ .base = base, .bytes = size };
    return s;
}

void *k_arena_take(struct k_arena *a, size_t bytes)
{
    struct k_arena_slab *s = a->n ? &a->slabs[a->n - 1] : NULL;
    void *p;

    if (bytes > SIZE_MAX / 2)
        return NULL;
    bytes = round_up(bytes ? bytes : 1, PIECE_ALIGNMENT);
    if (!s || s->bytes - s->used < bytes)
        s = new_slab(a, bytes);
    if (!s)
        return NULL;
    p = s->base + s->used;
    s->used += bytes;
    s->pieces++;
    return p;
}

void k_arena_give(struct k_arena *a, void *p)
{
    struct k_arena_slab *s = a->slabs;

    if (!p)
        return;
    while ((char *)p < s->base || (char *)p >= s->base + s->bytes) {
        s++;
        assert(s < a->slabs + a->n);
    }
    assert(s->pieces > 0);
    if (--s->pieces > 0)
        return;
    munmap(s->base, s->bytes);
    for (a->n--; s < a->slabs + a->n; s++)
        s[0] = s[1];
}

void k_arena_finish(struct k_arena *a)
{
    assert(a->n == 0);
    free(a->slabs);
    *a = (struct k_arena){ 0 };
}
