#include "ops/hf_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "model/gguf.h"
#include "ops/outdir.h"
#include "text/pretok.h"

/* ---- config.json ---- */

static const char *type_of(const char *arch)
{
    static const char *const types[][2] = {
        { "LlamaForCausalLM", "llama" },
        { "Qwen2ForCausalLM", "qwen2" },
        { "Qwen3ForCausalLM", "qwen3" },
        { "Qwen3MoeForCausalLM", "qwen3_moe" },
        { "DeepseekV2ForCausalLM", "deepseek_v2" },
        { "DeepseekV3ForCausalLM", "deepseek_v3" },
    };

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(arch, types[i][0]) == 0)
            return types[i][1];
    return "";
}

/* The shortest double that is this float32: 1e-05, and not 9.9999997473787516e-06. */
static double tidy(float v)
{
    char text[32];

    snprintf(text, sizeof text, "%.7g", (double)v);
    return (float)strtod(text, NULL) == v ? strtod(text, NULL) : (double)v;
}

/* What YaRN does to latent attention is all in the scale of its softmax: with both factors equal
 * nothing is left for what turns. */
static json_t *latent_yarn(const struct model_config *c)
{
    double mscale = tidy((float)c->yarn_mscale_all_dim);

    return json_pack("{s:s, s:f, s:i, s:f, s:f, s:f, s:f}", "type", "yarn", "factor",
                     c->rope_factor, "original_max_position_embeddings", (int)c->rope_original,
                     "beta_fast", c->yarn_beta_fast, "beta_slow", c->yarn_beta_slow, "mscale",
                     mscale, "mscale_all_dim", mscale);
}

static json_t *scaling(const struct model_config *c)
{
    if (c->rope_scaling == ROPE_YARN && c->kv_lora)
        return latent_yarn(c);
    switch (c->rope_scaling) {
    case ROPE_LINEAR:
        return json_pack("{s:s, s:f}", "rope_type", "linear", "factor", c->rope_factor);
    case ROPE_LLAMA3:
        return json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                         c->rope_factor, "low_freq_factor", c->rope_low_freq, "high_freq_factor",
                         c->rope_high_freq, "original_max_position_embeddings",
                         (int)c->rope_original);
    case ROPE_YARN:
        return json_pack("{s:s, s:f, s:i, s:f, s:f, s:f}", "rope_type", "yarn", "factor",
                         c->rope_factor, "original_max_position_embeddings", (int)c->rope_original,
                         "beta_fast", c->yarn_beta_fast, "beta_slow", c->yarn_beta_slow,
                         "attention_factor", c->yarn_attn_factor);
    default:
        return json_null();
    }
}

/* Linear scaling multiplies the length that the file gives. */
static uint32_t length_of(const struct model_config *c)
{
    return c->rope_scaling == ROPE_LINEAR ? (uint32_t)(c->max_position / c->rope_factor)
                                          : c->max_position;
}

static json_t *end_tokens(const struct model_config *c)
{
    json_t *list = json_array();

    if (c->n_eos == 1) {
        json_decref(list);
        return json_integer(c->eos[0]);
    }
    for (uint32_t i = 0; i < c->n_eos; i++)
        json_array_append_new(list, json_integer(c->eos[i]));
    return list;
}

/* A GGUF file calls both DeepSeek-V2 and V3 deepseek2; only V3 scores experts by a sigmoid. */
static const char *arch_of(const struct model_config *c)
{
    return c->kv_lora && c->experts && !c->expert_sigmoid ? "DeepseekV2ForCausalLM" : c->arch;
}

static const char *method_of(const struct model_config *c)
{
    if (c->expert_sigmoid)
        return "noaux_tc";
    return c->expert_groups > 1 ? "group_limited_greedy" : "greedy";
}

/* DeepSeek's keys. */
static void add_latent(json_t *j, const struct model_config *c)
{
    json_object_del(j, "head_dim");
    json_object_set_new(j, "num_key_value_heads", json_integer(c->heads));
    json_object_set_new(j, "q_lora_rank", c->q_lora ? json_integer(c->q_lora) : json_null());
    json_object_set_new(j, "kv_lora_rank", json_integer(c->kv_lora));
    json_object_set_new(j, "qk_nope_head_dim", json_integer(c->nope_dim));
    json_object_set_new(j, "qk_rope_head_dim", json_integer(c->rope_dim));
    json_object_set_new(j, "v_head_dim", json_integer(c->v_dim));
    json_object_set_new(j, "num_nextn_predict_layers", json_integer(c->mtp_layers));
}

static void add_latent_experts(json_t *j, const struct model_config *c)
{
    json_object_set_new(j, "n_routed_experts", json_integer(c->experts));
    json_object_set_new(j, "n_shared_experts", json_integer(c->shared_experts));
    json_object_set_new(j, "num_experts_per_tok", json_integer(c->experts_per_token));
    json_object_set_new(j, "moe_intermediate_size", json_integer(c->expert_ffn));
    json_object_set_new(j, "moe_layer_freq", json_integer(1));
    json_object_set_new(j, "first_k_dense_replace", json_integer(c->first_dense));
    json_object_set_new(j, "n_group", json_integer(c->expert_groups));
    json_object_set_new(j, "topk_group", json_integer(c->expert_top_groups));
    json_object_set_new(j, "topk_method", json_string(method_of(c)));
    json_object_set_new(j, "scoring_func", json_string(c->expert_sigmoid ? "sigmoid" : "softmax"));
    json_object_set_new(j, "norm_topk_prob", json_boolean(c->expert_normalize));
    json_object_set_new(j, "routed_scaling_factor", json_real(tidy((float)c->expert_scale)));
}

/* Qwen3-MoE's keys. */
static void add_experts(json_t *j, const struct model_config *c)
{
    json_object_set_new(j, "num_experts", json_integer(c->experts));
    json_object_set_new(j, "num_experts_per_tok", json_integer(c->experts_per_token));
    json_object_set_new(j, "moe_intermediate_size", json_integer(c->expert_ffn));
    json_object_set_new(j, "norm_topk_prob", json_boolean(c->expert_normalize));
    json_object_set_new(j, "decoder_sparse_step", json_integer(1));
    json_object_set_new(j, "mlp_only_layers", json_array());
}

json_t *hf_config(const struct model_config *c)
{
    json_t *j = json_pack(
        "{s:[s], s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:o, s:b, s:b, s:s, s:s}",
        "architectures", arch_of(c), "model_type", type_of(arch_of(c)), "num_hidden_layers",
        (int)c->n_layers, "hidden_size", (int)c->hidden, "intermediate_size", (int)c->ffn,
        "num_attention_heads", (int)c->heads, "num_key_value_heads", (int)c->kv_heads, "head_dim",
        (int)c->head_dim, "vocab_size", (int)c->vocab, "max_position_embeddings", (int)length_of(c),
        "rms_norm_eps", tidy(c->norm_eps), "rope_theta", c->rope_theta, "rope_scaling", scaling(c),
        "tie_word_embeddings", c->tied_embeddings, "attention_bias", c->attention_bias,
        "hidden_act", "silu", "torch_dtype", "bfloat16");

    if (j && c->kv_lora)
        add_latent(j, c);
    if (j && c->experts)
        (c->kv_lora ? add_latent_experts : add_experts)(j, c);
    if (j && c->bos >= 0)
        json_object_set_new(j, "bos_token_id", json_integer(c->bos));
    if (j && c->n_eos > 0)
        json_object_set_new(j, "eos_token_id", end_tokens(c));
    if (j && c->rope_dim != c->head_dim && !c->kv_lora)
        json_object_set_new(j, "partial_rotary_factor",
                            json_real((double)c->rope_dim / c->head_dim));
    return j;
}

/* ---- tokenizer.json, tokenizer_config.json ---- */

enum { TYPE_CONTROL = 3, TYPE_USER_DEFINED = 4 }; /* llama.cpp's token types */

struct vocab {
    json_t *ids;                /* token -> id */
    json_t *added;              /* added_tokens */
    json_t *pieces;             /* by id */
    const unsigned char *types; /* int32 each, unaligned; NULL: all normal */
    uint64_t n;
};

static void vocab_free(struct vocab *v)
{
    json_decref(v->ids);
    json_decref(v->added);
    json_decref(v->pieces);
}

static int32_t type_at(const struct vocab *v, uint64_t i)
{
    int32_t t = 0;

    if (v->types)
        memcpy(&t, v->types + i * sizeof t, sizeof t);
    return t;
}

static int add_token(struct vocab *v, uint64_t i, const char *s, size_t n, struct err *e)
{
    int32_t type = type_at(v, i);
    json_t *piece = json_stringn(s, n);

    if (!piece || strlen(json_string_value(piece)) != n) {
        json_decref(piece);
        return err_set(e, ERR_BADMSG, "tokenizer.ggml.tokens: token %llu is not UTF-8",
                       (unsigned long long)i);
    }
    json_array_append(v->pieces, piece);
    json_object_set_new(v->ids, json_string_value(piece), json_integer((json_int_t)i));
    if (type == TYPE_CONTROL || type == TYPE_USER_DEFINED)
        json_array_append_new(v->added,
                              json_pack("{s:I, s:O, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                        "content", piece, "single_word", 0, "lstrip", 0, "rstrip",
                                        0, "normalized", 0, "special", type == TYPE_CONTROL));
    json_decref(piece);
    return 0;
}

static int read_vocab(struct vocab *v, const struct gguf *g, struct err *e)
{
    struct gguf_array tokens, types;
    const unsigned char *p;
    int st = gguf_array(g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, e);

    if (st < 0)
        return st;
    if (gguf_array(g, "tokenizer.ggml.token_type", GGUF_I32, &types, e) == 0 && types.n == tokens.n)
        v->types = types.data;
    v->n = tokens.n;
    v->ids = json_object();
    v->added = json_array();
    v->pieces = json_array();
    p = tokens.data;
    for (uint64_t i = 0; st == 0 && i < tokens.n; i++) {
        size_t n;
        const char *s = gguf_next_string(&p, &n);

        st = add_token(v, i, s, n, e);
    }
    return st;
}

static json_t *read_merges(const struct gguf *g, struct err *e)
{
    struct gguf_array a;
    const unsigned char *p;
    json_t *list;

    if (gguf_array(g, "tokenizer.ggml.merges", GGUF_STRING, &a, e) < 0)
        return NULL;
    list = json_array();
    p = a.data;
    for (uint64_t i = 0; i < a.n; i++) {
        size_t n;
        const char *s = gguf_next_string(&p, &n);

        json_array_append_new(list, json_stringn(s, n));
    }
    return list;
}

/* The token of an id key; NULL if the file has none. Borrowed. */
static json_t *token_of(const struct vocab *v, const struct gguf *g, const char *key, uint64_t *id)
{
    struct err ignored = { "" };

    return gguf_u64(g, key, id, &ignored) == 0 ? json_array_get(v->pieces, *id) : NULL;
}

/* What puts the first token before a text. */
static json_t *template_processing(json_t *token, uint64_t id)
{
    const char *s = json_string_value(token);

    return json_pack("{s:s, s:[{s:{s:s,s:i}}, {s:{s:s,s:i}}], s:[{s:{s:s,s:i}}, {s:{s:s,s:i}}, "
                     "{s:{s:s,s:i}}], s:{s:{s:s, s:[I], s:[s]}}}",
                     "type", "TemplateProcessing", "single", "SpecialToken", "id", s, "type_id", 0,
                     "Sequence", "id", "A", "type_id", 0, "pair", "SpecialToken", "id", s,
                     "type_id", 0, "Sequence", "id", "A", "type_id", 0, "Sequence", "id", "B",
                     "type_id", 1, "special_tokens", s, "id", s, "ids", (json_int_t)id, "tokens",
                     s);
}

static int write_tokenizer(struct outdir *dir, const struct gguf *g, const struct vocab *v,
                           const char *pre, struct err *e)
{
    struct pretok_named how = { 0 };
    json_t *split = pretok_named_json(pre, &how), *merges = read_merges(g, e), *j, *bos;
    json_t *around = json_null(), *normal = json_null();
    bool add_bos = false;
    uint64_t id;
    int st;

    if (!split || !merges) {
        json_decref(split);
        json_decref(merges);
        return split
                   ? ERR_BADMSG
                   : err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.pre \"%.60s\" is not known", pre);
    }
    bos = token_of(v, g, "tokenizer.ggml.bos_token_id", &id);
    if (gguf_bool(g, "tokenizer.ggml.add_bos_token", &add_bos, e) == 0 && add_bos && bos)
        around = template_processing(bos, id);
    if (how.nfc)
        normal = json_pack("{s:s}", "type", "NFC");
    j = json_pack("{s:s, s:n, s:n, s:O, s:o, s:o, s:o, s:{s:s, s:b, s:b, s:b}, "
                  "s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:o}}",
                  "version", "1.0", "truncation", "padding", "added_tokens", v->added, "normalizer",
                  normal, "pre_tokenizer", split, "post_processor", around, "decoder", "type",
                  "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", 0, "model",
                  "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
                  "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
                  how.ignore_merges, "vocab", v->ids, "merges", merges);
    st = j ? outdir_write_json(dir, "tokenizer.json", j, e)
           : err_set(e, ERR_NOMEM, "no memory for tokenizer.json");
    json_decref(j);
    return st;
}

static int write_tokenizer_config(struct outdir *dir, const struct gguf *g, const struct vocab *v,
                                  struct err *e)
{
    static const char *const tokens[][2] = {
        { "bos_token", "tokenizer.ggml.bos_token_id" },
        { "eos_token", "tokenizer.ggml.eos_token_id" },
        { "unk_token", "tokenizer.ggml.unknown_token_id" },
        { "pad_token", "tokenizer.ggml.padding_token_id" },
    };
    json_t *j = json_pack("{s:s, s:b}", "tokenizer_class", "PreTrainedTokenizerFast",
                          "clean_up_tokenization_spaces", 0);
    const char *s;
    uint64_t id;
    size_t n;
    int st;

    for (size_t i = 0; i < sizeof tokens / sizeof tokens[0]; i++) {
        json_t *piece = token_of(v, g, tokens[i][1], &id);

        if (piece)
            json_object_set(j, tokens[i][0], piece);
    }
    if (gguf_string(g, "tokenizer.chat_template", &s, &n, e) == 0)
        json_object_set_new(j, "chat_template", json_stringn(s, n));
    st = outdir_write_json(dir, "tokenizer_config.json", j, e);
    json_decref(j);
    return st;
}

int hf_write_tokenizer(struct outdir *dir, const struct gguf *g, struct err *e)
{
    struct vocab v = { 0 };
    const char *kind, *s;
    char pre[64] = "default";
    size_t n;
    int st = gguf_string(g, "tokenizer.ggml.model", &kind, &n, e);

    if (st < 0)
        return st;
    if (n != 4 || memcmp(kind, "gpt2", n) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "tokenizer.ggml.model \"%.*s\" is not supported; gpt2 (byte-level BPE) is",
                       (int)(n < 60 ? n : 60), kind);
    if (gguf_string(g, "tokenizer.ggml.pre", &s, &n, e) == 0 && n < sizeof pre) {
        memcpy(pre, s, n);
        pre[n] = '\0';
    }
    if ((st = read_vocab(&v, g, e)) == 0 && (st = write_tokenizer(dir, g, &v, pre, e)) == 0)
        st = write_tokenizer_config(dir, g, &v, e);
    vocab_free(&v);
    return st;
}
