/* A tensor as a container (GGUF, safetensors) describes it: a name, a type, a shape, bytes in a
 * mapped file. */
#ifndef SLUICE_MODEL_TENSOR_H
#define SLUICE_MODEL_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"

#define TENSOR_MAX_DIMS 4
#define TENSOR_MAX_NAME 256

struct tensor {
    const char *name;                /* owned by the container */
    const char *dtype;               /* as its container calls it: "BF16", "Q4_1"; static */
    enum k_type type;                /* K_TYPES: stored in a way that no kernel reads */
    uint32_t n_dims;                 /* 0: a single number */
    uint64_t shape[TENSOR_MAX_DIMS]; /* outermost first, as HuggingFace writes it */
    const unsigned char *data;       /* inside the mapped file */
    uint64_t bytes;
};

/* "[512, 96]" into out. Returns out. */
#define TENSOR_SHAPE_TEXT 96
char *tensor_shape_text(char out[TENSOR_SHAPE_TEXT], const uint64_t *shape, uint32_t n_dims);

#endif
