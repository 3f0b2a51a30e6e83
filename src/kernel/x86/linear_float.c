/* linear with float32 activations: the weights of a unit are dequantized exactly into the scratch,
 * then multiplied. Order of sums: within a block of 32 by k into a partial sum, the partial sums
 * block after block. */
#include "kernel/x86/vec.h"

/* Rows of activations in a register tile. */
#if LANES == 16
#define TILE 6
#else
#define TILE 3
#endif

/* Input c of the four of a step, as floats. */
ALWAYS_INLINE vec code_float(veci w, unsigned c, int bias)
{
    return v_from_i32(i_sub32(i_and(i_shr32(w, 8 * c), i_splat32(255)), i_splat32(bias)));
}

static void dequant_block(float *out, const struct k_seg *s, uint32_t p, uint32_t b)
{
    const uint8_t *q = s->q + p * s->q_bytes + (size_t)b * 4 * LANES * s->fmt.bits;
    size_t at = p * s->scale_count + (size_t)b * LANES * (s->fmt.halves ? 2 : 1);
    bool wide = s->fmt.wide_scale;
    vec scale = v_load_any(s->scale, at, wide), min = v_zero();

    if (s->fmt.has_min)
        min = v_load_any(s->min, p * s->min_count + (size_t)b * LANES, wide);
    for (unsigned step = 0; step < 8; step++) {
        veci w = packed_code(q, step, s->fmt.bits);

        if (step == 4 && s->fmt.halves)
            scale = v_load_any(s->scale, at + LANES, wide);
        for (unsigned c = 0; c < 4; c++, out += LANES) {
            vec v = v_mul(code_float(w, c, s->fmt.bias), scale);

            v_store(out, s->fmt.has_min ? v_add(v, min) : v);
        }
    }
}

/* Dense values of a panel, [cols][lane]. */
static void widen(float *out, const struct k_seg *s, const uint8_t *panel, uint32_t cols)
{
    const uint16_t *q = (const uint16_t *)(const void *)panel;

    for (uint32_t c = 0; c < cols; c++, q += LANES, out += LANES)
        v_store(out, s->type == K_F16 ? v_load_half(q) : v_load_bf16(q));
}

/* The same for 8-bit floats, with a row of scales every K_F8_BLOCK inputs; of an odd number of inputs
 * one more, which panel and scratch have room for. */
static void widen_f8(float *out, const struct k_seg *s, uint32_t p, uint32_t cols)
{
    const uint8_t *q = s->q + p * s->q_bytes;
    const float *scale = (const float *)s->scale + p * s->scale_count;

    for (uint32_t from = 0; from < cols; from += K_F8_BLOCK, scale += LANES) {
        uint32_t to = from + K_F8_BLOCK < cols ? from + K_F8_BLOCK : cols;
        vec v = v_load(scale);

        for (uint32_t c = from; c < to; c += 2, q += 2 * LANES, out += 2 * LANES) {
            vec pair[2];

            v_load_f8_pair(pair, q);
            v_store(out, v_mul(pair[0], v));
            v_store(out + LANES, v_mul(pair[1], v));
        }
    }
}

/* Where the panel stands as floats: in the scratch, or where it is if it is float32. */
static const float *panel_floats(float *scratch, const struct k_matrix *m, const struct k_seg *s,
                                 uint32_t p)
{
    const uint8_t *q = s->q + p * s->q_bytes;

    if (s->type == K_F32)
        return (const float *)(const void *)q;
    if (s->type == K_F8_E4M3)
        widen_f8(scratch, s, p, m->cols);
    else if (!s->fmt.bits)
        widen(scratch, s, q, m->cols);
    for (uint32_t b = 0; s->fmt.bits && b < m->blocks; b++)
        dequant_block(scratch + (size_t)b * K_BLOCK * LANES, s, p, b);
    return scratch;
}

/* Sums of inputs [from, to) for n panels and `rows` rows. */
ALWAYS_INLINE void add_block(vec acc[K_UNIT][TILE], const float *const w[K_UNIT], const float *x,
                             uint32_t cols, uint32_t from, uint32_t to, const int n, const int rows)
{
    vec part[K_UNIT][TILE];

    for (int j = 0; j < rows; j++)
        for (int i = 0; i < n; i++)
            part[i][j] = v_zero();
#pragma GCC unroll 4
    for (uint32_t c = from; c < to; c++) {
        vec v0 = v_load(w[0] + (size_t)c * LANES), v1 = v0;

        if (n > 1)
            v1 = v_load(w[1] + (size_t)c * LANES);
        for (int j = 0; j < rows; j++) {
            vec xs = v_splat(x[(size_t)j * cols + c]);

            part[0][j] = v_fma(v0, xs, part[0][j]);
            if (n > 1)
                part[1][j] = v_fma(v1, xs, part[1][j]);
        }
    }
    for (int j = 0; j < rows; j++)
        for (int i = 0; i < n; i++)
            acc[i][j] = v_add(acc[i][j], part[i][j]);
}

ALWAYS_INLINE void tile(const struct linear_job *job, const struct k_seg *s,
                        const float *const w[K_UNIT], uint32_t p, uint32_t r, const int n,
                        const int rows)
{
    uint32_t cols = job->w->cols;
    const float *x = job->a->f + (size_t)r * cols;
    vec acc[K_UNIT][TILE];

    for (int j = 0; j < rows; j++)
        for (int i = 0; i < n; i++)
            acc[i][j] = v_zero();
    for (uint32_t from = 0; from < cols; from += K_BLOCK)
        add_block(acc, w, x, cols, from, from + K_BLOCK < cols ? from + K_BLOCK : cols, n, rows);
    for (int j = 0; j < rows; j++)
        for (int i = 0; i < n; i++)
            put_outputs(job, s, p + (uint32_t)i, r + (uint32_t)j, acc[i][j]);
}

ALWAYS_INLINE void tiles(const struct linear_job *job, const struct k_seg *s,
                         const float *const w[K_UNIT], uint32_t p, uint32_t r0, uint32_t r1,
                         const int n)
{
    for (; r0 + TILE <= r1; r0 += TILE)
        tile(job, s, w, p, r0, n, TILE);
    for (; r0 < r1; r0++)
        tile(job, s, w, p, r0, n, 1);
}

void ISA(linear_float)(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                       uint32_t p1, uint32_t r0, uint32_t r1, void *scratch)
{
    size_t panel = (size_t)job->w->blocks * K_BLOCK * LANES;

    if (!seg->fmt.bits && r1 - r0 <= DENSE_ROWS) {
        ISA(linear_dense)(job, seg, p0, p1, r0, r1);
        return;
    }
    for (uint32_t p = p0; p < p1; p += K_UNIT) {
        const float *w[K_UNIT];

        w[0] = panel_floats(scratch, job->w, seg, p);
        if (p + 1 == p1) {
            tiles(job, seg, w, p, r0, r1, 1);
            return;
        }
        w[1] = panel_floats((float *)scratch + panel, job->w, seg, p + 1);
        tiles(job, seg, w, p, r0, r1, K_UNIT);
    }
}
