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

static void accept_token(struct sched *s, struct req *r, int32_t token)
{
    enum finish f;

    r->tokens[r->n_all++] = token;
    r->t_token = s->now;
    s->count.generation_tokens++;
    sched_note_event(s, r);
    f = finish_of(r, token);
    if (f == FINISH_NONE)
        return;
    r->end_index = req_n_out(r) - 1;
    sched_finish(s, r, f, finish_name(f));
}

static void accept_computed(struct sched *s, struct req *r, const struct plan_entry *e)
{
    uint32_t n_prompt;

    assert(r->n_computed == e->start);
    r->n_computed += e->n;
    req_publish(r, s->pool);
    n_prompt = r->n_computed < r->n_prompt ? r->n_computed : r->n_prompt;
    if (n_prompt <= r->n_prompt_done)
        return;
    r->n_prompt_done = n_prompt;
    if (n_prompt == r->n_prompt)
        s->count.prompt_tokens += n_prompt;
}

static void commit_entry(struct sched *s, struct req *r, const struct plan_entry *e, bool failed,
                         const int32_t *token)
{
    assert(r->n_inflight > 0);
    r->n_inflight--;
    if (r->state == REQ_DONE) {
        sched_retire(s, r);
        return;
    }
    if (failed) {
        sched_finish(s, r, FINISH_ERROR, "step failed");
        return;
    }
    accept_computed(s, r, e);
    if (e->sample)
        accept_token(s, r, *token);
    else if (r->sampling.prompt_only && r->n_computed == r->n_prompt)
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
        commit_entry(s, f->req[i], &f->entry[i], result->failed,
                     result->failed ? NULL : &result->tokens[i]);
}
