#include "base/rand.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#define PHILOX_ROUNDS 10

void rand_philox(uint32_t out[4], uint64_t key, uint64_t ctr_lo, uint64_t ctr_hi)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    uint32_t c0 = (uint32_t)ctr_lo, c1 = (uint32_t)(ctr_lo >> 32);
    uint32_t c2 = (uint32_t)ctr_hi, c3 = (uint32_t)(ctr_hi >> 32);

    for (int i = 0; i < PHILOX_ROUNDS; i++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;

        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

double rand_uniform(uint64_t seed, uint64_t position, uint64_t lane)
{
    uint32_t r[4];

    rand_philox(r, seed, position, lane);
    return (double)(((uint64_t)r[0] << 32 | r[1]) >> 11) * 0x1p-53;
}

void rand_bytes(void *out, size_t n)
{
    unsigned char *p = out;

    while (n) {
        ssize_t got = getrandom(p, n, 0);

        if (got < 0) {
            perror("getrandom");
            abort();
        }
        p += got;
        n -= (size_t)got;
    }
}

void rand_hex(char *out, size_t n)
{
    unsigned char raw[64];

    assert(n <= sizeof raw);
    rand_bytes(raw, n);
    for (size_t i = 0; i < n; i++)
        snprintf(out + 2 * i, 3, "%02x", raw[i]);
}
