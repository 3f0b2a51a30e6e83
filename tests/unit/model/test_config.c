/* config.json in its variants, GGUF keys, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "gguf_build.h"
#include "model/config_notes.h"
#include "model/config_parse.h"
#include "model/gguf.h"

#define BASE                                                                                       \
    "\"architectures\":[\"LlamaForCausalLM\"],\"hidden_size\":64,\"intermediate_size\":128,"       \
    "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"vocab_size\":100"

static struct model_config read_ok(const char *json, const char *gen)
{
    struct model_config c;
    struct err e = { 0 };
    int st = config_from_json(&c, json, strlen(json), gen, gen ? strlen(gen) : 0, NULL, &e);

    if (st < 0)
        fail_msg("%s", e.text);
    return c;
}

static void refuse(const char *json, int status, const char *part)
{
    struct model_config c;
    struct err e = { 0 };
    int st = config_from_json(&c, json, strlen(json), NULL, 0, NULL, &e);

    if (st != status || !strstr(e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e.text,
                 status_name(status), part);
}

static void test_defaults(void **state)
{
    struct model_config c = read_ok("{" BASE "}", NULL);

    (void)state;
    assert_string_equal(c.arch, "LlamaForCausalLM");
    assert_int_equal(c.kv_heads, 4);
    assert_int_equal(c.head_dim, 16);
    assert_int_equal(c.rope_dim, 16);
    assert_int_equal(c.max_position, 2048);
    assert_false(c.tied_embeddings);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.rope_scaling, ROPE_NONE);
    assert_int_equal(c.bos, -1);
    assert_int_equal(c.n_eos, 0);
}

static void test_tokens(void **state)
{
    struct model_config c = read_ok("{" BASE ",\"bos_token_id\":5,\"eos_token_id\":6}", NULL);

    (void)state;
    assert_int_equal(c.bos, 5);
    assert_true(c.n_eos == 1 && c.eos[0] == 6);
    c = read_ok("{" BASE ",\"eos_token_id\":[6,7]}", NULL);
    assert_true(c.n_eos == 2 && c.eos[1] == 7);
    c = read_ok("{" BASE ",\"eos_token_id\":6}", "{\"eos_token_id\":[8,9],\"temperature\":0.6}");
    assert_true(c.n_eos == 2 && c.eos[0] == 8 && c.eos[1] == 9);
    c = read_ok("{" BASE ",\"eos_token_id\":null}", "{}");
    assert_int_equal(c.n_eos, 0);
}

static void test_rope(void **state)
{
    struct model_config c = read_ok("{" BASE ",\"max_position_embeddings\":1000,\"rope_scaling\":"
                                    "{\"type\":\"linear\",\"factor\":4.0}}",
                                    NULL);

    (void)state;
    assert_int_equal(c.rope_scaling, ROPE_LINEAR);
    assert_int_equal(c.max_position, 4000);
    c = read_ok("{" BASE
                ",\"max_position_embeddings\":8192,\"rope_theta\":500000.0,\"rope_scaling\":"
                "{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,"
                "\"high_freq_factor\":4.0,\"original_max_position_embeddings\":1024}}",
                NULL);
    assert_int_equal(c.rope_scaling, ROPE_LLAMA3);
    assert_int_equal(c.rope_original, 1024);
    assert_int_equal(c.max_position, 8192); /* the file gives the scaled length */
    c = read_ok("{" BASE ",\"max_position_embeddings\":4096,\"rope_scaling\":{\"type\":\"yarn\","
                "\"factor\":4.0,\"original_max_position_embeddings\":4096,\"mscale\":1.0,"
                "\"mscale_all_dim\":0.8}}",
                NULL);
    assert_int_equal(c.rope_scaling, ROPE_YARN);
    assert_int_equal(c.max_position, 16384);
    assert_true(c.yarn_beta_fast == 32 && c.yarn_mscale_all_dim == 0.8);
    c = read_ok("{" BASE ",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":25000,"
                "\"partial_rotary_factor\":0.5}}",
                NULL);
    assert_true(c.rope_theta == 25000);
    assert_int_equal(c.rope_dim, 8);
    c = read_ok("{" BASE ",\"rope_scaling\":null}", NULL);
    assert_int_equal(c.rope_scaling, ROPE_NONE);
}

static void test_refused(void **state)
{
    (void)state;
    refuse("{", ERR_BADMSG, "config.json: line 1");
    refuse("[]", ERR_BADMSG, "not a JSON object");
    refuse("{\"hidden_size\":64}", ERR_BADMSG, "\"architectures\"");
    refuse("{\"architectures\":[\"X\"],\"hidden_size\":64}", ERR_BADMSG,
           "\"num_hidden_layers\" is missing");
    refuse("{" BASE ",\"num_key_value_heads\":3}", ERR_BADMSG, "do not share 3 key/value heads");
    refuse("{" BASE ",\"num_key_value_heads\":0}", ERR_BADMSG, "key/value heads: 0 is not in 1 to");
    refuse("{" BASE ",\"head_dim\":-1}", ERR_BADMSG, "\"head_dim\" must be a count");
    refuse("{" BASE ",\"head_dim\":\"x\"}", ERR_BADMSG, "\"head_dim\" must be a count");
    refuse("{" BASE ",\"max_position_embeddings\":4294967295}", ERR_BADMSG, "impossibly long");
    refuse("{" BASE ",\"rms_norm_eps\":-1}", ERR_BADMSG, "norm epsilon: -1");
    refuse("{" BASE ",\"rope_theta\":0}", ERR_BADMSG, "rope theta: 0");
    refuse("{" BASE ",\"hidden_act\":\"gelu\"}", ERR_UNSUPPORTED,
           "\"gelu\" is not supported; silu is");
    refuse("{" BASE ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", ERR_UNSUPPORTED,
           "rope type \"dynamic\" is not supported; default, linear, llama3 and yarn are");
    refuse("{" BASE ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", ERR_BADMSG,
           "\"factor\" is 0");
    refuse("{" BASE ",\"rope_scaling\":7}", ERR_BADMSG, "must be an object");
    refuse("{" BASE ",\"eos_token_id\":100}", ERR_BADMSG, "end token 100 is not in the vocabulary");
    refuse("{" BASE ",\"eos_token_id\":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]}", ERR_LIMIT,
           "more than 16 ids");
}

/* What HuggingFace has no default for. */
static void test_rope_missing(void **state)
{
    (void)state;
    refuse("{" BASE ",\"rope_scaling\":{\"type\":\"linear\"}}", ERR_BADMSG,
           "\"rope_scaling\": \"factor\" is missing");
    refuse("{" BASE ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":null}}", ERR_BADMSG,
           "\"rope_scaling\": \"factor\" is missing");
    refuse("{" BASE ",\"rope_parameters\":{\"rope_type\":\"llama3\",\"low_freq_factor\":1,"
           "\"high_freq_factor\":4,\"original_max_position_embeddings\":1024}}",
           ERR_BADMSG, "\"rope_scaling\": \"factor\" is missing");
    refuse("{" BASE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"low_freq_factor\":1,"
           "\"high_freq_factor\":4,\"factor\":8}}",
           ERR_BADMSG, "\"rope_scaling\": \"original_max_position_embeddings\" is missing");
    refuse("{" BASE ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8,"
           "\"original_max_position_embeddings\":1024,\"low_freq_factor\":1}}",
           ERR_BADMSG, "\"rope_scaling\": \"high_freq_factor\" is missing");
}

static struct config_notes notes_of(const char *json, const char *overrides)
{
    struct config_notes n;

    config_notes(&n, json, strlen(json), overrides);
    return n;
}

static void test_dtype_notes(void **state)
{
    struct config_notes n = notes_of("{" BASE "}", NULL);

    (void)state;
    assert_true(n.dtype_known && !n.key && !*n.dtype && !*n.unread);
    n = notes_of("{\"dtype\":\"float16\"}", NULL);
    assert_string_equal(n.dtype, "float16");
    assert_string_equal(n.key, "dtype");
    assert_true(n.dtype_known && !n.overridden);
    n = notes_of("{\"torch_dtype\":\"float16\"}", "{\"dtype\":\"bfloat16\"}");
    assert_string_equal(n.dtype, "bfloat16");
    assert_true(n.dtype_known && n.overridden);
    n = notes_of("{\"torch_dtype\":\"int3\"}", NULL);
    assert_true(!n.dtype_known && strcmp(n.key, "torch_dtype") == 0);
}

/* A key that is mistyped changes nothing: it is named with the one that was meant. */
static void test_unread_overrides(void **state)
{
    static const struct {
        const char *overrides, *unread, *near;
    } cases[] = {
        { "{\"rope_theta\":1e6,\"use_cache\":false,\"rope_scaling\":null}", "", "" },
        { "{\"rope_tetha\":1e6}", "rope_tetha", "rope_theta" },
        { "{\"rope_scaling\":{\"type\":\"yarn\",\"fcator\":2}}", "rope_scaling.fcator", "factor" },
        { "{\"extra\":{\"a\":2}}", "", "" },
        { "{\"extra\":{\"b\":{\"c\":1}}}", "extra.b", "" },
        { "{\"quantization_config\":{\"ignore\":[]}}", "", "" },
        { "{\"completely_different_words\":1}", "completely_different_words", "" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct config_notes n = notes_of("{" BASE ",\"use_cache\":true,\"extra\":{\"a\":1}}",
                                         cases[i].overrides);

        assert_string_equal(n.unread, cases[i].unread);
        assert_string_equal(n.near, cases[i].near);
    }
}

/* The keys of a small llama file; `extra` more follow. */
static void gguf_keys(struct buf *b, uint64_t extra)
{
    buf_init(b, BUF_MAX_LINE);
    put_header(b, 3, 0, 7 + extra);
    put_key_u32(b, "llama.block_count", 2);
    put_key_u32(b, "llama.embedding_length", 64);
    put_key_u32(b, "llama.feed_forward_length", 128);
    put_key_u32(b, "llama.attention.head_count", 4);
    put_key_u32(b, "llama.context_length", 4096);
    put_key_u32(b, "llama.vocab_size", 100);
    put_key_f32(b, "llama.rope.freq_base", 50000);
}

static int read_gguf(struct buf *b, struct model_config *c, struct err *e)
{
    struct gguf *g;
    int st = gguf_parse(&g, b->data, b->len, e);

    assert_int_equal(st, 0);
    st = config_from_gguf(c, g, "LlamaForCausalLM", "llama", e);
    gguf_free(g);
    buf_finish(b);
    return st;
}

static void test_gguf(void **state)
{
    struct model_config c;
    struct err e = { 0 };
    struct buf b;

    (void)state;
    gguf_keys(&b, 4);
    put_key_u32(&b, "llama.attention.head_count_kv", 2);
    put_key_u32(&b, "tokenizer.ggml.eos_token_id", 9);
    put_key_text(&b, "llama.rope.scaling.type", "yarn");
    put_key_f32(&b, "llama.rope.scaling.factor", 4);
    assert_int_equal(read_gguf(&b, &c, &e), 0);
    assert_int_equal(c.kv_heads, 2);
    assert_int_equal(c.head_dim, 16);
    assert_true(c.rope_theta == 50000 && c.rope_scaling == ROPE_YARN);
    assert_true(c.tied_embeddings);
    assert_true(c.n_eos == 1 && c.eos[0] == 9);
    gguf_keys(&b, 1);
    put_key_u32(&b, "tokenizer.ggml.eos_token_id", 100);
    assert_int_equal(read_gguf(&b, &c, &e), ERR_BADMSG);
    assert_non_null(strstr(e.text, "100 is not in the vocabulary of 100"));
    gguf_keys(&b, 1);
    put_key_text(&b, "llama.rope.scaling.type", "longrope");
    assert_int_equal(read_gguf(&b, &c, &e), ERR_UNSUPPORTED);
    buf_init(&b, BUF_MAX_LINE);
    put_header(&b, 3, 0, 1);
    put_key_u32(&b, "llama.vocab_size", 5);
    assert_int_equal(read_gguf(&b, &c, &e), ERR_BADMSG);
    assert_non_null(strstr(e.text, "key llama.block_count is missing"));
}

/* A file of three blocks, the last of them for drafts if that is what its tensor is. */
static int read_blocks(struct model_config *c, uint32_t drafts, const char *tensor, struct err *e)
{
    struct buf b;

    buf_init(&b, BUF_MAX_LINE);
    put_header(&b, 3, 1, 8);
    put_key_u32(&b, "llama.block_count", 3);
    put_key_u32(&b, "llama.nextn_predict_layers", drafts);
    put_key_u32(&b, "llama.embedding_length", 64);
    put_key_u32(&b, "llama.feed_forward_length", 128);
    put_key_u32(&b, "llama.attention.head_count", 4);
    put_key_u32(&b, "llama.context_length", 4096);
    put_key_u32(&b, "llama.vocab_size", 100);
    put_key_f32(&b, "llama.rope.freq_base", 50000);
    put_matrix(&b, tensor, 1, 64, 0, 0);
    pad_to(&b, 32);
    for (int i = 0; i < 64; i++)
        put_u32(&b, 0);
    return read_gguf(&b, c, e);
}

static void test_gguf_drafts(void **state)
{
    struct model_config c;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(read_blocks(&c, 0, "blk.2.attn_norm.weight", &e), 0);
    assert_true(c.n_layers == 3 && c.mtp_layers == 0);
    assert_int_equal(read_blocks(&c, 1, "blk.2.nextn.eh_proj.weight", &e), 0);
    assert_true(c.n_layers == 2 && c.mtp_layers == 1);
    /* left out of the file and of the count */
    assert_int_equal(read_blocks(&c, 1, "blk.2.attn_norm.weight", &e), 0);
    assert_true(c.n_layers == 3 && c.mtp_layers == 1);
    assert_int_equal(read_blocks(&c, 3, "blk.2.attn_norm.weight", &e), ERR_BADMSG);
    assert_non_null(strstr(e.text, "nextn_predict_layers: 3 of 3 blocks cannot be for drafts"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf_drafts),      cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_tokens),           cmocka_unit_test(test_rope),
        cmocka_unit_test(test_refused),          cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_rope_missing),     cmocka_unit_test(test_dtype_notes),
        cmocka_unit_test(test_unread_overrides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
