/* The numbers of a made checkpoint: any rows of any of its tensors alone, from the seed. */
#ifndef SLUICE_OPS_SYNTH_H
#define SLUICE_OPS_SYNTH_H

#include <stdint.h>

#include "ops/blueprint.h"
#include "ops/noise.h"
#include "ops/parts.h"

/* What all threads share; constant after synth_init. */
struct synth {
    const struct blueprint *blue; /* borrowed */
    uint64_t seed;
    struct noise noise;
    uint8_t f8[NOISE_STEPS][NOISE_LEVELS]; /* codes by the row's step */
    uint8_t i8[NOISE_STEPS][NOISE_LEVELS]; /* codes by the block's */
};

void synth_init(struct synth *s, const struct blueprint *blue, uint64_t seed);

/* A thread's own: room for max_bytes of rows. NULL without memory. */
struct synth_maker;
struct synth_maker *synth_maker_new(const struct synth *s, uint64_t max_bytes);
void synth_maker_free(struct synth_maker *w); /* NULL is fine */

/* Rows [first, first + n) of one of the tensors that stand for a weight. Borrowed until the next
 * call. */
const void *synth_rows(struct synth_maker *w, const struct piece *p, uint32_t first, uint32_t n);

#endif
