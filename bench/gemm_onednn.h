/* The int8 product of oneDNN, to compare with. */
#ifndef SLUICE_BENCH_GEMM_ONEDNN_H
#define SLUICE_BENCH_GEMM_ONEDNN_H

#include <stdint.h>

struct onednn;

/* y [n][rows] float = x [n][cols] int8 times w [rows][cols] int8, times a scale a row of w; the
 * weights are reordered once, as oneDNN likes them best. NULL if this build has no oneDNN, or it has
 * no such product. x, y and scale are borrowed. */
struct onednn *onednn_create(const int8_t *w, const float *scale, uint32_t rows, uint32_t cols,
                             const int8_t *x, float *y, uint32_t n);
void onednn_run(struct onednn *d);
void onednn_destroy(struct onednn *d); /* NULL is fine */

/* Keeps it to the instruction set of a kernel table's `detail`. Before anything else. */
void onednn_limit(const char *isa);

/* "oneDNN 2.6.3", or why there is none. */
const char *onednn_name(void);

#endif
