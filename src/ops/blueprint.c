#include "ops/blueprint.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* Standard deviations. A linear of fan-in n has 1 / sqrt(n), so that what comes out is as large as
 * what goes in; what is added to the residual stream is made smaller by the depth, so that the
 * stream does not grow with it. Logits get a deviation of 3: then one token stands out, and a greedy
 * choice does not hang on the last bit. */
#define GAIN_STD       0.1
#define BIAS_STD       0.1
#define CORRECTION_STD 0.02
#define LOGIT_STD      3.0

struct draft {
    struct blueprint *b;
    const struct model_config *c;
    char at[48]; /* "model.layers.3.": before the names that follow */
    bool failed; /* no memory */
};

/* Appends t with its name completed. */
static void add(struct draft *d, const char *name, struct blue_tensor t)
{
    struct blueprint *b = d->b;

    if (b->n == b->cap) {
        size_t cap = b->cap ? 2 * b->cap : 256;
        struct blue_tensor *more = realloc(b->t, cap * sizeof *more);

        if (!more) {
            d->failed = true;
            return;
        }
        b->t = more;
        b->cap = cap;
    }
    snprintf(t.name, sizeof t.name, "%s%s", d->at, name);
    b->t[b->n++] = t;
}

static void matrix(struct draft *d, const char *name, enum blue_role role, uint32_t rows,
                   uint32_t cols, double std)
{
    add(d, name,
        (struct blue_tensor){
            .kind = BLUE_MATRIX, .role = role, .rows = rows, .cols = cols, .std = (float)std });
}

static void vector(struct draft *d, const char *name, enum blue_kind kind, uint32_t n, double std)
{
    add(d, name, (struct blue_tensor){ .kind = kind, .rows = n, .cols = 1, .std = (float)std });
}

static void gain(struct draft *d, const char *name, uint32_t n)
{
    vector(d, name, BLUE_GAIN, n, GAIN_STD);
}

/* A linear that keeps the size of what goes in. */
static void linear(struct draft *d, const char *name, enum blue_role role, uint32_t rows,
                   uint32_t cols)
{
    matrix(d, name, role, rows, cols, 1 / sqrt(cols));
}

/* A linear whose output is added to the residual stream. */
static void residual(struct draft *d, const char *name, enum blue_role role, uint32_t rows,
                     uint32_t cols)
{
    matrix(d, name, role, rows, cols, 1 / sqrt((double)cols * 2 * d->c->n_layers));
}

static void grouped_attention(struct draft *d)
{
    const struct model_config *c = d->c;
    uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    bool qwen2 = strcmp(c->arch, "Qwen2ForCausalLM") == 0;

    linear(d, "self_attn.q_proj.weight", BLUE_ATTENTION, q, c->hidden);
    linear(d, "self_attn.k_proj.weight", BLUE_ATTENTION, kv, c->hidden);
    linear(d, "self_attn.v_proj.weight", BLUE_ATTENTION, kv, c->hidden);
    if (c->attention_bias || qwen2) {
        vector(d, "self_attn.q_proj.bias", BLUE_VECTOR, q, BIAS_STD);
        vector(d, "self_attn.k_proj.bias", BLUE_VECTOR, kv, BIAS_STD);
        vector(d, "self_attn.v_proj.bias", BLUE_VECTOR, kv, BIAS_STD);
    }
    if (strncmp(c->arch, "Qwen3", 5) == 0) {
        gain(d, "self_attn.q_norm.weight", c->head_dim);
        gain(d, "self_attn.k_norm.weight", c->head_dim);
    }
    residual(d, "self_attn.o_proj.weight", BLUE_ATTENTION, c->hidden, q);
    if (c->attention_bias && !qwen2)
        vector(d, "self_attn.o_proj.bias", BLUE_VECTOR, c->hidden, BIAS_STD);
}

static void latent_attention(struct draft *d)
{
    const struct model_config *c = d->c;
    uint32_t rope = c->rope_dim, q = c->heads * (c->nope_dim + rope);

    if (c->q_lora) {
        linear(d, "self_attn.q_a_proj.weight", BLUE_ATTENTION, c->q_lora, c->hidden);
        gain(d, "self_attn.q_a_layernorm.weight", c->q_lora);
        linear(d, "self_attn.q_b_proj.weight", BLUE_ATTENTION, q, c->q_lora);
    } else {
        linear(d, "self_attn.q_proj.weight", BLUE_ATTENTION, q, c->hidden);
    }
    linear(d, "self_attn.kv_a_proj_with_mqa.weight", BLUE_ATTENTION, c->kv_lora + rope, c->hidden);
    gain(d, "self_attn.kv_a_layernorm.weight", c->kv_lora);
    linear(d, "self_attn.kv_b_proj.weight", BLUE_LATENT, c->heads * (c->nope_dim + c->v_dim),
           c->kv_lora);
    residual(d, "self_attn.o_proj.weight", BLUE_ATTENTION, c->hidden, c->heads * c->v_dim);
}

/* `where` is "mlp", or one of its experts. */
static void mlp(struct draft *d, const char *where, uint32_t ffn)
{
    char name[64];

    snprintf(name, sizeof name, "%s.gate_proj.weight", where);
    linear(d, name, BLUE_MLP, ffn, d->c->hidden);
    snprintf(name, sizeof name, "%s.up_proj.weight", where);
    linear(d, name, BLUE_MLP, ffn, d->c->hidden);
    snprintf(name, sizeof name, "%s.down_proj.weight", where);
    residual(d, name, BLUE_MLP, d->c->hidden, ffn);
}

static void experts(struct draft *d)
{
    const struct model_config *c = d->c;
    char where[32];

    linear(d, "mlp.gate.weight", BLUE_FLOAT, c->experts, c->hidden);
    if (c->expert_bias)
        vector(d, "mlp.gate.e_score_correction_bias", BLUE_CORRECTION, c->experts, CORRECTION_STD);
    for (uint32_t i = 0; i < c->experts; i++) {
        snprintf(where, sizeof where, "mlp.experts.%u", i);
        mlp(d, where, c->expert_ffn);
    }
    if (c->shared_experts)
        mlp(d, "mlp.shared_experts", c->shared_experts * c->expert_ffn);
}

static void layer(struct draft *d, uint32_t i)
{
    const struct model_config *c = d->c;

    snprintf(d->at, sizeof d->at, "model.layers.%u.", i);
    gain(d, "input_layernorm.weight", c->hidden);
    if (c->kv_lora)
        latent_attention(d);
    else
        grouped_attention(d);
    gain(d, "post_attention_layernorm.weight", c->hidden);
    if (model_layer_sparse(c, i))
        experts(d);
    else
        mlp(d, "mlp", c->ffn);
}

/* DeepSeek-V3 technical report, 2.2: what stands around the layer's own block. Embedding and head
 * repeat the model's in published checkpoints; here they only have its shapes. */
static void prediction_layer(struct draft *d, uint32_t i)
{
    const struct model_config *c = d->c;

    layer(d, i);
    matrix(d, "embed_tokens.weight", BLUE_FLOAT, c->vocab, c->hidden, 1);
    gain(d, "enorm.weight", c->hidden);
    gain(d, "hnorm.weight", c->hidden);
    linear(d, "eh_proj.weight", BLUE_FLOAT, c->hidden, 2 * c->hidden);
    gain(d, "shared_head.norm.weight", c->hidden);
    matrix(d, "shared_head.head.weight", BLUE_FLOAT, c->vocab, c->hidden,
           LOGIT_STD / sqrt(c->hidden));
}

static void whole(struct draft *d)
{
    const struct model_config *c = d->c;
    double head = LOGIT_STD / sqrt(c->hidden);

    matrix(d, "model.embed_tokens.weight", BLUE_FLOAT, c->vocab, c->hidden,
           c->tied_embeddings ? head : 1);
    for (uint32_t i = 0; i < c->n_layers; i++)
        layer(d, i);
    for (uint32_t i = 0; i < c->mtp_layers; i++)
        prediction_layer(d, c->n_layers + i);
    d->at[0] = '\0';
    gain(d, "model.norm.weight", c->hidden);
    if (!c->tied_embeddings)
        matrix(d, "lm_head.weight", BLUE_FLOAT, c->vocab, c->hidden, head);
}

int blueprint_make(struct blueprint *out, const struct model_config *c, struct err *e)
{
    static const char *const known[] = {
        "LlamaForCausalLM",    "Qwen2ForCausalLM",      "Qwen3ForCausalLM",
        "Qwen3MoeForCausalLM", "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM",
    };
    struct draft d = { .b = out, .c = c };
    size_t i = 0;

    *out = (struct blueprint){ 0 };
    while (i < sizeof known / sizeof *known && strcmp(c->arch, known[i]) != 0)
        i++;
    if (i == sizeof known / sizeof *known)
        return err_set(e, ERR_UNSUPPORTED,
                       "architecture \"%s\" is not one whose tensors are known here; Llama, Qwen2, "
                       "Qwen3, Qwen3Moe, DeepseekV2 and DeepseekV3 ...ForCausalLM are",
                       c->arch);
    whole(&d);
    if (!d.failed)
        return 0;
    blueprint_finish(out);
    return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
}

void blueprint_finish(struct blueprint *b)
{
    free(b->t);
    *b = (struct blueprint){ 0 };
}
