/* Operations on single rows. */
#include "kernel/x86/vec.h"

#include <math.h>

static void quant_row(int8_t *q, float *scale, int32_t *isum, float *fsum, const float *x,
                      uint32_t cols)
{
    for (uint32_t b = 0; b < cols / K_BLOCK; b++, x += K_BLOCK, q += K_BLOCK) {
        vec v[K_BLOCK / LANES], top = v_zero(), inv;
        veci sum[2] = { i_zero(), i_zero() };
        float max;

        for (int i = 0; i < K_BLOCK / LANES; i++) {
            v[i] = v_load(x + i * LANES);
            top = v_max(top, v_abs(v[i]));
        }
        max = v_max_lane(top);
        scale[b] = max / 127;
        inv = v_splat(max > 0 ? 127 / max : 0);
        for (int i = 0; i < K_BLOCK / LANES; i++) {
            veci n = i32_from_v(v_mul(v[i], inv));

            i_store_low8(q + i * LANES, n);
            sum[i * LANES / 16] = i_add32(sum[i * LANES / 16], n);
        }
        isum[2 * b] = i_sum32(sum[0]);
        isum[2 * b + 1] = i_sum32(i_add32(sum[0], sum[1]));
        fsum[b] = scale[b] * (float)isum[2 * b + 1];
    }
}

static void norm_row(float *y, const float *x, const float *gain, uint32_t cols, float eps)
{
    vec sum[4] = { v_zero(), v_zero(), v_zero(), v_zero() }, r;
    uint32_t i;

    for (i = 0; i + 4 * LANES <= cols; i += 4 * LANES)
        for (int j = 0; j < 4; j++) {
            vec v = v_load(x + i + (uint32_t)j * LANES);

            sum[j] = v_fma(v, v, sum[j]);
        }
    for (; i < cols; i += LANES) {
        vec v = v_load_part(first_lanes(cols - i), x + i);

        sum[0] = v_fma(v, v, sum[0]);
    }
    sum[0] = v_add(v_add(sum[0], sum[1]), v_add(sum[2], sum[3]));
    r = v_splat(1 / sqrtf(v_sum(sum[0]) / (float)cols + eps));
    for (i = 0; i < cols; i += LANES) {
        mask m = first_lanes(cols - i);

        v_store_part(m, y + i, v_mul(v_mul(v_load_part(m, x + i), r), v_load_part(m, gain + i)));
    }
}

static void swiglu_row(float *y, const float *x, uint32_t cols)
{
    for (uint32_t i = 0; i < cols; i += LANES) {
        mask m = first_lanes(cols - i);
        vec g = v_load_part(m, x + i), u = v_load_part(m, x + cols + i);

        v_store_part(m, y + i, v_mul(v_div(g, v_add(v_splat(1), v_exp(v_sub(v_zero(), g)))), u));
    }
}

static void rope_halves(float *x, const float *cos, const float *sin, uint32_t half)
{
    for (uint32_t i = 0; i < half; i += LANES) {
        mask m = first_lanes(half - i);
        vec c = v_load_part(m, cos + i), s = v_load_part(m, sin + i);
        vec a = v_load_part(m, x + i), b = v_load_part(m, x + half + i);

        v_store_part(m, x + i, v_fnma(b, s, v_mul(a, c)));
        v_store_part(m, x + half + i, v_fma(a, s, v_mul(b, c)));
    }
}

static void rope_pairs(float *x, const float *cos, const float *sin, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i += LANES) {
        mask m = first_lanes(dim - i);
        vec c = v_load_twice(cos + i / 2, (dim - i) / 2),
            s = v_load_twice(sin + i / 2, (dim - i) / 2);
        vec v = v_load_part(m, x + i);

        v_store_part(m, x + i, v_fmaddsub(v, c, v_mul(v_swap_pairs(v), s)));
    }
}

static void rope_head(float *x, const float *cos, const float *sin, const struct k_rope *rope)
{
    if (rope->style == K_ROPE_PAIRS)
        rope_pairs(x, cos, sin, rope->dim);
    else
        rope_halves(x, cos, sin, rope->dim / 2);
}

/* n numbers, converted to the cache's type. */
static void put_row(const struct k_kv *kv, void *to, size_t at, const float *x, uint32_t n)
{
    for (uint32_t d = 0; d < n; d += LANES) {
        if (kv->type == K_F32)
            v_store((float *)to + at + d, v_load(x + d));
        else
            v_store_half((uint16_t *)to + at + d, v_load(x + d));
    }
}

/* A token's key is a column of the group; heads are turned 16 dims at a time. */
static void put_key(const struct k_kv *kv, void *k, uint32_t lane, const float *key)
{
    for (uint32_t d = 0; d < kv->head_dim; d += 16) {
        size_t to = (size_t)d * KV_GROUP + lane;
        uint16_t half[16];

        if (kv->type == K_F32) {
            for (uint32_t j = 0; j < 16; j++)
                ((float *)k)[to + j * KV_GROUP] = key[d + j];
            continue;
        }
        for (uint32_t j = 0; j < 16; j += LANES)
            v_store_half(half + j, v_load(key + d + j));
        for (uint32_t j = 0; j < 16; j++)
            ((uint16_t *)k)[to + j * KV_GROUP] = half[j];
    }
}

static void kv_put(const struct k_kv *kv, void *k, void *v, uint32_t lane, uint32_t n,
                   const float *key, const float *value, size_t ld)
{
    for (uint32_t t = 0; t < n; t++, key += ld, value += ld) {
        put_key(kv, k, lane + t, key);
        put_row(kv, v, (size_t)t * kv->head_dim, value, kv->head_dim);
    }
}

void ISA(rows_fill)(struct cpu_impl *f)
{
    f->panel = LANES;
    f->turn = ISA(turn);
    f->quant_row = quant_row;
    f->norm_row = norm_row;
    f->swiglu_row = swiglu_row;
    f->rope_head = rope_head;
    f->kv_put = kv_put;
}
