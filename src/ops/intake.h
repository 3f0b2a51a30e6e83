/* A checkpoint to be quantized: which of its tensors are which (blueprint.h), and their numbers as
 * floats, some rows at a time. Float types, GGUF's blocks and block-scaled FP8 are read; experts of a
 * GGUF file, which stand in one tensor, are taken apart. */
#ifndef SLUICE_OPS_INTAKE_H
#define SLUICE_OPS_INTAKE_H

#include <stddef.h>
#include <stdint.h>

#include "model/checkpoint.h"
#include "ops/blueprint.h"

struct err;

struct intake {
    struct checkpoint from;
    struct blueprint blue;  /* what is there: without prediction layers that the files lack */
    struct weight **source; /* [blue.n]; its scales, if any, beside it */
    struct weight **scale;  /* [blue.n]; NULL: none */
    uint32_t *slice;        /* [blue.n]: which of its source's matrices (a GGUF file's experts) */
    /* [blue.n]: not NULL for a kv_b that newer GGUF files have in two: the values [heads][v_dim][latent];
     * its source is the keys then, [heads][latent][nope_dim]. */
    struct weight **values;
};

/* path must outlive in. Tensors that are missing, of another shape, of a type that cannot be read
 * or of no known use: ERR_BADMSG or ERR_UNSUPPORTED with the name. */
int intake_open(struct intake *in, const char *path, struct err *e);
void intake_close(struct intake *in); /* zeros are fine */

/* The tensor of a name; in->blue.n if there is none. */
size_t intake_find(const struct intake *in, const char *name);
/* Rows [first, first + n) of tensor i, in HuggingFace's order, to out [n][cols]. ERR_CORRUPT if
 * one is not finite; ERR_NOMEM. */
int intake_rows(const struct intake *in, size_t i, uint32_t first, uint32_t n, float *out,
                struct err *e);
/* The file's pages of tensor i are not needed for now. */
void intake_drop(const struct intake *in, size_t i);

#endif
