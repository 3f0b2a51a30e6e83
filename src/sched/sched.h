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

#include "wire/sampling.h"

struct err;
struct sched;

typedef uint64_t sched_id; /* never 0, never reused in a process */

#define SPEC_MAX_TOKENS 8 /* drafts that one step verifies of one request */

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
    bool priority; /* scheduling by request priority instead of arrival order */
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

struct sched_stats {
    uint32_t n_waiting;    /* WAIT */
    uint32_t n_waiting_kv; /* PULL and READY */
    uint32_t n_running;    /* RUN */
    uint32_t n_held;
    uint32_t blocks_total,
        blocks_used; /* used: referenced by a request (cached only is not used) */
    uint64_t preemptions;
    uint64_t prefix_queries, prefix_hits; /* tokens, first admissions only */
    uint64_t external_queries, external_hits;
    uint64_t prompt_tokens, generation_tokens;
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
