/* Quantized checkpoints: the codes are those of the weights, smoothing changes nothing but the
 * rounding, the loader takes every one, and the model stays what it was. */
#include "rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "model/weights.h"
#include "ops/quantize.h"
#include "ops/rope_fit.h"
#include "ops/runner.h"
#include "sys/map.h"

static struct kernels *kernels;

static int setup(void **state)
{
    struct k_options o = { .threads = 1 };
    struct err e = { "" };

    return kernels_open(&kernels, &o, &e) < 0 ? -1 : scratch_setup(state);
}

static int teardown(void **state)
{
    kernels_close(kernels);
    return scratch_teardown(state);
}

/* golden/models/<name>, or the test is skipped. */
static const char *model(const char *name)
{
    char path[128];
    const char *found;

    snprintf(path, sizeof path, "models/%s", name);
    if (!(found = golden(path)))
        skip();
    return found;
}

static struct quantize_options options(const char *in)
{
    return (struct quantize_options){ .in = in,
                                      .out = scratch("q"),
                                      .alpha = 0.5,
                                      .float_above = INFINITY,
                                      .max_shard_bytes = 1u << 20,
                                      .threads = 1,
                                      .force = true,
                                      .quiet = true };
}

static void run(const struct quantize_options *o)
{
    struct err e = { "" };

    if (quantize(o, &e) < 0)
        fail_msg("%s", e.text);
}

static struct weights *open_folder(const char *path)
{
    struct weights *w = NULL;
    struct err e = { "" };

    if (weights_open_dir(&w, path, &e) < 0)
        fail_msg("%s", e.text);
    return w;
}

static const struct tensor *tensor(const struct weights *w, const char *name)
{
    const struct weight *f = weights_find(w, name);

    if (!f)
        fail_msg("%s: no tensor %s", w->path, name);
    return &f->t;
}

/* A tensor's numbers as they count: int8 times the scale of the row. Freed by the caller. */
static float *numbers(const struct weights *w, const char *name, uint64_t *rows, uint64_t *cols)
{
    const struct tensor *t = tensor(w, name);
    char scale[TENSOR_MAX_NAME];
    float *out;

    *rows = t->shape[0];
    *cols = t->n_dims > 1 ? t->shape[1] : 1;
    out = malloc(*rows * *cols * sizeof *out);
    assert_non_null(out);
    k_dequant(t->type, out, t->data, *rows * *cols);
    if (t->type == K_I8) {
        snprintf(scale, sizeof scale, "%s_scale", name);
        for (uint64_t i = 0; i < *rows * *cols; i++)
            out[i] *= ((const float *)(const void *)tensor(w, scale)->data)[i / *cols];
    }
    return out;
}

/* Each code is the nearest, and the largest of a row is 127. */
static void codes_are_nearest(void **state)
{
    struct quantize_options o = options(model("llama_tiny"));
    struct weights *in, *out;
    const char *name = "model.layers.1.mlp.up_proj.weight";
    uint64_t rows, cols;
    float *want, *got;

    (void)state;
    o.no_smooth = true;
    run(&o);
    in = open_folder(o.in);
    out = open_folder(o.out);
    assert_int_equal(tensor(out, name)->type, K_I8);
    want = numbers(in, name, &rows, &cols);
    got = numbers(out, name, &rows, &cols);
    for (uint64_t r = 0; r < rows; r++) {
        float max = 0;

        for (uint64_t j = 0; j < cols; j++)
            max = fmaxf(max, fabsf(want[r * cols + j]));
        for (uint64_t j = 0; j < cols; j++)
            assert_true(fabsf(want[r * cols + j] - got[r * cols + j]) <= max / 127 * 0.501f);
    }
    free(want);
    free(got);
    weights_close(in);
    weights_close(out);
}

/* By how much each row of `name` was multiplied. A matrix's columns were multiplied, too, by what its
 * norm's gain was divided by: with the gain they are what they were, but for the rounding. */
static double *row_factors(const struct weights *in, const struct weights *out, const char *name,
                           const char *gain)
{
    uint64_t rows, cols, n, one;
    float *a = numbers(in, name, &rows, &cols), *b = numbers(out, name, &rows, &cols);
    float *g0 = gain ? numbers(in, gain, &n, &one) : NULL;
    float *g1 = gain ? numbers(out, gain, &n, &one) : NULL;
    double *f = calloc(rows, sizeof *f);

    assert_non_null(f);
    for (uint64_t i = 0; i < rows; i++) {
        double ab = 0, aa = 0;

        for (uint64_t k = 0; k < cols; k++) {
            double x = (double)a[i * cols + k] * (g0 ? (double)g0[k] : 1);
            double y = (double)b[i * cols + k] * (g1 ? (double)g1[k] : 1);

            ab += x * y;
            aa += x * x;
        }
        f[i] = ab / aa;
    }
    free(a);
    free(b);
    free(g0);
    free(g1);
    return f;
}

/* The columns that read a channel are multiplied by what it was divided by where it is made: `dim`
 * channels of a head, each head shared by `share` of the readers' heads. */
static void check_folded(const struct weights *in, const struct weights *out, const char *maker,
                         const char *gain, const char *reader, uint32_t dim, uint32_t share)
{
    double *f = row_factors(in, out, maker, gain), error = 0, size = 0, moved = 0;
    uint64_t rows, cols;
    float *a = numbers(in, reader, &rows, &cols), *b = numbers(out, reader, &rows, &cols);

    for (uint64_t j = 0; j < cols; j++) {
        double factor = f[j / dim / share * dim + j % dim];

        for (uint64_t i = 0; i < rows; i++) {
            double want = (double)a[i * cols + j], got = (double)b[i * cols + j] * factor;

            error += (got - want) * (got - want);
            size += want * want;
        }
        moved += fabs(log(factor));
    }
    assert_true(sqrt(error / size) < 0.03); /* what int8 rounds */
    assert_true(moved / (double)cols > 0.05);
    free(f);
    free(a);
    free(b);
}

/* Smoothing divides where a channel is made and multiplies where it is read. Four query heads share
 * one of values here. */
static void smoothing_folds(void **state)
{
    struct quantize_options o = options(model("llama_tiny"));
    struct weights *in, *out;

    (void)state;
    run(&o);
    in = open_folder(o.in);
    out = open_folder(o.out);
    check_folded(in, out, "model.layers.0.input_layernorm.weight", NULL,
                 "model.layers.0.self_attn.q_proj.weight", 96, 1);
    check_folded(in, out, "model.layers.2.post_attention_layernorm.weight", NULL,
                 "model.layers.2.mlp.gate_proj.weight", 96, 1);
    check_folded(in, out, "model.layers.1.self_attn.v_proj.weight",
                 "model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.o_proj.weight",
                 32, 4);
    check_folded(in, out, "model.layers.1.mlp.up_proj.weight",
                 "model.layers.1.post_attention_layernorm.weight",
                 "model.layers.1.mlp.down_proj.weight", 160, 1);
    weights_close(in);
    weights_close(out);
}

/* Each expert by its own factors, and the shared one. */
static void smoothing_folds_experts(void **state)
{
    static const char gain[] = "model.layers.2.post_attention_layernorm.weight";
    struct quantize_options o = options(model("deepseek_v3_tiny"));
    struct weights *in, *out;

    (void)state;
    run(&o);
    in = open_folder(o.in);
    out = open_folder(o.out);
    check_folded(in, out, "model.layers.2.mlp.experts.0.up_proj.weight", gain,
                 "model.layers.2.mlp.experts.0.down_proj.weight", 32, 1);
    check_folded(in, out, "model.layers.2.mlp.experts.9.up_proj.weight", gain,
                 "model.layers.2.mlp.experts.9.down_proj.weight", 32, 1);
    check_folded(in, out, "model.layers.2.mlp.shared_experts.up_proj.weight", gain,
                 "model.layers.2.mlp.shared_experts.down_proj.weight", 32, 1);
    weights_close(in);
    weights_close(out);
}

static const int32_t prompt[] = { 3,  100, 17, 99,  150, 4,  77, 180, 33, 12, 101, 8,
                                  90, 41,  5,  161, 72,  19, 11, 140, 66, 2,  130, 54 };
#define N_PROMPT (sizeof prompt / sizeof *prompt)

static double score(const char *path)
{
    struct runner *r = NULL;
    struct err e = { "" };
    double s;

    if (runner_create(&r, kernels, path, MODEL_DTYPE_FLOAT32, &e) < 0)
        fail_msg("%s", e.text);
    s = runner_score(r, prompt, N_PROMPT);
    runner_destroy(r);
    return s;
}

/* The mean surprise before and after: nats a token, on models whose logits have a deviation of 3. */
static void check_score(const char *name, bool fixed, double most)
{
    struct quantize_options o = options(model(name));
    double before, after;

    o.fixed = fixed;
    o.alpha = strcmp(name, "llama_tiny") == 0 ? -1 : 0.5; /* by trial takes longer */
    run(&o);
    before = score(o.in);
    after = score(o.out);
    if (!(fabs(after - before) < most))
        fail_msg("%s: surprise %.4f before, %.4f after", name, before, after);
}

static void keeps_llama(void **state)
{
    (void)state;
    check_score("llama_tiny", false, 0.05);
    check_score("llama_tiny", true, 0.1);
}

/* Static linears take their bias into quant_bias. */
static void keeps_qwen2(void **state)
{
    struct weights *w;

    (void)state;
    check_score("qwen2_tiny", false, 0.05);
    check_score("qwen2_tiny", true, 0.1);
    w = open_folder(scratch("q"));
    assert_null(weights_find(w, "model.layers.0.self_attn.q_proj.bias"));
    assert_non_null(weights_find(w, "model.layers.0.self_attn.q_proj.quant_bias"));
    weights_close(w);
}

static void keeps_qwen3_moe(void **state)
{
    (void)state;
    check_score("qwen3_moe_tiny", false, 0.1);
}

static void keeps_deepseek(void **state)
{
    (void)state;
    check_score("deepseek_v3_tiny", false, 0.1);
    check_score("deepseek_v3_tiny", true, 0.2);
    check_score("deepseek_v3_tiny_fp8", false, 0.1);
    check_score("deepseek_v2_lite_tiny", true, 0.2);
}

static const char *type_in(const json_t *j, const char *name)
{
    const char *type = json_string_value(json_object_get(j, name));

    return type ? type : "absent";
}

/* Which linear gets what: ModelSlim's recipe. */
static void types_by_recipe(void **state)
{
    struct quantize_options o = options(model("deepseek_v3_tiny"));
    json_t *j;

    (void)state;
    o.fixed = true;
    run(&o);
    j = json_load_file(scratch("q/quant_model_description.json"), 0, NULL);
    assert_string_equal(type_in(j, "model.layers.1.self_attn.q_a_proj.weight"), "W8A8");
    assert_string_equal(type_in(j, "model.layers.1.self_attn.o_proj.deq_scale"), "W8A8");
    assert_string_equal(type_in(j, "model.layers.1.self_attn.kv_b_proj.weight"), "FLOAT");
    assert_string_equal(type_in(j, "model.layers.0.mlp.up_proj.weight"), "W8A8_DYNAMIC");
    assert_string_equal(type_in(j, "model.layers.1.mlp.gate.weight"), "FLOAT");
    assert_string_equal(type_in(j, "model.layers.1.mlp.experts.7.down_proj.weight_scale"),
                        "W8A8_DYNAMIC");
    assert_string_equal(type_in(j, "model.layers.4.eh_proj.weight"), "FLOAT");
    assert_string_equal(type_in(j, "lm_head.weight"), "FLOAT");
    json_decref(j);

    o.fixed = false;
    run(&o);
    j = json_load_file(scratch("q/quant_model_description.json"), 0, NULL);
    assert_string_equal(type_in(j, "model.layers.1.self_attn.q_a_proj.weight"), "W8A8_DYNAMIC");
    json_decref(j);

    o.float_above = 1e-6; /* nothing is that good */
    run(&o);
    j = json_load_file(scratch("q/quant_model_description.json"), 0, NULL);
    assert_string_equal(type_in(j, "model.layers.1.self_attn.q_a_proj.weight"), "FLOAT");
    assert_string_equal(type_in(j, "model.layers.0.mlp.down_proj.weight"), "FLOAT");
    assert_string_equal(type_in(j, "model.layers.2.mlp.experts.3.down_proj.weight"), "FLOAT");
    score(o.out); /* the loader takes it */
    json_decref(j);
    assert_true(scratch_has("q/tokenizer.json"));
}

/* Llama 3.1's factors: 8, and an original context of 8192, found again from the divisors. */
static void fits_llama3(void **state)
{
    struct model_config c = { .rope_dim = 128,
                              .rope_theta = 500000,
                              .rope_scaling = ROPE_LLAMA3,
                              .rope_factor = 8,
                              .rope_low_freq = 1,
                              .rope_high_freq = 4,
                              .rope_original = 8192 };
    struct model_config plain = c, found = c;
    double a[64], b[64], unused;
    float divisors[64];
    struct err e = { "" };

    (void)state;
    plain.rope_scaling = found.rope_scaling = ROPE_NONE;
    found.rope_original = 131072;
    found.rope_factor = 1;
    model_rope_freqs(&plain, a, &unused);
    model_rope_freqs(&c, b, &unused);
    for (int i = 0; i < 64; i++)
        divisors[i] = (float)(a[i] / b[i]);
    assert_int_equal(rope_fit_llama3(&found, divisors, &e), 0);
    assert_int_equal(found.rope_scaling, ROPE_LLAMA3);
    assert_true(fabs(found.rope_factor - 8) < 1e-5);
    assert_int_equal(found.rope_original, 8192);
    divisors[30] *= 1.5f;
    assert_int_equal(rope_fit_llama3(&plain, divisors, &e), ERR_UNSUPPORTED);
}

static void refused(const struct quantize_options *o, int st, const char *part)
{
    struct err e = { "" };

    assert_int_equal(quantize(o, &e), st);
    if (!strstr(e.text, part))
        fail_msg("expected \"%s\" in: %s", part, e.text);
}

/* A NaN would make a row of zeros, and nobody would know why. */
static void refuses_nan(void **state)
{
    struct weights *w = open_folder(model("llama_tiny"));
    const struct weight *f = weights_find(w, "model.layers.1.mlp.up_proj.weight");
    struct quantize_options o = options(scratch("nan"));
    const struct map *m = f->map;
    unsigned char *bytes = malloc(m->size), nan[2] = { 0xc0, 0x7f };
    FILE *out, *config;
    char text[4096];
    size_t n;

    (void)state;
    assert_non_null(bytes);
    memcpy(bytes, m->data, m->size);
    memcpy(bytes + (f->t.data - m->data) + 2 * (3 * 96 + 7), nan, sizeof nan);
    assert_int_equal(mkdir(scratch("nan"), 0700), 0);
    snprintf(text, sizeof text, "%s/config.json", model("llama_tiny"));
    assert_non_null(config = fopen(text, "r"));
    n = fread(text, 1, sizeof text - 1, config);
    text[n] = '\0';
    fclose(config);
    scratch_write("nan/config.json", text);
    assert_non_null(out = fopen(scratch("nan/model.safetensors"), "wb"));
    assert_int_equal(fwrite(bytes, 1, m->size, out), m->size);
    fclose(out);
    o.no_smooth = true;
    o.out = scratch("r");
    refused(&o, ERR_CORRUPT, "mlp.up_proj.weight: row 3, column 7 is nan");
    assert_false(scratch_has("r"));
    free(bytes);
    weights_close(w);
}

/* Each mistake is named, and OUT stays as it was. */
static void refusals(void **state)
{
    struct quantize_options o = options(scratch("none"));

    (void)state;
    scratch_remove("q");
    refused(&o, ERR_NOTFOUND, "no such model");
    assert_false(scratch_has("q"));
    o.in = model("llama_tiny");
    o.calibration = scratch("none.txt");
    refused(&o, ERR_NOTFOUND, "none.txt");
    assert_false(scratch_has("q"));
    o.calibration = NULL;
    o.no_smooth = true;
    run(&o);
    o.force = false;
    refused(&o, ERR_EXISTS, "--force");
    o.in = o.out;
    refused(&o, ERR_INVAL, "both");
    o.out = scratch("r");
    refused(&o, ERR_UNSUPPORTED, "quantized already");
    assert_false(scratch_has("r"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_are_nearest),
        cmocka_unit_test(smoothing_folds),
        cmocka_unit_test(smoothing_folds_experts),
        cmocka_unit_test(keeps_llama),
        cmocka_unit_test(keeps_qwen2),
        cmocka_unit_test(keeps_qwen3_moe),
        cmocka_unit_test(keeps_deepseek),
        cmocka_unit_test(types_by_recipe),
        cmocka_unit_test(fits_llama3),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refuses_nan),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
