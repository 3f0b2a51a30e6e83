/* Made checkpoints: they have the tensors that the published ones have, the loader takes them, the
 * numbers behave, and the bytes depend on the seed alone. */
#include "rig.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "ops/mkmodel.h"
#include "ops/runner.h"

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

static struct mkmodel_options options(const char *config, const char *out)
{
    return (struct mkmodel_options){
        .config = config, .out = out, .max_shard_bytes = 5u << 20, .quiet = true, .threads = 2
    };
}

static void make(const struct mkmodel_options *o)
{
    struct err e = { "" };

    if (mkmodel(o, &e) < 0)
        fail_msg("%s", e.text);
}

/* golden/models/<name>/config.json, or the test is skipped. */
static const char *config_of(const char *name)
{
    char path[128];
    const char *found;

    snprintf(path, sizeof path, "models/%s/config.json", name);
    if (!(found = golden(path)))
        skip();
    return found;
}

static void check_tensors(const char *name, enum mkmodel_layout layout)
{
    const char *config = config_of(name);
    struct mkmodel_options o = options(config, scratch("m"));
    char folder[512];

    o.layout = layout;
    make(&o);
    snprintf(folder, sizeof folder, "%.*s", (int)(strrchr(config, '/') - config), config);
    assert_same_tensors(o.out, folder);
    scratch_remove("m");
}

static void same_tensors_llama(void **state)
{
    (void)state;
    check_tensors("llama_tiny", MKMODEL_BF16);
}

static void same_tensors_qwen3(void **state)
{
    (void)state;
    check_tensors("qwen3_tiny", MKMODEL_BF16);
}

static void same_tensors_qwen3_moe(void **state)
{
    (void)state;
    check_tensors("qwen3_moe_tiny", MKMODEL_BF16);
}

static void same_tensors_deepseek(void **state)
{
    (void)state;
    check_tensors("deepseek_v3_tiny", MKMODEL_BF16);
}

static void same_tensors_fp8(void **state)
{
    (void)state;
    check_tensors("deepseek_v3_tiny_fp8", MKMODEL_FP8);
}

static void same_tensors_w8a8(void **state)
{
    (void)state;
    check_tensors("deepseek_v3_mini_w8a8_v1", MKMODEL_W8A8);
}

/* The description agrees with the published one entry by entry. */
static void same_description(void **state)
{
    struct mkmodel_options o = options(config_of("deepseek_v3_mini_w8a8_v1"), scratch("m"));
    json_t *want, *got;

    (void)state;
    o.layout = MKMODEL_W8A8;
    make(&o);
    want = json_load_file(golden("models/deepseek_v3_mini_w8a8_v1/quant_model_description.json"), 0,
                          NULL);
    got = json_load_file(scratch("m/quant_model_description.json"), 0, NULL);
    assert_non_null(want);
    assert_true(json_equal(want, got));
    json_decref(want);
    json_decref(got);
    scratch_remove("m");
}

static const int32_t prompt[] = { 3, 200, 17, 99, 250, 4, 77, 180, 33, 12 };
#define N_PROMPT (sizeof prompt / sizeof *prompt)

struct seen {
    uint32_t steps;
    double largest; /* rms of the residual stream over all layers */
};

static void watch(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                  uint32_t cols)
{
    struct seen *s = arg;
    double sum = 0;

    if (strncmp(name, "layer", 5) != 0)
        return;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++)
            sum += (double)rows[i * ld + j] * (double)rows[i * ld + j];
    sum = sqrt(sum / n / cols);
    s->steps++;
    s->largest = sum <= s->largest ? s->largest : sum; /* a NaN stays */
}

/* Loads what was made and runs it: the mean surprise is that of numbers that neither died nor blew
 * up, and the stream stays near its beginning. */
static double run(const char *path, double most)
{
    struct runner *r = NULL;
    struct err e = { "" };
    struct seen s = { 0 };
    double score;

    if (runner_create(&r, kernels, path, MODEL_DTYPE_FLOAT32, &e) < 0)
        fail_msg("%s", e.text);
    runner_probe(r, watch, &s);
    score = runner_score(r, prompt, N_PROMPT);
    assert_int_equal(s.steps, runner_config(r)->n_layers);
    assert_true(s.largest > 0.05 && s.largest < most);
    assert_true(score > 3 && score < 25);
    runner_destroy(r);
    return score;
}

static void check_loads(const char *name, enum mkmodel_layout layout)
{
    struct mkmodel_options o = options(config_of(name), scratch("m"));

    o.layout = layout;
    make(&o);
    run(o.out, 4);
    scratch_remove("m");
}

static void loads_llama(void **state)
{
    (void)state;
    for (int l = MKMODEL_BF16; l <= MKMODEL_W8A8; l++)
        check_loads("llama_tiny", (enum mkmodel_layout)l);
}

static void loads_qwen3_moe(void **state)
{
    (void)state;
    for (int l = MKMODEL_BF16; l <= MKMODEL_W8A8; l++)
        check_loads("qwen3_moe_tiny", (enum mkmodel_layout)l);
}

static void loads_deepseek(void **state)
{
    (void)state;
    for (int l = MKMODEL_BF16; l <= MKMODEL_W8A8; l++)
        check_loads("deepseek_v3_tiny", (enum mkmodel_layout)l);
}

/* The tiny Llama's configuration as that of another class, into a file of this name. */
static void write_class(const char *name, const char *class)
{
    json_t *j = json_load_file(config_of("llama_tiny"), 0, NULL);

    assert_non_null(j);
    json_object_set_new(j, "architectures", json_pack("[s]", class));
    assert_int_equal(json_dump_file(j, scratch(name), 0), 0);
    json_decref(j);
}

/* Qwen2 has biases that no key of config.json mentions. */
static void loads_qwen2(void **state)
{
    (void)state;
    write_class("qwen2.json", "Qwen2ForCausalLM");
    for (int l = MKMODEL_BF16; l <= MKMODEL_W8A8; l++) {
        struct mkmodel_options o = options(scratch("qwen2.json"), scratch("m"));

        o.layout = (enum mkmodel_layout)l;
        make(&o);
        run(o.out, 4);
        scratch_remove("m");
    }
}

/* The layouts of a seed hold one model: the rounding of FP8 and int8 moves little. */
static void layouts_agree(void **state)
{
    struct mkmodel_options o = options(config_of("llama_tiny"), scratch("m"));
    double score[3];

    (void)state;
    for (int l = MKMODEL_BF16; l <= MKMODEL_W8A8; l++) {
        o.layout = (enum mkmodel_layout)l;
        make(&o);
        score[l] = run(o.out, 4);
        scratch_remove("m");
    }
    assert_true(fabs(score[MKMODEL_FP8] - score[MKMODEL_BF16]) < 0.5);
    assert_true(fabs(score[MKMODEL_W8A8] - score[MKMODEL_BF16]) < 0.5);
}

/* Neither threads nor the size of the files change a byte; the seed does. */
static void same_bytes(void **state)
{
    struct mkmodel_options o = options(config_of("llama_tiny"), scratch("a"));
    struct mkmodel_options p = options(o.config, scratch("b"));
    struct err e = { "" };

    (void)state;
    o.threads = 1;
    p.threads = 3;
    p.max_shard_bytes = 40000;
    make(&o);
    make(&p);
    assert_true(scratch_has("a/model-00001-of-00001.safetensors"));
    assert_false(scratch_has("b/model-00001-of-00001.safetensors"));
    assert_same_bytes(scratch("a"), scratch("b"));
    p.force = true;
    p.seed = 1;
    assert_int_equal(mkmodel(&p, &e), 0);
    assert_same_tensors(scratch("a"), scratch("b")); /* and no file of the first time is left */
    scratch_remove("a");
    scratch_remove("b");
}

static void copies_tokenizer(void **state)
{
    struct mkmodel_options o = options(config_of("llama_tiny"), scratch("m"));

    (void)state;
    o.tokenizer = golden("tokenizers");
    if (!o.tokenizer)
        skip();
    make(&o);
    assert_true(scratch_has("m/tokenizer.json"));
    assert_true(scratch_has("m/tokenizer_config.json"));
    scratch_remove("m");
}

static void refused(const struct mkmodel_options *o, int st, const char *part)
{
    struct err e = { "" };

    assert_int_equal(mkmodel(o, &e), st);
    if (!strstr(e.text, part))
        fail_msg("expected \"%s\" in: %s", part, e.text);
}

/* Each mistake is named, and nothing is left of the attempt. */
static void refusals(void **state)
{
    struct mkmodel_options o = options(scratch("none.json"), scratch("m"));

    (void)state;
    refused(&o, ERR_NOTFOUND, "none.json");
    scratch_write("bad.json", "{ \"architectures\": ");
    o.config = scratch("bad.json");
    refused(&o, ERR_BADMSG, "line 1");
    write_class("bad.json", "GPT2LMHeadModel");
    refused(&o, ERR_UNSUPPORTED, "GPT2LMHeadModel");
    scratch_write("bad.json", "{ \"architectures\": [\"LlamaForCausalLM\"] }");
    refused(&o, ERR_BADMSG, "\"num_hidden_layers\" is missing");
    assert_false(scratch_has("m"));

    o.config = config_of("llama_tiny");
    o.tokenizer = scratch("");
    refused(&o, ERR_NOTFOUND, "no tokenizer files");
    assert_false(scratch_has("m"));
    o.tokenizer = NULL;
    make(&o);
    refused(&o, ERR_EXISTS, "--force");
    assert_true(scratch_has("m/config.json"));
    scratch_remove("m");
    o.out = "/proc/nowhere/m";
    refused(&o, ERR_IO, "/proc/nowhere/m");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_tensors_llama),
        cmocka_unit_test(same_tensors_qwen3),
        cmocka_unit_test(same_tensors_qwen3_moe),
        cmocka_unit_test(same_tensors_deepseek),
        cmocka_unit_test(same_tensors_fp8),
        cmocka_unit_test(same_tensors_w8a8),
        cmocka_unit_test(same_description),
        cmocka_unit_test(loads_llama),
        cmocka_unit_test(loads_qwen3_moe),
        cmocka_unit_test(loads_deepseek),
        cmocka_unit_test(loads_qwen2),
        cmocka_unit_test(layouts_agree),
        cmocka_unit_test(same_bytes),
        cmocka_unit_test(copies_tokenizer),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
