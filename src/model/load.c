#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"

const char *load_name(char out[TENSOR_MAX_NAME], uint32_t layer, const char *rest)
{
    snprintf(out, TENSOR_MAX_NAME, "model.layers.%u.%s", layer, rest);
    return out;
}

/* The name that the file has for it, for messages: GGUF's own in a GGUF file. */
static const char *shown(const struct load *l, const char *name, char out[TENSOR_MAX_NAME])
{
    long layer = weights_layer_of(name);
    const char *rest = name;

    if (layer >= 0)
        rest = strchr(name + sizeof "model.layers." - 1, '.') + 1;
    for (const struct weight_name *n = l->m->arch->names; l->w->gguf && n->gguf; n++)
        if (n->layer == (layer >= 0) && strcmp(n->hf, rest) == 0) {
            if (layer < 0)
                return n->gguf;
            snprintf(out, TENSOR_MAX_NAME, "blk.%ld.%s", layer, n->gguf);
            return out;
        }
    return name;
}

static int find(struct load *l, const char *name, struct weight **out)
{
    struct weight *w = weights_find(l->w, name);
    char text[TENSOR_MAX_NAME];

    if (!w)
        return err_set(l->e, ERR_BADMSG, "%s: tensor %s is missing", l->w->path,
                       shown(l, name, text));
    w->used = true;
    *out = w;
    return 0;
}

static int check_shape(struct load *l, const struct weight *w, const uint64_t *want, uint32_t n)
{
    char expected[TENSOR_SHAPE_TEXT], found[TENSOR_SHAPE_TEXT], name[TENSOR_MAX_NAME];

    if (w->t.n_dims == n && memcmp(w->t.shape, want, n * sizeof *want) == 0)
        return 0;
    return err_set(l->e, ERR_BADMSG,
                   "%s: tensor %s: expected shape %s by the configuration, found %s", w->file,
                   shown(l, w->t.name, name), tensor_shape_text(expected, want, n),
                   tensor_shape_text(found, w->t.shape, w->t.n_dims));
}

static int check_type(struct load *l, const struct weight *w)
{
    char names[256] = "", name[TENSOR_MAX_NAME];

    if (w->t.type != K_TYPES)
        return 0;
    for (int i = 0; i < K_TYPES; i++) {
        if (i)
            strncat(names, ", ", sizeof names - strlen(names) - 1);
        strncat(names, k_type_info[i].name, sizeof names - strlen(names) - 1);
    }
    return err_set(l->e, ERR_UNSUPPORTED,
                   "%s: tensor %s is stored as %s, which is not supported; supported are %s",
                   w->file, shown(l, w->t.name, name), w->t.dtype, names);
}

static void finished(struct load *l, const struct weight *w)
{
    weights_drop(w);
    l->done += w->t.bytes;
    if (l->opt->progress)
        l->opt->progress(l->opt->progress_arg, l->done, l->total);
}

/* Row i of HuggingFace's order stands in row map[i] of the file: within a head the file has the
 * partners i and i + d/2 as neighbours. */
static uint32_t *pair_map(uint32_t rows, uint32_t d)
{
    uint32_t *map = malloc(rows * sizeof *map);

    for (uint32_t i = 0; map && i < rows; i++) {
        uint32_t j = i % d;

        map[i] = i - j + (j < d / 2 ? 2 * j : 2 * (j - d / 2) + 1);
    }
    return map;
}

/* Multi-byte elements that stand at an odd address (old safetensors files do not pad their
 * header) are copied to where they may be read. *copy is NULL if there was no need. */
static int align_data(struct load *l, const struct weight *w, const void **data, void **copy)
{
    *copy = NULL;
    *data = w->t.data;
    if (l->w->gguf || (uintptr_t)w->t.data % k_type_info[w->t.type].bytes == 0)
        return 0;
    *copy = malloc(w->t.bytes ? w->t.bytes : 1);
    if (!*copy)
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", w->t.name);
    *data = memcpy(*copy, w->t.data, w->t.bytes);
    return 0;
}

static int prepare(struct load *l, const struct load_part *p, uint32_t cols, struct weight **w,
                   struct k_part *out, void **copy, uint32_t **map)
{
    uint64_t want[2] = { p->rows, cols };
    int st;

    if ((st = find(l, p->name, w)) < 0 || (st = check_shape(l, *w, want, 2)) < 0 ||
        (st = check_type(l, *w)) < 0 || (st = align_data(l, *w, &out->data, copy)) < 0)
        return st;
    if (p->head_dim && l->w->gguf && !(*map = pair_map(p->rows, p->head_dim)))
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", p->name);
    out->type = (*w)->t.type;
    out->rows = p->rows;
    out->stride = k_type_bytes(out->type, cols);
    out->row_map = *map;
    return 0;
}

int load_matrix(struct load *l, struct k_matrix **out, const struct load_part *parts,
                uint32_t n_parts, uint32_t cols, uint64_t *bytes)
{
    const struct kernels *k = l->m->k;
    struct k_part part[LOAD_MAX_PARTS] = { 0 };
    struct weight *w[LOAD_MAX_PARTS] = { 0 };
    uint32_t *map[LOAD_MAX_PARTS] = { 0 };
    void *copy[LOAD_MAX_PARTS] = { 0 };
    int st = 0;

    for (uint32_t i = 0; st == 0 && i < n_parts; i++)
        st = prepare(l, &parts[i], cols, &w[i], &part[i], &copy[i], &map[i]);
    if (st == 0 && (st = k->pack(k, out, part, n_parts, cols, l->m->math, l->e)) < 0)
        err_prefix(l->e, st, "%s: tensor %s", w[0]->file, parts[0].name);
    for (uint32_t i = 0; i < n_parts; i++) {
        free(map[i]);
        free(copy[i]);
        if (st == 0)
            finished(l, w[i]);
    }
    if (st == 0 && bytes)
        *bytes += k->matrix_bytes(*out);
    return st;
}

int load_vector(struct load *l, float **out, const char *name, uint32_t n)
{
    const struct kernels *k = l->m->k;
    uint64_t want[1] = { n };
    struct weight *w = NULL;
    const void *data;
    float *host;
    void *copy = NULL;
    int st;

    if ((st = find(l, name, &w)) < 0 || (st = check_shape(l, w, want, 1)) < 0 ||
        (st = check_type(l, w)) < 0 || (st = align_data(l, w, &data, &copy)) < 0)
        return st;
    host = malloc(n * sizeof *host);
    if (host && (*out = k->alloc(k, n * sizeof *host))) {
        k_dequant(w->t.type, host, data, n);
        k->copy(k, *out, host, n * sizeof *host);
        finished(l, w);
    } else {
        st = err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", name);
    }
    free(host);
    free(copy);
    return st;
}

int load_ends(struct load *l)
{
    struct model *m = l->m;
    const struct model_config *c = &m->cfg;
    const struct load_part embed = { .name = "model.embed_tokens.weight", .rows = c->vocab };
    const struct load_part head = { .name = "lm_head.weight", .rows = c->vocab };
    bool first = m->first_layer == 0;
    bool last = m->first_layer + m->n_layers == c->n_layers;
    uint64_t *counted = last && c->tied_embeddings ? &m->weight_bytes : NULL;
    int st = 0;

    if (first || (last && c->tied_embeddings))
        st = load_matrix(l, &m->embed, &embed, 1, c->hidden, counted);
    if (st == 0 && last)
        st = load_vector(l, &m->final_norm, "model.norm.weight", c->hidden);
    if (st == 0 && last && !c->tied_embeddings)
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
