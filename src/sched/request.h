/* A request inside the scheduler: its states, and the one function that moves it. */
#ifndef SLUICE_SCHED_REQUEST_H
#define SLUICE_SCHED_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "kv/prefix.h"
#include "kv/table.h"
#include "sched/chunk.h"
#include "sched/sched.h"

struct kv_pool;

enum req_state {
    REQ_NEW,   /* being made by sched_add; in no queue */
    REQ_WAIT,  /* holds no blocks: new, or preempted and to be recomputed */
    REQ_PULL,  /* blocks for the whole prompt; a transfer is ordered or under way */
    REQ_READY, /* blocks for the whole prompt; the transfer ended; waits for a place in RUN */
    REQ_RUN,   /* takes part in steps */
    REQ_HELD,  /* over for its client; blocks stay for a remote reader */
    REQ_DONE,  /* over; a step in flight or a transfer may still use its blocks */
    REQ_GONE,  /* holds nothing, its id is forgotten; lives until its last event is read */
    REQ_N_STATES
};
const char *req_state_name(enum req_state s);

#define REQ_NO_INDEX UINT32_MAX

struct req {
    sched_id id;          /* ids rise in order of arrival */
    int64_t rank;         /* priority if that counts, else 0: lower goes first, then the older id */
    enum req_state state; /* written by req_move only */
    enum sched_role role;
    void *user;

    /* what was asked */
    struct sampling sampling;
    int32_t *eos;
    uint32_t n_eos;
    uint32_t n_prompt;
    uint32_t max_out; /* output tokens, with all limits applied; those that came with it count */
    bool give_back;   /* see sched_request */
    bool pinned;

    /* how far it is: n_computed <= n_planned <= n_all */
    int32_t *tokens;        /* prompt and output, then the drafts; room for n_prompt + max_out */
    uint32_t n_all;         /* tokens known */
    uint32_t n_planned;     /* tokens whose KV is computed or being computed by a plan in flight */
    uint32_t n_computed;    /* tokens whose KV is in the blocks */
    uint32_t n_drafts;      /* guesses of the next tokens, behind the n_all; none in flight */
    uint32_t n_inflight;    /* plans in flight that name it */
    uint32_t n_prompt_done; /* most prompt tokens ever computed or received: counted, told */

    /* its chunks, see pack.c */
    uint32_t n_chunks;      /* planned since it got its blocks */
    struct chunk_rule rule; /* while nobody else has a prompt; n 0: none */
    uint32_t rule_chunks;   /* of the rule, planned */
    uint32_t n_passed;      /* steps with others' prompts since its last chunk */
    bool alone;             /* the rule's time is measured: */
    uint32_t alone_from;    /* it began behind so many tokens, */
    double alone_since;     /* then */

    /* its blocks */
    struct kv_table table;
    struct kv_prefix prefix;

    /* the transfer of a CONSUME request */
    uint32_t hit_step; /* a pull starts after a multiple of so many blocks; >= 1 */
    bool has_first;    /* the first output token came with the request */
    int32_t first;
    bool pull_tried;   /* there is one pull in a life: after a preemption it is recomputed */
    bool pull_due;     /* the order waits for sched_next_pull */
    bool pull_ordered; /* handed out by sched_next_pull and not answered: the blocks are not ours */
    uint32_t pull_first, pull_end; /* tokens asked for */

    /* what is told about it, see event.c */
    bool admitted; /* had blocks once: its cache hits are counted */
    bool started;  /* was in RUN once */
    bool start_due, end_due;
    bool in_events;
    uint32_t n_told;    /* output tokens told */
    uint32_t end_index; /* output token that ended it, or REQ_NO_INDEX */
    enum finish finish;
    int32_t stop_id;
    uint32_t n_cached, n_external, n_preempted;
    double t_added, t_start, t_token, t_end, t_gone;

    struct req *prev, *next; /* in the queue of its state */
    struct req *event_next;
    struct req *id_next; /* in its bucket of the id index */
};

struct req_limits {
    uint32_t block_tokens, max_blocks, max_model_len;
    bool prefix_caching, priority;
};
/* A copy of r in state NEW. Errors as of sched_add. */
int req_create(struct req **out, const struct sched_request *r, const struct req_limits *l,
               struct err *e);
void req_destroy(struct req *r); /* NULL is fine; the blocks are returned already */

/* Does a go before b? */
static inline bool req_before(const struct req *a, const struct req *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->id < b->id;
}

static inline uint32_t req_blocks_for(const struct req *r, uint32_t n_tokens)
{
    return n_tokens / r->prefix.block_tokens + (n_tokens % r->prefix.block_tokens != 0);
}

static inline uint32_t req_n_out(const struct req *r)
{
    return r->n_all - r->n_prompt;
}

/* Tokens that can be planned now. 0: it waits for the token of a plan in flight. */
static inline uint32_t req_todo(const struct req *r)
{
    return r->n_all - r->n_planned;
}

/* Log-probabilities of its prompt are wanted and not all told (the first token has none): nothing
 * of it may come from the cache, because logits come from computing. */
static inline bool req_needs_prompt_logits(const struct req *r)
{
    return r->sampling.prompt_logprobs >= 0 && r->n_prompt_done + 1 < r->n_prompt;
}

/* No end token may be output token `out_index`. */
static inline bool req_ends_banned(const struct req *r, uint32_t out_index)
{
    return out_index < r->sampling.min_tokens;
}

/* Gives back all blocks and forgets all progress but the tokens. */
void req_drop_blocks(struct req *r, struct kv_pool *pool);
/* Gives the full computed blocks their keys. */
void req_publish(struct req *r, struct kv_pool *pool);

/* The mover: the only writer of state. Takes the request from the queue of its state to that of
 * the next (queue.h). */
void req_move(struct sched *s, struct req *r, enum req_state to, const char *why);

#endif
