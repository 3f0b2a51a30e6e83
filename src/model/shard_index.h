/* The index of a checkpoint in several files (model.safetensors.index.json): which tensor is in which
 * file. Pure. Inside the folder only. */
#ifndef SLUICE_MODEL_SHARD_INDEX_H
#define SLUICE_MODEL_SHARD_INDEX_H

#include <stddef.h>

#include "model/file_list.h"

struct err;

struct shard_index {
    struct json_t *root; /* owns the names */
    struct json_t *map;  /* tensor -> name of a file, all checked */
    struct file_list *files;
};

/* The bytes of the index. The files' names have no slash: they stand beside it. ERR_BADMSG with the
 * line or the tensor, ERR_LIMIT, ERR_NOMEM. */
int shard_index_parse(struct shard_index *out, const char *text, size_t len, struct err *e);
void shard_index_finish(struct shard_index *x); /* zeros are fine */

/* Every tensor that is named must be in the file that is named for it. */
int shard_index_check(const struct shard_index *x, const struct weights *w, struct err *e);

#endif
