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
    uint16_t port;         /* of rank 0, rank r has port + r; 0: any */
    const char *engine_id; /* NULL: one is made */
    const char *secret;
    double lease_seconds, pull_timeout, connect_timeout;
    bool checksums;
    enum kv_failure on_failure;
    /* What the configuration says of the instances on the other side (transfer.h). */
    struct transfer_shape producers, consumers;
    /* Producer: a prompt whose transfer_id is named goes out layer by layer while it is computed. */
    bool layerwise;
};

#define ENGINE_MAX_STAGES 64

/* The ranks of an instance: pp x tp processes that run the same step plans, each on its part of the
 * model. Rank = stage * tp + place in the stage; rank 0 has the front and the engine core, the others run
 * engine_worker_serve. All zeros: one process is all.
 *
 * A data-parallel group is dp_size such instances, each with an engine core of its own. Only where
 * they share experts do their ranks meet as one group; there, rank r of instance d is number
 * (d * pp * tp + r). */
struct engine_ranks {
    uint32_t pp, tp; /* 0 counts as 1 */
    uint32_t rank;
    uint32_t stage_layers[ENGINE_MAX_STAGES]; /* all 0: evenly; else their sum is the model's */
    const char *host;                         /* this process's address */
    const char *master_host;                  /* where rank 0 waits for the others */
    uint16_t master_port;
    int listen_fd; /* rank 0: of group_listen, the engine's from then on; else -1 */
    const char *secret;
    double meet_seconds; /* 0: 120 */
    double step_seconds; /* 0: 300. A step that takes longer ends the instance */
    bool expert_parallel;
    bool sequence_parallel, overlap_shared_expert; /* model.h, struct model_part */
    uint32_t head_ranks; /* data-parallel ranks that share the head; 0: none */

    uint32_t dp_size, dp_rank; /* 0 counts as 1 */
    const char *dp_host;       /* where instance 0 waits for the others */
    uint16_t dp_port;
};

#define ENGINE_STEP_PARTS 16

/* A step by the clock of rank 0 (clock_now); that of another host is accounted for. */
struct engine_step_times {
    uint64_t seq;
    uint32_t n_tokens, n_prefill_tokens;
    /* Of its requests (submit's id) the first ones: tokens in this step, behind so many. */
    uint32_t n_requests, n_parts;
    struct engine_step_part {
        uint64_t id;
        uint32_t tokens, history;
    } part[ENGINE_STEP_PARTS];
    uint32_t n_stages;
    struct engine_stage_time {
        double start, end; /* of computing; what it waited for states is not in it */
    } stage[ENGINE_MAX_STAGES];
};

struct engine_options {
    struct model_options model;
    struct engine_ranks ranks;
    struct k_options kernel;
    struct sched_config sched; /* n_blocks 0: sized by memory; max_model_len 0: the model's */
    double memory_fraction;    /* of the memory that is free after loading, for the KV pool */
    uint64_t kv_bytes;         /* 0: by memory_fraction; else exactly so many for the pool */
    struct engine_kv_options kv;
    /* Multi-token prediction (model.mtp must be set): drafts verified in a step of each request, at most
     * SPEC_MAX_TOKENS; 0: off. The output is the same, only sooner. */
    uint32_t n_draft_tokens;
    double profile_seconds; /* to measure the stages in, where sched.chunks plans by that; 0: 10 */
    double step_delay;      /* seconds added to each step of each stage, for tests; 0 */
    /* When each stage computed a step; called on the engine thread after it. NULL: not wanted. */
    void (*timeline)(void *arg, const struct engine_step_times *t);
    void *timeline_arg;
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

/* Runs a rank other than 0: meets the others, loads its part of the model, does what rank 0 plans until
 * that leaves. The calling thread computes. opt is the same on all ranks but for ranks.rank and
 * ranks.host; what rank 0 decides (blocks of the pool) comes from there. Returns 0 when told to end,
 * or why it ended (the sentence names the rank that is gone). */
int engine_worker_serve(const struct engine_options *opt, struct err *e);

/* NULL while all is well; else why the instance can do nothing any more: a rank has ended (the sentence has
 * its number, place and process id), or a step took too long. All requests have ended with an error,
 * and notify was called. Stays valid until engine_close. Any thread. */
const char *engine_broken(const struct engine *e);
/* Whether requests are refused for now, with the sentence: a rank of the data-parallel group that steps are
 * made with is not there. It may come back. Any thread. */
bool engine_is_apart(const struct engine *e, char *why, size_t room);

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
    bool give_back;             /* sched.h, struct sched_request */
    void *user;                 /* comes back in every event */
};

/* Queues a request; any thread. Checks what can be checked at once: ERR_TOOLONG or ERR_RANGE (an id
 * outside the vocabulary) with a sentence that has the limit and both counts, ERR_INVAL (transfer asked
 * of an instance without it, a list of ids too long), ERR_EXISTS (a prefill with its transfer_id is in
 * hand), ERR_CLOSED (closing), ERR_BUSY (engine_is_apart), ERR_LIMIT, ERR_NOMEM: then no event follows.
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

#define ENGINE_MAX_DP 1024 /* instances of a data-parallel group */

/* The data-parallel group. meetings: times that all ranks have met; waves and steps: since the last of
 * them, equal on all ranks; all 0 where the instances do not go in step. */
struct engine_dp_stats {
    uint32_t rank, size; /* size 0: no group */
    bool up[ENGINE_MAX_DP];
    uint64_t meetings, waves, steps;
};

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
    uint32_t n_ranks, n_stages;
    double stage_seconds[ENGINE_MAX_STAGES]; /* each stage computed, sum */
    double stage_bubble[ENGINE_MAX_STAGES];  /* each waited while others had work, sum */
    struct engine_dp_stats dp;
};
void engine_stats(struct engine *e, struct engine_stats *out); /* any thread; a snapshot */

/* Step sizes since the last call, for the iteration_tokens histogram: up to max of them. */
uint32_t engine_step_sizes(struct engine *e, uint32_t *out, uint32_t max);
/* Seconds of finished pulls since the last call, for the transfer histogram. */
uint32_t engine_pull_times(struct engine *e, double *out, uint32_t max);

#endif
