/* What the next step computes: one token of each request that decodes, with its drafts, then prompts
 * in order of arrival, until the token budget is spent.
 *
 * Decoding is what needs new blocks. Who finds none may take them from a younger request, which
 * then starts over (with its tokens kept and, mostly, its prefix still cached). Who finds no
 * younger one waits with what it has. So the oldest always gets on: unless transfers or held
 * blocks fill the pool, and these end by themselves. */
#include <assert.h>

#include "base/status.h"
#include "sched/core.h"

/* Of n known tokens from `start` on: is this more than a decode step? */
static bool is_prefill(uint32_t n, uint32_t start, uint32_t n_prompt)
{
    return n > 1 || start < n_prompt;
}

static void begin(struct sched *s, struct outline *o)
{
    uint32_t slot = (s->first_flight + s->n_flights) % s->cfg.max_inflight;

    *o = (struct outline){ .flight = &s->flight[slot], .budget = s->cfg.max_batched_tokens };
    o->flight->plan = (struct plan){ .entries = o->flight->entry };
}

static void note_step(struct sched *s, const struct plan *p)
{
    pace_step_begin(s->pace, p->seq);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];

        pace_step_add(s->pace, p->seq, e->n, e->start,
                      is_prefill(e->n - e->n_draft, e->start, e->n_prompt));
    }
    pace_step_end(s->pace, p->seq);
}

static const struct plan *conclude(struct sched *s, struct outline *o)
{
    struct plan *p = &o->flight->plan;

    if (p->n_entries == 0)
        return NULL;
    assert(p->n_tokens <= s->cfg.max_batched_tokens);
    p->seq = ++s->last_seq;
    s->n_flights++;
    if (s->pace)
        note_step(s, p);
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

/* Drafts for the step after this one. This one chooses a token at least, and so does that one beside
 * its drafts. */
static uint32_t drafts_wanted(const struct sched *s, const struct req *r)
{
    uint32_t left = r->max_out - req_n_out(r);

    if (left <= 2)
        return 0;
    return left - 2 < s->cfg.n_draft_tokens ? left - 2 : s->cfg.n_draft_tokens;
}

/* n of its known tokens, then n_draft of its drafts, which are written behind the known ones. */
static void add_entry(struct sched *s, struct outline *o, struct req *r, uint32_t n,
                      uint32_t n_draft)
{
    struct flight *f = o->flight;
    uint32_t i = f->plan.n_entries, start = r->n_planned, n_rows = n + n_draft;
    bool sample = start + n == r->n_all && !r->sampling.prompt_only;

    assert(i < s->cfg.max_seqs && n > 0 && n_rows <= o->budget && writes_own_blocks(s, r, n_rows));
    f->req[i] = r;
    f->entry[i] = (struct plan_entry){
        .id = r->id,
        .start = start,
        .n = n_rows,
        .n_draft = n_draft,
        .want_drafts = sample ? drafts_wanted(s, r) : 0,
        .tokens = r->tokens + start,
        .blocks = r->table.block,
        .n_blocks = r->table.n,
        .sample = sample,
        .out_index = req_n_out(r),
        .prompt_logprobs = tells_prompt(r, start, n),
        .sampling = &r->sampling,
        .all_tokens = r->tokens,
        .n_prompt = r->n_prompt,
        .n_all = r->n_all,
        .eos_ids = r->eos,
        .n_eos = r->n_eos,
        .user = r->user,
    };
    f->plan.n_entries++;
    f->plan.n_tokens += n_rows;
    if (is_prefill(n, start, r->n_prompt)) {
        f->plan.n_prefill_tokens += n;
        r->n_chunks++;
    }
    o->budget -= n_rows;
    r->n_planned += n;
    r->n_drafts = 0;
    r->n_inflight++;
}

/* It starts over, here, or where there is room. */
static void preempt(struct sched *s, struct req *r)
{
    if (r->give_back) {
        s->count.given_back++;
        sched_finish(s, r, FINISH_RECOMPUTE, "given back");
        return;
    }
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

    while (run != r && (run->n_inflight > 0 || run->pinned))
        run = run->prev;
    if (run == r)
        return ready;
    return ready && req_before(run, ready) ? ready : run;
}

/* Room in the table for all tokens known. False: r waits. */
static bool make_room(struct sched *s, struct outline *o, struct req *r)
{
    while (kv_table_grow(&r->table, s->pool, req_blocks_for(r, r->n_all)) == ERR_NOBLOCKS) {
        struct req *victim = victim_for(s, r);

        o->short_of_kv = true;
        if (!victim)
            return false;
        preempt(s, victim);
    }
    return true;
}

/* Places in the table behind the known tokens. Drafts, and the guesses that the worker makes after
 * them, get blocks of their own only while one stays free for each request in RUN: nobody shall give
 * way to a guess. */
static uint32_t room_for_drafts(struct sched *s, struct req *r)
{
    uint32_t places = r->n_all + 2 * s->cfg.n_draft_tokens - 1;
    uint32_t want = req_blocks_for(r, places);

    if (want > r->table.cap)
        want = r->table.cap;
    if (want > r->table.n && want - r->table.n + s->queue[REQ_RUN].n <= kv_pool_free(s->pool))
        kv_table_grow(&r->table, s->pool, want);
    return r->table.n * s->cfg.block_tokens - r->n_all;
}

/* Drafts of r that this step verifies, of `most` that the budget has room for. */
static uint32_t n_verified(struct sched *s, struct req *r, uint32_t most)
{
    uint32_t n = r->n_drafts < most ? r->n_drafts : most, room;

    if (s->cfg.n_draft_tokens == 0)
        return 0;
    room = room_for_drafts(s, r);
    return n < room ? n : room;
}

static uint32_t count_decodes(const struct sched *s)
{
    uint32_t n = 0;

    for (const struct req *r = s->queue[REQ_RUN].head; r; r = r->next)
        n += req_todo(r) == 1;
    return n;
}

/* The known token of everybody comes before anybody's drafts. */
static void plan_decodes(struct sched *s, struct outline *o)
{
    uint32_t left = s->cfg.n_draft_tokens ? count_decodes(s) : 0; /* r and those after it */

    for (struct req *r = s->queue[REQ_RUN].head; r && o->budget > 0; r = r->next) {
        if (req_todo(r) != 1)
            continue;
        if (make_room(s, o, r))
            add_entry(s, o, r, 1, n_verified(s, r, o->budget > left ? o->budget - left : 0));
        left -= left > 0;
    }
}

void sched_plan_chunk(struct sched *s, struct outline *o, struct req *r, uint32_t most)
{
    uint32_t n = req_todo(r);

    if (most > o->budget)
        most = o->budget;
    if (!s->cfg.chunked_prefill && n > most) {
        o->budget = 0; /* it waits for a step of its own; nobody younger goes first */
        return;
    }
    if (s->cfg.chunked_prefill && s->cfg.long_prefill_threshold &&
        most > s->cfg.long_prefill_threshold)
        most = s->cfg.long_prefill_threshold;
    add_entry(s, o, r, n < most ? n : most, 0);
}

static void plan_prefills(struct sched *s, struct outline *o)
{
    for (struct req *r = s->queue[REQ_RUN].head; r && o->budget > 0; r = r->next)
        if (req_todo(r) > 1)
            sched_plan_chunk(s, o, r, UINT32_MAX);
}

const struct plan *sched_step(struct sched *s, double now)
{
    struct outline o;

    s->now = now;
    if (s->n_flights == s->cfg.max_inflight) {
        sched_admit_waiting(s, NULL); /* pulls need no plan */
        return NULL;
    }
    begin(s, &o);
    sched_admit_ready(s);
    plan_decodes(s, &o);
    if (s->pace && s->cfg.chunks.policy != SCHED_CHUNK_STATIC) {
        sched_plan_prompts(s, &o);
    } else {
        plan_prefills(s, &o);
        sched_admit_waiting(s, &o);
    }
    return conclude(s, &o);
}
