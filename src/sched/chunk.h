/* Into which chunks a prompt is cut so that pipeline stages never wait: the plan of one request that
 * has the stages for itself.
 *
 * With identical stages the time of a prompt is sum f + (P - 1) max f, whatever the order of the
 * chunks, so chunks of equal time are best and only their number is free: few chunks cost the fill
 * of the pipeline, many cost their fixed part. Sizes then shrink along the prompt as attention
 * grows. Where stages differ, chunk times rise up to one chunk and fall behind it, by ratios that
 * keep the other stages busy. The plan is found by searching the number of chunks from an estimate,
 * with the time a chunk takes bisected for each. Pure; allocates nothing. */
#ifndef SLUICE_SCHED_CHUNK_H
#define SLUICE_SCHED_CHUNK_H

#include <stdint.h>

#include "sched/stage_time.h"

#define CHUNK_PLAN_MAX 2048 /* chunks of a prompt; smaller ones are not planned */

struct chunk_task {
    struct stage_time time; /* of a stage whose ratio is 1 */
    struct stage_link link;
    uint32_t n_stages;             /* at most FLOW_MAX_STAGES */
    const double *ratio;           /* [n_stages], each stage's time over `time`; NULL: all are 1 */
    uint64_t tokens;               /* of the prompt, with its history */
    uint64_t history;              /* of these, already in the cache */
    uint32_t align;                /* chunks are multiples of it, the last one aside; at least 1 */
    uint32_t min_chunk, max_chunk; /* max_chunk 0: no limit */
    double committed_ms;           /* the longest chunk already on its way: for a plan anew */
};

struct chunk_plan {
    uint32_t n;
    double makespan_ms; /* as flow_makespan of all stages gives it */
    double longest_ms;  /* the longest chunk's time on a stage with ratio 1 */
    uint32_t chunk[CHUNK_PLAN_MAX];
};

/* The best plan found. An empty one (n 0) if there is nothing left to compute. */
void chunk_plan(struct chunk_plan *out, const struct chunk_task *t);

/* Chunks all of one size, the last one shorter. */
void chunk_plan_static(struct chunk_plan *out, const struct chunk_task *t, uint32_t size);

/* What no plan can be faster than, ms: the slowest stage never waits, and pays its fixed cost once. */
double chunk_bound(const struct chunk_task *t);

#endif
