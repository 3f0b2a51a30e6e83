/* Prometheus' text format 0.0.4: the pieces. Pure. */
#ifndef SLUICE_SERVE_PROM_H
#define SLUICE_SERVE_PROM_H

#include <stdint.h>

#include "base/buf.h"

#define PROM_MAX_BOUNDS 32
#define PROM_TYPE       "text/plain; version=0.0.4; charset=utf-8"

/* Cumulative counts are made when printing. Zero-initialise but for bounds and n. */
struct prom_hist {
    const double *bounds; /* rising, without +Inf; borrowed */
    uint32_t n;
    uint64_t count[PROM_MAX_BOUNDS + 1]; /* per bucket, the last one above all bounds */
    double sum;
};

void prom_hist_init(struct prom_hist *h, const double *bounds, uint32_t n);
void prom_hist_add(struct prom_hist *h, double v);
uint64_t prom_hist_count(const struct prom_hist *h);

/* "# HELP" and "# TYPE" of a family; type "counter", "gauge", "histogram", "summary". */
void prom_family(struct buf *b, const char *name, const char *type, const char *help);
/* name{labels} value; labels is the text between the braces, "" for none. */
void prom_value(struct buf *b, const char *name, const char *labels, double v);
/* All samples of one histogram. */
void prom_hist_put(struct buf *b, const char *name, const char *labels, const struct prom_hist *h);
/* key="value" with the value escaped, a comma before it if something stands there. */
void prom_label(struct buf *labels, const char *key, const char *value);

#endif
