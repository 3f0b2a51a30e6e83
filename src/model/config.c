/* config.json and generation_config.json of a HuggingFace folder. */
#include <jansson.h>
#include <string.h>

#include "base/status.h"
#include "model/config_json.h"
#include "model/config_parse.h"

static int read_arch(struct model_config *c, const json_t *j, struct err *e)
{
    const char *name = json_string_value(json_array_get(json_object_get(j, "architectures"), 0));

    if (!name || !*name || strlen(name) >= sizeof c->arch)
        return err_set(e, ERR_BADMSG,
                       "\"architectures\" must be a list with the name of the model's class");
    strcpy(c->arch, name);
    return 0;
}

static int read_shapes(struct model_config *c, const json_t *j, struct err *e)
{
    double eps = 1e-6;
    int st;

    if ((st = config_need_u32(j, "num_hidden_layers", &c->n_layers, e)) < 0 ||
        (st = config_need_u32(j, "hidden_size", &c->hidden, e)) < 0 ||
        (st = config_need_u32(j, "intermediate_size", &c->ffn, e)) < 0 ||
        (st = config_need_u32(j, "num_attention_heads", &c->heads, e)) < 0 ||
        (st = config_need_u32(j, "vocab_size", &c->vocab, e)) < 0)
        return st;
    c->kv_heads = c->heads;
    c->head_dim = c->heads ? c->hidden / c->heads : 0;
    c->max_position = 2048;
    if ((st = config_u32(j, "num_key_value_heads", &c->kv_heads, e)) < 0 ||
        (st = config_u32(j, "head_dim", &c->head_dim, e)) < 0 ||
        (st = config_u32(j, "max_position_embeddings", &c->max_position, e)) < 0 ||
        (st = config_f64(j, "rms_norm_eps", &eps, e)) < 0 ||
        (st = config_bool(j, "tie_word_embeddings", &c->tied_embeddings, e)) < 0 ||
        (st = config_bool(j, "attention_bias", &c->attention_bias, e)) < 0)
        return st;
    c->norm_eps = (float)eps;
    return 0;
}

/* The type that the weights were made in, as far as there is one that is known by name. */
static int read_dtype(struct model_config *c, const json_t *j, struct err *e)
{
    const char *name = config_text(j, "torch_dtype", e);

    if (name && !*name)
        name = config_text(j, "dtype", e);
    if (!name)
        return ERR_BADMSG;
    if (strlen(name) < sizeof c->torch_dtype)
        strcpy(c->torch_dtype, name);
    return 0;
}

static const struct {
    const char *name;
    enum rope_scaling scaling;
} rope_types[] = {
    { "default", ROPE_NONE },  { "", ROPE_NONE },     { "linear", ROPE_LINEAR },
    { "llama3", ROPE_LLAMA3 }, { "yarn", ROPE_YARN },
};

/* What a scaling cannot do without; the rest has defaults. */
static int need_scaling(enum rope_scaling scaling, const json_t *r, struct err *e)
{
    static const struct {
        enum rope_scaling scaling;
        const char *key;
    } needed[] = {
        { ROPE_LINEAR, "factor" },           { ROPE_YARN, "factor" },
        { ROPE_LLAMA3, "factor" },           { ROPE_LLAMA3, "low_freq_factor" },
        { ROPE_LLAMA3, "high_freq_factor" }, { ROPE_LLAMA3, "original_max_position_embeddings" },
    };

    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++) {
        const json_t *v = json_object_get(r, needed[i].key);

        if (needed[i].scaling == scaling && (!v || json_is_null(v)))
            return err_set(e, ERR_BADMSG, "\"rope_scaling\": \"%s\" is missing", needed[i].key);
    }
    return 0;
}

static int read_rope_type(struct model_config *c, const json_t *r, struct err *e)
{
    const char *type = config_text(r, "rope_type", e);

    if (type && !*type)
        type = config_text(r, "type", e);
    if (!type)
        return ERR_BADMSG;
    for (size_t i = 0; i < sizeof rope_types / sizeof rope_types[0]; i++)
        if (strcmp(type, rope_types[i].name) == 0) {
            c->rope_scaling = rope_types[i].scaling;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED,
                   "rope type \"%.64s\" is not supported; default, linear, llama3 and yarn are",
                   type);
}

/* "rope_scaling", or "rope_parameters" as newer files have it, with the base beside the scaling. */
static int read_scaling(struct model_config *c, const json_t *r, double *partial, struct err *e)
{
    int st;

    if (!json_is_object(r))
        return err_set(e, ERR_BADMSG, "\"rope_scaling\" must be an object or null");
    if ((st = read_rope_type(c, r, e)) < 0 || (st = need_scaling(c->rope_scaling, r, e)) < 0 ||
        (st = config_f64(r, "rope_theta", &c->rope_theta, e)) < 0 ||
        (st = config_f64(r, "partial_rotary_factor", partial, e)) < 0 ||
        (st = config_f64(r, "factor", &c->rope_factor, e)) < 0 ||
        (st = config_f64(r, "low_freq_factor", &c->rope_low_freq, e)) < 0 ||
        (st = config_f64(r, "high_freq_factor", &c->rope_high_freq, e)) < 0 ||
        (st = config_u32(r, "original_max_position_embeddings", &c->rope_original, e)) < 0 ||
        (st = config_f64(r, "beta_fast", &c->yarn_beta_fast, e)) < 0 ||
        (st = config_f64(r, "beta_slow", &c->yarn_beta_slow, e)) < 0 ||
        (st = config_f64(r, "attention_factor", &c->yarn_attn_factor, e)) < 0 ||
        (st = config_f64(r, "mscale", &c->yarn_mscale, e)) < 0 ||
        (st = config_f64(r, "mscale_all_dim", &c->yarn_mscale_all_dim, e)) < 0)
        return st;
    return 0;
}

/* What a scaling does to the context: linear multiplies max_position_embeddings, YaRN the original
 * length; llama3's max_position_embeddings is the scaled one already. */
static int scale_context(struct model_config *c, struct err *e)
{
    double scaled = c->max_position;

    if (c->rope_scaling != ROPE_NONE && !(c->rope_factor >= 1 && c->rope_factor <= 1e6))
        return err_set(e, ERR_BADMSG, "\"rope_scaling\": \"factor\" is %g; it must be at least 1",
                       c->rope_factor);
    if (c->rope_original == 0)
        c->rope_original = c->max_position;
    if (c->rope_scaling == ROPE_LINEAR)
        scaled *= c->rope_factor;
    if (c->rope_scaling == ROPE_YARN)
        scaled = c->rope_original * c->rope_factor;
    if (scaled > MODEL_MAX_POSITION)
        return err_set(e, ERR_BADMSG, "a context of %.0f tokens is impossibly long", scaled);
    c->max_position = (uint32_t)scaled;
    return 0;
}

static int read_rope(struct model_config *c, const json_t *j, struct err *e)
{
    const json_t *r = json_object_get(j, "rope_scaling");
    double partial = 1;
    int st;

    c->rope_theta = 10000;
    c->rope_factor = 1;
    c->rope_low_freq = 1;
    c->rope_high_freq = 4;
    c->yarn_beta_fast = 32;
    c->yarn_beta_slow = 1;
    if (!r || json_is_null(r))
        r = json_object_get(j, "rope_parameters");
    if ((st = config_f64(j, "rope_theta", &c->rope_theta, e)) < 0 ||
        (st = config_f64(j, "partial_rotary_factor", &partial, e)) < 0)
        return st;
    if (r && !json_is_null(r) && (st = read_scaling(c, r, &partial, e)) < 0)
        return st;
    if (!(partial > 0 && partial <= 1))
        return err_set(e, ERR_BADMSG, "\"partial_rotary_factor\" is %g; it lies in (0, 1]",
                       partial);
    if (!c->kv_lora) /* latent attention says itself what turns */
        c->rope_dim = (uint32_t)(c->head_dim * partial);
    return scale_context(c, e);
}

static int add_eos(struct model_config *c, const json_t *v, struct err *e)
{
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > INT32_MAX)
        return err_set(e, ERR_BADMSG, "\"eos_token_id\" must be an id or a list of ids");
    if (c->n_eos == MODEL_MAX_EOS)
        return err_set(e, ERR_LIMIT, "\"eos_token_id\" has more than %d ids", MODEL_MAX_EOS);
    c->eos[c->n_eos++] = (int32_t)json_integer_value(v);
    return 0;
}

/* An id, a list, or nothing; where there is something it replaces what was there. */
static int read_eos(struct model_config *c, const json_t *j, struct err *e)
{
    const json_t *v = json_object_get(j, "eos_token_id");
    int st = 0;

    if (!v || json_is_null(v))
        return 0;
    c->n_eos = 0;
    if (!json_is_array(v))
        return add_eos(c, v, e);
    for (size_t i = 0; st == 0 && i < json_array_size(v); i++)
        st = add_eos(c, json_array_get(v, i), e);
    return st;
}

static int read_tokens(struct model_config *c, const json_t *j, const json_t *gen, struct err *e)
{
    const json_t *bos = json_object_get(j, "bos_token_id");
    int st;

    c->bos = -1;
    if (json_is_integer(bos) && json_integer_value(bos) >= 0 &&
        json_integer_value(bos) <= INT32_MAX)
        c->bos = (int32_t)json_integer_value(bos);
    if ((st = read_eos(c, j, e)) < 0)
        return st;
    return gen ? read_eos(c, gen, e) : 0;
}

/* What this loader would get wrong if it went on. */
static int refuse_unknown(const json_t *j, struct err *e)
{
    const char *act = config_text(j, "hidden_act", e);
    bool window = false;
    int st;

    if (!act)
        return ERR_BADMSG;
    if (*act && strcmp(act, "silu") != 0 && strcmp(act, "swish") != 0)
        return err_set(e, ERR_UNSUPPORTED, "\"hidden_act\" \"%.64s\" is not supported; silu is",
                       act);
    if ((st = config_bool(j, "use_sliding_window", &window, e)) < 0)
        return st;
    if (window)
        return err_set(e, ERR_UNSUPPORTED,
                       "\"use_sliding_window\" is true: attention over a window is not supported; "
                       "set it to false (also by --hf-overrides) to attend to the whole context");
    return 0;
}

static int fill(struct model_config *c, const json_t *j, const json_t *gen, struct err *e)
{
    int st;

    if (!json_is_object(j))
        return err_set(e, ERR_BADMSG, "not a JSON object");
    if ((st = read_arch(c, j, e)) < 0 || (st = refuse_unknown(j, e)) < 0 ||
        (st = read_shapes(c, j, e)) < 0 || (st = read_dtype(c, j, e)) < 0 ||
        (st = config_read_latent(c, j, e)) < 0 || (st = config_read_experts(c, j, e)) < 0 ||
        (st = read_rope(c, j, e)) < 0 || (st = read_tokens(c, j, gen, e)) < 0)
        return st;
    return config_check(c, e);
}

int config_from_json(struct model_config *out, const char *json, size_t len, const char *gen,
                     size_t gen_len, const char *overrides, struct err *e)
{
    struct model_config c = { 0 };
    json_error_t je;
    json_t *j = json_loadb(json ? json : "", len, 0, &je), *g = NULL;
    int st;

    if (!j)
        return err_set(e, ERR_BADMSG, "config.json: line %d: %s", je.line, je.text);
    if (gen && !(g = json_loadb(gen, gen_len, 0, &je)))
        st = err_set(e, ERR_BADMSG, "generation_config.json: line %d: %s", je.line, je.text);
    else if (overrides && (st = config_override(j, overrides, e)) < 0)
        err_prefix(e, st, "--hf-overrides");
    else if ((st = fill(&c, j, g, e)) < 0)
        err_prefix(e, st, overrides ? "config.json with --hf-overrides" : "config.json");
    json_decref(j);
    json_decref(g);
    if (st == 0)
        *out = c;
    return st;
}

/* Ranges of the counts, as a table: name, value, least, most. */
static int check_counts(const struct model_config *c, struct err *e)
{
    const struct {
        const char *name;
        uint32_t value, most;
    } counts[] = {
        { "layers", c->n_layers, MODEL_MAX_LAYERS },
        { "hidden size", c->hidden, MODEL_MAX_HIDDEN },
        { "feed-forward size", c->ffn, MODEL_MAX_HIDDEN },
        { "attention heads", c->heads, MODEL_MAX_HEADS },
        { "key/value heads", c->kv_heads, MODEL_MAX_HEADS },
        { "head size", c->head_dim, MODEL_MAX_HEAD_DIM },
        { "rotated size", c->rope_dim, c->head_dim },
        { "vocabulary", c->vocab, MODEL_MAX_VOCAB },
        { "context length", c->max_position, MODEL_MAX_POSITION },
    };

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if (counts[i].value < 1 || counts[i].value > counts[i].most)
            return err_set(e, ERR_BADMSG, "%s: %u is not in 1 to %u", counts[i].name,
                           counts[i].value, counts[i].most);
    return 0;
}

int config_check(const struct model_config *c, struct err *e)
{
    int st = check_counts(c, e);

    if (st < 0)
        return st;
    if (c->heads % c->kv_heads)
        return err_set(e, ERR_BADMSG, "%u attention heads do not share %u key/value heads evenly",
                       c->heads, c->kv_heads);
    if (c->rope_dim % 2)
        return err_set(e, ERR_BADMSG, "rotated size: %u is odd", c->rope_dim);
    if (!(c->rope_theta > 1 && c->rope_theta < 1e15))
        return err_set(e, ERR_BADMSG, "rope theta: %g is not above 1", c->rope_theta);
    if (!(c->norm_eps >= 0 && c->norm_eps < 1))
        return err_set(e, ERR_BADMSG, "norm epsilon: %g is not in [0, 1)", (double)c->norm_eps);
    if (c->rope_scaling == ROPE_LLAMA3 &&
        !(c->rope_high_freq > c->rope_low_freq && c->rope_low_freq > 0))
        return err_set(e, ERR_BADMSG,
                       "llama3 rope: high_freq_factor %g must be above "
                       "low_freq_factor %g",
                       c->rope_high_freq, c->rope_low_freq);
    if (c->rope_scaling == ROPE_YARN && !(c->yarn_beta_fast > 0 && c->yarn_beta_slow > 0))
        return err_set(e, ERR_BADMSG, "yarn rope: beta_fast %g and beta_slow %g must be above 0",
                       c->yarn_beta_fast, c->yarn_beta_slow);
    if ((st = config_check_blocks(c, e)) < 0)
        return st;
    for (uint32_t i = 0; i < c->n_eos; i++)
        if ((uint32_t)c->eos[i] >= c->vocab)
            return err_set(e, ERR_BADMSG, "end token %d is not in the vocabulary of %u", c->eos[i],
                           c->vocab);
    return 0;
}
