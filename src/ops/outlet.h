/* A descriptor that lines are written to without ever waiting for its reader. */
#ifndef SLUICE_OPS_OUTLET_H
#define SLUICE_OPS_OUTLET_H

#include "base/buf.h"

/* Whoever fills `pending` stops for a while when it is longer. */
#define OUTLET_ENOUGH (64u << 10)

struct outlet {
    int fd;             /* borrowed; -1: nobody reads it any more, what is written is lost */
    struct buf pending; /* append lines here, then flush */
};

void outlet_init(struct outlet *o, int fd);
void outlet_finish(struct outlet *o);
/* Writes what can be written at once. Poll fd for POLLOUT while something is pending. */
void outlet_flush(struct outlet *o);

#endif
