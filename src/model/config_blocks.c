/* What the blocks of a layer are: latent attention, experts, and the layer for drafts. */
#include <jansson.h>
#include <math.h>
#include <string.h>

#include "base/status.h"
#include "kernel/kernel.h"
#include "model/config_json.h"
#include "model/config_parse.h"

int config_read_latent(struct model_config *c, const json_t *j, struct err *e)
{
    int st = config_u32(j, "kv_lora_rank", &c->kv_lora, e);

    if (st < 0 || c->kv_lora == 0)
        return st < 0 ? st : 0;
    if ((st = config_u32(j, "q_lora_rank", &c->q_lora, e)) < 0 ||
        (st = config_need_u32(j, "qk_nope_head_dim", &c->nope_dim, e)) < 0 ||
        (st = config_need_u32(j, "qk_rope_head_dim", &c->rope_dim, e)) < 0 ||
        (st = config_need_u32(j, "v_head_dim", &c->v_dim, e)) < 0)
        return st;
    config_latent_heads(c);
    return 0;
}

void config_latent_heads(struct model_config *c)
{
    c->kv_heads = 1;
    c->head_dim = c->nope_dim <= MODEL_MAX_HEAD_DIM && c->rope_dim <= MODEL_MAX_HEAD_DIM
                      ? c->nope_dim + c->rope_dim
                      : 0; /* refused by config_check */
}

void config_set_dense(struct model_config *c, uint32_t layer)
{
    if (layer / 64 < sizeof c->dense / sizeof c->dense[0])
        c->dense[layer / 64] |= 1ull << layer % 64;
}

bool model_layer_sparse(const struct model_config *c, uint32_t layer)
{
    return c->experts > 0 && !(c->dense[layer / 64] >> layer % 64 & 1);
}

/* The layers without experts: DeepSeek counts the first ones and then every freq-th, Qwen counts
 * every step-th (from 1) and lists exceptions. */
static int read_dense_layers(struct model_config *c, const json_t *j, struct err *e)
{
    const json_t *only = json_object_get(j, "mlp_only_layers");
    uint32_t freq = 1, step = 1;
    int st;

    if ((st = config_u32(j, "first_k_dense_replace", &c->first_dense, e)) < 0 ||
        (st = config_u32(j, "moe_layer_freq", &freq, e)) < 0 ||
        (st = config_u32(j, "decoder_sparse_step", &step, e)) < 0)
        return st;
    for (uint32_t i = 0; i <= MODEL_MAX_LAYERS; i++)
        if (i < c->first_dense || freq == 0 || i % freq || step == 0 || (i + 1) % step)
            config_set_dense(c, i);
    if (only && !json_is_null(only) && !json_is_array(only))
        return err_set(e, ERR_BADMSG, "\"mlp_only_layers\" must be a list of layer numbers");
    for (size_t i = 0; i < json_array_size(only); i++) {
        json_int_t layer = json_integer_value(json_array_get(only, i));

        if (!json_is_integer(json_array_get(only, i)) || layer < 0 || layer > MODEL_MAX_LAYERS)
            return err_set(e, ERR_BADMSG, "\"mlp_only_layers\" must be a list of layer numbers");
        config_set_dense(c, (uint32_t)layer);
    }
    return 0;
}

/* How experts are chosen where the file does not say: what the class does. */
static void router_defaults(struct model_config *c)
{
    bool v3 = strcmp(c->arch, "DeepseekV3ForCausalLM") == 0;

    c->expert_groups = c->expert_top_groups = 1;
    c->expert_scale = 1;
    c->expert_sigmoid = c->expert_bias = c->expert_group_two = c->expert_normalize = v3;
}

static int read_scoring(struct model_config *c, const json_t *j, struct err *e)
{
    const char *s = config_text(j, "scoring_func", e);

    if (!s)
        return ERR_BADMSG;
    if (*s && strcmp(s, "softmax") != 0 && strcmp(s, "sigmoid") != 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "\"scoring_func\" \"%.64s\" is not supported; softmax and sigmoid are", s);
    if (*s)
        c->expert_sigmoid = strcmp(s, "sigmoid") == 0;
    return 0;
}

static int read_method(struct model_config *c, const json_t *j, struct err *e)
{
    static const struct {
        const char *name;
        bool grouped, bias;
    } methods[] = {
        { "greedy", false, false },
        { "group_limited_greedy", true, false },
        { "noaux_tc", true, true },
    };
    const char *s = config_text(j, "topk_method", e);

    if (!s)
        return ERR_BADMSG;
    for (size_t i = 0; *s && i < sizeof methods / sizeof methods[0]; i++)
        if (strcmp(s, methods[i].name) == 0) {
            c->expert_bias = c->expert_group_two = methods[i].bias;
            if (!methods[i].grouped)
                c->expert_groups = c->expert_top_groups = 1;
            return 0;
        }
    return *s ? err_set(e, ERR_UNSUPPORTED,
                        "\"topk_method\" \"%.64s\" is not supported; greedy, group_limited_greedy "
                        "and noaux_tc are",
                        s)
              : 0;
}

int config_read_experts(struct model_config *c, const json_t *j, struct err *e)
{
    int st;

    if ((st = config_u32(j, "num_nextn_predict_layers", &c->mtp_layers, e)) < 0 ||
        (st = config_u32(j, "n_routed_experts", &c->experts, e)) < 0 ||
        (st = config_u32(j, "num_experts", &c->experts, e)) < 0)
        return st;
    if (c->experts == 0)
        return 0;
    router_defaults(c);
    if ((st = config_need_u32(j, "num_experts_per_tok", &c->experts_per_token, e)) < 0 ||
        (st = config_need_u32(j, "moe_intermediate_size", &c->expert_ffn, e)) < 0 ||
        (st = config_u32(j, "n_shared_experts", &c->shared_experts, e)) < 0 ||
        (st = config_u32(j, "n_group", &c->expert_groups, e)) < 0 ||
        (st = config_u32(j, "topk_group", &c->expert_top_groups, e)) < 0 ||
        (st = config_bool(j, "norm_topk_prob", &c->expert_normalize, e)) < 0 ||
        (st = config_f64(j, "routed_scaling_factor", &c->expert_scale, e)) < 0 ||
        (st = read_scoring(c, j, e)) < 0 || (st = read_method(c, j, e)) < 0)
        return st;
    return read_dense_layers(c, j, e);
}

static int check_latent(const struct model_config *c, struct err *e)
{
    const struct {
        const char *name;
        uint32_t value, least, most;
    } sizes[] = {
        { "q_lora_rank", c->q_lora, 0, MODEL_MAX_HIDDEN },
        { "kv_lora_rank", c->kv_lora, 1, MODEL_MAX_HIDDEN },
        { "unrotated size of a head", c->nope_dim, 1, MODEL_MAX_HEAD_DIM },
        { "value size of a head", c->v_dim, 1, MODEL_MAX_HEAD_DIM },
    };

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        if (sizes[i].value < sizes[i].least || sizes[i].value > sizes[i].most)
            return err_set(e, ERR_BADMSG, "%s: %u is not in %u to %u", sizes[i].name,
                           sizes[i].value, sizes[i].least, sizes[i].most);
    return 0;
}

static int check_groups(const struct model_config *c, struct err *e)
{
    if (c->expert_groups < 1 || c->experts % c->expert_groups)
        return err_set(e, ERR_BADMSG, "%u experts do not make %u equal groups", c->experts,
                       c->expert_groups);
    if (c->expert_top_groups < 1 || c->expert_top_groups > c->expert_groups)
        return err_set(e, ERR_BADMSG, "%u of %u groups of experts cannot be chosen",
                       c->expert_top_groups, c->expert_groups);
    if (c->experts_per_token > c->experts / c->expert_groups * c->expert_top_groups)
        return err_set(e, ERR_BADMSG, "%u experts a token: only %u are in %u groups",
                       c->experts_per_token, c->experts / c->expert_groups * c->expert_top_groups,
                       c->expert_top_groups);
    if (c->expert_group_two && c->expert_groups > 1 && c->experts / c->expert_groups < 2)
        return err_set(e, ERR_BADMSG, "groups of one expert have no two best ones");
    return 0;
}

static int check_experts(const struct model_config *c, struct err *e)
{
    if (c->experts > K_MAX_EXPERTS)
        return err_set(e, ERR_BADMSG, "%u experts: at most %d are supported", c->experts,
                       K_MAX_EXPERTS);
    if (c->experts_per_token < 1 || c->experts_per_token > c->experts ||
        c->experts_per_token > K_MAX_TOP_K)
        return err_set(e, ERR_BADMSG, "%u experts a token: not in 1 to %u", c->experts_per_token,
                       c->experts < K_MAX_TOP_K ? c->experts : K_MAX_TOP_K);
    if (c->expert_ffn < 1 || c->expert_ffn > MODEL_MAX_HIDDEN ||
        c->shared_experts > MODEL_MAX_HIDDEN / c->expert_ffn)
        return err_set(e, ERR_BADMSG, "%u shared experts of size %u: the size lies in 1 to %u",
                       c->shared_experts, c->expert_ffn, MODEL_MAX_HIDDEN);
    if (!(c->expert_scale > 0 && c->expert_scale < 1e6))
        return err_set(e, ERR_BADMSG, "factor on the experts' weights: %g is not above 0",
                       c->expert_scale);
    return check_groups(c, e);
}

int config_check_blocks(const struct model_config *c, struct err *e)
{
    int st = c->kv_lora ? check_latent(c, e) : 0;

    if (st == 0 && c->experts)
        st = check_experts(c, e);
    if (st == 0 && c->mtp_layers > MODEL_MAX_MTP)
        st = err_set(e, ERR_BADMSG, "%u multi-token prediction layers: at most %d are supported",
                     c->mtp_layers, MODEL_MAX_MTP);
    return st;
}
