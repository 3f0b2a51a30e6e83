/* Making a scheduler, and what its caller asks of it from outside the loop of steps. */
#include "sched/sched.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "sched/core.h"

#define MAX_INFLIGHT 1024u
#define MAX_SEQS     (1u << 20)

static int check_chunks(const struct sched_config *c, struct err *e)
{
    const struct sched_chunks *k = &c->chunks;

    if (k->policy == SCHED_CHUNK_OFF)
        return 0;
    if (k->n_stages < 2 || k->n_stages > FLOW_MAX_STAGES)
        return err_set(e, ERR_INVAL,
                       "profiling_chunk_config plans for pipeline stages, and there are %u; it "
                       "needs --pipeline-parallel-size 2 to %d",
                       k->n_stages, FLOW_MAX_STAGES);
    if (!c->chunked_prefill)
        return err_set(e, ERR_INVAL, "profiling_chunk_config needs chunked prefill");
    if (!(k->smooth > 0 && k->smooth <= 1))
        return err_set(e, ERR_INVAL, "smooth_factor is %g; it must be above 0 and at most 1",
                       k->smooth);
    if (k->min_chunk > c->max_batched_tokens)
        return err_set(e, ERR_INVAL,
                       "min_chunk is %u, above the %u tokens of a step (max_num_batched_tokens)",
                       k->min_chunk, c->max_batched_tokens);
    if (k->max_fit <= 5 || k->max_fit > EQUAL_TIME_MAX_ROWS)
        return err_set(e, ERR_INVAL, "max_fit_chunk is %u; it must be 6 to %d", k->max_fit,
                       EQUAL_TIME_MAX_ROWS);
    return 0;
}

static int check_config(const struct sched_config *c, struct err *e)
{
    if (c->block_tokens == 0 || c->block_tokens % 16 != 0)
        return err_set(e, ERR_INVAL, "the block size is %u tokens; it must be a multiple of 16",
                       c->block_tokens);
    if (c->n_blocks == 0 || c->n_blocks > KV_POOL_MAX_BLOCKS)
        return err_set(e, ERR_INVAL, "the KV cache has %u blocks; it must have 1 to %u",
                       c->n_blocks, KV_POOL_MAX_BLOCKS);
    if (c->max_model_len < 2)
        return err_set(e, ERR_INVAL, "max_model_len is %u; it must be at least 2",
                       c->max_model_len);
    if (c->max_batched_tokens == 0)
        return err_set(e, ERR_INVAL, "max_num_batched_tokens is 0; it must be at least 1");
    if (!c->chunked_prefill && c->max_batched_tokens < c->max_model_len)
        return err_set(e, ERR_INVAL,
                       "without chunked prefill a prompt is computed in one step, but "
                       "max_num_batched_tokens (%u) is less than max_model_len (%u); raise the "
                       "first, lower the second, or enable chunked prefill",
                       c->max_batched_tokens, c->max_model_len);
    if (c->max_seqs == 0 || c->max_seqs > MAX_SEQS)
        return err_set(e, ERR_INVAL, "max_num_seqs is %u; it must be 1 to %u", c->max_seqs,
                       MAX_SEQS);
    if (c->n_draft_tokens > SPEC_MAX_TOKENS)
        return err_set(e, ERR_INVAL, "%u draft tokens a step (num_speculative_tokens); at most %d",
                       c->n_draft_tokens, SPEC_MAX_TOKENS);
    if (c->max_inflight == 0 || c->max_inflight > MAX_INFLIGHT)
        return err_set(e, ERR_INVAL, "%u steps in flight; it must be 1 to %u", c->max_inflight,
                       MAX_INFLIGHT);
    if (c->short_first.enabled && c->priority)
        return err_set(e, ERR_INVAL, "short_request_first_config goes with the policy fcfs only");
    return check_chunks(c, e);
}

static int make_pace(struct sched *s)
{
    if (s->cfg.chunks.policy == SCHED_CHUNK_OFF)
        return 0;
    s->pace = malloc(sizeof *s->pace);
    if (!s->pace)
        return ERR_NOMEM;
    pace_init(s->pace, &s->cfg);
    return 0;
}

static int make_flights(struct sched *s)
{
    s->flight = calloc(s->cfg.max_inflight, sizeof *s->flight);
    if (!s->flight)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < s->cfg.max_inflight; i++) {
        struct flight *f = &s->flight[i];

        f->entry = calloc(s->cfg.max_seqs, sizeof *f->entry);
        f->req = calloc(s->cfg.max_seqs, sizeof(struct req *));
        if (!f->entry || !f->req)
            return ERR_NOMEM;
    }
    return 0;
}

int sched_create(struct sched **out, const struct sched_config *c, struct err *e)
{
    struct sched *s;
    int st = check_config(c, e);

    if (st < 0)
        return st;
    s = calloc(1, sizeof *s);
    if (!s)
        return err_set(e, ERR_NOMEM, "no memory for the scheduler");
    s->cfg = *c;
    if ((st = kv_pool_create(&s->pool, c->n_blocks)) < 0 || (st = make_flights(s)) < 0 ||
        (st = make_pace(s)) < 0) {
        sched_destroy(s);
        return err_set(e, st, "no memory to keep the books of %u KV blocks and %u steps",
                       c->n_blocks, c->max_inflight);
    }
    *out = s;
    return 0;
}

static void destroy_queue(struct sched *s, struct queue *q)
{
    for (struct req *r; (r = q->head);) {
        queue_remove(q, r);
        kv_table_clear(&r->table, s->pool);
        req_destroy(r);
    }
}

void sched_destroy(struct sched *s)
{
    if (!s)
        return;
    for (int i = 0; i < REQ_N_STATES; i++)
        destroy_queue(s, &s->queue[i]);
    for (uint32_t i = 0; s->flight && i < s->cfg.max_inflight; i++) {
        free(s->flight[i].entry);
        free(s->flight[i].req);
    }
    free(s->flight);
    free(s->index.bucket);
    free(s->pace);
    kv_pool_destroy(s->pool);
    free(s);
}

int sched_add(struct sched *s, const struct sched_request *request, double now, sched_id *out,
              struct err *e)
{
    struct req_limits limits = { .block_tokens = s->cfg.block_tokens,
                                 .max_blocks = s->cfg.n_blocks,
                                 .max_model_len = s->cfg.max_model_len,
                                 .prefix_caching = s->cfg.prefix_caching,
                                 .priority = s->cfg.priority };
    struct req *r = NULL;
    int st;

    if (s->cfg.max_waiting && s->queue[REQ_WAIT].n >= s->cfg.max_waiting)
        return err_set(e, ERR_LIMIT, "%u requests are waiting, the most allowed; try again later",
                       s->queue[REQ_WAIT].n);
    st = req_create(&r, request, &limits, e);
    if (st < 0)
        return st;
    r->id = s->last_id + 1;
    r->t_added = now;
    st = req_index_add(&s->index, r);
    if (st < 0) {
        req_destroy(r);
        return err_set(e, st, "no memory for one request more");
    }
    s->last_id = r->id;
    s->now = now;
    req_move(s, r, REQ_WAIT, "added");
    *out = r->id;
    return 0;
}

/* Its client has had its END already. */
static void end_hold(struct sched *s, struct req *r, const char *why)
{
    req_move(s, r, REQ_DONE, why);
    sched_retire(s, r);
}

int sched_abort(struct sched *s, sched_id id, enum finish finish, double now)
{
    struct req *r = req_index_find(&s->index, id);

    if (!r || r->state == REQ_DONE)
        return ERR_NOTFOUND;
    s->now = now;
    if (r->state == REQ_HELD)
        end_hold(s, r, "aborted while held");
    else
        sched_finish(s, r, finish, "aborted");
    return 0;
}

int sched_held(const struct sched *s, sched_id id, const uint32_t **blocks, uint32_t *n_blocks,
               uint32_t *n_tokens)
{
    const struct req *r = req_index_find(&s->index, id);

    if (!r || r->state != REQ_HELD)
        return ERR_NOTFOUND;
    *blocks = r->table.block;
    *n_blocks = r->table.n;
    *n_tokens = r->n_computed;
    return 0;
}

int sched_release(struct sched *s, sched_id id, double now)
{
    struct req *r = req_index_find(&s->index, id);

    if (!r || r->state != REQ_HELD)
        return ERR_NOTFOUND;
    s->now = now;
    end_hold(s, r, "released");
    return 0;
}

void sched_stats(const struct sched *s, struct sched_stats *out)
{
    *out = s->count;
    out->n_waiting = s->queue[REQ_WAIT].n;
    out->n_waiting_kv = s->queue[REQ_PULL].n + s->queue[REQ_READY].n;
    out->n_running = s->queue[REQ_RUN].n;
    out->n_held = s->queue[REQ_HELD].n;
    if (s->pace)
        out->chunks = s->pace->stats;
    out->blocks_total = kv_pool_total(s->pool);
    out->blocks_used = kv_pool_total(s->pool) - kv_pool_free(s->pool);
}

int sched_reset_prefix_cache(struct sched *s)
{
    return kv_pool_forget_free(s->pool) > 0 ? ERR_BUSY : 0;
}

void sched_set_trace(struct sched *s, sched_trace_fn *fn, void *arg)
{
    s->trace = fn;
    s->trace_arg = arg;
}

int sched_set_latency(struct sched *s, const struct stage_time *stages, uint32_t n,
                      const struct stage_link *link, struct err *e)
{
    return s->pace ? pace_set_latency(s->pace, stages, n, link, e) : 0;
}

void sched_note_times(struct sched *s, uint64_t seq, const double *seconds, uint32_t n)
{
    if (s->pace)
        pace_note_times(s->pace, seq, seconds, n);
}

int sched_next_warning(struct sched *s, struct err *out)
{
    if (!s->pace || !s->pace->warn_due)
        return 0;
    s->pace->warn_due = false;
    pace_warning(s->pace, out);
    return 1;
}
