/* The team: which share of a collective operation the calling thread takes, and the barrier. */
#ifndef SLUICE_KERNEL_TEAM_H
#define SLUICE_KERNEL_TEAM_H

#include "kernel/kernel.h"

#include <stdatomic.h>

struct team {
    uint32_t threads; /* asked for; OpenMP may give fewer */
    _Alignas(64) _Atomic uint32_t arrived;
    _Alignas(64) _Atomic uint32_t epoch; /* counts finished barriers */
    _Atomic uint32_t sleepers;           /* threads that wait for the epoch to change */
    _Alignas(64) _Atomic uint32_t next;  /* next work item of the operation in progress */
};

/* The calling thread's place: {0, 1} outside team_run. */
struct share {
    struct team *team;
    uint32_t index, count;
};

void team_run(struct team *t, void (*fn)(void *arg), void *arg);
struct share team_share(struct team *t);

/* Ends an operation: returns when every thread of the team has come. Also rewinds team_next. */
void team_barrier(const struct share *s);

/* The next item below n that no thread has taken, or n when all are. Uneven work is shared out this
 * way; which thread does an item never changes a result. */
uint32_t team_next(const struct share *s, uint32_t n);

/* A fixed split of n items: this thread's are [*from, return value). */
static inline uint32_t share_range(const struct share *s, uint32_t n, uint32_t *from)
{
    *from = (uint32_t)((uint64_t)n * s->index / s->count);
    return (uint32_t)((uint64_t)n * (s->index + 1) / s->count);
}

#endif
