/* What the files of this folder give to the tables (fill.c): each is built once an instruction
 * set. linear sends segments that multiply in float to linear_float. */
#ifndef SLUICE_KERNEL_X86_X86_H
#define SLUICE_KERNEL_X86_X86_H

#include "kernel/cpu.h"

#define X86_DECLARE(isa)                                                                           \
    void isa##_rows_fill(struct cpu_impl *f);                                                      \
    void isa##_attend_sum(const struct attend_slab *b, uint32_t piece);                            \
    void isa##_attend_add(const struct attend_slab *b, uint32_t piece);                            \
    void isa##_attend_finish(const struct attend_slab *b);                                         \
    void isa##_linear_float(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,    \
                            uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);                 \
    void isa##_linear(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,          \
                      uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);
X86_DECLARE(avx2)
X86_DECLARE(avx512)

void avx2_linear_vnni(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                      uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);
void avx512_linear_vnni(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                        uint32_t p1, uint32_t r0, uint32_t r1, void *scratch);

#endif
