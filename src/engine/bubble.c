#include "engine/bubble.h"

#include <math.h>

void bubble_add(struct bubble *b, double *wait, const struct engine_step_times *t)
{
    double begin = t->n_stages > 0 ? t->stage[0].start : 0;
    double empty = b->any ? fmax(0, begin - b->last_end) : 0;

    for (uint32_t i = 0; i < t->n_stages; i++) {
        double since = b->any ? b->end[i] : begin;

        /* clocks of other hosts are right to a fraction of a millisecond only */
        wait[i] += fmax(0, t->stage[i].start - since - empty);
        b->end[i] = t->stage[i].end;
        b->last_end = b->any || i > 0 ? fmax(b->last_end, t->stage[i].end) : t->stage[i].end;
    }
    b->any = b->any || t->n_stages > 0;
}
