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

/* A step is probed before a part and after it; the difference is what it adds. */
void layer_attend(const struct model *m, struct model_work *w, const struct layer *y,
                  const struct k_kv *kv, const struct model_batch *b, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    float *before = w->probe ? stream(m, w, b->n, NULL) : NULL;

    work_norm(m, w, &y->attn_norm, b->n);
    if (w->probe)
        work_probe(w, k->act_floats(w->act), c->hidden, b->n, c->hidden, "L%u.attn_norm", id);
    if (c->kv_lora)
        mla_run(m, w, &y->mla, kv, b, id);
    else
        gqa_run(m, w, &y->gqa, kv, b, id);
    if (w->probe)
        probe_added(m, w, before, b->n, id, "attn_out");
    work_norm(m, w, &y->ffn_norm, b->n);
    if (w->probe)
        work_probe(w, k->act_floats(w->act), c->hidden, b->n, c->hidden, "L%u.ffn_norm", id);
}

static void feed_dense(const struct model *m, struct model_work *w, const struct mlp *y, uint32_t n,
                       uint32_t id)
{
    mlp_up(m, w, y, n);
    mlp_act(m, w, y, n);
    work_output(m, w, y->down, NULL, n);
    if (w->probe)
        work_probe(w, m->k->act_floats(w->act), y->ffn, n, y->ffn, "L%u.ffn_act", id);
}

void layer_feed(const struct model *m, struct model_work *w, const struct layer *y, uint32_t n,
                uint32_t id)
{
    float *before = w->probe ? stream(m, w, n, NULL) : NULL;

    if (y->moe.router)
        moe_run(m, w, &y->moe, n, id);
    else
        feed_dense(m, w, &y->mlp, n, id);
    if (w->probe) {
        probe_added(m, w, before, n, id, "ffn_out");
        work_probe(w, w->x, m->cfg.hidden, n, m->cfg.hidden, "layer%u", id);
    }
}

/* Layers from `from` on until the feed-forward part of layer `to`, which has a run of its own. */
struct piece {
    const struct model *m;
    struct model_work *w;
    const struct span *s;
    uint32_t from, to;
};

struct layer_news {
    const struct model_work *w;
    uint32_t id;
};

static void tell_layer(void *job)
{
    const struct layer_news *n = job;

    n->w->layer_done(n->w->layer_arg, n->id);
}

/* [team] */
static void attend(const struct piece *p, uint32_t i)
{
    const struct span *s = p->s;
    const struct layer_news news = { p->w, s->id + i };

    layer_attend(p->m, p->w, &s->layers[i], &s->kv[i], s->b, s->id + i);
    if (p->w->layer_done && news.id < p->m->cfg.n_layers)
        p->m->k->host(p->m->k, tell_layer, &news, sizeof news);
}

/* [team] */
static void run_piece(void *arg)
{
    const struct piece *p = arg;
    const struct span *s = p->s;

    if (p->from == 0)
        s->begin(s->arg);
    for (uint32_t i = p->from; i < p->to; i++) {
        attend(p, i);
        layer_feed(p->m, p->w, &s->layers[i], s->b->n, s->id + i);
    }
    if (p->to < s->n)
        attend(p, p->to);
    else if (p->w->spread)
        stream_gather(p->m, p->w, p->w->x);
}

/* The next layer whose experts are apart; s->n if there is none. */
static uint32_t next_apart(const struct model *m, const struct span *s, uint32_t from)
{
    while (from < s->n && !(moe_apart(m) && s->layers[from].moe.router))
        from++;
    return from;
}

void layers_run(const struct model *m, struct model_work *w, const struct span *s)
{
    struct piece p = { .m = m, .w = w, .s = s };

    for (; p.from <= s->n; p.from = p.to + 1) {
        p.to = next_apart(m, s, p.from);
        if (s->b->n > 0 && (p.from < s->n || w->spread))
            work_run(m, w, run_piece, &p);
        if (p.to < s->n)
            layer_feed(m, w, &s->layers[p.to], s->b->n, s->id + p.to);
    }
}
