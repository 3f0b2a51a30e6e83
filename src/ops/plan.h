/* What becomes of each tensor of a checkpoint that is quantized: how it is stored, and the factors
 * that smoothing puts on its columns and rows.
 *
 * Smoothing (Xiao et al., "SmoothQuant", 2022): a channel in which activations are large is divided
 * by s_j where it is made, and the columns that read it are multiplied: the product stays what it
 * is, and int8 has to cover less. s_j = max|x_j|^a / max|w_j|^(1 - a), equation 4. What makes a
 * channel is the gain of the norm before it, a row of v (attention only averages over values, so a
 * factor passes through; all query heads of a group share it), or a row of up (the gate multiplies
 * it), which of the experts each has its own. */
#ifndef SLUICE_OPS_PLAN_H
#define SLUICE_OPS_PLAN_H

#include <stdbool.h>

#include "ops/calibrate.h"
#include "ops/intake.h"
#include "ops/parts.h"
#include "ops/trial.h"

struct err;
struct progress;

struct plan_options {
    bool fixed; /* static scales for the linears of attention */
    bool smooth;
    double alpha;       /* below 0: the best of a few for each site, by trial */
    double float_above; /* a site whose linears have a larger error stays float */
};

struct plan_tensor {
    enum part_store store;
    float *in;  /* [cols] factors of columns; NULL: ones. Shared by what reads the same */
    float *out; /* [rows] factors of rows; NULL: ones */
    struct trial_input input; /* STORE_STATIC */
    double error;             /* by trial, as stored if quantized; below 0: not tried */
};

struct plan_site {
    bool tried;
    double alpha;   /* below 0: not smoothed */
    double error;   /* mean over its linears, as quantized */
    double without; /* the same without smoothing */
};

struct plan {
    size_t n;
    struct plan_tensor *t; /* as the intake's tensors */
    uint32_t n_layers;
    struct plan_site (*site)[SITES]; /* [n_layers] */
    float **owned;
    size_t n_owned, cap_owned;
};

/* seen: NULL where nothing is smoothed, static or tried; then k may be NULL, too. p may be NULL.
 * ERR_NOMEM. */
int plan_make(struct plan *out, const struct intake *in, const struct calibration *seen,
              const struct kernels *k, const struct plan_options *opt, struct progress *p,
              struct err *e);
void plan_finish(struct plan *p); /* zeros are fine */

#endif
