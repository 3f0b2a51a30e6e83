/* What the scheduler knows about time: a model of each pipeline stage, learned from measured steps, and
 * what follows from it for prompts: the plan of one alone, the time budget of a step that several share.
 * Knows no requests and no queue. Milliseconds and tokens. Pure; allocates nothing. */
#ifndef SLUICE_SCHED_PACE_H
#define SLUICE_SCHED_PACE_H

#include "sched/chunk.h"
#include "sched/equal_time.h"
#include "sched/guard.h"
#include "sched/latency.h"
#include "sched/sched.h"

#define PACE_STEPS   128 /* planned steps whose times may still come */
#define PACE_CHUNKS  32  /* of a step, remembered for the reference policy */
#define PACE_SAMPLES 32  /* steps of serving that make a first model where there was no profile */

/* A planned step, until its times come. */
struct pace_step {
    uint64_t seq;
    double tokens, squares, area, history; /* sums of C, C C, C H, H */
    uint32_t prefill_tokens, n_chunks;
    uint32_t chunk[PACE_CHUNKS];
    uint64_t start[PACE_CHUNKS];
    double predicted_ms; /* on the slowest stage; 0: no model */
};

struct pace {
    struct sched_chunks cfg;
    uint32_t base, align; /* token budget of a step, block size */
    uint32_t max_model_len;

    bool given; /* by pace_set_latency */
    bool known; /* there is a model: given, or made from samples */
    bool stale; /* the three below no longer fit the estimators */
    struct latency stage[FLOW_MAX_STAGES];
    struct latency_sample sample[FLOW_MAX_STAGES][PACE_SAMPLES];
    uint32_t n_samples;
    struct stage_link link;
    struct stage_time slowest;
    double ratio[FLOW_MAX_STAGES];
    bool equal; /* all ratios are 1, nearly */

    struct equal_time equal_time;
    struct guard guard;
    struct pace_step step[PACE_STEPS];
    struct chunk_plan plan; /* scratch */

    double off[4]; /* |measured / predicted - 1| of the last steps, for plans under way */
    uint32_t n_off;
    bool warned, warn_due;
    struct sched_chunk_stats stats;
};

void pace_init(struct pace *p, const struct sched_config *c);
int pace_set_latency(struct pace *p, const struct stage_time *stages, uint32_t n,
                     const struct stage_link *link, struct err *e);

/* A step was planned; entries are told one by one in between. Decoding tokens count as chunks of one. */
void pace_step_begin(struct pace *p, uint64_t seq);
void pace_step_add(struct pace *p, uint64_t seq, uint32_t chunk, uint64_t start, bool prefill);
void pace_step_end(struct pace *p, uint64_t seq);
double pace_predicted(struct pace *p, uint64_t seq); /* 0: no model, no prompt, or long over */
void pace_note_times(struct pace *p, uint64_t seq, const double *seconds, uint32_t n);

/* May predictions for a prompt with tokens [history, tokens) be used? If not, the mode is FALLBACK and a
 * warning is due the first time. */
bool pace_usable(struct pace *p, uint64_t history, uint64_t tokens);
void pace_warning(const struct pace *p, struct err *out); /* why not */
/* Tokens a step of fixed chunks may have: the best size that the model knows, else the whole budget. */
uint32_t pace_fixed_size(struct pace *p, uint64_t history, uint64_t tokens);

/* The plan of a prompt that is alone: chunks by a model that pace_usable has allowed. committed_ms: the
 * longest chunk of it that is already under way (a plan anew), or 0. */
void pace_plan(struct pace *p, struct chunk_rule *out, uint64_t history, uint64_t tokens,
               double committed_ms);
/* The chunk that smooth_factor makes of a planned one. */
uint32_t pace_smooth(const struct pace *p, uint32_t chunk);
/* Have the last steps been so far from their prediction that a plan under way should be made anew? */
bool pace_is_off(const struct pace *p);

/* Work of what is left of a prompt, without the fixed cost of a step; and of one chunk. */
double pace_work(struct pace *p, uint64_t history, uint64_t tokens);
double pace_chunk_work(struct pace *p, uint32_t chunk, uint64_t history);
/* Time of a step that several prompts share, of which `work` is not yet planned; slots: steps that may
 * still be sent. first, tokens: the first of them. */
double pace_target(struct pace *p, double work, uint32_t slots, uint64_t first, uint64_t tokens);
/* Tokens behind history whose work is at most ms. */
double pace_chunk(struct pace *p, uint64_t history, double ms);
/* The part of a chunk's work that its size has no influence on. */
double pace_history_work(struct pace *p, uint64_t history);
double pace_fixed(struct pace *p); /* of a step */

#endif
