/* Memory that is freed all at once: a template's tree, or everything that one rendering made. */
#ifndef SLUICE_TEXT_JINJA_ARENA_H
#define SLUICE_TEXT_JINJA_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_chunk *top;
    char *tail; /* the NUL of the string allocated last; NULL if something else came after it */
    size_t total, max; /* bytes in all chunks, and their maximum */
};

void arena_init(struct arena *a, size_t max);
void arena_finish(struct arena *a);

/* n bytes, aligned for anything. NULL without memory or above the maximum. */
void *arena_alloc(struct arena *a, size_t n);
/* The same, zeroed. */
void *arena_zalloc(struct arena *a, size_t n);
/* A NUL-terminated copy. */
char *arena_copy(struct arena *a, const char *s, size_t n);
/* A NUL-terminated string: s and t written together. When s is what was allocated last, it is lengthened
 * where it stands, so that a string built piece by piece is not copied each time. s stays valid, but is
 * no longer terminated at its own end. */
char *arena_join(struct arena *a, const char *s, size_t n, const char *t, size_t m);

#endif
