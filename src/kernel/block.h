/* Storage blocks of the quantized checkpoint formats, decoded to small unsigned integers.
 *
 * Every format is seen as value = scale * (q - bias) + min over 32 weights, with one scale for all
 * or one for each half (Q6_K). Source of the layouts: the GGUF format as ggml writes it. */
#ifndef SLUICE_KERNEL_BLOCK_H
#define SLUICE_KERNEL_BLOCK_H

#include "kernel/kernel.h"

#define K_BLOCK 32

struct k_block {
    uint8_t q[K_BLOCK];
    float scale[2]; /* of q[0..15] and q[16..31]; equal unless the format has groups of 16 */
    float min;      /* 0 if the format has none */
};

/* What the packer has to know of a format; bits is 0 for the dense types. */
struct k_format {
    uint8_t bits; /* 4, 5, 6 or 8: q < 1 << bits */
    uint8_t bias; /* value = scale * (q - bias) + min */
    bool has_min;
    bool wide_scale; /* scale and min need float32; half holds them exactly otherwise */
    bool halves;     /* two scales a block */
};
extern const struct k_format k_format[K_TYPES];

/* Decodes block b (of 32 weights) of a row that starts at src. Quantized types only. */
void k_block_decode(enum k_type type, struct k_block *out, const void *src, uint64_t b);

/* Whether numbers of a dense type (not K_I8), `bytes` of them at p, aligned to their size, are all
 * finite. Block formats: whether those of the blocks are, which scales and mins decide. */
bool k_dense_finite(enum k_type type, const void *p, size_t bytes);
bool k_block_finite(const struct k_block *b);

#endif
