/* The reference policy: chunks that are predicted to take as long as the first one of the base size,
 * as vLLM-Ascend's profiling_chunk_config plans them; kept exactly, with its weak points, so that
 * plans can be measured against it. Milliseconds and tokens. Pure; nothing is allocated. */
#ifndef SLUICE_SCHED_EQUAL_TIME_H
#define SLUICE_SCHED_EQUAL_TIME_H

#include <stdbool.h>
#include <stdint.h>

#define EQUAL_TIME_MAX_ROWS    1024 /* of the calibration */
#define EQUAL_TIME_MIN_SAMPLES 8    /* of the profile */
#define EQUAL_TIME_MAX_SAMPLES 256

enum equal_time_model {
    EQUAL_TIME_NONE,
    EQUAL_TIME_STARTUP, /* F(l) = a l^2 + b l + c of a whole prompt */
    EQUAL_TIME_HISTORY, /* a C (C + H) + b (C + H) + c of a chunk */
};

struct equal_time_row {
    double area, length, requests, ms;
};

struct equal_time {
    enum equal_time_model model;
    double a, b, c;
    double target; /* ms */
    uint32_t base, page, min_chunk;
    double smooth;
    uint32_t max_fit; /* rows after which the calibration is frozen */
    bool frozen;
    uint32_t first_steps; /* measured steps without history that have set the target */
    uint32_t n_rows;
    struct equal_time_row row[EQUAL_TIME_MAX_ROWS];
};

/* Chunk lengths to profile: base, then base less multiples of base / 64. */
uint32_t equal_time_lengths(uint32_t base, uint32_t out[64]);
/* Fits the start model; false with fewer than EQUAL_TIME_MIN_SAMPLES. */
bool equal_time_fit(struct equal_time *m, const double *length, const double *ms, uint32_t n);

/* The chunk behind `history` for the time left (0: the target); 0 if the model has none. */
uint32_t equal_time_chunk(const struct equal_time *m, uint64_t history, double budget_ms);
/* What it predicts for a chunk. */
double equal_time_of(const struct equal_time *m, double chunk, double history);

/* One measured step of n requests: chunk[i] tokens behind history[i]. */
void equal_time_measured(struct equal_time *m, const uint32_t *chunk, const uint64_t *history,
                         uint32_t n, double ms);

/* How one step is shared out. */
struct equal_time_request {
    uint64_t prompt, total, done;
    uint64_t hit; /* waiting: tokens that the prefix cache has */
};
struct equal_time_step {
    uint64_t token_budget, max_model_len, threshold; /* threshold 0: none */
    bool timing; /* the calibration still runs: first chunks are not cut */
};
/* tokens[i] for running, then for waiting requests; 0: not in this step. */
void equal_time_split(const struct equal_time *m, const struct equal_time_step *s,
                      const struct equal_time_request *running, uint32_t n_running,
                      const struct equal_time_request *waiting, uint32_t n_waiting,
                      uint64_t *tokens);

#endif
