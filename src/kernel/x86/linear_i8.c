/* linear of int8 weights with int8 activations of one scale a token (or one for all): lanes are
 * outputs, four inputs a step, sums in int32 over all inputs.
 *
 * Codes stand with 128 added, so that they are the unsigned operand of VNNI; a sum starts at -128
 * times that of the activations. Sums wrap on their way, but not at the end (MAX_COLS of i8.c).
 * Without VNNI, 8-bit products have no exact step in 16 bits: codes and activations are widened, and
 * pairs of products added in 32. Integer sums are exact, so that they may run in several chains. */
#include "kernel/x86/vec.h"

#include <string.h>

#if defined(__AVX512VNNI__)
#define I8(name) avx512_vnni_##name
#define DOT      _mm512_dpbusd_epi32
#define TILE     12
#elif defined(__AVXVNNI__)
#define I8(name) avx2_vnni_##name
#define DOT      _mm256_dpbusd_avx_epi32
#define TILE     6
#elif LANES == 16
#define I8(name) avx512_##name
#define TILE     8
#else
#define I8(name) avx2_##name
#define TILE     4
#endif

#if defined(DOT)
typedef int8_t number; /* an activation */
#else
typedef int16_t number;
#endif

/* Rows that are few read a panel at a time, in one long run of memory. */
#define FEW 4
/* How far ahead of it is asked for. */
#define AHEAD 4096

/* Keeps the compiler from adding products as a tree, which takes more registers than there are. */
#define KEEP(v) __asm__ volatile("" : "+v"(v))
/* Keeps it from making more pointers of one than there are registers. */
#define KEEP_POINTER(p) __asm__("" : "+r"(p))

/* What a register tile is specialised for. */
struct shape {
    int panels, rows, chains;
};
#define SUMS (K_UNIT * TILE)

ALWAYS_INLINE int at(const struct shape f, int chain, int panel, int row)
{
    return (chain * f.panels + panel) * f.rows + row;
}

/* Four bytes to all lanes. From memory that takes no vector port; a compiler may go by way of a
 * register, which takes one. */
ALWAYS_INLINE veci splat4(const void *x)
{
    veci v;

    __asm__("vpbroadcastd %1, %0" : "=v"(v) : "m"(*(const int32_t *)x));
    return v;
}

/* One step of a row, for all panels. */
#if defined(DOT)
ALWAYS_INLINE void row_step(veci *sum, const veci *w, const number *x, const struct shape f)
{
    veci xs = splat4(x);

#pragma GCC unroll 2
    for (int p = 0; p < f.panels; p++) {
        sum[p * f.rows] = DOT(sum[p * f.rows], w[p], xs);
        KEEP(sum[p * f.rows]);
    }
}
#else
ALWAYS_INLINE void row_step(veci *sum, const veci *w, const number *x, const struct shape f)
{
    veci even = splat4(x), odd = splat4(x + 2);

#pragma GCC unroll 2
    for (int p = 0; p < f.panels; p++) {
        veci s = i_add32(sum[p * f.rows], i_madd16(i_and(w[p], i_splat16(255)), even));

        KEEP(s);
        s = i_add32(s, i_madd16(i_shr16(w[p], 8), odd));
        KEEP(s);
        sum[p * f.rows] = s;
    }
}
#endif

/* Where rows stand: the first of every three, and the way to the others. So few pointers fit the
 * general registers. */
struct rows {
    const number *third[(TILE + 2) / 3];
    size_t stride;
};

ALWAYS_INLINE const number *row_at(const struct rows *x, int j)
{
    return x->third[j / 3] + (size_t)(j % 3) * x->stride;
}

/* One block of inputs. */
ALWAYS_INLINE void add_block(veci *sum, const uint8_t *const q[K_UNIT], const struct rows *x,
                             const struct shape f)
{
#pragma GCC unroll 8
    for (int step = 0; step < 8; step++) {
        veci w[K_UNIT];

        for (int p = 0; p < f.panels; p++)
            w[p] = i_load(q[p] + (size_t)step * 4 * LANES);
#pragma GCC unroll 12
        for (int j = 0; j < f.rows; j++)
            row_step(sum + at(f, step % f.chains, 0, j), w, row_at(x, j) + (size_t)step * 4, f);
    }
}

ALWAYS_INLINE void put(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,
                       veci sum)
{
    vec scale = v_load((const float *)s->scale + (size_t)p * LANES), v;

    if (s->fixed) {
        sum = i_add32(sum, i_load((const int32_t *)s->min + (size_t)p * LANES));
        v = v_mul(v_from_i32(sum), scale);
    } else {
        v = v_mul(v_mul(v_from_i32(sum), v_splat(job->a->i8.scale[r])), scale);
    }
    put_outputs(job, s, p, r, v);
}

/* Memory that a tile asks for while it computes: in two runs, so many lines a block. It does no harm
 * where there is none. */
struct ahead {
    const uint8_t *at[K_UNIT];
    size_t lines;
};

/* Panels p.. times rows r..; the last panel may be without its neighbour, and stands in for it. */
ALWAYS_INLINE void tile(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,
                        struct ahead next, const struct shape f)
{
    const struct k_act_i8 *a = s->fixed ? &job->a->i8s : &job->a->i8;
    struct rows x = { .stride = i8_stride(job->w->cols) };
    const uint8_t *q[K_UNIT];
    veci sum[SUMS];

#pragma GCC unroll 24
    for (int i = 0; i < f.chains * f.panels * f.rows; i++)
        sum[i] = i < f.panels * f.rows ? i_splat32(-128 * a->sum[r + (uint32_t)(i % f.rows)])
                                       : i_zero();
    for (int i = 0; i < f.panels; i++)
        q[i] = s->q + (p + (uint32_t)i < s->panels ? p + (uint32_t)i : p) * s->q_bytes;
    for (int i = 0; i * 3 < f.rows; i++)
        x.third[i] = (const number *)(const void *)a->q + (r + 3 * (uint32_t)i) * x.stride;
    for (uint32_t b = 0; b < job->w->blocks; b++) {
        add_block(sum, q, &x, f);
        for (int i = 0; i * 3 < f.rows; i++) {
            x.third[i] += K_BLOCK;
            KEEP_POINTER(x.third[i]);
        }
        for (int i = 0; i < f.panels; i++) {
            for (size_t l = 0; l < next.lines; l++, next.at[i] += 64)
                __builtin_prefetch(next.at[i]);
            q[i] += 32 * LANES;
        }
    }
#pragma GCC unroll 12
    for (int j = 0; j < f.rows; j++)
#pragma GCC unroll 2
        for (int i = 0; i < f.panels; i++) {
#pragma GCC unroll 8
            for (int c = 1; c < f.chains; c++)
                sum[at(f, 0, i, j)] = i_add32(sum[at(f, 0, i, j)], sum[at(f, c, i, j)]);
            if (p + (uint32_t)i < s->panels)
                put(job, s, p + (uint32_t)i, r + (uint32_t)j, sum[at(f, 0, i, j)]);
        }
}

typedef void tile_fn(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,
                     struct ahead next);

#define TILE_FN(name, ...)                                                                         \
    static void name(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,  \
                     struct ahead next)                                                            \
    {                                                                                              \
        tile(job, s, p, r, next, (struct shape){ __VA_ARGS__ });                                   \
    }
#define MANY_FN(rows) TILE_FN(many_##rows, K_UNIT, rows, 1)
TILE_FN(few_1, 1, 1, 4)
TILE_FN(few_2, 1, 2, 4)
TILE_FN(few_3, 1, 3, 2)
TILE_FN(few_4, 1, 4, 2)
static tile_fn *const few[FEW + 1] = { NULL, few_1, few_2, few_3, few_4 };

/* More rows are cut into tiles of equal size, or nearly so: at least half a tile. */
#if TILE == 4
MANY_FN(2)
MANY_FN(3)
MANY_FN(4)
static tile_fn *const many[TILE + 1] = { [2] = many_2, many_3, many_4 };
#elif TILE == 6
MANY_FN(3)
MANY_FN(4)
MANY_FN(5)
MANY_FN(6)
static tile_fn *const many[TILE + 1] = { [3] = many_3, many_4, many_5, many_6 };
#elif TILE == 8
MANY_FN(4)
MANY_FN(5)
MANY_FN(6)
MANY_FN(7)
MANY_FN(8)
static tile_fn *const many[TILE + 1] = { [4] = many_4, many_5, many_6, many_7, many_8 };
#else
MANY_FN(5)
MANY_FN(6)
MANY_FN(7)
MANY_FN(8)
MANY_FN(9)
MANY_FN(10)
MANY_FN(11)
MANY_FN(12)
static tile_fn *const many[TILE + 1] = {
    [5] = many_5, many_6, many_7, many_8, many_9, many_10, many_11, many_12,
};
#endif

/* Lines of a block of a panel. */
#define LINES (LANES / 2)

/* One panel after the other, which stand so in memory. */
static void few_rows(const struct linear_job *job, const struct k_seg *seg, uint32_t p0,
                     uint32_t p1, uint32_t r0, uint32_t n)
{
    for (uint32_t p = p0; p < p1; p++) {
        struct ahead next = { { seg->q + p * seg->q_bytes + AHEAD }, LINES };

        few[n](job, seg, p, r0, next);
    }
}

/* All tiles of a unit while its codes are near. Each asks for a part of the next unit's, which stand
 * at `next`; a tile that is alone asks for what it will read itself. */
static void unit_rows(const struct linear_job *job, const struct k_seg *seg, uint32_t p,
                      uint32_t r0, uint32_t n, const uint8_t *next)
{
    uint32_t tiles = (n + TILE - 1) / TILE;
    struct ahead a = { { next, next + seg->q_bytes }, next ? (LINES + tiles - 1) / tiles : 0 };

    if (tiles == 1)
        a = (struct ahead){
            { seg->q + p * seg->q_bytes + AHEAD, seg->q + (p + 1) * seg->q_bytes + AHEAD }, LINES
        };
    for (uint32_t i = 0; i < tiles; i++) {
        uint32_t from = n * i / tiles, to = n * (i + 1) / tiles;

        many[to - from](job, seg, p, r0 + from, a);
        for (int j = 0; j < K_UNIT; j++)
            a.at[j] += a.lines * 64 * job->w->blocks;
    }
}

void I8(linear_i8)(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                   uint32_t r0, uint32_t r1)
{
    if (r1 - r0 <= FEW) {
        few_rows(job, seg, p0, p1, r0, r1 - r0);
        return;
    }
    for (uint32_t p = p0; p < p1; p += K_UNIT) {
        bool last = p + K_UNIT >= p1;
        const uint8_t *next = last ? job->next : seg->q + (p + K_UNIT) * seg->q_bytes;

        unit_rows(job, seg, p, r0, r1 - r0, next);
    }
}

/* Numbers from int32 lanes, in the order of struct k_act_i8. */
ALWAYS_INLINE void put_numbers(number *q, veci v)
{
#if defined(DOT)
    i_store_low8(q, v);
#elif LANES == 16
    v = _mm512_shuffle_epi32(v, _MM_PERM_DBCA);
    _mm256_storeu_si256((__m256i *)(void *)q, _mm512_cvtepi32_epi16(v));
#else
    v = _mm256_shuffle_epi32(v, 0xd8);
    v = _mm256_permute4x64_epi64(_mm256_packs_epi32(v, v), 0x08);
    _mm_storeu_si128((__m128i *)(void *)q, _mm256_castsi256_si128(v));
#endif
}

/* Writes the zeros behind a row of which `done` numbers stand. */
static void fill_up(number *q, uint32_t done, uint32_t cols)
{
    memset(q + done, 0, (i8_stride(cols) - done) * sizeof *q);
}

static void i8_row(void *out, float *scale, int32_t *sum, const float *x, uint32_t cols)
{
    vec top = v_zero(), by;
    veci all = i_zero();
    number *q = out;
    uint32_t c;

    for (c = 0; c < cols; c += LANES)
        top = v_max(top, v_abs(v_load_part(first_lanes(cols - c), x + c)));
    *scale = v_max_lane(top) / 127;
    by = v_splat(*scale > 0 ? *scale : 1); /* all zeros, or so near to it that they count as such */
    for (c = 0; c < cols; c += LANES) {
        vec v = v_div(v_load_part(first_lanes(cols - c), x + c), by);
        veci n = i32_from_v(v_max(v_min(v, v_splat(127)), v_splat(-128)));

        put_numbers(q + c, n);
        all = i_add32(all, n);
    }
    *sum = i_sum32(all);
    fill_up(q, c, cols);
}

/* clamp(rint(x / scale + offset)) of half a vector, in float64: a tie must be a tie. */
#if LANES == 16
ALWAYS_INLINE __m256i static_half(__m256 x, double scale, double offset)
{
    __m512d v = _mm512_div_pd(_mm512_cvtps_pd(x), _mm512_set1_pd(scale));

    v = _mm512_min_pd(_mm512_add_pd(v, _mm512_set1_pd(offset)), _mm512_set1_pd(127));
    return _mm512_cvtpd_epi32(_mm512_max_pd(v, _mm512_set1_pd(-128)));
}
ALWAYS_INLINE veci static_numbers(vec x, double scale, double offset)
{
    __m256i low = static_half(_mm512_castps512_ps256(x), scale, offset);

    return _mm512_inserti64x4(_mm512_castsi256_si512(low),
                              static_half(_mm512_extractf32x8_ps(x, 1), scale, offset), 1);
}
ALWAYS_INLINE veci i_only(mask m, veci v)
{
    return _mm512_maskz_mov_epi32(m, v);
}
#else
ALWAYS_INLINE __m128i static_half(__m128 x, double scale, double offset)
{
    __m256d v = _mm256_div_pd(_mm256_cvtps_pd(x), _mm256_set1_pd(scale));

    v = _mm256_min_pd(_mm256_add_pd(v, _mm256_set1_pd(offset)), _mm256_set1_pd(127));
    return _mm256_cvtpd_epi32(_mm256_max_pd(v, _mm256_set1_pd(-128)));
}
ALWAYS_INLINE veci static_numbers(vec x, double scale, double offset)
{
    __m128i low = static_half(_mm256_castps256_ps128(x), scale, offset);

    return _mm256_inserti128_si256(_mm256_castsi128_si256(low),
                                   static_half(_mm256_extractf128_ps(x, 1), scale, offset), 1);
}
ALWAYS_INLINE veci i_only(mask m, veci v)
{
    return i_and(m, v);
}
#endif

static void i8_static_row(void *out, int32_t *sum, const float *x, uint32_t cols, float scale,
                          float offset)
{
    veci all = i_zero();
    number *q = out;
    uint32_t c;

    for (c = 0; c < cols; c += LANES) {
        mask m = first_lanes(cols - c);
        veci n = i_only(m, static_numbers(v_load_part(m, x + c), (double)scale, (double)offset));

        put_numbers(q + c, n);
        all = i_add32(all, n);
    }
    *sum = i_sum32(all);
    fill_up(q, c, cols);
}

void I8(i8_fill)(struct cpu_impl *f)
{
    f->i8_bytes = sizeof(number);
    f->i8_row = i8_row;
    f->i8_static_row = i8_static_row;
}
