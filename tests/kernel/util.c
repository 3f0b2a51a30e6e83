#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRINTED 20

void expect(struct check *c, bool ok, const char *fmt, ...)
{
    va_list ap;

    c->checks++;
    if (ok || c->failures++ >= PRINTED)
        return;
    va_start(ap, fmt);
    fprintf(stderr, "FAILED (%s): ", c->two->isa);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

double max_error(const float *a, const float *b, size_t n, double scale)
{
    double max = 0;

    for (size_t i = 0; i < n; i++) {
        double e = fabs((double)a[i] - (double)b[i]) / (scale + fabs((double)b[i]));

        if (!(e <= max))
            max = isnan(e) ? INFINITY : e;
    }
    return max;
}

bool same_bits(const void *a, const void *b, size_t bytes)
{
    return memcmp(a, b, bytes) == 0;
}

/* SplitMix64. */
uint32_t rng_next(struct rng *r)
{
    uint64_t z = (r->state += 0x9e3779b97f4a7c15);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return (uint32_t)(z >> 32 ^ z);
}

float rng_float(struct rng *r)
{
    return (float)(rng_next(r) >> 8) * 0x1p-23f - 1;
}

void rng_fill(struct rng *r, float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(r);
}

static void put_half(uint8_t *p, float f)
{
    uint16_t h = k_float_to_half(f);

    memcpy(p, &h, sizeof h);
}

/* Where a block keeps its half-precision scales; -1: none. */
static void scale_offsets(enum k_type type, int at[2])
{
    at[0] = type == K_Q6_K ? 208 : 0;
    at[1] = type == K_Q4_1 || type == K_Q5_1 || type == K_Q4_K || type == K_Q5_K ? 2 : -1;
}

void *random_weights(struct rng *r, enum k_type type, size_t n)
{
    size_t bytes = k_type_bytes(type, n);
    uint8_t *p = malloc(bytes);
    int at[2];

    if (!p)
        abort();
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)rng_next(r);
    for (size_t i = 0; type == K_F8_E4M3 && i < n; i++)
        p[i] -= (p[i] & 127) == 127; /* no NaN */
    for (size_t i = 0; k_type_info[type].block == 1 && k_type_info[type].bytes > 1 && i < n; i++) {
        float f = rng_float(r);
        uint16_t bf = k_float_to_bf16(f);

        if (type == K_F32)
            memcpy(p + 4 * i, &f, 4);
        else if (type == K_F16)
            put_half(p + 2 * i, f);
        else
            memcpy(p + 2 * i, &bf, 2);
    }
    scale_offsets(type, at);
    for (uint8_t *b = p; k_type_info[type].block > 1 && b < p + bytes; b += k_type_info[type].bytes)
        for (int i = 0; i < 2; i++)
            if (at[i] >= 0)
                put_half(b + at[i], rng_float(r) * 0.05f);
    return p;
}

void *get(const struct kernels *k, size_t bytes)
{
    void *p = k->alloc(k, bytes);

    if (!p)
        abort();
    return p;
}
