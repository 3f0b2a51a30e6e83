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
    static const char *const names[] = { "config.json", "model.safetensors", "a.safetensors",
                                         "b.safetensors", "model.safetensors.index.json" };

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
    assert_int_equal(model_read_config(&c, LLAMA_TINY, &e), 0);
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
    refuse(ERR_NOTFOUND, "b.safetensors: cannot open");
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
                        json_pack("{s:s,s:[i,i],s:[i,i]}", "dtype", "I8", "shape", 160, 96,
                                  "data_offsets", 0, 160 * 96));
    write_config(NULL, NULL);
    write_tensors("model.safetensors", j, 0, 0);
    refuse(ERR_UNSUPPORTED,
           "up_proj.weight is stored as I8, which is not supported; supported are");
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
    assert_int_equal(model_read_config(&c, in_dir("config.json"), &e), ERR_BADMSG);
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
        cmocka_unit_test_setup_teardown(test_shard_twice, split, unsplit),
        cmocka_unit_test_setup_teardown(test_index_wrong, split, unsplit),
        cmocka_unit_test(test_index_refused),
        cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_missing_things),
        cmocka_unit_test(test_wrong_things),
        cmocka_unit_test(test_no_model),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
