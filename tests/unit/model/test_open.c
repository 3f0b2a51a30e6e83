/* Opening checkpoints: what is right opens the same way however it is cut, and what is wrong is
 * named. Every case is a small change to one good folder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/status.h"
#include "model/model.h"
#include "sys/map.h"
#include "text/tokenizer.h"

static struct kernels *kernels;
static char dir[64];
static struct map good; /* the good model.safetensors */
static uint64_t good_header;
static char good_print[65];

static const char *in_dir(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, const void *a, size_t na, const void *b, size_t nb)
{
    FILE *f = fopen(in_dir(name), "wb");

    assert_non_null(f);
    assert_true(fwrite(a, 1, na, f) == na && (nb == 0 || fwrite(b, 1, nb, f) == nb));
    fclose(f);
}

/* The config with one key set to a JSON value. */
static void write_config(const char *key, json_t *value)
{
    json_t *j = json_load_file(LLAMA_TINY "/config.json", 0, NULL);
    char *text;

    assert_non_null(j);
    if (key)
        json_object_set_new(j, key, value);
    text = json_dumps(j, 0);
    write_file("config.json", text, strlen(text), NULL, 0);
    free(text);
    json_decref(j);
}

static json_t *header(void)
{
    return json_loadb((const char *)good.data + 8, good_header, 0, NULL);
}

/* A safetensors file of this header (taken over), `pad` blanks, and the good data cut by `cut`. */
static void write_tensors(const char *name, json_t *j, size_t pad, size_t cut)
{
    char *text = json_dumps(j, 0);
    uint64_t n = strlen(text) + pad;
    unsigned char *head = malloc(8 + n);

    assert_non_null(head);
    memcpy(head, &n, sizeof n);
    memset(head + 8, ' ', n);
    memcpy(head + 8, text, strlen(text));
    write_file(name, head, 8 + n, good.data + 8 + good_header, good.size - 8 - good_header - cut);
    free(head);
    free(text);
    json_decref(j);
}

static int setup(void **state)
{
    struct k_options o = { .threads = 1 };
    struct err e = { 0 };

    (void)state;
    strcpy(dir, "/tmp/sluice-open-XXXXXX");
    if (!mkdtemp(dir) || kernels_open(&kernels, &o, &e) < 0 ||
        map_open(&good, LLAMA_TINY "/model.safetensors", &e) < 0)
        return -1;
    memcpy(&good_header, good.data, sizeof good_header);
    return 0;
}

static void forget_files(void)
{
    static const char *const names[] = { "config.json",
                                         "model.safetensors",
                                         "a.safetensors",
                                         "b.safetensors",
                                         "model.safetensors.index.json",
                                         "model-00001-of-00002.safetensors",
                                         "quant_model_weights.safetensors",
                                         "quant_model_description.json" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unlink(in_dir(names[i]));
}

static int teardown(void **state)
{
    (void)state;
    forget_files();
    rmdir(dir);
    map_close(&good);
    kernels_close(kernels);
    return 0;
}

static int open_at(struct model **m, const char *path, uint32_t first, uint32_t n, struct err *e)
{
    struct model_options o = {
        .path = path, .dtype = MODEL_DTYPE_FLOAT32, .first_layer = first, .n_layers = n
    };

    return model_open(m, kernels, &o, e);
}

static void refuse(int status, const char *part)
{
    struct model *m = NULL;
    struct err e = { 0 };
    int st = open_at(&m, dir, 0, 0, &e);

    if (st != status || !strstr(e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e.text,
                 status_name(status), part);
    assert_null(m);
    forget_files();
}

static void same_as_good(void)
{
    struct model *m;
    struct err e = { 0 };

    if (open_at(&m, dir, 0, 0, &e) < 0)
        fail_msg("%s", e.text);
    assert_string_equal(model_fingerprint(m), good_print);
    model_close(m);
    forget_files();
}

static void test_good(void **state)
{
    struct model *m;
    struct model_config c;
    struct err e = { 0 };

    (void)state;
    if (open_at(&m, LLAMA_TINY, 0, 0, &e) < 0)
        fail_msg("%s", e.text);
    strcpy(good_print, model_fingerprint(m));
    assert_int_equal(strlen(good_print), 64);
    assert_int_equal(model_kv_type(m), K_F32);
    assert_true(model_weight_bytes(m) > 0);
    model_close(m);
    assert_int_equal(model_read_config(&c, LLAMA_TINY, NULL, &e), 0);
    assert_true(c.tied_embeddings && c.head_dim == 32 && c.n_eos == 2);
}

static void test_stages(void **state)
{
    struct model *m;
    struct err e = { 0 };

    (void)state;
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(open_at(&m, LLAMA_TINY, i, 1, &e), 0);
        assert_string_equal(model_fingerprint(m), good_print);
        model_close(m);
    }
    assert_int_equal(open_at(&m, LLAMA_TINY, 2, 2, &e), ERR_RANGE);
    assert_non_null(strstr(e.text, "layers 2 to 3 asked for, but the model has 3"));
}

/* The good checkpoint as two files, the middle layer in a.safetensors, and the index of it. */
struct shards {
    json_t *a, *b, *map;
};

static int split(void **state)
{
    static struct shards s;
    json_t *all = header(), *j;
    const char *name;

    s = (struct shards){ json_object(), json_object(), json_object() };
    json_object_foreach(all, name, j)
    {
        bool first = strstr(name, "layers.1") != NULL;

        if (strcmp(name, "__metadata__") == 0)
            continue;
        json_object_set(first ? s.a : s.b, name, j);
        json_object_set_new(s.map, name, json_string(first ? "a.safetensors" : "b.safetensors"));
    }
    json_decref(all);
    *state = &s;
    return 0;
}

static int unsplit(void **state)
{
    struct shards *s = *state;

    json_decref(s->a);
    json_decref(s->b);
    json_decref(s->map);
    return 0;
}

static void write_index(json_t *map)
{
    json_t *index = json_pack("{s:O}", "weight_map", map);
    char *text = json_dumps(index, 0);

    write_file("model.safetensors.index.json", text, strlen(text), NULL, 0);
    free(text);
    json_decref(index);
}

static void test_shards(void **state)
{
    struct shards *s = *state;

    for (int indexed = 0; indexed <= 1; indexed++) {
        write_config(NULL, NULL);
        write_tensors("a.safetensors", json_incref(s->a), 0, 0);
        write_tensors("b.safetensors", json_incref(s->b), 0, 0);
        if (indexed)
            write_index(s->map);
        same_as_good();
    }
}

static void test_shard_missing(void **state)
{
    struct shards *s = *state;

    write_config(NULL, NULL);
    write_tensors("a.safetensors", json_incref(s->a), 0, 0);
    write_index(s->map);
    refuse(ERR_NOTFOUND, "model.safetensors.index.json: expected 2 files in the folder, found 1 of "
                         "them; missing: b.safetensors");
}

/* Without an index the names say how many there should be. */
static void test_shard_count(void **state)
{
    struct shards *s = *state;

    write_config(NULL, NULL);
    write_tensors("model-00001-of-00002.safetensors", json_incref(s->a), 0, 0);
    refuse(ERR_NOTFOUND, "expected 2 files *.safetensors by the name of "
                         "model-00001-of-00002.safetensors, found 1");
}

/* A file that the index does not name is left out: here it would be refused. */
static void test_shard_extra(void **state)
{
    struct shards *s = *state;

    write_config(NULL, NULL);
    write_tensors("a.safetensors", json_incref(s->a), 0, 0);
    write_tensors("b.safetensors", json_incref(s->b), 0, 0);
    write_tensors("model.safetensors", json_incref(s->a), 0, 0);
    write_index(s->map);
    same_as_good();
}

/* A folder that was quantized in place has both kinds of weights: those that go with the
 * description are taken. */
static void test_both_kinds(void **state)
{
    struct shards *s = *state;
    json_t *all = header(), *types = json_object(), *j;
    const char *name;
    char *text;

    json_object_foreach(all, name, j) json_object_set_new(types, name, json_string("FLOAT"));
    text = json_dumps(types, 0);
    write_config(NULL, NULL);
    write_tensors("model.safetensors", json_incref(s->a), 0, 0);
    write_tensors("quant_model_weights.safetensors", all, 0, 0);
    write_file("quant_model_description.json", text, strlen(text), NULL, 0);
    same_as_good();
    free(text);
    json_decref(types);
}

static void test_shard_twice(void **state)
{
    struct shards *s = *state;

    write_config(NULL, NULL);
    write_tensors("a.safetensors", json_incref(s->a), 0, 0);
    write_tensors("b.safetensors", json_incref(s->a), 0, 0);
    write_index(s->map);
    refuse(ERR_BADMSG, " is in ");
}

static void test_index_wrong(void **state)
{
    struct shards *s = *state;

    json_object_set_new(s->map, "model.norm.weight", json_string("a.safetensors"));
    write_config(NULL, NULL);
    write_tensors("a.safetensors", json_incref(s->a), 0, 0);
    write_tensors("b.safetensors", json_incref(s->b), 0, 0);
    write_index(s->map);
    refuse(ERR_BADMSG,
           "tensor model.norm.weight: expected in a.safetensors, found in b.safetensors");
}

static void test_index_refused(void **state)
{
    static const char escape[] = "{\"weight_map\":{\"x\":\"../secret.safetensors\"}}";

    (void)state;
    write_config(NULL, NULL);
    write_file("model.safetensors.index.json", escape, strlen(escape), NULL, 0);
    refuse(ERR_BADMSG, "expected the name of a file beside the index, found ../secret");
    write_config(NULL, NULL);
    write_file("model.safetensors.index.json", "{}", 2, NULL, 0);
    refuse(ERR_BADMSG, "no object \"weight_map\"");
}

/* An odd header puts every tensor at an odd address. */
static void test_unaligned(void **state)
{
    json_t *j = header();
    char *text = json_dumps(j, 0);

    (void)state;
    write_config(NULL, NULL);
    write_tensors("model.safetensors", j, strlen(text) % 2 ? 0 : 1, 0);
    free(text);
    same_as_good();
}

static void test_missing_things(void **state)
{
    json_t *j = header();

    (void)state;
    refuse(ERR_NOTFOUND, "no config.json in the folder");
    write_config(NULL, NULL);
    refuse(ERR_NOTFOUND, "no *.safetensors in the folder");
    write_config(NULL, NULL);
    json_object_del(j, "model.layers.1.mlp.up_proj.weight");
    write_tensors("model.safetensors", j, 0, 0);
    refuse(ERR_BADMSG, "tensor model.layers.1.mlp.up_proj.weight is missing");
    write_config("tie_word_embeddings", json_false());
    write_tensors("model.safetensors", header(), 0, 0);
    refuse(ERR_BADMSG, "tensor lm_head.weight is missing");
    write_config(NULL, NULL);
    write_tensors("model.safetensors", header(), 0, 1);
    refuse(ERR_BADMSG, "(truncated?)");
}

static void test_wrong_things(void **state)
{
    json_t *j = header();

    (void)state;
    write_config("architectures", json_pack("[s]", "GPT2LMHeadModel"));
    refuse(ERR_UNSUPPORTED, "architecture \"GPT2LMHeadModel\" is not supported; supported: "
                            "LlamaForCausalLM (GGUF: llama)");
    write_config("intermediate_size", json_integer(192));
    write_tensors("model.safetensors", header(), 0, 0);
    refuse(ERR_BADMSG,
           "model.safetensors: tensor model.layers.0.mlp.gate_proj.weight: expected shape "
           "[192, 96] by the configuration, found [160, 96]");
    write_config("head_dim", json_integer(16));
    write_tensors("model.safetensors", header(), 0, 0);
    refuse(ERR_BADMSG, "q_proj.weight: expected shape [64, 96]");
    write_config("hidden_size", json_integer(100));
    write_tensors("model.safetensors", header(), 0, 0);
    refuse(ERR_UNSUPPORTED, "multiples of 32");
    write_config(NULL, NULL);
    json_object_set_new(
        j, "model.layers.0.self_attn.q_proj.bias",
        json_pack("{s:s,s:[i],s:[i,i]}", "dtype", "BF16", "shape", 128, "data_offsets", 0, 256));
    write_tensors("model.safetensors", j, 0, 0);
    refuse(ERR_UNSUPPORTED, "tensor model.layers.0.self_attn.q_proj.bias: LlamaForCausalLM");
    j = header();
    json_object_set_new(j, "model.layers.0.mlp.up_proj.weight",
                        json_pack("{s:s,s:[i,i],s:[i,i]}", "dtype", "I16", "shape", 160, 96,
                                  "data_offsets", 0, 2 * 160 * 96));
    write_config(NULL, NULL);
    write_tensors("model.safetensors", j, 0, 0);
    refuse(ERR_UNSUPPORTED,
           "up_proj.weight is stored as I16, which is not supported; supported are F32, F16, BF16");
}

/* Layers that the configuration does not count would be left out silently. */
static void test_surplus_layers(void **state)
{
    json_t *j = header(), *norm = json_object_get(j, "model.norm.weight");

    (void)state;
    write_config("num_hidden_layers", json_integer(2));
    write_tensors("model.safetensors", header(), 0, 0);
    refuse(ERR_BADMSG, "model.safetensors: tensor model.layers.2.input_layernorm.weight: the "
                       "configuration says that the model has 2 layers (num_hidden_layers)");
    write_config("num_hidden_layers", json_integer(1));
    write_tensors("model.safetensors", header(), 0, 0);
    refuse(ERR_BADMSG, "no eh_proj");
    json_object_set(j, "model.layers.77.norm.weight", norm);
    write_config(NULL, NULL);
    write_tensors("model.safetensors", j, 0, 0);
    refuse(ERR_BADMSG, "tensor model.layers.77.norm.weight: a layer 77 has no place in a model of "
                       "3 layers and 0 multi-token prediction layers");
}

/* What standard error got while the model was opened, in a static buffer. */
static const char *opening_log(const struct model_options *o)
{
    static char text[8192];
    struct model *m = NULL;
    struct err e = { 0 };
    FILE *f = tmpfile();
    int old = dup(STDERR_FILENO), st;

    assert_true(f && old >= 0);
    dup2(fileno(f), STDERR_FILENO);
    st = model_open(&m, kernels, o, &e);
    dup2(old, STDERR_FILENO);
    close(old);
    rewind(f);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    model_close(m);
    if (st < 0)
        fail_msg("%s", e.text);
    return text;
}

/* One layer for drafts that is not counted stays out, and that is said. */
static void test_mtp_left_out(void **state)
{
    json_t *j = header();
    struct model_options o = { .path = dir, .dtype = MODEL_DTYPE_FLOAT32 };

    (void)state;
    json_object_set(j, "model.layers.3.eh_proj.weight", json_object_get(j, "model.norm.weight"));
    write_config(NULL, NULL);
    write_tensors("model.safetensors", j, 0, 0);
    assert_non_null(strstr(opening_log(&o), "leaving out a multi-token prediction layer: "
                                            "num_nextn_predict_layers is 0"));
    forget_files();
}

static void test_warnings(void **state)
{
    static const struct {
        enum model_dtype dtype;
        const char *overrides, *says; /* NULL: no warning */
    } cases[] = {
        { MODEL_DTYPE_AUTO, NULL, NULL },
        { MODEL_DTYPE_BFLOAT16, "{\"torch_dtype\":\"float16\"}", NULL },
        { MODEL_DTYPE_FLOAT16, NULL, "--dtype float16 with W8A8 weights" },
        { MODEL_DTYPE_AUTO, "{\"dtype\":\"half\"}",
          "\"dtype\": \"half\" in --hf-overrides with W8A8 weights" },
        { MODEL_DTYPE_AUTO, "{\"torch_dtype\":\"int3\"}",
          "--hf-overrides: \"torch_dtype\": \"int3\" is no type that is known here" },
        { MODEL_DTYPE_AUTO, "{\"rope_tetha\":10000}",
          "--hf-overrides: \"rope_tetha\" changes nothing: config.json does not have it and it is "
          "not read here; did you mean \"rope_theta\"?" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_options o = { .path = MODELS "/deepseek_v3_mini_w8a8_v1",
                                   .dtype = cases[i].dtype,
                                   .hf_overrides = cases[i].overrides };
        const char *log = opening_log(&o);

        if (cases[i].says ? !strstr(log, cases[i].says) : strstr(log, "WARNING") != NULL)
            fail_msg("case %zu: %s", i, log);
    }
}

static void test_dtype_in_config(void **state)
{
    struct model_options o = { .path = dir };
    const char *log;

    (void)state;
    write_config("torch_dtype", json_string("int3"));
    write_tensors("model.safetensors", header(), 0, 0);
    log = opening_log(&o);
    assert_non_null(strstr(log, "/config.json: \"torch_dtype\": \"int3\" is no type"));
    forget_files();
}

static void test_no_model(void **state)
{
    struct model *m;
    struct tokenizer *t;
    struct model_config c;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(open_at(&m, "/nonexistent/model", 0, 0, &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "/nonexistent/model: no such model"));
    write_file("config.json", "hello", 5, NULL, 0);
    assert_int_equal(model_read_config(&c, in_dir("config.json"), NULL, &e), ERR_BADMSG);
    assert_non_null(strstr(e.text, "offset 0: not a GGUF file"));
    assert_int_equal(model_load_tokenizer(&t, in_dir("config.json"), &e), ERR_BADMSG);
    forget_files();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_stages),
        cmocka_unit_test_setup_teardown(test_shards, split, unsplit),
        cmocka_unit_test_setup_teardown(test_shard_missing, split, unsplit),
        cmocka_unit_test_setup_teardown(test_shard_count, split, unsplit),
        cmocka_unit_test_setup_teardown(test_shard_extra, split, unsplit),
        cmocka_unit_test_setup_teardown(test_both_kinds, split, unsplit),
        cmocka_unit_test_setup_teardown(test_shard_twice, split, unsplit),
        cmocka_unit_test_setup_teardown(test_index_wrong, split, unsplit),
        cmocka_unit_test(test_index_refused),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_missing_things),
        cmocka_unit_test(test_wrong_things),
        cmocka_unit_test(test_surplus_layers),
        cmocka_unit_test(test_mtp_left_out),
        cmocka_unit_test(test_warnings),
        cmocka_unit_test(test_dtype_in_config),
        cmocka_unit_test(test_no_model),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
