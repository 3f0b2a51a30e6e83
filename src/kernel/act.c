/* Activations: the buffers that linear() reads. */
#include "base/status.h"
#include "kernel/cpu.h"
#include "kernel/i8.h"

#include <stdlib.h>

/* Bytes that linear() may unpack a unit of panels into: floats, or codes with their scales. */
static size_t scratch_size(uint32_t max_cols, uint32_t forms)
{
    size_t weights = (size_t)K_UNIT * K_MAX_PANEL * (max_cols + K_BLOCK);

    return forms & K_FORM_F32 ? weights * sizeof(float) : weights + weights / 2;
}

static size_t bf16_count(const struct k_act *a)
{
    return (size_t)a->max_tokens * bf16_stride(a->max_cols);
}

int act_create(const struct kernels *k, struct k_act **out, uint32_t max_tokens, uint32_t max_cols,
               uint32_t forms)
{
    struct k_act *a = calloc(1, sizeof *a);
    size_t n = (size_t)max_tokens * max_cols, blocks = n / K_BLOCK;
    bool ok = true;

    if (!a)
        return ERR_NOMEM;
    if (forms & K_FORM_I8S) /* made of the floats */
        forms |= K_FORM_F32;
    a->forms = forms;
    a->max_tokens = max_tokens;
    a->max_cols = max_cols;
    a->scratch_bytes = (scratch_size(max_cols, forms) + 63) & ~(size_t)63;
    if (forms & K_FORM_F32)
        ok = (a->f = k->alloc(k, n * sizeof *a->f)) != NULL;
    if (forms & K_FORM_Q8)
        ok = ok && (a->q = k->alloc(k, n)) && (a->scale = k->alloc(k, blocks * sizeof *a->scale)) &&
             (a->isum = k->alloc(k, 2 * blocks * sizeof *a->isum)) &&
             (a->fsum = k->alloc(k, blocks * sizeof *a->fsum));
    if (forms & K_FORM_BF16)
        ok = ok && (a->bf16 = k->alloc(k, bf16_count(a) * sizeof *a->bf16)) &&
             (a->bf16_wide = k->alloc(k, bf16_count(a) * sizeof *a->bf16_wide));
    ok = ok && act_i8_create(k, a) == 0;
    ok = ok && (a->scratch = k->alloc(k, k->threads * a->scratch_bytes));
    if (!ok) {
        act_destroy(k, a);
        return ERR_NOMEM;
    }
    *out = a;
    return 0;
}

void act_destroy(const struct kernels *k, struct k_act *a)
{
    size_t n, blocks;

    if (!a)
        return;
    n = (size_t)a->max_tokens * a->max_cols;
    blocks = n / K_BLOCK;
    k->free(k, a->f, n * sizeof *a->f);
    k->free(k, a->q, n);
    k->free(k, a->scale, blocks * sizeof *a->scale);
    k->free(k, a->isum, 2 * blocks * sizeof *a->isum);
    k->free(k, a->fsum, blocks * sizeof *a->fsum);
    k->free(k, a->bf16, bf16_count(a) * sizeof *a->bf16);
    k->free(k, a->bf16_wide, bf16_count(a) * sizeof *a->bf16_wide);
    act_i8_destroy(k, a);
    k->free(k, a->scratch, k->threads * a->scratch_bytes);
    free(a);
}

static void *skip(void *p, size_t bytes)
{
    return p ? (char *)p + bytes : NULL;
}

struct k_act act_from(const struct kernels *k, const struct k_act *a, uint32_t row)
{
    size_t n = (size_t)row * a->cols, blocks = n / K_BLOCK;
    size_t bf16 = (size_t)row * bf16_stride(a->cols);
    size_t i8 = (size_t)row * i8_stride(a->cols) * cpu_of(k)->impl.i8_bytes;
    struct k_act v = *a;

    v.f = skip(a->f, n * sizeof *a->f);
    v.q = skip(a->q, n);
    v.scale = skip(a->scale, blocks * sizeof *a->scale);
    v.isum = skip(a->isum, 2 * blocks * sizeof *a->isum);
    v.fsum = skip(a->fsum, blocks * sizeof *a->fsum);
    v.bf16 = skip(a->bf16, bf16 * sizeof *a->bf16);
    v.bf16_wide = skip(a->bf16_wide, bf16 * sizeof *a->bf16_wide);
    v.i8 = (struct k_act_i8){ skip(a->i8.q, i8), skip(a->i8.scale, row * sizeof *a->i8.scale),
                              skip(a->i8.sum, row * sizeof *a->i8.sum) };
    v.i8s = (struct k_act_i8){ skip(a->i8s.q, i8), NULL,
                               skip(a->i8s.sum, row * sizeof *a->i8s.sum) };
    return v;
}
