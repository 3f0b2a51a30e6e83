/* Loops of nothing but the instructions that a matrix product is made of. */
#include "compute_peak.h"

#include "sys/clock.h"

#include <omp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define TRIES      7
#define ROUNDS     200000
#define CHAINS     12 /* independent sums: enough for the latency of any of these */
#define READ_BYTES (256u << 20)

/* One thread's loop: operations done. */
typedef double loop_fn(void);

static volatile float sink;

/* Keeps the compiler from seeing through the loop; costs no instruction. */
#define OPAQUE(v)      __asm__ volatile("" : "+x"(v))
#define OPAQUE_WIDE(v) __asm__ volatile("" : "+v"(v))

typedef float vec4 __attribute__((vector_size(16)));
typedef int16_t vec8s __attribute__((vector_size(16)));

/* A loop of ROUNDS x CHAINS times `step` on chains named c0 .. c11 of a vector type. */
#define LOOP(name, isa, type, start, step, lane0, products)                                        \
    isa static double name(void)                                                                   \
    {                                                                                              \
        type a = start;                                                                            \
        type c0 = a, c1 = a, c2 = a, c3 = a, c4 = a, c5 = a;                                       \
        type c6 = a, c7 = a, c8 = a, c9 = a, c10 = a, c11 = a;                                     \
                                                                                                   \
        for (int i = 0; i < ROUNDS; i++) {                                                         \
            step(c0) step(c1) step(c2) step(c3) step(c4) step(c5);                                 \
            step(c6) step(c7) step(c8) step(c9) step(c10) step(c11);                               \
        }                                                                                          \
        sink = lane0(c0);                                                                          \
        return 2.0 * (products)*CHAINS * ROUNDS;                                                   \
    }
#define FIRST(c) (float)(c)[0]

#define STEP_MUL_ADD(c)                                                                            \
    c = c * a + a;                                                                                 \
    OPAQUE(c);
LOOP(float_portable, , vec4, ((vec4){ 1, 1, 1, 1 }), STEP_MUL_ADD, FIRST, 4)
/* The widest exact multiplication of baseline code: 16 bits. */
LOOP(int8_portable, , vec8s, ((vec8s){ 1, 1, 1, 1, 1, 1, 1, 1 }), STEP_MUL_ADD, FIRST, 8)

#if defined(__x86_64__)
#define AVX2      __attribute__((target("avx2,fma")))
#define AVX2_VNNI __attribute__((target("avx2,avxvnni")))
#define AVX512    __attribute__((target("avx512f,avx512bw,avx512vnni")))

#define STEP_FMA_256(c)                                                                            \
    c = _mm256_fmadd_ps(a, a, c);                                                                  \
    OPAQUE(c);
LOOP(float_avx2, AVX2, __m256, _mm256_set1_ps(1), STEP_FMA_256, _mm256_cvtss_f32, 8)

/* Bytes times bytes, pairs into 16 bits, and a 16-bit addition: the fewest instructions that are
 * exact for 4-bit weights. The product depends on the sum, or it would be taken out of the loop. */
#define STEP_MADD_256(c)                                                                           \
    {                                                                                              \
        __m256i t = _mm256_maddubs_epi16(c, a);                                                    \
                                                                                                   \
        OPAQUE(t);                                                                                 \
        c = _mm256_add_epi16(c, t);                                                                \
        OPAQUE(c);                                                                                 \
    }
LOOP(int8_avx2, AVX2, __m256i, _mm256_set1_epi8(1), STEP_MADD_256, (float)_mm256_cvtsi256_si32, 32)

#define STEP_VNNI_256(c)                                                                           \
    c = _mm256_dpbusd_avx_epi32(c, a, a);                                                          \
    OPAQUE(c);
LOOP(int8_avx2_vnni, AVX2_VNNI, __m256i, _mm256_set1_epi8(1), STEP_VNNI_256,
     (float)_mm256_cvtsi256_si32, 32)

/* 16-bit numbers, pairs into 32 bits, and a 32-bit addition: what is exact for 8 bits by 8 without
 * VNNI. */
#define STEP_WIDE_256(c)                                                                           \
    {                                                                                              \
        __m256i t = _mm256_madd_epi16(c, a);                                                       \
                                                                                                   \
        OPAQUE(t);                                                                                 \
        c = _mm256_add_epi32(c, t);                                                                \
        OPAQUE(c);                                                                                 \
    }
LOOP(wide_avx2, AVX2, __m256i, _mm256_set1_epi8(1), STEP_WIDE_256, (float)_mm256_cvtsi256_si32, 16)

#define STEP_FMA_512(c)                                                                            \
    c = _mm512_fmadd_ps(a, a, c);                                                                  \
    OPAQUE_WIDE(c);
LOOP(float_avx512, AVX512, __m512, _mm512_set1_ps(1), STEP_FMA_512, _mm512_cvtss_f32, 16)

#define STEP_VNNI(c)                                                                               \
    c = _mm512_dpbusd_epi32(c, a, a);                                                              \
    OPAQUE_WIDE(c);
LOOP(int8_vnni, AVX512, __m512i, _mm512_set1_epi8(1), STEP_VNNI, (float)_mm512_cvtsi512_si32, 64)

#define STEP_MADD_512(c)                                                                           \
    {                                                                                              \
        __m512i t = _mm512_maddubs_epi16(c, a);                                                    \
                                                                                                   \
        OPAQUE_WIDE(t);                                                                            \
        c = _mm512_add_epi16(c, t);                                                                \
        OPAQUE_WIDE(c);                                                                            \
    }
LOOP(int8_avx512, AVX512, __m512i, _mm512_set1_epi8(1), STEP_MADD_512, (float)_mm512_cvtsi512_si32,
     64)

#define STEP_WIDE_512(c)                                                                           \
    {                                                                                              \
        __m512i t = _mm512_madd_epi16(c, a);                                                       \
                                                                                                   \
        OPAQUE_WIDE(t);                                                                            \
        c = _mm512_add_epi32(c, t);                                                                \
        OPAQUE_WIDE(c);                                                                            \
    }
LOOP(wide_avx512, AVX512, __m512i, _mm512_set1_epi8(1), STEP_WIDE_512, (float)_mm512_cvtsi512_si32,
     32)
#endif

static double thread_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The best rate over the tries, all threads at once. Each thread's is taken by its own CPU time, so
 * that other processes disturb it little. */
static double rate(loop_fn *fn, int threads)
{
    double best = 0;

    for (int i = 0; i < TRIES; i++) {
        double all = 0;

#pragma omp parallel num_threads(threads) reduction(+ : all)
        {
            double t = thread_seconds(), ops = fn();

            all += ops / (thread_seconds() - t);
        }
        best = all > best ? all : best;
    }
    return best;
}

static uint64_t sum_words(const uint64_t *p, size_t n)
{
    uint64_t s[8] = { 0 };

    for (size_t i = 0; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            s[j] += p[i + (size_t)j];
    return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static double read_rate(int threads)
{
    size_t n = READ_BYTES / sizeof(uint64_t);
    uint64_t *p = malloc(READ_BYTES), sum = 0;
    double best = 0;

    if (!p)
        return 0;
    memset(p, 1, READ_BYTES);
    for (int i = 0; i < TRIES; i++) {
        double all = 0;

#pragma omp parallel num_threads(threads) reduction(+ : sum, all)
        {
            size_t part = n / (size_t)omp_get_num_threads();
            double t = thread_seconds();

            sum += sum_words(p + part * (size_t)omp_get_thread_num(), part);
            all += (double)(part * sizeof *p) / (thread_seconds() - t);
        }
        best = all > best ? all : best;
    }
    sink = (float)sum;
    free(p);
    return best;
}

/* The loops of an instruction set, by the name that a kernel table gives it (more may follow). */
static const struct isa {
    const char *name;
    loop_fn *int8, *wide, *flops;
} isas[] = {
#if defined(__x86_64__)
    { "avx512+vnni", int8_vnni, int8_vnni, float_avx512 },
    { "avx512", int8_avx512, wide_avx512, float_avx512 },
    { "avx2+vnni", int8_avx2_vnni, int8_avx2_vnni, float_avx2 },
    { "avx2", int8_avx2, wide_avx2, float_avx2 },
#endif
    { "portable", int8_portable, int8_portable, float_portable },
};

void peak_measure(struct peak *out, const char *isa, int threads)
{
    const struct isa *i = isas, *last = isas + sizeof isas / sizeof isas[0] - 1;

    while (i < last && strncmp(i->name, isa, strlen(i->name)) != 0)
        i++;
    out->int8 = rate(i->int8, threads);
    out->wide = rate(i->wide, threads);
    out->flops = rate(i->flops, threads);
    out->read = read_rate(threads);
}
