/* The configuration in a GGUF file's metadata. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/config_parse.h"
#include "model/gguf.h"

struct keys {
    const struct gguf *g;
    const char *prefix;
    char key[128];
};

static const char *key_of(struct keys *k, const char *name)
{
    snprintf(k->key, sizeof k->key, "%s.%s", k->prefix, name);
    return k->key;
}

/* 1 found, 0 absent (*out is left alone), or an error. */
static int get_u32(struct keys *k, const char *name, uint32_t *out, struct err *e)
{
    uint64_t v;
    int st = gguf_u64(k->g, key_of(k, name), &v, e);

    if (st == ERR_NOTFOUND)
        return 0;
    if (st == 0 && v > UINT32_MAX)
        return err_set(e, ERR_BADMSG, "key %s: %llu is too large", k->key, (unsigned long long)v);
    if (st < 0)
        return st;
    *out = (uint32_t)v;
    return 1;
}

static int get_f64(struct keys *k, const char *name, double *out, struct err *e)
{
    double v;
    int st = gguf_f64(k->g, key_of(k, name), &v, e);

    if (st == ERR_NOTFOUND)
        return 0;
    if (st == 0 && !isfinite(v))
        return err_set(e, ERR_BADMSG, "key %s is not finite", k->key);
    if (st < 0)
        return st;
    *out = v;
    return 1;
}

static int get_bool(struct keys *k, const char *name, bool *out, struct err *e)
{
    bool v;
    int st = gguf_bool(k->g, key_of(k, name), &v, e);

    if (st == ERR_NOTFOUND)
        return 0;
    if (st < 0)
        return st;
    *out = v;
    return 1;
}

static int need_u32(struct keys *k, const char *name, uint32_t *out, struct err *e)
{
    int st = get_u32(k, name, out, e);

    return st == 0 ? err_set(e, ERR_BADMSG, "key %s is missing", k->key) : st < 0 ? st : 0;
}

/* The vocabulary is as long as the list of tokens, or the embedding where there is none. */
static int read_vocab(struct model_config *c, struct keys *k, struct err *e)
{
    struct gguf_array tokens;
    int st = gguf_array(k->g, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, e);

    if (st == ERR_NOTFOUND)
        return need_u32(k, "vocab_size", &c->vocab, e);
    if (st < 0)
        return st;
    c->vocab = tokens.n > UINT32_MAX ? UINT32_MAX : (uint32_t)tokens.n;
    return 0;
}

/* The tensor of that name of a layer, or of any. */
#define ANY_LAYER UINT32_MAX
static bool has_tensor(const struct gguf *g, uint32_t layer, const char *rest)
{
    uint64_t n;
    const struct tensor *t = gguf_tensors(g, &n);

    for (uint64_t i = 0; i < n; i++) {
        const char *dot = strncmp(t[i].name, "blk.", 4) == 0 ? strchr(t[i].name + 4, '.') : NULL;

        if (dot && strcmp(dot + 1, rest) == 0 &&
            (layer == ANY_LAYER || strtoul(t[i].name + 4, NULL, 10) == layer))
            return true;
    }
    return false;
}

/* block_count counts the layers for drafts, which come last; unless they were left out of the file
 * and of the count, but not of the keys: then its last layers are ordinary ones. */
static int read_layers(struct model_config *c, struct keys *k, struct err *e)
{
    uint32_t blocks = 0, drafts = 0;
    int st;

    if ((st = need_u32(k, "block_count", &blocks, e)) < 0 ||
        (st = get_u32(k, "nextn_predict_layers", &drafts, e)) < 0)
        return st;
    if (drafts && drafts >= blocks)
        return err_set(e, ERR_BADMSG, "key %s: %u of %u blocks cannot be for drafts", k->key,
                       drafts, blocks);
    c->mtp_layers = drafts;
    c->n_layers = blocks - drafts;
    if (drafts && has_tensor(k->g, c->n_layers, "attn_norm.weight") &&
        !has_tensor(k->g, c->n_layers, "nextn.eh_proj.weight"))
        c->n_layers = blocks;
    return 0;
}

static int read_shapes(struct model_config *c, struct keys *k, struct err *e)
{
    double eps = 1e-5;
    int st;

    if ((st = read_layers(c, k, e)) < 0 ||
        (st = need_u32(k, "embedding_length", &c->hidden, e)) < 0 ||
        (st = need_u32(k, "feed_forward_length", &c->ffn, e)) < 0 ||
        (st = need_u32(k, "attention.head_count", &c->heads, e)) < 0 ||
        (st = need_u32(k, "context_length", &c->max_position, e)) < 0)
        return st;
    c->kv_heads = c->heads;
    c->head_dim = c->heads ? c->hidden / c->heads : 0;
    if ((st = get_u32(k, "attention.head_count_kv", &c->kv_heads, e)) < 0 ||
        (st = get_u32(k, "attention.key_length", &c->head_dim, e)) < 0 ||
        (st = get_f64(k, "attention.layer_norm_rms_epsilon", &eps, e)) < 0)
        return st;
    c->norm_eps = (float)eps;
    c->rope_dim = c->head_dim;
    return (st = get_u32(k, "rope.dimension_count", &c->rope_dim, e)) < 0 ? st : 0;
}

/* Latent attention. Newer files call the sizes of a head ..._mla, and key_length what the cache
 * holds of a token. */
static int read_latent(struct model_config *c, struct keys *k, struct err *e)
{
    uint32_t key = c->head_dim;
    int st = get_u32(k, "attention.kv_lora_rank", &c->kv_lora, e);

    if (st < 0 || c->kv_lora == 0)
        return st < 0 ? st : 0;
    c->v_dim = key;
    if ((st = get_u32(k, "attention.q_lora_rank", &c->q_lora, e)) < 0 ||
        (st = get_u32(k, "attention.value_length", &c->v_dim, e)) < 0 ||
        (st = get_u32(k, "attention.key_length_mla", &key, e)) < 0 ||
        (st = get_u32(k, "attention.value_length_mla", &c->v_dim, e)) < 0)
        return st;
    if (key <= c->rope_dim)
        return err_set(e, ERR_BADMSG, "%s: heads of %u numbers, %u of them rotated", k->prefix, key,
                       c->rope_dim);
    c->nope_dim = key - c->rope_dim;
    config_latent_heads(c);
    return 0;
}

enum { GATE_SOFTMAX = 1, GATE_SIGMOID = 2 }; /* expert_gating_func */

/* DeepSeek-V3's choice of groups and its bias go with its sigmoid. qwen3moe files do not say that
 * weights are normalized, and all are. */
static int read_router(struct model_config *c, struct keys *k, struct err *e)
{
    uint32_t gate = GATE_SOFTMAX;
    int st;

    c->expert_groups = c->expert_top_groups = 1;
    c->expert_normalize = strcmp(k->prefix, "qwen3moe") == 0;
    c->expert_bias = has_tensor(k->g, ANY_LAYER, "exp_probs_b.bias");
    if ((st = get_u32(k, "expert_gating_func", &gate, e)) < 0 ||
        (st = get_f64(k, "expert_weights_scale", &c->expert_scale, e)) < 0 ||
        (st = get_bool(k, "expert_weights_norm", &c->expert_normalize, e)) < 0 ||
        (st = get_u32(k, "expert_group_count", &c->expert_groups, e)) < 0 ||
        (st = get_u32(k, "expert_group_used_count", &c->expert_top_groups, e)) < 0)
        return st;
    if (gate != GATE_SOFTMAX && gate != GATE_SIGMOID)
        return err_set(e, ERR_UNSUPPORTED,
                       "key %s.expert_gating_func: %u is not supported; %d (softmax) and %d "
                       "(sigmoid) are",
                       k->prefix, gate, GATE_SOFTMAX, GATE_SIGMOID);
    if (c->expert_scale == 0) /* absent, or what stands for "no factor" */
        c->expert_scale = 1;
    c->expert_sigmoid = c->expert_group_two = gate == GATE_SIGMOID;
    return 0;
}

static int read_experts(struct model_config *c, struct keys *k, struct err *e)
{
    int st = get_u32(k, "expert_count", &c->experts, e);

    if (st < 0 || c->experts == 0)
        return st < 0 ? st : 0;
    if ((st = need_u32(k, "expert_used_count", &c->experts_per_token, e)) < 0 ||
        (st = need_u32(k, "expert_feed_forward_length", &c->expert_ffn, e)) < 0 ||
        (st = get_u32(k, "expert_shared_count", &c->shared_experts, e)) < 0 ||
        (st = get_u32(k, "leading_dense_block_count", &c->first_dense, e)) < 0 ||
        (st = read_router(c, k, e)) < 0)
        return st;
    for (uint32_t i = 0; i < c->first_dense && i <= MODEL_MAX_LAYERS; i++)
        config_set_dense(c, i);
    return 0;
}

static int read_rope_type(struct model_config *c, struct keys *k, struct err *e)
{
    const char *s;
    size_t n;
    int st = gguf_string(k->g, key_of(k, "rope.scaling.type"), &s, &n, e);

    c->rope_scaling = ROPE_NONE;
    if (st == ERR_NOTFOUND)
        return c->rope_factor > 1 ? (c->rope_scaling = ROPE_LINEAR, 0) : 0;
    if (st < 0)
        return st;
    if (n == 6 && memcmp(s, "linear", n) == 0)
        c->rope_scaling = ROPE_LINEAR;
    else if (n == 4 && memcmp(s, "yarn", n) == 0)
        c->rope_scaling = ROPE_YARN;
    else if (n != 4 || memcmp(s, "none", n) != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "key %s: \"%.*s\" is not supported; none, linear and yarn are", k->key,
                       (int)(n < 64 ? n : 64), s);
    return 0;
}

/* attn_factor multiplies YaRN's own 0.1 ln(factor) + 1 here, where config.json's replaces it.
 * Latent attention has the correction in its softmax, with a factor of its own on the logarithm,
 * and none on what turns. */
static int read_yarn(struct model_config *c, struct keys *k, struct err *e)
{
    double attn = 1, log_mul = 0;
    int st;

    if ((st = get_f64(k, "rope.scaling.yarn_beta_fast", &c->yarn_beta_fast, e)) < 0 ||
        (st = get_f64(k, "rope.scaling.yarn_beta_slow", &c->yarn_beta_slow, e)) < 0 ||
        (st = get_f64(k, "rope.scaling.attn_factor", &attn, e)) < 0 ||
        (st = get_f64(k, "rope.scaling.yarn_log_multiplier", &log_mul, e)) < 0)
        return st;
    if (c->kv_lora) {
        c->yarn_attn_factor = 1;
        c->yarn_mscale_all_dim = log_mul / 0.1;
        return 0;
    }
    c->yarn_attn_factor = attn * (0.1 * log(c->rope_factor) + 1);
    return 0;
}

static int read_rope(struct model_config *c, struct keys *k, struct err *e)
{
    double scaled = c->max_position;
    int st;

    c->rope_theta = 10000;
    c->rope_factor = 1;
    c->yarn_beta_fast = 32;
    c->yarn_beta_slow = 1;
    if ((st = get_f64(k, "rope.freq_base", &c->rope_theta, e)) < 0 ||
        (st = get_f64(k, "rope.scale_linear", &c->rope_factor, e)) < 0 ||
        (st = get_f64(k, "rope.scaling.factor", &c->rope_factor, e)) < 0 ||
        (st = get_u32(k, "rope.scaling.original_context_length", &c->rope_original, e)) < 0 ||
        (st = read_rope_type(c, k, e)) < 0)
        return st;
    if (c->rope_scaling != ROPE_NONE && !(c->rope_factor >= 1 && c->rope_factor <= 1e6))
        return err_set(e, ERR_BADMSG, "key %s.rope.scaling.factor: %g must be at least 1",
                       k->prefix, c->rope_factor);
    if (c->rope_scaling == ROPE_YARN && c->rope_original)
        scaled = c->rope_original * c->rope_factor;
    if (c->rope_scaling == ROPE_LINEAR)
        scaled *= c->rope_factor;
    if (scaled > MODEL_MAX_POSITION)
        return err_set(e, ERR_BADMSG, "a context of %.0f tokens is impossibly long", scaled);
    if (c->rope_original == 0)
        c->rope_original = c->max_position;
    c->max_position = (uint32_t)scaled;
    return c->rope_scaling == ROPE_YARN ? read_yarn(c, k, e) : 0;
}

/* The end tokens of a GGUF file: of the text, of the turn, of the message. */
static int read_tokens(struct model_config *c, const struct gguf *g, struct err *e)
{
    static const char *const ends[] = {
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.eot_token_id",
        "tokenizer.ggml.eom_token_id",
    };
    uint64_t id;
    int st;

    c->bos = -1;
    st = gguf_u64(g, "tokenizer.ggml.bos_token_id", &id, e);
    if (st == 0 && id < c->vocab)
        c->bos = (int32_t)id;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        st = gguf_u64(g, ends[i], &id, e);
        if (st == 0 && id >= c->vocab)
            return err_set(e, ERR_BADMSG, "key %s: %llu is not in the vocabulary of %u", ends[i],
                           (unsigned long long)id, c->vocab);
        if (st == 0)
            c->eos[c->n_eos++] = (int32_t)id;
        else if (st != ERR_NOTFOUND)
            return st;
    }
    return 0;
}

/* What would give wrong results if it were left out. */
static int refuse_unknown(struct keys *k, struct err *e)
{
    double temperature = 0;
    int st = get_f64(k, "attention.temperature_scale", &temperature, e);

    if (st < 0)
        return st;
    return temperature != 0 ? err_set(e, ERR_UNSUPPORTED,
                                      "key %s.attention.temperature_scale: %g: attention whose "
                                      "temperature depends on the position is not supported",
                                      k->prefix, temperature)
                            : 0;
}

int config_from_gguf(struct model_config *out, const struct gguf *g, const char *arch,
                     const char *prefix, struct err *e)
{
    struct model_config c = { 0 };
    struct keys k = { .g = g, .prefix = prefix };
    uint64_t n;
    const struct tensor *t = gguf_tensors(g, &n);
    int st;

    snprintf(c.arch, sizeof c.arch, "%s", arch);
    if ((st = read_vocab(&c, &k, e)) < 0 || (st = read_shapes(&c, &k, e)) < 0 ||
        (st = read_latent(&c, &k, e)) < 0 || (st = read_experts(&c, &k, e)) < 0 ||
        (st = refuse_unknown(&k, e)) < 0 || (st = read_rope(&c, &k, e)) < 0 ||
        (st = read_tokens(&c, g, e)) < 0 || (st = config_check(&c, e)) < 0)
        return st;
    c.tied_embeddings = true;
    for (uint64_t i = 0; i < n; i++)
        if (strcmp(t[i].name, "output.weight") == 0)
            c.tied_embeddings = false;
    *out = c;
    return 0;
}
