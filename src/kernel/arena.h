/* Memory for packed weights. A model with many experts has thousands of matrices, each too small for
 * huge pages of its own; taken one after another from slabs they share them, and loading does not
 * wait for the system to clear and map one small page after the other. A slab is given back when the
 * last of its pieces is. One thread at a time. */
#ifndef SLUICE_KERNEL_ARENA_H
#define SLUICE_KERNEL_ARENA_H

#include <stddef.h>

#define ARENA_HUGE_PAGE ((size_t)2 << 20)
/* Untouched parts of a slab take no memory, so that what is lost at its end is part of a huge page. */
#define ARENA_SLAB_BYTES (32 * ARENA_HUGE_PAGE)

struct k_arena_slab {
    char *base;
    size_t bytes, used;
    size_t pieces; /* not given back yet */
};

struct k_arena {
    struct k_arena_slab *slabs; /* the last one is being filled */
    size_t n, room;
};

/* Zeros, 64-byte aligned. NULL without memory. */
void *k_arena_take(struct k_arena *a, size_t bytes);
/* p is NULL or was taken from this arena. */
void k_arena_give(struct k_arena *a, void *p);
/* Every piece has been given back. */
void k_arena_finish(struct k_arena *a);

#endif
