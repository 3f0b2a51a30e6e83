/* linear, embed and the forms of activations. */
#include "check.h"

#include "base/status.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shape {
    uint32_t rows, cols;
};
static const struct shape shapes[] = { { 7, 32 },    { 16, 64 },  { 33, 96 },  { 80, 576 },
                                       { 41, 1536 }, { 24, 256 }, { 50, 512 }, { 5, 1 },
                                       { 19, 33 },   { 37, 575 } };
static const uint32_t counts[] = { 1, 2, 3, 4, 7, 33, 50, 101 };
#define MAX_N 101
#define LDY   2020 /* distance between rows of a result */

struct fixture {
    enum k_type type;
    enum k_math math;
    struct shape shape;
    void *src;
    float *w; /* dequantized by k_dequant */
    float *x;
};

static struct k_matrix *pack(const struct kernels *k, const struct fixture *f)
{
    struct k_part part = { .type = f->type,
                           .rows = f->shape.rows,
                           .data = f->src,
                           .stride = k_type_bytes(f->type, f->shape.cols) };
    struct k_matrix *m;

    if (k->pack(k, &m, &part, 1, f->shape.cols, f->math, NULL) < 0)
        abort();
    return m;
}

struct team_call {
    const struct kernels *k;
    struct k_act *a;
    const struct k_matrix *m;
    const float *x;
    float *y;
    uint32_t n, cols;
    bool accumulate;
};

static void call(void *arg)
{
    const struct team_call *c = arg;

    c->k->act_load(c->k, c->a, c->x, c->cols, c->n, c->cols);
    c->k->linear(c->k, c->y, LDY, c->a, c->m, c->n, c->accumulate);
}

/* y [n][LDY] = x * w of the fixture by table k, in a team or alone. */
static void multiply(const struct kernels *k, const struct fixture *f, const struct k_matrix *m,
                     const float *x, float *y, uint32_t n, bool team, bool accumulate)
{
    struct team_call c = {
        .k = k, .m = m, .x = x, .y = y, .n = n, .cols = f->shape.cols, .accumulate = accumulate
    };

    if (k->act_create(k, &c.a, n, f->shape.cols, k->matrix_form(m)) < 0)
        abort();
    if (team)
        k->run(k, call, &c);
    else
        call(&c);
    k->act_destroy(k, c.a);
}

static float round_bf16(float x)
{
    return k_bf16_to_float(k_float_to_bf16(x));
}

/* What the activations are after rounding to int8 or bfloat16, or as they are. */
static double activation(const float *row, uint32_t c, uint32_t form)
{
    const float *blk = row + c / 32 * 32;
    float max = 0;

    if (form == K_FORM_BF16)
        return (double)round_bf16(row[c]);
    if (form != K_FORM_Q8)
        return (double)row[c];
    for (int j = 0; j < 32; j++)
        max = fabsf(blk[j]) > max ? fabsf(blk[j]) : max;
    return max > 0 ? (double)(max / 127) * (double)rintf(row[c] * (127 / max)) : 0;
}

static void compare_double(struct check *c, const struct fixture *f, const float *y, uint32_t n,
                           uint32_t form)
{
    double worst = 0;

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < f->shape.rows; r++) {
            const float *x = f->x + (size_t)i * f->shape.cols,
                        *w = f->w + (size_t)r * f->shape.cols;
            double sum = 0, size = 0;

            for (uint32_t k = 0; k < f->shape.cols; k++) {
                double t = activation(x, k, form) * (double)w[k];

                sum += t;
                size += fabs(t);
            }
            worst = fmax(worst, fabs((double)y[(size_t)i * LDY + r] - sum) / (size + 1e-6));
        }
    expect(c, worst < 2e-6, "linear %s %s %ux%u n=%u: off by %g of the sum of magnitudes",
           k_type_info[f->type].name, f->math == K_MATH_FAST ? "fast" : "float", f->shape.rows,
           f->shape.cols, n, worst);
}

/* All rows against portable C, which rounds in another order. It takes bfloat16 weights times floats:
 * those that the activations are rounded to. */
static void compare_portable(struct check *c, const struct fixture *f, const float *y, uint32_t n,
                             uint32_t form)
{
    size_t bytes = (size_t)n * LDY * sizeof(float), nx = (size_t)n * f->shape.cols;
    float *want = get(c->ref, bytes), *x = get(c->ref, nx * sizeof *x);
    struct k_matrix *m = pack(c->ref, f);
    double worst = 0;

    for (size_t i = 0; i < nx; i++)
        x[i] = form == K_FORM_BF16 ? round_bf16(f->x[i]) : f->x[i];
    multiply(c->ref, f, m, x, want, n, false, false);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t r = 0; r < f->shape.rows; r++) {
            double size = 0;

            for (uint32_t k = 0; k < f->shape.cols; k++)
                size += fabs((double)f->x[(size_t)i * f->shape.cols + k] *
                             (double)f->w[(size_t)r * f->shape.cols + k]);
            worst = fmax(worst,
                         fabs((double)y[(size_t)i * LDY + r] - (double)want[(size_t)i * LDY + r]) /
                             (size + 1e-6));
        }
    expect(c, worst < 4e-6, "linear %s %s %ux%u n=%u: off portable C by %g",
           k_type_info[f->type].name, f->math == K_MATH_FAST ? "fast" : "float", f->shape.rows,
           f->shape.cols, n, worst);
    c->ref->unpack_free(c->ref, m);
    c->ref->free(c->ref, want, bytes);
    c->ref->free(c->ref, x, nx * sizeof *x);
}

/* Each row alone, and all on one thread, must give the same bits. */
static void compare_rows(struct check *c, const struct fixture *f, const struct k_matrix *m,
                         const float *y, uint32_t n)
{
    float *alone = get(c->two, LDY * sizeof *alone);
    bool same = true;

    for (uint32_t i = 0; i < n; i++) {
        multiply(c->two, f, m, f->x + (size_t)i * f->shape.cols, alone, 1, i % 2, false);
        same = same && same_bits(alone, y + (size_t)i * LDY, f->shape.rows * sizeof *y);
    }
    expect(c, same, "linear %s %ux%u: a row of %u differs from the row alone",
           k_type_info[f->type].name, f->shape.rows, f->shape.cols, n);
    c->two->free(c->two, alone, LDY * sizeof *alone);
}

static void one_count(struct check *c, const struct fixture *f, const struct k_matrix *m,
                      uint32_t n)
{
    size_t bytes = (size_t)n * LDY * sizeof(float);
    float *y = get(c->two, bytes), *z = get(c->two, bytes);
    uint32_t form = c->two->matrix_form(m);
    bool sums = true;

    multiply(c->two, f, m, f->x, y, n, true, false);
    if (n <= 7) /* more rows are held to be the same as single rows */
        compare_double(c, f, y, n, form);
    if (n == 33)
        compare_portable(c, f, y, n, form);
    compare_rows(c, f, m, y, n);
    multiply(c->two, f, m, f->x, z, n, false, false);
    expect(c, same_bits(y, z, bytes), "linear %s n=%u: one thread differs from two",
           k_type_info[f->type].name, n);
    multiply(c->two, f, m, f->x, z, n, true, true);
    for (size_t i = 0; i < bytes / sizeof *y; i++)
        sums = sums && z[i] == y[i] + y[i];
    expect(c, sums, "linear %s n=%u: accumulate", k_type_info[f->type].name, n);
    c->two->free(c->two, y, bytes);
    c->two->free(c->two, z, bytes);
}

static void check_embed(struct check *c, const struct fixture *f, const struct k_matrix *m)
{
    int32_t ids[4] = { (int32_t)f->shape.rows - 1, 0, (int32_t)f->shape.rows / 2, -1 };
    size_t cols = f->shape.cols;
    float *y = get(c->two, 4 * cols * sizeof *y);
    bool same = true;

    memset(y, 0xff, 4 * cols * sizeof *y);
    c->two->embed(c->two, y, cols, m, ids, 4);
    for (int i = 0; i < 3; i++)
        same = same &&
               same_bits(y + (size_t)i * cols, f->w + (size_t)ids[i] * cols, cols * sizeof *y);
    for (size_t i = 3 * cols; i < 4 * cols; i++)
        same = same && y[i] == 0;
    expect(c, same, "embed %s %ux%u is not what k_dequant gives", k_type_info[f->type].name,
           f->shape.rows, f->shape.cols);
    c->two->free(c->two, y, 4 * cols * sizeof *y);
}

static void one_shape(struct check *c, struct rng *r, enum k_type type, enum k_math math,
                      struct shape shape)
{
    size_t n = (size_t)shape.rows * shape.cols, nx = (size_t)MAX_N * shape.cols;
    struct fixture f = { .type = type, .math = math, .shape = shape };
    struct k_matrix *m;

    f.src = random_weights(r, type, n);
    f.w = get(c->two, n * sizeof *f.w);
    f.x = get(c->two, nx * sizeof *f.x);
    k_dequant(type, f.w, f.src, n);
    rng_fill(r, f.x, nx);
    memset(f.x, 0, 32 * sizeof *f.x); /* a block of zeros has no scale */
    m = pack(c->two, &f);
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        one_count(c, &f, m, counts[i]);
    check_embed(c, &f, m);
    c->two->unpack_free(c->two, m);
    c->two->free(c->two, f.w, n * sizeof *f.w);
    c->two->free(c->two, f.x, nx * sizeof *f.x);
    free(f.src);
}

/* Weights of one in the diagonal give back the activations as they are rounded. */
static void check_bf16_rounding(struct check *c)
{
    enum { N = 64 };
    static uint16_t one[N * N];
    static float x[N], y[LDY];
    struct fixture f = { .type = K_BF16, .math = K_MATH_FAST, .shape = { N, N }, .src = one };
    struct k_matrix *m;
    bool same = true;

    for (uint32_t i = 0; i < N; i++) {
        one[i * N + i] = k_float_to_bf16(1);
        x[i] = (1 + (float)i * 0x1p-9f) * (i % 3 ? 1 : -0x1p90f); /* ties, and between them */
    }
    m = pack(c->two, &f);
    multiply(c->two, &f, m, x, y, 1, false, false);
    for (uint32_t i = 0; i < N; i++)
        same = same && y[i] == (c->two->matrix_form(m) == K_FORM_BF16 ? round_bf16(x[i]) : x[i]);
    expect(c, same, "bfloat16 activations are not rounded to nearest even");
    c->two->unpack_free(c->two, m);
}

/* Products and sums too small for a normal float: whatever becomes of them, a row has the same bits
 * alone, and arithmetic around has what it had. */
static void check_bf16_small(struct check *c, struct rng *r)
{
    enum { ROWS = 40, COLS = 96, N = 33 };
    static uint16_t w[ROWS * COLS];
    static float x[N * COLS];
    struct fixture f = { .type = K_BF16, .math = K_MATH_FAST, .shape = { ROWS, COLS } };
    float *y = get(c->two, N * LDY * sizeof *y);
    volatile float small = 0x1p-126f;
    struct k_matrix *m;

    for (int i = 0; i < ROWS * COLS; i++)
        w[i] = k_float_to_bf16(ldexpf(rng_float(r), -60 - (int)(rng_next(r) % 8)));
    for (int i = 0; i < N * COLS; i++)
        x[i] = ldexpf(rng_float(r), -58 - (int)(rng_next(r) % 8));
    f.src = w;
    f.x = x;
    m = pack(c->two, &f);
    multiply(c->two, &f, m, x, y, N, false, false);
    compare_rows(c, &f, m, y, N);
    expect(c, small / 2 > 0, "linear leaves the rounding of small numbers changed");
    c->two->unpack_free(c->two, m);
    c->two->free(c->two, y, N * LDY * sizeof *y);
}

static void check_bf16(struct check *c, struct rng *r)
{
    static const uint16_t w[32];
    struct k_part part = { .type = K_BF16, .rows = 1, .data = w, .stride = sizeof w };
    bool has = strstr(c->two->detail, "+bf16") != NULL;
    struct k_matrix *m;

    for (int math = 0; math < 2; math++) {
        if (c->two->pack(c->two, &m, &part, 1, 32, (enum k_math)math, NULL) < 0)
            abort();
        expect(c, c->two->matrix_form(m) == (has && math == K_MATH_FAST ? K_FORM_BF16 : K_FORM_F32),
               "form of activations for bfloat16 weights, math %d, %s", math, c->two->detail);
        c->two->unpack_free(c->two, m);
    }
    check_bf16_rounding(c);
    check_bf16_small(c, r);
}

/* Parts of different types side by side, rows permuted. */
static void check_parts(struct check *c, struct rng *r)
{
    enum { COLS = 256, ROWS = 20 };
    static const enum k_type types[3] = { K_Q4_1, K_Q6_K, K_F16 };
    uint32_t map[ROWS];
    struct k_part parts[3];
    struct k_matrix *m;
    float want[COLS], got[COLS];
    bool same = true;

    for (uint32_t i = 0; i < ROWS; i++)
        map[i] = (i * 7 + 3) % ROWS;
    for (int i = 0; i < 3; i++)
        parts[i] = (struct k_part){ .type = types[i],
                                    .rows = ROWS,
                                    .data = random_weights(r, types[i], ROWS * COLS),
                                    .stride = k_type_bytes(types[i], COLS),
                                    .row_map = i == 1 ? map : NULL };
    if (c->two->pack(c->two, &m, parts, 3, COLS, K_MATH_FAST, NULL) < 0)
        abort();
    for (int32_t i = 0; i < 3 * ROWS; i++) {
        const struct k_part *p = &parts[i / ROWS];
        uint32_t row = p->row_map ? p->row_map[i % ROWS] : (uint32_t)(i % ROWS);

        k_dequant(p->type, want, (const char *)p->data + row * p->stride, COLS);
        c->two->embed(c->two, got, COLS, m, &i, 1);
        same = same && same_bits(want, got, sizeof want);
    }
    expect(c, same, "a matrix of three parts does not give back its rows");
    expect(c, c->two->matrix_form(m) == (K_FORM_F32 | K_FORM_Q8), "forms of a mixed matrix");
    c->two->unpack_free(c->two, m);
    for (int i = 0; i < 3; i++) {
        void *p;

        memcpy(&p, &parts[i].data, sizeof p);
        free(p);
    }
    parts[0].type = K_Q4_K;
    expect(c, c->two->pack(c->two, &m, parts, 1, 96, K_MATH_FAST, NULL) < 0,
           "96 columns are no blocks of Q4_K");
}

/* One number that is not finite anywhere in the weights is found, and named; for a format of blocks the
 * scale is made so, and the block's first number is named. */
struct spoiled {
    enum k_type type;
    size_t at; /* of the row's bytes */
    uint32_t column;
    unsigned char bytes[4];
    uint32_t n;
};

static void one_spoiled(struct check *c, struct rng *r, const struct spoiled *s, uint32_t row)
{
    enum { ROWS = 37, COLS = 160 };
    static const float scale[2] = { 1, 1 };
    size_t stride = k_type_bytes(s->type, COLS);
    unsigned char *w = random_weights(r, s->type, ROWS * COLS);
    struct k_part part = { .type = s->type,
                           .name = "spoiled",
                           .rows = ROWS,
                           .data = w,
                           .stride = stride,
                           .scale = scale };
    struct k_matrix *m;
    struct err e = { "" };
    char want[64];
    int st;

    memcpy(w + row * stride + s->at, s->bytes, s->n);
    snprintf(want, sizeof want, "tensor spoiled: row %u, column %u is ", row, s->column);
    st = c->two->pack(c->two, &m, &part, 1, COLS, K_MATH_FAST, &e);
    expect(c, st == ERR_CORRUPT && strstr(e.text, want), "%s that is not finite in row %u: \"%s\"",
           k_type_info[s->type].name, row, e.text);
    if (st == 0)
        c->two->unpack_free(c->two, m);
    free(w);
}

static void check_spoiled(struct check *c, struct rng *r)
{
    static const struct spoiled cases[] = {
        { K_F32, 4 * 159, 159, { 0, 0, 0x80, 0x7f }, 4 }, /* infinity */
        { K_F32, 0, 0, { 1, 0, 0xc0, 0xff }, 4 },         /* NaN, with a sign */
        { K_F16, 2 * 97, 97, { 0, 0xfc }, 2 },
        { K_F16, 2 * 97, 97, { 1, 0x7e }, 2 },
        { K_BF16, 2 * 33, 33, { 0x80, 0x7f }, 2 },
        { K_BF16, 2 * 33, 33, { 0xc0, 0xff }, 2 },
        { K_F8_E4M3, 131, 131, { 0x7f }, 1 },
        { K_F8_E4M3, 3, 3, { 0xff }, 1 },
        { K_Q4_1, 20, 32, { 0, 0x7c }, 2 },
        { K_Q4_1, 22, 32, { 1, 0x7c }, 2 },
        { K_Q8_0, 4 * 34, 128, { 0, 0xfc }, 2 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (uint32_t row = 0; row < 37; row += 9)
            one_spoiled(c, r, &cases[i], row);
}

void check_linear(struct check *c)
{
    struct rng r = { 1 };

    for (int type = 0; type < K_TYPES; type++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
            for (int math = 0; math < 2; math++)
                if (type != K_I8 && type != K_F8_E4M3 && /* check_i8.c */
                    shapes[i].cols % k_type_info[type].block == 0 && wanted(c))
                    one_shape(c, &r, (enum k_type)type, (enum k_math)math, shapes[i]);
    check_parts(c, &r);
    check_bf16(c, &r);
    check_spoiled(c, &r);
}
