/* Half precision and the storage formats against plain definitions. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float bits(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof f);
    return f;
}

/* The half nearest to f by search among its neighbours, ties to even. */
static bool is_nearest(float f, uint16_t h)
{
    double d = fabs((double)k_half_to_float(h) - (double)f);
    uint16_t near[2] = { (uint16_t)(h - 1), (uint16_t)(h + 1) };

    for (int i = 0; i < 2; i++) {
        double v = (double)k_half_to_float(near[i]), other = fabs(v - (double)f);

        if ((near[i] & 0x7c00) != 0x7c00 && (other < d || (other == d && (h & 1))))
            return false;
    }
    return true;
}

static void check_half(struct check *c)
{
    struct rng r = { 3 };
    bool same = true, nearest = true, bf = true;

    for (uint32_t h = 0; h < 0x10000; h++)
        if ((h & 0x7fff) <= 0x7c00)
            same = same && k_float_to_half(k_half_to_float((uint16_t)h)) == h;
    expect(c, same, "half to float and back");
    for (int i = 0; i < 200000; i++) {
        float f = ldexpf(rng_float(&r), (int)(rng_next(&r) % 42) - 26);

        nearest = nearest && is_nearest(f, k_float_to_half(f));
    }
    expect(c, nearest, "float to half is not the nearest");
    expect(c, k_float_to_half(65519.0f) == 0x7bff && k_float_to_half(65520.0f) == 0x7c00,
           "the largest half");
    expect(c, k_float_to_half(-INFINITY) == 0xfc00 && isnan(k_half_to_float(k_float_to_half(NAN))),
           "infinity and NaN as half");
    expect(c, k_half_to_float(1) == 0x1p-24f && k_half_to_float(0x8000) == 0, "small halves");
    for (uint32_t b = 0; b < 0x10000; b++)
        if ((b & 0x7fff) <= 0x7f80)
            bf = bf && k_float_to_bf16(k_bf16_to_float((uint16_t)b)) == b;
    expect(c,
           bf && k_float_to_bf16(bits(0x3f808000)) == 0x3f80 &&
               k_float_to_bf16(bits(0x3f818000)) == 0x3f82,
           "bfloat16 rounds to even");
}

/* One block of each of the simple formats, by hand. */
static void check_simple(struct check *c)
{
    uint8_t q8[34] = { 0x00, 0x38 }, q41[20] = { 0x00, 0x38, 0x00, 0x3c }; /* d = 0.5, m = 1 */
    uint8_t q40[18] = { 0x00, 0x38 }, q50[22] = { 0x00, 0x38 },
            q51[24] = { 0x00, 0x38, 0x00, 0x3c };
    float out[32];

    q8[2] = 0x80;
    q8[33] = 127;
    k_dequant(K_Q8_0, out, q8, 32);
    expect(c, out[0] == -64 && out[1] == 0 && out[31] == 63.5f, "Q8_0");
    q41[4] = q40[2] = 0xf3;
    k_dequant(K_Q4_1, out, q41, 32);
    expect(c, out[0] == 2.5f && out[16] == 8.5f && out[1] == 1, "Q4_1");
    k_dequant(K_Q4_0, out, q40, 32);
    expect(c, out[0] == -2.5f && out[16] == 3.5f && out[1] == -4, "Q4_0");
    q50[2] = q51[4] = 1;    /* fifth bit of weight 0 */
    q50[5] = q51[7] = 0x80; /* of weight 31 */
    q50[6] = q51[8] = 3;
    k_dequant(K_Q5_0, out, q50, 32);
    expect(c, out[0] == 1.5f && out[31] == 0 && out[1] == -8, "Q5_0");
    k_dequant(K_Q5_1, out, q51, 32);
    expect(c, out[0] == 10.5f && out[31] == 9 && out[1] == 1, "Q5_1");
}

/* Element i of a super-block, computed from the definition of the format. */
static float k_element(enum k_type type, const uint8_t *p, uint32_t i)
{
    uint32_t sub = i / 32, l = i % 32;
    uint16_t h[2];

    if (type == K_Q6_K) {
        uint32_t n = i / 128, in = i % 128, quarter = in / 32;
        const uint8_t *ql = p + 64 * n, *qh = p + 128 + 32 * n;
        uint32_t low = quarter < 2 ? ql[in] & 15u : ql[in - 64] >> 4;
        uint32_t high = qh[l] >> (2 * quarter) & 3;

        memcpy(h, p + 208, 2);
        return k_half_to_float(h[0]) * (float)(int8_t)p[192 + i / 16] *
               (float)((int)(low | high << 4) - 32);
    }
    const uint8_t *s = p + 4, *ql = p + (type == K_Q5_K ? 48 : 16) + 32 * (sub / 2);
    uint32_t sc = sub < 4 ? s[sub] & 63u : (s[sub + 4] & 15u) | (uint32_t)(s[sub - 4] >> 6) << 4;
    uint32_t mn = sub < 4 ? s[sub + 4] & 63u
                          : (uint32_t)s[sub + 4] >> 4 | (uint32_t)(s[sub] >> 6) << 4;
    uint32_t q = sub % 2 ? ql[l] >> 4 : ql[l] & 15u;

    if (type == K_Q5_K)
        q |= (p[16 + l] >> sub & 1u) << 4;
    memcpy(h, p, 4);
    return k_half_to_float(h[0]) * (float)sc * (float)q - k_half_to_float(h[1]) * (float)mn;
}

static void check_k_quants(struct check *c)
{
    static const enum k_type types[] = { K_Q4_K, K_Q5_K, K_Q6_K };
    struct rng r = { 4 };
    float out[1024];

    for (int t = 0; t < 3; t++) {
        uint8_t *p = random_weights(&r, types[t], 1024);
        bool same = true;

        k_dequant(types[t], out, p, 1024);
        for (uint32_t i = 0; i < 1024; i++)
            same = same && out[i] == k_element(types[t], p + i / 256 * k_type_info[types[t]].bytes,
                                               i % 256);
        expect(c, same, "%s is not what its definition says", k_type_info[types[t]].name);
        free(p);
    }
}

void check_types(struct check *c)
{
    check_half(c);
    check_simple(c);
    check_k_quants(c);
}
