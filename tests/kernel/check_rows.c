/* Norm, SwiGLU, rotary embedding, gather: against double. */
#include "check.h"

#include <math.h>
#include <string.h>

#define MAX_COLS 3072
#define ROWS     5

struct fixture {
    const struct kernels *k;
    struct k_act *a;
    float *x, *gain;
    uint32_t cols;
};

static void run_norm(void *arg)
{
    const struct fixture *f = arg;

    f->k->act_norm(f->k, f->a, f->x, MAX_COLS, f->gain, NULL, ROWS, f->cols, 1e-5f);
}

static void run_swiglu(void *arg)
{
    const struct fixture *f = arg;

    f->k->act_swiglu(f->k, f->a, f->x, MAX_COLS, ROWS, f->cols);
}

static void check_norm(struct check *c, struct fixture *f)
{
    const float *y = f->k->act_floats(f->a);
    double worst = 0;

    f->k->run(f->k, run_norm, f);
    for (uint32_t i = 0; i < ROWS; i++) {
        const float *x = f->x + (size_t)i * MAX_COLS;
        double sum = 0, r;

        for (uint32_t j = 0; j < f->cols; j++)
            sum += (double)x[j] * (double)x[j];
        r = 1 / sqrt(sum / f->cols + (double)1e-5f);
        for (uint32_t j = 0; j < f->cols; j++) {
            double want = (double)x[j] * r * (double)f->gain[j];

            worst = fmax(worst, fabs((double)y[i * f->cols + j] - want) / (fabs(want) + 1e-6));
        }
    }
    expect(c, worst < 1e-6, "norm of %u columns: off by %g", f->cols, worst);
}

static void check_swiglu(struct check *c, struct fixture *f)
{
    const float *y = f->k->act_floats(f->a);
    double worst = 0;

    f->k->run(f->k, run_swiglu, f);
    for (uint32_t i = 0; i < ROWS; i++)
        for (uint32_t j = 0; j < f->cols; j++) {
            double g = (double)f->x[i * MAX_COLS + j], u = (double)f->x[i * MAX_COLS + f->cols + j];
            double want = g / (1 + exp(-g)) * u;

            worst = fmax(worst, fabs((double)y[i * f->cols + j] - want) / (fabs(want) + 1e-6));
        }
    expect(c, worst < 1e-6, "swiglu of %u columns: off by %g", f->cols, worst);
}

static void check_acts(struct check *c)
{
    static const uint32_t cols[] = { 32, 96, 576, 1536 };
    struct rng r = { 5 };
    struct fixture f = { .k = c->two };

    f.x = get(f.k, ROWS * MAX_COLS * sizeof *f.x);
    f.gain = get(f.k, MAX_COLS * sizeof *f.gain);
    rng_fill(&r, f.x, ROWS * MAX_COLS);
    rng_fill(&r, f.gain, MAX_COLS);
    for (size_t i = 0; i < ROWS * MAX_COLS; i++)
        f.x[i] *= i % 3 ? 2 : 30;
    expect(c, f.k->act_create(f.k, &f.a, ROWS, MAX_COLS, K_FORM_F32) == 0, "act_create");
    for (size_t i = 0; i < sizeof cols / sizeof cols[0]; i++) {
        f.cols = cols[i];
        check_norm(c, &f);
        check_swiglu(c, &f);
    }
    f.k->act_destroy(f.k, f.a);
    f.k->free(f.k, f.x, ROWS * MAX_COLS * sizeof *f.x);
    f.k->free(f.k, f.gain, MAX_COLS * sizeof *f.gain);
}

/* Heads of dim, of which `rotated` turn, at positions 0, 3 and 7. */
static void check_rope(struct check *c, uint32_t dim, uint32_t rotated, enum k_rope_style style)
{
    enum { HEADS = 3, POSITIONS = 8, N = 3, MAX_DIM = 256 };
    static const uint32_t pos[N] = { 0, 3, 7 };
    static float x[N * HEADS * MAX_DIM], was[N * HEADS * MAX_DIM];
    float cos_t[POSITIONS * MAX_DIM / 2], sin_t[POSITIONS * MAX_DIM / 2];
    struct k_rope rope = { cos_t, sin_t, rotated, POSITIONS, style };
    struct rng r = { 6 };
    double worst = 0;

    rng_fill(&r, was, N * HEADS * dim);
    memcpy(x, was, sizeof x);
    for (uint32_t i = 0; i < POSITIONS * rotated / 2; i++) {
        double angle = (i / (rotated / 2)) / (1.0 + i % (rotated / 2));

        cos_t[i] = (float)cos(angle);
        sin_t[i] = (float)sin(angle);
    }
    c->two->rope(c->two, x, (size_t)HEADS * dim, N, HEADS, dim, pos, &rope);
    for (uint32_t i = 0; i < N * HEADS * dim; i++) {
        uint32_t d = i % dim, head = i - d, half = rotated / 2, j, a, b;
        double co, si, want;

        if (d >= rotated) {
            worst = fmax(worst, fabs((double)x[i] - (double)was[i]));
            continue;
        }
        j = style == K_ROPE_PAIRS ? d / 2 : d % half;
        a = style == K_ROPE_PAIRS ? head + 2 * j : head + j;
        b = style == K_ROPE_PAIRS ? a + 1 : a + half;
        co = (double)cos_t[pos[i / (HEADS * dim)] * half + j];
        si = (double)sin_t[pos[i / (HEADS * dim)] * half + j];
        want = i == a ? (double)was[a] * co - (double)was[b] * si
                      : (double)was[b] * co + (double)was[a] * si;
        worst = fmax(worst, fabs(want - (double)x[i]));
    }
    expect(c, worst < 3e-7, "rope of %u in %u dims: off by %g", rotated, dim, worst);
}

static void check_gather(struct check *c)
{
    float x[4 * 32], y[3 * 40];
    const uint32_t rows[3] = { 2, 0, 2 };

    for (int i = 0; i < 128; i++)
        x[i] = (float)i;
    c->two->gather(c->two, y, 40, x, 32, rows, 3, 32);
    expect(c, y[0] == 64 && y[31] == 95 && y[40] == 0 && y[80] == 64 && y[111] == 95, "gather");
}

static void check_add(struct check *c)
{
    float x[3 * 32], y[3 * 40];
    bool right = true;

    for (int i = 0; i < 96; i++)
        x[i] = (float)i;
    for (int i = 0; i < 120; i++)
        y[i] = 1000;
    c->two->add_rows(c->two, y, 40, x, 32, 3, 32);
    for (int i = 0; i < 120; i++)
        right = right && y[i] == 1000 + (i % 40 < 32 ? (float)(i / 40 * 32 + i % 40) : 0);
    expect(c, right, "add_rows");
}

void check_rows(struct check *c)
{
    check_acts(c);
    for (int style = 0; style < 2; style++) {
        check_rope(c, 64, 64, (enum k_rope_style)style);
        check_rope(c, 128, 128, (enum k_rope_style)style);
        check_rope(c, 80, 40, (enum k_rope_style)style);
        check_rope(c, 16, 6, (enum k_rope_style)style);
        check_rope(c, 256, 64, (enum k_rope_style)style);
    }
    check_gather(c);
    check_add(c);
}
