/* An instance's place in a data-parallel group.
 *
 * Without expert parallelism the instances only know of each other: who is up shows in the log and the
 * figures, nothing waits. With it every step of one is a step of all, since the experts of a step's rows
 * are spread over all ranks:
 *
 *     RESTING --work here or elsewhere--> in a wave: each step begins with the ranks telling each other
 *        ^                                who has work; those without take part with no rows
 *        +------ nobody has work ---------+
 *     APART: a rank is gone. No step runs, no request is taken, until all have met again
 *
 * A wave begins for all ranks, the one that asked for it included, by the coordinator's word, and ends for
 * all with the same step: so all make the same number of steps, and any may be the first to have work.
 * What an instance has in its KV pool stays its own through all of that.
 *
 * The engine thread's, but where said. Internal to src/engine. */
#ifndef SLUICE_ENGINE_DP_H
#define SLUICE_ENGINE_DP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct dp;
struct engine_dp_stats;
struct err;
struct group;

struct dp_options {
    uint32_t rank, size;  /* instances */
    uint32_t n_ranks;     /* of each instance; this process is the first of them */
    const char *own_host; /* this process's address; NULL: that of the host below */
    const char *host;     /* where instance 0 waits */
    uint16_t port;
    const char *secret;
    double meet_seconds, step_seconds;
    size_t scratch; /* bytes that sums inside a step need */
    bool in_step;   /* experts are shared */
    /* The engine thread has slept long enough: any thread of dp's. */
    void (*wake)(void *arg);
    /* in_step, on the thread of engine_dp_meet and engine_dp_turn. call: all ranks are about to meet at
     * the port; this instance's others must hear of it. met: they have; the group's rank i of instance d
     * is d * n_ranks + i. 0, or a sentence. parted: the group is about to be left. */
    int (*call)(void *arg, uint16_t port, struct err *e);
    int (*met)(void *arg, struct group *whole, struct err *e);
    void (*parted)(void *arg);
    void *arg;
};

/* Rank 0 listens; every rank begins to look for it. Waits for nothing. ERR_INVAL, ERR_BUSY (rank 0's
 * address), ERR_RANGE. */
int engine_dp_open(struct dp **out, const struct dp_options *o, struct err *e);
/* A wave should have come to its end (engine_dp_in_wave): else the others' requests fail. NULL is fine. */
void engine_dp_close(struct dp *d);

/* Where steps are made together: waits until all ranks are ready and meets them. `about` is a hash of
 * what all must agree on. ERR_TIMEOUT names who is not there; ERR_MISMATCH (refused). Ranks that are
 * still being loaded are waited for longer than those that nobody has heard of. An instance of one rank
 * that misses the others is called again; of several ranks, which have all gone to meet, none would hear
 * of it: ERR_CLOSED. */
int engine_dp_meet(struct dp *d, uint64_t about, struct err *e);
/* The same for the other ranks of an instance, when the first has called them: rank `rank` of instance
 * o->rank goes to the port. Of o only what concerns the group counts. */
int engine_dp_follow(struct group **out, const struct dp_options *o, uint32_t rank, uint16_t port,
                     uint64_t about, struct err *e);

enum dp_turn {
    DP_REST,  /* nobody has work: sleep until there is mail, or the wake-up */
    DP_STEP,  /* run a step: the plan, or one without rows */
    DP_APART, /* no step can be run; a plan that was made has failed */
};
/* What to do now; has_plan: this instance has work. Comes together again where that is due. */
enum dp_turn engine_dp_turn(struct dp *d, bool has_plan);
/* An exchange of the step has failed: the group is left. */
void engine_dp_fail(struct dp *d);
bool engine_dp_in_wave(const struct dp *d);
/* Why no request can be taken; false if they can. Any thread. */
bool engine_dp_is_apart(struct dp *d, char *why, size_t size);

void engine_dp_stats(struct dp *d, struct engine_dp_stats *out); /* any thread */

#endif
