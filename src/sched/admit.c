/* Admission: who gets blocks, and where a prompt's KV comes from.
 *
 * A request is admitted with blocks for everything it has to compute, less what the prefix cache
 * has, so a prefill never stops for lack of blocks: only decoding grows. Beyond that, admission
 * leaves free what those already in will need next; otherwise a newcomer would be let in only to
 * be preempted, or make others be. */
#include <assert.h>

#include "sched/core.h"

/* Blocks that stay free for each request in, as far as it can still grow. A transfer's blocks
 * cannot be taken back before it ends, so it leaves more. */
#define HEADROOM_RUN  1
#define HEADROOM_PULL 2

static bool wants_pull(const struct req *r)
{
    return r->role == SCHED_CONSUME && !r->pull_tried;
}

static uint32_t growth_of(const struct queue *q, uint32_t most)
{
    uint32_t sum = 0;

    for (const struct req *r = q->head; r; r = r->next) {
        uint32_t left = r->table.cap - r->table.n;

        sum += left < most ? left : most;
    }
    return sum;
}

static uint32_t headroom(const struct sched *s, uint32_t each)
{
    return growth_of(&s->queue[REQ_RUN], each) + growth_of(&s->queue[REQ_READY], each) +
           growth_of(&s->queue[REQ_PULL], each);
}

/* Counted at the first admission only: a preempted request asks again for what it had. */
static void count_first_admission(struct sched *s, struct req *r, uint32_t n_cached, bool asked)
{
    if (r->admitted)
        return;
    r->admitted = true;
    r->n_cached = n_cached;
    if (asked) {
        s->count.prefix_queries += r->n_all;
        s->count.prefix_hits += n_cached;
    }
    if (r->role == SCHED_CONSUME)
        s->count.external_queries += r->n_all - n_cached;
}

/* The cached prefix, as far as it may be used: at least the last token is left to compute, and a
 * pull starts where the other side's blocks do too. */
static struct kv_match match(struct sched *s, struct req *r)
{
    uint32_t step = wants_pull(r) ? r->hit_step : 1;
    uint32_t most = (r->n_all - 1) / s->cfg.block_tokens;
    struct kv_match m = kv_prefix_match(&r->prefix, s->pool, r->tokens, most);

    if (m.n % step != 0)
        m = kv_prefix_match(&r->prefix, s->pool, r->tokens, m.n - m.n % step);
    return m;
}

/* An output token that comes with the pull, and that others follow: it will be computed. */
static uint32_t first_to_come(const struct req *r)
{
    return wants_pull(r) && r->has_first && r->max_out > 1;
}

/* Blocks for all tokens known, the cached prefix first. False, and nothing changed, if the pool
 * has too few or more than max_todo tokens would be left to compute. */
static bool take_blocks(struct sched *s, struct req *r, uint32_t leave_free, uint32_t max_todo)
{
    bool ask = s->cfg.prefix_caching && !req_needs_prompt_logits(r);
    struct kv_match hit = ask ? match(s, r) : (struct kv_match){ 0 };
    uint32_t n_hit = hit.n * s->cfg.block_tokens;
    uint32_t want = req_blocks_for(r, r->n_all + first_to_come(r));
    uint64_t need = (uint64_t)want - hit.n + hit.n_idle + leave_free;

    assert(r->table.n == 0 && r->n_planned == 0);
    if (need > kv_pool_free(s->pool) || r->n_all - n_hit > max_todo)
        return false;
    kv_prefix_share(&r->prefix, s->pool, &r->table, hit.n);
    kv_table_grow(&r->table, s->pool, want); /* cannot fail: there are enough */
    assert(r->table.n == want);
    r->n_computed = r->n_planned = n_hit;
    count_first_admission(s, r, n_hit, ask);
    return true;
}

/* Tells START the first time. */
static void tell_start(struct sched *s, struct req *r)
{
    if (r->started)
        return;
    r->started = r->start_due = true;
    r->t_start = s->now;
    sched_note_event(s, r);
}

static void enter_run(struct sched *s, struct req *r, const char *why)
{
    req_move(s, r, REQ_RUN, why);
    tell_start(s, r);
}

void sched_admit_ready(struct sched *s)
{
    while (s->queue[REQ_READY].head && s->queue[REQ_RUN].n < s->cfg.max_seqs)
        enter_run(s, s->queue[REQ_READY].head, "kv is here");
}

static bool admit_local(struct sched *s, struct outline *o, struct req *r)
{
    if (!o || o->budget == 0 || o->short_of_kv || s->queue[REQ_RUN].n >= s->cfg.max_seqs ||
        (o->by_time && o->n_visible >= SCHED_VISIBLE) ||
        !take_blocks(s, r, headroom(s, HEADROOM_RUN),
                     s->cfg.chunked_prefill ? UINT32_MAX : o->budget))
        return false;
    enter_run(s, r, r->n_preempted ? "resumed" : "admitted");
    if (o->by_time && req_todo(r) > 1)
        o->n_visible++;
    else
        sched_plan_chunk(s, o, r, UINT32_MAX);
    return true;
}

/* Where a pull of all tokens known ends. With the prompt's logits wanted nothing is pulled, but the other side is told to
 * let go. A last prompt token alone is computed sooner than it is pulled. */
static uint32_t pull_end(const struct req *r)
{
    if (req_needs_prompt_logits(r))
        return r->pull_first;
    return r->has_first && r->pull_first + 1 < r->n_all ? r->n_all : r->n_all - 1;
}

/* Blocks for the whole prompt, and an order for what the cache does not have. */
static bool admit_pull(struct sched *s, const struct outline *o, struct req *r)
{
    uint32_t n_pulls = s->queue[REQ_PULL].n + s->queue[REQ_READY].n;

    if ((o && o->short_of_kv) || n_pulls >= s->cfg.max_seqs ||
        !take_blocks(s, r, headroom(s, HEADROOM_PULL), UINT32_MAX))
        return false;
    r->pull_tried = true;
    r->pull_first = r->n_computed;
    r->pull_end = pull_end(r);
    r->pull_due = true;
    s->n_orders++;
    req_move(s, r, REQ_PULL, "pull ordered");
    if (r->has_first) {
        tell_start(s, r);
        sched_take_first(s, r);
    }
    return true;
}

void sched_admit_waiting(struct sched *s, struct outline *o)
{
    struct req *r;
    bool in = true;

    while (in && (r = sched_next_waiting(s)))
        in = wants_pull(r) ? admit_pull(s, o, r) : admit_local(s, o, r);
}

int sched_next_pull(struct sched *s, struct sched_pull *out)
{
    struct req *r = s->queue[REQ_PULL].head;

    if (s->n_orders == 0)
        return 0;
    while (!r->pull_due)
        r = r->next;
    r->pull_due = false;
    r->pull_ordered = true;
    s->n_orders--;
    *out = (struct sched_pull){ .id = r->id,
                                .user = r->user,
                                .first_token = r->pull_first,
                                .n_tokens = r->pull_end,
                                .blocks = r->table.block,
                                .n_blocks = r->table.n };
    return 1;
}

/* The pulled tokens are as good as computed. */
static void accept_pulled(struct sched *s, struct req *r)
{
    r->n_external = r->pull_end - r->pull_first;
    s->count.external_hits += r->n_external;
    r->n_computed = r->n_planned = r->pull_end;
    req_publish(r, s->pool);
}

void sched_pull_done(struct sched *s, sched_id id, enum sched_pull_result result, double now)
{
    struct req *r = req_index_find(&s->index, id);

    s->now = now;
    if (!r || !r->pull_ordered)
        return; /* a late or second answer: nobody waits for it */
    r->pull_ordered = false;
    if (r->state == REQ_DONE) {
        sched_retire(s, r);
        return;
    }
    switch (result) {
    case SCHED_PULL_OK:
        accept_pulled(s, r);
        req_move(s, r, REQ_READY, "pulled");
        break;
    case SCHED_PULL_RECOMPUTE: /* keeps its blocks and its local prefix */
        req_move(s, r, REQ_READY, "pull failed: recompute");
        break;
    case SCHED_PULL_FAIL:
        sched_finish(s, r, FINISH_ERROR, "pull failed");
        break;
    }
}
