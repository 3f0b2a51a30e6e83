#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"
#include "base/rand.h"
#include "base/status.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

#define DATA SLUICE_SOURCE_ROOT "/tests/data/text"

static struct tokenizer *tiny(void)
{
    struct tokenizer *t;
    struct err e = { 0 };

    if (tokenizer_from_dir(&t, DATA "/tiny", &e) < 0)
        fail_msg("%s", e.text);
    return t;
}

static void check_ids(const struct tokenizer *t, const char *text, unsigned flags, const char *want)
{
    int32_t *ids = NULL;
    struct buf got;
    size_t n;

    buf_init(&got, BUF_MAX_LINE);
    assert_int_equal(tokenizer_encode(t, text, strlen(text), flags, &ids, &n), 0);
    for (size_t i = 0; i < n; i++)
        buf_printf(&got, "%s%d", i ? " " : "", ids[i]);
    assert_string_equal(buf_str(&got), want);
    free(ids);
    buf_finish(&got);
}

static bool has_ids(const struct tokenizer *t, json_t *line, const char *key, unsigned flags)
{
    json_t *text = json_object_get(line, "text"), *want = json_object_get(line, key);
    int32_t *ids = NULL;
    size_t n;
    bool same = tokenizer_encode(t, json_string_value(text), json_string_length(text), flags, &ids,
                                 &n) == 0 &&
                n == json_array_size(want);

    for (size_t i = 0; same && i < n; i++)
        same = ids[i] == json_integer_value(json_array_get(want, i));
    free(ids);
    return same;
}

/* A sample of the reference's ids for the tiny models' tokenizer. */
static void reference_ids(void **state)
{
    struct tokenizer *t = tiny();
    FILE *f = fopen(DATA "/tiny/vectors.jsonl", "r");
    char *line = NULL;
    size_t cap = 0, lines = 0;

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *j = json_loads(line, JSON_ALLOW_NUL, NULL);

        assert_non_null(j);
        if (!has_ids(t, j, "ids", 0) || !has_ids(t, j, "ids_special", TOK_ADD_SPECIAL))
            fail_msg("%s", line);
        json_decref(j);
        lines++;
    }
    assert_int_equal(lines, 123);
    free(line);
    fclose(f);
    tokenizer_destroy(t);
}

static void what_the_config_says(void **state)
{
    struct tokenizer *t = tiny();
    size_t len;

    (void)state;
    assert_int_equal(tokenizer_vocab(t), 512);
    assert_int_equal(tokenizer_bos(t), 0);
    assert_int_equal(tokenizer_eos(t), 1);
    assert_string_equal(tokenizer_special(t, "pad_token"), "<|pad|>");
    assert_null(tokenizer_special(t, "unk_token"));
    assert_null(tokenizer_special(t, "nosuch"));
    assert_non_null(strstr(tokenizer_chat_template(t), "add_generation_prompt"));
    assert_true(tokenizer_is_special(t, 0));
    assert_false(tokenizer_is_special(t, 5)); /* <think> is added, but no special token */
    assert_false(tokenizer_is_special(t, 512));
    assert_string_equal(tokenizer_piece(t, 5), "<think>");
    assert_null(tokenizer_piece(t, -1));
    tokenizer_bytes(t, 512, &len);
    assert_int_equal(len, 0);
    tokenizer_destroy(t);
}

/* One BOS, whether the text brings it or not; as text it is none. */
static void special_tokens(void **state)
{
    struct tokenizer *t = tiny();

    (void)state;
    check_ids(t, "", 0, "");
    check_ids(t, "", TOK_ADD_SPECIAL, "0");
    check_ids(t, "<|bos|>", TOK_ADD_SPECIAL, "0");
    check_ids(t, "<|bos|><|bos|>", TOK_ADD_SPECIAL, "0 0");
    check_ids(t, "<|bos|><think>", 0, "0 5");
    check_ids(t, "<think>", TOK_PLAIN_SPECIAL, "5");
    check_ids(t, "<|im_end|><|im_end|", 0, "4 76 140 121 125 111 284 116 140");
    tokenizer_destroy(t);
}

/* A vocabulary of single letters with what a test adds. */
static const char small_json[] =
    "{\"added_tokens\":[%s],\"normalizer\":%s,\"pre_tokenizer\":null,\"post_processor\":null,"
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\\u0120\":3,\"ab\":4,\"bc\":"
    "5,"
    "\"abc\":6,\"aa\":7,\"aaa\":8%s},\"merges\":[%s]%s}}";

static int small(struct tokenizer **t, const char *added, const char *normalizer, const char *vocab,
                 const char *merges, const char *model, struct err *e)
{
    char json[4096];
    int n = snprintf(json, sizeof json, small_json, added, normalizer, vocab, merges, model);

    return tokenizer_from_json(t, json, (size_t)n, NULL, 0, e);
}

static void merges(void **state)
{
    struct tokenizer *t;
    struct err e = { 0 };

    (void)state;
    /* The lowest rank goes first, not the leftmost pair. */
    assert_int_equal(small(&t, "", "null", "", "\"b c\",[\"a\",\"b\"]", "", &e), 0);
    check_ids(t, "abc", 0, "0 5");
    check_ids(t, "abab", 0, "4 4");
    check_ids(t, "aZb", 0, "4"); /* Z has no token: it is gone before anything merges */
    tokenizer_destroy(t);
    /* Of equal ranks the leftmost. */
    assert_int_equal(small(&t, "", "null", "", "\"a a\",\"aa a\"", "", &e), 0);
    check_ids(t, "aaa", 0, "8");
    check_ids(t, "aaaaa", 0, "7 8");
    tokenizer_destroy(t);
    assert_int_equal(small(&t, "", "null", "", "\"b c\"", ",\"ignore_merges\":true", &e), 0);
    check_ids(t, "abc", 0, "6");
    check_ids(t, "abcc", 0, "0 5 2");
    tokenizer_destroy(t);
    assert_int_equal(small(&t, "", "null", ",\"?\":9", "", ",\"unk_token\":\"?\"", &e), 0);
    check_ids(t, "aZZ", 0, "0 9 9");
    tokenizer_destroy(t);
}

static void added_tokens(void **state)
{
    static const char added[] = "{\"content\":\"<x>\",\"special\":true},"
                                "{\"content\":\"<xy>\"},"
                                "{\"content\":\"<l>\",\"lstrip\":true},"
                                "{\"content\":\"<r>\",\"rstrip\":true},"
                                "{\"content\":\"aba\",\"single_word\":true},"
                                "{\"content\":\"E\\u0301\",\"normalized\":true}";
    struct tokenizer *t;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(small(&t, added, "{\"type\":\"NFC\"}", "", "", "", &e), 0);
    assert_int_equal(tokenizer_vocab(t), 15);
    check_ids(t, "<x>a<xy>", 0, "9 0 10");
    check_ids(t, "<x>a<xy>", TOK_PLAIN_SPECIAL, "0 10");
    check_ids(t, "a  <l> b <r>  c", 0, "0 11 3 1 3 12 2");
    check_ids(t, "aba caba aba", 0, "13 3 2 0 1 0 3 13");
    check_ids(t, "É", 0, "14");
    tokenizer_destroy(t);
}

static void refused(void **state)
{
    static const struct {
        const char *added, *normalizer, *vocab, *merges, *model;
        int status;
        const char *words;
    } rows[] = {
        { "", "null", ",\"q\":0", "", "", ERR_BADMSG, "given twice" },
        { "", "null", ",\"q\":-1", "", "", ERR_LIMIT, "is not below" },
        { "", "null", ",\"q\":\"x\"", "", "", ERR_BADMSG, "'q' has no integer id" },
        { "", "null", "", "\"a x\"", "", ERR_BADMSG, "merge 0: 'a' + 'x': the right part" },
        { "", "null", "", "\"a c\"", "", ERR_BADMSG, "their concatenation" },
        { "", "null", "", "\"ac\"", "", ERR_BADMSG, "not two tokens" },
        { "", "null", "", "[\"a\"]", "", ERR_BADMSG, "merges[0]" },
        { "", "null", "", "", ",\"byte_fallback\":true", ERR_UNSUPPORTED, "byte_fallback" },
        { "", "{\"type\":\"Lowercase\"}", "", "", "", ERR_UNSUPPORTED, "Lowercase" },
        { "{}", "null", "", "", "", ERR_BADMSG, "added_tokens[0]" },
    };
    struct tokenizer *t;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct err e = { 0 };

        assert_int_equal(small(&t, rows[i].added, rows[i].normalizer, rows[i].vocab, rows[i].merges,
                               rows[i].model, &e),
                         rows[i].status);
        if (!strstr(e.text, rows[i].words))
            fail_msg("'%s' lacks '%s'", e.text, rows[i].words);
    }
    assert_int_equal(tokenizer_from_dir(&t, DATA "/nosuch", &(struct err){ 0 }), ERR_NOTFOUND);
    assert_int_equal(tokenizer_from_json(&t, "{", 1, NULL, 0, NULL), ERR_BADMSG);
}

static const char *const gguf_tokens[] = { "<|s|>", "a", "b", "Ġ", "ab", "<tool>", "1" };
static const int32_t gguf_types[] = { 3, 1, 1, 1, 1, 4, 1 };
static const char *const gguf_merges[] = { "a b" };

static struct tokenizer_gguf gguf(void)
{
    return (struct tokenizer_gguf){ .pre = "smollm",
                                    .n_tokens = 7,
                                    .tokens = gguf_tokens,
                                    .types = gguf_types,
                                    .n_merges = 1,
                                    .merges = gguf_merges,
                                    .bos = 0,
                                    .eos = -1,
                                    .add_bos = true,
                                    .chat_template = "{{ x }}" };
}

static void from_gguf(void **state)
{
    struct tokenizer_gguf g = gguf();
    struct tokenizer *t;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(tokenizer_from_gguf(&t, &g, &e), 0);
    check_ids(t, "ab ab1a<|s|><tool>", 0, "4 3 4 6 1 0 5");
    check_ids(t, "<|s|><tool>", TOK_PLAIN_SPECIAL, "5"); /* the bytes of <|s|> have no tokens */
    check_ids(t, "a", TOK_ADD_SPECIAL, "0 1");
    assert_int_equal(tokenizer_eos(t), -1);
    assert_string_equal(tokenizer_special(t, "bos_token"), "<|s|>");
    assert_string_equal(tokenizer_chat_template(t), "{{ x }}");
    assert_true(tokenizer_is_special(t, 0) && !tokenizer_is_special(t, 5));
    tokenizer_destroy(t);
    g.pre = "nosuch";
    assert_int_equal(tokenizer_from_gguf(&t, &g, &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "nosuch"));
    g = gguf();
    g.eos = 7;
    assert_int_equal(tokenizer_from_gguf(&t, &g, &e), ERR_BADMSG);
}

static uint64_t seed = 20240607, draws;

static uint32_t below(uint32_t n)
{
    return (uint32_t)(rand_uniform(seed, draws++, 0) * n);
}

/* Characters of all planes, with more of the first, and blanks and line ends among them. */
static uint32_t random_char(void)
{
    static const uint32_t ranges[][2] = { { 0x20, 0x7f },      { 0, 0x20 },
                                          { 0x80, 0x250 },     { 0x300, 0x370 },
                                          { 0x4e00, 0x9fa5 },  { 0xac00, 0xd7a4 },
                                          { 0x2000, 0x2070 },  { 0x1f300, 0x1f700 },
                                          { 0xe000, 0x110000 } };
    const uint32_t *r = ranges[below(9)];

    return r[0] + below(r[1] - r[0]);
}

/* The tiny vocabulary has every byte; its normal form is taken out of the way first. */
static struct tokenizer *tiny_without_normalizer(void)
{
    json_t *j = json_load_file(DATA "/tiny/tokenizer.json", 0, NULL);
    struct tokenizer *t = NULL;
    char *text;

    assert_non_null(j);
    json_object_set_new(j, "normalizer", json_null());
    text = json_dumps(j, 0);
    assert_int_equal(tokenizer_from_json(&t, text, strlen(text), NULL, 0, NULL), 0);
    free(text);
    json_decref(j);
    return t;
}

static void check_stream(const struct tokenizer *t, const int32_t *ids, size_t n, const char *text,
                         size_t len)
{
    struct detok d;
    struct buf out;

    buf_init(&out, BUF_MAX_BODY);
    detok_init(&d, t, false);
    for (size_t i = 0; i < n; i++) {
        size_t before = out.len;

        assert_int_equal(detok_push(&d, ids[i], &out), 0);
        assert_int_equal(utf8_valid_prefix(buf_str(&out) + before, out.len - before),
                         out.len - before);
    }
    assert_int_equal(detok_flush(&d, &out), 0);
    assert_int_equal(out.len, len);
    assert_memory_equal(buf_str(&out), text, len);
    buf_finish(&out);
}

static void random_text_round_trips(void **state)
{
    struct tokenizer *t = tiny_without_normalizer();

    (void)state;
    for (int i = 0; i < 10000; i++) {
        char text[40 * UTF8_MAX], *back;
        size_t len = 0, n, back_len;
        int32_t *ids = NULL;

        for (uint32_t k = below(40); k > 0; k--)
            len += utf8_put(text + len, random_char());
        assert_int_equal(tokenizer_encode(t, text, len, i % 2 ? TOK_PLAIN_SPECIAL : 0, &ids, &n),
                         0);
        assert_int_equal(tokenizer_decode(t, ids, n, false, &back, &back_len), 0);
        assert_int_equal(back_len, len);
        assert_memory_equal(back, text, len);
        check_stream(t, ids, n, text, len);
        free(back);
        free(ids);
    }
    tokenizer_destroy(t);
}

/* Random bytes, one token each: the pieces joined are the whole decoded at once. */
static void random_bytes_stream(void **state)
{
    static const unsigned char lead[] = { 'a',  0x80, 0xbf, 0xc3, 0xe4, 0xed,
                                          0xf0, 0xf4, 0xff, 0xa0, 0x9f };
    struct tokenizer *t = tiny_without_normalizer();
    int32_t byte_id[256];

    (void)state;
    for (int32_t id = 0; id < 512; id++) {
        size_t len;
        const char *bytes = tokenizer_bytes(t, id, &len);

        if (len == 1)
            byte_id[(unsigned char)bytes[0]] = id;
    }
    for (int i = 0; i < 2000; i++) {
        int32_t ids[30];
        char *whole;
        size_t len;

        for (int k = 0; k < 30; k++)
            ids[k] = byte_id[lead[below(sizeof lead)]];
        assert_int_equal(tokenizer_decode(t, ids, 30, false, &whole, &len), 0);
        check_stream(t, ids, 30, whole, len);
        free(whole);
    }
    tokenizer_destroy(t);
}

static void skipped_specials(void **state)
{
    const int32_t ids[] = { 0, 104, 5, 4, 600, -1 };
    struct tokenizer *t = tiny();
    struct detok d;
    struct buf out;
    char *text;
    size_t len;

    (void)state;
    assert_int_equal(tokenizer_decode(t, ids, 6, false, &text, &len), 0);
    assert_string_equal(text, "<|bos|>X<think><|im_end|>");
    free(text);
    buf_init(&out, BUF_MAX_LINE);
    detok_init(&d, t, true);
    for (int i = 0; i < 6; i++)
        detok_push(&d, ids[i], &out);
    detok_flush(&d, &out);
    assert_string_equal(buf_str(&out), "X<think>");
    buf_finish(&out);
    tokenizer_destroy(t);
}

/* A megabyte of one character, and of one word without end: in quadratic time these would not end. */
static void long_words(void **state)
{
    struct tokenizer *t = tiny();
    size_t len = 1u << 20, n, back_len;
    char *text = malloc(len), *back;
    int32_t *ids;

    (void)state;
    for (const char *c = "a \n7"; *c; c++) {
        memset(text, *c, len);
        assert_int_equal(tokenizer_encode(t, text, len, 0, &ids, &n), 0);
        assert_int_equal(tokenizer_decode(t, ids, n, false, &back, &back_len), 0);
        assert_int_equal(back_len, len);
        assert_memory_equal(back, text, len);
        free(back);
        free(ids);
    }
    free(text);
    tokenizer_destroy(t);
}

/* As long as the longest token so many times; and its form, NFC, may have shrunk the text threefold. */
static void text_limit(void **state)
{
    struct tokenizer *t = tiny();
    size_t longest = 0, len;

    (void)state;
    for (uint32_t id = 0; id < tokenizer_vocab(t); id++) {
        tokenizer_bytes(t, (int32_t)id, &len);
        longest = len > longest ? len : longest;
    }
    assert_int_equal(tokenizer_text_limit(t, 3), 3 * 3 * longest);
    tokenizer_destroy(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reference_ids),       cmocka_unit_test(what_the_config_says),
        cmocka_unit_test(special_tokens),      cmocka_unit_test(merges),
        cmocka_unit_test(added_tokens),        cmocka_unit_test(refused),
        cmocka_unit_test(from_gguf),           cmocka_unit_test(random_text_round_trips),
        cmocka_unit_test(random_bytes_stream), cmocka_unit_test(skipped_specials),
        cmocka_unit_test(long_words),          cmocka_unit_test(text_limit),
    };

    return cmocka_run_group_tests_name("tokenizer", tests, NULL, NULL);
}
