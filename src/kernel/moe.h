/* The operations of heads.c and moe.c, for the table. */
#ifndef SLUICE_KERNEL_MOE_H
#define SLUICE_KERNEL_MOE_H

#include "kernel/cpu.h"

void linear_heads(const struct kernels *k, struct k_heads y, const struct k_act *a,
                  const struct k_matrix *const *w, uint32_t heads, uint32_t n);
void norm_heads(const struct kernels *k, struct k_heads x, uint32_t n, uint32_t heads, uint32_t dim,
                const float *gain, const float *bias, float eps);
void add_bias(const struct kernels *k, float *y, size_t ldy, const float *bias, uint32_t n,
              uint32_t cols);

int routes_create(const struct kernels *k, struct k_routes **out, uint32_t max_tokens,
                  uint32_t experts, uint32_t top_k);
void routes_destroy(const struct kernels *k, struct k_routes *r);
void route(const struct kernels *k, struct k_routes *r, const float *logits, size_t ld, uint32_t n,
           const struct k_router *how);
void routes_given(const struct kernels *k, struct k_routes *r, const uint32_t *token,
                  const uint32_t *first);
void linear_experts(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                    const struct k_matrix *const *w, const struct k_routes *r, uint32_t n);
void combine(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
             const struct k_routes *r, uint32_t n, uint32_t cols, bool add);

#endif
