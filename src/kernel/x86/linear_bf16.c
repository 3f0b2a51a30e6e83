/* linear of bfloat16 weights and activations, for CPUs with AVX512_BF16. A panel has its inputs in
 * pairs, [cols / 2][lane][2]: what vdpbf16ps multiplies at once.
 *
 * Order of sums: pair after pair into one float32 sum a lane, of each pair the second product first,
 * every addition rounded on its own, and numbers too small for a normal float32 are zero, read or
 * written. So vdpbf16ps has it; multiply-adds of the widened numbers have the same bits, where the
 * control register says the same about small numbers.
 *
 * One or two rows wait for the weights and take vdpbf16ps everywhere. What is faster for more rows
 * depends on the CPU: AMD's (Zen 4) do a vdpbf16ps in the time of one multiply-add, Intel's (Sapphire
 * Rapids) in that of four. */
#include "kernel/x86/vec.h"

#include <string.h>

/* Rows of activations in a full register tile. */
#define TILE 8
/* How far ahead of the products weights are asked for. */
#define AHEAD 1024

/* Small numbers are zeros: FTZ and DAZ. */
#define SMALL_IS_ZERO 0x8040u

/* What a register tile is specialised for. */
struct shape {
    int panels, rows;
    bool dot; /* by vdpbf16ps */
};

typedef vec sums[K_UNIT][TILE];

ALWAYS_INLINE __m512bh splat_pair(const uint16_t *x)
{
    int32_t v;

    memcpy(&v, x, sizeof v);
    return (__m512bh)_mm512_set1_epi32(v);
}

/* The pair of inputs at x (of rows ld apart) times that of the panels at w. */
ALWAYS_INLINE void add_dots(sums acc, const veci w[K_UNIT], const uint16_t *x, uint32_t ld,
                            const struct shape f)
{
    for (int j = 0; j < f.rows; j++) {
        __m512bh pair = splat_pair(x + (size_t)j * ld);

        for (int i = 0; i < f.panels; i++)
            acc[i][j] = _mm512_dpbf16_ps(acc[i][j], (__m512bh)w[i], pair);
    }
}

ALWAYS_INLINE void add_products(sums acc, const veci w[K_UNIT], const float *x, uint32_t ld,
                                const struct shape f)
{
    vec first[K_UNIT], second[K_UNIT];

    for (int i = 0; i < f.panels; i++) {
        first[i] = _mm512_castsi512_ps(_mm512_slli_epi32(w[i], 16));
        second[i] = _mm512_castsi512_ps(i_and(w[i], i_splat32((int32_t)0xffff0000)));
    }
    for (int j = 0; j < f.rows; j++) {
        const float *pair = x + (size_t)j * ld;

        for (int i = 0; i < f.panels; i++)
            acc[i][j] = v_fma(second[i], v_splat(pair[1]), acc[i][j]);
        for (int i = 0; i < f.panels; i++)
            acc[i][j] = v_fma(first[i], v_splat(pair[0]), acc[i][j]);
    }
}

/* Panels p.. times rows r.. */
ALWAYS_INLINE void tile(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,
                        const struct shape f)
{
    uint32_t cols = job->w->cols, ld = bf16_stride(cols);
    const uint8_t *at = s->q + p * s->q_bytes;
    size_t x = (size_t)r * ld;
    sums acc;

    for (int j = 0; j < f.rows; j++)
        for (int i = 0; i < f.panels; i++)
            acc[i][j] = v_zero();
    for (uint32_t c = 0; c < cols; c += 2, at += 4 * LANES) {
        veci w[K_UNIT];

        for (int i = 0; i < f.panels; i++) {
            w[i] = i_load(at + i * s->q_bytes);
            /* past the last panel this asks for memory that may not be there: no harm */
            if (f.rows < TILE)
                __builtin_prefetch(at + i * s->q_bytes + AHEAD);
        }
        if (f.dot)
            add_dots(acc, w, job->a->bf16 + x + c, ld, f);
        else
            add_products(acc, w, job->a->bf16_wide + x + c, ld, f);
    }
    for (int j = 0; j < f.rows; j++)
        for (int i = 0; i < f.panels; i++)
            put_outputs(job, s, p + (uint32_t)i, r + (uint32_t)j, acc[i][j]);
}

/* Rows [r0, r1) of a unit: full tiles, then what is left. */
ALWAYS_INLINE void tiles(const struct linear_job *job, const struct k_seg *s, uint32_t p,
                         uint32_t r0, uint32_t r1, const int panels, const bool dot)
{
    for (; r0 + TILE <= r1; r0 += TILE)
        tile(job, s, p, r0, (struct shape){ panels, TILE, dot });
    if (r0 + TILE / 2 <= r1) {
        tile(job, s, p, r0, (struct shape){ panels, TILE / 2, dot });
        r0 += TILE / 2;
    }
    if (r1 - r0 == 3)
        tile(job, s, p, r0, (struct shape){ panels, 3, dot });
    else if (r1 - r0 == 2)
        tile(job, s, p, r0, (struct shape){ panels, 2, true });
    else if (r1 - r0 == 1)
        tile(job, s, p, r0, (struct shape){ panels, 1, true });
}

/* An odd last panel is a unit of one. */
ALWAYS_INLINE void units(const struct linear_job *job, const struct k_seg *s, uint32_t p0,
                         uint32_t p1, uint32_t r0, uint32_t r1, const bool dot)
{
    for (; p0 + K_UNIT <= p1; p0 += K_UNIT)
        tiles(job, s, p0, r0, r1, K_UNIT, dot);
    for (; p0 < p1; p0++)
        tiles(job, s, p0, r0, r1, 1, dot);
}

typedef void units_fn(const struct linear_job *job, const struct k_seg *s, uint32_t p0, uint32_t p1,
                      uint32_t r0, uint32_t r1);

static void units_dot(const struct linear_job *job, const struct k_seg *s, uint32_t p0, uint32_t p1,
                      uint32_t r0, uint32_t r1)
{
    units(job, s, p0, p1, r0, r1, true);
}

static void units_fma(const struct linear_job *job, const struct k_seg *s, uint32_t p0, uint32_t p1,
                      uint32_t r0, uint32_t r1)
{
    units(job, s, p0, p1, r0, r1, false);
}

/* Called through a pointer that is read after the control register is set, so that no
 * addition can move out from between. */
static void with_small_zero(units_fn *volatile fn, const struct linear_job *job,
                            const struct k_seg *s, uint32_t p0, uint32_t p1, uint32_t r0,
                            uint32_t r1)
{
    unsigned before = _mm_getcsr();

    _mm_setcsr(before | SMALL_IS_ZERO);
    fn(job, s, p0, p1, r0, r1);
    _mm_setcsr(before);
}

void avx512_linear_bf16_dot(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                            uint32_t p1, uint32_t r0, uint32_t r1, void *scratch)
{
    if (seg->pairs)
        with_small_zero(units_dot, job, seg, p0, p1, r0, r1);
    else
        avx512_linear_vnni(job, seg, p0, p1, r0, r1, scratch);
}

void avx512_linear_bf16_fma(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                            uint32_t p1, uint32_t r0, uint32_t r1, void *scratch)
{
    if (seg->pairs)
        with_small_zero(units_fma, job, seg, p0, p1, r0, r1);
    else
        avx512_linear_vnni(job, seg, p0, p1, r0, r1, scratch);
}

void avx512_bf16_row(uint16_t *y, float *wide, const float *x, uint32_t cols)
{
    for (uint32_t c = 0; c < bf16_stride(cols); c += LANES) {
        mask m = first_lanes(c < cols ? cols - c : 0);
        __m256i rounded = (__m256i)_mm512_cvtneps_pbh(v_load_part(m, x + c));

        _mm256_storeu_si256((__m256i *)(void *)(y + c), rounded);
        v_store(wide + c, v_load_bf16(y + c));
    }
}
