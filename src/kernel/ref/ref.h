/* The portable versions, also used by an ISA where it has nothing better. */
#ifndef SLUICE_KERNEL_REF_REF_H
#define SLUICE_KERNEL_REF_REF_H

#include "kernel/cpu.h"

void ref_linear(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                uint32_t r0, uint32_t r1, void *scratch);
void ref_kv_put(const struct k_kv *kv, void *k, void *v, uint32_t lane, uint32_t n,
                const float *key, const float *value, size_t ld);
void ref_attend_sum(const struct attend_slab *b, uint32_t piece);
void ref_attend_add(const struct attend_slab *b, uint32_t piece);
void ref_attend_finish(const struct attend_slab *b);

#endif
