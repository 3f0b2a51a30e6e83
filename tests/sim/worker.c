#include <math.h>
#include <string.h>

#include "sim.h"

static void check_entry(struct sim *m, const struct plan_entry *e)
{
    struct job *j = e->user;
    uint32_t known = e->n - e->n_draft;

    CHECK(m, e->id == j->id && j->live && !j->held && !j->pulling);
    CHECK(m, e->n > e->n_draft && e->start + known <= e->n_all);
    CHECK(m, e->n_all + e->n_draft < m->cfg.max_model_len + !e->sample);
    CHECK(m, e->start + e->n <= e->n_blocks * m->cfg.block_tokens);
    CHECK(m, e->tokens == e->all_tokens + e->start);
    CHECK(m, memcmp(e->all_tokens, j->tokens, e->n_all * sizeof *e->all_tokens) == 0);
    CHECK(m, e->sample == (e->start + known == e->n_all && !j->prompt_only));
    CHECK(m, e->out_index == e->n_all - e->n_prompt && e->n_prompt == j->n_prompt);
    CHECK(m, e->sampling->min_tokens == j->min_tokens);
    CHECK(m, e->n_draft <= m->cfg.n_draft_tokens && e->want_drafts <= m->cfg.n_draft_tokens);
    CHECK(m, e->n_draft == 0 || (e->sample && known == 1));
    CHECK(m, !e->sample || e->out_index + e->n_draft < j->max_out);
    CHECK(m, e->want_drafts == 0 || e->out_index + e->want_drafts + 2 <= j->max_out);
    CHECK(m, !m->cfg.long_prefill_threshold || !m->cfg.chunked_prefill ||
                 known <= m->cfg.long_prefill_threshold);
    CHECK(m, m->cfg.chunked_prefill || e->sample || j->prompt_only);
}

void sim_take_step(struct sim *m)
{
    const struct plan *p = sched_step(m->s, m->tick);
    uint32_t n = 0;

    if (!p)
        return;
    CHECK(m, m->n_out < m->cfg.max_inflight);
    CHECK(m, p->n_entries > 0 && p->n_entries <= m->cfg.max_seqs);
    CHECK(m, p->n_tokens <= m->cfg.max_batched_tokens && p->n_prefill_tokens <= p->n_tokens);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        check_entry(m, &p->entries[i]);
        n += p->entries[i].n;
    }
    CHECK(m, n == p->n_tokens);
    m->out[m->n_out++] = (struct out){ .plan = p, .failed = rnd(m, 1000) < 3 };
    m->progress_at = m->tick;
}

/* KV of the drafts, right or wrong, as a worker that cannot know writes it; then what it chooses. */
static void verify_drafts(struct sim *m, const struct plan_entry *e, struct step_choice *c)
{
    uint32_t last = e->start + e->n - e->n_draft - 1;
    uint64_t h = fake_read(&m->kv, e->blocks, last);
    bool right = true;

    c->token[c->n++] = fake_next_token(h);
    for (uint32_t k = 0; k < e->n_draft; k++) {
        int32_t draft = e->all_tokens[e->n_all + k];

        right = right && draft == c->token[k];
        h = fake_mix(h, draft);
        fake_put(&m->kv, e->blocks, last + 1 + k, h);
        if (right)
            c->token[c->n++] = fake_next_token(h);
    }
    m->total->drafts += e->n_draft;
    m->total->accepted += c->n - 1;
}

/* Guesses for the next step, some of them right; sometimes fewer than it asks for. */
static void guess(struct sim *m, const struct plan_entry *e, struct step_choice *c)
{
    const struct job *j = e->user;
    uint32_t at = e->n_all + c->n, room = j->n_prompt + SIM_MAX_OUT - at;

    c->n_draft = chance(m, 90) ? e->want_drafts : rnd(m, e->want_drafts + 1);
    for (uint32_t k = 0; k < c->n_draft; k++)
        c->draft[k] = k < room && chance(m, m->good_drafts) ? j->tokens[at + k]
                                                            : (int32_t)rnd(m, FAKE_VOCAB);
}

/* What the worker does, some time between the plan and its commit. Requests may be aborted by
 * then: their blocks must still be theirs. */
static void execute(struct sim *m, struct out *o)
{
    const struct plan *p = o->plan;

    o->executed = true;
    o->choice = calloc(p->n_entries, sizeof *o->choice);
    if (!o->choice)
        abort();
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        struct job *j = e->user;
        uint32_t end = e->start + e->n - e->n_draft;

        if (o->failed) {
            fake_write_garbage(&m->kv, e->blocks, e->start, e->start + e->n);
            j->poisoned = true;
            continue;
        }
        /* After a failed step of its own it reads garbage, and must not be believed. */
        CHECK(m, j->poisoned || fake_check(&m->kv, e->blocks, j->tokens, 0, e->start, j->salt));
        fake_write(&m->kv, e->blocks, j->tokens, e->start, end, j->salt);
        if (!e->sample)
            continue;
        verify_drafts(m, e, &o->choice[i]);
        guess(m, e, &o->choice[i]);
    }
}

static void note_prompt_logprobs(struct sim *m, const struct plan *p)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        struct job *j = e->user;
        uint32_t end = e->start + e->n < e->n_prompt - 1 ? e->start + e->n : e->n_prompt - 1;

        CHECK(m, !e->prompt_logprobs || (j->prompt_logprobs && e->start + 1 < e->n_prompt));
        if (!e->prompt_logprobs || j->poisoned)
            continue;
        CHECK(m, e->start <= j->logprobs_told && end > j->logprobs_told);
        j->logprobs_told = end;
    }
}

/* Times of a step, some lost, some absurd. */
static void tell_times(struct sim *m, const struct plan *p)
{
    static const double absurd[] = { 0, -1, NAN, INFINITY, 1e300, 1e-300 };
    double seconds[SIM_MAX_STAGES];
    uint32_t n = m->cfg.chunks.n_stages;

    if (n == 0 || chance(m, 10))
        return;
    for (uint32_t i = 0; i < n; i++)
        seconds[i] = chance(m, 3) ? absurd[rnd(m, 6)]
                                  : (2 + p->n_tokens * 0.1) * (0.9 + rnd(m, 20) * 0.01) / 1e3;
    sched_note_times(m->s, p->seq, seconds, chance(m, 98) ? n : n - 1);
}

static void commit_oldest(struct sim *m)
{
    struct out *o = &m->out[0];
    struct step_result r;

    if (!o->executed)
        execute(m, o);
    if (!o->failed)
        note_prompt_logprobs(m, o->plan);
    m->total->failed_steps += o->failed;
    r = (struct step_result){ .seq = o->plan->seq, .choice = o->choice, .failed = o->failed };
    tell_times(m, o->plan);
    sched_commit(m->s, &r, m->tick);
    free(o->choice);
    memmove(m->out, m->out + 1, --m->n_out * sizeof *m->out);
}

/* Workers are in order: a plan is executed after all before it. */
void sim_run_workers(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_out && chance(m, 50); i++)
        if (!m->out[i].executed)
            execute(m, &m->out[i]);
    while (m->n_out > 0 && chance(m, 60))
        commit_oldest(m);
}
