/* What a model will take, from what the headers of its files say. */
#include <string.h>

#include "model/blocks.h"
#include "model/opening.h"

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* What this rank loads of a tensor: `mine` of `all` its rows, columns or matrices. */
enum dimension { ROWS, COLUMNS, MATRICES };
struct ratio {
    uint64_t mine, all;
    enum dimension of;
};

static uint64_t part_of(uint64_t n, struct ratio r, enum dimension of)
{
    return r.of == of ? (n * r.mine + r.all - 1) / r.all : n;
}

/* A matrix, or a stack of them, that is packed as it is stored. */
static uint64_t packed_bytes(const struct model *m, const struct tensor *t, struct ratio r)
{
    uint32_t rank = t->n_dims, block = t->type == K_TYPES ? 1 : k_type_info[t->type].block;
    uint64_t cols = part_of(t->shape[rank - 1] / block, r, COLUMNS) * block;
    uint64_t rows = part_of(t->shape[rank - 2], r, ROWS);
    uint64_t stack = rank == 3 ? part_of(t->shape[0], r, MATRICES) : 1;
    struct k_part part = { .type = t->type, .rows = (uint32_t)rows };

    if (t->type == K_TYPES || rows > UINT32_MAX || cols > UINT32_MAX || t->shape[rank - 1] % block)
        return t->bytes; /* model_open will refuse it */
    if (t->type == K_F8_E4M3 && cols < t->shape[rank - 1] && m->part.tp_rank * cols % K_F8_BLOCK)
        part.type = K_F32; /* the columns begin within a block of scales */
    return rows && cols ? stack * m->k->pack_bytes(m->k, &part, (uint32_t)cols) : 0;
}

/* kv_b becomes three matrices a head, or two where nothing is expanded. */
static uint64_t latent_bytes(const struct model *m, const struct tensor *t)
{
    const struct model_config *c = &m->cfg;
    uint64_t rows = (mla_expands(m) ? 2 : 1) * c->nope_dim + c->v_dim;
    bool half = t->type == K_BF16 || (m->math == K_MATH_FAST && t->type != K_F32);

    return m->heads * rows * c->kv_lora * (half ? sizeof(uint16_t) : sizeof(float));
}

/* An end of the model that another stage has. */
static bool is_elsewhere(const struct model *m, const char *name)
{
    bool first = m->first_layer == 0, last = m->first_layer + m->n_layers == m->cfg.n_layers;

    if (strcmp(name, "model.embed_tokens.weight") == 0)
        return !first && !(last && m->cfg.tied_embeddings);
    if (strcmp(name, "lm_head.weight") == 0)
        return !last || m->cfg.tied_embeddings;
    return strncmp(name, "model.norm.", sizeof "model.norm." - 1) == 0 && !last;
}

/* How matrices are shared out among tensor-parallel ranks. */
static const struct shared {
    const char *tail;
    enum { BY_HEAD, HEADS_IN, BY_KV_HEAD, BY_COLUMN, COLUMNS_IN, BY_ID, BY_LOGIT, SHARINGS } by;
} shared[] = {
    { ".q_proj.weight", BY_HEAD },
    { ".q_b_proj.weight", BY_HEAD },
    { ".kv_b_proj.weight", BY_HEAD },
    { ".k_b_proj.weight", BY_HEAD },
    { ".v_b_proj.weight", BY_HEAD },
    { ".o_proj.weight", HEADS_IN },
    { ".k_proj.weight", BY_KV_HEAD },
    { ".v_proj.weight", BY_KV_HEAD },
    { ".gate_proj.weight", BY_COLUMN },
    { ".up_proj.weight", BY_COLUMN },
    { ".down_proj.weight", COLUMNS_IN },
    { "embed_tokens.weight", BY_ID },
    { ".shared_head.head.weight", BY_LOGIT },
    { "lm_head.weight", BY_LOGIT },
};

/* Whole experts: of those that are a tensor each, the others' are marked; of all in one, there is a
 * share. */
static struct ratio ratio_of_expert(const struct model *m, const struct tensor *t)
{
    uint32_t all = m->cfg.experts;

    return (struct ratio){ t->n_dims == 3 ? m->experts.n : all, all, MATRICES };
}

static struct ratio ratio_of(const struct model *m, const struct tensor *t)
{
    const struct model_config *c = &m->cfg;
    const struct ratio ratios[SHARINGS] = {
        [BY_HEAD] = { m->heads, c->heads, ROWS },
        [HEADS_IN] = { m->heads, c->heads, COLUMNS },
        [BY_KV_HEAD] = { m->kv_heads, c->kv_heads, ROWS },
        [BY_COLUMN] = { 1, m->part.tp_size, ROWS },
        [COLUMNS_IN] = { 1, m->part.tp_size, COLUMNS },
        [BY_ID] = { m->ids.n, c->vocab, ROWS },
        [BY_LOGIT] = { m->head_ids.n, c->vocab, ROWS },
    };

    if (is_elsewhere(m, t->name))
        return (struct ratio){ 0, 1, ROWS };
    if (m->part.ep_size > 1 && strstr(t->name, ".mlp.experts."))
        return ratio_of_expert(m, t);
    for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
        if (ends_with(t->name, shared[i].tail))
            return ratios[shared[i].by];
    return (struct ratio){ 1, 1, ROWS };
}

static void add_weight(struct model_estimate *out, const struct model *m, const struct weight *w)
{
    const struct tensor *t = &w->t;
    bool matrix = t->n_dims >= 2 && ends_with(t->name, ".weight");
    bool is_float = t->type == K_BF16 || t->type == K_F16 || t->type == K_F32;
    struct ratio part = ratio_of(m, t);
    uint64_t bytes = 0;

    if (m->cfg.kv_lora && ends_with(t->name, ".kv_b_proj.weight"))
        bytes = latent_bytes(m, t);
    else if (matrix)
        bytes = packed_bytes(m, t, part);
    else if (t->n_dims == 1)
        bytes = part_of(t->shape[0], part, ROWS) * sizeof(float);
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
    uint64_t rows = K_MAX_TOKENS / m->heads < tokens ? K_MAX_TOKENS / m->heads : tokens;
    uint64_t keys = m->max_pos < K_MAX_TOKENS ? m->max_pos : K_MAX_TOKENS;
    uint64_t each = keys * (c->nope_dim + c->v_dim), heads = MLA_EXPAND_FLOATS / each;
    uint64_t bytes = rows * m->heads * c->kv_lora * (8 + act_bytes(m));

    if (!mla_expands(m))
        return bytes;
    heads = heads < 1 ? 1 : heads > m->heads ? m->heads : heads;
    return bytes + heads * each * 4 + keys * ((4 + act_bytes(m)) * c->kv_lora + 4 * c->rope_dim);
}

static uint64_t expert_scratch(const struct model *m, uint64_t tokens)
{
    const struct model_config *c = &m->cfg;
    bool apart = moe_apart(m);
    uint64_t parts = apart ? 1 : m->part.tp_size;
    uint64_t up = 2 * ((c->expert_ffn + parts - 1) / parts), wide = up > c->hidden ? up : c->hidden;
    uint64_t most = MOE_SLICE_FLOATS / wide, rows = tokens * c->experts_per_token, here;

    most = most < K_MAX_TOKENS ? most : K_MAX_TOKENS;
    rows = rows < most ? rows : most;
    here = apart ? rows * MOE_UNEVEN : rows; /* rows of all ranks */
    here = here < most ? here : most;
    return here * (4 * up + (4 + act_bytes(m)) * c->hidden) + tokens * c->experts * 4 +
           (apart ? 4 * (rows + here) * c->hidden : 0);
}

/* The rows of logits, on the last stage, and of each rank's part of them. */
static uint64_t head_scratch(const struct model *m, uint64_t rows)
{
    const struct model_config *c = &m->cfg;
    uint64_t tp = m->part.tp_size, ranks = m->part.head_size, part = part_head_ids(m, 0).n;
    uint64_t cols = c->vocab + (tp > 1 ? tp * part : 0) + (ranks > 1 ? 2 * ranks * part : 0);
    uint64_t hidden = 4 + ranks * act_bytes(m) + (ranks > 1 ? 4 * ranks : 0);

    if (m->first_layer + m->n_layers < c->n_layers)
        return 0;
    return rows * (4 * cols + hidden * c->hidden);
}

static uint64_t scratch_bytes(const struct model *m, uint64_t tokens, uint64_t logit_rows)
{
    const struct model_config *c = &m->cfg;
    uint64_t tp = m->part.tp_size, ffn = (c->ffn + tp - 1) / tp;
    uint64_t wide = 2 * ffn, ctx = (uint64_t)m->heads * c->head_dim, act = ffn;
    uint64_t attention = ctx + 2ull * m->kv_heads * c->head_dim, bytes;
    uint64_t stream = (tp > 1 ? 2 : 1) * c->hidden;

    if (c->kv_lora)
        attention = ctx + c->kv_lora + c->rope_dim + c->q_lora;
    wide = attention > wide ? attention : wide;
    act = c->hidden > act ? c->hidden : act;
    act = ctx > act ? ctx : act;
    bytes = tokens * (4 * (stream + wide + ctx) + act_bytes(m) * act);
    if (c->kv_lora)
        bytes += latent_scratch(m, tokens);
    if (c->experts)
        bytes += expert_scratch(m, tokens);
    return bytes + head_scratch(m, logit_rows);
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
