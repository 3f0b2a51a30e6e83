/* int8 weights with a scale an output (K_I8), and what linear() reads beside them: activations with
 * one scale a token, or one scale for all. The products are in ref/linear_i8.c and x86/linear_i8.c. */
#include "kernel/i8.h"

#include "base/status.h"
#include "kernel/cpu.h"

#include <assert.h>
#include <string.h>

/* The sum of the products of 8-bit numbers over all inputs fits int32. */
#define MAX_COLS ((1u << 17) - K_BLOCK)

static bool same_scale(const struct k_static *a, const struct k_static *b)
{
    return a->input_scale == b->input_scale && a->input_offset == b->input_offset;
}

int i8_check(const struct k_part *parts, uint32_t n_parts, uint32_t cols, struct err *e)
{
    const struct k_static *fixed = NULL;

    for (const struct k_part *p = parts; p < parts + n_parts; p++) {
        if (p->type != K_I8)
            continue;
        if (cols > MAX_COLS)
            return err_set(e, ERR_UNSUPPORTED,
                           "int8 rows of %u columns: sums over more than %u do not fit 32 bits",
                           cols, MAX_COLS);
        if (p->fixed ? !p->fixed->deq : !p->scale)
            return err_set(e, ERR_UNSUPPORTED, "int8 weights of %u rows have no scales", p->rows);
        if (fixed && p->fixed && !same_scale(fixed, p->fixed))
            return err_set(e, ERR_UNSUPPORTED,
                           "int8 weights with input scales %g and %g (offsets %g and %g) cannot "
                           "share a matrix",
                           (double)fixed->input_scale, (double)p->fixed->input_scale,
                           (double)fixed->input_offset, (double)p->fixed->input_offset);
        fixed = p->fixed ? p->fixed : fixed;
    }
    return 0;
}

void i8_layout(struct k_matrix *m, struct k_seg *s, const struct k_part *part)
{
    s->q_bytes = (size_t)m->blocks * K_BLOCK * m->panel;
    s->scale_count = m->panel;
    s->fixed = part->fixed != NULL;
    if (!s->fixed)
        return;
    s->min_count = m->panel;
    m->has_fixed = true;
    m->fixed = (struct k_static){ part->fixed->input_scale, part->fixed->input_offset, NULL, NULL };
}

/* Codes of a step: bytes [lane][4], 128 added. n inputs are there. */
static void put_step(uint8_t *q, const uint8_t *const *row, uint32_t lanes, uint32_t c, uint32_t n)
{
    for (uint32_t lane = 0; lane < lanes; lane++, q += 4) {
        uint32_t v = 0;

        memcpy(&v, row[lane] + c, n);
        v ^= 0x80808080;
        memcpy(q, &v, sizeof v);
    }
}

static void put_codes(const struct kernels *k, const struct k_matrix *m, uint8_t *q,
                      const uint8_t *const *row, uint32_t lanes)
{
    uint32_t whole = m->cols & ~3u, c = 0;

    if (lanes == m->panel) {
        cpu_of(k)->impl.turn(q, row, lanes, whole / 4, 4, 0x80808080);
        c = whole;
        q += (size_t)whole * m->panel;
    }
    for (; c < whole; c += 4, q += 4 * m->panel)
        put_step(q, row, lanes, c, 4);
    if (c < m->cols)
        put_step(q, row, lanes, c, m->cols - c);
}

void i8_pack_panel(const struct kernels *k, const struct k_matrix *m, const struct k_seg *s,
                   const struct k_part *part, uint32_t p)
{
    float *scale = (float *)s->scale + (size_t)p * m->panel;
    int32_t *bias = s->fixed ? (int32_t *)s->min + (size_t)p * m->panel : NULL;
    uint32_t from = p * m->panel, lanes = s->rows - from < m->panel ? s->rows - from : m->panel;
    const uint8_t *row[K_MAX_PANEL];

    for (uint32_t lane = 0; lane < lanes; lane++) {
        uint32_t r = part->row_map ? part->row_map[from + lane] : from + lane;

        row[lane] = (const uint8_t *)part->data + r * part->stride;
        scale[lane] = part->fixed ? part->fixed->deq[r] : part->scale[r];
        if (bias && part->fixed->bias)
            bias[lane] = part->fixed->bias[r];
    }
    put_codes(k, m, s->q + p * s->q_bytes, row, lanes);
}

void i8_get_row(const struct k_matrix *m, const struct k_seg *s, uint32_t r, float *dst)
{
    uint32_t p = r / m->panel, lane = r % m->panel;
    const uint8_t *q = s->q + p * s->q_bytes + 4 * lane;
    float scale = ((const float *)s->scale)[r];

    if (s->fixed)
        scale /= m->fixed.input_scale;
    for (uint32_t c = 0; c < m->cols; c++)
        dst[c] = scale * (float)(q[(size_t)(c / 4) * 4 * m->panel + c % 4] - 128);
}

int act_i8_create(const struct kernels *k, struct k_act *a)
{
    size_t n = (size_t)a->max_tokens * i8_stride(a->max_cols) * cpu_of(k)->impl.i8_bytes;

    a->i8_bytes = cpu_of(k)->impl.i8_bytes;
    for (uint32_t i = 0; i < 2; i++) {
        struct k_act_i8 *x = i ? &a->i8s : &a->i8;

        if (!(a->forms & (i ? K_FORM_I8S : K_FORM_I8)))
            continue;
        x->q = k->alloc(k, n);
        x->scale = k->alloc(k, a->max_tokens * sizeof *x->scale);
        x->sum = k->alloc(k, a->max_tokens * sizeof *x->sum);
        if (!x->q || !x->scale || !x->sum)
            return ERR_NOMEM;
    }
    return 0;
}

void act_i8_destroy(const struct kernels *k, struct k_act *a)
{
    size_t n = (size_t)a->max_tokens * i8_stride(a->max_cols) * a->i8_bytes;

    for (uint32_t i = 0; i < 2; i++) {
        struct k_act_i8 *x = i ? &a->i8s : &a->i8;

        k->free(k, x->q, n);
        k->free(k, x->scale, a->max_tokens * sizeof *x->scale);
        k->free(k, x->sum, a->max_tokens * sizeof *x->sum);
    }
}

void act_i8_row(const struct kernels *k, struct k_act *a, uint32_t i, const float *x, uint32_t cols)
{
    const struct cpu_impl *f = &cpu_of(k)->impl;

    f->i8_row(a->i8.q + (size_t)i * i8_stride(cols) * a->i8_bytes, &a->i8.scale[i], &a->i8.sum[i],
              x, cols);
}

void act_static_row(const struct kernels *k, struct k_act *a, uint32_t i, float scale, float offset)
{
    const struct cpu_impl *f = &cpu_of(k)->impl;

    f->i8_static_row(a->i8s.q + (size_t)i * i8_stride(a->cols) * a->i8_bytes, &a->i8s.sum[i],
                     a->f + (size_t)i * a->cols, a->cols, scale, offset);
}
