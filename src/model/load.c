#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/load_tensor.h"

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
    for (const struct weight_name *n = gguf_names; l->w->gguf && n->gguf; n++)
        if (n->layer == (layer >= 0) && strcmp(n->hf, rest) == 0) {
            if (layer < 0)
                return n->gguf;
            snprintf(out, TENSOR_MAX_NAME, "blk.%ld.%s", layer, n->gguf);
            return out;
        }
    return name;
}

int load_find(struct load *l, const char *name, struct weight **out)
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

int load_check_shape(struct load *l, const struct weight *w, const uint64_t *want, uint32_t n)
{
    char expected[TENSOR_SHAPE_TEXT], found[TENSOR_SHAPE_TEXT], name[TENSOR_MAX_NAME];

    if (w->t.n_dims == n && memcmp(w->t.shape, want, n * sizeof *want) == 0)
        return 0;
    return err_set(l->e, ERR_BADMSG,
                   "%s: tensor %s: expected shape %s by the configuration, found %s", w->file,
                   shown(l, w->t.name, name), tensor_shape_text(expected, want, n),
                   tensor_shape_text(found, w->t.shape, w->t.n_dims));
}

int load_check_type(struct load *l, const struct weight *w)
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

void load_finished(struct load *l, const struct weight *w, uint64_t from, uint64_t bytes)
{
    weights_drop(w, from, bytes);
    l->done += bytes;
    if (l->opt->progress)
        l->opt->progress(l->opt->progress_arg, l->done, l->total);
}

/* What load_matrix leaves to the packer, for numbers that are taken out of the file here. */
static int check_finite(struct load *l, const struct weight *w, const float *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(l->e, ERR_CORRUPT,
                           "%s: tensor %s: number %llu is %g: weights must be finite", w->file,
                           w->t.name, (unsigned long long)i, (double)v[i]);
    return 0;
}

/* All numbers of a tensor as they are stored, in memory of the caller's. */
static int read_floats(struct load *l, float **out, const struct weight *w, uint64_t n)
{
    int st = load_check_type(l, w);

    if (st < 0)
        return st;
    if (!(*out = malloc(n * sizeof **out)))
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", w->t.name);
    k_dequant(w->t.type, *out, w->t.data, n);
    return 0;
}

/* True for [a][rows / a][cols]: a GGUF file has some matrices head by head. */
static bool is_stack(const struct tensor *t, uint32_t rows, uint32_t cols)
{
    return t->n_dims == 3 && t->shape[0] && rows % t->shape[0] == 0 &&
           t->shape[1] == rows / t->shape[0] && t->shape[2] == cols;
}

/* The stored numbers of some rows and columns of a matrix. */
static int read_part(struct load *l, float **out, const struct weight *w, struct share rows,
                     struct share cols, uint32_t across)
{
    size_t stride = k_type_bytes(w->t.type, across), skip = k_type_bytes(w->t.type, cols.from);

    if (!(*out = malloc((size_t)rows.n * cols.n * sizeof **out)))
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", w->t.name);
    for (uint32_t i = 0; i < rows.n; i++)
        k_dequant(w->t.type, *out + (size_t)i * cols.n, w->t.data + (rows.from + i) * stride + skip,
                  cols.n);
    return 0;
}

int load_floats(struct load *l, float **out, const struct load_part *p, uint32_t cols)
{
    uint64_t want[2] = { p->rows, cols };
    struct share r = p->only_rows.n ? p->only_rows : (struct share){ 0, p->rows };
    struct share c = p->only_cols.n ? p->only_cols : (struct share){ 0, cols };
    struct load_sides sides = { 0 };
    struct weight *w = NULL;
    enum quant_type t;
    int st;

    if ((st = load_find(l, p->name, &w)) < 0)
        return st;
    if ((!is_stack(&w->t, p->rows, cols) && (st = load_check_shape(l, w, want, 2)) < 0) ||
        (st = load_check_type(l, w)) < 0 || (st = quant_type_of(l->quant, w, &t, l->e)) < 0)
        return st;
    if ((st = load_sides(l, w, t, p->rows, cols, &sides)) == 0 &&
        (st = read_part(l, out, w, r, c, cols)) == 0) {
        size_t stride = k_type_bytes(w->t.type, cols);

        load_sides_apply(&sides, t, *out, r, c, cols);
        st = check_finite(l, w, *out, (uint64_t)r.n * c.n);
        load_finished(l, w, r.from * stride, r.n * stride);
    }
    load_sides_free(&sides);
    return st;
}

/* Numbers that stand in a vector have no scales beside them. */
static int check_plain(struct load *l, const struct weight *w)
{
    if (w->t.type != K_I8 && w->t.type != K_F8_E4M3)
        return 0;
    return err_set(l->e, ERR_BADMSG,
                   "%s: tensor %s: expected a dtype of BF16, F16 or F32, found %s", w->file,
                   w->t.name, w->t.dtype);
}

int load_vector(struct load *l, float **out, const char *name, uint32_t n)
{
    const struct kernels *k = l->m->k;
    uint64_t want[1] = { n };
    struct weight *w = NULL;
    float *host = NULL;
    int st;

    if ((st = load_find(l, name, &w)) < 0 || (st = load_check_shape(l, w, want, 1)) < 0 ||
        (st = check_plain(l, w)) < 0 || (st = read_floats(l, &host, w, n)) < 0)
        return st;
    if ((st = check_finite(l, w, host, n)) < 0) {
        free(host);
        return st;
    }
    if ((*out = k->alloc(k, n * sizeof *host))) {
        k->copy(k, *out, host, n * sizeof *host);
        load_finished(l, w, 0, w->t.bytes);
    } else {
        st = err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", name);
    }
    free(host);
    return st;
}

/* The bias of a linear whose quant_bias has it already. */
static bool is_folded(const struct load *l, const char *name)
{
    char weight[TENSOR_MAX_NAME];
    enum quant_type t;
    const struct weight *w;
    size_t n = strlen(name), tail = sizeof ".bias" - 1;

    if (n < tail || strcmp(name + n - tail, ".bias") != 0 || n + 2 >= sizeof weight)
        return false;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)(n - tail), name);
    w = weights_find(l->w, weight);
    return w && w->t.n_dims == 2 && quant_type_of(l->quant, w, &t, NULL) == 0 && t == QUANT_W8A8;
}

int load_vector_if(struct load *l, float **out, const char *name, uint32_t n)
{
    *out = NULL;
    return weights_find(l->w, name) && !is_folded(l, name) ? load_vector(l, out, name, n) : 0;
}

int load_type(struct load *l, const char *name, enum k_type *out)
{
    struct weight *w = NULL;
    int st = load_find(l, name, &w);

    if (st < 0 || (st = load_check_type(l, w)) < 0)
        return st;
    *out = w->t.type;
    return 0;
}
