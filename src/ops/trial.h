/* Tries a quantized linear on activations that were seen, with the arithmetic that will serve it. */
#ifndef SLUICE_OPS_TRIAL_H
#define SLUICE_OPS_TRIAL_H

#include <stdint.h>

#include "kernel/kernel.h"

struct err;

/* Codes of a row, w = code * scale as near as it gets. Returns the scale. */
float trial_quantize_row(int8_t *codes, const float *w, uint32_t cols);

/* One scale and offset for all activations in [low, high] (0 lies inside). */
struct trial_input {
    float scale, offset;
};
struct trial_input trial_input_of(float low, float high);

struct trial_linear {
    const float *w; /* [rows][cols] */
    uint32_t rows, cols;
    const float *x; /* [n][cols]: what it reads */
    uint32_t n;
    const float *smooth; /* [cols]: w's columns are multiplied by it, x's divided; NULL: ones */
    const struct trial_input *fixed; /* NULL: each token has its own scale */
};

/* The root of the mean over tokens of |y - y'|^2 / |y|^2, where y is exact and y' int8. ERR_NOMEM. */
int trial_error(double *out, const struct kernels *k, const struct trial_linear *t, struct err *e);

#endif
