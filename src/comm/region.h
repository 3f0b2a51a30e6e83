/* Memory of this process that processes on the same host may map and read in place.
 *
 * A region is an anonymous shared file (memfd): it has no name in any file system, so nothing of it can
 * be left behind, whatever kills the process. A peer opens it through /proc/<pid>/fd of the owner,
 * which the kernel allows to the owner's user only; where it is refused (other user, other
 * container, other host) the data is sent instead.
 *
 * A key says where a region is. It carries no right: whoever may open it could also debug the owner.
 * It names the host's boot, process, descriptor and file, so that a key that has become stale, or
 * comes from elsewhere, opens nothing. */
#ifndef SLUICE_COMM_REGION_H
#define SLUICE_COMM_REGION_H

#include <stddef.h>
#include <stdint.h>

struct err;

#define REGION_KEY_BYTES 64
#define REGION_MAX       64 /* regions of one process */

struct region_key {
    unsigned char b[REGION_KEY_BYTES]; /* opaque; all zero: no key */
};

/* Zeroed memory of `bytes` bytes, page-aligned. ERR_NOMEM, ERR_LIMIT, ERR_IO with a sentence. */
int region_alloc(void **out, size_t bytes, struct err *e);
void region_free(void *p, size_t bytes);

/* The key of the region that p, as returned by region_alloc, is. ERR_NOTFOUND: it is none. */
int region_key(struct region_key *out, const void *p);

/* Maps a peer's region of `bytes` bytes for reading. Any failure (ERR_NOTFOUND, ERR_AUTH, ERR_MISMATCH,
 * ERR_NOMEM; ERR_UNSUPPORTED: UCX_TLS names no shared memory) means: cannot be read in place. */
int region_open(const void **out, const struct region_key *key, size_t bytes);
void region_close(const void *p, size_t bytes);

#endif
