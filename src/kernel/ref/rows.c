/* Operations on single rows, and the table of portable versions. */
#include "kernel/ref/ref.h"

#include <math.h>
#include <string.h>

static void quant_row(int8_t *q, float *scale, int32_t *isum, float *fsum, const float *x,
                      uint32_t cols)
{
    for (uint32_t b = 0; b < cols / K_BLOCK; b++, x += K_BLOCK, q += K_BLOCK) {
        float max = 0, inv;
        int32_t sum = 0;

        for (int j = 0; j < K_BLOCK; j++)
            max = fabsf(x[j]) > max ? fabsf(x[j]) : max;
        scale[b] = max / 127;
        inv = max > 0 ? 127 / max : 0;
        for (int j = 0; j < K_BLOCK; j++) {
            float v = rintf(x[j] * inv);

            q[j] = (int8_t)(v > 127 ? 127 : v < -127 ? -127 : v);
            sum += q[j];
            if (j == K_BLOCK / 2 - 1)
                isum[2 * b] = sum;
        }
        isum[2 * b + 1] = sum;
        fsum[b] = scale[b] * (float)sum;
    }
}

static void bf16_row(uint16_t *y, float *wide, const float *x, uint32_t cols)
{
    for (uint32_t c = 0; c < bf16_stride(cols); c++) {
        y[c] = c < cols ? k_float_to_bf16(x[c]) : 0;
        wide[c] = k_bf16_to_float(y[c]);
    }
}

static void norm_row(float *y, const float *x, const float *gain, uint32_t cols, float eps)
{
    float part[16] = { 0 }, sum = 0, r;
    uint32_t i;

    for (i = 0; i + 16 <= cols; i += 16)
        for (int j = 0; j < 16; j++)
            part[j] += x[i + j] * x[i + j];
    for (; i < cols; i++)
        part[i % 16] += x[i] * x[i];
    for (int j = 0; j < 16; j++)
        sum += part[j];
    r = 1 / sqrtf(sum / (float)cols + eps);
    for (i = 0; i < cols; i++)
        y[i] = x[i] * r * gain[i];
}

static void swiglu_row(float *y, const float *x, uint32_t cols)
{
    for (uint32_t i = 0; i < cols; i++)
        y[i] = x[i] / (1 + expf(-x[i])) * x[cols + i];
}

static void rope_head(float *x, const float *cos, const float *sin, const struct k_rope *rope)
{
    uint32_t half = rope->dim / 2;

    for (uint32_t i = 0; i < half; i++) {
        float *a = rope->style == K_ROPE_PAIRS ? x + 2 * i : x + i;
        float *b = rope->style == K_ROPE_PAIRS ? a + 1 : a + half;
        float re = *a * cos[i] - *b * sin[i], im = *b * cos[i] + *a * sin[i];

        *a = re;
        *b = im;
    }
}

void ref_kv_put(const struct k_kv *kv, void *k, void *v, uint32_t lane, uint32_t n,
                const float *key, const float *value, size_t ld)
{
    for (uint32_t t = 0; t < n; t++, key += ld, value += ld)
        for (uint32_t d = 0; d < kv->head_dim; d++) {
            size_t at_k = (size_t)d * KV_GROUP + lane + t, at_v = (size_t)t * kv->head_dim + d;

            if (kv->type == K_F32) {
                ((float *)k)[at_k] = key[d];
                ((float *)v)[at_v] = value[d];
            } else {
                ((uint16_t *)k)[at_k] = k_float_to_half(key[d]);
                ((uint16_t *)v)[at_v] = k_float_to_half(value[d]);
            }
        }
}

void cpu_fill_ref(struct cpu_impl *f)
{
    f->panel = 16;
    f->turn = ref_turn;
    f->quant_row = quant_row;
    f->bf16_row = bf16_row;
    f->i8_bytes = 1;
    f->i8_row = ref_i8_row;
    f->i8_static_row = ref_i8_static_row;
    f->norm_row = norm_row;
    f->swiglu_row = swiglu_row;
    f->linear = ref_linear;
    f->rope_head = rope_head;
    f->kv_put = ref_kv_put;
    f->attend_sum = ref_attend_sum;
    f->attend_add = ref_attend_add;
    f->attend_finish = ref_attend_finish;
    f->row_store = ref_row_store;
    f->row_load = ref_row_load;
    f->latent_queries = ref_latent_queries;
    f->latent_sum = ref_latent_sum;
    f->latent_add = ref_latent_add;
    f->latent_finish = ref_latent_finish;
}
