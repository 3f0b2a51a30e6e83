/* A model that tools run texts through, one sequence at a time: for calibration and perplexity. */
#ifndef SLUICE_OPS_RUNNER_H
#define SLUICE_OPS_RUNNER_H

#include <stddef.h>
#include <stdint.h>

#include "model/model.h"

struct err;
struct runner;

#define RUNNER_MAX_TOKENS 512 /* of one sequence */

/* k is borrowed until the end; it serves the model, and the caller too. */
int runner_create(struct runner **out, const struct kernels *k, const char *path,
                  enum model_dtype dtype, struct err *e);
void runner_destroy(struct runner *r); /* NULL is fine */

const struct model_config *runner_config(const struct runner *r);
/* Called with the activations of every later step; NULL: not any more. */
void runner_probe(struct runner *r, model_probe_fn *fn, void *arg);

/* The n first tokens of a text, n <= RUNNER_MAX_TOKENS. */
void runner_step(struct runner *r, const int32_t *ids, uint32_t n);
/* The mean of -log p(ids[i]) over 0 < i < n, in pieces of RUNNER_MAX_TOKENS tokens of which each begins
 * anew; n >= 2. */
double runner_score(struct runner *r, const int32_t *ids, size_t n);

#endif
