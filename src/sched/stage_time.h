/* How long a pipeline stage takes for a chunk of a prompt, and what that makes of a whole prompt.
 *
 *     f(C, H) = a C (H + kappa C) + max(b C, w) + g H + c
 *
 * for a chunk of C tokens behind H tokens of history: a is attention, kappa the share of the chunk's
 * own square that the kernel computes (1/2 for a causal kernel, 1 for a full one), b the linear
 * part, w its floor (the weights are read whatever C is), g what is paid for each token of history
 * once a chunk (reading the cache, expanding latents), c the fixed cost. Times are milliseconds here
 * and in all of the planning, sizes are tokens. Pure functions; nothing is allocated. */
#ifndef SLUICE_SCHED_STAGE_TIME_H
#define SLUICE_SCHED_STAGE_TIME_H

#include <stdint.h>

struct stage_time {
    double a, b, g, c;
    double kappa; /* 1/2 to 1 */
    double w;     /* 0: none */
};

/* No coefficient is larger: sums of products of what is taken from outside stay far from overflow. */
#define STAGE_TIME_MOST 1e12

/* Passing a chunk on to the next stage; it occupies neither. */
struct stage_link {
    double ms, ms_per_token;
};

double stage_time_of(const struct stage_time *f, double chunk, double history);
/* The largest chunk whose time plus that of the link (NULL: none) is at most ms; 0 if none is. */
double stage_time_chunk(const struct stage_time *f, const struct stage_link *link, double history,
                        double ms);

/* A chunk's way through the stages: stage s begins it when it has ended the one before and when it
 * has arrived from stage s - 1, which is when that one has ended it, plus the link. With a window,
 * chunk k enters stage 0 not before chunk k - window has left the last one, plus dispatch_ms.
 * Buffers between stages are unlimited. */
struct flow {
    const struct stage_time *stages; /* [n_stages] */
    uint32_t n_stages;
    struct stage_link link;
    uint32_t window; /* 0: none */
    double dispatch_ms;
};
#define FLOW_MAX_STAGES 64
#define FLOW_MAX_WINDOW 128

/* When the last stage ends the last of n chunks, counted from the start of the first. Each chunk's
 * end on each stage is told to `ended` (NULL: nobody), with its time on the stage. */
typedef void flow_ended_fn(void *arg, uint32_t chunk, uint32_t stage, double start, double end);
double flow_makespan(const struct flow *w, const uint32_t *chunks, uint32_t n, uint64_t history,
                     flow_ended_fn *ended, void *arg);

#endif
