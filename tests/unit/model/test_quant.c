/* What a folder says of its quantization: found, counted, and refused with the sentence that tells
 * what to change. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "folder.h"
#include "model/quant.h"

#define FP8(more) "{\"quantization_config\":{\"quant_method\":\"fp8\"" more "}}"
#define BLOCK     ",\"weight_block_size\":[128,128]"
#define SIDE(bits, type, symmetric, strategy, dynamic)                                             \
    "{\"num_bits\":" bits ",\"type\":\"" type "\",\"symmetric\":" symmetric                        \
    ",\"strategy\":\"" strategy "\",\"dynamic\":" dynamic "}"
#define WEIGHTS SIDE("8", "int", "true", "channel", "false")
#define INPUTS  SIDE("8", "int", "true", "token", "true")
#define COMPRESSED(format, weights, inputs)                                                        \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"" format       \
    "\",\"config_groups\":{\"group_0\":{\"weights\":" weights ",\"input_activations\":" inputs     \
    ",\"targets\":[\"Linear\"]}},\"ignore\":[\"lm_head\"]}}"
#define GOOD_COMPRESSED COMPRESSED("int-quantized", WEIGHTS, INPUTS)

static struct folder folder;

static int setup(void **state)
{
    (void)state;
    folder_make(&folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    folder_remove(&folder);
    return 0;
}

static int clear(void **state)
{
    (void)state;
    folder_clear(&folder);
    return 0;
}

static void check_sentence(int st, const struct err *e, int status, const char *part)
{
    if (st != status || !strstr(e->text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e->text,
                 status_name(status), part);
}

static enum quant_format format_of(const char *config)
{
    struct err e = { 0 };
    struct quant *q = quant_new();
    enum quant_format f;

    if (quant_read_config(q, config, strlen(config), NULL, "config.json", &e) < 0)
        fail_msg("%s", e.text);
    f = quant_format(q);
    quant_close(q);
    return f;
}

static void refuse_config(const char *config, int status, const char *part)
{
    struct err e = { 0 };
    struct quant *q = quant_new();
    int st = quant_read_config(q, config, strlen(config), NULL, "d/config.json", &e);

    check_sentence(st, &e, status, part);
    assert_int_equal(quant_format(q), QUANT_NONE);
    quant_close(q);
}

static void test_config(void **state)
{
    (void)state;
    assert_int_equal(format_of("{}"), QUANT_NONE);
    assert_int_equal(format_of("{\"quantization_config\":null}"), QUANT_NONE);
    assert_int_equal(format_of(FP8(BLOCK)), QUANT_FP8);
    assert_int_equal(format_of(FP8(BLOCK ",\"fmt\":\"e4m3\",\"scale_fmt\":\"ue8m0\"")), QUANT_FP8);
    assert_int_equal(format_of(GOOD_COMPRESSED), QUANT_COMPRESSED);
    refuse_config("{", ERR_BADMSG, "d/config.json: line 1");
    refuse_config("[]", ERR_BADMSG, "d/config.json: not a JSON object");
    refuse_config("{\"quantization_config\":{\"quant_method\":\"gptq\"}}", ERR_UNSUPPORTED,
                  "d/config.json: \"quantization_config\" with method \"gptq\" is not supported; "
                  "supported are fp8 and compressed-tensors");
    refuse_config("{\"quantization_config\":7}", ERR_UNSUPPORTED, "method \"?\"");
}

static void test_config_fp8(void **state)
{
    (void)state;
    refuse_config(FP8(",\"weight_block_size\":[64,128]"), ERR_UNSUPPORTED,
                  "fp8 with \"weight_block_size\" [64, 128] is not supported; [128, 128] is");
    refuse_config(FP8(""), ERR_UNSUPPORTED, "fp8 without \"weight_block_size\"");
    refuse_config(FP8(BLOCK ",\"fmt\":\"e5m2\""), ERR_UNSUPPORTED, "format \"e5m2\"");
    refuse_config(FP8(BLOCK ",\"activation_scheme\":\"static\""), ERR_UNSUPPORTED,
                  "\"activation_scheme\" \"static\"");
}

static void test_config_compressed(void **state)
{
    (void)state;
    refuse_config(COMPRESSED("pack-quantized", WEIGHTS, INPUTS), ERR_UNSUPPORTED,
                  "compressed-tensors in format \"pack-quantized\" is not supported");
    refuse_config(COMPRESSED("int-quantized", SIDE("4", "int", "true", "channel", "false"), INPUTS),
                  ERR_UNSUPPORTED, "weights of 4 bits in \"int\" are not supported; 8 bits");
    refuse_config(COMPRESSED("int-quantized", WEIGHTS, SIDE("8", "int", "false", "token", "true")),
                  ERR_UNSUPPORTED,
                  "asymmetric input_activations are not supported; symmetric ones are");
    refuse_config(COMPRESSED("int-quantized", WEIGHTS, SIDE("8", "int", "true", "tensor", "false")),
                  ERR_UNSUPPORTED,
                  "input_activations with strategy \"tensor\" are not supported; token is");
    refuse_config(COMPRESSED("int-quantized", SIDE("8", "int", "true", "group", "false"), INPUTS),
                  ERR_UNSUPPORTED, "weights with strategy \"group\" are not supported; channel is");
    refuse_config(COMPRESSED("int-quantized", WEIGHTS, "null"), ERR_UNSUPPORTED,
                  "a group without \"input_activations\" is not supported");
}

static void test_overrides(void **state)
{
    static const char config[] = FP8(BLOCK);
    struct err e = { 0 };
    struct quant *q = quant_new();

    (void)state;
    assert_int_equal(quant_read_config(q, config, sizeof config - 1,
                                       "{\"quantization_config\":null}", "config.json", &e),
                     0);
    assert_int_equal(quant_format(q), QUANT_NONE);
    quant_close(q);
}

static void open_as(const char *description, const char *config, struct quant **q)
{
    struct err e = { 0 };

    if (description)
        folder_text(&folder, "quant_model_description.json", description);
    folder_text(&folder, "config.json", config);
    if (quant_open(q, folder.path, NULL, &e) < 0)
        fail_msg("%s", e.text);
}

static void refuse_flag(const struct quant *q, const char *flag, int status, const char *part)
{
    struct err e = { 0 };

    check_sentence(quant_check_flag(q, flag, "m", &e), &e, status, part);
}

/* What was found against what was asked for, in every combination. */
static void test_flags(void **state)
{
    struct err e = { 0 };
    struct quant *q;

    (void)state;
    open_as(NULL, "{}", &q);
    assert_int_equal(quant_check_flag(q, NULL, "m", &e), 0);
    refuse_flag(q, "ascend", ERR_MISMATCH,
                "--quantization ascend: m has no quant_model_description.json");
    refuse_flag(q, "fp8", ERR_MISMATCH, "--quantization fp8: m/config.json has no");
    refuse_flag(q, "awq", ERR_UNSUPPORTED,
                "--quantization awq is not supported; ascend, fp8 and compressed-tensors are");
    quant_close(q);
    open_as(NULL, FP8(BLOCK), &q);
    assert_int_equal(quant_check_flag(q, NULL, "m", &e), 0);
    assert_int_equal(quant_check_flag(q, "fp8", "m", &e), 0);
    refuse_flag(q, "ascend", ERR_MISMATCH, "config.json; pass --quantization fp8 or leave it out");
    quant_close(q);
    open_as("{\"a.weight\":\"W8A8\"}", FP8(BLOCK), &q);
    assert_int_equal(quant_format(q), QUANT_ASCEND);
    assert_int_equal(quant_check_flag(q, NULL, "m", &e), 0);
    assert_int_equal(quant_check_flag(q, "ascend", "m", &e), 0);
    refuse_flag(q, "fp8", ERR_MISMATCH,
                "quant_model_description.json; pass --quantization ascend or leave it out");
    refuse_flag(q, "awq", ERR_MISMATCH, "pass --quantization ascend");
    quant_close(q);
    assert_int_equal(quant_open_gguf(&q, "gguf", "m.gguf", &e), 0);
    quant_close(q);
    check_sentence(quant_open_gguf(&q, "ascend", "m.gguf", &e), &e, ERR_MISMATCH,
                   "--quantization ascend: m.gguf is a GGUF file");
}

static void test_description_names(void **state)
{
    struct err e = { 0 };
    struct quant *q;

    (void)state;
    folder_text(&folder, "config.json", "{}");
    folder_text(&folder, "quant_model_description_w8a8_dynamic.json", "{\"a.weight\":\"W8A8\"}");
    assert_int_equal(quant_open(&q, folder.path, NULL, &e), 0);
    assert_int_equal(quant_format(q), QUANT_ASCEND);
    assert_string_equal(quant_entry(q, "a.weight"), "W8A8");
    assert_null(quant_entry(q, "b.weight"));
    quant_close(q);
    folder_text(&folder, "quant_model_description_w8a8.json", "{}");
    check_sentence(quant_open(&q, folder.path, NULL, &e), &e, ERR_BADMSG,
                   "2 files quant_model_description_*.json; call the one that counts");
    folder_text(&folder, "quant_model_description.json",
                "{\"b.weight\":\"FLOAT\",\"group_size\":0}");
    assert_int_equal(quant_open(&q, folder.path, NULL, &e), 0);
    assert_string_equal(quant_entry(q, "b.weight"), "FLOAT");
    assert_null(quant_entry(q, "group_size"));
    quant_close(q);
    folder_text(&folder, "quant_model_description.json", "{\"b.weight\":");
    check_sentence(quant_open(&q, folder.path, NULL, &e), &e, ERR_BADMSG,
                   "quant_model_description.json: line 1");
}

static const char zeros[512];

/* One linear of every kind that ModelSlim writes. */
static void add_all(void)
{
    static const char *const names[] = { "a.input_scale", "a.input_offset", "a.deq_scale",
                                         "a.quant_bias",  "d.weight_scale", "d.weight_offset" };

    folder_add(&folder, "a.weight", "I8", 1, 4, 8, zeros);
    folder_add(&folder, "d.weight", "I8", 1, 4, 8, zeros);
    folder_add(&folder, "f.weight", "BF16", 2, 4, 8, zeros);
    folder_add(&folder, "n.weight", "BF16", 2, 0, 8, zeros);
    folder_add(&folder, "model.embed_tokens.weight", "BF16", 2, 4, 8, zeros);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        folder_add(&folder, names[i], "F32", 4, 0, 4, zeros);
}

#define DESCRIPTION                                                                                \
    "{\"version\":\"1.0.0\",\"model_quant_type\":\"W8A8\",\"a.weight\":\"W8A8\","                  \
    "\"d.weight\":\"W8A8_DYNAMIC\",\"f.weight\":\"FLOAT\"}"

/* The folder's layers 0 and 1 are loaded. */
static int check(const char *description, struct quant_count *n, struct err *e)
{
    struct quant *q;
    struct weights *w;
    int st;

    open_as(description, "{}", &q);
    folder_write(&folder, "model.safetensors");
    if (weights_open_dir(&w, folder.path, e) < 0)
        fail_msg("%s", e->text);
    weights_select(w, 0, 2);
    st = quant_check(q, w, n, e);
    weights_close(w);
    quant_close(q);
    return st;
}

static void refuse_check(const char *description, int status, const char *part)
{
    struct err e = { 0 };
    struct quant_count n;
    int st = check(description, &n, &e);

    check_sentence(st, &e, status, part);
}

static void test_count(void **state)
{
    struct err e = { 0 };
    struct quant_count n;

    (void)state;
    add_all();
    if (check(DESCRIPTION, &n, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(n.n[QUANT_W8A8], 1);
    assert_int_equal(n.n[QUANT_W8A8_DYNAMIC], 1);
    assert_int_equal(n.n[QUANT_FLOAT], 1);
}

/* The line in the log, and what is said of float16. */
static void test_texts(void **state)
{
    char text[QUANT_TEXT];
    struct quant_count n = { { 0 } };
    struct quant *q;

    (void)state;
    open_as(DESCRIPTION, "{}", &q);
    n.n[QUANT_FLOAT] = 3;
    n.n[QUANT_W8A8_DYNAMIC] = 5;
    assert_string_equal(
        quant_text(text, q, &n),
        "quantized as ascend (quant_model_description.json): linears 5 W8A8_DYNAMIC, 3 FLOAT");
    assert_false(quant_warning(text, q, &n, "bfloat16", "m"));
    assert_false(quant_warning(text, q, &n, "", "m"));
    assert_true(quant_warning(text, q, &n, "half", "m"));
    assert_true(quant_warning(text, q, &n, "float16", "--dtype float16"));
    assert_non_null(strstr(text, "--dtype float16 with W8A8 weights is served here"));
    assert_non_null(strstr(text, "\"Tensor scale not implemented for DT_FLOAT16\""));
    assert_non_null(strstr(text, "say \"bfloat16\" there"));
    n.n[QUANT_W8A8_DYNAMIC] = 0;
    assert_false(quant_warning(text, q, &n, "float16", "m"));
    quant_close(q);
    assert_non_null(q = quant_new());
    assert_string_equal(quant_text(text, q, &n), "not quantized: linears 3 FLOAT");
    quant_close(q);
}

static void accept_check(const char *description)
{
    struct err e = { 0 };
    struct quant_count n;

    if (check(description, &n, &e) < 0)
        fail_msg("%s", e.text);
}

/* Each tensor that may be missing, by itself: its name, where it was expected. */
static void test_missing_each(void **state)
{
    static const char *const names[] = { "a.input_scale", "a.input_offset", "a.deq_scale",
                                         "a.quant_bias", "d.weight_scale" };
    char want[256];

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        folder_clear(&folder);
        add_all();
        folder_drop(&folder, names[i]);
        snprintf(want, sizeof want,
                 "/model.safetensors: 1 tensor is missing that ascend weights need (%s/"
                 "quant_model_description.json): %s; expected beside %c.weight, found in no file",
                 folder.path, names[i], names[i][0]);
        refuse_check(DESCRIPTION, ERR_BADMSG, want);
    }
}

static void test_missing_all(void **state)
{
    char name[64], text[4096] = "{", *at = text + 1;

    (void)state;
    for (int i = 0; i < 8; i++) {
        snprintf(name, sizeof name, "l%d.weight", i);
        folder_add(&folder, name, "I8", 1, 4, 8, zeros);
        at += sprintf(at, "%s\"%s\":\"W8A8_DYNAMIC\"", i ? "," : "", name);
    }
    strcpy(at, "}");
    refuse_check(text, ERR_BADMSG, "8 tensors are missing that ascend weights need");
    refuse_check(text, ERR_BADMSG,
                 "l0.weight_scale, l1.weight_scale, l2.weight_scale, l3.weight_scale, "
                 "l4.weight_scale, l5.weight_scale and 2 more; expected beside l0.weight");
}

/* Weights without an offset are symmetric, unless the description says that there is one. */
static void test_offset(void **state)
{
    (void)state;
    add_all();
    folder_drop(&folder, "d.weight_offset");
    accept_check(DESCRIPTION);
    refuse_check("{\"a.weight\":\"W8A8\",\"d.weight\":\"W8A8_DYNAMIC\","
                 "\"d.weight_offset\":\"W8A8_DYNAMIC\"}",
                 ERR_BADMSG,
                 "quant_model_description.json: 1 tensor is missing that it describes: "
                 "d.weight_offset; found in no file");
}

#define NORM(layer, what) "\"model.layers." layer ".input_layernorm." what "\":\"FLOAT\""

/* What the description has an entry for must be there in the layers that are loaded. */
static void test_described(void **state)
{
    static const char *const layers[] = { "model.layers.0.input_layernorm.weight",
                                          "model.layers.1.input_layernorm.weight" };

    (void)state;
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++)
        folder_add(&folder, layers[i], "BF16", 2, 0, 8, zeros);
    refuse_check("{" NORM("1", "weight") "," NORM("1", "bias") "}", ERR_BADMSG,
                 "1 tensor is missing that it describes: model.layers.1.input_layernorm.bias; ");
    refuse_check("{" NORM("0", "a") "," NORM("0", "b") "," NORM("0", "c") "," NORM(
                     "1", "d") "," NORM("1", "e") "," NORM("1", "f") "," NORM("1", "g") "}",
                 ERR_BADMSG, "model.layers.1.input_layernorm.f and 1 more; found in no file");
    refuse_check("{\"model.norm.bias\":\"FLOAT\"}", ERR_BADMSG,
                 "1 tensor is missing that it describes: model.norm.bias; ");
    refuse_check("{" NORM("1", "weight_offset") "}", ERR_BADMSG, "input_layernorm.weight_offset; ");
}

/* What is of no layer that is loaded, or could change nothing. */
static void test_described_in_vain(void **state)
{
    (void)state;
    folder_add(&folder, "model.layers.1.input_layernorm.weight", "BF16", 2, 0, 8, zeros);
    folder_add(&folder, "model.layers.10.input_layernorm.weight", "BF16", 2, 0, 8, zeros);
    accept_check("{" NORM("10", "bias") "," NORM("2", "bias") "}");
    accept_check("{" NORM("1", "weight") "," NORM("1", "weight_offset") "}");
    accept_check("{\"lm_head.weight\":\"FLOAT\",\"kv_type\":\"C8\",\"optional\":{\"a.b\":1}}");
    accept_check("{\"model.layers.1.self_attn.rotary_emb.inv_freq\":\"FLOAT\"}");
}

static void test_contradictions(void **state)
{
    (void)state;
    add_all();
    refuse_check("{\"d.weight\":\"W8A8_DYNAMIC\"}", ERR_BADMSG,
                 "model.safetensors: tensor a.weight is stored as I8, but ");
    refuse_check("{\"d.weight\":\"W8A8_DYNAMIC\"}", ERR_BADMSG,
                 "has no entry for it: expected W8A8, W8A8_DYNAMIC or FLOAT");
    refuse_check("{\"a.weight\":\"FLOAT\"}", ERR_BADMSG,
                 "tensor a.weight: expected BF16, F16 or F32, because ");
    refuse_check("{\"a.weight\":\"W8A8\",\"d.weight\":\"W4A8_DYNAMIC\"}", ERR_UNSUPPORTED,
                 "tensor d.weight is quantized as \"W4A8_DYNAMIC\", which is not supported; W8A8, "
                 "W8A8_DYNAMIC and FLOAT are");
    folder_add(&folder, "a.weight", "I16", 2, 4, 8, zeros);
    refuse_check(DESCRIPTION, ERR_BADMSG, "calls it W8A8, found I16");
    folder_add(&folder, "a.weight", "BF16", 2, 4, 8, zeros);
    refuse_check(DESCRIPTION, ERR_BADMSG, "tensor a.weight: expected I8, because ");
}

/* int8 or e4m3 that nothing explains. */
/* A folder of compressed-tensors with these lists, checked. */
static int check_lists(const char *targets, const char *ignore, struct err *e)
{
    struct quant_count n;
    char config[2048];
    struct weights *w;
    struct quant *q;
    int st;

    snprintf(config, sizeof config,
             "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
             "\"int-quantized\",\"config_groups\":{\"group_0\":{\"weights\":%s,"
             "\"input_activations\":%s,\"targets\":%s}},\"ignore\":%s}}",
             WEIGHTS, INPUTS, targets, ignore);
    folder_text(&folder, "config.json", config);
    if ((st = quant_open(&q, folder.path, NULL, e)) < 0)
        return st;
    folder_write(&folder, "model.safetensors");
    if (weights_open_dir(&w, folder.path, e) < 0)
        fail_msg("%s", e->text);
    st = quant_check(q, w, &n, e);
    weights_close(w);
    quant_close(q);
    return st;
}

/* int8 in layer 0, but for its down_proj; routers and heads are float. */
static void test_targets(void **state)
{
#define L0 "model.layers.0."
    static const struct {
        const char *targets, *ignore, *part; /* NULL: it is in order */
    } cases[] = {
        { "[\"Linear\"]", "[\"lm_head\",\"" L0 "mlp.down_proj\"]", NULL },
        { "[\"Linear\"]", "[\"re:.*down_proj\",\"re:.*gate$\"]", NULL },
        { "null", "[\"re:.*mlp.down_proj$\"]", NULL },
        { "[\"re:.*self_attn.*\",\"" L0 "mlp.up_proj\"]", "null", NULL },
        { "[\"Linear\"]", "[\"lm_head\"]", L0 "mlp.down_proj.weight: expected I8, because " },
        { "[\"Linear\",\"re:.*down.*\"]", "[]",
          "(\"targets\" has \"re:.*down.*\" and \"ignore\" does not name it), found BF16" },
        { "[\"Linear\"]", "[\"re:.*_proj$\"]", L0 "mlp.up_proj.weight is stored as I8, but by " },
        { "[\"Linear\"]", "[\"re:.*_proj$\"]", "(\"ignore\" has \"re:.*_proj$\")" },
        { "[\"re:.*self_attn.*\"]", "[]", "(no \"targets\" name it)" },
        { "[\"re:self_attn.*\"]", "[]", "(no \"targets\" name it)" }, /* not from its beginning */
        { "[\"Linear\"]", "[\"re:(\"]", "\"re:(\": " },
        { "[\"Linear\"]", "[1]", "entry 0 of \"ignore\" is not a name" },
        { "\"Linear\"", "[]", "\"targets\" must be a list of names" },
    };
    struct err e = { 0 };

    (void)state;
    folder_add(&folder, L0 "self_attn.q_proj.weight", "I8", 1, 4, 8, zeros);
    folder_add(&folder, L0 "self_attn.q_proj.weight_scale", "F32", 4, 0, 4, zeros);
    folder_add(&folder, L0 "mlp.up_proj.weight", "I8", 1, 4, 8, zeros);
    folder_add(&folder, L0 "mlp.up_proj.weight_scale", "F32", 4, 0, 4, zeros);
    folder_add(&folder, L0 "mlp.down_proj.weight", "BF16", 2, 4, 8, zeros);
    folder_add(&folder, L0 "mlp.gate.weight", "BF16", 2, 4, 8, zeros);
    folder_add(&folder, "lm_head.weight", "BF16", 2, 4, 8, zeros);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int st = check_lists(cases[i].targets, cases[i].ignore, &e);

        if (cases[i].part)
            check_sentence(st, &e, ERR_BADMSG, cases[i].part);
        else if (st < 0)
            fail_msg("targets %s, ignore %s: %s", cases[i].targets, cases[i].ignore, e.text);
    }
#undef L0
}

static void test_unexplained(void **state)
{
    (void)state;
    folder_add(&folder, "a.weight", "I8", 1, 4, 8, zeros);
    refuse_check(NULL, ERR_BADMSG,
                 "tensor a.weight is stored as I8, but nothing says how to read it: expected "
                 "quant_model_description.json in the folder (--quantization ascend)");
    folder_clear(&folder);
    folder_add(&folder, "a.weight", "F8_E4M3", 1, 4, 8, zeros);
    refuse_check(NULL, ERR_BADMSG, "tensor a.weight is stored as F8_E4M3, but config.json has no");
}

/* Opens the folder; what it logs goes into out. */
static struct weights *open_logged(char *out, size_t room)
{
    struct err e = { 0 };
    struct weights *w = NULL;
    FILE *f = tmpfile();
    int saved = dup(STDERR_FILENO), st;

    assert_non_null(f);
    dup2(fileno(f), STDERR_FILENO);
    st = weights_open_dir(&w, folder.path, &e);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    out[fread(out, 1, room - 1, f)] = '\0';
    fclose(f);
    if (st < 0)
        fail_msg("%s", e.text);
    return w;
}

/* A quantized folder with a second file as ModelSlim calls that of the layer for drafts, and the
 * weights that it was made of. */
static void write_files(void)
{
    folder_text(&folder, "quant_model_description.json", "{\"a.weight\":\"FLOAT\"}");
    folder_add(&folder, "a.weight", "BF16", 2, 4, 8, zeros);
    folder_write(&folder, "quant_model_weights-00001-of-00001.safetensors");
    folder_write(&folder, "model.safetensors");
    folder_drop(&folder, "a.weight");
    folder_add(&folder, "m.weight", "BF16", 2, 4, 8, zeros);
    folder_write(&folder, "mtp_float-1.safetensors");
}

/* The index says which files are taken, whatever they are called. */
static void test_index(void **state)
{
    char log[1024];
    struct weights *w;

    (void)state;
    write_files();
    folder_text(&folder, "quant_model_weights.safetensors.index.json",
                "{\"weight_map\":{\"a.weight\":\"quant_model_weights-00001-of-00001.safetensors\","
                "\"m.weight\":\"mtp_float-1.safetensors\"}}");
    w = open_logged(log, sizeof log);
    assert_int_equal(w->n, 2);
    assert_non_null(weights_find(w, "m.weight"));
    assert_non_null(strstr(weights_find(w, "a.weight")->file, "/quant_model_weights-00001"));
    assert_non_null(strstr(log, "1 file(s) *.safetensors that the index does not name are left out:"
                                " model.safetensors"));
    weights_close(w);
}

/* Without one only those that the tool names as its own, and a word about the others. */
static void test_no_index(void **state)
{
    char log[1024];
    struct weights *w;

    (void)state;
    write_files();
    w = open_logged(log, sizeof log);
    assert_int_equal(w->n, 1);
    assert_non_null(strstr(weights_find(w, "a.weight")->file, "/quant_model_weights-00001"));
    assert_non_null(strstr(log, "2 file(s) *.safetensors that no index names and that are not "
                                "called quant_model_weight* are left out: model.safetensors, "
                                "mtp_float-1.safetensors"));
    weights_close(w);
}

#define QUANT_TEST(f) cmocka_unit_test_teardown(f, clear)

int main(void)
{
    const struct CMUnitTest tests[] = {
        QUANT_TEST(test_config),
        QUANT_TEST(test_config_fp8),
        QUANT_TEST(test_config_compressed),
        QUANT_TEST(test_overrides),
        QUANT_TEST(test_flags),
        QUANT_TEST(test_description_names),
        QUANT_TEST(test_count),
        QUANT_TEST(test_missing_each),
        QUANT_TEST(test_missing_all),
        QUANT_TEST(test_offset),
        QUANT_TEST(test_described),
        QUANT_TEST(test_described_in_vain),
        QUANT_TEST(test_contradictions),
        QUANT_TEST(test_targets),
        QUANT_TEST(test_unexplained),
        QUANT_TEST(test_texts),
        QUANT_TEST(test_index),
        QUANT_TEST(test_no_index),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
