/* A file mapped for reading. */
#ifndef SLUICE_SYS_MAP_H
#define SLUICE_SYS_MAP_H

#include <stddef.h>

struct err;

struct map {
    const unsigned char *data; /* NULL for an empty file */
    size_t size;
};

/* Maps the whole file. ERR_NOTFOUND, ERR_IO, ERR_NOMEM with a sentence that names the path. */
int map_open(struct map *m, const char *path, struct err *e);
/* The pages are not needed any more (they may be read again from the file). */
void map_drop(const struct map *m, size_t offset, size_t len);
void map_close(struct map *m);

#endif
