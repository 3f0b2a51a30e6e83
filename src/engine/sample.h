/* From what a request asks (struct sampling) to rows of the backend's sampler. All memory is made
 * once; a set of rows is full when one of its arrays is. */
#ifndef SLUICE_ENGINE_SAMPLE_H
#define SLUICE_ENGINE_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernel/kernel.h"
#include "sched/sched.h"

/* Most logit biases, and most ids of any other list, of one request. */
#define SAMPLE_MAX_BIAS 4096

struct sample_rows {
    struct k_sample *row;
    uint32_t n, cap;
    struct k_bias *bias; /* shared by the rows */
    uint32_t n_bias, cap_bias;
    struct k_count *counts;
    uint32_t n_counts, cap_counts;
    float *want;
    uint32_t n_want, cap_want;
    uint32_t *seen; /* [vocab]: index + 1 into counts of the row being made, 0: not seen */
};

/* cap rows; counts for at least one row of max_tokens ids. */
int engine_rows_init(struct sample_rows *s, uint32_t cap, uint32_t max_tokens, uint32_t vocab);
void engine_rows_finish(struct sample_rows *s);
void engine_rows_reset(struct sample_rows *s);

/* Adds the row that chooses the token after en's known ones and k of its drafts. ERR_AGAIN: no room, run what is there first (an empty set
 * always has room). */
int engine_rows_choose(struct sample_rows *s, const struct plan_entry *en, uint32_t k);
/* Adds a row that only reports the log-probability of a token that is given. ERR_AGAIN as above. */
int engine_rows_forced(struct sample_rows *s, int32_t token, int32_t n_top);

/* Ranks that have the same logits: the first of them samples, share makes its bytes known to the others.
 * All zeros: alone. */
struct sample_team {
    void (*share)(void *arg, void *data, size_t bytes);
    void *arg;
    bool follows; /* not the first; its logits may be anything */
};

/* Runs the backend's sampler over n rows of logits, which it overwrites, and waits for the result. Those
 * who follow get the ids only. */
void engine_sample(const struct kernels *k, const struct sample_team *team, struct k_choice *out,
                   float *logits, size_t ld, uint32_t vocab, const struct k_sample *rows,
                   uint32_t n);

#endif
