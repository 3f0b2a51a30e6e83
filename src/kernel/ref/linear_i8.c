/* linear of int8 weights in portable C. Sums wrap, as those of the vector code: codes stand with 128
 * added, so that a sum may leave int32 on its way before the 128 are taken off. */
#include "kernel/ref/ref.h"

#include <math.h>
#include <string.h>

static int8_t to_i8(double v)
{
    v = rint(v);
    return (int8_t)(v > -128 ? v < 127 ? v : 127 : -128);
}

static int32_t fill_up(int8_t *q, uint32_t cols)
{
    int32_t sum = 0;

    for (uint32_t c = 0; c < cols; c++)
        sum += q[c];
    memset(q + cols, 0, i8_stride(cols) - cols);
    return sum;
}

void ref_i8_row(void *out, float *scale, int32_t *sum, const float *x, uint32_t cols)
{
    int8_t *q = out;
    float max = 0;

    for (uint32_t c = 0; c < cols; c++)
        max = fabsf(x[c]) > max ? fabsf(x[c]) : max;
    *scale = max / 127;
    for (uint32_t c = 0; c < cols; c++)
        q[c] = *scale > 0 ? to_i8((double)(x[c] / *scale)) : 0;
    *sum = fill_up(q, cols);
}

void ref_i8_static_row(void *out, int32_t *sum, const float *x, uint32_t cols, float scale,
                       float offset)
{
    int8_t *q = out;

    for (uint32_t c = 0; c < cols; c++)
        q[c] = to_i8((double)x[c] / (double)scale + (double)offset);
    *sum = fill_up(q, cols);
}

/* (float)(sums of one row, bias added) times the scales, in the order that kernel.h says. */
static void store(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r,
                  const uint32_t *acc)
{
    uint32_t panel = job->w->panel, col = p * panel;
    uint32_t lanes = s->rows - col < panel ? s->rows - col : panel;
    const float *scale = (const float *)s->scale + (size_t)p * panel;
    const int32_t *bias = s->fixed ? (const int32_t *)s->min + (size_t)p * panel : NULL;
    float *y = job->y + r * job->ldy + s->row0 + col;

    for (uint32_t lane = 0; lane < lanes; lane++) {
        float v = bias ? (float)(int32_t)(acc[lane] + (uint32_t)bias[lane]) * scale[lane]
                       : (float)(int32_t)acc[lane] * job->a->i8.scale[r] * scale[lane];

        y[lane] = job->accumulate ? y[lane] + v : v;
    }
}

void ref_linear_i8(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                   uint32_t r0, uint32_t r1)
{
    const struct k_act_i8 *a = seg->fixed ? &job->a->i8s : &job->a->i8;
    uint32_t panel = job->w->panel, stride = i8_stride(job->w->cols);

    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t r = r0; r < r1; r++) {
            const int8_t *x = (const int8_t *)a->q + (size_t)r * stride;
            const uint8_t *w = seg->q + p * seg->q_bytes;
            uint32_t acc[K_MAX_PANEL];

            for (uint32_t lane = 0; lane < panel; lane++)
                acc[lane] = (uint32_t)(-128 * a->sum[r]);
            for (uint32_t c = 0; c < job->w->blocks * K_BLOCK; c += 4)
                for (uint32_t lane = 0; lane < panel; lane++, w += 4)
                    acc[lane] += (uint32_t)(w[0] * x[c] + w[1] * x[c + 1] + w[2] * x[c + 2] +
                                            w[3] * x[c + 3]);
            store(job, seg, p, r, acc);
        }
}
