/* One vocabulary for AVX2 (8 lanes) and AVX-512 (16 lanes): the files of this folder are written
 * once and built once an instruction set, with its flags; names get the set's prefix. */
#ifndef SLUICE_KERNEL_X86_VEC_H
#define SLUICE_KERNEL_X86_VEC_H

#include "kernel/x86/x86.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define ISA(name) avx512_##name
#define LANES     16
typedef __m512 vec;     /* float32 */
typedef __m512i veci;   /* integers of any width */
typedef __mmask16 mask; /* of lanes */

ALWAYS_INLINE mask first_lanes(uint32_t n)
{
    return n >= LANES ? 0xffff : (mask)((1u << n) - 1);
}
ALWAYS_INLINE vec v_zero(void)
{
    return _mm512_setzero_ps();
}
ALWAYS_INLINE vec v_splat(float x)
{
    return _mm512_set1_ps(x);
}
ALWAYS_INLINE vec v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
ALWAYS_INLINE void v_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}
/* Lanes outside the mask are zero and their memory is not touched. */
ALWAYS_INLINE vec v_load_part(mask m, const float *p)
{
    return _mm512_maskz_loadu_ps(m, p);
}
ALWAYS_INLINE void v_store_part(mask m, float *p, vec v)
{
    _mm512_mask_storeu_ps(p, m, v);
}
ALWAYS_INLINE vec v_load_half(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
ALWAYS_INLINE void v_store_half(uint16_t *p, vec v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
ALWAYS_INLINE vec v_load_bf16(const uint16_t *p)
{
    __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)p);

    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}
/* 2 * LANES 8-bit floats. e4m3fn has the bits of a float16 that is 2^8 times smaller, but for NaN. What
 * extends the sign gets in the way of float16's highest bit of the exponent, which is set for NaN only:
 * there the exponent carries. */
ALWAYS_INLINE void v_load_f8_pair(vec v[2], const uint8_t *p)
{
    enum { XOR_AND = 0x78 }; /* a ^ (b & c) */
    const __m512i top = _mm512_set1_epi16(0x4000), one = _mm512_set1_epi16(0x80);
    __m512i b = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(const void *)p));
    __m512i half = _mm512_slli_epi16(b, 7);

    half = _mm512_ternarylogic_epi32(half, _mm512_add_epi16(half, one), top, XOR_AND);
    v[0] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(half)), _mm512_set1_ps(256));
    v[1] = _mm512_mul_ps(_mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1)), _mm512_set1_ps(256));
}
ALWAYS_INLINE vec v_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
ALWAYS_INLINE vec v_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
ALWAYS_INLINE vec v_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
ALWAYS_INLINE vec v_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
ALWAYS_INLINE vec v_fma(vec a, vec b, vec c) /* a * b + c */
{
    return _mm512_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vec v_fnma(vec a, vec b, vec c) /* c - a * b */
{
    return _mm512_fnmadd_ps(a, b, c);
}
ALWAYS_INLINE vec v_max(vec a, vec b) /* b if one is NaN */
{
    return _mm512_max_ps(a, b);
}
ALWAYS_INLINE vec v_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
ALWAYS_INLINE vec v_abs(vec a)
{
    return _mm512_abs_ps(a);
}
ALWAYS_INLINE vec v_round(vec a)
{
    return _mm512_roundscale_ps(a, 0);
}
ALWAYS_INLINE mask v_less(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}
ALWAYS_INLINE vec v_select(mask m, vec a, vec b) /* a where the mask is set */
{
    return _mm512_mask_blend_ps(m, b, a);
}
ALWAYS_INLINE float v_max_lane(vec a)
{
    return _mm512_reduce_max_ps(a);
}
ALWAYS_INLINE float v_sum(vec a)
{
    return _mm512_reduce_add_ps(a);
}
/* p * 2^n for integers n; 0 where that is too small for float32. */
ALWAYS_INLINE vec v_scale(vec p, vec n)
{
    return _mm512_scalef_ps(p, n);
}
/* Even lanes: a * b - c, odd lanes: a * b + c. */
ALWAYS_INLINE vec v_fmaddsub(vec a, vec b, vec c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}
ALWAYS_INLINE vec v_swap_pairs(vec a)
{
    return _mm512_permute_ps(a, 0xb1);
}
/* Each of the first LANES / 2 numbers at p twice; reads no others, n at most. */
ALWAYS_INLINE vec v_load_twice(const float *p, uint32_t n)
{
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);

    return _mm512_permutexvar_ps(twice, v_load_part(first_lanes(n) & 0xff, p));
}
ALWAYS_INLINE veci i_zero(void)
{
    return _mm512_setzero_si512();
}
ALWAYS_INLINE veci i_splat8(int x)
{
    return _mm512_set1_epi8((char)x);
}
ALWAYS_INLINE veci i_splat16(int x)
{
    return _mm512_set1_epi16((short)x);
}
ALWAYS_INLINE veci i_splat32(int32_t x)
{
    return _mm512_set1_epi32(x);
}
ALWAYS_INLINE veci i_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
ALWAYS_INLINE void i_store(void *p, veci v)
{
    _mm512_storeu_si512(p, v);
}
ALWAYS_INLINE veci i_and(veci a, veci b)
{
    return _mm512_and_si512(a, b);
}
ALWAYS_INLINE veci i_xor(veci a, veci b)
{
    return _mm512_xor_si512(a, b);
}
ALWAYS_INLINE veci i_add32(veci a, veci b)
{
    return _mm512_add_epi32(a, b);
}
ALWAYS_INLINE veci i_sub32(veci a, veci b)
{
    return _mm512_sub_epi32(a, b);
}
ALWAYS_INLINE veci i_add16(veci a, veci b)
{
    return _mm512_add_epi16(a, b);
}
ALWAYS_INLINE veci i_or(veci a, veci b)
{
    return _mm512_or_si512(a, b);
}
ALWAYS_INLINE veci i_shl16(veci a, unsigned n)
{
    return _mm512_slli_epi16(a, n);
}
ALWAYS_INLINE veci i_shr16(veci a, unsigned n)
{
    return _mm512_srli_epi16(a, n);
}
ALWAYS_INLINE veci i_shr32(veci a, unsigned n)
{
    return _mm512_srli_epi32(a, n);
}
ALWAYS_INLINE veci i_madd8(veci u, veci s) /* unsigned x signed bytes, pairs added, 16 bits */
{
    return _mm512_maddubs_epi16(u, s);
}
ALWAYS_INLINE veci i_madd16(veci a, veci b)
{
    return _mm512_madd_epi16(a, b);
}
ALWAYS_INLINE veci i_abs8(veci a)
{
    return _mm512_abs_epi8(a);
}
ALWAYS_INLINE veci i_sign8(veci x, veci by) /* -x where `by` is negative (0 need not be kept) */
{
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(by), _mm512_setzero_si512(), x);
}
ALWAYS_INLINE vec v_from_i32(veci a)
{
    return _mm512_cvtepi32_ps(a);
}
ALWAYS_INLINE veci i32_from_v(vec a) /* nearest */
{
    return _mm512_cvtps_epi32(a);
}
ALWAYS_INLINE int32_t i_sum32(veci a)
{
    return _mm512_reduce_add_epi32(a);
}
ALWAYS_INLINE void i_store_low8(int8_t *p, veci a) /* the lanes as bytes; they fit */
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(a));
}
/* Rows to columns: lane j of x[i] becomes lane i of x[j]. */
ALWAYS_INLINE void v_transpose(vec x[LANES])
{
    __m512d t[LANES], u[LANES];

    /* pairs of rows, then fours of them, inside each quarter of a vector */
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1]));
        t[i + 1] = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = _mm512_unpacklo_pd(t[i + j], t[i + j + 2]);
            u[i + 2 * j + 1] = _mm512_unpackhi_pd(t[i + j], t[i + j + 2]);
        }
    /* then the quarters */
    for (int j = 0; j < 4; j++) {
        __m512d a = _mm512_shuffle_f64x2(u[j], u[j + 4], 0x88);
        __m512d b = _mm512_shuffle_f64x2(u[j], u[j + 4], 0xdd);
        __m512d c = _mm512_shuffle_f64x2(u[j + 8], u[j + 12], 0x88);
        __m512d d = _mm512_shuffle_f64x2(u[j + 8], u[j + 12], 0xdd);

        x[j] = _mm512_castpd_ps(_mm512_shuffle_f64x2(a, c, 0x88));
        x[j + 4] = _mm512_castpd_ps(_mm512_shuffle_f64x2(b, d, 0x88));
        x[j + 8] = _mm512_castpd_ps(_mm512_shuffle_f64x2(a, c, 0xdd));
        x[j + 12] = _mm512_castpd_ps(_mm512_shuffle_f64x2(b, d, 0xdd));
    }
}

#else
#define ISA(name) avx2_##name
#define LANES     8
typedef __m256 vec;
typedef __m256i veci;
typedef __m256i mask; /* all ones in the lanes that are set */

ALWAYS_INLINE mask first_lanes(uint32_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);

    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n > LANES ? LANES : (int)n), lane);
}
ALWAYS_INLINE vec v_zero(void)
{
    return _mm256_setzero_ps();
}
ALWAYS_INLINE vec v_splat(float x)
{
    return _mm256_set1_ps(x);
}
ALWAYS_INLINE vec v_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
ALWAYS_INLINE void v_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}
ALWAYS_INLINE vec v_load_part(mask m, const float *p)
{
    return _mm256_maskload_ps(p, m);
}
ALWAYS_INLINE void v_store_part(mask m, float *p, vec v)
{
    _mm256_maskstore_ps(p, m, v);
}
ALWAYS_INLINE vec v_load_half(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
ALWAYS_INLINE void v_store_half(uint16_t *p, vec v)
{
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
ALWAYS_INLINE vec v_load_bf16(const uint16_t *p)
{
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)p);

    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(v), 16));
}
ALWAYS_INLINE void v_load_f8_pair(vec v[2], const uint8_t *p)
{
    const __m256i top = _mm256_set1_epi16(0x4000), one = _mm256_set1_epi16(0x80);
    __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)p));
    __m256i half = _mm256_slli_epi16(b, 7);

    half = _mm256_xor_si256(half, _mm256_and_si256(_mm256_add_epi16(half, one), top));
    v[0] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), _mm256_set1_ps(256));
    v[1] = _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), _mm256_set1_ps(256));
}
ALWAYS_INLINE vec v_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
ALWAYS_INLINE vec v_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
ALWAYS_INLINE vec v_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
ALWAYS_INLINE vec v_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
ALWAYS_INLINE vec v_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vec v_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
ALWAYS_INLINE vec v_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
ALWAYS_INLINE vec v_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
ALWAYS_INLINE vec v_abs(vec a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
ALWAYS_INLINE vec v_round(vec a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
ALWAYS_INLINE mask v_less(vec a, vec b)
{
    return _mm256_castps_si256(_mm256_cmp_ps(a, b, _CMP_LT_OQ));
}
ALWAYS_INLINE vec v_select(mask m, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(m));
}
ALWAYS_INLINE float v_max_lane(vec a)
{
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}
ALWAYS_INLINE float v_sum(vec a)
{
    __m128 v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));

    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
/* In two steps, because 2^n itself may be too small. */
ALWAYS_INLINE vec v_scale(vec p, vec n)
{
    __m256i i = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(i, 1),
            bias = _mm256_set1_epi32(127);
    __m256i rest = _mm256_sub_epi32(i, half);

    p = _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23)));
    return _mm256_mul_ps(p,
                         _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23)));
}
ALWAYS_INLINE vec v_fmaddsub(vec a, vec b, vec c)
{
    return _mm256_fmaddsub_ps(a, b, c);
}
ALWAYS_INLINE vec v_swap_pairs(vec a)
{
    return _mm256_permute_ps(a, 0xb1);
}
ALWAYS_INLINE vec v_load_twice(const float *p, uint32_t n)
{
    const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);

    return _mm256_permutevar8x32_ps(v_load_part(first_lanes(n < 4 ? n : 4), p), twice);
}
ALWAYS_INLINE veci i_zero(void)
{
    return _mm256_setzero_si256();
}
ALWAYS_INLINE veci i_splat8(int x)
{
    return _mm256_set1_epi8((char)x);
}
ALWAYS_INLINE veci i_splat16(int x)
{
    return _mm256_set1_epi16((short)x);
}
ALWAYS_INLINE veci i_splat32(int32_t x)
{
    return _mm256_set1_epi32(x);
}
ALWAYS_INLINE veci i_load(const void *p)
{
    return _mm256_loadu_si256(p);
}
ALWAYS_INLINE void i_store(void *p, veci v)
{
    _mm256_storeu_si256(p, v);
}
ALWAYS_INLINE veci i_and(veci a, veci b)
{
    return _mm256_and_si256(a, b);
}
ALWAYS_INLINE veci i_xor(veci a, veci b)
{
    return _mm256_xor_si256(a, b);
}
ALWAYS_INLINE veci i_add32(veci a, veci b)
{
    return _mm256_add_epi32(a, b);
}
ALWAYS_INLINE veci i_sub32(veci a, veci b)
{
    return _mm256_sub_epi32(a, b);
}
ALWAYS_INLINE veci i_add16(veci a, veci b)
{
    return _mm256_add_epi16(a, b);
}
ALWAYS_INLINE veci i_or(veci a, veci b)
{
    return _mm256_or_si256(a, b);
}
ALWAYS_INLINE veci i_shl16(veci a, unsigned n)
{
    return _mm256_slli_epi16(a, (int)n);
}
ALWAYS_INLINE veci i_shr16(veci a, unsigned n)
{
    return _mm256_srli_epi16(a, (int)n);
}
ALWAYS_INLINE veci i_shr32(veci a, unsigned n)
{
    return _mm256_srli_epi32(a, (int)n);
}
ALWAYS_INLINE veci i_madd8(veci u, veci s)
{
    return _mm256_maddubs_epi16(u, s);
}
ALWAYS_INLINE veci i_madd16(veci a, veci b)
{
    return _mm256_madd_epi16(a, b);
}
ALWAYS_INLINE veci i_abs8(veci a)
{
    return _mm256_abs_epi8(a);
}
ALWAYS_INLINE veci i_sign8(veci x, veci by)
{
    return _mm256_sign_epi8(x, by);
}
ALWAYS_INLINE vec v_from_i32(veci a)
{
    return _mm256_cvtepi32_ps(a);
}
ALWAYS_INLINE veci i32_from_v(vec a)
{
    return _mm256_cvtps_epi32(a);
}
ALWAYS_INLINE int32_t i_sum32(veci a)
{
    __m128i v = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    v = _mm_add_epi32(v, _mm_shuffle_epi32(v, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(v, _mm_shuffle_epi32(v, 0xb1)));
}
ALWAYS_INLINE void i_store_low8(int8_t *p, veci a)
{
    __m128i v = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));

    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(v, v));
}
ALWAYS_INLINE void v_transpose(vec x[LANES])
{
    __m256d t[LANES], u[LANES];

    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm256_castps_pd(_mm256_unpacklo_ps(x[i], x[i + 1]));
        t[i + 1] = _mm256_castps_pd(_mm256_unpackhi_ps(x[i], x[i + 1]));
    }
    for (int i = 0; i < LANES; i += 4)
        for (int j = 0; j < 2; j++) {
            u[i + 2 * j] = _mm256_unpacklo_pd(t[i + j], t[i + j + 2]);
            u[i + 2 * j + 1] = _mm256_unpackhi_pd(t[i + j], t[i + j + 2]);
        }
    for (int j = 0; j < 4; j++) {
        x[j] = _mm256_castpd_ps(_mm256_permute2f128_pd(u[j], u[j + 4], 0x20));
        x[j + 4] = _mm256_castpd_ps(_mm256_permute2f128_pd(u[j], u[j + 4], 0x31));
    }
}
#endif

/* exp(x) to about one unit in the last place; exactly 1 at 0, 0 from -104 down, finite above, NaN
 * stays NaN (the order of operands of min and max). Polynomial: Cephes, S. Moshier (netlib). */
ALWAYS_INLINE vec v_exp(vec x)
{
    vec n, r, p;

    x = v_min(v_splat(88.5f), v_max(v_splat(-104), x));
    n = v_round(v_mul(x, v_splat(0x1.715476p0f)));
    r = v_fnma(n, v_splat(0x1.62e4p-1f), x);
    r = v_fnma(n, v_splat(0x1.7f7d1cp-20f), r);
    p = v_splat(1.9875691500e-4f);
    p = v_fma(p, r, v_splat(1.3981999507e-3f));
    p = v_fma(p, r, v_splat(8.3334519073e-3f));
    p = v_fma(p, r, v_splat(4.1665795894e-2f));
    p = v_fma(p, r, v_splat(1.6666665459e-1f));
    p = v_fma(p, r, v_splat(5.0000001201e-1f));
    p = v_fma(v_mul(p, r), r, v_add(r, v_splat(1)));
    return v_scale(p, n);
}

/* The i-th number of an array of float32 (wide) or float16 and its neighbours. */
ALWAYS_INLINE vec v_load_any(const void *p, size_t i, bool wide)
{
    return wide ? v_load((const float *)p + i) : v_load_half((const uint16_t *)p + i);
}

/* Codes of a step (of a block packed with so many bits a code), one a byte. */
ALWAYS_INLINE veci packed_code(const uint8_t *q, uint32_t step, const uint32_t bits)
{
    uint32_t at = extra_shift(bits, step);
    veci low, extra;

    if (bits == 8)
        return i_load(q + 4 * LANES * step);
    low = i_load(q + 4 * LANES * (step % 4));
    low = i_and(step < 4 ? low : i_shr16(low, 4), i_splat8(15));
    if (bits == 4)
        return low;
    extra = i_load(q + 4 * LANES * (4 + extra_plane(bits, step)));
    extra = at < 4 ? i_shl16(extra, 4 - at) : i_shr16(extra, at - 4);
    return i_or(low, i_and(extra, i_splat8(bits == 6 ? 0x30 : 0x10)));
}

/* Sums acc of 8 or 16 rows to outputs of row r; the last panel may be cut. Stores under a mask are slow
 * on some CPUs even where it is all ones. */
ALWAYS_INLINE void put_outputs(const struct linear_job *job, const struct k_seg *s, uint32_t p,
                               uint32_t r, vec acc)
{
    uint32_t col = p * LANES, left = s->rows - col;
    float *y = job->y + r * job->ldy + s->row0 + col;

    if (left >= LANES) {
        v_store(y, job->accumulate ? v_add(v_load(y), acc) : acc);
        return;
    }
    if (job->accumulate)
        acc = v_add(v_load_part(first_lanes(left), y), acc);
    v_store_part(first_lanes(left), y, acc);
}

#endif
