#include "ops/intake.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "ops/rope_fit.h"

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

/* Prediction layers that were left out of the files are left out of the list: it ends with them, but
 * for the final norm and the head. */
static void drop_absent_layers(struct intake *in)
{
    const struct model_config *c = &in->from.cfg;
    char name[TENSOR_MAX_NAME];
    size_t kept = 0;

    snprintf(name, sizeof name, "model.layers.%u.eh_proj.weight", c->n_layers);
    if (c->mtp_layers == 0 || weights_find(in->from.w, name))
        return;
    for (size_t i = 0; i < in->blue.n; i++)
        if (weights_layer_of(in->blue.t[i].name) < (long)c->n_layers)
            in->blue.t[kept++] = in->blue.t[i];
    in->blue.n = kept;
}

/* What repeats the configuration, or what the quantizer makes anew. */
static bool is_spare(const struct intake *in, const char *name)
{
    return ends_with(name, "rotary_emb.inv_freq") ||
           (in->from.cfg.tied_embeddings && strcmp(name, "lm_head.weight") == 0);
}

/* slices: matrices in the tensor, 0 if it is one. */
static int check_shape(const struct blue_tensor *t, uint32_t slices, const struct weight *w,
                       struct err *e)
{
    char expected[TENSOR_SHAPE_TEXT], found[TENSOR_SHAPE_TEXT];
    uint64_t stack[3] = { slices, t->rows, t->cols }, *want = slices ? stack : stack + 1;
    uint32_t dims = slices ? 3 : t->kind == BLUE_MATRIX ? 2 : 1;

    if (w->t.n_dims == dims && memcmp(w->t.shape, want, dims * sizeof *want) == 0)
        return 0;
    return err_set(e, ERR_BADMSG, "%s: tensor %s: expected shape %s by the configuration, found %s",
                   w->file, w->t.name, tensor_shape_text(expected, want, dims),
                   tensor_shape_text(found, w->t.shape, w->t.n_dims));
}

/* [ceil(rows / 128)][ceil(cols / 128)] floats beside an FP8 weight. */
static int find_scale(struct intake *in, size_t i, struct err *e)
{
    const struct blue_tensor *t = &in->blue.t[i];
    uint64_t want[2] = { (t->rows + K_F8_BLOCK - 1) / K_F8_BLOCK,
                         (t->cols + K_F8_BLOCK - 1) / K_F8_BLOCK };
    char name[TENSOR_MAX_NAME], shape[TENSOR_SHAPE_TEXT];
    struct weight *s;

    snprintf(name, sizeof name, "%s_scale_inv", t->name);
    s = weights_find(in->from.w, name);
    if (!s || s->t.type != K_F32 || s->t.n_dims != 2 || memcmp(s->t.shape, want, sizeof want) != 0)
        return err_set(e, ERR_BADMSG, "%s: tensor %s: expected %s in F32 beside the FP8 weight",
                       in->source[i]->file, name, tensor_shape_text(shape, want, 2));
    s->used = true;
    in->scale[i] = s;
    return 0;
}

/* "....mlp.experts.7.up_proj.weight" is matrix 7 of "....mlp.experts.up_proj.weight" in a GGUF file. */
static struct weight *find_stacked(struct intake *in, size_t i)
{
    static const char experts[] = ".mlp.experts.";
    const char *name = in->blue.t[i].name, *at = strstr(name, experts);
    char stacked[TENSOR_MAX_NAME], *rest;

    if (!in->from.gguf || !at)
        return NULL;
    at += sizeof experts - 1;
    in->slice[i] = (uint32_t)strtoul(at, &rest, 10);
    snprintf(stacked, sizeof stacked, "%.*s%s", (int)(at - name), name, rest + 1);
    return weights_find(in->from.w, stacked);
}

/* A prediction layer of a GGUF file may do without matrices that repeat the model's. */
static struct weight *find_repeated(const struct intake *in, const char *name)
{
    bool head = ends_with(name, ".shared_head.head.weight");

    if (!in->from.gguf || (!head && !ends_with(name, ".embed_tokens.weight")))
        return NULL;
    return weights_find(in->from.w, head && !in->from.cfg.tied_embeddings
                                        ? "lm_head.weight"
                                        : "model.embed_tokens.weight");
}

static int check_stored(const struct weight *w, struct err *e)
{
    if (w->t.type == K_I8)
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor %s is int8: the checkpoint is quantized already; give the one "
                       "that it was made from",
                       w->file, w->t.name);
    if (w->t.type == K_TYPES)
        return err_set(e, ERR_UNSUPPORTED, "%s: tensor %s is stored as %s, which is not supported",
                       w->file, w->t.name, w->t.dtype);
    return 0;
}

/* A half of kv_b: [heads][rows][cols]. */
static int find_half(struct intake *in, struct weight **out, const char *kv_b, const char *half,
                     uint32_t rows, uint32_t cols, struct err *e)
{
    const struct blue_tensor want = { .kind = BLUE_MATRIX, .rows = rows, .cols = cols };
    char name[TENSOR_MAX_NAME];
    struct weight *w;
    int st;

    snprintf(name, sizeof name, "%.*s%s_proj.weight",
             (int)(strlen(kv_b) - strlen("kv_b_proj.weight")), kv_b, half);
    if (!(w = weights_find(in->from.w, name)))
        return err_set(e, ERR_BADMSG, "%s: tensor %s is missing", in->from.w->path, name);
    if ((st = check_stored(w, e)) < 0 || (st = check_shape(&want, in->from.cfg.heads, w, e)) < 0)
        return st;
    w->used = true;
    *out = w;
    return 0;
}

static bool is_split(const struct intake *in, const char *name)
{
    return in->from.gguf && ends_with(name, ".kv_b_proj.weight") && !weights_find(in->from.w, name);
}

static int find_split(struct intake *in, size_t i, struct err *e)
{
    const struct model_config *c = &in->from.cfg;
    const char *name = in->blue.t[i].name;
    int st = find_half(in, &in->source[i], name, "k_b", c->kv_lora, c->nope_dim, e);

    return st < 0 ? st : find_half(in, &in->values[i], name, "v_b", c->v_dim, c->kv_lora, e);
}

static int find(struct intake *in, size_t i, struct err *e)
{
    const struct blue_tensor *t = &in->blue.t[i];
    struct weight *stacked = find_stacked(in, i);
    struct weight *w = stacked ? stacked : weights_find(in->from.w, t->name);
    int st;

    if (is_split(in, t->name))
        return find_split(in, i, e);
    if (!w && !(w = find_repeated(in, t->name)))
        return err_set(e, ERR_BADMSG, "%s: tensor %s is missing", in->from.w->path, t->name);
    if ((st = check_stored(w, e)) < 0 ||
        (st = check_shape(t, stacked ? in->from.cfg.experts : 0, w, e)) < 0)
        return st;
    w->used = true;
    in->source[i] = w;
    return w->t.type == K_F8_E4M3 ? find_scale(in, i, e) : 0;
}

static int match(struct intake *in, struct err *e)
{
    int st = 0;

    in->source = calloc(in->blue.n, sizeof(struct weight *));
    in->scale = calloc(in->blue.n, sizeof(struct weight *));
    in->slice = calloc(in->blue.n, sizeof *in->slice);
    in->values = calloc(in->blue.n, sizeof(struct weight *));
    if (!in->source || !in->scale || !in->slice || !in->values)
        return err_set(e, ERR_NOMEM, "no memory for the table of tensors");
    for (size_t i = 0; st == 0 && i < in->blue.n; i++)
        st = find(in, i, e);
    for (size_t i = 0; st == 0 && i < in->from.w->n; i++) {
        const struct weight *w = &in->from.w->w[i];

        if (!w->used && !is_spare(in, w->t.name))
            st = err_set(e, ERR_UNSUPPORTED,
                         "%s: tensor %s is not part of %s as it is known here; without it the "
                         "result would be another model",
                         w->file, w->t.name, in->from.cfg.arch);
    }
    return st;
}

/* Llama 3.1's bands come as a tensor of a GGUF file, where config.json has a rope_scaling. */
static int take_freqs(struct intake *in, struct err *e)
{
    struct weight *w = in->from.gguf ? weights_find(in->from.w, "rope_freqs.weight") : NULL;

    if (!w)
        return 0;
    if (w->t.type != K_F32 || w->t.bytes != in->from.cfg.rope_dim / 2 * sizeof(float))
        return err_set(e, ERR_BADMSG,
                       "%s: tensor rope_freqs.weight: expected %u numbers in F32, found %llu bytes "
                       "in %s",
                       w->file, in->from.cfg.rope_dim / 2, (unsigned long long)w->t.bytes,
                       w->t.dtype);
    w->used = true;
    return rope_fit_llama3(&in->from.cfg, (const float *)(const void *)w->t.data, e);
}

int intake_open(struct intake *in, const char *path, struct err *e)
{
    int st;

    *in = (struct intake){ 0 };
    if ((st = checkpoint_open(&in->from, path, e)) < 0)
        return st;
    if ((st = blueprint_make(&in->blue, &in->from.cfg, e)) < 0) {
        err_prefix(e, st, "%s", path);
    } else {
        drop_absent_layers(in);
        if ((st = take_freqs(in, e)) == 0)
            st = match(in, e);
    }
    if (st < 0)
        intake_close(in);
    return st;
}

void intake_close(struct intake *in)
{
    checkpoint_close(&in->from);
    blueprint_finish(&in->blue);
    free(in->source);
    free(in->scale);
    free(in->slice);
    free(in->values);
    *in = (struct intake){ 0 };
}

size_t intake_find(const struct intake *in, const char *name)
{
    size_t i = 0;

    while (i < in->blue.n && strcmp(in->blue.t[i].name, name) != 0)
        i++;
    return i;
}

/* Rows of each head in rotary pairs; 0: as they should be. */
static uint32_t paired_dim(const struct intake *in, const char *name)
{
    bool qk = strstr(name, ".q_proj.") || strstr(name, ".k_proj.");

    return in->from.pairs && qk ? in->from.cfg.head_dim : 0;
}

static void scale_row(const struct intake *in, size_t i, uint32_t row, float *out)
{
    uint32_t cols = in->blue.t[i].cols, across = (cols + K_F8_BLOCK - 1) / K_F8_BLOCK;
    const unsigned char *from = in->scale[i]->t.data +
                                (size_t)(row / K_F8_BLOCK) * across * sizeof(float);

    for (uint32_t b = 0; b < across; b++) {
        uint32_t end = cols - b * K_F8_BLOCK < K_F8_BLOCK ? cols : (b + 1) * K_F8_BLOCK;
        float s;

        memcpy(&s, from + b * sizeof s, sizeof s);
        for (uint32_t j = b * K_F8_BLOCK; j < end; j++)
            out[j] *= s;
    }
}

static int check_finite(const struct intake *in, size_t i, uint32_t row, const float *x,
                        struct err *e)
{
    for (uint32_t j = 0; j < in->blue.t[i].cols; j++)
        if (!isfinite(x[j]))
            return err_set(e, ERR_CORRUPT, "%s: tensor %s: row %u, column %u is %g",
                           in->source[i]->file, in->blue.t[i].name, row, j, (double)x[j]);
    return 0;
}

/* Rows [row, row + n) of matrix `at` of a stack [..][rows][cols], to floats. */
static void read_stack(const struct weight *w, uint32_t at, uint32_t rows, uint32_t cols,
                       uint32_t row, uint32_t n, float *out)
{
    size_t bytes = k_type_bytes(w->t.type, cols);

    k_dequant(w->t.type, out, w->t.data + ((size_t)at * rows + row) * bytes, (uint64_t)n * cols);
}

/* Rows of kv_b out of its two halves: of each head those of the key, then those of the value. */
static int split_rows(const struct intake *in, size_t i, uint32_t first, uint32_t n, float *out,
                      struct err *e)
{
    const struct model_config *c = &in->from.cfg;
    uint32_t nope = c->nope_dim, latent = c->kv_lora, rows = nope + c->v_dim, has = UINT32_MAX;
    float *keys = malloc((size_t)latent * nope * sizeof *keys); /* of head `has` */

    if (!keys)
        return err_set(e, ERR_NOMEM, "no memory to read tensor %s", in->blue.t[i].name);
    for (uint32_t r = first; r < first + n; r++, out += latent) {
        uint32_t head = r / rows, row = r % rows;

        if (row >= nope) {
            read_stack(in->values[i], head, c->v_dim, latent, row - nope, 1, out);
            continue;
        }
        if (head != has)
            read_stack(in->source[i], head, latent, nope, 0, latent, keys);
        has = head;
        for (uint32_t j = 0; j < latent; j++)
            out[j] = keys[(size_t)j * nope + row];
    }
    free(keys);
    return 0;
}

static int plain_rows(const struct intake *in, size_t i, uint32_t first, uint32_t n, float *out,
                      struct err *e)
{
    const struct blue_tensor *t = &in->blue.t[i];
    const struct weight *w = in->source[i];
    size_t bytes = k_type_bytes(w->t.type, t->cols);
    uint32_t dim = paired_dim(in, t->name);
    void *row = malloc(bytes); /* rows may stand at odd addresses in the file */

    if (!row)
        return err_set(e, ERR_NOMEM, "no memory to read tensor %s", t->name);
    for (uint32_t r = 0; r < n; r++) {
        size_t at = dim ? checkpoint_row(first + r, dim) : first + r;

        at += (size_t)in->slice[i] * t->rows;
        memcpy(row, w->t.data + at * bytes, bytes);
        k_dequant(w->t.type, out + (size_t)r * t->cols, row, t->cols);
        if (in->scale[i])
            scale_row(in, i, first + r, out + (size_t)r * t->cols);
    }
    free(row);
    return 0;
}

int intake_rows(const struct intake *in, size_t i, uint32_t first, uint32_t n, float *out,
                struct err *e)
{
    int st = (in->values[i] ? split_rows : plain_rows)(in, i, first, n, out, e);

    for (uint32_t r = 0; st == 0 && r < n; r++)
        st = check_finite(in, i, first + r, out + (size_t)r * in->blue.t[i].cols, e);
    return st;
}

void intake_drop(const struct intake *in, size_t i)
{
    weights_drop(in->source[i], 0, in->source[i]->t.bytes);
    if (in->values[i])
        weights_drop(in->values[i], 0, in->values[i]->t.bytes);
}
