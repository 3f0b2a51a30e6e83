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

/* A plan in short: each chunk is computed when its turn comes, so a request keeps this and no list. It
 * goes on with the stage times that it was made with. */
struct chunk_rule {
    uint32_t n;     /* chunks of the whole plan; 0: there is no plan */
    uint32_t fixed; /* not 0: all chunks have this size, and only `tokens` counts beside it */
    struct stage_time time;
    struct stage_link link;
    uint64_t tokens;
    uint32_t align, min_chunk, max_chunk;
    double ms;  /* what a chunk takes on a stage with ratio 1, its link included */
    double cap; /* share of the size from which two chunks cost less than one; 0: none */
    double up, down,
        peak; /* chunk i takes ms * up^(peak - i) before the peak, then down^(i - peak) */
};

/* The next chunk: the index-th, behind `history` tokens. At least 1 where history < tokens. */
uint32_t chunk_rule_next(const struct chunk_rule *r, uint32_t index, uint64_t history);
/* Chunks of one size for a prompt of so many tokens, `rest` of them to compute. */
struct chunk_rule chunk_rule_fixed(uint32_t size, uint64_t tokens, uint64_t rest);

struct chunk_plan {
    uint32_t n;
    double makespan_ms;     /* as flow_makespan of all stages gives it */
    double longest_ms;      /* the longest chunk's time on a stage with ratio 1 */
    struct chunk_rule rule; /* gives the same chunks */
    uint32_t chunk[CHUNK_PLAN_MAX];
};

/* The best plan found. An empty one (n 0) if there is nothing left to compute, or if CHUNK_PLAN_MAX chunks
 * of the largest size do not suffice: then its rule is that size. */
void chunk_plan(struct chunk_plan *out, const struct chunk_task *t);

/* Chunks all of one size, the last one shorter. */
void chunk_plan_static(struct chunk_plan *out, const struct chunk_task *t, uint32_t size);

/* The size whose fixed chunks are fastest, of base = max_chunk (or all that is left) and what halves and
 * quarters of it there are down to min_chunk. */
uint32_t chunk_best_static(const struct chunk_task *t);

/* What a rule's chunks take if a stage with ratio 1 has these times. */
double chunk_cost(const struct chunk_task *t, const struct stage_time *time,
                  const struct chunk_rule *rule);

/* Work without anything fixed: what a stage with ratio 1 does for tokens history to `tokens`, ms. */
double chunk_work(const struct stage_time *time, uint64_t history, uint64_t tokens);

/* What no plan can be faster than, ms: the slowest stage never waits, and pays its fixed cost once. */
double chunk_bound(const struct chunk_task *t);

#endif
