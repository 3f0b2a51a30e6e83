/* The multi-token prediction layer (DeepSeek-V3 technical report, 2.2): one more decoder layer,
 * whose input joins the state of a position with the embedding of the token that came after it. */
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/blocks.h"

/* True if the layer repeats a matrix of the model's ends: then that one is used for both. */
static bool repeats(struct load *l, const char *own, const char *models)
{
    struct weight *a = weights_find(l->w, own), *b = weights_find(l->w, models);

    if (!a || !b || a->t.type != b->t.type || a->t.bytes != b->t.bytes ||
        a->t.n_dims != b->t.n_dims || memcmp(a->t.shape, b->t.shape, sizeof a->t.shape) != 0 ||
        !weights_same(a, b))
        return false;
    a->used = true;
    return true;
}

/* One of the layer's two ends: its own matrix, unless it repeats the model's, which is used for both
 * where this stage has it. A checkpoint may leave an own one out that would repeat. */
static int load_end(struct load *l, struct k_matrix **out, uint32_t id, const char *rest,
                    const char *models, struct share rows, bool have)
{
    const struct model *m = l->m;
    char name[TENSOR_MAX_NAME];
    struct load_part part = { .name = name, .rows = m->cfg.vocab, .only_rows = rows };
    bool own = weights_find(l->w, load_name(name, id, rest)) != NULL;

    if (have && (!own || repeats(l, name, models)))
        return 0;
    if (!own)
        part.name = models;
    return load_matrix(l, out, &part, 1, m->cfg.hidden, &l->m->weight_bytes);
}

static int load_ends_of(struct load *l, struct mtp *y, uint32_t id)
{
    const struct model *m = l->m;
    const char *embed = "model.embed_tokens.weight";
    int st = load_end(l, &y->embed, id, "embed_tokens.weight", embed, m->ids, m->embed != NULL);

    if (st < 0)
        return st;
    return load_end(l, &y->head, id, "shared_head.head.weight",
                    m->cfg.tied_embeddings ? embed : "lm_head.weight", m->head_ids, true);
}

static int load_parts(struct load *l, struct mtp *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    const struct {
        struct norm *to;
        const char *name;
    } norms[] = {
        { &y->embed_norm, "enorm" },
        { &y->state_norm, "hnorm" },
        { &y->head_norm, "shared_head.norm" },
    };
    char name[TENSOR_MAX_NAME];
    const struct load_part join = { .name = name, .rows = c->hidden };
    int st = 0;

    for (size_t i = 0; st == 0 && i < sizeof norms / sizeof norms[0]; i++)
        st = norm_load(l, norms[i].to, load_name(name, id, norms[i].name), c->hidden);
    if (st < 0)
        return st;
    load_name(name, id, "eh_proj.weight");
    if ((st = load_matrix(l, &y->join, &join, 1, 2 * c->hidden, &l->m->weight_bytes)) < 0 ||
        (st = load_ends_of(l, y, id)) < 0)
        return st;
    return layer_load(l, &y->layer, id);
}

int mtp_load(struct load *l)
{
    struct model *m = l->m;
    uint32_t id = m->cfg.n_layers;
    char name[TENSOR_MAX_NAME];

    if (m->cfg.mtp_layers == 0)
        return err_set(l->e, ERR_NOTFOUND, "%s: this model has no multi-token prediction layer",
                       l->w->path);
    if (!weights_find(l->w, load_name(name, id, "eh_proj.weight")))
        return err_set(
            l->e, ERR_NOTFOUND,
            "%s: the configuration names %u multi-token prediction layer(s), but tensor "
            "%s is missing: quantizers leave that layer out unless they are told to keep "
            "it",
            l->w->path, m->cfg.mtp_layers, name);
    if (!(m->mtp = calloc(1, sizeof *m->mtp)))
        return err_set(l->e, ERR_NOMEM, "no memory");
    return load_parts(l, m->mtp, id);
}

void mtp_unload(struct model *m)
{
    const struct kernels *k = m->k;
    struct mtp *y = m->mtp;

    if (!y)
        return;
    norm_free(m, &y->embed_norm, m->cfg.hidden);
    norm_free(m, &y->state_norm, m->cfg.hidden);
    norm_free(m, &y->head_norm, m->cfg.hidden);
    k->unpack_free(k, y->join);
    k->unpack_free(k, y->embed);
    k->unpack_free(k, y->head);
    layer_unload(m, &y->layer);
    free(y);
}

void mtp_shape(const struct model *m, struct work_shape *s)
{
    raise_to(&s->act, 2 * m->cfg.hidden);
    s->forms |= work_forms(m->k, m->mtp->join);
    layer_shape(m, &m->mtp->layer, s);
}

int mtp_work_create(struct mtp_work **out, const struct model *m, uint32_t max_tokens)
{
    struct mtp_work *w = *out = calloc(1, sizeof *w);

    if (!w)
        return ERR_NOMEM;
    w->join = work_rows(m, max_tokens, 2 * m->cfg.hidden);
    w->same = m->k->alloc(m->k, max_tokens * sizeof *w->same);
    if (!w->join || !w->same)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < max_tokens; i++)
        w->same[i] = i;
    return 0;
}

void mtp_work_destroy(const struct model *m, struct mtp_work *w, uint32_t max_tokens)
{
    if (!w)
        return;
    work_rows_free(m, w->join, max_tokens, 2 * m->cfg.hidden);
    m->k->free(m->k, w->same, max_tokens * sizeof *w->same);
    free(w);
}

struct draft {
    const struct model *m;
    struct model_work *w;
    const struct model_batch *b;
    const uint32_t *from;
    bool drafted; /* states are those of a draft */
};

/* [team] The embeddings and the states, each normalized, side by side. */
static void join_rows(const struct draft *d)
{
    const struct model *m = d->m;
    const struct kernels *k = m->k;
    const struct mtp *y = m->mtp;
    uint32_t hidden = m->cfg.hidden, n = d->b->n;
    float eps = m->cfg.norm_eps, *join = d->w->mtp->join;
    const struct k_matrix *table = y->embed ? y->embed : m->embed;
    const struct k_heads embed = { join, 2 * (size_t)hidden, hidden };
    const struct k_heads state = { join + hidden, 2 * (size_t)hidden, hidden };

    if (m->part.tp_size > 1) {
        stream_embed(m, d->w, table, d->w->sum, d->b->ids, n);
        k->gather(k, embed.p, embed.row, d->w->sum, hidden, d->w->same, n, hidden);
    } else {
        k->embed(k, embed.p, embed.row, table, d->b->ids, n);
    }
    k->gather(k, state.p, state.row, d->w->x, hidden, d->from, n, hidden);
    if (!d->drafted)
        k->norm_heads(k, state, n, 1, hidden, m->final_norm, m->final_norm_bias, eps);
    k->norm_heads(k, embed, n, 1, hidden, y->embed_norm.gain, y->embed_norm.bias, eps);
    k->norm_heads(k, state, n, 1, hidden, y->state_norm.gain, y->state_norm.bias, eps);
}

/* [team] */
static void begin_draft(void *arg)
{
    const struct draft *d = arg;
    const struct model *m = d->m;
    const struct kernels *k = m->k;
    struct model_work *w = d->w;
    uint32_t hidden = m->cfg.hidden, n = d->b->n;

    join_rows(d);
    k->act_load(k, w->act, w->mtp->join, 2 * (size_t)hidden, n, 2 * hidden);
    work_linear(k, w->x, hidden, w->act, m->mtp->join, n, false);
}

void model_draft(const struct model *m, struct model_work *w, const struct k_kv *kv,
                 const struct model_batch *b, const uint32_t *from)
{
    struct draft d = { m, w, b, from ? from : w->mtp->same, w->mtp->drafted };
    const struct span s = { .begin = begin_draft,
                            .arg = &d,
                            .layers = &m->mtp->layer,
                            .n = 1,
                            .id = m->cfg.n_layers,
                            .kv = kv,
                            .b = b };

    w->mtp->drafted = true;
    if (b->n == 0 && !moe_apart(m))
        return;
    work_plan(m, w, b);
    layers_run(m, w, &s);
}

float *model_draft_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                          uint32_t n_rows, size_t *ld)
{
    const struct mtp *y = m->mtp;

    return work_logits(m, w, &y->head_norm, y->head ? y->head : model_head(m), rows, n_rows, ld);
}
