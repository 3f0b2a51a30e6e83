/* The two ends of a model, and what no one asked for. */
#include <string.h>

#include "base/status.h"
#include "model/arch.h"

int load_ends(struct load *l)
{
    struct model *m = l->m;
    const struct model_config *c = &m->cfg;
    const struct load_part embed = { .name = "model.embed_tokens.weight",
                                     .rows = c->vocab,
                                     .only_rows = m->ids };
    const struct load_part head = { .name = c->tied_embeddings ? embed.name : "lm_head.weight",
                                    .rows = c->vocab,
                                    .only_rows = m->head_ids };
    bool first = m->first_layer == 0;
    bool last = m->first_layer + m->n_layers == c->n_layers;
    /* A head that ranks share is a part of the embedding, which each of them has whole. */
    bool both = c->tied_embeddings && m->part.head_size == 1;
    uint64_t *counted = last && both ? &m->weight_bytes : NULL;
    int st = 0;

    if (first || (last && both))
        st = load_matrix(l, &m->embed, &embed, 1, c->hidden, counted);
    if (st == 0 && last)
        st = load_vector(l, &m->final_norm, "model.norm.weight", c->hidden);
    if (st == 0 && last)
        st = load_vector_if(l, &m->final_norm_bias, "model.norm.bias", c->hidden);
    if (st == 0 && last && !both)
        st = load_matrix(l, &m->head, &head, 1, c->hidden, &m->weight_bytes);
    return st;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Tensors that say nothing new: tables that the configuration gives too, a head that is the
 * embedding again, and the ends that another stage holds. */
static bool harmless(const struct model *m, const char *name)
{
    static const char *const ends[] = {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.norm.bias",
        "lm_head.weight",
    };
    bool whole = m->n_layers == m->cfg.n_layers;

    if (ends_with(name, ".rotary_emb.inv_freq") || strcmp(name, "rope_freqs.weight") == 0)
        return true;
    if (m->cfg.tied_embeddings && strcmp(name, "lm_head.weight") == 0)
        return true;
    for (size_t i = 0; !whole && i < sizeof ends / sizeof ends[0]; i++)
        if (strcmp(name, ends[i]) == 0)
            return true;
    return false;
}

int load_check_rest(const struct load *l)
{
    for (size_t i = 0; i < l->w->n; i++) {
        const struct weight *w = &l->w->w[i];

        if (!w->used && !w->skip && !harmless(l->m, w->t.name))
            return err_set(l->e, ERR_UNSUPPORTED,
                           "%s: tensor %s: %s as it is implemented here has no place for it, and "
                           "leaving it out would give wrong results",
                           w->file, w->t.name, l->m->arch->hf);
    }
    return 0;
}
