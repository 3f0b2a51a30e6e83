/* LlamaForCausalLM: RMSNorm, grouped-query attention with rotary positions, SwiGLU, no biases.
 * A layer is x += o(attend(rope(qkv(norm(x))))), then x += down(swiglu(gate_up(norm(x)))). */
#include <math.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/arch.h"

struct layer {
    float *attn_norm, *ffn_norm;
    struct k_matrix *qkv; /* rows: query heads, key heads, value heads */
    struct k_matrix *o;
    struct k_matrix *gate_up; /* rows: gate, up */
    struct k_matrix *down;
};

static const struct weight_name names[] = {
    { false, "token_embd.weight", "model.embed_tokens.weight" },
    { false, "output_norm.weight", "model.norm.weight" },
    { false, "output.weight", "lm_head.weight" },
    { true, "attn_norm.weight", "input_layernorm.weight" },
    { true, "attn_q.weight", "self_attn.q_proj.weight" },
    { true, "attn_k.weight", "self_attn.k_proj.weight" },
    { true, "attn_v.weight", "self_attn.v_proj.weight" },
    { true, "attn_output.weight", "self_attn.o_proj.weight" },
    { true, "ffn_norm.weight", "post_attention_layernorm.weight" },
    { true, "ffn_gate.weight", "mlp.gate_proj.weight" },
    { true, "ffn_up.weight", "mlp.up_proj.weight" },
    { true, "ffn_down.weight", "mlp.down_proj.weight" },
    { 0 },
};

static uint32_t q_cols(const struct model_config *c)
{
    return c->heads * c->head_dim;
}

static uint32_t kv_cols(const struct model_config *c)
{
    return c->kv_heads * c->head_dim;
}

static int check(const struct model *m, struct err *e)
{
    const struct model_config *c = &m->cfg;

    if (c->head_dim > K_MAX_HEAD_DIM || c->head_dim % 16)
        return err_set(e, ERR_UNSUPPORTED,
                       "head size %u is not supported; multiples of 16 up to %d are", c->head_dim,
                       K_MAX_HEAD_DIM);
    if (c->hidden % 32 || c->ffn % 32 || q_cols(c) % 32)
        return err_set(e, ERR_UNSUPPORTED,
                       "hidden size %u, feed-forward size %u and heads x head size %u must be "
                       "multiples of 32",
                       c->hidden, c->ffn, q_cols(c));
    return 0;
}

static int load_attention(struct load *l, struct layer *y, uint32_t i)
{
    const struct model_config *c = &l->m->cfg;
    char q[TENSOR_MAX_NAME], k[TENSOR_MAX_NAME], v[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    const struct load_part qkv[] = {
        { load_name(q, i, "self_attn.q_proj.weight"), q_cols(c), c->head_dim },
        { load_name(k, i, "self_attn.k_proj.weight"), kv_cols(c), c->head_dim },
        { load_name(v, i, "self_attn.v_proj.weight"), kv_cols(c), 0 },
    };
    const struct load_part o = { name, c->hidden, 0 };
    uint64_t *bytes = &l->m->weight_bytes;
    int st = load_vector(l, &y->attn_norm, load_name(name, i, "input_layernorm.weight"), c->hidden);

    if (st < 0 || (st = load_matrix(l, &y->qkv, qkv, 3, c->hidden, bytes)) < 0)
        return st;
    load_name(name, i, "self_attn.o_proj.weight");
    return load_matrix(l, &y->o, &o, 1, q_cols(c), bytes);
}

static int load_mlp(struct load *l, struct layer *y, uint32_t i)
{
    const struct model_config *c = &l->m->cfg;
    char gate[TENSOR_MAX_NAME], up[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    const struct load_part gate_up[] = {
        { load_name(gate, i, "mlp.gate_proj.weight"), c->ffn, 0 },
        { load_name(up, i, "mlp.up_proj.weight"), c->ffn, 0 },
    };
    const struct load_part down = { name, c->hidden, 0 };
    uint64_t *bytes = &l->m->weight_bytes;
    int st;

    load_name(name, i, "post_attention_layernorm.weight");
    if ((st = load_vector(l, &y->ffn_norm, name, c->hidden)) < 0 ||
        (st = load_matrix(l, &y->gate_up, gate_up, 2, c->hidden, bytes)) < 0)
        return st;
    load_name(name, i, "mlp.down_proj.weight");
    return load_matrix(l, &y->down, &down, 1, c->ffn, bytes);
}

static int load(struct load *l)
{
    struct model *m = l->m;
    struct layer *y = m->body = calloc(m->n_layers, sizeof *y);
    int st = 0;

    if (!y)
        return err_set(l->e, ERR_NOMEM, "no memory for %u layers", m->n_layers);
    if (l->w->gguf && m->cfg.rope_dim != m->cfg.head_dim)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "%s: heads of %u with %u rotated dimensions are not supported from GGUF",
                       l->w->path, m->cfg.head_dim, m->cfg.rope_dim);
    for (uint32_t i = 0; st == 0 && i < m->n_layers; i++) {
        st = load_attention(l, &y[i], m->first_layer + i);
        if (st == 0)
            st = load_mlp(l, &y[i], m->first_layer + i);
    }
    return st;
}

static void unload(struct model *m)
{
    const struct kernels *k = m->k;
    struct layer *y = m->body;

    for (uint32_t i = 0; y && i < m->n_layers; i++) {
        k->free(k, y[i].attn_norm, m->cfg.hidden * sizeof(float));
        k->free(k, y[i].ffn_norm, m->cfg.hidden * sizeof(float));
        k->unpack_free(k, y[i].qkv);
        k->unpack_free(k, y[i].o);
        k->unpack_free(k, y[i].gate_up);
        k->unpack_free(k, y[i].down);
    }
    free(y);
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static void shape(const struct model *m, struct work_shape *out)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct layer *y = m->body;

    out->wide = max_u32(max_u32(q_cols(c) + 2 * kv_cols(c), 2 * c->ffn), c->hidden);
    out->ctx = q_cols(c);
    out->act = max_u32(max_u32(c->hidden, c->ffn), q_cols(c));
    out->forms = 0;
    for (uint32_t i = 0; i < m->n_layers; i++)
        out->forms |= k->matrix_form(y[i].qkv) | k->matrix_form(y[i].o) |
                      k->matrix_form(y[i].gate_up) | k->matrix_form(y[i].down);
}

static void probe_qkv(const struct model *m, const struct model_work *w, uint32_t n, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    uint32_t ld = q_cols(c) + 2 * kv_cols(c);

    work_probe(w, m->k->act_floats(w->act), c->hidden, n, c->hidden, "L%u.attn_norm", id);
    work_probe(w, w->wide, ld, n, q_cols(c), "L%u.q", id);
    work_probe(w, w->wide + q_cols(c), ld, n, kv_cols(c), "L%u.k", id);
    work_probe(w, w->wide + q_cols(c) + kv_cols(c), ld, n, kv_cols(c), "L%u.v", id);
}

/* What the layer adds to the residual stream, computed once more into the scratch `wide`. */
static void probe_added(const struct model *m, const struct model_work *w, const struct k_matrix *a,
                        uint32_t n, uint32_t id, const char *name)
{
    m->k->linear(m->k, w->wide, m->cfg.hidden, w->act, a, n, false);
    work_probe(w, w->wide, m->cfg.hidden, n, m->cfg.hidden, "L%u.%s", id, name);
}

static void attention(const struct model *m, struct model_work *w, const struct layer *y,
                      const struct k_kv *kv, const struct model_batch *b, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct k_rope rope = { m->cos, m->sin, c->rope_dim, m->max_pos, K_ROPE_HALVES };
    uint32_t nq = q_cols(c), nkv = kv_cols(c), ld = nq + 2 * nkv;
    float *q = w->wide, *key = q + nq, *value = key + nkv;
    bool probed = w->probe && id < 2;

    k->act_norm(k, w->act, w->x, c->hidden, y->attn_norm, b->n, c->hidden, c->norm_eps);
    k->linear(k, q, ld, w->act, y->qkv, b->n, false);
    /* Keys follow the queries: one call turns both. */
    k->rope(k, q, ld, b->n, c->heads + c->kv_heads, c->head_dim, b->pos, &rope);
    if (probed)
        probe_qkv(m, w, b->n, id);
    k->kv_write(k, kv, key, value, ld, b->seqs, b->n_seqs);
    k->attend(k, w->ctx, nq, q, ld, c->heads, 1 / sqrtf((float)c->head_dim), kv, b->seqs,
              b->n_seqs);
    k->act_load(k, w->act, w->ctx, nq, b->n, nq);
    k->linear(k, w->x, c->hidden, w->act, y->o, b->n, true);
    if (probed) {
        work_probe(w, w->ctx, nq, b->n, nq, "L%u.attn_ctx", id);
        probe_added(m, w, y->o, b->n, id, "attn_out");
    }
}

static void mlp(const struct model *m, struct model_work *w, const struct layer *y, uint32_t n,
                uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    bool probed = w->probe && id < 2;

    k->act_norm(k, w->act, w->x, c->hidden, y->ffn_norm, n, c->hidden, c->norm_eps);
    if (probed)
        work_probe(w, k->act_floats(w->act), c->hidden, n, c->hidden, "L%u.ffn_norm", id);
    k->linear(k, w->wide, 2 * c->ffn, w->act, y->gate_up, n, false);
    k->act_swiglu(k, w->act, w->wide, 2 * c->ffn, n, c->ffn);
    k->linear(k, w->x, c->hidden, w->act, y->down, n, true);
    if (probed)
        probe_added(m, w, y->down, n, id, "ffn_out");
}

static void layers(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b)
{
    const struct layer *y = m->body;

    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint32_t id = m->first_layer + i;

        attention(m, w, &y[i], &kv[i], b, id);
        mlp(m, w, &y[i], b->n, id);
        if (w->probe)
            work_probe(w, w->x, m->cfg.hidden, b->n, m->cfg.hidden, "layer%u", id);
    }
}

const struct arch arch_llama = {
    .hf = "LlamaForCausalLM",
    .gguf = "llama",
    .names = names,
    .check = check,
    .load = load,
    .unload = unload,
    .shape = shape,
    .layers = layers,
};
