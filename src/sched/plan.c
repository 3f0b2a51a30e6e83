/* What the next step computes: one token of each request that decodes, then prompts in order of
 * arrival, until the token budget is spent.
 *
 * Decoding is what needs new blocks. Who finds none may take them from a younger request, which
 * then starts over (with its tokens kept and, mostly, its prefix still cached). Who finds no
 * younger one waits with what it has. So the oldest always gets on: unless transfers or held
 * blocks fill the pool, and these end by themselves. */
#include <assert.h>

#include "base/status.h"
#include "sched/core.h"

static void open_draft(struct sched *s, struct draft *d)
{
    uint32_t slot = (s->first_flight + s->n_flights) % s->cfg.max_inflight;

    *d = (struct draft){ .flight = &s->flight[slot], .budget = s->cfg.max_batched_tokens };
    d->flight->plan = (struct plan){ .entries = d->flight->entry };
}

static const struct plan *close_draft(struct sched *s, struct draft *d)
{
    struct plan *p = &d->flight->plan;

    if (p->n_entries == 0)
        return NULL;
    assert(p->n_tokens <= s->cfg.max_batched_tokens);
    p->seq = ++s->last_seq;
    s->n_flights++;
    return p;
}

/* What it is about to write is its own alone (kv/README.md, rule 3). */
static bool writes_own_blocks(const struct sched *s, const struct req *r, uint32_t n)
{
    uint32_t bt = s->cfg.block_tokens;

    for (uint32_t b = r->n_planned / bt; b <= (r->n_planned + n - 1) / bt; b++)
        if (b >= r->table.n || !kv_pool_writable(s->pool, r->table.block[b]))
            return false;
    return true;
}

/* Does it give log-probabilities of prompt tokens that were not told before? */
static bool tells_prompt(const struct req *r, uint32_t start, uint32_t n)
{
    return req_needs_prompt_logits(r) && start + 1 < r->n_prompt && start + n > r->n_prompt_done;
}

static void add_entry(struct sched *s, struct draft *d, struct req *r, uint32_t n)
{
    struct flight *f = d->flight;
    uint32_t i = f->plan.n_entries, start = r->n_planned;
    uint32_t n_out = req_n_out(r);
    bool last = start + n == r->n_all;

    assert(i < s->cfg.max_seqs && n > 0 && n <= d->budget && writes_own_blocks(s, r, n));
    f->req[i] = r;
    f->entry[i] = (struct plan_entry){
        .id = r->id,
        .start = start,
        .n = n,
        .tokens = r->tokens + start,
        .blocks = r->table.block,
        .n_blocks = r->table.n,
        .sample = last && !r->sampling.prompt_only,
        .out_index = n_out,
        .prompt_logprobs = tells_prompt(r, start, n),
        .sampling = &r->sampling,
        .all_tokens = r->tokens,
        .n_prompt = r->n_prompt,
        .n_all = r->n_all,
        .eos_ids = r->eos,
        .n_eos = r->n_eos,
        .ban_eos = req_ends_banned(r, n_out),
        .user = r->user,
    };
    f->plan.n_entries++;
    f->plan.n_tokens += n;
    if (n > 1 || start < r->n_prompt)
        f->plan.n_prefill_tokens += n;
    d->budget -= n;
    r->n_planned += n;
    r->n_inflight++;
}

static void preempt(struct sched *s, struct req *r)
{
    req_drop_blocks(r, s->pool);
    r->n_preempted++;
    s->count.preemptions++;
    req_move(s, r, REQ_WAIT, "preempted");
}

/* Who gives way to r: the youngest that no plan in flight names, if younger than r. One that is
 * only READY gives way at any age, or it could block a full RUN for ever. */
static struct req *victim_for(const struct sched *s, const struct req *r)
{
    struct req *ready = s->queue[REQ_READY].tail;
    struct req *run = s->queue[REQ_RUN].tail;

    while (run != r && run->n_inflight > 0)
        run = run->prev;
    if (run == r)
        return ready;
    return ready && req_before(run, ready) ? ready : run;
}

/* Room in the table for all tokens known. False: r waits. */
static bool make_room(struct sched *s, struct draft *d, struct req *r)
{
    while (kv_table_grow(&r->table, s->pool, req_blocks_for(r, r->n_all)) == ERR_NOBLOCKS) {
        struct req *victim = victim_for(s, r);

        d->short_of_kv = true;
        if (!victim)
            return false;
        preempt(s, victim);
    }
    return true;
}

static void plan_decodes(struct sched *s, struct draft *d)
{
    for (struct req *r = s->queue[REQ_RUN].head; r && d->budget > 0; r = r->next)
        if (req_todo(r) == 1 && make_room(s, d, r))
            add_entry(s, d, r, 1);
}

void sched_plan_chunk(struct sched *s, struct draft *d, struct req *r)
{
    uint32_t n = req_todo(r), most = d->budget;

    if (!s->cfg.chunked_prefill && n > most) {
        d->budget = 0; /* it waits for a step of its own; nobody younger goes first */
        return;
    }
    if (s->cfg.chunked_prefill && s->cfg.long_prefill_threshold &&
        most > s->cfg.long_prefill_threshold)
        most = s->cfg.long_prefill_threshold;
    add_entry(s, d, r, n < most ? n : most);
}

static void plan_prefills(struct sched *s, struct draft *d)
{
    for (struct req *r = s->queue[REQ_RUN].head; r && d->budget > 0; r = r->next)
        if (req_todo(r) > 1)
            sched_plan_chunk(s, d, r);
}

const struct plan *sched_step(struct sched *s, double now)
{
    struct draft d;

    s->now = now;
    if (s->n_flights == s->cfg.max_inflight) {
        sched_admit_waiting(s, NULL); /* pulls need no plan */
        return NULL;
    }
    open_draft(s, &d);
    sched_admit_ready(s);
    plan_decodes(s, &d);
    plan_prefills(s, &d);
    sched_admit_waiting(s, &d);
    return close_draft(s, &d);
}
