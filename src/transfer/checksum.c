#include "transfer/checksum.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* Odd 64-bit numbers without pattern: the fractional parts of square roots of primes. */
#define STEP 0x9b05688c2b3e6c1full
#define FOLD 0xbb67ae8584caa73bull

typedef void add_fn(struct checksum *c, const void *data, size_t len);

void checksum_init(struct checksum *c, uint64_t seed)
{
    for (uint64_t i = 0; i < 8; i++) {
        c->sum[i] = seed + i;
        c->key[i] = (seed ^ (i + 1)) * FOLD;
    }
}

void checksum_add_portable(struct checksum *c, const void *data, size_t len)
{
    const unsigned char *p = data;
    uint64_t x[8];

    for (; len >= CHECKSUM_STRIPE; len -= CHECKSUM_STRIPE, p += CHECKSUM_STRIPE) {
        memcpy(x, p, sizeof x);
        for (int i = 0; i < 8; i++) {
            uint64_t k = x[i] ^ c->key[i];

            c->sum[i] += (k & 0xffffffff) * (k >> 32) + x[i ^ 1];
            c->key[i] += STEP;
        }
    }
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static __m256i lanes(__m256i sum, __m256i key, __m256i x)
{
    __m256i k = _mm256_xor_si256(x, key);

    sum = _mm256_add_epi64(sum, _mm256_mul_epu32(k, _mm256_srli_epi64(k, 32)));
    return _mm256_add_epi64(sum, _mm256_shuffle_epi32(x, 0x4e));
}

__attribute__((target("avx2"))) static void add_avx2(struct checksum *c, const void *data,
                                                     size_t len)
{
    const char *p = data;
    __m256i step = _mm256_set1_epi64x((long long)STEP);
    __m256i s0 = _mm256_loadu_si256((void *)c->sum), s1 = _mm256_loadu_si256((void *)(c->sum + 4));
    __m256i k0 = _mm256_loadu_si256((void *)c->key), k1 = _mm256_loadu_si256((void *)(c->key + 4));

    for (; len >= CHECKSUM_STRIPE; len -= CHECKSUM_STRIPE, p += CHECKSUM_STRIPE) {
        s0 = lanes(s0, k0, _mm256_loadu_si256((const void *)p));
        s1 = lanes(s1, k1, _mm256_loadu_si256((const void *)(p + 32)));
        k0 = _mm256_add_epi64(k0, step);
        k1 = _mm256_add_epi64(k1, step);
    }
    _mm256_storeu_si256((void *)c->sum, s0);
    _mm256_storeu_si256((void *)(c->sum + 4), s1);
    _mm256_storeu_si256((void *)c->key, k0);
    _mm256_storeu_si256((void *)(c->key + 4), k1);
}
#endif

static add_fn *add = checksum_add_portable;

static void choose(void)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2"))
        add = add_avx2;
#endif
}

void checksum_add(struct checksum *c, const void *data, size_t len)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    assert(len % CHECKSUM_STRIPE == 0);
    pthread_once(&once, choose);
    add(c, data, len);
}

uint64_t checksum_value(const struct checksum *c)
{
    uint64_t h = c->key[0];

    for (int i = 0; i < 8; i++) {
        h = (h ^ c->sum[i]) * FOLD;
        h ^= h >> 29;
    }
    return h ^ h >> 32;
}
