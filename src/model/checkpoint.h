/* A checkpoint without a model: its configuration and its tensors by HuggingFace's names, for tools
 * that rewrite them. */
#ifndef SLUICE_MODEL_CHECKPOINT_H
#define SLUICE_MODEL_CHECKPOINT_H

#include <stdbool.h>

#include "model/config.h"
#include "model/weights.h"

struct err;

struct checkpoint {
    struct model_config cfg;
    struct weights *w;
    bool gguf;
    bool pairs; /* a GGUF file whose rows of q and k stand in rotary pairs: see checkpoint_row */
};

/* A HuggingFace folder or a GGUF file; path must outlive c. ERR_NOTFOUND, ERR_BADMSG,
 * ERR_UNSUPPORTED, ERR_NOMEM. */
int checkpoint_open(struct checkpoint *c, const char *path, struct err *e);
void checkpoint_close(struct checkpoint *c); /* zeros are fine */

/* Where row `row` of HuggingFace's order stands in the file: heads of dim rows have the partners
 * i and i + dim / 2 as neighbours where c->pairs is set. */
uint32_t checkpoint_row(uint32_t row, uint32_t dim);

#endif
