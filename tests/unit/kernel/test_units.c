/* 8-bit formats and int8 linears against recorded numbers (tests/data/golden/units), on every
 * instruction set that the CPU has. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "kernel/kernel.h"
#include "model/safetensors.h"
#include "sys/map.h"

static const char *const isas[] = { "portable", "avx2-base", "avx2", "avx512-base", "avx512" };
#define N_ISAS (sizeof isas / sizeof isas[0])

/* One of the files, and the table under test. */
struct units {
    struct map map;
    struct safetensors *file;
    struct kernels *k;
};

static void open_file(struct units *u, const char *name)
{
    char path[512];
    struct err e = { 0 };

    snprintf(path, sizeof path, "%s/%s.safetensors", UNITS, name);
    if (map_open(&u->map, path, &e) < 0 ||
        safetensors_parse(&u->file, u->map.data, u->map.size, &e) < 0)
        fail_msg("%s", e.text);
}

static void close_file(struct units *u)
{
    safetensors_free(u->file);
    map_close(&u->map);
}

/* False if the CPU lacks the instruction set. */
static bool open_isa(struct units *u, const char *isa)
{
    struct k_options o = { .isa = isa, .threads = 2 };
    struct err e = { 0 };
    int st = kernels_open(&u->k, &o, &e);

    if (st < 0 && st != ERR_UNSUPPORTED)
        fail_msg("%s", e.text);
    return st == 0;
}

static const struct tensor *find(const struct units *u, const char *group, const char *what)
{
    char name[64];
    size_t n;
    const struct tensor *t = safetensors_tensors(u->file, &n);

    snprintf(name, sizeof name, "%s%s%s", group, *group ? "." : "", what);
    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return &t[i];
    fail_msg("no %s", name);
    return NULL;
}

static const void *data(const struct units *u, const char *group, const char *what)
{
    return find(u, group, what)->data;
}

static void equal_floats(const char *isa, const char *what, const float *got, const float *want,
                         size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (got[i] != want[i] && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s: %s[%zu] is %.9g, not %.9g", isa, what, i, (double)got[i],
                     (double)want[i]);
}

/* y [n][rows] = x [n][cols] times a matrix of one part. */
static void multiply(const struct units *u, const struct k_part *part, uint32_t cols,
                     const float *x, uint32_t n, float *y)
{
    const struct kernels *k = u->k;
    const struct k_static *fixed;
    struct k_matrix *m;
    struct k_act *a;
    struct err e = { 0 };

    if (k->pack(k, &m, part, 1, cols, K_MATH_FLOAT, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(k->act_create(k, &a, n, cols, k->matrix_form(m)), 0);
    k->act_load(k, a, x, cols, n, cols);
    fixed = k->matrix_static(m);
    assert_true((fixed != NULL) == (part->fixed != NULL));
    if (fixed)
        k->act_static(k, a, n, fixed);
    k->linear(k, y, part->rows, a, m, n, false);
    k->act_destroy(k, a);
    k->unpack_free(k, m);
}

static void bf16_is_nearest_even(void **state)
{
    struct units u;
    const struct tensor *x;
    const float *v, *back;
    const int32_t *bits;

    (void)state;
    open_file(&u, "bf16");
    x = find(&u, "", "x");
    v = (const float *)(const void *)x->data;
    bits = data(&u, "", "bits");
    back = data(&u, "", "back");
    for (size_t i = 0; i < x->shape[0]; i++) {
        uint16_t b = k_float_to_bf16(v[i]);

        if (b != bits[i] || k_bf16_to_float(b) != back[i])
            fail_msg("%.9g becomes %04x, not %04x", (double)v[i], b, (unsigned)bits[i]);
    }
    close_file(&u);
}

static void f8_codes_are_those_of_the_table(void **state)
{
    struct units u;
    const float *table, *x;
    const uint8_t *code;
    const struct tensor *t;
    uint8_t all[256];
    float got[256];

    (void)state;
    open_file(&u, "fp8");
    table = data(&u, "", "e4m3_table");
    for (int i = 0; i < 256; i++) {
        all[i] = (uint8_t)i;
        assert_int_equal(k_float_to_f8(table[i]) & 0x7f, i & 0x7f);
        if (!isnan(table[i]))
            assert_int_equal(k_float_to_f8(k_f8_to_float((uint8_t)i)), i);
    }
    k_dequant(K_F8_E4M3, got, all, 256);
    equal_floats("k_dequant", "e4m3_table", got, table, 256);
    t = find(&u, "encode", "x");
    x = (const float *)(const void *)t->data;
    code = data(&u, "encode", "code");
    for (size_t i = 0; i < t->shape[0]; i++)
        if (k_float_to_f8(x[i]) != code[i])
            fail_msg("%.9g becomes %02x, not %02x", (double)x[i], k_float_to_f8(x[i]), code[i]);
    assert_int_equal(k_float_to_f8(INFINITY), 0x7e);
    assert_int_equal(k_float_to_f8(-1e30f), 0xfe);
    close_file(&u);
}

/* The rows of the matrix, and the products with three vectors. */
static void f8_shape(const struct units *u, const char *isa, const char *name)
{
    const struct tensor *w = find(u, name, "weight");
    uint32_t rows = (uint32_t)w->shape[0], cols = (uint32_t)w->shape[1];
    struct k_part part = { .type = K_F8_E4M3,
                           .rows = rows,
                           .data = w->data,
                           .stride = cols,
                           .scale = data(u, name, "weight_scale_inv") };
    const float *want = data(u, name, "dequant"), *y = data(u, name, "y");
    const float *x = data(u, name, "x");
    float *row = malloc(cols * sizeof *row), *got = malloc(3 * (size_t)rows * sizeof *got);
    struct k_matrix *m;

    assert_true(row && got);
    assert_int_equal(u->k->pack(u->k, &m, &part, 1, cols, K_MATH_FAST, NULL), 0);
    for (int32_t r = 0; r < (int32_t)rows; r++) {
        u->k->embed(u->k, row, cols, m, &r, 1);
        equal_floats(isa, name, row, want + (size_t)r * cols, cols);
    }
    u->k->unpack_free(u->k, m);
    multiply(u, &part, cols, x, 3, got);
    for (uint32_t i = 0; i < 3 * rows; i++) {
        double size = 0;

        for (uint32_t c = 0; c < cols; c++)
            size += fabs((double)x[i / rows * cols + c] *
                         (double)want[(size_t)(i % rows) * cols + c]);
        if (fabs((double)got[i] - (double)y[i]) > 2e-6 * size)
            fail_msg("%s: %s: y[%u] is %.9g, not %.9g", isa, name, i, (double)got[i], (double)y[i]);
    }
    free(row);
    free(got);
}

static void f8_blocks(void **state)
{
    static const char *const shapes[] = { "1x1", "32x128", "128x130", "129x64", "136x144" };
    struct units u;

    (void)state;
    open_file(&u, "fp8");
    for (size_t i = 0; i < N_ISAS; i++) {
        if (!open_isa(&u, isas[i]))
            continue;
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            f8_shape(&u, isas[i], shapes[s]);
        kernels_close(u.k);
    }
    close_file(&u);
}

enum { ROWS = 48, COLS = 96, MAX_N = 6 };

/* The quantized activations, seen through the identity matrix: products are q times the scale. */
static void see_codes(const struct units *u, const char *isa, const char *group, uint32_t n,
                      const struct k_static *fixed)
{
    int8_t eye[COLS][COLS] = { 0 };
    float one[COLS], got[MAX_N * COLS], want[MAX_N * COLS];
    const int32_t *xq = data(u, group, "xq");
    const float *scale = fixed ? NULL : data(u, group, "token_scale");
    struct k_static s;
    struct k_part part = { .type = K_I8, .rows = COLS, .data = eye, .stride = COLS, .scale = one };

    for (int i = 0; i < COLS; i++) {
        eye[i][i] = 1;
        one[i] = 1;
    }
    if (fixed) {
        s = (struct k_static){ fixed->input_scale, fixed->input_offset, NULL, one };
        part.fixed = &s;
    }
    multiply(u, &part, COLS, data(u, group, "x"), n, got);
    for (uint32_t i = 0; i < n * COLS; i++)
        want[i] = (float)xq[i] * (scale ? scale[i / COLS] : 1);
    equal_floats(isa, group, got, want, (size_t)n * COLS);
}

static void static_group(const struct units *u, const char *isa, const char *group)
{
    float one[ROWS], got[MAX_N * ROWS], want[MAX_N * ROWS];
    const float *scale = data(u, group, "input_scale"), *offset = data(u, group, "input_offset");
    const int32_t *acc = data(u, group, "acc");
    struct k_static s = { *scale, *offset, NULL, one };
    struct k_part part = {
        .type = K_I8, .rows = ROWS, .data = data(u, group, "weight"), .stride = COLS, .fixed = &s
    };

    see_codes(u, isa, group, 5, &s);
    for (int i = 0; i < ROWS; i++)
        one[i] = 1;
    for (int i = 0; i < 5 * ROWS; i++)
        want[i] = (float)acc[i];
    multiply(u, &part, COLS, data(u, group, "x"), 5, got);
    equal_floats(isa, "acc", got, want, 5 * ROWS);
    s.bias = data(u, group, "quant_bias");
    s.deq = data(u, group, "deq_scale");
    multiply(u, &part, COLS, data(u, group, "x"), 5, got);
    equal_floats(isa, group, got, data(u, group, "y"), 5 * ROWS);
}

static void dynamic_group(const struct units *u, const char *isa)
{
    float got[MAX_N * ROWS], want[MAX_N * ROWS];
    const float *scale = data(u, "dynamic", "weight_scale"), *y = data(u, "dynamic", "y");
    const float *token = data(u, "dynamic", "token_scale");
    const int32_t *acc = data(u, "dynamic", "acc");
    struct k_part part = { .type = K_I8,
                           .rows = ROWS,
                           .data = data(u, "dynamic", "weight"),
                           .stride = COLS,
                           .scale = scale };

    see_codes(u, isa, "dynamic", 6, NULL);
    multiply(u, &part, COLS, data(u, "dynamic", "x"), 6, got);
    for (int i = 0; i < 6 * ROWS; i++) {
        want[i] = (float)acc[i] * token[i / ROWS] * scale[i % ROWS];
        if (fabsf(got[i] - y[i]) > 3e-7f * fabsf(y[i]))
            fail_msg("%s: dynamic: y[%d] is %.9g, not %.9g", isa, i, (double)got[i], (double)y[i]);
    }
    equal_floats(isa, "dynamic", got, want, 6 * ROWS);
}

static void int8_linears(void **state)
{
    struct units u;

    (void)state;
    open_file(&u, "w8a8");
    for (size_t i = 0; i < N_ISAS; i++) {
        if (!open_isa(&u, isas[i]))
            continue;
        static_group(&u, isas[i], "static_pow2");
        static_group(&u, isas[i], "static");
        dynamic_group(&u, isas[i]);
        kernels_close(u.k);
    }
    close_file(&u);
}

static void refuse(const struct units *u, const struct k_part *parts, uint32_t n, uint32_t cols,
                   const char *text)
{
    struct err e = { 0 };
    struct k_matrix *m;

    assert_int_equal(u->k->pack(u->k, &m, parts, n, cols, K_MATH_FAST, &e), ERR_UNSUPPORTED);
    if (!strstr(e.text, text))
        fail_msg("\"%s\" does not say \"%s\"", e.text, text);
}

static void what_cannot_be_packed(void **state)
{
    static const int8_t w[2 * 32];
    static const float scale[2] = { 1, 1 };
    struct k_static a = { 0.5f, 3, NULL, scale }, b = { 0.5f, 4, NULL, scale };
    struct k_part parts[2] = { { .type = K_I8, .rows = 2, .data = w, .stride = 32, .fixed = &a },
                               { .type = K_I8, .rows = 2, .data = w, .stride = 32, .fixed = &b } };
    struct units u;

    (void)state;
    assert_true(open_isa(&u, "portable"));
    refuse(&u, parts, 2, 32, "cannot share a matrix");
    parts[0].fixed = NULL;
    refuse(&u, parts, 1, 32, "no scales");
    parts[0].scale = scale;
    refuse(&u, parts, 1, 1u << 17, "do not fit 32 bits");
    parts[0].type = K_F8_E4M3;
    parts[0].scale = NULL;
    refuse(&u, parts, 1, 32, "no scales");
    kernels_close(u.k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bf16_is_nearest_even),
        cmocka_unit_test(f8_codes_are_those_of_the_table),
        cmocka_unit_test(f8_blocks),
        cmocka_unit_test(int8_linears),
        cmocka_unit_test(what_cannot_be_packed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
