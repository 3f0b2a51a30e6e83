/* Texts as token ids. */
#ifndef SLUICE_OPS_TOKENS_H
#define SLUICE_OPS_TOKENS_H

#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

struct err;

struct tokens {
    int32_t *ids;
    size_t n;
};

/* The text in file (NULL: `text`) by the tokenizer of the checkpoint at model. Where that has none,
 * random ids of its vocabulary serve, if no file was named; the log says so. ERR_NOTFOUND, ERR_LIMIT
 * (fewer than two tokens, or too many), ERR_NOMEM. */
int tokens_read(struct tokens *out, const char *model, const char *file, const char *text,
                const struct model_config *c, struct err *e);
void tokens_finish(struct tokens *t); /* zeros are fine */

#endif
