/* The engine core: which tokens are computed in the next step, and which KV blocks they use.
 *
 * A pure state machine. Requests, step results and KV events go in; step plans, pull orders and
 * events come out. It owns no socket, clock or thread; time is an argument (seconds, monotonic).
 * Not thread-safe: one caller. The same object code runs in the live engine, in unit tests and in
 * the simulator.
 *
 *     sched_add --> WAIT --> RUN <-> WAIT (preempted: recompute)
 *                     |        |
 *                     |        +--> HELD (prefill for a remote decode: blocks pinned) --> gone
 *                     +--> PULL (blocks reserved, KV on its way) --> READY --> RUN
 *     any --> DONE (finished or aborted; gone when no step in flight names it)
 *
 * Loop of the caller:
 *     sched_add / sched_abort / sched_pull_done / sched_release   as things happen
 *     while ((p = sched_step(s, now)))  run p (up to max_inflight plans at a time)
 *     sched_commit(s, result, now)      for each finished plan, in the order of the plans
 *     sched_next_pull, sched_next_event until they return 0 */
#ifndef SLUICE_SCHED_SCHED_H
#define SLUICE_SCHED_SCHED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "sched/stage_time.h"
#include "wire/sampling.h"

struct err;
struct sched;

typedef uint64_t sched_id; /* never 0, never reused in a process */

#define SPEC_MAX_TOKENS 8 /* drafts that one step verifies of one request */

/* How prompts are cut into chunks where a pipeline computes them (docs/chunk-planning.md). */
enum sched_chunk_policy {
    SCHED_CHUNK_OFF,        /* as many tokens as a step may have; nothing is measured */
    SCHED_CHUNK_STATIC,     /* the same, measured */
    SCHED_CHUNK_OPTIMAL,    /* planned for each prompt, so that no stage waits */
    SCHED_CHUNK_EQUAL_TIME, /* chunks that take as long as the first one: the reference's way */
};

/* All zeros: off. */
struct sched_chunks {
    enum sched_chunk_policy policy;
    uint32_t n_stages;  /* pipeline stages; at least 2 unless off */
    double smooth;      /* share of the prediction in a chunk's size, the rest is the step's token
                         * budget; above 0, 1 at most */
    uint32_t min_chunk; /* tokens; 0: chosen (from the model for OPTIMAL, 4096 for EQUAL_TIME) */
    bool timing;        /* measured steps correct the model */
    uint32_t max_fit;   /* EQUAL_TIME: steps after which the model is left as it is; above 5 */
};

/* Short prompts go before long ones in the queue. All zeros: off. */
struct sched_short_first {
    bool enabled;
    uint32_t threshold;   /* most prompt tokens of a short one */
    double long_max_wait; /* seconds after which the oldest long one goes first; 0: never */
};

struct sched_config {
    uint32_t block_tokens;           /* multiple of 16 */
    uint32_t n_blocks;               /* KV blocks of the pool, all usable */
    uint32_t max_model_len;          /* prompt + output never exceeds this */
    uint32_t max_batched_tokens;     /* of one step */
    uint32_t max_seqs;               /* requests in one step, and RUN at a time */
    uint32_t max_waiting;            /* 0: no limit; sched_add gives ERR_LIMIT beyond */
    uint32_t max_inflight;           /* step plans in flight at most (pipeline stages); >= 1 */
    uint32_t long_prefill_threshold; /* 0: off; else most tokens of one request's chunk */
    uint32_t n_draft_tokens;         /* 0: off; else most drafts a step verifies of a request */
    bool chunked_prefill;            /* false: a prompt is computed in one step or waits */
    bool prefix_caching;
    bool priority;              /* scheduling by request priority instead of arrival order */
    struct sched_chunks chunks; /* needs chunked_prefill */
    struct sched_short_first short_first; /* not with priority */
};

/* Which side of a transfer a request is on. */
enum sched_role {
    SCHED_LOCAL,   /* prefill and decode here */
    SCHED_PRODUCE, /* prefill here, then hold the blocks for a remote decode */
    SCHED_CONSUME, /* the prompt's KV is pulled from a remote prefill */
};

struct sched_request {
    const int32_t *prompt; /* copied; >= 1 ids */
    uint32_t n_prompt;
    const struct sampling *sampling; /* deep-copied */
    const int32_t *eos_ids;          /* copied; the model's end tokens */
    uint32_t n_eos;
    /* cache_salt and other extras, tagged by kind by the caller; part of every block hash. Copied. */
    const void *salt;
    size_t salt_len;
    int64_t priority; /* lower runs first */
    enum sched_role role;
    /* CONSUME: a cached prefix counts in multiples of so many tokens (the producer's block size, so
     * that a pull starts on a border of both); 0: off. */
    uint32_t hit_multiple;
    /* CONSUME: the output token that the prefill chose, if it told. It is this request's first: it is
     * told when the pull is ordered, and the KV of the whole prompt is pulled. Not used where
     * log-probabilities are wanted, which are to be computed here, or min_tokens is set. */
    bool has_first;
    int32_t first;
    /* The last n_output of the prompt are output tokens that were told elsewhere: what is generated here goes
     * on behind them, and max_tokens counts them (but for PRODUCE, which generates one in any case).
     * Less than n_prompt. */
    uint32_t n_output;
    /* CONSUME: where another request needs its blocks it ends with FINISH_RECOMPUTE, to go on elsewhere,
     * and is not computed again here. */
    bool give_back;
    /* PRODUCE: its blocks are read while it is computed: it never gives way to another request. As it has
     * room for its whole prompt when it leaves the queue, it needs no more to come to its end. */
    bool pinned;
    void *user; /* the caller's; comes back in events */
};

/* Copies what it needs. ERR_TOOLONG if the prompt (or prompt + 1 token) exceeds max_model_len or can
 * never fit the pool (the sentence has both numbers), ERR_LIMIT, ERR_NOMEM. max_tokens above the
 * room left is capped. */
int sched_add(struct sched *s, const struct sched_request *r, double now, sched_id *out,
              struct err *e);

/* Ends a request whatever its state; its blocks return as soon as no step in flight and no pull uses
 * them. Emits SCHED_EV_END unless finish is FINISH_NONE, or it had its END already (HELD).
 * ERR_NOTFOUND for an id that is DONE or gone. */
int sched_abort(struct sched *s, sched_id id, enum finish finish, double now);

/* One request's part of a step. Pointers are borrowed until the plan is committed.
 *
 * Its last n_draft tokens are drafts: guesses of what follows all_tokens, made in the step before. The
 * step chooses a token after the last one known, and after each draft that was chosen before it: so
 * the output is what it would be without drafts. Only a step with `sample` has drafts. */
struct plan_entry {
    sched_id id;
    uint32_t start;         /* position of the first token */
    uint32_t n;             /* tokens computed in this step, drafts included */
    uint32_t n_draft;       /* less than n */
    uint32_t want_drafts;   /* most guesses that the next step can use; 0 without sample */
    const int32_t *tokens;  /* their ids, n of them */
    const uint32_t *blocks; /* block ids from position 0 on */
    uint32_t n_blocks;
    bool sample;          /* the logits of the last token (of those after it, with drafts) choose */
    uint32_t out_index;   /* of the first token chosen: the position of its random number */
    bool prompt_logprobs; /* log-probabilities of tokens start+1 .. start+n (those of the prompt) */
    const struct sampling *sampling;
    const int32_t *all_tokens; /* prompt and output so far, for penalties; then the drafts */
    uint32_t n_prompt, n_all;  /* n_all: without the drafts */
    const int32_t *eos_ids;    /* banned, with the stop ids, before sampling->min_tokens outputs */
    uint32_t n_eos;
    void *user;
};

struct plan {
    uint64_t seq; /* 1, 2, 3, ... */
    uint32_t n_entries;
    uint32_t n_tokens; /* sum of n */
    uint32_t n_prefill_tokens;
    const struct plan_entry *entries;
};

/* The next plan, or NULL when there is nothing to do (or max_inflight plans are out). Borrowed until
 * its commit. Never an empty plan. Decode first, then prefill in order of arrival. */
const struct plan *sched_step(struct sched *s, double now);

/* What a step gave one entry. */
struct step_choice {
    uint32_t n; /* tokens: 0 without `sample`, else 1 and one for each draft accepted */
    int32_t token[1 + SPEC_MAX_TOKENS]; /* all but the last are the entry's drafts */
    uint32_t n_draft;                   /* guesses of what follows; at most want_drafts */
    int32_t draft[SPEC_MAX_TOKENS];
};

struct step_result {
    uint64_t seq;                     /* of the plan */
    const struct step_choice *choice; /* one an entry, in their order */
    bool failed; /* the step did not happen: its requests end with FINISH_ERROR */
};
void sched_commit(struct sched *s, const struct step_result *r, double now);

/* Remote KV. A CONSUME request at the head of the queue gets blocks for its whole prompt, keeps the
 * prefix that this instance has cached, and orders a pull of the rest. */
struct sched_pull {
    sched_id id;
    void *user;
    uint32_t first_token; /* tokens before this are here already; a multiple of block_tokens */
    uint32_t n_tokens;    /* KV wanted for tokens first_token .. n_tokens-1: the whole prompt if its
                             * first output token is known, else all but its last token, which is
                             * computed here. Equal: nothing to pull, only to release */
    const uint32_t *blocks; /* block ids from position 0 on; borrowed until sched_pull_done */
    uint32_t n_blocks;
};
/* 1 and *out, or 0. An order with nothing to pull must be answered with sched_pull_done too. */
int sched_next_pull(struct sched *s, struct sched_pull *out);

enum sched_pull_result {
    SCHED_PULL_OK,        /* all tokens are in the blocks */
    SCHED_PULL_RECOMPUTE, /* nothing may be used of the pulled blocks: prefill here */
    SCHED_PULL_FAIL,      /* end with FINISH_ERROR */
};
/* Also the fence after an abort: blocks of an aborted PULL request return now, never before. */
void sched_pull_done(struct sched *s, sched_id id, enum sched_pull_result r, double now);

/* A HELD request's blocks. Borrowed until sched_release. ERR_NOTFOUND if it is not HELD. */
int sched_held(const struct sched *s, sched_id id, const uint32_t **blocks, uint32_t *n_blocks,
               uint32_t *n_tokens);
/* Ends the hold (done, aborted or expired). ERR_NOTFOUND if it is not HELD. */
int sched_release(struct sched *s, sched_id id, double now);

enum sched_event_kind {
    SCHED_EV_START, /* left the queue for the first time */
    SCHED_EV_TOKEN, /* an output token */
    SCHED_EV_END,   /* finished; `finish` says how. A HELD request has ended for its client */
    SCHED_EV_GONE,  /* the id is forgotten and every block returned: user may be freed */
};
struct sched_event {
    enum sched_event_kind kind;
    sched_id id;
    void *user;
    double time;
    int32_t token;      /* TOKEN */
    uint32_t out_index; /* TOKEN */
    enum finish finish; /* END; TOKEN carries the finish of the last token too */
    int32_t stop_id;    /* the stop id that ended it, -1: EOS or none */
    uint32_t n_cached;  /* START, END: prompt tokens found in the prefix cache at first admission */
    uint32_t n_external;  /* START, END: prompt tokens that came by transfer */
    uint32_t n_preempted; /* END */
    bool held;            /* END: blocks stay until sched_release */
};
/* 1 and *out, or 0. */
int sched_next_event(struct sched *s, struct sched_event *out);

/* Chunk planning. The model of the stages, as a start-up profile has fitted it or as it was kept from
 * another day: one for each stage, milliseconds and tokens (stage_time.h). link may be NULL: passing on
 * takes no time. ERR_INVAL with a sentence, and nothing changed, if n is not the number of stages or
 * a value is not within 0 to STAGE_TIME_MOST, or a chunk would take no time. Nothing to do for
 * policies that predict nothing. */
int sched_set_latency(struct sched *s, const struct stage_time *stages, uint32_t n,
                      const struct stage_link *link, struct err *e);
/* What the step with this seq took on each stage, in seconds; before or after its commit, in any order.
 * Steps that are long over are forgotten: then nothing happens. */
void sched_note_times(struct sched *s, uint64_t seq, const double *seconds, uint32_t n);
/* A sentence for the log, told once; 0 if there is none. */
int sched_next_warning(struct sched *s, struct err *out);

enum sched_chunk_mode {
    SCHED_MODE_OFF,
    SCHED_MODE_STATIC,     /* as asked */
    SCHED_MODE_FALLBACK,   /* no prediction can be used: fixed chunks */
    SCHED_MODE_EQUAL_TIME, /* as asked */
    SCHED_MODE_PLANNED,    /* the plan of one prompt alone, or steps shared by time */
};
const char *sched_chunk_mode_name(enum sched_chunk_mode m); /* "off", "static", ... */

/* What is to be shown of chunk planning. Times in milliseconds, of the slowest stage. */
struct sched_chunk_stats {
    enum sched_chunk_mode mode;
    struct stage_time fit; /* of the slowest stage; zeros without a model */
    double load;           /* factor on it that a busy machine makes; 1 */
    double
        fit_error;  /* mean relative error of the last steps, of the stage furthest off; 1 before */
    uint64_t plans; /* prompts that a plan was made for */
    uint64_t fixed; /* of these, those for which fixed chunks were as good */
    uint32_t
        plan_chunks; /* the last plan: how many, the first and the last one, its time, and what */
    uint32_t plan_first, plan_last; /* no plan can be faster than */
    double plan_ms, bound_ms;
    double target_ms;                         /* of the last step that was shared by time */
    uint64_t n_measured;                      /* steps with prompt tokens whose times came */
    double predicted_ms, measured_ms;         /* of the last of them */
    double predicted_sum_ms, measured_sum_ms; /* of all of them that were predicted */
};

struct sched_stats {
    uint32_t n_waiting;    /* WAIT */
    uint32_t n_waiting_kv; /* PULL and READY */
    uint32_t n_running;    /* RUN */
    uint32_t n_held;
    uint32_t blocks_total,
        blocks_used; /* used: referenced by a request (cached only is not used) */
    uint64_t preemptions;
    uint64_t given_back;                  /* requests that ended with FINISH_RECOMPUTE */
    uint64_t prefix_queries, prefix_hits; /* tokens, first admissions only */
    uint64_t external_queries, external_hits;
    uint64_t prompt_tokens, generation_tokens;
    struct sched_chunk_stats chunks;
};
void sched_stats(const struct sched *s, struct sched_stats *out);

/* Forgets all cached blocks that no request uses. Returns 0, or ERR_BUSY if some are in use (those
 * that are not in use are forgotten all the same). */
int sched_reset_prefix_cache(struct sched *s);

/* Every move of every request goes through one function that calls this (NULL: off). */
typedef void sched_trace_fn(void *arg, double now, sched_id id, const char *from, const char *to,
                            const char *why);
void sched_set_trace(struct sched *s, sched_trace_fn *fn, void *arg);

int sched_create(struct sched **out, const struct sched_config *c, struct err *e);
void sched_destroy(struct sched *s); /* NULL is fine */

#endif
