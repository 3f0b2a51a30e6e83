/* sluice sim: the engine core on a virtual clock, to see what chunk policies would give.
 *
 * The scheduler and its planner are those of the live engine (sched/); the pipeline is a model of its
 * stages (sched/stage_time.h). Steps enter stage 0 when it is free, pass through the others in order,
 * and are committed when the last one has ended them; as many are in flight as in the live engine. */
#ifndef SLUICE_OPS_SIM_H
#define SLUICE_OPS_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/sched.h"

struct buf;
struct err;

#define SIM_MAX_REQUESTS   100000u
#define SIM_MAX_TOKENS     (1u << 28) /* of all prompts together */
#define SIM_MAX_PROMPT     (16u << 20)
#define SIM_MAX_STAGES     32u
#define SIM_MAX_STAGE_RUNS 8u

/* A model of a pipeline of so many equal stages, and the case it was fitted to. */
struct sim_model {
    const char *name;
    struct stage_time time;
    uint32_t stages;
    uint32_t prompt, base;                   /* tokens; 0: none */
    double published_fixed, published_equal; /* seconds; 0: none */
};

/* "deepseek", "qwen3", or a file: a fit that the server has kept (sched/profile.h), or an object with a,
 * b, g, c, kappa, w and stages. */
int sim_model_load(struct sim_model *out, const char *name, struct err *e);
/* The stages of another number of them: layers are split, so a, b, g, w fall with their number; half of
 * the fixed cost stays. */
struct stage_time sim_model_split(const struct sim_model *m, uint32_t stages);

struct sim_options {
    struct stage_time time;
    uint32_t stages;
    struct stage_link link;
    double jitter; /* relative, uniform */
    uint64_t seed;

    enum sched_chunk_policy policy;
    bool best_size; /* fixed chunks of the size that is best by the model for the longest prompt */
    uint32_t base, min_chunk; /* tokens of a step; 0: chosen */
    double smooth;
    bool unknown; /* the scheduler is not told the model */
    struct sched_short_first short_first;

    uint32_t n_requests, n_tokens_least, n_tokens_most; /* prompts: evenly by the logarithm */
    uint32_t n_output;
    uint32_t n_warm_up; /* longest prompts, alone, before the clock begins */
    double hit_ratio;   /* share of a prompt that is in the prefix cache */
    double rate; /* arrivals a second, at random; 0: `concurrency` clients, one after another */
    uint32_t concurrency;
    uint32_t max_seqs, window; /* window 0: stages + 1 */
};

struct sim_result {
    uint32_t n, base;                     /* base: tokens of a step that were used */
    double ttft_mean, ttft_p50, ttft_p99; /* seconds */
    double seconds;                       /* from the first arrival to the last token */
    double prompt_per_second;             /* prompt tokens, cached ones included */
    double bubble;                        /* share of the stages' time in which they waited */
    double bound; /* seconds that one longest prompt takes if no stage waits */
    uint64_t steps;
    struct sched_chunk_stats chunks;
};

int sim_run(const struct sim_options *o, struct sim_result *out, struct err *e);

/* What main has read, run for each number of stages and each policy; the report goes into `out`. */
struct sim_plan {
    struct sim_model model;
    struct sim_options base;
    uint32_t stages[SIM_MAX_STAGE_RUNS], n_stages;
    bool fixed, best, equal_time, optimal; /* policies */
    bool json;
};
int sim_report(const struct sim_plan *p, struct buf *out, struct err *e);

#endif
