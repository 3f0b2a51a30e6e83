/* Weights as the checkpoint formats store them, loaded and multiplied: the numbers are those that
 * were recorded outside (golden/units), and what does not fit together is refused by name. */
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
#include "folder.h"
#include "model/arch.h"
#include "model/load_quant.h"
#include "model/quant.h"
#include "model/safetensors.h"
#include "sys/map.h"

#define AS_DYNAMIC "{\"layer.weight\":\"W8A8_DYNAMIC\",\"other.weight\":\"W8A8_DYNAMIC\"}"
#define AS_STATIC  "{\"layer.weight\":\"W8A8\",\"other.weight\":\"W8A8\"}"
#define AS_FP8                                                                                     \
    "{\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","                         \
    "\"activation_scheme\":\"dynamic\",\"scale_fmt\":\"ue8m0\",\"weight_block_size\":[128,128]}}"
#define SIDE(type, strategy, dynamic)                                                              \
    "{\"num_bits\":8,\"type\":\"" type "\",\"symmetric\":true,\"strategy\":\"" strategy            \
    "\",\"dynamic\":" dynamic "}"
#define AS_COMPRESSED                                                                              \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"                \
    "\"int-quantized\",\"config_groups\":{\"group_0\":{\"weights\":" SIDE(                         \
        "int", "channel", "false") ",\"input_activations\":" SIDE("int", "token", "true") "}}}}"

static struct kernels *kernels;
static struct map files[2]; /* w8a8, fp8 */
static struct safetensors *units[2];

/* One checkpoint and the loader over it. */
struct bed {
    struct folder f;
    struct model m;
    struct arch arch;
    struct weights *w;
    struct quant *q;
    struct model_options opt;
    struct load l;
    struct err e;
};

static const struct tensor *unit(int file, const char *name)
{
    size_t n;
    const struct tensor *t = safetensors_tensors(units[file], &n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return &t[i];
    fail_msg("no unit %s", name);
    return NULL;
}

static int open_units(void **state)
{
    static const char *const paths[] = { UNITS "/w8a8.safetensors", UNITS "/fp8.safetensors" };
    struct k_options o = { .threads = 1 };
    struct err e = { 0 };

    (void)state;
    for (int i = 0; i < 2; i++)
        if (map_open(&files[i], paths[i], &e) < 0 ||
            safetensors_parse(&units[i], files[i].data, files[i].size, &e) < 0)
            return -1;
    return kernels_open(&kernels, &o, &e);
}

static int close_units(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        safetensors_free(units[i]);
        map_close(&files[i]);
    }
    kernels_close(kernels);
    return 0;
}

static int make(void **state)
{
    struct bed *b = calloc(1, sizeof *b);

    folder_make(&b->f);
    *state = b;
    return 0;
}

static void shut(struct bed *b)
{
    quant_close(b->q);
    weights_close(b->w);
    b->q = NULL;
    b->w = NULL;
}

static int destroy(void **state)
{
    struct bed *b = *state;

    shut(b);
    folder_remove(&b->f);
    free(b);
    return 0;
}

/* The folder as it is now, as `says` (a description, or a config.json) reads it. */
static int open_bed(struct bed *b, const char *says)
{
    int st;

    shut(b);
    folder_write(&b->f, "model.safetensors");
    b->e.text[0] = '\0';
    b->arch = (struct arch){ .hf = "Test" };
    b->m = (struct model){ .k = kernels, .arch = &b->arch, .math = K_MATH_FLOAT };
    b->q = quant_new();
    if ((st = weights_open_dir(&b->w, b->f.path, &b->e)) < 0)
        return st;
    st = strstr(says, "quantization_config")
             ? quant_read_config(b->q, says, strlen(says), NULL, "config.json", &b->e)
             : quant_read_description(b->q, says, strlen(says), "description.json", &b->e);
    b->l = (struct load){ .m = &b->m, .w = b->w, .quant = b->q, .opt = &b->opt, .e = &b->e };
    return st;
}

static void open_ok(struct bed *b, const char *says)
{
    if (open_bed(b, says) < 0)
        fail_msg("%s", b->e.text);
}

/* x times the loaded matrix. */
static void multiply(struct bed *b, float *y, const struct k_matrix *m, const struct tensor *x,
                     uint32_t rows)
{
    uint32_t n = (uint32_t)x->shape[0], cols = (uint32_t)x->shape[1];
    const struct k_static *fixed = kernels->matrix_static(m);
    struct k_act *a;
    float *in = kernels->alloc(kernels, (size_t)n * cols * sizeof *in);

    (void)b;
    assert_int_equal(
        kernels->act_create(kernels, &a, n, cols, kernels->matrix_form(m) | K_FORM_F32), 0);
    memcpy(in, x->data, (size_t)n * cols * sizeof *in);
    kernels->act_load(kernels, a, in, cols, n, cols);
    if (fixed)
        kernels->act_static(kernels, a, n, fixed);
    kernels->linear(kernels, y, rows, a, m, n, false);
    kernels->act_destroy(kernels, a);
    kernels->free(kernels, in, (size_t)n * cols * sizeof *in);
}

/* Loads the parts, and compares what they make of x with y, which each part gives again. */
static void check_linear(struct bed *b, const struct load_part *parts, uint32_t n_parts,
                         const struct tensor *x, const struct tensor *y, double limit)
{
    uint32_t n = (uint32_t)x->shape[0], rows = parts[0].rows, ld = rows * n_parts;
    float *got = kernels->alloc(kernels, (size_t)n * ld * sizeof *got), want;
    struct k_matrix *m = NULL;
    uint64_t bytes = 0;

    if (load_matrix(&b->l, &m, parts, n_parts, (uint32_t)x->shape[1], &bytes) < 0)
        fail_msg("%s", b->e.text);
    assert_true(bytes > 0);
    multiply(b, got, m, x, ld);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < ld; j++) {
            memcpy(&want, y->data + sizeof want * ((size_t)i * rows + j % rows), sizeof want);
            if (!(fabs((double)got[(size_t)i * ld + j] - (double)want) <=
                  limit * (1 + fabs((double)want))))
                fail_msg("row %u output %u: expected %g, found %g", i, j, (double)want,
                         (double)got[(size_t)i * ld + j]);
        }
    kernels->unpack_free(kernels, m);
    kernels->free(kernels, got, (size_t)n * ld * sizeof *got);
}

static void refuse(struct bed *b, const struct load_part *parts, uint32_t n_parts, uint32_t cols,
                   int status, const char *part)
{
    struct k_matrix *m = NULL;
    int st = load_matrix(&b->l, &m, parts, n_parts, cols, NULL);

    if (st != status || !strstr(b->e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), b->e.text,
                 status_name(status), part);
    assert_null(m);
}

/* A tensor of the units under another name. */
static void add_unit(struct bed *b, const char *name, int file, const char *from)
{
    const struct tensor *t = unit(file, from);

    folder_add(&b->f, name, t->dtype, t->bytes / t->shape[0] / (t->n_dims > 1 ? t->shape[1] : 1),
               t->n_dims > 1 ? t->shape[0] : 0, t->shape[t->n_dims > 1], t->data);
}

static void add_zeros(struct bed *b, const char *name, const char *dtype, size_t size,
                      uint64_t rows)
{
    void *zeros = calloc(rows, size);

    folder_add(&b->f, name, dtype, size, rows, 1, zeros);
    free(zeros);
}

static void add_dynamic(struct bed *b, const char *layer)
{
    char name[64];

    snprintf(name, sizeof name, "%s.weight", layer);
    add_unit(b, name, 0, "dynamic.weight");
    snprintf(name, sizeof name, "%s.weight_scale", layer);
    add_unit(b, name, 0, "dynamic.weight_scale");
    snprintf(name, sizeof name, "%s.weight_offset", layer);
    add_zeros(b, name, "F32", 4, 48);
}

/* The unit `kind` ("static", "static_pow2"), deq_scale taken from `deq`. */
static void add_static(struct bed *b, const char *layer, const char *kind, const char *deq)
{
    static const char *const sides[] = { "weight", "input_scale", "input_offset", "quant_bias" };
    char name[64], from[64];

    for (size_t i = 0; i < sizeof sides / sizeof sides[0]; i++) {
        snprintf(name, sizeof name, "%s.%s", layer, sides[i]);
        snprintf(from, sizeof from, "%s.%s", kind, sides[i]);
        add_unit(b, name, 0, from);
    }
    snprintf(name, sizeof name, "%s.deq_scale", layer);
    snprintf(from, sizeof from, "%s.%s", kind, deq);
    add_unit(b, name, 0, from);
}

static const struct load_part layer48 = { .name = "layer.weight", .rows = 48 };
static const struct load_part both48[] = { { .name = "layer.weight", .rows = 48 },
                                           { .name = "other.weight", .rows = 48 } };

/* Nothing that stands in the folder is left over. */
static void check_all_used(const struct bed *b)
{
    for (size_t i = 0; i < b->w->n; i++)
        if (!b->w->w[i].used)
            fail_msg("%s was not used", b->w->w[i].t.name);
}

static void test_dynamic(void **state)
{
    struct bed *b = *state;

    add_dynamic(b, "layer");
    add_dynamic(b, "other");
    open_ok(b, AS_DYNAMIC);
    check_linear(b, both48, 2, unit(0, "dynamic.x"), unit(0, "dynamic.y"), 1e-6);
    check_all_used(b);
}

/* Scales that are zeros only: an export that broke. One zero among others is none. */
static void test_zero_scales(void **state)
{
    struct bed *b = *state;
    struct k_matrix *m = NULL;
    char text[QUANT_TEXT];
    float one[48] = { [7] = 1 };

    add_dynamic(b, "layer");
    add_dynamic(b, "other");
    folder_add(&b->f, "layer.weight_scale", "F32", 4, 48, 1, one);
    add_zeros(b, "other.weight_scale", "F32", 4, 48);
    open_ok(b, AS_DYNAMIC);
    assert_int_equal(load_matrix(&b->l, &m, &both48[0], 1, 96, NULL), 0);
    kernels->unpack_free(kernels, m);
    assert_false(load_zero_scales(text, &b->l));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(load_matrix(&b->l, &m, &both48[1], 1, 96, NULL), 0);
        kernels->unpack_free(kernels, m);
        assert_true(load_zero_scales(text, &b->l));
        assert_non_null(strstr(text, "tensor other.weight_scale"));
        assert_int_equal(strstr(text, "(and 1 more like it)") != NULL, i);
    }
    assert_non_null(strstr(text, "all its numbers are 0"));
}

static void test_static(void **state)
{
    static const char *const kinds[] = { "static", "static_pow2" };
    static const char *const deq[] = { "deq_scale", "deq_scale_i64" };
    struct bed *b = *state;
    char x[32], y[32];

    for (int i = 0; i < 4; i++) {
        snprintf(x, sizeof x, "%s.x", kinds[i / 2]);
        snprintf(y, sizeof y, "%s.y", kinds[i / 2]);
        add_static(b, "layer", kinds[i / 2], deq[i % 2]);
        open_ok(b, AS_STATIC);
        check_linear(b, &layer48, 1, unit(0, x), unit(0, y), 1e-6);
        check_all_used(b);
        folder_clear(&b->f);
    }
}

/* The older layout has weight_scale, weight_offset and a bias besides; quant_bias contains the bias,
 * which must not be added again. */
static void test_static_older(void **state)
{
    struct bed *b = *state;
    uint16_t bias[48];
    float *v;

    for (int i = 0; i < 48; i++)
        bias[i] = k_float_to_bf16((float)i);
    add_static(b, "layer", "static", "deq_scale");
    add_unit(b, "layer.weight_scale", 0, "static.weight_scale");
    add_zeros(b, "layer.weight_offset", "BF16", 2, 48);
    folder_add(&b->f, "layer.bias", "BF16", 2, 0, 48, bias);
    folder_add(&b->f, "norm.bias", "BF16", 2, 0, 48, bias);
    open_ok(b, AS_STATIC);
    check_linear(b, &layer48, 1, unit(0, "static.x"), unit(0, "static.y"), 1e-6);
    assert_int_equal(load_vector_if(&b->l, &v, "layer.bias", 48), 0);
    assert_null(v);
    assert_int_equal(load_vector_if(&b->l, &v, "norm.bias", 48), 0);
    assert_non_null(v);
    assert_true(v[47] == 47);
    kernels->free(kernels, v, 48 * sizeof *v);
    check_all_used(b);
}

/* Offsets come as int8, bfloat16 or float32, scales in any float. */
static void test_side_types(void **state)
{
    struct bed *b = *state;
    const struct tensor *t = unit(0, "static_pow2.input_offset");
    const struct tensor *s = unit(0, "static_pow2.input_scale");
    float offset, scale;
    uint16_t half[2];
    int8_t whole;

    memcpy(&offset, t->data, sizeof offset);
    memcpy(&scale, s->data, sizeof scale);
    whole = (int8_t)offset;
    assert_true((float)whole == offset);
    half[0] = k_float_to_bf16(offset);
    half[1] = k_float_to_half(scale);
    assert_true(k_half_to_float(half[1]) == scale);
    add_static(b, "layer", "static_pow2", "deq_scale");
    folder_add(&b->f, "layer.input_offset", "I8", 1, 0, 1, &whole);
    folder_add(&b->f, "layer.input_scale", "F16", 2, 0, 1, &half[1]);
    open_ok(b, AS_STATIC);
    check_linear(b, &layer48, 1, unit(0, "static_pow2.x"), unit(0, "static_pow2.y"), 1e-6);
    folder_add(&b->f, "layer.input_offset", "BF16", 2, 0, 1, half);
    open_ok(b, AS_STATIC);
    check_linear(b, &layer48, 1, unit(0, "static_pow2.x"), unit(0, "static_pow2.y"), 1e-6);
}

static void test_compressed(void **state)
{
    struct bed *b = *state;

    add_unit(b, "layer.weight", 0, "dynamic.weight");
    add_unit(b, "layer.weight_scale", 0, "dynamic.weight_scale");
    open_ok(b, AS_COMPRESSED);
    check_linear(b, &layer48, 1, unit(0, "dynamic.x"), unit(0, "dynamic.y"), 1e-6);
    check_all_used(b);
}

/* A weight that is not a number is refused by its name, in whichever part of a matrix, and in vectors. */
static void test_not_finite(void **state)
{
    static const struct load_part parts[] = { { .name = "layer.weight", .rows = 4 },
                                              { .name = "other.weight", .rows = 4 } };
    struct bed *b = *state;
    uint16_t half[4 * 32] = { 0 };
    float *v;

    folder_add(&b->f, "layer.weight", "BF16", 2, 4, 32, half);
    half[2 * 32 + 5] = 0x7fc0;
    folder_add(&b->f, "other.weight", "BF16", 2, 4, 32, half);
    folder_add(&b->f, "norm.weight", "BF16", 2, 0, 128, half);
    open_ok(b, "{}");
    refuse(b, parts, 2, 32, ERR_CORRUPT, "tensor other.weight: row 2, column 5 is");
    assert_true(strstr(b->e.text, b->f.path) == b->e.text);
    assert_int_equal(load_vector(&b->l, &v, "norm.weight", 128), ERR_CORRUPT);
    assert_non_null(strstr(b->e.text, "tensor norm.weight: number 69 is"));
    assert_int_equal(load_floats(&b->l, &v, &parts[1], 32), ERR_CORRUPT);
    free(v);
}

static void test_fp8(void **state)
{
    static const char *const shapes[] = { "136x144", "32x128", "129x64" };
    struct bed *b = *state;
    char name[64];

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        const struct tensor *x, *y, *d;
        struct load_part p = { .name = "layer.weight" };
        float *floats;

        snprintf(name, sizeof name, "%s.weight", shapes[i]);
        add_unit(b, "layer.weight", 1, name);
        snprintf(name, sizeof name, "%s.weight_scale_inv", shapes[i]);
        add_unit(b, "layer.weight_scale_inv", 1, name);
        snprintf(name, sizeof name, "%s.x", shapes[i]);
        x = unit(1, name);
        snprintf(name, sizeof name, "%s.y", shapes[i]);
        y = unit(1, name);
        snprintf(name, sizeof name, "%s.dequant", shapes[i]);
        d = unit(1, name);
        open_ok(b, AS_FP8);
        p.rows = (uint32_t)y->shape[1];
        if (x->shape[1] % 32 == 0)
            check_linear(b, &p, 1, x, y, 1e-5);
        assert_int_equal(load_floats(&b->l, &floats, &p, (uint32_t)x->shape[1]), 0);
        assert_memory_equal(floats, d->data, d->bytes);
        free(floats);
        check_all_used(b);
        folder_clear(&b->f);
    }
}

/* int8 as floats: code times scale, whichever scales there are. */
static void test_floats(void **state)
{
    struct bed *b = *state;
    const struct tensor *w = unit(0, "static.weight"), *s = unit(0, "static.weight_scale");
    float *got, scale;

    add_static(b, "layer", "static", "deq_scale");
    open_ok(b, AS_STATIC);
    assert_int_equal(load_floats(&b->l, &got, &layer48, 96), 0);
    for (uint32_t i = 0; i < 48 * 96; i++) {
        memcpy(&scale, s->data + sizeof scale * (i / 96), sizeof scale);
        assert_true(fabsf(got[i] - scale * (float)(int8_t)w->data[i]) <=
                    1e-5f * fabsf(got[i]) + 1e-9f);
    }
    free(got);
}

static void test_made(void **state)
{
    struct bed *b = *state;
    const struct tensor *d = unit(1, "32x128.dequant"), *x = unit(1, "32x128.x"),
                        *want = unit(1, "32x128.y");
    float y[3 * 32], numbers[32 * 128];
    struct k_matrix *m;
    uint64_t bytes = 0;

    add_dynamic(b, "layer");
    open_ok(b, AS_DYNAMIC);
    memcpy(numbers, d->data, sizeof numbers);
    assert_int_equal(load_made(&b->l, &m, numbers, 32, 128, K_F32, &bytes), 0);
    multiply(b, y, m, x, 32);
    for (int i = 0; i < 3 * 32; i++) {
        float v;

        memcpy(&v, want->data + sizeof v * (size_t)i, sizeof v);
        assert_true(fabsf(y[i] - v) <= 1e-5f * (1 + fabsf(v)));
    }
    kernels->unpack_free(kernels, m);
    assert_int_equal(load_made(&b->l, &m, numbers, 32, 128, K_BF16, &bytes), 0);
    multiply(b, y, m, x, 32);
    kernels->unpack_free(kernels, m);
}

/* Numbers that stand at any address are read as they are. */
static void test_unaligned(void **state)
{
    static const char *const dtypes[] = { "F32", "BF16", "F16" };
    struct bed *b = *state;
    const struct load_part p = { .name = "plain.weight", .rows = 16 };
    const struct tensor x = { .shape = { 1, 32 }, .data = NULL };
    float ones[32], y[16];

    for (int i = 0; i < 32; i++)
        ones[i] = 1;
    for (int type = 0; type < 3; type++)
        for (size_t pad = 0; pad < 4; pad++) {
            unsigned char data[16 * 32 * 4];
            struct tensor in = x;
            struct k_matrix *m;

            for (int i = 0; i < 16 * 32; i++) { /* row r is r / 32 everywhere */
                float v = (float)(i / 32) / 32;
                uint16_t half = type == 1 ? k_float_to_bf16(v) : k_float_to_half(v);

                if (type == 0)
                    memcpy(data + 4 * i, &v, 4);
                else
                    memcpy(data + 2 * i, &half, 2);
            }
            folder_clear(&b->f);
            b->f.pad = pad;
            folder_add(&b->f, "plain.weight", dtypes[type], type ? 2 : 4, 16, 32, data);
            open_ok(b, "{}");
            assert_int_equal(load_matrix(&b->l, &m, &p, 1, 32, NULL), 0);
            in.data = (const unsigned char *)ones;
            multiply(b, y, m, &in, 16);
            for (int r = 0; r < 16; r++)
                assert_true(y[r] == (float)r);
            kernels->unpack_free(kernels, m);
        }
}

/* One of several matrices in one tensor. */
static void test_slices(void **state)
{
    struct bed *b = *state;
    struct load_part p = { .name = "stack.weight", .rows = 16, .slices = 3 };
    const struct load_part whole = { .name = "stack.weight", .rows = 48 };
    float data[3 * 16 * 32], *all;

    for (int i = 0; i < 3 * 16 * 32; i++)
        data[i] = (float)(i / 512 + 1) * (i % 32 == i / 32 % 16 ? 1 : 0);
    folder_add(&b->f, "stack.weight", "F32", 4, 48, 32, data);
    json_object_set_new(json_object_get(b->f.header, "stack.weight"), "shape",
                        json_pack("[i,i,i]", 3, 16, 32));
    open_ok(b, "{\"stack.weight\":\"FLOAT\"}");
    for (uint32_t i = 0; i < 3; i++) {
        struct k_matrix *m;
        float x[32], y[16];
        struct tensor t = { .shape = { 1, 32 }, .data = (const unsigned char *)x };

        for (int j = 0; j < 32; j++)
            x[j] = (float)(j + 1);
        p.slice = i;
        assert_int_equal(load_matrix(&b->l, &m, &p, 1, 32, NULL), 0);
        multiply(b, y, m, &t, 16);
        for (uint32_t j = 0; j < 16; j++)
            assert_true(y[j] == (float)((i + 1) * (j + 1)));
        kernels->unpack_free(kernels, m);
    }
    assert_int_equal(load_floats(&b->l, &all, &whole, 32), 0);
    assert_memory_equal(all, data, sizeof data);
    free(all);
    p.slices = 4;
    refuse(b, &p, 1, 32, ERR_BADMSG,
           "expected shape [4, 16, 32] by the configuration, found [3, 16, 32]");
}

static void test_unlike_parts(void **state)
{
    struct bed *b = *state;
    float half;

    add_dynamic(b, "layer");
    add_static(b, "other", "static", "deq_scale");
    open_ok(b, "{\"layer.weight\":\"W8A8_DYNAMIC\",\"other.weight\":\"W8A8\"}");
    refuse(b, both48, 2, 96, ERR_UNSUPPORTED,
           "tensors layer.weight (W8A8_DYNAMIC) and other.weight (W8A8) have the same input");
    folder_clear(&b->f);
    add_static(b, "layer", "static", "deq_scale");
    add_static(b, "other", "static", "deq_scale");
    memcpy(&half, unit(0, "static.input_scale")->data, sizeof half);
    half /= 2;
    folder_add(&b->f, "other.input_scale", "F32", 4, 0, 1, &half);
    open_ok(b, AS_STATIC);
    refuse(b, both48, 2, 96, ERR_UNSUPPORTED, "both must have the same scale and offset");
}

static void test_wrong_sides(void **state)
{
    struct bed *b = *state;
    float bad[48] = { [7] = 3 };

    add_dynamic(b, "layer");
    folder_add(&b->f, "layer.weight_offset", "F32", 4, 48, 1, bad);
    open_ok(b, AS_DYNAMIC);
    refuse(
        b, &layer48, 1, 96, ERR_UNSUPPORTED,
        "model.safetensors: tensor layer.weight_offset: number 7 is 3: asymmetric weights are not "
        "supported");
    add_dynamic(b, "layer");
    folder_add(&b->f, "layer.weight_scale", "F32", 4, 47, 1, bad);
    open_ok(b, AS_DYNAMIC);
    refuse(b, &layer48, 1, 96, ERR_BADMSG,
           "tensor layer.weight_scale: expected shape [48, 1], found [47, 1]");
    folder_add(&b->f, "layer.weight_scale", "I32", 4, 48, 1, bad);
    open_ok(b, AS_DYNAMIC);
    refuse(b, &layer48, 1, 96, ERR_BADMSG,
           "tensor layer.weight_scale: expected a dtype of BF16, F16 or F32, found I32");
    bad[7] = INFINITY;
    folder_add(&b->f, "layer.weight_scale", "F32", 4, 48, 1, bad);
    open_ok(b, AS_DYNAMIC);
    refuse(b, &layer48, 1, 96, ERR_BADMSG, "tensor layer.weight_scale: number 7 is inf");
    folder_clear(&b->f);
    add_static(b, "layer", "static", "deq_scale");
    bad[0] = 0;
    folder_add(&b->f, "layer.input_scale", "F32", 4, 0, 1, bad);
    open_ok(b, AS_STATIC);
    refuse(b, &layer48, 1, 96, ERR_BADMSG,
           "tensor layer.weight: its input_scale is 0; it must be above 0");
    add_static(b, "layer", "static", "deq_scale");
    folder_add(&b->f, "layer.quant_bias", "F32", 4, 0, 48, bad);
    open_ok(b, AS_STATIC);
    refuse(b, &layer48, 1, 96, ERR_BADMSG,
           "tensor layer.quant_bias: expected a dtype of I32, found F32");
    folder_drop(&b->f, "layer.deq_scale");
    add_unit(b, "layer.quant_bias", 0, "static.quant_bias");
    open_ok(b, AS_STATIC);
    refuse(b, &layer48, 1, 96, ERR_BADMSG, "tensor layer.weight: its deq_scale is missing");
}

static void test_vector_types(void **state)
{
    struct bed *b = *state;
    int8_t bytes[48] = { 0 };
    float *v = NULL;
    enum k_type t;

    add_dynamic(b, "layer");
    folder_add(&b->f, "norm.weight", "I8", 1, 0, 48, bytes);
    open_ok(b, AS_DYNAMIC);
    assert_int_equal(load_vector(&b->l, &v, "norm.weight", 48), ERR_BADMSG);
    assert_non_null(strstr(b->e.text, "tensor norm.weight: expected a dtype of BF16, F16 or F32, "
                                      "found I8"));
    assert_int_equal(load_type(&b->l, "layer.weight", &t), 0);
    assert_int_equal(t, K_I8);
    assert_int_equal(load_type(&b->l, "gone.weight", &t), ERR_BADMSG);
    assert_int_equal(load_vector_if(&b->l, &v, "gone.bias", 48), 0);
    assert_null(v);
}

#define LOAD_TEST(f) cmocka_unit_test_setup_teardown(f, make, destroy)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOAD_TEST(test_dynamic),     LOAD_TEST(test_static),       LOAD_TEST(test_static_older),
        LOAD_TEST(test_zero_scales), LOAD_TEST(test_static),       LOAD_TEST(test_static_older),
        LOAD_TEST(test_side_types),  LOAD_TEST(test_compressed),   LOAD_TEST(test_fp8),
        LOAD_TEST(test_not_finite),  LOAD_TEST(test_floats),       LOAD_TEST(test_made),
        LOAD_TEST(test_unaligned),   LOAD_TEST(test_slices),       LOAD_TEST(test_unlike_parts),
        LOAD_TEST(test_wrong_sides), LOAD_TEST(test_vector_types),
    };

    return cmocka_run_group_tests(tests, open_units, close_units);
}
