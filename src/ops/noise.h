/* Seeded random numbers for weights, any run of them alone: number j of row i of a tensor is a function
 * of the seed, the tensor's name, i and j. Nearly normal: 4096 values at the quantiles of a normal
 * distribution, hit equally often.
 *
 * Rows and 128 x 128 blocks differ in size by fixed factors, so that a scale that is taken from the
 * wrong row or block changes results. The layouts of one seed hold the same model, rounded as each
 * rounds: a value is  std * level[16 bits] * row factor * block factor. */
#ifndef SLUICE_OPS_NOISE_H
#define SLUICE_OPS_NOISE_H

#include <stdint.h>

#define NOISE_LEVELS 4096
#define NOISE_STEPS  4   /* row factors, and block factors */
#define NOISE_BLOCK  128 /* rows and columns of a block */

struct noise {
    float level[NOISE_LEVELS]; /* rising; symmetric */
    float max;                 /* the last */
    float factor[NOISE_STEPS]; /* of rows and of blocks */
    float max_factor;
};

void noise_init(struct noise *n);

/* One tensor's source. */
uint64_t noise_key(uint64_t seed, const char *name);
uint32_t noise_row_step(uint64_t key, uint32_t row);
uint32_t noise_block_step(uint64_t key, uint32_t row_block, uint32_t col_block);

/* Number j of row `row`, of a tensor with cols columns: below NOISE_LEVELS. */
uint32_t noise_index(uint64_t key, uint32_t row, uint32_t cols, uint32_t j);
/* A whole row through tables: out[j] = table[block step of j][index of j]. */
void noise_row_u16(uint16_t *out, const uint16_t *const table[NOISE_STEPS], uint64_t key,
                   uint32_t row, uint32_t cols);
void noise_row_u8(uint8_t *out, const uint8_t *const table[NOISE_STEPS], uint64_t key, uint32_t row,
                  uint32_t cols);

#endif
