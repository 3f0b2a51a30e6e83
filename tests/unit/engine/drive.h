/* Drives an engine from a test: submits, waits, collects. */
#ifndef SLUICE_TESTS_UNIT_ENGINE_DRIVE_H
#define SLUICE_TESTS_UNIT_ENGINE_DRIVE_H

#include <pthread.h>

#include "engine/engine.h"

#define DRIVE_MAX_OUT 256

/* What became of one request. */
struct outcome {
    uint64_t id;
    int32_t token[DRIVE_MAX_OUT];
    float logprob[DRIVE_MAX_OUT];
    uint32_t n;
    bool ended;
    enum finish finish;
    uint32_t n_cached, n_external, n_preempted;
    float prompt_logprob_sum;
    uint32_t n_prompt_logprobs;
    struct kv_params *kv;
    int status;
};

struct drive {
    struct engine *e;
    pthread_mutex_t lock;
    pthread_cond_t some;
    bool pending;
};

struct drive_options {
    const char *model;
    uint32_t block_tokens, n_blocks, max_batched_tokens, max_seqs;
    uint32_t n_draft_tokens;
    bool mtp, no_prefix_cache, produce, consume;
    enum kv_failure on_failure;
    double lease_seconds, step_delay;
    const char *secret;
    uint64_t kv_bytes; /* the pool by these, n_blocks does not count then; 0: by n_blocks */
    struct sched_chunks chunks;
    double profile_seconds;
    uint32_t threads; /* 0: 2 */
    struct engine_ranks ranks;
    void (*timeline)(void *arg, const struct engine_step_times *t);
    void *timeline_arg;
};

/* What drive_open opens, but for who is notified. */
struct engine_options drive_engine_options(const struct drive_options *o);

/* Aborts the test with the engine's sentence if it cannot open. */
void drive_open(struct drive *d, const struct drive_options *o);
void drive_close(struct drive *d);

/* Submits; o->id names it. sp may be NULL: greedy, n_out tokens, EOS ignored. */
void drive_submit(struct drive *d, struct outcome *o, const int32_t *prompt, uint32_t n,
                  uint32_t n_out, const struct sampling *sp, const struct kv_params *kv);
/* Handles events until all n outcomes have ended; fails the test after 60 s. */
void drive_wait(struct drive *d, struct outcome *const *o, uint32_t n);
/* Handles events until o has at least n_tokens or has ended. */
void drive_wait_tokens(struct drive *d, struct outcome *o, uint32_t n_tokens);
/* Waits until the scheduler holds nothing: fails the test after 10 s. */
void drive_idle(struct drive *d);
/* Waits until n decode instances wait for a prefill of d. */
void drive_waiting(struct drive *d, uint32_t n);
void outcome_finish(struct outcome *o);

#endif
