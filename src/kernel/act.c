/* Activations: the buffers that linear() reads. */
#include "base/status.h"
#include "kernel/cpu.h"

#include <stdlib.h>

/* Bytes that linear() may unpack a unit of panels into: floats, or codes with their scales. */
static size_t scratch_size(uint32_t max_cols, uint32_t forms)
{
    size_t weights = (size_t)K_UNIT * K_MAX_PANEL * (max_cols + K_BLOCK);

    return forms & K_FORM_F32 ? weights * sizeof(float) : weights + weights / 2;
}

int act_create(const struct kernels *k, struct k_act **out, uint32_t max_tokens, uint32_t max_cols,
               uint32_t forms)
{
    struct k_act *a = calloc(1, sizeof *a);
    size_t n = (size_t)max_tokens * max_cols, blocks = n / K_BLOCK;
    bool ok = true;

    if (!a)
        return ERR_NOMEM;
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
    k->free(k, a->scratch, k->threads * a->scratch_bytes);
    free(a);
}
