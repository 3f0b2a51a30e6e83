/* linear with int8 activations: lanes are outputs, four inputs a step.
 *
 * Order of sums, in all variants: inside a block of 32 exact int32, then
 *   acc = fma(scale * (float)dot, activation scale, acc); acc = fma(min, activation sum, acc)
 * block after block (with two scales a block, the first fma twice). */
#include "kernel/x86/vec.h"

#include <string.h>

#if defined(__AVX512VNNI__)
#define LINEAR    avx512_linear_vnni
#define LINEAR_I8 avx512_vnni_linear_i8
#define VNNI      _mm512_dpbusd_epi32
#elif defined(__AVXVNNI__)
#define LINEAR    avx2_linear_vnni
#define LINEAR_I8 avx2_vnni_linear_i8
#define VNNI      _mm256_dpbusd_avx_epi32
#else
#define LINEAR    ISA(linear)
#define LINEAR_I8 ISA(linear_i8)
#endif

/* Rows of activations in a full register tile. Up to FEW rows the weights are unpacked in registers
 * as they are read; above, once for all rows into the scratch. */
#if LANES == 16
#define TILE 6
#else
#define TILE 3
#endif
#define FEW 2

/* Keeps the compiler from adding products as a tree, which takes more registers than there are. */
#define KEEP(v) __asm__("" : "+v"(v))

/* Bits of a code. They decide how products are added without VNNI, so that no 16-bit step can
 * overflow: below 16, eight pairs of products 15 * 127 fit int16; below 64, one pair does; all
 * others are multiplied by magnitude, where 128 * 127 * 2 still fits. */
enum codes { CODES_4 = 4, CODES_5, CODES_6, CODES_8 = 8 };

/* What a register tile is specialised for. */
struct shape {
    int panels, rows;
    enum codes codes;
    bool packed; /* as in the matrix; else as in struct block */
    bool halves, has_min, wide;
};

/* The panels of a unit, as packed or as unpacked; the steps lead to the next block. */
struct view {
    const uint8_t *q[K_UNIT];
    const char *scale[K_UNIT], *min[K_UNIT];
    size_t q_step, scale_step, min_step;
    size_t q_next, scale_next, min_next; /* from a block to the same one of the next unit */
};

/* A block of one panel in the scratch. */
struct block {
    _Alignas(32) uint8_t q[8][4 * LANES];
    float scale[2][LANES];
    float min[LANES];
};

static void view_packed(struct view *v, const struct k_seg *s, uint32_t p, int n)
{
    size_t size = seg_scale_size(s);

    for (int i = 0; i < n; i++, p++) {
        v->q[i] = s->q + p * s->q_bytes;
        v->scale[i] = (const char *)s->scale + p * s->scale_count * size;
        v->min[i] = s->min_count ? (const char *)s->min + p * s->min_count * size : NULL;
    }
    v->q_step = 4u * LANES * s->fmt.bits;
    v->scale_step = (s->fmt.halves ? 2 : 1) * LANES * size;
    v->min_step = s->min_count ? LANES * size : 0;
    v->q_next = n * s->q_bytes;
    v->scale_next = n * s->scale_count * size;
    v->min_next = n * s->min_count * size;
}

static void view_unpacked(struct view *v, const struct block *w, int n)
{
    for (int i = 0; i < n; i++) {
        v->q[i] = w[i].q[0];
        v->scale[i] = (const char *)w[i].scale;
        v->min[i] = (const char *)w[i].min;
    }
    v->q_step = v->scale_step = v->min_step = (size_t)n * sizeof *w;
}

/* All blocks of a unit, the panels of a block side by side. */
static void unpack(struct block *out, const struct k_seg *s, uint32_t p, int n, uint32_t blocks)
{
    bool wide = s->fmt.wide_scale;
    struct view v;

    view_packed(&v, s, p, n);
    for (uint32_t b = 0; b < blocks; b++)
        for (int i = 0; i < n; i++, out++) {
            const uint8_t *q = v.q[i] + b * v.q_step;
            const char *scale = v.scale[i] + b * v.scale_step;

            for (uint32_t j = 0; j < 8; j++)
                i_store(out->q[j], packed_code(q, j, s->fmt.bits));
            v_store(out->scale[0], v_load_any(scale, 0, wide));
            if (s->fmt.halves)
                v_store(out->scale[1], v_load_any(scale, LANES, wide));
            if (s->fmt.has_min)
                v_store(out->min, v_load_any(v.min[i] + b * v.min_step, 0, wide));
        }
}

ALWAYS_INLINE veci splat4(const int8_t *x)
{
    int32_t v;

    memcpy(&v, x, sizeof v);
    return i_splat32(v);
}

/* A running dot product of codes (unsigned) and activations, and what it is at the end, with
 * `offset` (-bias times the sum of the activations) added. */
#if defined(VNNI)
ALWAYS_INLINE veci dot_start(veci offset)
{
    return offset;
}
ALWAYS_INLINE veci dot_step(veci dot, veci w, veci x, enum codes codes)
{
    (void)codes;
    return VNNI(dot, w, x);
}
ALWAYS_INLINE veci dot_end(veci dot, veci offset, const struct shape f)
{
    (void)offset;
    (void)f;
    return dot;
}
#else
ALWAYS_INLINE veci dot_start(veci offset)
{
    (void)offset;
    return i_zero();
}
ALWAYS_INLINE veci dot_step(veci dot, veci w, veci x, enum codes codes)
{
    const veci one = i_splat16(1);

    if (codes == CODES_4) {
        dot = i_add16(dot, i_madd8(w, x));
        KEEP(dot);
        return dot;
    }
    if (codes != CODES_8)
        return i_add32(dot, i_madd16(i_madd8(w, x), one));
    w = i_xor(w, i_splat8(128)); /* code - 128; its magnitude may be 128 as an unsigned byte */
    return i_add32(dot, i_madd16(i_madd8(i_abs8(w), i_sign8(x, w)), one));
}
ALWAYS_INLINE veci dot_end(veci dot, veci offset, const struct shape f)
{
    if (f.codes == CODES_4)
        dot = i_madd16(dot, i_splat16(1));
    /* codes of 8 bits were made signed, which was their whole bias; mins leave no bias */
    return f.codes == CODES_8 || f.has_min ? dot : i_add32(dot, offset);
}
#endif

/* Steps [from, to) of one block. A nibble's byte serves two steps, which follow each other so that
 * it is loaded once. */
ALWAYS_INLINE void dots(veci dot[K_UNIT][TILE], const struct view *v, const int8_t *x,
                        uint32_t cols, uint32_t from, uint32_t to, const struct shape f)
{
    bool pairs = f.packed && f.codes != CODES_8 && !f.halves;

#pragma GCC unroll 8
    for (uint32_t i = from; i < to; i++) {
        uint32_t step = pairs ? i % 2 * 4 + i / 2 : i;
        veci c[K_UNIT];

        for (int p = 0; p < f.panels; p++)
            c[p] = packed_code(v->q[p], step, f.packed ? f.codes : 8);
        for (int j = 0; j < f.rows; j++) {
            veci xs = splat4(x + (size_t)j * cols + 4 * step);

            for (int p = 0; p < f.panels; p++)
                dot[p][j] = dot_step(dot[p][j], c[p], xs, f.codes);
        }
    }
}

/* acc += scale * dot * activation scale */
ALWAYS_INLINE void add_dots(vec acc[K_UNIT][TILE], veci dot[K_UNIT][TILE], const veci *offset,
                            const struct view *v, const float *d, uint32_t blocks, uint32_t half,
                            const struct shape f)
{
    vec scale[K_UNIT];

    for (int i = 0; i < f.panels; i++)
        scale[i] = v_load_any(v->scale[i], (size_t)half * LANES, f.wide);
    for (int j = 0; j < f.rows; j++) {
        vec ds = v_splat(d[(size_t)j * blocks]);

        for (int i = 0; i < f.panels; i++) {
            vec t = v_mul(v_from_i32(dot_end(dot[i][j], offset[j], f)), scale[i]);

            acc[i][j] = v_fma(t, ds, acc[i][j]);
        }
    }
}

ALWAYS_INLINE void add_mins(vec acc[K_UNIT][TILE], const struct view *v, const float *sum,
                            uint32_t blocks, const struct shape f)
{
    for (int i = 0; i < f.panels; i++) {
        vec min = v_load_any(v->min[i], 0, f.wide);

        for (int j = 0; j < f.rows; j++)
            acc[i][j] = v_fma(min, v_splat(sum[(size_t)j * blocks]), acc[i][j]);
    }
}

/* Sum of the activations of a half, or of the whole block. */
ALWAYS_INLINE int32_t sum_of(const int32_t isum[2], uint32_t half, const struct shape f)
{
    if (f.halves)
        return half ? isum[1] - isum[0] : isum[0];
    return isum[1];
}

/* One block (or half of it) of all rows of the tile. */
ALWAYS_INLINE void add_block(vec acc[K_UNIT][TILE], const struct view *v, const struct k_act *a,
                             const int8_t *x, size_t at, uint32_t cols, uint32_t half, int bias,
                             const struct shape f)
{
    uint32_t blocks = cols / K_BLOCK;
    veci dot[K_UNIT][TILE], offset[TILE];

    for (int j = 0; j < f.rows; j++) {
        offset[j] = i_zero();
        if (!f.has_min)
            offset[j] = i_splat32(-bias * sum_of(a->isum + 2 * (at + (size_t)j * blocks), half, f));
        for (int i = 0; i < f.panels; i++)
            dot[i][j] = dot_start(offset[j]);
    }
    dots(dot, v, x, cols, 4 * half, f.halves ? 4 * half + 4 : 8, f);
    add_dots(acc, dot, offset, v, a->scale + at, blocks, half, f);
}

/* Asks for the same block of the next unit. A panel is too short for the CPU to see a stream in it;
 * past the last one this asks for memory that may not be there, which does no harm. */
ALWAYS_INLINE void fetch_next(const struct view *v, const struct shape f)
{
    for (int i = 0; i < f.panels; i++) {
        for (size_t at = 0; at < 4u * LANES * f.codes; at += 64)
            __builtin_prefetch(v->q[i] + v->q_next + at);
        for (size_t at = 0; at < (f.halves ? 2u : 1u) * LANES * (f.wide ? 4 : 2); at += 64)
            __builtin_prefetch(v->scale[i] + v->scale_next + at);
        if (f.has_min)
            __builtin_prefetch(v->min[i] + v->min_next);
    }
}

/* Panels p.. times rows r.. */
ALWAYS_INLINE void tile(const struct linear_job *job, const struct k_seg *s, struct view v,
                        uint32_t p, uint32_t r, const struct shape f)
{
    const struct k_act *a = job->a;
    uint32_t cols = job->w->cols, blocks = job->w->blocks;
    const int8_t *x = a->q + (size_t)r * cols;
    size_t at = (size_t)r * blocks;
    vec acc[K_UNIT][TILE];

    for (int j = 0; j < f.rows; j++)
        for (int i = 0; i < f.panels; i++)
            acc[i][j] = v_zero();
    for (uint32_t b = 0; b < blocks; b++, x += K_BLOCK, at++) {
        add_block(acc, &v, a, x, at, cols, 0, s->fmt.bias, f);
        if (f.halves)
            add_block(acc, &v, a, x, at, cols, 1, s->fmt.bias, f);
        if (f.has_min)
            add_mins(acc, &v, a->fsum + at, blocks, f);
        if (f.packed)
            fetch_next(&v, f);
        for (int i = 0; i < f.panels; i++) {
            v.q[i] += v.q_step;
            v.scale[i] += v.scale_step;
            v.min[i] += f.has_min ? v.min_step : 0;
        }
    }
    for (int j = 0; j < f.rows; j++)
        for (int i = 0; i < f.panels; i++)
            put_outputs(job, s, p + (uint32_t)i, r + (uint32_t)j, acc[i][j]);
}

ALWAYS_INLINE struct shape with(struct shape f, int panels, int rows)
{
    f.panels = panels;
    f.rows = rows;
    return f;
}

/* Rows [r0, r1) of a unit: full tiles, then what is left. */
ALWAYS_INLINE void tiles(const struct linear_job *job, const struct k_seg *s, const struct view *v,
                         uint32_t p, const int n, uint32_t r0, uint32_t r1, const struct shape f)
{
    for (; r0 + TILE <= r1; r0 += TILE)
        tile(job, s, *v, p, r0, with(f, n, TILE));
    if (r0 + TILE / 2 <= r1) {
        tile(job, s, *v, p, r0, with(f, n, TILE / 2));
        r0 += TILE / 2;
    }
    for (; r0 < r1; r0++)
        tile(job, s, *v, p, r0, with(f, n, 1));
}

/* One or two rows, straight from the packed weights. */
ALWAYS_INLINE void few_tiles(const struct linear_job *job, const struct k_seg *s,
                             const struct view *v, uint32_t p, const int n, uint32_t r0,
                             uint32_t r1, const struct shape f)
{
    if (r1 - r0 == 2)
        tile(job, s, *v, p, r0, with(f, n, 2));
    else
        tile(job, s, *v, p, r0, with(f, n, 1));
}

typedef void unit_fn(const struct linear_job *job, const struct k_seg *s, const struct view *v,
                     uint32_t p, int n, uint32_t r0, uint32_t r1);

/* One function a shape; an odd last panel is a unit of one. */
#define UNIT_FN(name, tiles, ...)                                                                  \
    static void name(const struct linear_job *job, const struct k_seg *s, const struct view *v,    \
                     uint32_t p, int n, uint32_t r0, uint32_t r1)                                  \
    {                                                                                              \
        if (n == K_UNIT)                                                                           \
            tiles(job, s, v, p, K_UNIT, r0, r1, (struct shape){ __VA_ARGS__ });                    \
        else                                                                                       \
            tiles(job, s, v, p, 1, r0, r1, (struct shape){ __VA_ARGS__ });                         \
    }
UNIT_FN(many_4, tiles, .codes = CODES_4, .wide = true)
UNIT_FN(many_4_min, tiles, .codes = CODES_4, .wide = true, .has_min = true)
UNIT_FN(many_6, tiles, .codes = CODES_6, .wide = true)
UNIT_FN(many_6_min, tiles, .codes = CODES_6, .wide = true, .has_min = true)
UNIT_FN(many_6_halves, tiles, .codes = CODES_6, .wide = true, .halves = true)
UNIT_FN(many_8, tiles, .codes = CODES_8, .wide = true)
UNIT_FN(few_4, few_tiles, .codes = CODES_4, .packed = true)
UNIT_FN(few_4_min, few_tiles, .codes = CODES_4, .packed = true, .has_min = true)
UNIT_FN(few_4_min_wide, few_tiles, .codes = CODES_4, .packed = true, .has_min = true, .wide = true)
UNIT_FN(few_5, few_tiles, .codes = CODES_5, .packed = true)
UNIT_FN(few_5_min, few_tiles, .codes = CODES_5, .packed = true, .has_min = true)
UNIT_FN(few_5_min_wide, few_tiles, .codes = CODES_5, .packed = true, .has_min = true, .wide = true)
UNIT_FN(few_6_halves, few_tiles, .codes = CODES_6, .packed = true, .halves = true, .wide = true)
UNIT_FN(few_8, few_tiles, .codes = CODES_8, .packed = true)

/* [type][few rows]; dense types have none. */
static unit_fn *const unit_fns[K_TYPES][2] = {
    [K_Q8_0] = { many_8, few_8 },
    [K_Q4_0] = { many_4, few_4 },
    [K_Q4_1] = { many_4_min, few_4_min },
    [K_Q5_0] = { many_6, few_5 },
    [K_Q5_1] = { many_6_min, few_5_min },
    [K_Q4_K] = { many_4_min, few_4_min_wide },
    [K_Q5_K] = { many_6_min, few_5_min_wide },
    [K_Q6_K] = { many_6_halves, few_6_halves },
};

void LINEAR(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
            uint32_t r0, uint32_t r1, void *scratch)
{
    bool few = r1 - r0 <= FEW;
    unit_fn *fn = unit_fns[seg->type][few];

    if (seg->type == K_I8) {
        LINEAR_I8(job, seg, p0, p1, r0, r1);
        return;
    }
    if (!seg_is_int(job->w, seg)) {
        ISA(linear_float)(job, seg, p0, p1, r0, r1, scratch);
        return;
    }
    for (uint32_t p = p0; p < p1; p += K_UNIT) {
        int n = p1 - p < K_UNIT ? 1 : K_UNIT;
        struct view v;

        if (few) {
            view_packed(&v, seg, p, n);
        } else {
            unpack(scratch, seg, p, n, job->w->blocks);
            view_unpacked(&v, scratch, n);
        }
        fn(job, seg, &v, p, n, r0, r1);
    }
}
