/* Small files that are kept from one start to the next: $SLUICE_CACHE_DIR, else $XDG_CACHE_HOME/sluice, else
 * $HOME/.cache/sluice. What is kept there may vanish at any time; nothing depends on it. */
#ifndef SLUICE_SYS_STORE_H
#define SLUICE_SYS_STORE_H

#include <stddef.h>

struct err;

#define STORE_MAX_BYTES (1u << 20)

/* *out is the whole file and a NUL, owned by the caller: free(). ERR_NOTFOUND if there is none (or no place
 * for files), ERR_TOOLONG, ERR_IO, ERR_NOMEM, with a sentence that names the path. */
int store_read(char **out, size_t *len, const char *name, struct err *e);
/* Makes the folder if need be, and replaces the file in one step, so that a reader never sees half of it.
 * ERR_NOTFOUND if there is no place for files, ERR_IO. */
int store_write(const char *name, const void *data, size_t len, struct err *e);

#endif
