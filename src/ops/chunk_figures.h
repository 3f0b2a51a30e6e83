/* What an instance's /metrics say of its chunk planning (docs/metrics.md). Pure. */
#ifndef SLUICE_OPS_CHUNK_FIGURES_H
#define SLUICE_OPS_CHUNK_FIGURES_H

#include "sched/stage_time.h"

struct err;

struct chunk_figures {
    char mode[16];
    struct stage_time fit; /* of the slowest stage; zeros: none yet */
    double load, error;    /* on all its predictions; mean relative error of the last ones */
    double steps;          /* measured, with prompt tokens */
    double predicted_seconds, measured_seconds; /* sums over those that were predicted */
    double plans;
    double plan_chunks, plan_first, plan_last, plan_seconds, bound_seconds; /* the last plan */
};

/* Takes the page apart in place. ERR_NOTFOUND with a sentence if it says nothing: chunks are not planned
 * there. Figures that are missing are 0. */
int chunk_figures_read(struct chunk_figures *out, char *page, struct err *e);

#endif
