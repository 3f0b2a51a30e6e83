/* Grouped-query attention with rotary positions: x += o(attend(rope(norm(qkv + bias)))), where the
 * biases, and the norms of the heads, are there or not. */
#include <math.h>

#include "base/status.h"
#include "model/blocks.h"

/* Columns of this rank. */
static uint32_t q_cols(const struct model *m)
{
    return m->heads * m->cfg.head_dim;
}

static uint32_t kv_cols(const struct model *m)
{
    return m->kv_heads * m->cfg.head_dim;
}

static uint32_t qkv_cols(const struct model *m)
{
    return q_cols(m) + 2 * kv_cols(m);
}

/* Which of all heads' rows they are. */
static struct share q_rows(const struct model *m)
{
    return (struct share){ m->first_head * m->cfg.head_dim, q_cols(m) };
}

static struct share kv_rows(const struct model *m)
{
    return (struct share){ m->first_kv_head * m->cfg.head_dim, kv_cols(m) };
}

int gqa_check(const struct model_config *c, struct err *e)
{
    if (c->head_dim > K_MAX_HEAD_DIM || c->head_dim % 16)
        return err_set(e, ERR_UNSUPPORTED,
                       "head size %u is not supported; multiples of 16 up to %d are", c->head_dim,
                       K_MAX_HEAD_DIM);
    if (c->heads * c->head_dim % 32)
        return err_set(e, ERR_UNSUPPORTED, "heads x head size %u must be a multiple of 32",
                       c->heads * c->head_dim);
    return 0;
}

static int load_matrices(struct load *l, struct gqa *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    uint32_t pairs = l->m->arch->gguf_pairs ? c->head_dim : 0;
    char q[TENSOR_MAX_NAME], k[TENSOR_MAX_NAME], v[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    const struct load_part qkv[] = {
        { .name = load_name(q, id, "self_attn.q_proj.weight"),
          .rows = c->heads * c->head_dim,
          .head_dim = pairs,
          .only_rows = q_rows(l->m) },
        { .name = load_name(k, id, "self_attn.k_proj.weight"),
          .rows = c->kv_heads * c->head_dim,
          .head_dim = pairs,
          .only_rows = kv_rows(l->m) },
        { .name = load_name(v, id, "self_attn.v_proj.weight"),
          .rows = c->kv_heads * c->head_dim,
          .only_rows = kv_rows(l->m) },
    };
    struct load_part o = { .name = load_name(name, id, "self_attn.o_proj.weight"),
                           .rows = c->hidden };
    uint64_t *bytes = &l->m->weight_bytes;
    int st = load_matrix(l, &y->qkv, qkv, 3, c->hidden, bytes);

    if (st < 0 || (st = part_heads(l, &o.only_cols, o.name, c->heads, c->head_dim)) < 0)
        return st;
    return load_matrix(l, &y->o, &o, 1, c->heads * c->head_dim, bytes);
}

/* The three biases side by side, as the outputs of qkv stand. */
static int load_qkv_bias(struct load *l, struct gqa *y, uint32_t id)
{
    const struct model *m = l->m;
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct {
        const char *name;
        uint32_t all;
        struct share mine;
    } parts[] = {
        { "self_attn.q_proj.bias", c->heads * c->head_dim, q_rows(m) },
        { "self_attn.k_proj.bias", c->kv_heads * c->head_dim, kv_rows(m) },
        { "self_attn.v_proj.bias", c->kv_heads * c->head_dim, kv_rows(m) },
    };
    char name[TENSOR_MAX_NAME];
    size_t at = 0;
    int st = 0;

    y->bias = k->alloc(k, qkv_cols(m) * sizeof *y->bias);
    if (!y->bias)
        return err_set(l->e, ERR_NOMEM, "no memory for the biases of layer %u", id);
    for (size_t i = 0; st == 0 && i < 3; i++) {
        struct share mine = parts[i].mine;
        float *one = NULL;

        st = load_vector(l, &one, load_name(name, id, parts[i].name), parts[i].all);
        if (st == 0)
            k->copy(k, y->bias + at, one + mine.from, mine.n * sizeof *one);
        k->free(k, one, parts[i].all * sizeof *one);
        at += mine.n;
    }
    return st;
}

/* Linears with a static scale have their bias inside (kernel.h, struct k_static). */
static int load_biases(struct load *l, struct gqa *y, uint32_t id)
{
    const struct model *m = l->m;
    char name[TENSOR_MAX_NAME];
    int st = 0;

    if ((m->arch->qkv_bias || m->cfg.attention_bias) && !m->k->matrix_static(y->qkv))
        st = load_qkv_bias(l, y, id);
    if (st == 0 && m->cfg.attention_bias && !m->arch->qkv_bias && !m->k->matrix_static(y->o))
        st = load_vector(l, &y->o_bias, load_name(name, id, "self_attn.o_proj.bias"),
                         m->cfg.hidden);
    return st;
}

int gqa_load(struct load *l, struct gqa *y, uint32_t id)
{
    const struct model *m = l->m;
    char q[TENSOR_MAX_NAME], k[TENSOR_MAX_NAME];
    int st;

    if (l->w->gguf && m->arch->gguf_pairs && m->cfg.rope_dim != m->cfg.head_dim)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "%s: heads of %u with %u rotated dimensions are not supported from GGUF",
                       l->w->path, m->cfg.head_dim, m->cfg.rope_dim);
    if ((st = load_matrices(l, y, id)) < 0 || (st = load_biases(l, y, id)) < 0 ||
        !m->arch->head_norms)
        return st;
    load_name(q, id, "self_attn.q_norm.weight");
    load_name(k, id, "self_attn.k_norm.weight");
    st = load_vector(l, &y->q_norm, q, m->cfg.head_dim);
    return st < 0 ? st : load_vector(l, &y->k_norm, k, m->cfg.head_dim);
}

void gqa_unload(const struct model *m, struct gqa *y)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;

    k->unpack_free(k, y->qkv);
    k->unpack_free(k, y->o);
    k->free(k, y->bias, qkv_cols(m) * sizeof(float));
    k->free(k, y->o_bias, c->hidden * sizeof(float));
    k->free(k, y->q_norm, c->head_dim * sizeof(float));
    k->free(k, y->k_norm, c->head_dim * sizeof(float));
}

void gqa_shape(const struct model *m, const struct gqa *y, struct work_shape *s)
{
    raise_to(&s->wide, qkv_cols(m));
    raise_to(&s->ctx, q_cols(m));
    raise_to(&s->act, q_cols(m));
    s->forms |= work_forms(m->k, y->qkv) | work_forms(m->k, y->o);
}

static void probe_qkv(const struct model *m, const struct model_work *w, uint32_t n, uint32_t id)
{
    uint32_t ld = qkv_cols(m);

    work_probe(w, w->wide, ld, n, q_cols(m), "L%u.q", id);
    work_probe(w, w->wide + q_cols(m), ld, n, kv_cols(m), "L%u.k", id);
    work_probe(w, w->wide + q_cols(m) + kv_cols(m), ld, n, kv_cols(m), "L%u.v", id);
}

/* Queries, keys and values of the normalized rows, turned, into w->wide. */
static void make_qkv(const struct model *m, struct model_work *w, const struct gqa *y,
                     const struct model_batch *b)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct k_rope rope = { m->cos, m->sin, c->rope_dim, m->max_pos, K_ROPE_HALVES };
    uint32_t ld = qkv_cols(m);
    const struct k_heads q = { w->wide, ld, c->head_dim };
    const struct k_heads key = { w->wide + q_cols(m), ld, c->head_dim };

    work_linear(k, w->wide, ld, w->act, y->qkv, b->n, false);
    if (y->bias)
        k->add_bias(k, w->wide, ld, y->bias, b->n, ld);
    if (y->q_norm) {
        k->norm_heads(k, q, b->n, m->heads, c->head_dim, y->q_norm, NULL, c->norm_eps);
        k->norm_heads(k, key, b->n, m->kv_heads, c->head_dim, y->k_norm, NULL, c->norm_eps);
    }
    /* Keys follow the queries: one call turns both. */
    k->rope(k, w->wide, ld, b->n, m->heads + m->kv_heads, c->head_dim, b->pos, &rope);
}

void gqa_run(const struct model *m, struct model_work *w, const struct gqa *y,
             const struct k_kv *kv, const struct model_batch *b, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    uint32_t nq = q_cols(m), ld = qkv_cols(m);
    float *key = w->wide + nq, *value = key + kv_cols(m);

    make_qkv(m, w, y, b);
    if (w->probe)
        probe_qkv(m, w, b->n, id);
    k->kv_write(k, kv, key, value, ld, b->seqs, b->n_seqs);
    k->attend(k, w->ctx, nq, w->wide, ld, m->heads, 1 / sqrtf((float)c->head_dim), kv, b->seqs,
              b->n_seqs);
    k->act_load(k, w->act, w->ctx, nq, b->n, nq);
    work_output(m, w, y->o, y->o_bias, b->n);
    if (w->probe)
        work_probe(w, w->ctx, nq, b->n, nq, "L%u.attn_ctx", id);
}
