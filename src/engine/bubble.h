/* How long pipeline stages wait for each other: from the times of steps, in order. Pure. */
#ifndef SLUICE_ENGINE_BUBBLE_H
#define SLUICE_ENGINE_BUBBLE_H

#include <stdbool.h>

#include "engine/engine.h"

struct bubble {
    double end[ENGINE_MAX_STAGES]; /* of the last step on each stage */
    double last_end;               /* the latest of these */
    bool any;
};

/* Adds to wait[stage] what each stage waited before this step while there was work in the pipeline: until
 * the first chunk reaches it, between chunks, and after its last one until the last stage is done. The
 * time in which the whole pipeline was empty does not count. */
void bubble_add(struct bubble *b, double *wait, const struct engine_step_times *t);

#endif
