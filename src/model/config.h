/* What a checkpoint says of its architecture, from config.json or from GGUF metadata. */
#ifndef SLUICE_MODEL_CONFIG_H
#define SLUICE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#define MODEL_MAX_EOS    16
#define MODEL_MAX_LAYERS 1024

enum rope_scaling { ROPE_NONE, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct model_config {
    char arch[64]; /* "LlamaForCausalLM" */
    uint32_t n_layers;
    uint32_t hidden;
    uint32_t ffn; /* of the dense layers */
    uint32_t heads, kv_heads, head_dim;
    uint32_t vocab;
    uint32_t max_position; /* context the model was made for, after its own scaling */
    float norm_eps;
    bool tied_embeddings;
    bool attention_bias; /* q, k, v and o have one; that of Qwen2 on q, k and v is not said here */

    /* Multi-head latent attention; kv_lora 0: grouped-query attention. kv_heads is 1 and head_dim
     * nope_dim + rope_dim. */
    uint32_t q_lora; /* 0: queries are made in one step */
    uint32_t kv_lora, nope_dim, v_dim;

    /* Mixture of experts; experts 0: none. */
    uint32_t experts, experts_per_token, expert_ffn, shared_experts;
    uint32_t first_dense;                      /* layers before the first with experts */
    uint64_t dense[MODEL_MAX_LAYERS / 64 + 1]; /* a bit for each layer that has none */
    uint32_t expert_groups, expert_top_groups;
    bool expert_sigmoid, expert_bias, expert_group_two, expert_normalize; /* struct k_router */
    double expert_scale;

    uint32_t mtp_layers;  /* multi-token prediction layers that follow the others */
    char torch_dtype[16]; /* "bfloat16", or "" */

    double rope_theta;
    uint32_t rope_dim; /* rotated dims of a head */
    enum rope_scaling rope_scaling;
    double rope_factor;
    double rope_low_freq, rope_high_freq; /* llama3 */
    uint32_t rope_original;               /* llama3, yarn: original context */
    double yarn_beta_fast, yarn_beta_slow, yarn_attn_factor, yarn_mscale, yarn_mscale_all_dim;

    int32_t bos; /* -1: none */
    int32_t eos[MODEL_MAX_EOS];
    uint32_t n_eos;
};

/* True if the layer (multi-token prediction layers are counted on) has experts. */
bool model_layer_sparse(const struct model_config *c, uint32_t layer);
/* cos and sin [max_pos][rope_dim/2] from float64 angles, scaled as rope_scaling says (YaRN's
 * attention factor is multiplied in). max_pos * rope_dim / 2 floats each. */
void model_rope_table(const struct model_config *c, uint32_t max_pos, float *cos, float *sin);
/* The inverse frequencies, rope_dim/2 of them, and the factor on cos and sin. */
void model_rope_freqs(const struct model_config *c, double *inv_freq, double *scale);

#endif
