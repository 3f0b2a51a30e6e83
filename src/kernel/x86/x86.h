/* What the files of this folder give to the tables (fill.c): each is built once an instruction
 * set. linear sends segments that multiply in float to linear_float. */
#ifndef SLUICE_KERNEL_X86_X86_H
#define SLUICE_KERNEL_X86_X86_H

#include "kernel/cpu.h"

/* Rows of activations up to which linear_float sends dense segments to linear_dense. */
#define DENSE_ROWS 4

#define X86_DECLARE(isa)                                                                           \
    void isa##_rows_fill(struct cpu_impl *f);                                                      \
    void isa##_turn(uint8_t *q, const uint8_t *const *row, uint32_t lanes, uint32_t n,             \
                    uint32_t unit, uint32_t flip);                                                 \
    void isa##_latent_fill(struct cpu_impl *f);                                                    \
    void isa##_attend_sum(const struct attend_slab *b, uint32_t piece);                            \
    void isa##_attend_add(const struct attend_slab *b, uint32_t piece);                            \
    void isa##_attend_finish(const struct attend_slab *b);                                         \
    void isa##_linear_float(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,    \
                            uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);                 \
    void isa##_linear_dense(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,    \
                            uint32_t p1, uint32_t r0, uint32_t r1);                                \
    void isa##_linear(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,          \
                      uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);
X86_DECLARE(avx2)
X86_DECLARE(avx512)

void avx2_linear_vnni(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                      uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);
void avx512_linear_vnni(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                        uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);

/* int8 weights: what linear does with them, and the rows of activations that it reads. */
#define X86_DECLARE_I8(isa)                                                                        \
    void isa##_i8_fill(struct cpu_impl *f);                                                        \
    void isa##_linear_i8(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,       \
                         uint32_t p1, uint32_t r0, uint32_t r1);
X86_DECLARE_I8(avx2)
X86_DECLARE_I8(avx2_vnni)
X86_DECLARE_I8(avx512)
X86_DECLARE_I8(avx512_vnni)

/* linear for CPUs with AVX512_BF16; they have VNNI too. On Intel's both give the
 * same bits; the first takes vdpbf16ps for any number of rows, the second for one or two. */
void avx512_linear_bf16_dot(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                            uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);
void avx512_linear_bf16_fma(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                            uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);
void avx512_bf16_row(uint16_t *y, float *wide, const float *x, uint32_t cols);

#endif
