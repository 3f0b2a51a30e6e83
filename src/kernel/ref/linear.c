/* linear in portable C, over the same panels as the vector code: lanes are the inner loop, which a
 * compiler makes vectors of. */
#include "kernel/ref/ref.h"

#include <string.h>

static float scale_at(const struct k_seg *s, const void *p, size_t i)
{
    return s->fmt.wide_scale ? ((const float *)p)[i] : k_half_to_float(((const uint16_t *)p)[i]);
}

/* Codes of one block, [step][lane][4]. */
static const uint8_t *codes(const struct k_seg *s, const uint8_t *q, uint8_t *out, uint32_t panel)
{
    if (s->fmt.bits == 8)
        return q;
    for (uint32_t i = 0; i < 16 * panel; i++) {
        out[i] = q[i] & 15;
        out[16 * panel + i] = q[i] >> 4;
    }
    for (uint32_t step = 0; s->fmt.bits > 4 && step < 8; step++) {
        const uint8_t *extra = q + (16 + 4 * extra_plane(s->fmt.bits, step)) * panel;
        uint32_t shift = extra_shift(s->fmt.bits, step), mask = (1u << (s->fmt.bits - 4)) - 1;

        for (uint32_t i = 0; i < 4 * panel; i++)
            out[4 * panel * step + i] |= (uint8_t)((uint32_t)extra[i] >> shift & mask) << 4;
    }
    return out;
}

static void dot_half(int32_t dot[K_MAX_PANEL], const uint8_t *w, const int8_t *a, uint32_t panel,
                     int32_t bias)
{
    int32_t sum = 0;

    for (uint32_t c = 0; c < 16; c++)
        sum += a[c];
    for (uint32_t lane = 0; lane < panel; lane++)
        dot[lane] = -bias * sum;
    for (uint32_t step = 0; step < 4; step++, a += 4)
        for (uint32_t lane = 0; lane < panel; lane++, w += 4)
            dot[lane] += w[0] * a[0] + w[1] * a[1] + w[2] * a[2] + w[3] * a[3];
}

/* One block of one panel into the sums of one row. */
static void int_block(float acc[K_MAX_PANEL], const struct k_seg *s, const uint8_t *w,
                      const float scale[2][K_MAX_PANEL], const float *min, const struct k_act *a,
                      size_t block, uint32_t panel)
{
    const int8_t *x = a->q + block * K_BLOCK;
    int32_t lo[K_MAX_PANEL], hi[K_MAX_PANEL];

    dot_half(lo, w, x, panel, s->fmt.bias);
    dot_half(hi, w + 16 * panel, x + 16, panel, s->fmt.bias);
    for (uint32_t lane = 0; lane < panel; lane++) {
        float d = s->fmt.halves
                      ? scale[0][lane] * (float)lo[lane] + scale[1][lane] * (float)hi[lane]
                      : scale[0][lane] * (float)(lo[lane] + hi[lane]);

        acc[lane] += a->scale[block] * d;
        if (s->fmt.has_min)
            acc[lane] += a->fsum[block] * min[lane];
    }
}

static void load_scales(const struct k_seg *s, uint32_t p, uint32_t b, uint32_t panel,
                        float scale[2][K_MAX_PANEL], float *min)
{
    size_t per = s->fmt.halves ? 2 : 1, at = p * s->scale_count + b * per * panel;

    for (uint32_t lane = 0; lane < panel; lane++) {
        scale[0][lane] = scale_at(s, s->scale, at + lane);
        scale[1][lane] = s->fmt.halves ? scale_at(s, s->scale, at + panel + lane) : scale[0][lane];
        min[lane] = s->fmt.has_min
                        ? scale_at(s, s->min, p * s->min_count + (size_t)b * panel + lane)
                        : 0;
    }
}

/* Sums in scratch, [row][lane], so that a block is decoded once for all rows. */
static void int_panel(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r0,
                      uint32_t n, float *acc)
{
    uint32_t panel = job->w->panel, blocks = job->w->blocks;
    uint8_t unpacked[K_BLOCK * K_MAX_PANEL];
    float scale[2][K_MAX_PANEL], min[K_MAX_PANEL];

    for (uint32_t b = 0; b < blocks; b++) {
        const uint8_t *q = s->q + p * s->q_bytes + (size_t)b * K_BLOCK * panel * s->fmt.bits / 8;
        const uint8_t *w = codes(s, q, unpacked, panel);

        load_scales(s, p, b, panel, scale, min);
        for (uint32_t r = 0; r < n; r++)
            int_block(acc + r * panel, s, w, scale, min, job->a, (size_t)(r0 + r) * blocks + b,
                      panel);
    }
}

/* The scales of the 128 inputs that block b belongs to. */
static void f8_scale(float *w, const float *scale, uint32_t b, uint32_t panel)
{
    scale += (size_t)(b * K_BLOCK / K_F8_BLOCK) * panel;
    for (uint32_t c = 0; c < K_BLOCK; c++)
        for (uint32_t lane = 0; lane < panel; lane++)
            w[c * panel + lane] *= scale[lane];
}

/* Weights of one block as floats, [32][lane]. */
static void float_block(const struct k_seg *s, uint32_t p, uint32_t b, uint32_t panel, float *w)
{
    size_t n = (size_t)K_BLOCK * panel, at = b * n;
    uint8_t unpacked[K_BLOCK * K_MAX_PANEL];
    float scale[2][K_MAX_PANEL], min[K_MAX_PANEL];
    const uint8_t *q = s->q + p * s->q_bytes;

    if (!s->fmt.bits) {
        enum k_type type = s->type;

        k_dequant(type, w, q + at * k_type_info[type].bytes, n);
        if (type == K_F8_E4M3)
            f8_scale(w, (const float *)s->scale + p * s->scale_count, b, panel);
        return;
    }
    q = codes(s, q + at * s->fmt.bits / 8, unpacked, panel);
    load_scales(s, p, b, panel, scale, min);
    for (uint32_t c = 0; c < K_BLOCK; c++)
        for (uint32_t lane = 0; lane < panel; lane++) {
            int code = q[(c / 4 * panel + lane) * 4 + c % 4] - s->fmt.bias;
            float v = scale[c / 16][lane] * (float)code;

            w[c * panel + lane] = s->fmt.has_min ? v + min[lane] : v;
        }
}

static void float_panel(const struct linear_job *job, const struct k_seg *s, uint32_t p,
                        uint32_t r0, uint32_t n, float *acc)
{
    uint32_t panel = job->w->panel, cols = job->w->cols;
    float w[K_BLOCK * K_MAX_PANEL];

    for (uint32_t b = 0; b < job->w->blocks; b++) {
        uint32_t from = b * K_BLOCK, to = from + K_BLOCK < cols ? from + K_BLOCK : cols;

        float_block(s, p, b, panel, w);
        for (uint32_t r = 0; r < n; r++) {
            const float *x = job->a->f + (size_t)(r0 + r) * cols;
            float part[K_MAX_PANEL] = { 0 };

            for (uint32_t c = from; c < to; c++)
                for (uint32_t lane = 0; lane < panel; lane++)
                    part[lane] += x[c] * w[(c - from) * panel + lane];
            for (uint32_t lane = 0; lane < panel; lane++)
                acc[r * panel + lane] += part[lane];
        }
    }
}

static void store(const struct linear_job *job, const struct k_seg *s, uint32_t p, uint32_t r0,
                  uint32_t n, const float *acc)
{
    uint32_t panel = job->w->panel, col = p * panel;
    uint32_t lanes = s->rows - col < panel ? s->rows - col : panel;

    for (uint32_t r = 0; r < n; r++) {
        float *y = job->y + (r0 + r) * job->ldy + s->row0 + col;

        for (uint32_t lane = 0; lane < lanes; lane++)
            y[lane] = job->accumulate ? y[lane] + acc[r * panel + lane] : acc[r * panel + lane];
    }
}

/* Rows whose sums are kept at a time. */
#define ROWS 64

void ref_linear(const struct linear_job *job, const struct k_seg *seg, uint32_t p0, uint32_t p1,
                uint32_t r0, uint32_t r1, void *scratch)
{
    float acc[ROWS * K_MAX_PANEL];

    (void)scratch;
    if (seg->type == K_I8) {
        ref_linear_i8(job, seg, p0, p1, r0, r1);
        return;
    }
    for (uint32_t p = p0; p < p1; p++)
        for (uint32_t r = r0; r < r1; r += ROWS) {
            uint32_t n = r1 - r < ROWS ? r1 - r : ROWS;

            memset(acc, 0, sizeof acc);
            if (seg_is_int(job->w, seg))
                int_panel(job, seg, p, r, n, acc);
            else
                float_panel(job, seg, p, r, n, acc);
            store(job, seg, p, r, n, acc);
        }
}
