#include "ops/parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "kernel/kernel.h"

enum shape { SHAPE_WEIGHT, SHAPE_BLOCKS, SHAPE_COLUMN, SHAPE_ROWS, SHAPE_ONE };

static const struct {
    const char *suffix; /* instead of "weight" */
    enum shard_type type;
    enum shape shape;
} parts[] = {
    [PART_BF16] = { "weight", SHARD_BF16, SHAPE_WEIGHT },
    [PART_F32] = { "weight", SHARD_F32, SHAPE_WEIGHT },
    [PART_F8] = { "weight", SHARD_F8_E4M3, SHAPE_WEIGHT },
    [PART_SCALE_INV] = { "weight_scale_inv", SHARD_F32, SHAPE_BLOCKS },
    [PART_I8] = { "weight", SHARD_I8, SHAPE_WEIGHT },
    [PART_SCALE] = { "weight_scale", SHARD_F32, SHAPE_COLUMN },
    [PART_OFFSET] = { "weight_offset", SHARD_F32, SHAPE_COLUMN },
    [PART_INPUT_SCALE] = { "input_scale", SHARD_F32, SHAPE_ONE },
    [PART_INPUT_OFFSET] = { "input_offset", SHARD_F32, SHAPE_ONE },
    [PART_QUANT_BIAS] = { "quant_bias", SHARD_I32, SHAPE_ROWS },
    [PART_DEQ_SCALE] = { "deq_scale", SHARD_F32, SHAPE_ROWS },
};

#define MAX_PARTS 5

static const struct {
    const char *type; /* in the description */
    int n;
    enum part part[MAX_PARTS];
} stores[] = {
    [STORE_BF16] = { "FLOAT", 1, { PART_BF16 } },
    [STORE_F32] = { "FLOAT", 1, { PART_F32 } },
    [STORE_F8] = { "F8", 2, { PART_F8, PART_SCALE_INV } },
    [STORE_DYNAMIC] = { "W8A8_DYNAMIC", 3, { PART_I8, PART_SCALE, PART_OFFSET } },
    [STORE_STATIC] = { "W8A8",
                       5,
                       { PART_I8, PART_INPUT_SCALE, PART_INPUT_OFFSET, PART_QUANT_BIAS,
                         PART_DEQ_SCALE } },
};

static int no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the list of tensors");
}

int parts_init(struct parts *p, bool types, struct err *e)
{
    *p = (struct parts){ .types = types ? json_object() : NULL };
    return types && !p->types ? no_memory(e) : 0;
}

void parts_finish(struct parts *p)
{
    free(p->t);
    free(p->piece);
    json_decref(p->types);
    *p = (struct parts){ 0 };
}

static int grow(struct parts *p)
{
    size_t cap = p->cap ? 2 * p->cap : 256;
    struct shard_tensor *t = realloc(p->t, cap * sizeof *t);
    struct piece *piece;

    if (!t)
        return ERR_NOMEM;
    p->t = t;
    if (!(piece = realloc(p->piece, cap * sizeof *piece)))
        return ERR_NOMEM;
    p->piece = piece;
    p->cap = cap;
    return 0;
}

static void set_shape(struct shard_tensor *t, enum shape shape, uint32_t rows, uint32_t cols)
{
    t->n_dims = shape == SHAPE_ROWS || shape == SHAPE_ONE || cols == 0 ? 1 : 2;
    t->shape[0] = shape == SHAPE_ONE      ? 1
                  : shape == SHAPE_BLOCKS ? (rows + K_F8_BLOCK - 1) / K_F8_BLOCK
                                          : rows;
    t->shape[1] = shape == SHAPE_COLUMN   ? 1
                  : shape == SHAPE_BLOCKS ? (cols + K_F8_BLOCK - 1) / K_F8_BLOCK
                                          : cols;
}

int parts_add(struct parts *p, const char *name, size_t weight, enum part_store store,
              uint32_t rows, uint32_t cols, struct err *e)
{
    size_t stem = strlen(name);

    /* "x.weight" becomes "x.weight_scale"; a bias is itself. */
    if (stem > 6 && strcmp(name + stem - 6, "weight") == 0)
        stem -= 6;
    for (int i = 0; i < stores[store].n; i++) {
        enum part part = stores[store].part[i];
        struct shard_tensor *t;

        if (p->n == p->cap && grow(p) < 0)
            return no_memory(e);
        t = &p->t[p->n];
        snprintf(t->name, sizeof t->name, "%.*s%s", (int)stem, name,
                 name[stem] ? parts[part].suffix : "");
        t->type = parts[part].type;
        set_shape(t, parts[part].shape, rows, cols);
        p->piece[p->n++] = (struct piece){ part, weight };
        if (p->types && json_object_set_new(p->types, t->name, json_string(stores[store].type)) < 0)
            return no_memory(e);
    }
    return 0;
}

json_t *parts_description(const struct parts *p)
{
    json_t *j = json_copy(p->types);

    if (json_object_update_new(j, json_pack("{s:s, s:s, s:{}, s:i, s:{}}", "version", "1.0.0",
                                            "model_quant_type", "W8A8", "metadata", "group_size", 0,
                                            "optional")) == 0)
        return j;
    json_decref(j);
    return NULL;
}
