/* A model that is being opened: what its files say, before any weight is read. Inside the folder
 * only. */
#ifndef SLUICE_MODEL_OPENING_H
#define SLUICE_MODEL_OPENING_H

#include "model/arch.h"
#include "model/quant.h"

struct opening {
    struct model *m; /* configuration, types and stage are set; no weights */
    struct weights *w;
    struct quant *quant;
    struct quant_count linears; /* zeros for a GGUF file */
};

/* opening_end is due also after a failure. Errors are those of model_open. */
int opening_begin(struct opening *o, const struct kernels *k, const struct model_options *opt,
                  struct err *e);
void opening_end(struct opening *o);

/* True if this stage loads the layer for drafts. */
bool opening_mtp(const struct model *m, const struct model_options *opt);

#endif
