#include "sched/request.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "kv/pool.h"
#include "sched/core.h"

static const char *const state_names[REQ_N_STATES] = {
    [REQ_NEW] = "NEW", [REQ_WAIT] = "WAIT", [REQ_PULL] = "PULL", [REQ_READY] = "READY",
    [REQ_RUN] = "RUN", [REQ_HELD] = "HELD", [REQ_DONE] = "DONE", [REQ_GONE] = "GONE",
};

#define TO(state) (1u << REQ_##state)

/* The legal moves. */
static const unsigned state_next[REQ_N_STATES] = {
    [REQ_NEW] = TO(WAIT),
    [REQ_WAIT] = TO(PULL) | TO(RUN) | TO(DONE),
    [REQ_PULL] = TO(READY) | TO(DONE),
    [REQ_READY] = TO(RUN) | TO(WAIT) | TO(DONE),
    [REQ_RUN] = TO(WAIT) | TO(HELD) | TO(DONE),
    [REQ_HELD] = TO(DONE),
    [REQ_DONE] = TO(GONE),
    [REQ_GONE] = 0,
};

const char *req_state_name(enum req_state s)
{
    assert(s < REQ_N_STATES);
    return state_names[s];
}

void req_move(struct sched *s, struct req *r, enum req_state to, const char *why)
{
    enum req_state from = r->state;

    assert(state_next[from] & 1u << to);
    if (from != REQ_NEW)
        queue_remove(&s->queue[from], r);
    r->state = to;
    queue_insert(&s->queue[to], r);
    if (s->trace)
        s->trace(s->trace_arg, s->now, r->id, state_names[from], state_names[to], why);
}

/* Output tokens that the context and the pool leave room for. The last output token is never
 * computed, so it needs no place in the pool. */
static int room_for_output(uint32_t *out, const struct sched_request *r, const struct req_limits *l,
                           struct err *e)
{
    uint64_t pool_tokens = (uint64_t)l->max_blocks * l->block_tokens;
    uint32_t least = r->sampling->prompt_only ? 0 : 1;
    uint32_t want = r->sampling->max_tokens - (r->role == SCHED_PRODUCE ? 0 : r->n_output);
    uint64_t room;

    if ((uint64_t)r->n_prompt + least > l->max_model_len)
        return err_set(e, ERR_TOOLONG,
                       "the prompt has %u tokens and at least %u must be generated, but this "
                       "model's context ends at %u tokens (max_model_len); shorten the prompt",
                       r->n_prompt, least, l->max_model_len);
    if (r->n_prompt > pool_tokens)
        return err_set(e, ERR_TOOLONG,
                       "the prompt has %u tokens, but the whole KV cache has room for %llu (%u "
                       "blocks of %u); shorten the prompt or give the server more KV blocks",
                       r->n_prompt, (unsigned long long)pool_tokens, l->max_blocks,
                       l->block_tokens);
    room = l->max_model_len - r->n_prompt;
    if (room > pool_tokens + 1 - r->n_prompt)
        room = pool_tokens + 1 - r->n_prompt;
    if (r->role == SCHED_PRODUCE && room > 1)
        room = 1; /* the remote side goes on from the prompt's KV */
    if (least == 0)
        room = 0;
    *out = r->n_output + (room < want ? (uint32_t)room : want);
    return 0;
}

static int check_request(const struct sched_request *r, struct err *e)
{
    if (r->n_prompt == 0)
        return err_set(e, ERR_INVAL, "the prompt has no tokens; give at least one");
    if (r->sampling->max_tokens == 0 && !r->sampling->prompt_only)
        return err_set(e, ERR_INVAL, "max_tokens is 0; it must be at least 1");
    if (r->n_output >= r->n_prompt)
        return err_set(e, ERR_INVAL, "%u output tokens came with a prompt of none", r->n_output);
    if (r->n_output && r->role != SCHED_PRODUCE && r->n_output >= r->sampling->max_tokens)
        return err_set(e, ERR_INVAL, "%u output tokens came with the request, max_tokens is %u",
                       r->n_output, r->sampling->max_tokens);
    return 0;
}

static int copy_ids(int32_t **out, const int32_t *ids, uint32_t n, size_t room)
{
    *out = malloc((room ? room : 1) * sizeof **out);
    if (!*out)
        return ERR_NOMEM;
    if (n)
        memcpy(*out, ids, n * sizeof *ids);
    return 0;
}

/* Everything that r points to, sized for its whole life: nothing is allocated for it later. */
static int fill(struct req *r, const struct sched_request *from, const struct req_limits *l)
{
    uint32_t most = r->n_prompt + r->max_out; /* the last output token has no KV */
    uint32_t n_kv = r->max_out ? most - 1 : most;
    uint32_t n_keys = l->prefix_caching ? n_kv / l->block_tokens : 0;
    int st;

    if ((st = kv_prefix_init(&r->prefix, n_keys, l->block_tokens, from->salt, from->salt_len)) <
            0 ||
        (st = kv_table_init(&r->table, req_blocks_for(r, n_kv))) < 0 ||
        (st = copy_ids(&r->tokens, from->prompt, from->n_prompt, most)) < 0 ||
        (st = copy_ids(&r->eos, from->eos_ids, from->n_eos, from->n_eos)) < 0 ||
        (st = sampling_copy(&r->sampling, from->sampling)) < 0)
        return st;
    return 0;
}

/* The least number of whole blocks that is a multiple of so many tokens. */
static uint32_t hit_step_of(uint32_t multiple, uint32_t block_tokens)
{
    uint32_t a = multiple, b = block_tokens;

    if (multiple == 0)
        return 1;
    while (b > 0) { /* Euclid: a becomes what both can be divided by */
        uint32_t rest = a % b;

        a = b;
        b = rest;
    }
    return multiple / a;
}

/* May the first output token be one that was chosen elsewhere? A proxy takes min_tokens out of what it
 * asks of the prefill, so an end token may have been chosen that is banned here. */
static bool takes_first(const struct sampling *p)
{
    return p->min_tokens == 0 && p->logprobs < 0 && p->prompt_logprobs < 0 && p->n_want == 0 &&
           !p->prompt_only;
}

int req_create(struct req **out, const struct sched_request *from, const struct req_limits *l,
               struct err *e)
{
    struct req *r;
    uint32_t max_out = 0;
    int st;

    if ((st = check_request(from, e)) < 0 || (st = room_for_output(&max_out, from, l, e)) < 0)
        return st;
    r = calloc(1, sizeof *r);
    if (!r)
        return err_set(e, ERR_NOMEM, "no memory for a request of %u tokens", from->n_prompt);
    sampling_init(&r->sampling);
    r->role = from->role;
    r->rank = l->priority ? from->priority : 0;
    r->user = from->user;
    r->n_prompt = from->n_prompt - from->n_output;
    r->n_all = from->n_prompt;
    r->n_told = from->n_output;
    r->pinned = from->pinned && from->role == SCHED_PRODUCE;
    r->give_back = from->give_back && from->role == SCHED_CONSUME;
    r->max_out = max_out;
    r->n_eos = from->n_eos;
    r->hit_step = hit_step_of(from->hit_multiple, l->block_tokens);
    r->has_first = from->role == SCHED_CONSUME && from->has_first && takes_first(from->sampling);
    r->first = from->first;
    r->end_index = REQ_NO_INDEX;
    r->stop_id = -1;
    st = fill(r, from, l);
    if (st < 0) {
        req_destroy(r);
        return err_set(e, st, "no memory for a request of %u tokens", from->n_prompt);
    }
    *out = r;
    return 0;
}

void req_destroy(struct req *r)
{
    if (!r)
        return;
    kv_prefix_finish(&r->prefix);
    kv_table_finish(&r->table);
    sampling_finish(&r->sampling);
    free(r->tokens);
    free(r->eos);
    free(r);
}

void req_drop_blocks(struct req *r, struct kv_pool *pool)
{
    assert(r->n_inflight == 0 && !r->pull_ordered);
    kv_table_clear(&r->table, pool);
    kv_prefix_unpublish(&r->prefix);
    r->n_planned = r->n_computed = r->n_drafts = 0;
    r->n_chunks = r->rule.n = r->n_passed = 0;
    r->alone = false;
}

void req_publish(struct req *r, struct kv_pool *pool)
{
    kv_prefix_publish(&r->prefix, pool, &r->table, r->tokens,
                      r->n_computed / r->prefix.block_tokens);
}
