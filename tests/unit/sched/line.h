/* A scheduler before a pipeline of virtual stages, whose times are known, for tests of chunk planning. */
#ifndef SLUICE_TESTS_UNIT_SCHED_LINE_H
#define SLUICE_TESTS_UNIT_SCHED_LINE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/status.h"
#include "sched/chunk.h"
#include "sched/sched.h"

#define LINE_STAGES 8
#define LINE_LOG    8192
#define LINE_IDS    64

/* One entry of a step. */
struct line_entry {
    uint64_t seq;
    sched_id id;
    uint32_t start, n;
    bool decode;
    double began, ended; /* on the first stage, on the last one */
};

struct line {
    struct sched *s;
    uint32_t n_stages, window;
    struct stage_time truth[LINE_STAGES];
    double noise; /* share by which a stage's time is off, up and down in turn */
    bool silent;  /* times are not told */
    double now, free_at[LINE_STAGES];
    struct trip {
        const struct plan *plan;
        double end, seconds[LINE_STAGES];
    } trip[LINE_STAGES + 1];
    uint32_t first_trip, n_trips, most_trips;
    struct line_entry log[LINE_LOG];
    uint32_t n_log;
    double first_token[LINE_IDS]; /* seconds, by id; 0: none */
    uint32_t n_ended, n_warnings, n_noise;
    struct err warning; /* the last one */
};

/* 128 blocks of 128 tokens a request, 8 requests, equal stages; policy OPTIMAL, chunks of 128 or more. */
struct sched_config line_config(uint32_t n_stages, uint32_t budget, uint32_t max_model_len);
void line_open(struct line *l, const struct sched_config *c, const struct stage_time *truth);
void line_tell(struct line *l); /* the truth to the scheduler */
void line_close(struct line *l);
/* Ids from `first` on. */
sched_id line_add(struct line *l, uint32_t n_prompt, int32_t first, uint32_t n_output);
/* Until nothing is left to do, or `steps` more steps were sent. */
void line_run(struct line *l, uint32_t steps);
struct sched_chunk_stats line_stats(const struct line *l);
/* What a step took on stage 0 without its decoding tokens, ms. */
double line_prefill_ms(const struct line *l, uint64_t seq);

#endif
