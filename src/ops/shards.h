/* Writes safetensors: the files of a checkpoint, each at most so large, and the index over them.
 *
 * Names, types and shapes are known beforehand: the headers are written first, and the tensors'
 * bytes go where they belong in any order and from any thread. */
#ifndef SLUICE_OPS_SHARDS_H
#define SLUICE_OPS_SHARDS_H

#include <stddef.h>
#include <stdint.h>

#include "model/tensor.h"

struct err;
struct shards;

enum shard_type { SHARD_F32, SHARD_I32, SHARD_BF16, SHARD_I8, SHARD_F8_E4M3, SHARD_TYPES };

/* Bytes of an element. */
uint32_t shard_type_bytes(enum shard_type type);

struct shard_tensor {
    char name[TENSOR_MAX_NAME];
    enum shard_type type;
    uint32_t n_dims;
    uint64_t shape[2];
};

uint64_t shard_tensor_bytes(const struct shard_tensor *t);

/* Files dir/<stem>-0000k-of-0000n.safetensors, filled in the order of the tensors; a file holds at
 * least one tensor, and beyond that at most max_bytes of data. The room on the disk is taken at once
 * where the file system can. t is borrowed. ERR_IO with the file and the reason, ERR_LIMIT. */
int shards_create(struct shards **out, const char *dir, const char *stem, uint64_t max_bytes,
                  const struct shard_tensor *t, size_t n, struct err *e);
/* n bytes of tensor i from its byte `at` on. Any thread. */
int shards_write(struct shards *s, size_t i, uint64_t at, const void *data, size_t n,
                 struct err *e);
/* Makes the files durable and writes <stem>.safetensors.index.json. */
int shards_finish(struct shards *s, struct err *e);
void shards_destroy(struct shards *s); /* closes; NULL is fine */

uint64_t shards_bytes(const struct shards *s); /* of all tensors */

#endif
