/* int8 weights against plain 64-bit integers, bit for bit, and 8-bit floats with block scales. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    uint32_t rows, cols;
};
static const uint32_t counts[] = { 1, 2, 3, 4, 5, 6, 7, 9, 13, 25, 40 };
#define N_COUNTS (sizeof counts / sizeof counts[0])
#define MAX_N    40

/* A matrix of one part, activations for it, and what linear must give. */
struct fixture {
    struct k_part part;
    struct k_static fixed;
    struct shape shape;
    float *x, *want;
    uint32_t n;
};

/* The int8 activation that kernel.h defines; *scale is that of the token. */
static void definition(const struct fixture *f, const float *x, int64_t *q, float *scale)
{
    float max = 0;

    for (uint32_t c = 0; c < f->shape.cols; c++)
        max = fmaxf(max, fabsf(x[c]));
    *scale = max / 127;
    for (uint32_t c = 0; c < f->shape.cols; c++) {
        double v = (double)x[c] / (double)f->fixed.input_scale + (double)f->fixed.input_offset;

        if (f->part.fixed)
            q[c] = (int64_t)fmin(fmax(rint(v), -128), 127);
        else
            q[c] = *scale > 0 ? (int64_t)rintf(x[c] / *scale) : 0;
    }
}

/* y [n][rows] in 64-bit integers and single roundings to float. */
static void plain(const struct fixture *f, const float *x, uint32_t n, float *y)
{
    int64_t *q = calloc(f->shape.cols, sizeof *q);
    float scale;

    for (uint32_t i = 0; i < n; i++) {
        definition(f, x + (size_t)i * f->shape.cols, q, &scale);
        for (uint32_t r = 0; r < f->shape.rows; r++) {
            const int8_t *w = (const int8_t *)f->part.data + r * f->part.stride;
            int64_t dot = f->part.fixed && f->fixed.bias ? f->fixed.bias[r] : 0;

            for (uint32_t c = 0; c < f->shape.cols; c++)
                dot += q[c] * w[c];
            *y++ = f->part.fixed ? (float)dot * f->fixed.deq[r]
                                 : (float)dot * scale * f->part.scale[r];
        }
    }
    free(q);
}

struct call {
    const struct kernels *k;
    struct k_act *a;
    const struct k_matrix *m;
    const float *x;
    float *y;
    uint32_t n, rows, cols;
    bool accumulate;
};

static void run_call(void *arg)
{
    const struct call *c = arg;
    const struct k_static *s = c->k->matrix_static(c->m);

    c->k->act_load(c->k, c->a, c->x, c->cols, c->n, c->cols);
    if (s)
        c->k->act_static(c->k, c->a, c->n, s);
    c->k->linear(c->k, c->y, c->rows, c->a, c->m, c->n, c->accumulate);
}

/* All products of n rows from row `from` on. */
static void multiply(const struct kernels *k, const struct fixture *f, const struct k_matrix *m,
                     uint32_t from, uint32_t n, float *y, bool team, bool accumulate)
{
    struct call c = { .k = k,
                      .m = m,
                      .x = f->x + (size_t)from * f->shape.cols,
                      .y = y,
                      .n = n,
                      .rows = f->shape.rows,
                      .cols = f->shape.cols,
                      .accumulate = accumulate };

    if (k->act_create(k, &c.a, n, f->shape.cols, k->matrix_form(m)) < 0)
        abort();
    if (team)
        k->run(k, run_call, &c);
    else
        run_call(&c);
    k->act_destroy(k, c.a);
}

static struct k_matrix *pack(const struct kernels *k, const struct fixture *f)
{
    struct k_matrix *m;

    /* the kind of math makes no difference */
    if (k->pack(k, &m, &f->part, 1, f->shape.cols, f->shape.rows % 2 ? K_MATH_FAST : K_MATH_FLOAT,
                NULL) < 0)
        abort();
    return m;
}

static void check_products(struct check *c, const struct fixture *f, const char *what)
{
    size_t n = (size_t)f->n * f->shape.rows;
    struct k_matrix *m = pack(c->two, f);
    float *y = get(c->two, n * sizeof *y), *want = get(c->two, n * sizeof *want);
    bool sums = true;

    plain(f, f->x, f->n, want);
    for (size_t i = 0; i < N_COUNTS && counts[i] <= f->n; i++) {
        size_t bytes = (size_t)counts[i] * f->shape.rows * sizeof *y;

        multiply(c->two, f, m, 0, counts[i], y, i % 2 == 0, false);
        expect(c, same_bits(y, want, bytes), "%s %ux%u, %u rows: not the exact products", what,
               f->shape.rows, f->shape.cols, counts[i]);
    }
    multiply(c->two, f, m, 0, f->n, y, true, false);
    multiply(c->two, f, m, 0, f->n, y, true, true);
    for (size_t i = 0; i < n; i++)
        sums = sums && y[i] == want[i] + want[i];
    expect(c, sums, "%s %ux%u: accumulate", what, f->shape.rows, f->shape.cols);
    c->two->unpack_free(c->two, m);
    c->two->free(c->two, y, n * sizeof *y);
    c->two->free(c->two, want, n * sizeof *want);
}

/* Ties, a zero row, and rows of very different size. */
static void activations(struct rng *r, float *x, uint32_t n, uint32_t cols)
{
    rng_fill(r, x, (size_t)n * cols);
    for (uint32_t c = 0; n > 3 && c < cols; c++) {
        x[cols + c] = c == cols / 2 ? 63.5f : (float)((int)(rng_next(r) % 253) - 126) / 4;
        x[2 * cols + c] = 0;
        x[3 * cols + c] *= c % 7 ? 1e-41f : 1e-36f; /* some are subnormal */
    }
}

static void one_shape(struct check *c, struct rng *r, struct shape shape)
{
    size_t n = (size_t)shape.rows * shape.cols, nx = (size_t)MAX_N * shape.cols;
    int8_t *w = malloc(n);
    float *scale = malloc(shape.rows * sizeof *scale), *x = get(c->two, nx * sizeof *x);
    int32_t *bias = malloc(shape.rows * sizeof *bias);
    struct fixture f = { .shape = shape, .x = x, .n = MAX_N };

    if (!w || !scale || !bias)
        abort();
    for (size_t i = 0; i < n; i++)
        w[i] = (int8_t)rng_next(r);
    for (uint32_t i = 0; i < shape.rows; i++) {
        scale[i] = 0.01f * (rng_float(r) + 1.5f);
        bias[i] = (int32_t)rng_next(r) >> 8;
    }
    activations(r, x, MAX_N, shape.cols);
    f.part = (struct k_part){
        .type = K_I8, .rows = shape.rows, .data = w, .stride = shape.cols, .scale = scale
    };
    check_products(c, &f, "int8");
    f.fixed = (struct k_static){ 0.0078125f, -9, bias, scale };
    f.part.fixed = &f.fixed;
    check_products(c, &f, "int8 static");
    f.fixed = (struct k_static){ 0.0371f, 17, NULL, scale };
    check_products(c, &f, "int8 static without bias");
    c->two->free(c->two, x, nx * sizeof *x);
    free(w);
    free(scale);
    free(bias);
}

/* The largest sums that the largest matrix can have. */
static void check_extremes(struct check *c)
{
    enum { ROWS = 3, COLS = (1 << 17) - 32, N = 6 };
    static int8_t w[ROWS * COLS];
    static const float one[ROWS] = { 1, 1, 1 };
    float *x = get(c->two, (size_t)N * COLS * sizeof *x);
    struct fixture f = {
        .part = { .type = K_I8, .rows = ROWS, .data = w, .stride = COLS, .fixed = &f.fixed },
        .fixed = { 1, 0, NULL, one },
        .shape = { ROWS, COLS },
        .x = x,
        .n = N,
    };

    memset(w, -128, COLS);
    memset(w + COLS, 127, COLS);
    for (uint32_t i = 0; i < COLS; i++)
        w[2 * COLS + i] = i % 2 ? -128 : 127;
    for (uint32_t i = 0; i < N * COLS; i++)
        x[i] = i / COLS % 3 == 0 ? -1e30f : i / COLS % 3 == 1 ? 300 : i % 2 ? -128.4f : 127;
    check_products(c, &f, "int8 extremes");
    c->two->free(c->two, x, (size_t)N * COLS * sizeof *x);
}

/* Parts of every kind side by side give what each gives alone. */
static void check_mixed(struct check *c, struct rng *r)
{
    enum { ROWS = 20, COLS = 160, N = 7, PARTS = 4 };
    static const enum k_type types[PARTS] = { K_I8, K_F16, K_I8, K_F8_E4M3 };
    float scale[ROWS], x[N * COLS], alone[N * ROWS], all[N * ROWS * PARTS];
    uint32_t map[ROWS];
    struct fixture f = { .fixed = { 0.5f, 3, NULL, scale }, .shape = { ROWS, COLS }, .x = x };
    struct k_part parts[PARTS];
    struct k_matrix *m;
    bool same = true;

    rng_fill(r, scale, ROWS);
    rng_fill(r, x, N * COLS);
    for (uint32_t i = 0; i < ROWS; i++)
        map[i] = (i * 7 + 3) % ROWS;
    for (int i = 0; i < PARTS; i++)
        parts[i] = (struct k_part){ .type = types[i],
                                    .rows = ROWS,
                                    .data = random_weights(r, types[i], ROWS * COLS),
                                    .stride = k_type_bytes(types[i], COLS),
                                    .row_map = i != 1 ? map : NULL,
                                    .scale = scale,
                                    .fixed = i == 2 ? &f.fixed : NULL };
    if (c->two->pack(c->two, &m, parts, PARTS, COLS, K_MATH_FAST, NULL) < 0)
        abort();
    expect(c, c->two->matrix_form(m) == (K_FORM_F32 | K_FORM_I8 | K_FORM_I8S),
           "forms of a matrix with int8 parts");
    f.shape.rows = ROWS * PARTS;
    multiply(c->two, &f, m, 0, N, all, true, false);
    c->two->unpack_free(c->two, m);
    f.shape.rows = ROWS;
    for (int i = 0; i < PARTS; i++) {
        void *p;

        f.part = parts[i];
        m = pack(c->two, &f);
        multiply(c->two, &f, m, 0, N, alone, false, false);
        for (int j = 0; j < N; j++)
            same = same && same_bits(alone + (ptrdiff_t)j * ROWS,
                                     all + ((ptrdiff_t)j * PARTS + i) * ROWS, ROWS * sizeof *x);
        c->two->unpack_free(c->two, m);
        memcpy(&p, &parts[i].data, sizeof p);
        free(p);
    }
    expect(c, same, "parts of a mixed matrix do not give what each gives alone");
}

/* What embed() gives for int8 rows: code times scale. */
static void check_rows_back(struct check *c, struct rng *r)
{
    enum { ROWS = 19, COLS = 100 };
    float scale[ROWS], got[COLS];
    int8_t *w = random_weights(r, K_I8, ROWS * COLS);
    struct fixture f = {
        .part = { .type = K_I8, .rows = ROWS, .data = w, .stride = COLS, .scale = scale },
        .shape = { ROWS, COLS },
    };
    struct k_matrix *m;
    bool same = true;

    rng_fill(r, scale, ROWS);
    m = pack(c->two, &f);
    for (int32_t i = 0; i < ROWS; i++) {
        c->two->embed(c->two, got, COLS, m, &i, 1);
        for (int j = 0; j < COLS; j++)
            same = same && got[j] == scale[i] * (float)w[i * COLS + j];
    }
    expect(c, same, "an int8 matrix does not give back its rows");
    c->two->unpack_free(c->two, m);
    free(w);
}

/* Weights of 8-bit floats as floats: code times the scale of its block. */
static float f8_weight(const struct fixture *f, uint32_t r, uint32_t c)
{
    uint32_t scales = (f->shape.cols + K_F8_BLOCK - 1) / K_F8_BLOCK;

    return k_f8_to_float(((const uint8_t *)f->part.data)[r * f->part.stride + c]) *
           f->part.scale[(size_t)(r / K_F8_BLOCK) * scales + c / K_F8_BLOCK];
}

static void f8_products(struct check *c, const struct fixture *f, const struct k_matrix *m)
{
    size_t n = (size_t)f->n * f->shape.rows;
    float *y = get(c->two, n * sizeof *y), *alone = get(c->two, n * sizeof *alone);
    double worst = 0;
    bool same = true;

    multiply(c->two, f, m, 0, f->n, y, true, false);
    for (uint32_t i = 0; i < f->n; i++)
        multiply(c->two, f, m, i, 1, alone + (size_t)i * f->shape.rows, i % 2, false);
    same = same_bits(y, alone, n * sizeof *y);
    for (uint32_t i = 1; i <= 5; i++) { /* few rows have code of their own */
        multiply(c->two, f, m, 0, i, y, i % 2, false);
        same = same && same_bits(y, alone, (size_t)i * f->shape.rows * sizeof *y);
    }
    for (size_t i = 0; i < n && i < 3 * f->shape.rows; i++) {
        const float *x = f->x + i / f->shape.rows * f->shape.cols;
        double sum = 0, size = 0;

        for (uint32_t k = 0; k < f->shape.cols; k++) {
            double t = (double)x[k] * (double)f8_weight(f, (uint32_t)(i % f->shape.rows), k);

            sum += t;
            size += fabs(t);
        }
        worst = fmax(worst, fabs((double)y[i] - sum) / (size + 1e-30));
    }
    expect(c, worst < 2e-6, "FP8 %ux%u: off by %g of the sum of magnitudes", f->shape.rows,
           f->shape.cols, worst);
    expect(c, same, "FP8 %ux%u: a row differs from the row alone", f->shape.rows, f->shape.cols);
    c->two->free(c->two, y, n * sizeof *y);
    c->two->free(c->two, alone, n * sizeof *alone);
}

static void f8_shape(struct check *c, struct rng *r, struct shape shape)
{
    size_t n = (size_t)shape.rows * shape.cols, nx = (size_t)MAX_N * shape.cols;
    size_t n_scales = (size_t)(shape.rows / K_F8_BLOCK + 1) * (shape.cols / K_F8_BLOCK + 1);
    uint8_t *w = random_weights(r, K_F8_E4M3, n);
    float *scale = malloc(n_scales * sizeof *scale), *row = malloc(shape.cols * sizeof *row);
    float *x = get(c->two, nx * sizeof *x);
    struct fixture f = {
        .part = { .type = K_F8_E4M3, .rows = shape.rows, .data = w, .stride = shape.cols },
        .shape = shape,
        .x = x,
        .n = MAX_N,
    };
    struct k_matrix *m;
    bool same = true;

    if (!scale || !row)
        abort();
    rng_fill(r, scale, n_scales);
    rng_fill(r, x, nx);
    f.part.scale = scale;
    m = pack(c->two, &f);
    for (int32_t i = 0; i < (int32_t)shape.rows; i++) {
        c->two->embed(c->two, row, shape.cols, m, &i, 1);
        for (uint32_t j = 0; j < shape.cols; j++)
            same = same && row[j] == f8_weight(&f, (uint32_t)i, j);
    }
    expect(c, same, "FP8 %ux%u does not give back its rows", shape.rows, shape.cols);
    f8_products(c, &f, m);
    c->two->unpack_free(c->two, m);
    c->two->free(c->two, x, nx * sizeof *x);
    free(w);
    free(scale);
    free(row);
}

/* Each of the codes of a number as a weight (in place of the two NaN: zero); the product with 1 shows
 * it, for one row and for many. */
static void check_f8_codes(struct check *c)
{
    enum { N = 6 };
    static const float scale[2] = { 1, 1 };
    uint8_t codes[256];
    float x[N] = { 1, 1, 1, 1, 1, 1 }, y[N * 256];
    struct fixture f = {
        .part = { .type = K_F8_E4M3, .rows = 256, .data = codes, .stride = 1, .scale = scale },
        .shape = { 256, 1 },
        .x = x,
    };
    struct k_matrix *m;
    bool same = true;

    for (int i = 0; i < 256; i++)
        codes[i] = (i & 127) == 127 ? 0 : (uint8_t)i;
    m = pack(c->two, &f);
    for (uint32_t n = 1; n <= N; n += N - 1) {
        multiply(c->two, &f, m, 0, n, y, true, false);
        for (uint32_t i = 0; i < n * 256; i++)
            same = same && y[i] == k_f8_to_float(codes[i % 256]);
    }
    expect(c, same, "FP8 codes are not multiplied as what they are");
    c->two->unpack_free(c->two, m);
}

void check_i8(struct check *c)
{
    static const struct shape shapes[] = { { 7, 32 },   { 1, 1 },    { 16, 64 },  { 33, 96 },
                                           { 80, 576 }, { 41, 100 }, { 24, 259 }, { 50, 1024 } };
    static const struct shape f8[] = { { 7, 32 },  { 129, 64 }, { 136, 150 },
                                       { 260, 1 }, { 20, 512 }, { 37, 259 } };
    struct rng r = { 8 };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        one_shape(c, &r, shapes[i]);
    check_extremes(c);
    check_mixed(c, &r);
    check_rows_back(c, &r);
    for (size_t i = 0; i < sizeof f8 / sizeof f8[0]; i++)
        f8_shape(c, &r, f8[i]);
    check_f8_codes(c);
}
