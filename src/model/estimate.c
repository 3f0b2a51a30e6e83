/* What a model will take, from what the headers of its files say. */
#include <string.h>

#include "model/blocks.h"
#include "model/opening.h"

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* A matrix, or a stack of them, that is packed as it is stored. */
static uint64_t packed_bytes(const struct model *m, const struct tensor *t)
{
    uint32_t rank = t->n_dims;
    uint64_t cols = t->shape[rank - 1], rows = t->shape[rank - 2];
    uint64_t stack = rank == 3 ? t->shape[0] : 1;
    struct k_part part = { .type = t->type, .rows = (uint32_t)rows };

    if (t->type == K_TYPES || rows > UINT32_MAX || cols > UINT32_MAX ||
        cols % k_type_info[t->type].block)
        return t->bytes; /* model_open will refuse it */
    return stack * m->k->pack_bytes(m->k, &part, (uint32_t)cols);
}

/* kv_b becomes three matrices a head, or two where nothing is expanded. */
static uint64_t latent_bytes(const struct model *m, const struct tensor *t)
{
    const struct model_config *c = &m->cfg;
    uint64_t rows = (mla_expands(m) ? 2 : 1) * c->nope_dim + c->v_dim;
    bool half = t->type == K_BF16 || (m->math == K_MATH_FAST && t->type != K_F32);

    return c->heads * rows * c->kv_lora * (half ? sizeof(uint16_t) : sizeof(float));
}

static void add_weight(struct model_estimate *out, const struct model *m, const struct weight *w)
{
    const struct tensor *t = &w->t;
    bool matrix = t->n_dims >= 2 && ends_with(t->name, ".weight");
    bool is_float = t->type == K_BF16 || t->type == K_F16 || t->type == K_F32;
    uint64_t bytes = 0;

    if (m->cfg.kv_lora && ends_with(t->name, ".kv_b_proj.weight"))
        bytes = latent_bytes(m, t);
    else if (matrix)
        bytes = packed_bytes(m, t);
    else if (t->n_dims == 1)
        bytes = t->shape[0] * sizeof(float);
    out->weights += bytes;
    if (matrix && is_float)
        out->floats += bytes;
}

/* Bytes of a number in the buffers that linear() reads: the float, and its integer or bfloat16
 * form. */
static uint64_t act_bytes(const struct model *m)
{
    return m->math == K_MATH_FAST ? 8 : 5;
}

static uint64_t latent_scratch(const struct model *m, uint64_t tokens)
{
    const struct model_config *c = &m->cfg;
    uint64_t rows = K_MAX_TOKENS / c->heads < tokens ? K_MAX_TOKENS / c->heads : tokens;
    uint64_t keys = m->max_pos < K_MAX_TOKENS ? m->max_pos : K_MAX_TOKENS;
    uint64_t each = keys * (c->nope_dim + c->v_dim), heads = MLA_EXPAND_FLOATS / each;
    uint64_t bytes = rows * c->heads * c->kv_lora * (8 + act_bytes(m));

    if (!mla_expands(m))
        return bytes;
    heads = heads < 1 ? 1 : heads > c->heads ? c->heads : heads;
    return bytes + heads * each * 4 + keys * ((4 + act_bytes(m)) * c->kv_lora + 4 * c->rope_dim);
}

static uint64_t expert_scratch(const struct model *m, uint64_t tokens)
{
    const struct model_config *c = &m->cfg;
    uint64_t up = 2ull * c->expert_ffn, wide = up > c->hidden ? up : c->hidden;
    uint64_t rows = MOE_SLICE_FLOATS / wide;

    if (rows > K_MAX_TOKENS)
        rows = K_MAX_TOKENS;
    if (rows > tokens * c->experts_per_token)
        rows = tokens * c->experts_per_token;
    return rows * (4 * up + (4 + act_bytes(m)) * c->hidden) + tokens * c->experts * 4;
}

static uint64_t scratch_bytes(const struct model *m, uint64_t tokens, uint64_t logit_rows)
{
    const struct model_config *c = &m->cfg;
    uint64_t wide = 2ull * c->ffn, ctx = (uint64_t)c->heads * c->head_dim, act = c->ffn;
    uint64_t attention = ctx + 2ull * c->kv_heads * c->head_dim, bytes;

    if (c->kv_lora)
        attention = ctx + c->kv_lora + c->rope_dim + c->q_lora;
    wide = attention > wide ? attention : wide;
    act = c->hidden > act ? c->hidden : act;
    act = ctx > act ? ctx : act;
    bytes = tokens * (4 * (c->hidden + wide + ctx) + act_bytes(m) * act);
    if (c->kv_lora)
        bytes += latent_scratch(m, tokens);
    if (c->experts)
        bytes += expert_scratch(m, tokens);
    return bytes + logit_rows * (4ull * c->vocab + (4 + act_bytes(m)) * c->hidden);
}

static uint64_t kv_bytes(const struct model *m, bool mtp)
{
    struct model_kv_shape s;

    model_kv_shape(m, &s);
    return (uint64_t)(s.n_layers + mtp) * s.kv_heads * s.head_dim * (s.latent ? 1 : 2) *
           k_type_info[m->kv_type].bytes;
}

int model_estimate(struct model_estimate *out, const struct kernels *k,
                   const struct model_options *opt, uint32_t max_tokens, uint32_t logit_rows,
                   struct err *e)
{
    struct opening o;
    int st = opening_begin(&o, k, opt, e);

    if (st == 0) {
        *out = (struct model_estimate){
            .tables = (uint64_t)o.m->max_pos * o.m->cfg.rope_dim * sizeof(float),
            .scratch = scratch_bytes(o.m, max_tokens, logit_rows),
            .kv_token = kv_bytes(o.m, opening_mtp(o.m, opt)),
            .folder = !o.w->gguf,
        };
        for (size_t i = 0; i < o.w->n; i++)
            if (!o.w->w[i].skip)
                add_weight(out, o.m, &o.w->w[i]);
    }
    opening_end(&o);
    return st;
}
