/* Tensors as packed matrices: the parts of one, checked and described to the backend. */
#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/load_quant.h"
#include "model/load_tensor.h"

/* Rows of the file in the order in which they are packed. With pairs the partners i and i + d/2 of a
 * head's d rows are neighbours in the file. NULL without memory. */
static uint32_t *make_map(struct share rows, uint32_t d)
{
    uint32_t *map = malloc(rows.n * sizeof *map);

    for (uint32_t i = 0; map && i < rows.n; i++) {
        uint32_t row = rows.from + i, j = d ? row % d : 0;

        map[i] = d ? row - j + (j < d / 2 ? 2 * j : 2 * (j - d / 2) + 1) : row;
    }
    return map;
}

/* What one part of a matrix needs until it is packed. */
struct source {
    struct weight *w;
    uint64_t from, bytes;    /* of the tensor: the rows that are wanted */
    struct share rows, cols; /* what is wanted, of one matrix */
    enum quant_type type;
    struct load_sides sides;
    uint32_t *map;
    float *floats; /* what is packed instead of the tensor; NULL: the tensor */
};

static struct share wanted(struct share only, uint32_t all)
{
    return only.n ? only : (struct share){ 0, all };
}

static int check_part(struct load *l, const struct load_part *p, const struct weight *w,
                      uint32_t cols)
{
    uint64_t one[2] = { p->rows, cols }, stacked[3] = { p->slices, p->rows, cols };
    int st = p->slices ? load_check_shape(l, w, stacked, 3) : load_check_shape(l, w, one, 2);

    return st < 0 ? st : load_check_type(l, w);
}

/* Columns are cut between blocks only; who asks has chosen them so (part.h). */
static int check_cut(struct load *l, const struct source *s, uint32_t cols)
{
    uint32_t block = k_type_info[s->w->t.type].block;
    struct share c = s->cols;

    if (c.from % block == 0 && (c.n % block == 0 || c.from + c.n == cols))
        return 0;
    return err_set(l->e, ERR_UNSUPPORTED,
                   "%s: tensor %s: columns %u to %u are not whole blocks of %u, as %s has them",
                   s->w->file, s->w->t.name, c.from, c.from + c.n - 1, block,
                   k_type_info[s->w->t.type].name);
}

/* The pages of a large tensor go while the rest of it is packed: what lies DROP_BYTES and more behind
 * the rows that were read last. */
#define DROP_BYTES (16u << 20)

static void on_packed(void *arg, uint32_t from, uint32_t to)
{
    const struct source *s = arg;
    uint64_t stride = s->bytes / s->rows.n, step = to * stride / DROP_BYTES;

    if (step >= 2 && step != from * stride / DROP_BYTES)
        weights_drop(s->w, s->from + (step - 2) * DROP_BYTES, DROP_BYTES);
}

static void describe(struct source *s, const struct load_part *p, struct k_part *out)
{
    uint64_t all = p->slices ? s->w->t.bytes / p->slices : s->w->t.bytes;
    enum k_type type = s->w->t.type;

    *out = (struct k_part){
        .type = type,
        .name = s->w->t.name,
        .rows = s->rows.n,
        .data = s->w->t.data + p->slice * all + k_type_bytes(type, s->cols.from),
        .stride = all / p->rows,
        .packed = on_packed,
        .packed_arg = s,
        .row_map = s->map,
        .scale = s->sides.scale,
        .fixed = s->type == QUANT_W8A8 ? &s->sides.fixed : NULL,
    };
}

/* The columns begin within a block of 128 x 128: no scale fits what is packed, so it is packed as the
 * floats that the tensor stands for. */
static int describe_floats(struct load *l, const struct load_part *p, uint32_t cols,
                           struct source *s, struct k_part *out)
{
    int st = load_floats(l, &s->floats, p, cols);

    *out = (struct k_part){ .type = K_F32,
                            .rows = s->rows.n,
                            .data = s->floats,
                            .stride = k_type_bytes(K_F32, s->cols.n) };
    return st;
}

static int prepare(struct load *l, const struct load_part *p, uint32_t cols, struct source *s,
                   struct k_part *out)
{
    uint32_t pairs = l->w->gguf ? p->head_dim : 0;
    uint64_t stride;
    int st;

    s->rows = wanted(p->only_rows, p->rows);
    s->cols = wanted(p->only_cols, cols);
    if ((st = load_find(l, p->name, &s->w)) < 0 || (st = check_part(l, p, s->w, cols)) < 0 ||
        (st = check_cut(l, s, cols)) < 0 ||
        (st = quant_type_of(l->quant, s->w, &s->type, l->e)) < 0)
        return st;
    stride = s->w->t.bytes / (p->slices ? p->slices : 1) / p->rows;
    s->from = ((uint64_t)p->slice * p->rows + s->rows.from) * stride;
    s->bytes = s->rows.n * stride;
    if (s->type == QUANT_FP8_BLOCK && s->cols.from % K_F8_BLOCK)
        return describe_floats(l, p, cols, s, out);
    if ((st = load_sides(l, s->w, s->type, p->rows, cols, &s->sides)) < 0)
        return st;
    load_sides_cut(&s->sides, s->type, p->rows, cols, s->cols);
    if ((pairs || s->rows.n < p->rows) && !(s->map = make_map(s->rows, pairs)))
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", p->name);
    describe(s, p, out);
    return 0;
}

/* Parts that are multiplied with the same activations must take them in the same form. */
static int check_alike(struct load *l, const struct source *a, const struct source *b)
{
    const struct k_static *x = &a->sides.fixed, *y = &b->sides.fixed;

    if (a->type != b->type)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "%s: tensors %s (%s) and %s (%s) have the same input and are one matrix "
                       "here: both must be quantized the same way",
                       b->w->file, a->w->t.name, quant_type_name(a->type), b->w->t.name,
                       quant_type_name(b->type));
    if (x->input_scale != y->input_scale || x->input_offset != y->input_offset)
        return err_set(l->e, ERR_UNSUPPORTED,
                       "%s: tensors %s (input_scale %g, input_offset %g) and %s (%g, %g) have the "
                       "same input and are one matrix here: both must have the same scale and "
                       "offset",
                       b->w->file, a->w->t.name, (double)x->input_scale, (double)x->input_offset,
                       b->w->t.name, (double)y->input_scale, (double)y->input_offset);
    return 0;
}

static void source_free(struct source *s)
{
    load_sides_free(&s->sides);
    free(s->map);
    free(s->floats);
}

int load_matrix(struct load *l, struct k_matrix **out, const struct load_part *parts,
                uint32_t n_parts, uint32_t cols, uint64_t *bytes)
{
    const struct kernels *k = l->m->k;
    struct k_part part[LOAD_MAX_PARTS] = { 0 };
    struct source s[LOAD_MAX_PARTS] = { 0 };
    int st = 0;

    for (uint32_t i = 0; st == 0 && i < n_parts; i++) {
        if ((st = prepare(l, &parts[i], cols, &s[i], &part[i])) == 0)
            st = check_alike(l, &s[0], &s[i]);
        part[i].name = parts[i].name;
    }
    if (st == 0 && (st = k->pack(k, out, part, n_parts, s[0].cols.n,
                                 l->exact ? K_MATH_FLOAT : l->m->math, l->e)) < 0)
        st == ERR_CORRUPT ? err_prefix(l->e, st, "%s", s[0].w->file)
                          : err_prefix(l->e, st, "%s: tensor %s", s[0].w->file, parts[0].name);
    for (uint32_t i = 0; i < n_parts; i++) {
        if (st == 0 && !s[i].floats)
            load_finished(l, s[i].w, s[i].from, s[i].bytes);
        source_free(&s[i]);
    }
    if (st == 0 && bytes)
        *bytes += k->matrix_bytes(*out);
    return st;
}

int load_made(struct load *l, struct k_matrix **out, const float *numbers, uint32_t rows,
              uint32_t cols, enum k_type type, uint64_t *bytes)
{
    const struct kernels *k = l->m->k;
    struct k_part part = { .type = type, .rows = rows, .data = numbers };
    size_t n = (size_t)rows * cols;
    uint16_t *half = NULL;
    int st;

    assert(type == K_F32 || type == K_BF16);
    if (type == K_BF16) {
        if (!(half = malloc(n * sizeof *half)))
            return err_set(l->e, ERR_NOMEM, "no memory for a matrix of %u x %u", rows, cols);
        for (size_t i = 0; i < n; i++)
            half[i] = k_float_to_bf16(numbers[i]);
        part.data = half;
    }
    part.stride = k_type_bytes(type, cols);
    st = k->pack(k, out, &part, 1, cols, l->m->math, l->e);
    free(half);
    if (st == 0 && bytes)
        *bytes += k->matrix_bytes(*out);
    return st;
}
