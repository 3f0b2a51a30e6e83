/* The scaling that a GGUF file's frequency factors came from. */
#ifndef SLUICE_OPS_ROPE_FIT_H
#define SLUICE_OPS_ROPE_FIT_H

#include <stdint.h>

#include "model/config.h"

struct err;

/* Llama 3.1's bands from the divisors of the c->rope_dim / 2 frequencies, into c. The bands begin
 * at 1 and 4 turns in every published model; factor and original context are found. ERR_UNSUPPORTED
 * if these divisors are of another scaling. */
int rope_fit_llama3(struct model_config *c, const float *divisors, struct err *e);

#endif
