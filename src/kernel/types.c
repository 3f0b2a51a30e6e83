#include "kernel/block.h"

#include <assert.h>
#include <math.h>
#include <string.h>

const struct k_type_info k_type_info[K_TYPES] = {
    [K_F32] = { "F32", 1, 4 },         [K_F16] = { "F16", 1, 2 },
    [K_BF16] = { "BF16", 1, 2 },       [K_Q8_0] = { "Q8_0", 32, 34 },
    [K_Q4_0] = { "Q4_0", 32, 18 },     [K_Q4_1] = { "Q4_1", 32, 20 },
    [K_Q5_0] = { "Q5_0", 32, 22 },     [K_Q5_1] = { "Q5_1", 32, 24 },
    [K_Q4_K] = { "Q4_K", 256, 144 },   [K_Q5_K] = { "Q5_K", 256, 176 },
    [K_Q6_K] = { "Q6_K", 256, 210 },   [K_I8] = { "I8", 1, 1 },
    [K_F8_E4M3] = { "F8_E4M3", 1, 1 },
};

const struct k_format k_format[K_TYPES] = {
    [K_Q8_0] = { .bits = 8, .bias = 128 },
    [K_Q4_0] = { .bits = 4, .bias = 8 },
    [K_Q4_1] = { .bits = 4, .has_min = true },
    [K_Q5_0] = { .bits = 5, .bias = 16 },
    [K_Q5_1] = { .bits = 5, .has_min = true },
    [K_Q4_K] = { .bits = 4, .has_min = true, .wide_scale = true },
    [K_Q5_K] = { .bits = 5, .has_min = true, .wide_scale = true },
    [K_Q6_K] = { .bits = 6, .bias = 32, .wide_scale = true, .halves = true },
    [K_I8] = { .wide_scale = true },
    [K_F8_E4M3] = { .wide_scale = true },
};

size_t k_type_bytes(enum k_type type, uint64_t n)
{
    assert(n % k_type_info[type].block == 0);
    return (size_t)(n / k_type_info[type].block * k_type_info[type].bytes);
}

static uint32_t float_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u;
}

static float bits_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

float k_half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = h >> 10 & 31, man = h & 0x3ff;
    float f;

    if (exp == 31)
        return bits_float(sign | 0x7f800000 | man << 13 | (man ? 0x400000 : 0));
    if (exp)
        return bits_float(sign | (exp + 112) << 23 | man << 13);
    f = (float)man * 0x1p-24f;
    return sign ? -f : f;
}

uint16_t k_float_to_half(float f)
{
    uint32_t u = float_bits(f), abs = u & 0x7fffffff;
    uint16_t sign = u >> 16 & 0x8000;

    if (abs > 0x7f800000)
        return sign | 0x7e00 | (abs >> 13 & 0x1ff);
    if (abs >= 0x477ff000) /* 65520 and above round to infinity */
        return sign | 0x7c00;
    if (abs < 0x38800000) /* subnormal: the addition rounds at 2^-24 */
        return sign | (uint16_t)(float_bits(bits_float(abs) + 0.5f) - 0x3f000000);
    abs += 0xfff + (abs >> 13 & 1);
    return sign | (uint16_t)((abs - 0x38000000) >> 13);
}

float k_bf16_to_float(uint16_t b)
{
    return bits_float((uint32_t)b << 16);
}

uint16_t k_float_to_bf16(float f)
{
    uint32_t u = float_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

float k_f8_to_float(uint8_t b)
{
    uint32_t sign = (uint32_t)(b & 0x80) << 24, exp = b >> 3 & 15, man = b & 7;
    float f;

    if ((b & 0x7f) == 0x7f)
        return bits_float(sign | 0x7fc00000);
    if (exp)
        return bits_float(sign | (exp + 120) << 23 | man << 20);
    f = (float)man * 0x1p-9f;
    return sign ? -f : f;
}

uint8_t k_float_to_f8(float f)
{
    uint32_t u = float_bits(f), abs = u & 0x7fffffff;
    uint8_t sign = u >> 24 & 0x80;

    if (abs > 0x7f800000)
        return sign | 0x7f;
    if (abs >= 0x43e00000) /* 448 */
        return sign | 0x7e;
    if (abs < 0x3c800000) /* subnormal: the addition rounds at 2^-9 */
        return sign | (uint8_t)(float_bits(bits_float(abs) + 0x1p14f) - 0x46800000);
    abs += 0x7ffff + (abs >> 20 & 1);
    return sign | (uint8_t)((abs - 0x3c000000) >> 20);
}

static uint16_t load16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static float load_half(const uint8_t *p)
{
    return k_half_to_float(load16(p));
}

static void nibbles(uint8_t q[K_BLOCK], const uint8_t *p)
{
    for (int j = 0; j < 16; j++) {
        q[j] = p[j] & 15;
        q[j + 16] = p[j] >> 4;
    }
}

/* Q5_0 and Q5_1: bit j of qh is the fifth bit of weight j. */
static void fifth_bits(uint8_t q[K_BLOCK], const uint8_t *qh)
{
    for (int j = 0; j < K_BLOCK; j++)
        q[j] |= (uint8_t)((qh[j / 8] >> j % 8 & 1) << 4);
}

/* Q4_K and Q5_K keep eight 6-bit scales and eight 6-bit mins in 12 bytes. */
static void k_scale_min(const uint8_t *s, unsigned j, unsigned *scale, unsigned *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | (unsigned)(s[j - 4] >> 6) << 4;
        *min = (unsigned)s[j + 4] >> 4 | (unsigned)(s[j] >> 6) << 4;
    }
}

/* d, dmin, 12 bytes of scales, then (Q5_K: 32 bytes of fifth bits and) 128 bytes of nibbles. */
static void decode_q45_k(struct k_block *out, const uint8_t *p, unsigned sub, bool five)
{
    const uint8_t *qh = p + 16, *ql = p + (five ? 48 : 16) + sub / 2 * 32;
    unsigned scale, min;

    k_scale_min(p + 4, sub, &scale, &min);
    out->scale[0] = out->scale[1] = load_half(p) * (float)scale;
    out->min = -load_half(p + 2) * (float)min;
    for (int j = 0; j < K_BLOCK; j++)
        out->q[j] = (uint8_t)((ql[j] >> sub % 2 * 4 & 15) | (five ? (qh[j] >> sub & 1) << 4 : 0));
}

/* 128 bytes of low nibbles, 64 of upper bit pairs, 16 int8 scales, d. */
static void decode_q6_k(struct k_block *out, const uint8_t *p, unsigned sub)
{
    unsigned half = sub / 4, quarter = sub % 4;
    const uint8_t *ql = p + 64 * half + 32 * (quarter & 1), *qh = p + 128 + 32 * half;
    const uint8_t *sc = p + 192 + 8 * half + 2 * quarter;
    float d = load_half(p + 208);

    out->scale[0] = d * (float)(int8_t)sc[0];
    out->scale[1] = d * (float)(int8_t)sc[1];
    out->min = 0;
    for (int j = 0; j < K_BLOCK; j++)
        out->q[j] = (uint8_t)((ql[j] >> quarter / 2 * 4 & 15) | (qh[j] >> quarter * 2 & 3) << 4);
}

void k_block_decode(enum k_type type, struct k_block *out, const void *src, uint64_t b)
{
    uint32_t per = k_type_info[type].block / K_BLOCK;
    const uint8_t *p = (const uint8_t *)src + b / per * k_type_info[type].bytes;

    if (type == K_Q4_K || type == K_Q5_K) {
        decode_q45_k(out, p, b % per, type == K_Q5_K);
        return;
    }
    if (type == K_Q6_K) {
        decode_q6_k(out, p, b % per);
        return;
    }
    out->scale[0] = out->scale[1] = load_half(p);
    out->min = k_format[type].has_min ? load_half(p + 2) : 0;
    p += k_format[type].has_min ? 4 : 2;
    if (type == K_Q8_0) {
        for (int j = 0; j < K_BLOCK; j++)
            out->q[j] = p[j] ^ 0x80;
    } else if (type == K_Q5_0 || type == K_Q5_1) {
        nibbles(out->q, p + 4);
        fifth_bits(out->q, p);
    } else {
        nibbles(out->q, p);
    }
}

static void dequant_blocks(enum k_type type, float *dst, const void *src, uint64_t n)
{
    const struct k_format *f = &k_format[type];
    struct k_block blk;

    for (uint64_t b = 0; b < n / K_BLOCK; b++, dst += K_BLOCK) {
        k_block_decode(type, &blk, src, b);
        for (int j = 0; j < K_BLOCK; j++)
            dst[j] = blk.scale[j / 16] * (float)(blk.q[j] - f->bias);
        for (int j = 0; f->has_min && j < K_BLOCK; j++)
            dst[j] += blk.min;
    }
}

void k_dequant(enum k_type type, float *dst, const void *src, uint64_t n)
{
    const uint8_t *p = src;

    assert(n % k_type_info[type].block == 0);
    switch (type) {
    case K_F32:
        memcpy(dst, src, n * sizeof *dst);
        break;
    case K_F16:
        for (uint64_t i = 0; i < n; i++)
            dst[i] = k_half_to_float(load16(p + 2 * i));
        break;
    case K_BF16:
        for (uint64_t i = 0; i < n; i++)
            dst[i] = k_bf16_to_float(load16(p + 2 * i));
        break;
    case K_I8:
        for (uint64_t i = 0; i < n; i++)
            dst[i] = (float)(int8_t)p[i];
        break;
    case K_F8_E4M3:
        for (uint64_t i = 0; i < n; i++)
            dst[i] = k_f8_to_float(p[i]);
        break;
    default:
        dequant_blocks(type, dst, src, n);
    }
}

/* Numbers whose exponent is all ones are not finite; without their sign they are the largest. The types
 * are those that the compiler has vector maxima for on every CPU. */
#define MAX_BITS(name, bits, type)                                                                 \
    static type name(const type *p, size_t n)                                                      \
    {                                                                                              \
        type max = 0;                                                                              \
                                                                                                   \
        for (size_t i = 0; i < n; i++) {                                                           \
            type v = (type)(p[i] & (bits));                                                        \
                                                                                                   \
            max = v > max ? v : max;                                                               \
        }                                                                                          \
        return max;                                                                                \
    }
MAX_BITS(max_bits8, 0x7f, uint8_t)
MAX_BITS(max_bits16, 0x7fff, int16_t)
MAX_BITS(max_bits32, 0x7fffffff, int32_t)

bool k_dense_finite(enum k_type type, const void *p, size_t bytes)
{
    switch (type) {
    case K_F8_E4M3:
        return max_bits8(p, bytes) < 0x7f;
    case K_F16:
        return max_bits16(p, bytes / 2) < 0x7c00;
    case K_BF16:
        return max_bits16(p, bytes / 2) < 0x7f80;
    default:
        assert(type == K_F32);
        return max_bits32(p, bytes / 4) < 0x7f800000;
    }
}

bool k_block_finite(const struct k_block *b)
{
    return isfinite(b->scale[0]) && isfinite(b->scale[1]) && isfinite(b->min);
}
