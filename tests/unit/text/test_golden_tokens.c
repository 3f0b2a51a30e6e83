/* Token ids and texts against the reference tokenizer (HuggingFace's): SmolLM2's vocabulary from its
 * GGUF file, the tiny models', and, where SLUICE_TOKENIZERS has folders of that name, DeepSeek-V3's
 * and Qwen3's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hash.h"
#include "base/status.h"
#include "golden.h"
#include "model/model.h"
#include "text/tokenizer.h"

/* Counts what is equal, and names the first few that are not. */
struct tally {
    const char *what;
    size_t equal, total;
};

static void count(struct tally *t, bool equal, const char *text)
{
    t->total++;
    t->equal += equal;
    if (!equal && t->total - t->equal <= 5)
        print_error("%s: differs: '%.80s'\n", t->what, text ? text : "");
}

static void report(const struct tally *t)
{
    print_message("%s: %zu of %zu equal\n", t->what, t->equal, t->total);
    assert_true(t->total > 0);
    assert_int_equal(t->equal, t->total);
}

/* Drops the reference data when the model is not there. */
static struct tokenizer *smollm2(json_t *reference)
{
    char *path = golden_model();
    struct tokenizer *t = NULL;
    struct err e = { 0 };

    if (!path) {
        json_decref(reference);
        skip();
    }
    if (model_load_tokenizer(&t, path, &e) < 0)
        fail_msg("%s", e.text);
    free(path);
    return t;
}

static json_t *golden(const char *name)
{
    json_t *j = golden_json(name);

    if (!j)
        skip();
    return j;
}

/* Does a text already begin with what would be put before it? The reference doubles it there. */
static bool begins(const json_t *ids, const json_t *special)
{
    return json_array_size(special) == json_array_size(ids) + 1 &&
           json_equal(json_array_get(ids, 0), json_array_get(special, 0));
}

/* text, ids, ids_plain, ids_special, decoded, decoded_skip_special. */
static void check_vectors(const struct tokenizer *t, const json_t *vectors, const char *what)
{
    struct tally tally = { .what = what };
    json_t *v;
    size_t i;

    json_array_foreach(vectors, i, v)
    {
        json_t *text = json_object_get(v, "text"), *ids = json_object_get(v, "ids");
        json_t *plain = json_object_get(v, "ids_plain"), *spec = json_object_get(v, "ids_special");
        json_t *skip = json_object_get(v, "decoded_skip_special");
        json_t *decoded = json_object_get(v, "decoded");
        const char *s = json_string_value(text);
        size_t n = json_string_length(text);

        count(&tally,
              golden_encodes(t, s, n, 0, ids) &&
                  (!plain || golden_encodes(t, s, n, TOK_PLAIN_SPECIAL, plain)) &&
                  (!spec ||
                   golden_encodes(t, s, n, TOK_ADD_SPECIAL, begins(ids, spec) ? ids : spec)) &&
                  golden_decodes(t, ids, false, decoded) &&
                  golden_decodes(t, ids, true, skip ? skip : decoded),
              s);
    }
    report(&tally);
}

static void check_prefixes(const struct tokenizer *t, const json_t *list, const char *what)
{
    struct tally tally = { .what = what };
    json_t *v;
    size_t i;

    json_array_foreach(list, i, v)
    {
        count(&tally, golden_streams(t, json_object_get(v, "ids"), json_object_get(v, "prefix")),
              json_string_value(json_object_get(v, "text")));
    }
    report(&tally);
}

static void smollm2_vectors(void **state)
{
    json_t *g = golden("smollm2/tokenizer.json");
    struct tokenizer *t = smollm2(g);

    (void)state;
    assert_int_equal(tokenizer_vocab(t), json_integer_value(json_object_get(g, "vocab_size")));
    check_vectors(t, json_object_get(g, "vectors"), "smollm2 vectors");
    check_prefixes(t, json_object_get(g, "prefix_decode"), "smollm2 prefixes");
    tokenizer_destroy(t);
    json_decref(g);
}

static void smollm2_specials(void **state)
{
    json_t *g = golden("smollm2/tokenizer.json"), *id;
    struct tokenizer *t = smollm2(g);
    struct tally tally = { .what = "smollm2 special tokens" };
    const char *text;

    (void)state;
    json_object_foreach(json_object_get(g, "special_tokens"), text, id)
    {
        int32_t k = (int32_t)json_integer_value(id);

        count(&tally, tokenizer_is_special(t, k) && strcmp(tokenizer_piece(t, k), text) == 0, text);
    }
    report(&tally);
    assert_int_equal(tokenizer_bos(t), 1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_string_equal(tokenizer_special(t, "eos_token"), "<|im_end|>");
    tokenizer_destroy(t);
    json_decref(g);
}

static bool recipe_matches(const struct tokenizer *t, const json_t *r)
{
    const char *unit = json_string_value(json_object_get(r, "repeat"));
    size_t len = json_string_length(json_object_get(r, "repeat")), n = 0;
    size_t count_of = (size_t)json_integer_value(json_object_get(r, "count"));
    char *text = malloc(len * count_of), hex[2 * HASH_SHA256_BYTES + 1];
    int32_t *ids = NULL;
    struct hash256 h;
    bool same;

    for (size_t i = 0; i < count_of; i++)
        memcpy(text + i * len, unit, len);
    same = tokenizer_encode(t, text, len * count_of, 0, &ids, &n) == 0;
    hash_sha256(&h, &(struct hash_part){ ids, n * sizeof *ids }, 1);
    hash_hex(hex, &h);
    free(ids);
    free(text);
    return same && n == (size_t)json_integer_value(json_object_get(r, "n_ids")) &&
           strcmp(hex, json_string_value(json_object_get(r, "sha256_i32"))) == 0;
}

static void smollm2_recipes(void **state)
{
    json_t *g = golden("smollm2/tokenizer.json"), *r;
    struct tokenizer *t = smollm2(g);
    struct tally tally = { .what = "smollm2 recipes" };
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(g, "recipes"), i, r)
    {
        count(&tally, recipe_matches(t, r), json_string_value(json_object_get(r, "repeat")));
    }
    report(&tally);
    tokenizer_destroy(t);
    json_decref(g);
}

static size_t from_hex(char *out, const char *hex)
{
    size_t n = strlen(hex) / 2;

    for (size_t i = 0; i < n; i++) {
        unsigned byte;

        sscanf(hex + 2 * i, "%2x", &byte);
        out[i] = (char)byte;
    }
    return n;
}

static void smollm2_invalid_utf8(void **state)
{
    json_t *g = golden("smollm2/tokenizer.json"), *v;
    struct tokenizer *t = smollm2(g);
    struct tally tally = { .what = "smollm2 invalid UTF-8" };
    size_t i;

    (void)state;
    json_array_foreach(json_object_get(g, "invalid_utf8"), i, v)
    {
        const char *hex = json_string_value(json_object_get(v, "hex"));
        char text[64];
        size_t n = from_hex(text, hex);

        count(&tally, golden_encodes(t, text, n, 0, json_object_get(v, "ids_replaced")), hex);
    }
    report(&tally);
    tokenizer_destroy(t);
    json_decref(g);
}

static void smollm2_bytes(void **state)
{
    json_t *g = golden("smollm2/tokenizer.json"), *lost = json_object_get(g, "bytes_without_token"),
           *b;
    struct tokenizer *t = smollm2(g);
    uint32_t n = tokenizer_vocab(t);
    struct hash_part *part = calloc(2 * n, sizeof *part);
    uint16_t *size = calloc(n, sizeof *size);
    json_t *ab = json_pack("[i,i]", 81, 82); /* two words, with nothing between */
    char hex[2 * HASH_SHA256_BYTES + 1];
    struct hash256 h;
    size_t i;

    (void)state;
    for (uint32_t k = 0; k < n; k++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, (int32_t)k, &len);

        size[k] = (uint16_t)len;
        part[2 * k] = (struct hash_part){ &size[k], sizeof size[k] };
        part[2 * k + 1] = (struct hash_part){ bytes, len };
    }
    hash_sha256(&h, part, 2 * n);
    hash_hex(hex, &h);
    assert_string_equal(hex, json_string_value(json_object_get(g, "token_bytes_sha256")));
    json_array_foreach(lost, i, b)
    {
        char text[] = { 'a', (char)json_integer_value(b), 'b' };

        /* Bytes from 80 up do not stand alone in good UTF-8. */
        if (json_integer_value(b) < 0x80)
            assert_true(golden_encodes(t, text, sizeof text, 0, ab));
    }
    json_decref(ab);
    free(part);
    free(size);
    tokenizer_destroy(t);
    json_decref(g);
}

/* A folder with tokenizer.json, its vectors and prefixes. */
static void check_folder(const char *dir, const char *name)
{
    struct tokenizer *t;
    struct err e = { 0 };
    char file[256];
    json_t *j;

    if (tokenizer_from_dir(&t, dir, &e) < 0)
        fail_msg("%s", e.text);
    snprintf(file, sizeof file, "tokenizers/%s_vectors.jsonl", name);
    j = golden(file);
    check_vectors(t, j, name);
    json_decref(j);
    snprintf(file, sizeof file, "tokenizers/%s_prefix_decode.jsonl", name);
    j = golden(file);
    check_prefixes(t, j, file);
    json_decref(j);
    tokenizer_destroy(t);
}

static void tiny(void **state)
{
    char *dir = golden_path("models/llama_tiny");

    (void)state;
    if (!dir)
        skip();
    check_folder(dir, "tiny");
    free(dir);
}

static void real(void **state)
{
    const char *root = getenv("SLUICE_TOKENIZERS");
    char dir[4096];

    if (!root || !*root)
        skip();
    snprintf(dir, sizeof dir, "%s/%s", root, (const char *)*state);
    check_folder(dir, *state);
}

static char deepseek[] = "deepseek_v3", qwen[] = "qwen3";

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(smollm2_vectors),         cmocka_unit_test(smollm2_specials),
        cmocka_unit_test(smollm2_recipes),         cmocka_unit_test(smollm2_invalid_utf8),
        cmocka_unit_test(smollm2_bytes),           cmocka_unit_test(tiny),
        cmocka_unit_test_prestate(real, deepseek), cmocka_unit_test_prestate(real, qwen),
    };

    if (!golden_there())
        return 77;
    return cmocka_run_group_tests_name("golden_tokens", tests, NULL, NULL);
}
