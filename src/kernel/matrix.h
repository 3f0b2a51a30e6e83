/* Packed weights and activations of the CPU backend.
 *
 * Outputs are packed in panels of `panel` rows (the lanes of a vector), so that a lane sums its own
 * row over k and nothing is added across lanes. A panel holds, for each block of 32 inputs,
 *   8-bit codes: [8 steps][lane][4 inputs]
 *   4-bit codes: [4 steps][lane][4 bytes]; a byte's low half belongs to step s, its high to s + 4
 *   5 and 6 bits: nibbles as above, then the bits above them: [lane][4 bytes], bit s for step s; or
 *                 [2 halves][lane][4 bytes], with bits 2s and 2s + 1 for step s of the half
 *   dense:       [32][lane] of the checkpoint's own type, or (bfloat16, `pairs`) [16][lane][2 inputs]
 * and apart from them scale and min as [block][lane] (with two scales a block: [block][2][lane]).
 *
 * K_I8 has 8-bit codes with 128 added, one float scale a lane, and where the scale of activations
 * is fixed, int32 biases as min. K_F8_E4M3 is dense, with float scales [K_F8_BLOCK inputs][lane]. */
#ifndef SLUICE_KERNEL_MATRIX_H
#define SLUICE_KERNEL_MATRIX_H

#include "kernel/block.h"

/* One part of a matrix: rows of one format. The last panel is filled up with zero rows. */
struct k_seg {
    enum k_type type;
    uint32_t row0, rows; /* where its outputs stand in the result */
    uint32_t panels;
    struct k_format fmt;
    uint8_t *q; /* codes, or dense values */
    void *scale, *min;
    size_t q_bytes;     /* of one panel */
    size_t scale_count; /* scales of one panel */
    size_t min_count;
    bool pairs; /* K_BF16: multiplies K_FORM_BF16 */
    bool fixed; /* K_I8: multiplies K_FORM_I8S */
};

struct k_matrix {
    uint32_t rows, cols, blocks; /* blocks of 32 inputs, the last one filled up with zeros */
    uint32_t panel;
    enum k_math math;
    uint32_t n_segs;
    struct k_seg *segs;
    size_t bytes;
    bool has_fixed;
    struct k_static fixed; /* of the segments that have one: input scale and offset */
};

/* int8 activations with one scale a token. A row is i8_stride(cols) numbers, of one byte; or of two,
 * the inputs of a step as 0, 2, 1, 3, where an ISA multiplies 16-bit numbers. */
struct k_act_i8 {
    char *q;
    float *scale; /* [token]; K_FORM_I8 only */
    int32_t *sum; /* [token] of q */
};

struct k_act {
    uint32_t forms, max_tokens, max_cols;
    uint32_t cols;     /* of what is loaded */
    float *f;          /* [token][cols] */
    int8_t *q;         /* [token][cols], -127 .. 127 */
    float *scale;      /* [token][cols / 32] */
    int32_t *isum;     /* [token][cols / 32][2] sums of q: of a block's first half, and of all */
    float *fsum;       /* scale * isum */
    uint16_t *bf16;    /* [token][bf16_stride(cols)], filled up with zeros */
    float *bf16_wide;  /* the same numbers as floats */
    uint32_t i8_bytes; /* of a number of the two */
    struct k_act_i8 i8, i8s;
    uint8_t *scratch; /* one piece a thread: panels unpacked by linear */
    size_t scratch_bytes;
};

static inline size_t seg_scale_size(const struct k_seg *s)
{
    return s->fmt.wide_scale ? sizeof(float) : sizeof(uint16_t);
}

/* An odd number of cache lines, so that rows one below the other stand in different sets. */
static inline uint32_t i8_stride(uint32_t cols)
{
    return ((cols + 63) / 64 | 1) * 64;
}

/* Whole vectors of every ISA. */
static inline uint32_t bf16_stride(uint32_t cols)
{
    return (cols + K_BLOCK - 1) / K_BLOCK * K_BLOCK;
}

/* Where the bits above the nibble stand, for all four inputs of a step: in which run of 4 bytes a
 * lane behind the nibbles, and from which bit of the byte on. */
static inline uint32_t extra_plane(uint32_t bits, uint32_t step)
{
    return bits == 6 ? step / 4 : 0;
}
static inline uint32_t extra_shift(uint32_t bits, uint32_t step)
{
    return bits == 6 ? step % 4 * 2 : step;
}

/* True if linear() multiplies this segment with int8 activations. */
static inline bool seg_is_int(const struct k_matrix *m, const struct k_seg *s)
{
    return m->math == K_MATH_FAST && s->fmt.bits;
}

int matrix_pack(const struct kernels *k, struct k_matrix **out, const struct k_part *parts,
                uint32_t n_parts, uint32_t cols, enum k_math math, struct err *e);
size_t matrix_pack_bytes(const struct kernels *k, const struct k_part *part, uint32_t cols);
void matrix_free(const struct kernels *k, struct k_matrix *m);
uint32_t matrix_form(const struct k_matrix *m);
size_t matrix_bytes(const struct k_matrix *m);
const struct k_static *matrix_static(const struct k_matrix *m);

/* Row r as floats, exactly as k_dequant would give it. */
void matrix_row(const struct k_matrix *m, uint32_t r, float *dst);

int act_create(const struct kernels *k, struct k_act **out, uint32_t max_tokens, uint32_t max_cols,
               uint32_t forms);
void act_destroy(const struct kernels *k, struct k_act *a);
/* The rows of a from `row` on, in all its forms: a view, which owns nothing. */
struct k_act act_from(const struct kernels *k, const struct k_act *a, uint32_t row);

#endif
