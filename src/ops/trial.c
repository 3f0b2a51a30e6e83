#include "ops/trial.h"

#include <math.h>
#include <stdlib.h>

#include "base/status.h"

#define I8_MAX 127.0f

float trial_quantize_row(int8_t *codes, const float *w, uint32_t cols)
{
    float max = 0, scale;

    for (uint32_t j = 0; j < cols; j++)
        max = fmaxf(max, fabsf(w[j]));
    scale = max > 0 ? max / I8_MAX : 1;
    for (uint32_t j = 0; j < cols; j++)
        codes[j] = (int8_t)lrintf(w[j] / scale);
    return scale;
}

struct trial_input trial_input_of(float low, float high)
{
    float scale = high > low ? (high - low) / 255 : 1;

    return (struct trial_input){ scale, rintf(-128 - low / scale) };
}

/* Buffers of one trial. */
struct trial {
    const struct kernels *k;
    const struct trial_linear *t;
    float *w, *x;       /* smoothed; x from the backend */
    float *exact, *got; /* [n][rows], from the backend */
    int8_t *codes;
    float *scale;
    int32_t *bias;
};

static size_t x_bytes(const struct trial_linear *t)
{
    return (size_t)t->n * t->cols * sizeof(float);
}

static size_t y_bytes(const struct trial_linear *t)
{
    return (size_t)t->n * t->rows * sizeof(float);
}

static void trial_free(struct trial *r)
{
    const struct kernels *k = r->k;

    free(r->w);
    free(r->codes);
    free(r->scale);
    free(r->bias);
    k->free(k, r->x, x_bytes(r->t));
    k->free(k, r->exact, y_bytes(r->t));
    k->free(k, r->got, y_bytes(r->t));
}

static int trial_alloc(struct trial *r)
{
    const struct trial_linear *t = r->t;
    size_t n = (size_t)t->rows * t->cols;

    r->w = malloc(n * sizeof *r->w);
    r->codes = malloc(n);
    r->scale = malloc(t->rows * sizeof *r->scale);
    r->bias = malloc(t->rows * sizeof *r->bias);
    r->x = r->k->alloc(r->k, x_bytes(t));
    r->exact = r->k->alloc(r->k, y_bytes(t));
    r->got = r->k->alloc(r->k, y_bytes(t));
    return r->w && r->codes && r->scale && r->bias && r->x && r->exact && r->got ? 0 : ERR_NOMEM;
}

static void smooth(struct trial *r)
{
    const struct trial_linear *t = r->t;

    for (uint32_t i = 0; i < t->rows; i++)
        for (uint32_t j = 0; j < t->cols; j++)
            r->w[(size_t)i * t->cols + j] = t->w[(size_t)i * t->cols + j] *
                                            (t->smooth ? t->smooth[j] : 1);
    for (uint32_t i = 0; i < t->n; i++)
        for (uint32_t j = 0; j < t->cols; j++)
            r->x[(size_t)i * t->cols + j] = t->x[(size_t)i * t->cols + j] /
                                            (t->smooth ? t->smooth[j] : 1);
}

/* y = x times the matrix of part. */
static int product(struct trial *r, const struct k_part *part, float *y, struct err *e)
{
    const struct kernels *k = r->k;
    const struct trial_linear *t = r->t;
    const struct k_static *fixed;
    struct k_matrix *m = NULL;
    struct k_act *a = NULL;
    int st = k->pack(k, &m, part, 1, t->cols, K_MATH_FLOAT, e);

    if (st < 0)
        return st;
    if ((st = k->act_create(k, &a, t->n, t->cols, k->matrix_form(m))) == 0) {
        k->act_load(k, a, r->x, t->cols, t->n, t->cols);
        if ((fixed = k->matrix_static(m)))
            k->act_static(k, a, t->n, fixed);
        k->linear(k, y, t->rows, a, m, t->n, false);
    }
    k->act_destroy(k, a);
    k->unpack_free(k, m);
    return st;
}

static int exact_product(struct trial *r, struct err *e)
{
    const struct trial_linear *t = r->t;
    const struct k_part part = {
        .type = K_F32, .rows = t->rows, .data = r->w, .stride = t->cols * sizeof(float)
    };

    return product(r, &part, r->exact, e);
}

static int int8_product(struct trial *r, struct err *e)
{
    const struct trial_linear *t = r->t;
    struct k_static fixed = { .bias = r->bias, .deq = r->scale };
    struct k_part part = { .type = K_I8, .rows = t->rows, .data = r->codes, .stride = t->cols };

    for (uint32_t i = 0; i < t->rows; i++) {
        int8_t *codes = r->codes + (size_t)i * t->cols;
        int32_t sum = 0;

        r->scale[i] = trial_quantize_row(codes, r->w + (size_t)i * t->cols, t->cols);
        for (uint32_t j = 0; j < t->cols; j++)
            sum += codes[j];
        if (t->fixed) {
            r->bias[i] = -(int32_t)t->fixed->offset * sum;
            r->scale[i] *= t->fixed->scale;
        }
    }
    if (t->fixed) {
        fixed.input_scale = t->fixed->scale;
        fixed.input_offset = t->fixed->offset;
        part.fixed = &fixed;
    } else {
        part.scale = r->scale;
    }
    return product(r, &part, r->got, e);
}

static double relative_error(const struct trial *r)
{
    const struct trial_linear *t = r->t;
    double total = 0;

    for (uint32_t i = 0; i < t->n; i++) {
        const float *want = r->exact + (size_t)i * t->rows, *got = r->got + (size_t)i * t->rows;
        double error = 0, size = 0;

        for (uint32_t j = 0; j < t->rows; j++) {
            error += ((double)got[j] - (double)want[j]) * ((double)got[j] - (double)want[j]);
            size += (double)want[j] * (double)want[j];
        }
        total += size > 0 ? error / size : 0;
    }
    return sqrt(total / t->n);
}

int trial_error(double *out, const struct kernels *k, const struct trial_linear *t, struct err *e)
{
    struct trial r = { .k = k, .t = t };
    int st = trial_alloc(&r) < 0 ? err_set(e, ERR_NOMEM, "no memory for a trial") : 0;

    if (st == 0) {
        smooth(&r);
        if ((st = exact_product(&r, e)) == 0 && (st = int8_product(&r, e)) == 0)
            *out = relative_error(&r);
    }
    trial_free(&r);
    return st;
}
