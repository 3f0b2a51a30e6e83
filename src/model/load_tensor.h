/* One tensor of a checkpoint, found and checked. Inside the folder only. */
#ifndef SLUICE_MODEL_LOAD_TENSOR_H
#define SLUICE_MODEL_LOAD_TENSOR_H

#include "model/load_quant.h"

/* Marks it as used. ERR_BADMSG if it is missing. */
int load_find(struct load *l, const char *name, struct weight **out);
/* ERR_BADMSG with what was expected and found. */
int load_check_shape(struct load *l, const struct weight *w, const uint64_t *want, uint32_t n);
/* ERR_UNSUPPORTED for a type that no kernel reads. */
int load_check_type(struct load *l, const struct weight *w);
/* These of its bytes are where they belong: their pages go, and the progress is told. */
void load_finished(struct load *l, const struct weight *w, uint64_t from, uint64_t bytes);

#endif
