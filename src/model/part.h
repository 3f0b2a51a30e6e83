/* How layers are shared out among ranks (model.h, struct model_part). Inside the folder only. */
#ifndef SLUICE_MODEL_PART_H
#define SLUICE_MODEL_PART_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct load;
struct model;

/* Things [from, from + n) of many. */
struct share {
    uint32_t from, n;
};

/* What `rank` of `size` ranks gets of n things that may be parted every `unit` only: all get equal
 * shares, or the first ones a unit more than the others. */
struct share share_of(uint32_t n, uint32_t unit, uint32_t rank, uint32_t size);

/* The vocabulary rows of embedding and head that a tensor-parallel rank has. The first has the most. */
struct share part_ids(const struct model *m, uint32_t rank);
/* Those of the head that one of the ranks has which share it: tensor-parallel or data-parallel ones. */
struct share part_head_ids(const struct model *m, uint32_t rank);

/* Sets heads, kv_heads, ids, head_ids and experts of a model whose configuration and part are set.
 * ERR_UNSUPPORTED, with the sizes that would do, where something does not divide. */
int part_choose(struct model *m, struct err *e);

/* This rank's columns of a matrix that reads `heads` heads of dim numbers, `name` of the checkpoint:
 * those of its heads. ERR_UNSUPPORTED where they do not end with one of the type's blocks. */
int part_heads(struct load *l, struct share *out, const char *name, uint32_t heads, uint32_t dim);
/* This rank's columns of a feed-forward part of ffn columns; down: the name of its down_proj, whose type
 * says where it may be parted. All of them without tensor parallelism. */
int part_ffn(struct load *l, struct share *out, const char *down, uint32_t ffn);

#endif
