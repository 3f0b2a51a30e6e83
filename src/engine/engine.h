/* One instance's engine: model, KV pool, scheduler and KV transfer behind a narrow door.
 *
 * The engine thread owns the engine core and runs its step plans; the transfer's comm thread moves
 * KV. Callers (the HTTP front) submit requests from any thread and fetch events; nothing here knows
 * of text, HTTP or JSON. */
#ifndef SLUICE_ENGINE_ENGINE_H
#define SLUICE_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"
#include "model/model.h"
#include "sched/sched.h"
#include "transfer/transfer.h"
#include "wire/kv_params.h"
#include "wire/sampling.h"

struct engine;
struct err;

/* What to do when KV that was promised does not arrive whole. */
enum kv_failure { KV_FAIL_RECOMPUTE, KV_FAIL_ERROR };

struct engine_kv_options {
    bool produce, consume; /* both false: no transfer */
    const char *host;      /* address of the KV port */
    uint16_t port;         /* 0: any */
    const char *engine_id; /* NULL: one is made */
    const char *secret;
    double lease_seconds, pull_timeout, connect_timeout;
    bool checksums;
    enum kv_failure on_failure;
};

struct engine_options {
    struct model_options model;
    struct k_options kernel;
    struct sched_config sched; /* n_blocks 0: sized by memory; max_model_len 0: the model's */
    double memory_fraction;    /* of the memory that is free after loading, for the KV pool */
    uint64_t kv_bytes;         /* 0: by memory_fraction; else exactly so many for the pool */
    struct engine_kv_options kv;
    /* Multi-token prediction (model.mtp must be set): drafts verified in a step of each request, at most
     * SPEC_MAX_TOKENS; 0: off. The output is the same, only sooner. */
    uint32_t n_draft_tokens;
    double step_delay; /* seconds added to each step, for tests; 0 */
    /* Called on the engine thread when events wait and none did before. Negative: could not be told
     * on, ask again soon. */
    int (*notify)(void *arg);
    void *notify_arg;
};

/* Loads the model, makes the pool, starts the threads; prints what memory goes where. On failure
 * nothing is left. */
int engine_open(struct engine **out, const struct engine_options *opt, struct err *e);
/* Ends all requests (FINISH_ABORT), leases and pulls; joins the threads. NULL is fine. */
void engine_close(struct engine *e);

/* What the instance is; constant after engine_open. */
struct engine_info {
    const struct model_config *model;
    uint32_t max_model_len, block_tokens, n_blocks, max_batched_tokens, max_seqs;
    uint64_t pool_bytes, weight_bytes;
    const char *isa, *kv_dtype, *fingerprint;
    uint32_t threads;
    const char *kv_host;
    uint16_t kv_port; /* 0: no transfer */
    const char *engine_id;
};
void engine_info(const struct engine *e, struct engine_info *out);

struct engine_request {
    const int32_t *prompt; /* copied */
    uint32_t n_prompt;
    const struct sampling *sampling; /* copied */
    const void *salt;                /* cache_salt bytes or NULL; copied */
    size_t salt_len;
    int64_t priority;
    const struct kv_params *kv; /* NULL: local; copied */
    void *user;                 /* comes back in every event */
};

/* Queues a request; any thread. Checks what can be checked at once: ERR_TOOLONG or ERR_RANGE (an id
 * outside the vocabulary) with a sentence that has the limit and both counts, ERR_INVAL (transfer asked
 * of an instance without it, a list of ids too long), ERR_EXISTS (a prefill with its transfer_id is in
 * hand), ERR_CLOSED (closing), ERR_LIMIT, ERR_NOMEM: then no event follows.
 * Else ends in exactly one ENGINE_END. *id names the request until then. */
int engine_submit(struct engine *e, const struct engine_request *r, uint64_t *id, struct err *err);

/* Ends a request soon: its ENGINE_END comes with this finish (FINISH_ABORT for a client that left,
 * FINISH_STOP for a stop string that the front found). Unknown ids are ignored. Any thread. */
void engine_cancel(struct engine *e, uint64_t id, enum finish finish);

/* Log-probabilities of one position. */
struct engine_logprob {
    int32_t id;
    float logprob;
    uint32_t rank;
};
struct engine_logprobs {
    struct engine_logprob chosen; /* the token itself */
    uint32_t n_top;
    struct engine_logprob *top; /* by falling probability; inside the same allocation */
    uint32_t n_want;
    struct engine_logprob *want; /* logprob_token_ids; inside the same allocation */
};

enum engine_event_kind {
    ENGINE_START,  /* first scheduled */
    ENGINE_PROMPT, /* prompt_logprobs: all of them, before the first token */
    ENGINE_TOKEN,
    ENGINE_END,
    ENGINE_RESET, /* engine_reset_prefix_cache is done; only user and status count */
};
struct engine_event {
    enum engine_event_kind kind;
    uint64_t id;
    void *user;
    double time;   /* monotonic */
    int32_t token; /* TOKEN */
    uint32_t out_index;
    struct engine_logprobs
        *logprobs; /* TOKEN; NULL if not asked for. Owned by the receiver: free() */
    struct engine_logprobs **prompt; /* PROMPT: n_prompt entries, [0] NULL; engine_prompt_free */
    uint32_t n_prompt;
    /* END; finish also in the TOKEN that ends the output */
    enum finish finish;
    int32_t stop_id; /* stop id that ended it, -1 */
    uint32_t n_cached, n_external, n_preempted;
    uint32_t n_prefill;                        /* prompt tokens computed here */
    double t_arrive, t_start, t_first, t_last; /* monotonic; 0 where it never came to it */
    struct kv_params *kv; /* what goes into the reply (PRODUCE); owned: engine_kv_free */
    int status;           /* FINISH_ERROR: why (ERR_*), with a sentence; RESET: 0 or ERR_BUSY */
    char *why;            /* owned: free(); NULL if none */
};
void engine_prompt_free(struct engine_logprobs **p, uint32_t n);
void engine_kv_free(struct kv_params *p);
void engine_event_finish(struct engine_event *ev); /* frees what the event still owns */

/* Takes up to max events; returns how many. One thread at a time. */
uint32_t engine_events(struct engine *e, struct engine_event *out, uint32_t max);

/* A decode elsewhere will not happen: ends the lease that p (as this instance answered it) names.
 * ERR_NOTFOUND if it has ended. */
int engine_kv_release(struct engine *e, const struct kv_params *p);
/* A pull that will not happen: tells the remote prefill instance to end its lease. */
int engine_kv_release_remote(struct engine *e, const struct kv_params *p);
/* A prefill that p asks for under a transfer_id was refused before engine_submit: a decode instance that
 * waits for it is told. */
void engine_kv_refuse(struct engine *e, const struct kv_params *p);
/* Whether the producer there can be reached and matches: 0 or ERR_* with a sentence. Blocks at most the
 * connect timeout. What is found is also in engine_stats (transfer.matching, .mismatching). */
int engine_kv_probe(struct engine *e, const char *host, uint16_t port, struct err *err);

/* Forgets the cached blocks when the current step has ended; any thread, waits for nothing. Then comes
 * one ENGINE_RESET with user, whose status is ERR_BUSY if some of the blocks are in use and were kept.
 * ERR_NOMEM: no event follows. */
int engine_reset_prefix_cache(struct engine *e, void *user);

struct engine_stats {
    struct sched_stats sched;
    struct transfer_stats transfer;
    uint64_t steps, step_tokens;
    double step_seconds;    /* sum */
    double last_step_end;   /* monotonic; 0 before the first */
    bool busy;              /* work is pending */
    double busy_since_step; /* seconds that work has been pending with no step ended; 0 when idle */
    uint64_t kv_failures;   /* pulls that failed */
    /* Multi-token prediction: steps of a request that had drafts, drafts in them, drafts that were
     * right, and of these those at each place. */
    uint64_t spec_drafts, spec_draft_tokens, spec_accepted_tokens;
    uint64_t spec_accepted_pos[SPEC_MAX_TOKENS];
    double transfer_seconds; /* sum over pulls */
    uint64_t transfer_bytes;
};
void engine_stats(struct engine *e, struct engine_stats *out); /* any thread; a snapshot */

/* Step sizes since the last call, for the iteration_tokens histogram: up to max of them. */
uint32_t engine_step_sizes(struct engine *e, uint32_t *out, uint32_t max);
/* Seconds of finished pulls since the last call, for the transfer histogram. */
uint32_t engine_pull_times(struct engine *e, double *out, uint32_t max);

#endif
