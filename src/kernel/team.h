/* The team: threads that do an operation's items together.
 *
 * An operation ends when its items are done, not when every thread has come; so does a run. A
 * thread that the system has put aside holds up the others only if it was within an item; when it
 * is back it finds the operation ended and goes on to the next. So beside other busy processes a
 * step gets slower by the share of the CPUs that they take, and not by a time slice an operation.
 * For the same reason nobody spins for long: who spins is made to pay for it later.
 *
 * These are threads of our own and not an OpenMP team, whose barriers wait for every thread and
 * spin for milliseconds. */
#ifndef SLUICE_KERNEL_TEAM_H
#define SLUICE_KERNEL_TEAM_H

#include "kernel/kernel.h"

#include <pthread.h>
#include <stdatomic.h>

/* A number that threads wait on: spinning for a moment, then asleep. */
struct team_word {
    _Alignas(64) _Atomic uint32_t value;
    _Atomic uint32_t sleepers;
};

struct team {
    uint32_t threads; /* with the one that calls team_run */
    uint32_t started;
    pthread_t *workers;
    atomic_bool stop;

    /* the run in progress */
    void (*fn)(void *arg);
    void *arg;
    uint32_t first_op;
    struct team_word gate;   /* counts openings and closings: odd while workers may join */
    struct team_word inside; /* workers that have joined */

    /* the operation in progress: its number << 32 | its next item */
    _Alignas(64) _Atomic uint64_t ticket;
    _Alignas(64) _Atomic uint32_t done; /* its finished items */
    struct team_word op;                /* its number once more, to wait on */
};

/* On failure (ERR_NOMEM, ERR_LIMIT) there is nothing to destroy. */
int team_create(struct team *t, uint32_t threads);
void team_destroy(struct team *t); /* a team of zeros is fine */

/* Calls fn(arg) on the calling thread, and on those workers that come in time. */
void team_run(struct team *t, void (*fn)(void *arg), void *arg);

/* One item; `thread` tells whose scratch to use. Who does an item never changes a result. */
typedef void team_item_fn(void *job, uint32_t item, uint32_t thread);

/* An operation: items 0 .. n-1, each on one thread. A thread takes items in rising order. The job,
 * at most TEAM_MAX_JOB bytes, is copied, for each thread; it is the same on all, and what it points to stays
 * until the run ends. A thread that comes late gets no item, and must not have looked at buffers
 * before.
 *
 * Inside team_run the operation waits until the next one is called or the run ends, and those of one
 * item are hung on to it: the thread that finishes its last item does them too, in order. So a
 * chain of small operations costs the team no meeting of its own. Outside team_run the caller does
 * all items at once. */
#define TEAM_MAX_JOB 192
void team_items(struct team *t, uint32_t n, team_item_fn *fn, void *job, size_t job_bytes);

/* Memory that does not change during a run and that an item reads from its start on: a thread that
 * waits for others before it may begin the item fetches it meanwhile. */
#define TEAM_MAX_AHEAD 3
struct team_ahead {
    const char *at[TEAM_MAX_AHEAD];
    size_t bytes[TEAM_MAX_AHEAD]; /* 0: no more */
};
typedef void team_ahead_fn(const void *job, uint32_t item, struct team_ahead *out);
/* team_items with an ahead (NULL: none). */
void team_items_ahead(struct team *t, uint32_t n, team_item_fn *fn, team_ahead_fn *ahead, void *job,
                      size_t job_bytes);

#endif
