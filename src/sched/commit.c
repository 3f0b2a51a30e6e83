/* What a step gave: computed blocks get their keys, tokens are appended, outputs end. */
#include <assert.h>

#include "sched/core.h"

static bool contains(const int32_t *ids, uint32_t n, int32_t id)
{
    for (uint32_t i = 0; i < n; i++)
        if (ids[i] == id)
            return true;
    return false;
}

/* Does the newest token end the output? A stop goes before a length. */
static enum finish finish_of(struct req *r, int32_t token)
{
    const struct sampling *p = &r->sampling;

    if (!req_ends_banned(r, req_n_out(r) - 1)) {
        if (!p->ignore_eos && contains(r->eos, r->n_eos, token))
            return FINISH_STOP;
        if (contains(p->stop_ids, p->n_stop_ids, token)) {
            r->stop_id = token;
            return FINISH_STOP;
        }
    }
    return req_n_out(r) == r->max_out ? FINISH_LENGTH : FINISH_NONE;
}

void sched_retire(struct sched *s, struct req *r)
{
    assert(r->state == REQ_DONE);
    if (r->n_inflight > 0 || r->pull_ordered)
        return;
    req_drop_blocks(r, s->pool);
    req_index_remove(&s->index, r);
    r->t_gone = s->now;
    req_move(s, r, REQ_GONE, "nothing uses it");
    sched_note_event(s, r);
}

void sched_finish(struct sched *s, struct req *r, enum finish f, const char *why)
{
    bool well = f == FINISH_STOP || f == FINISH_LENGTH;
    bool hold = r->role == SCHED_PRODUCE && r->state == REQ_RUN && well;

    r->finish = f;
    r->end_due = f != FINISH_NONE;
    r->t_end = s->now;
    if (r->end_due)
        sched_note_event(s, r);
    s->n_orders -= r->pull_due; /* nobody has seen the order */
    r->pull_due = false;
    req_move(s, r, hold ? REQ_HELD : REQ_DONE, why);
    if (!hold)
        sched_retire(s, r);
}

/* Appends the tokens chosen, up to the one that ends the output. */
static enum finish accept_tokens(struct sched *s, struct req *r, const struct step_choice *c)
{
    enum finish f = FINISH_NONE;

    for (uint32_t i = 0; i < c->n && f == FINISH_NONE; i++) {
        r->tokens[r->n_all++] = c->token[i];
        s->count.generation_tokens++;
        f = finish_of(r, c->token[i]);
    }
    r->t_token = s->now;
    r->end_index = f == FINISH_NONE ? REQ_NO_INDEX : req_n_out(r) - 1;
    sched_note_event(s, r);
    return f;
}

void sched_take_first(struct sched *s, struct req *r)
{
    const struct step_choice c = { .n = 1, .token = { r->first } };
    enum finish f = accept_tokens(s, r, &c);

    if (f != FINISH_NONE)
        sched_finish(s, r, f, finish_name(f));
}

/* Guesses for the next step, as far as it can use them: it chooses a token beside them. */
static void keep_drafts(struct req *r, const struct step_choice *c)
{
    uint32_t left = r->max_out - req_n_out(r) - 1;

    r->n_drafts = c->n_draft < left ? c->n_draft : left;
    for (uint32_t i = 0; i < r->n_drafts; i++)
        r->tokens[r->n_all + i] = c->draft[i];
}

/* The KV of all tokens before `end` is there. */
static void accept_computed(struct sched *s, struct req *r, uint32_t end)
{
    uint32_t n_prompt;

    r->n_computed = end;
    if (r->n_planned < end)
        r->n_planned = end; /* drafts that were right */
    req_publish(r, s->pool);
    n_prompt = r->n_computed < r->n_prompt ? r->n_computed : r->n_prompt;
    if (n_prompt <= r->n_prompt_done)
        return;
    r->n_prompt_done = n_prompt;
    if (n_prompt < r->n_prompt)
        return;
    s->count.prompt_tokens += n_prompt;
    sched_prompt_done(s, r);
}

/* A draft accepted is the token that was chosen in its place. */
static bool choice_fits(const struct plan_entry *e, const struct step_choice *c)
{
    const int32_t *draft = e->tokens + e->n - e->n_draft;

    if (!e->sample)
        return c->n == 0 && c->n_draft == 0;
    for (uint32_t i = 0; i + 1 < c->n; i++)
        if (i >= e->n_draft || c->token[i] != draft[i])
            return false;
    return c->n > 0 && c->n_draft <= e->want_drafts;
}

static void commit_chosen(struct sched *s, struct req *r, const struct step_choice *c)
{
    enum finish f = accept_tokens(s, r, c);

    /* The last token has no KV yet; what followed the end was dropped, and does not count. */
    accept_computed(s, r, r->n_all - 1);
    if (f != FINISH_NONE)
        sched_finish(s, r, f, finish_name(f));
    else
        keep_drafts(r, c);
}

/* c: NULL if the step failed. */
static void commit_entry(struct sched *s, struct req *r, const struct plan_entry *e,
                         const struct step_choice *c)
{
    assert(r->n_inflight > 0 && (!c || choice_fits(e, c)));
    r->n_inflight--;
    if (r->state == REQ_DONE) {
        sched_retire(s, r);
        return;
    }
    if (!c) {
        sched_finish(s, r, FINISH_ERROR, "step failed");
        return;
    }
    assert(r->n_computed == e->start);
    if (e->sample) {
        commit_chosen(s, r, c);
        return;
    }
    accept_computed(s, r, e->start + e->n);
    if (r->sampling.prompt_only && r->n_computed == r->n_prompt)
        sched_finish(s, r, FINISH_LENGTH, "prompt computed");
}

void sched_commit(struct sched *s, const struct step_result *result, double now)
{
    struct flight *f = &s->flight[s->first_flight];

    assert(s->n_flights > 0 && result->seq == f->plan.seq);
    s->now = now;
    s->first_flight = (s->first_flight + 1) % s->cfg.max_inflight;
    s->n_flights--;
    for (uint32_t i = 0; i < f->plan.n_entries; i++)
        commit_entry(s, f->req[i], &f->entry[i], result->failed ? NULL : &result->choice[i]);
}
