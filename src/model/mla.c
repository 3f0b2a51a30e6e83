/* Multi-head latent attention (DeepSeek-V2 technical report, 2.1): of each token the cache holds
 * one latent that all heads share, and one rotated part of the key.
 *
 * Absorbed, a query is taken to the latents' space and attends to them directly; the heads'
 * contexts are latents too, of which value_up makes values. Expanded, keys and values are made
 * of all latents first. Both are the same sums in another order. */
#include "model/blocks.h"

/* HuggingFace's code normalizes the two small vectors with this, whatever the configuration
 * says. */
#define LATENT_EPS 1e-6f

/* Where the numbers of all rows stand in model_work.wide: one matrix after another. */
struct inputs {
    float *q;   /* [n][heads][head_dim], of which the first nope_dim do not turn */
    float *q_a; /* [n][q_lora, then what kv points to] */
    float *kv;  /* [n][latent, then the rotated part of the key] */
    uint32_t ld_q, ld_a;
};

static struct inputs inputs_of(const struct model *m, const struct model_work *w)
{
    const struct model_config *c = &m->cfg;
    struct inputs in = { .q = w->wide,
                         .ld_q = m->heads * c->head_dim,
                         .ld_a = c->q_lora + c->kv_lora + c->rope_dim };

    in.q_a = in.q + (size_t)w->max_tokens * in.ld_q;
    in.kv = in.q_a + c->q_lora;
    return in;
}

void mla_shape(const struct model *m, const struct mla *y, struct work_shape *s)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;

    raise_to(&s->wide, m->heads * c->head_dim + c->kv_lora + c->rope_dim + c->q_lora);
    raise_to(&s->ctx, m->heads * c->v_dim);
    raise_to(&s->act, m->heads * c->v_dim);
    raise_to(&s->act, c->q_lora);
    s->forms |= work_forms(k, y->a) | work_forms(k, y->q_b) | work_forms(k, y->o);
    s->head_forms |= work_forms(k, y->key_down[0]) | work_forms(k, y->value_up[0]);
}

static void probe_inputs(const struct model *m, const struct model_work *w, const struct inputs *in,
                         uint32_t n, uint32_t id)
{
    const struct model_config *c = &m->cfg;

    work_probe(w, in->q, in->ld_q, n, in->ld_q, "L%u.q", id);
    work_probe(w, in->kv, in->ld_a, n, c->kv_lora, "L%u.c_kv", id);
    work_probe(w, in->kv + c->kv_lora, in->ld_a, n, c->rope_dim, "L%u.k_pe", id);
}

/* Queries, latents and rotated parts of the normalized rows, as attention wants them. */
static void make_inputs(const struct model *m, struct model_work *w, const struct mla *y,
                        const struct inputs *in, const struct model_batch *b, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct k_rope rope = { m->cos, m->sin, c->rope_dim, m->max_pos, K_ROPE_PAIRS };
    const struct k_heads latent = { in->kv, in->ld_a, in->ld_a };

    work_linear(k, in->q_a, in->ld_a, w->act, y->a, b->n, false);
    if (c->q_lora) {
        k->act_norm(k, w->act, in->q_a, in->ld_a, y->q_a_norm.gain, y->q_a_norm.bias, b->n,
                    c->q_lora, LATENT_EPS);
        if (w->probe)
            work_probe(w, k->act_floats(w->act), c->q_lora, b->n, c->q_lora, "L%u.q_a_norm", id);
    }
    work_linear(k, in->q, in->ld_q, w->act, y->q_b, b->n, false);
    k->norm_heads(k, latent, b->n, 1, c->kv_lora, y->kv_a_norm.gain, y->kv_a_norm.bias, LATENT_EPS);
    k->rope(k, in->kv + c->kv_lora, in->ld_a, b->n, 1, c->rope_dim, b->pos, &rope);
    k->rope(k, in->q + c->nope_dim, in->ld_q, b->n, m->heads, c->head_dim, b->pos, &rope);
}

/* A slice in absorbed form: its queries to the latents' space, there attention, and the contexts
 * back to values. */
static void run_absorbed(const struct model *m, struct model_work *w, const struct mla *y,
                         const struct inputs *in, const struct k_kv *kv, const struct mla_slice *t)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct mla_work *a = w->mla;
    uint32_t nv = m->heads * c->v_dim, latent = c->kv_lora;
    float *q = in->q + (size_t)t->row * in->ld_q;
    const struct k_heads q_latent = { a->q, (size_t)m->heads * latent, latent };
    const struct k_heads pe = { q + c->nope_dim, in->ld_q, c->head_dim };
    const struct k_heads ctx = { a->ctx, latent, (size_t)t->n * latent };
    const struct k_heads out = { w->ctx + (size_t)t->row * nv, nv, c->v_dim };

    k->act_gather(k, a->act, q, c->head_dim, t->gather, m->heads * t->n, c->nope_dim);
    k->linear_heads(k, q_latent, a->act, (const struct k_matrix *const *)y->key_down, m->heads,
                    t->n);
    k->attend_latent(k, ctx, q_latent, pe, m->heads, (float)rope_latent_scale(c), kv, t->seqs,
                     t->n_seqs);
    k->act_load(k, a->act, a->ctx, latent, m->heads * t->n, latent);
    k->linear_heads(k, out, a->act, (const struct k_matrix *const *)y->value_up, m->heads, t->n);
}

/* Keys and values of n heads from h on out of the latents. */
static void expand_heads(const struct model *m, const struct mla_work *a, const struct mla *y,
                         uint32_t h, uint32_t n, uint32_t positions)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;

    for (uint32_t i = 0; i < n; i++) {
        k->linear(k, a->key + (size_t)i * positions * c->nope_dim, c->nope_dim, a->latent_act,
                  y->key_up[h + i], positions, false);
        k->linear(k, a->value + (size_t)i * positions * c->v_dim, c->v_dim, a->latent_act,
                  y->value_up[h + i], positions, false);
    }
}

/* The latents of positions [from, to), ready to be expanded. */
static void read_latents(const struct model *m, const struct mla_work *a, const struct k_kv *kv,
                         const struct k_seq *seq, uint32_t from, uint32_t to)
{
    const struct model_config *c = &m->cfg;

    m->k->latent_read(m->k, a->latent, c->kv_lora, a->pe, c->rope_dim, kv, seq, from, to);
    m->k->act_load(m->k, a->latent_act, a->latent, c->kv_lora, to - from, c->kv_lora);
}

/* Some heads, over all positions: part after part of what there is room for. q and out are the first
 * head's. */
struct expansion {
    const struct mla *y;
    const struct k_kv *kv;
    const struct k_seq *seq;
    struct k_heads q, out;
    uint32_t h, n;
};

static void attend_heads(const struct model *m, const struct mla_work *a, const struct expansion *x)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    uint32_t positions = x->seq->pos + x->seq->n;

    for (uint32_t from = 0; from < positions; from += a->part) {
        uint32_t rows = positions - from < a->part ? positions - from : a->part;
        const struct k_span span = { from, from + rows, a->sums };
        const struct k_heads key = { a->key, c->nope_dim, (size_t)rows * c->nope_dim };
        const struct k_heads value = { a->value, c->v_dim, (size_t)rows * c->v_dim };

        if (x->h == 0 || positions > a->part)
            read_latents(m, a, x->kv, x->seq, from, from + rows);
        expand_heads(m, a, x->y, x->h, x->n, rows);
        k->attend_expanded(k, x->out, x->q, key, a->pe, c->rope_dim, value, x->n, c->nope_dim,
                           c->rope_dim, c->v_dim, (float)rope_latent_scale(c), x->seq, &span);
    }
}

static void run_expanded(const struct model *m, struct model_work *w, const struct mla *y,
                         const struct inputs *in, const struct k_kv *kv, const struct mla_slice *t)
{
    const struct model_config *c = &m->cfg;
    const struct mla_work *a = w->mla;
    uint32_t nv = m->heads * c->v_dim;
    float *q = in->q + (size_t)t->row * in->ld_q, *out = w->ctx + (size_t)t->row * nv;

    for (uint32_t h = 0; h < m->heads; h += a->heads) {
        const struct expansion x = {
            .y = y,
            .kv = kv,
            .seq = t->seqs,
            .q = { q + (size_t)h * c->head_dim, in->ld_q, c->head_dim },
            .out = { out + (size_t)h * c->v_dim, nv, c->v_dim },
            .h = h,
            .n = m->heads - h < a->heads ? m->heads - h : a->heads,
        };

        attend_heads(m, a, &x);
    }
}

void mla_run(const struct model *m, struct model_work *w, const struct mla *y,
             const struct k_kv *kv, const struct model_batch *b, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct inputs in = inputs_of(m, w);
    uint32_t nv = m->heads * c->v_dim;

    make_inputs(m, w, y, &in, b, id);
    if (w->probe)
        probe_inputs(m, w, &in, b->n, id);
    k->latent_write(k, kv, in.kv, in.ld_a, in.kv + c->kv_lora, in.ld_a, b->seqs, b->n_seqs);
    for (uint32_t i = 0; i < w->mla->n_slices; i++) {
        const struct mla_slice *t = &w->mla->slices[i];

        (t->expanded ? run_expanded : run_absorbed)(m, w, y, &in, kv, t);
    }
    k->act_load(k, w->act, w->ctx, nv, b->n, nv);
    work_output(m, w, y->o, NULL, b->n);
    if (w->probe)
        work_probe(w, w->ctx, nv, b->n, nv, "L%u.attn_ctx", id);
}
