/* int8 weights with a scale an output, and their activations: the parts of pack.c and act.c that
 * deal with them. */
#ifndef SLUICE_KERNEL_I8_H
#define SLUICE_KERNEL_I8_H

#include "kernel/matrix.h"

/* What pack() cannot take among the K_I8 parts: ERR_UNSUPPORTED. */
int i8_check(const struct k_part *parts, uint32_t n_parts, uint32_t cols, struct err *e);

/* Sizes of a segment, and the matrix's input scale. */
void i8_layout(struct k_matrix *m, struct k_seg *s, const struct k_part *part);

void i8_pack_panel(const struct kernels *k, const struct k_matrix *m, const struct k_seg *s,
                   const struct k_part *part, uint32_t p);

/* Row r of the segment as floats: code * scale, or code * (deq / input_scale). */
void i8_get_row(const struct k_matrix *m, const struct k_seg *s, uint32_t r, float *dst);

/* The buffers of the int8 forms that a has; a half-made one may be destroyed. */
int act_i8_create(const struct kernels *k, struct k_act *a);
void act_i8_destroy(const struct kernels *k, struct k_act *a);

/* Row i in K_FORM_I8, from x; in K_FORM_I8S, from the float form. */
void act_i8_row(const struct kernels *k, struct k_act *a, uint32_t i, const float *x,
                uint32_t cols);
void act_static_row(const struct kernels *k, struct k_act *a, uint32_t i, float scale,
                    float offset);

#endif
