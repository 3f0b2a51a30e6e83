/* How the layouts store a weight: the tensors that stand for it, with their types and shapes. */
#ifndef SLUICE_OPS_PARTS_H
#define SLUICE_OPS_PARTS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "ops/shards.h"

struct err;

enum part {
    PART_BF16,         /* the weight itself */
    PART_F32,          /* the weight itself */
    PART_F8,           /* the weight as e4m3 codes */
    PART_SCALE_INV,    /* their scales [ceil(rows / 128)][ceil(cols / 128)] */
    PART_I8,           /* the weight as int8 codes */
    PART_SCALE,        /* W8A8_DYNAMIC: of each row */
    PART_OFFSET,       /* W8A8_DYNAMIC: zeros */
    PART_INPUT_SCALE,  /* W8A8: of all activations */
    PART_INPUT_OFFSET, /* W8A8 */
    PART_QUANT_BIAS,   /* W8A8 */
    PART_DEQ_SCALE,    /* W8A8 */
};

enum part_store { STORE_BF16, STORE_F32, STORE_F8, STORE_DYNAMIC, STORE_STATIC };

struct piece {
    enum part part;
    size_t weight; /* the caller's number of the weight */
};

/* Grows by weights; t and piece go side by side. */
struct parts {
    struct shard_tensor *t;
    struct piece *piece;
    size_t n, cap;
    json_t *types; /* quant_model_description.json's entries; NULL: not wanted */
};

/* types: whether to keep a description. ERR_NOMEM. */
int parts_init(struct parts *p, bool types, struct err *e);
void parts_finish(struct parts *p);
/* The tensors of the weight `name` ("....weight"), rows x cols; cols 0: a vector. */
int parts_add(struct parts *p, const char *name, size_t weight, enum part_store store,
              uint32_t rows, uint32_t cols, struct err *e);
/* The whole quant_model_description.json; a new reference, NULL without memory. */
json_t *parts_description(const struct parts *p);

#endif
