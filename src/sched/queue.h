/* Requests of one state, in the order in which they are served: rank, then arrival. Intrusive, so
 * that moving a request allocates nothing. */
#ifndef SLUICE_SCHED_QUEUE_H
#define SLUICE_SCHED_QUEUE_H

#include <stdint.h>

struct req;

struct queue {
    struct req *head, *tail;
    uint32_t n;
};

/* Constant time for what belongs at either end: arrivals, and the preempted, who are the oldest. */
void queue_insert(struct queue *q, struct req *r);
void queue_remove(struct queue *q, struct req *r);

#endif
