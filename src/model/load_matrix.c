/* Tensors as packed matrices: the parts of one, checked and described to the backend. */
#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/load_quant.h"
#include "model/load_tensor.h"

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

/* What one part of a matrix needs until it is packed. */
struct source {
    struct weight *w;
    uint64_t from, bytes; /* of the tensor: all of it, or one of its matrices */
    uint32_t rows;
    enum quant_type type;
    struct load_sides sides;
    uint32_t *map;
};

static int check_part(struct load *l, const struct load_part *p, const struct weight *w,
                      uint32_t cols)
{
    uint64_t one[2] = { p->rows, cols }, stacked[3] = { p->slices, p->rows, cols };
    int st = p->slices ? load_check_shape(l, w, stacked, 3) : load_check_shape(l, w, one, 2);

    return st < 0 ? st : load_check_type(l, w);
}

/* The pages of a large tensor go while the rest of it is packed: what lies DROP_BYTES and more behind
 * the rows that were read last. */
#define DROP_BYTES (16u << 20)

static void on_packed(void *arg, uint32_t from, uint32_t to)
{
    const struct source *s = arg;
    uint64_t stride = s->bytes / s->rows, step = to * stride / DROP_BYTES;

    if (step >= 2 && step != from * stride / DROP_BYTES)
        weights_drop(s->w, s->from + (step - 2) * DROP_BYTES, DROP_BYTES);
}

static void describe(struct source *s, const struct load_part *p, struct k_part *out)
{
    out->type = s->w->t.type;
    out->rows = s->rows = p->rows;
    out->data = s->w->t.data + s->from;
    out->stride = s->bytes / p->rows;
    out->packed = on_packed;
    out->packed_arg = s;
    out->row_map = s->map;
    out->scale = s->sides.scale;
    out->fixed = s->type == QUANT_W8A8 ? &s->sides.fixed : NULL;
}

static int prepare(struct load *l, const struct load_part *p, uint32_t cols, struct source *s,
                   struct k_part *out)
{
    int st;

    if ((st = load_find(l, p->name, &s->w)) < 0 || (st = check_part(l, p, s->w, cols)) < 0 ||
        (st = quant_type_of(l->quant, s->w, &s->type, l->e)) < 0 ||
        (st = load_sides(l, s->w, s->type, p->rows, cols, &s->sides)) < 0)
        return st;
    s->bytes = p->slices ? s->w->t.bytes / p->slices : s->w->t.bytes;
    s->from = p->slice * s->bytes;
    if (p->head_dim && l->w->gguf && !(s->map = pair_map(p->rows, p->head_dim)))
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
}

int load_matrix(struct load *l, struct k_matrix **out, const struct load_part *parts,
                uint32_t n_parts, uint32_t cols, uint64_t *bytes)
{
    const struct kernels *k = l->m->k;
    struct k_part part[LOAD_MAX_PARTS] = { 0 };
    struct source s[LOAD_MAX_PARTS] = { 0 };
    int st = 0;

    for (uint32_t i = 0; st == 0 && i < n_parts; i++)
        if ((st = prepare(l, &parts[i], cols, &s[i], &part[i])) == 0)
            st = check_alike(l, &s[0], &s[i]);
    if (st == 0 &&
        (st = k->pack(k, out, part, n_parts, cols, l->exact ? K_MATH_FLOAT : l->m->math, l->e)) < 0)
        err_prefix(l->e, st, "%s: tensor %s", s[0].w->file, parts[0].name);
    for (uint32_t i = 0; i < n_parts; i++) {
        source_free(&s[i]);
        if (st == 0)
            load_finished(l, s[i].w, s[i].from, s[i].bytes);
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
