/* A decoder layer: which blocks it is made of, and their order. */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

int norm_load(struct load *l, struct norm *out, const char *name, uint32_t n)
{
    char full[TENSOR_MAX_NAME];
    int st;

    snprintf(full, sizeof full, "%s.weight", name);
    if ((st = load_vector(l, &out->gain, full, n)) < 0)
        return st;
    snprintf(full, sizeof full, "%s.bias", name);
    return load_vector_if(l, &out->bias, full, n);
}

void norm_free(const struct model *m, struct norm *x, uint32_t n)
{
    m->k->free(m->k, x->gain, n * sizeof(float));
    m->k->free(m->k, x->bias, n * sizeof(float));
}

/* Whether the architecture has what the configuration asks for. */
static int check_parts(const struct model *m, struct err *e)
{
    const struct model_config *c = &m->cfg;

    if (m->arch->latent != (c->kv_lora > 0))
        return err_set(e, ERR_BADMSG, "%s %s \"kv_lora_rank\"", m->arch->hf,
                       m->arch->latent ? "needs" : "has no");
    if (!m->arch->experts && c->experts)
        return err_set(e, ERR_BADMSG, "%s has no experts, but the configuration says %u",
                       m->arch->hf, c->experts);
    return 0;
}

int layer_check(const struct model *m, struct err *e)
{
    const struct model_config *c = &m->cfg;
    const struct {
        const char *name;
        uint32_t value;
    } cols[] = {
        { "hidden size", c->hidden },
        { "feed-forward size", c->ffn },
        { "experts' feed-forward size", c->expert_ffn },
    };
    int st = check_parts(m, e);

    for (size_t i = 0; st == 0 && i < sizeof cols / sizeof cols[0]; i++)
        if (cols[i].value % 32)
            st = err_set(e, ERR_UNSUPPORTED, "%s %u is not supported; multiples of 32 are",
                         cols[i].name, cols[i].value);
    if (st < 0)
        return st;
    return c->kv_lora ? mla_check(c, e) : gqa_check(c, e);
}

static int load_norm(struct load *l, struct norm *out, uint32_t id, const char *rest)
{
    char name[TENSOR_MAX_NAME];

    return norm_load(l, out, load_name(name, id, rest), l->m->cfg.hidden);
}

int layer_load(struct load *l, struct layer *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    int st;

    if ((st = load_norm(l, &y->attn_norm, id, "input_layernorm")) < 0 ||
        (st = c->kv_lora ? mla_load(l, &y->mla, id) : gqa_load(l, &y->gqa, id)) < 0 ||
        (st = load_norm(l, &y->ffn_norm, id, "post_attention_layernorm")) < 0)
        return st;
    return model_layer_sparse(c, id) ? moe_load(l, &y->moe, id)
                                     : mlp_load(l, &y->mlp, id, "mlp", c->ffn);
}

void layer_unload(const struct model *m, struct layer *y)
{
    norm_free(m, &y->attn_norm, m->cfg.hidden);
    norm_free(m, &y->ffn_norm, m->cfg.hidden);
    gqa_unload(m, &y->gqa);
    mla_unload(m, &y->mla);
    mlp_unload(m, &y->mlp);
    moe_unload(m, &y->moe);
}

void layer_shape(const struct model *m, const struct layer *y, struct work_shape *s)
{
    raise_to(&s->act, m->cfg.hidden);
    if (m->cfg.kv_lora)
        mla_shape(m, &y->mla, s);
    else
        gqa_shape(m, &y->gqa, s);
    if (y->moe.router)
        moe_shape(m, &y->moe, s);
    else
        mlp_shape(m, &y->mlp, s);
}

/* A step is probed before the feed-forward part and after it; the difference is what it adds. */
static void run_ffn(const struct model *m, struct model_work *w, const struct layer *y, uint32_t n,
                    uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;

    k->act_norm(k, w->act, w->x, c->hidden, y->ffn_norm.gain, y->ffn_norm.bias, n, c->hidden,
                c->norm_eps);
    if (w->probe)
        work_probe(w, k->act_floats(w->act), c->hidden, n, c->hidden, "L%u.ffn_norm", id);
    if (y->moe.router) {
        moe_run(m, w, &y->moe, n, id);
        return;
    }
    mlp_run(m, w, &y->mlp, n);
    if (w->probe)
        work_probe(w, k->act_floats(w->act), c->ffn, n, c->ffn, "L%u.ffn_act", id);
}

/* [n][hidden] of the residual stream, or what has been added to it since `before`. */
static float *stream(const struct model *m, const struct model_work *w, uint32_t n,
                     const float *before)
{
    size_t count = (size_t)n * m->cfg.hidden;
    float *copy = malloc(count * sizeof *copy);

    for (size_t i = 0; copy && i < count; i++)
        copy[i] = before ? w->x[i] - before[i] : w->x[i];
    return copy;
}

static void probe_added(const struct model *m, const struct model_work *w, float *before,
                        uint32_t n, uint32_t id, const char *what)
{
    float *added = before ? stream(m, w, n, before) : NULL;

    work_probe(w, added, m->cfg.hidden, n, m->cfg.hidden, "L%u.%s", id, what);
    free(added);
    free(before);
}

void layer_run(const struct model *m, struct model_work *w, const struct layer *y,
               const struct k_kv *kv, const struct model_batch *b, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    float *before = w->probe ? stream(m, w, b->n, NULL) : NULL;

    k->act_norm(k, w->act, w->x, c->hidden, y->attn_norm.gain, y->attn_norm.bias, b->n, c->hidden,
                c->norm_eps);
    if (w->probe)
        work_probe(w, k->act_floats(w->act), c->hidden, b->n, c->hidden, "L%u.attn_norm", id);
    if (c->kv_lora)
        mla_run(m, w, &y->mla, kv, b, id);
    else
        gqa_run(m, w, &y->gqa, kv, b, id);
    if (w->probe) {
        probe_added(m, w, before, b->n, id, "attn_out");
        before = stream(m, w, b->n, NULL);
    }
    run_ffn(m, w, y, b->n, id);
    if (w->probe) {
        probe_added(m, w, before, b->n, id, "ffn_out");
        work_probe(w, w->x, c->hidden, b->n, c->hidden, "layer%u", id);
    }
}
