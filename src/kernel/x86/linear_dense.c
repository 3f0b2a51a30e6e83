/* linear of dense weights for one to DENSE_ROWS rows of activations, which wait for the weights:
 * they are widened in registers as they are read. The order of sums, and with it every bit, is that of
 * linear_float.c: within a block of 32 by k into a partial sum, the partial sums block after block. */
#include "kernel/x86/vec.h"

#include <assert.h>

/* How far ahead of the products weights are asked for, in bytes. */
#define AHEAD 2048

/* What a register tile is specialised for. */
struct shape {
    enum k_type type;
    int panels, rows;
};

/* The panels of a unit, from the inputs on that are next. */
struct view {
    const uint8_t *q[K_UNIT];
    const float *scale[K_UNIT]; /* K_F8_E4M3 */
};

typedef vec sums[K_UNIT][DENSE_ROWS];

ALWAYS_INLINE size_t value_size(const enum k_type type)
{
    return type == K_F32 ? sizeof(float) : type == K_F8_E4M3 ? 1 : sizeof(uint16_t);
}

/* Two inputs of a panel, as floats. */
ALWAYS_INLINE void widen_pair(vec w[2], const uint8_t *q, vec scale, const enum k_type type)
{
    const void *at = q;

    if (type == K_F8_E4M3) {
        v_load_f8_pair(w, q);
        w[0] = v_mul(w[0], scale);
        w[1] = v_mul(w[1], scale);
        return;
    }
    for (int i = 0; i < 2; i++)
        w[i] = type == K_F32   ? v_load((const float *)at + (ptrdiff_t)i * LANES)
               : type == K_F16 ? v_load_half((const uint16_t *)at + (ptrdiff_t)i * LANES)
                               : v_load_bf16((const uint16_t *)at + (ptrdiff_t)i * LANES);
}

/* Inputs c and c + 1 (or the first only) of a block, of which x has rows ld apart. */
ALWAYS_INLINE void add_pair(sums part, const struct view *v, const vec scale[K_UNIT],
                            const float *x, size_t ld, uint32_t c, const int inputs,
                            const struct shape f)
{
    const size_t from = c * LANES * value_size(f.type), pair = 2 * LANES * value_size(f.type);
    vec w[K_UNIT][2];

    for (int i = 0; i < f.panels; i++) {
        const uint8_t *q = v->q[i] + from;

        widen_pair(w[i], q, scale[i], f.type);
        /* past the last panel this asks for memory that may not be there: no harm */
        for (size_t at = 0; at < pair && from % 64 == 0; at += 64)
            __builtin_prefetch(q + AHEAD + at);
    }
    for (int k = 0; k < inputs; k++)
        for (int j = 0; j < f.rows; j++) {
            vec xs = v_splat(x[(size_t)j * ld + c + (uint32_t)k]);

            for (int i = 0; i < f.panels; i++)
                part[i][j] = v_fma(w[i][k], xs, part[i][j]);
        }
}

/* A block of n inputs, K_BLOCK or less. */
ALWAYS_INLINE void add_block(sums acc, const struct view *v, const float *x, size_t ld,
                             const uint32_t n, const struct shape f)
{
    vec scale[K_UNIT];
    sums part;

    for (int i = 0; i < f.panels; i++) {
        scale[i] = f.type == K_F8_E4M3 ? v_load(v->scale[i]) : v_zero();
        for (int j = 0; j < f.rows; j++)
            part[i][j] = v_zero();
    }
#pragma GCC unroll 2
    for (uint32_t c = 0; c + 2 <= n; c += 2)
        add_pair(part, v, scale, x, ld, c, 2, f);
    if (n % 2)
        add_pair(part, v, scale, x, ld, n - 1, 1, f);
    for (int i = 0; i < f.panels; i++)
        for (int j = 0; j < f.rows; j++)
            acc[i][j] = v_add(acc[i][j], part[i][j]);
}

/* Leads from block b to the next. */
ALWAYS_INLINE void step(struct view *v, uint32_t b, const struct shape f)
{
    for (int i = 0; i < f.panels; i++) {
        v->q[i] += K_BLOCK * LANES * value_size(f.type);
        if (f.type == K_F8_E4M3 && b % (K_F8_BLOCK / K_BLOCK) == K_F8_BLOCK / K_BLOCK - 1)
            v->scale[i] += LANES;
    }
}

/* Panels p.. times rows r.. */
ALWAYS_INLINE void tile(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,
                        const struct shape f)
{
    uint32_t cols = job->w->cols, whole = cols / K_BLOCK;
    const float *x = job->a->f + (size_t)r * cols;
    struct view v;
    sums acc;

    for (int i = 0; i < f.panels; i++) {
        v.q[i] = s->q + (p + (uint32_t)i) * s->q_bytes;
        v.scale[i] = (const float *)s->scale + (p + (uint32_t)i) * s->scale_count;
        for (int j = 0; j < f.rows; j++)
            acc[i][j] = v_zero();
    }
    for (uint32_t b = 0; b < whole; b++, x += K_BLOCK) {
        add_block(acc, &v, x, cols, K_BLOCK, f);
        step(&v, b, f);
    }
    if (cols % K_BLOCK)
        add_block(acc, &v, x, cols, cols % K_BLOCK, f);
    for (int j = 0; j < f.rows; j++)
        for (int i = 0; i < f.panels; i++)
            put_outputs(job, s, p + (uint32_t)i, r + (uint32_t)j, acc[i][j]);
}

/* All units; an odd last panel is one of its own. */
ALWAYS_INLINE void units(const struct linear_job *job, const struct k_seg *s, uint32_t p0,
                         uint32_t p1, uint32_t r0, const int rows, const enum k_type type)
{
    for (; p0 + K_UNIT <= p1; p0 += K_UNIT)
        tile(job, s, p0, r0, (struct shape){ type, K_UNIT, rows });
    for (; p0 < p1; p0++)
        tile(job, s, p0, r0, (struct shape){ type, 1, rows });
}

typedef void units_fn(const struct linear_job *job, const struct k_seg *s, uint32_t p0, uint32_t p1,
                      uint32_t r0);

#define UNITS_FN(name, type, rows)                                                                 \
    static void name(const struct linear_job *job, const struct k_seg *s, uint32_t p0,             \
                     uint32_t p1, uint32_t r0)                                                     \
    {                                                                                              \
        units(job, s, p0, p1, r0, rows, type);                                                     \
    }
#define UNITS_FNS(name, type)                                                                      \
    UNITS_FN(name##_1, type, 1)                                                                    \
    UNITS_FN(name##_2, type, 2)                                                                    \
    UNITS_FN(name##_3, type, 3)                                                                    \
    UNITS_FN(name##_4, type, 4)
UNITS_FNS(f32, K_F32)
UNITS_FNS(f16, K_F16)
UNITS_FNS(bf16, K_BF16)
UNITS_FNS(f8, K_F8_E4M3)

/* [type][rows - 1] */
static units_fn *const units_fns[K_TYPES][DENSE_ROWS] = {
    [K_F32] = { f32_1, f32_2, f32_3, f32_4 },
    [K_F16] = { f16_1, f16_2, f16_3, f16_4 },
    [K_BF16] = { bf16_1, bf16_2, bf16_3, bf16_4 },
    [K_F8_E4M3] = { f8_1, f8_2, f8_3, f8_4 },
};

void ISA(linear_dense)(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                       uint32_t p1, uint32_t r0, uint32_t r1)
{
    assert(r0 < r1 && r1 - r0 <= DENSE_ROWS);
    units_fns[seg->type][r1 - r0 - 1](job, seg, p0, p1, r0);
}
