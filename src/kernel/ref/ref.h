/* The portable versions, also used by an ISA where it has nothing better. */
#ifndef SLUICE_KERNEL_REF_REF_H
#define SLUICE_KERNEL_REF_REF_H

#include "kernel/latent.h"

void ref_linear(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                uint32_t r0, uint32_t r1, void *scratch);
void ref_linear_i8(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                   uint32_t r0, uint32_t r1);
void ref_turn(uint8_t *q, const uint8_t *const *row, uint32_t lanes, uint32_t n, uint32_t unit,
              uint32_t flip);
void ref_i8_row(void *q, float *scale, int32_t *sum, const float *x, uint32_t cols);
void ref_i8_static_row(void *q, int32_t *sum, const float *x, uint32_t cols, float scale,
                       float offset);
void ref_kv_put(const struct k_kv *kv, void *k, void *v, uint32_t lane, uint32_t n,
                const float *key, const float *value, size_t ld);
void ref_attend_sum(const struct attend_slab *b, uint32_t piece);
void ref_attend_add(const struct attend_slab *b, uint32_t piece);
void ref_attend_finish(const struct attend_slab *b);
void ref_row_store(enum k_type type, void *to, const float *x, uint32_t n);
void ref_row_load(enum k_type type, float *to, const void *from, uint32_t n);
void ref_latent_queries(const struct latent_slab *b);
void ref_latent_sum(const struct latent_slab *b, uint32_t piece);
void ref_latent_add(const struct latent_slab *b, uint32_t piece);
void ref_latent_finish(const struct latent_slab *b);

#endif
