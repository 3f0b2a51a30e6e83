/* What a quantization did, for a person. */
#ifndef SLUICE_OPS_REPORT_H
#define SLUICE_OPS_REPORT_H

#include <stddef.h>
#include <stdio.h>

#include "ops/intake.h"
#include "ops/plan.h"

/* A line a layer: the error of each linear that was tried, and the alpha of each site. */
void report_errors(FILE *f, const struct intake *in, const struct plan *p);
/* From mean surprises in nats a token. */
void report_perplexity(FILE *f, size_t n_tokens, double before, double after);
/* A log line that names the sites which stayed float, if any did. */
void report_floats(const struct intake *in, const struct plan *p);

#endif
