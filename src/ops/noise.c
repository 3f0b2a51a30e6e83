#include "ops/noise.h"

#include <math.h>
#include <string.h>

#define GOLDEN_RATIO 0x9e3779b97f4a7c15u
#define LEVEL_GRID   4096.0

/* Steele, Lea and Flood, "Fast splittable pseudorandom number generators" (2014), the mix of
 * SplitMix64: every bit of the output depends on every bit of the input. */
static inline uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The x with P(X <= x) = p, by halving; p in [0.5, 1). */
static double normal_quantile(double p)
{
    double low = 0, high = 8;

    for (int i = 0; i < 60; i++) {
        double mid = (low + high) / 2;

        if (0.5 * erfc(-mid * M_SQRT1_2) < p)
            low = mid;
        else
            high = mid;
    }
    return (low + high) / 2;
}

/* Levels are rounded to a grid, so that the last bit of a libm does not reach the weights. */
void noise_init(struct noise *n)
{
    static const float factor[NOISE_STEPS] = { 0.75f, 1.0f, 1.25f, 0.875f };

    memcpy(n->factor, factor, sizeof factor);
    n->max_factor = 1.25f;
    for (uint32_t i = NOISE_LEVELS / 2; i < NOISE_LEVELS; i++) {
        double x = normal_quantile((i + 0.5) / NOISE_LEVELS);

        n->level[i] = (float)(rint(x * LEVEL_GRID) / LEVEL_GRID);
        n->level[NOISE_LEVELS - 1 - i] = -n->level[i];
    }
    n->max = n->level[NOISE_LEVELS - 1];
}

uint64_t noise_key(uint64_t seed, const char *name)
{
    uint64_t h = mix(seed + GOLDEN_RATIO);

    for (; *name; name++)
        h = mix((h ^ (unsigned char)*name) + GOLDEN_RATIO);
    return h;
}

uint32_t noise_row_step(uint64_t key, uint32_t row)
{
    return (uint32_t)(mix(key + 1 + row * (uint64_t)0xd1342543de82ef95u) % NOISE_STEPS);
}

uint32_t noise_block_step(uint64_t key, uint32_t row_block, uint32_t col_block)
{
    return (uint32_t)(mix(key ^ ((uint64_t)row_block << 32 | col_block)) % NOISE_STEPS);
}

/* Four indices a word; a row begins a word of its own. */
static inline uint64_t word_at(uint64_t key, uint32_t row, uint32_t cols, uint32_t j)
{
    uint64_t words = ((uint64_t)cols + 3) / 4;

    return mix(key + (row * words + j / 4 + 1) * GOLDEN_RATIO);
}

static inline uint32_t index_of(uint64_t word, uint32_t lane)
{
    return (uint32_t)(word >> (16 * lane + 4)) & (NOISE_LEVELS - 1);
}

uint32_t noise_index(uint64_t key, uint32_t row, uint32_t cols, uint32_t j)
{
    return index_of(word_at(key, row, cols, j), j % 4);
}

/* The two differ in their element only. A block's columns are a multiple of four, so only the end of
 * the row may hold part of a word. */
#define NOISE_ROW(name, type)                                                                      \
    void name(type *out, const type *const table[NOISE_STEPS], uint64_t key, uint32_t row,         \
              uint32_t cols)                                                                       \
    {                                                                                              \
        for (uint32_t b = 0; b < cols; b += NOISE_BLOCK) {                                         \
            const type *t = table[noise_block_step(key, row / NOISE_BLOCK, b / NOISE_BLOCK)];      \
            uint32_t end = cols - b < NOISE_BLOCK ? cols : b + NOISE_BLOCK, j = b;                 \
                                                                                                   \
            for (; j + 4 <= end; j += 4) {                                                         \
                uint64_t w = word_at(key, row, cols, j);                                           \
                                                                                                   \
                for (uint32_t lane = 0; lane < 4; lane++)                                          \
                    out[j + lane] = t[index_of(w, lane)];                                          \
            }                                                                                      \
            for (; j < end; j++)                                                                   \
                out[j] = t[index_of(word_at(key, row, cols, j), j % 4)];                           \
        }                                                                                          \
    }

NOISE_ROW(noise_row_u16, uint16_t)
NOISE_ROW(noise_row_u8, uint8_t)
