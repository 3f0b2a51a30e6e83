/* Rows of a checkpoint to the layout of a panel: squares of LANES dwords are transposed in
 * registers, so that a cache line is read once and written once. */
#include "kernel/ref/ref.h"
#include "kernel/x86/vec.h"

ALWAYS_INLINE veci load(const uint8_t *p)
{
#if LANES == 16
    return _mm512_loadu_si512(p);
#else
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
#endif
}

#if LANES == 16
/* Pairs of dwords, then of quadwords, of four rows: out[k] has in each 128-bit lane l the dwords
 * 4 * l + k of the four. */
ALWAYS_INLINE void turn_four(veci out[4], const veci r[4])
{
    veci a = _mm512_unpacklo_epi32(r[0], r[1]), b = _mm512_unpackhi_epi32(r[0], r[1]);
    veci c = _mm512_unpacklo_epi32(r[2], r[3]), d = _mm512_unpackhi_epi32(r[2], r[3]);

    out[0] = _mm512_unpacklo_epi64(a, c);
    out[1] = _mm512_unpackhi_epi64(a, c);
    out[2] = _mm512_unpacklo_epi64(b, d);
    out[3] = _mm512_unpackhi_epi64(b, d);
}

ALWAYS_INLINE void turn_square(veci col[LANES], const veci row[LANES])
{
    veci t[4][4];

    for (int i = 0; i < 4; i++)
        turn_four(t[i], row + 4 * i);
    for (int k = 0; k < 4; k++) {
        veci a = _mm512_shuffle_i32x4(t[0][k], t[1][k], 0x88);
        veci b = _mm512_shuffle_i32x4(t[0][k], t[1][k], 0xdd);
        veci c = _mm512_shuffle_i32x4(t[2][k], t[3][k], 0x88);
        veci d = _mm512_shuffle_i32x4(t[2][k], t[3][k], 0xdd);

        col[k] = _mm512_shuffle_i32x4(a, c, 0x88);
        col[4 + k] = _mm512_shuffle_i32x4(b, d, 0x88);
        col[8 + k] = _mm512_shuffle_i32x4(a, c, 0xdd);
        col[12 + k] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
}

/* The two halves of each dword, or its four bytes, as runs of lanes: first within each four lanes, then
 * the pieces to their runs. */
ALWAYS_INLINE veci split(veci v, uint32_t unit)
{
    const veci bytes = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const veci halves = _mm512_broadcast_i32x4(
        _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));

    if (unit == 2)
        return _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7),
                                        _mm512_shuffle_epi8(v, halves));
    return _mm512_permutexvar_epi32(
        _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15),
        _mm512_shuffle_epi8(v, bytes));
}

ALWAYS_INLINE void put(uint8_t *q, veci v, uint32_t unit, uint32_t flip)
{
    v = _mm512_xor_si512(v, _mm512_set1_epi32((int)flip));
    _mm512_storeu_si512(q, unit == 4 ? v : split(v, unit));
}
#else
ALWAYS_INLINE void turn_four(veci out[4], const veci r[4])
{
    veci a = _mm256_unpacklo_epi32(r[0], r[1]), b = _mm256_unpackhi_epi32(r[0], r[1]);
    veci c = _mm256_unpacklo_epi32(r[2], r[3]), d = _mm256_unpackhi_epi32(r[2], r[3]);

    out[0] = _mm256_unpacklo_epi64(a, c);
    out[1] = _mm256_unpackhi_epi64(a, c);
    out[2] = _mm256_unpacklo_epi64(b, d);
    out[3] = _mm256_unpackhi_epi64(b, d);
}

ALWAYS_INLINE void turn_square(veci col[LANES], const veci row[LANES])
{
    veci t[2][4];

    turn_four(t[0], row);
    turn_four(t[1], row + 4);
    for (int k = 0; k < 4; k++) {
        col[k] = _mm256_permute2x128_si256(t[0][k], t[1][k], 0x20);
        col[4 + k] = _mm256_permute2x128_si256(t[0][k], t[1][k], 0x31);
    }
}

/* The two halves of each dword, or its four bytes, as runs of lanes. */
ALWAYS_INLINE veci split(veci v, uint32_t unit)
{
    const veci bytes = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4,
                                        8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const veci halves = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0, 1,
                                         4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);

    if (unit == 2)
        return _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, halves), 0xd8);
    return _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(v, bytes),
                                       _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

ALWAYS_INLINE void put(uint8_t *q, veci v, uint32_t unit, uint32_t flip)
{
    v = _mm256_xor_si256(v, _mm256_set1_epi32((int)flip));
    _mm256_storeu_si256((__m256i *)(void *)q, unit == 4 ? v : split(v, unit));
}
#endif

ALWAYS_INLINE void squares(uint8_t *q, const uint8_t *const *row, uint32_t n, uint32_t unit,
                           uint32_t flip)
{
    veci in[LANES], out[LANES];

    for (uint32_t i = 0; i < n; i += LANES) {
        for (int r = 0; r < LANES; r++)
            in[r] = load(row[r] + 4 * (size_t)i);
        turn_square(out, in);
        for (uint32_t c = 0; c < LANES; c++, q += 4 * LANES)
            put(q, out[c], unit, flip);
    }
}

void ISA(turn)(uint8_t *q, const uint8_t *const *row, uint32_t lanes, uint32_t n, uint32_t unit,
               uint32_t flip)
{
    uint32_t whole = n / LANES * LANES;
    const uint8_t *rest[LANES];

    if (lanes != LANES) {
        ref_turn(q, row, lanes, n, unit, flip);
        return;
    }
    if (unit == 4)
        squares(q, row, whole, 4, flip);
    else if (unit == 2)
        squares(q, row, whole, 2, flip);
    else
        squares(q, row, whole, 1, flip);
    for (uint32_t r = 0; r < LANES; r++)
        rest[r] = row[r] + 4 * (size_t)whole;
    ref_turn(q + 4 * (size_t)whole * LANES, rest, LANES, n - whole, unit, flip);
}
