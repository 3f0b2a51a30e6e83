#include <string.h>

#include "sim.h"

static void check_entry(struct sim *m, const struct plan_entry *e)
{
    struct job *j = e->user;

    CHECK(m, e->id == j->id && j->live && !j->held && !j->pulling);
    CHECK(m, e->n > 0 && e->start + e->n <= e->n_all);
    CHECK(m, e->n_all < m->cfg.max_model_len + !e->sample);
    CHECK(m, e->start + e->n <= e->n_blocks * m->cfg.block_tokens);
    CHECK(m, e->tokens == e->all_tokens + e->start);
    CHECK(m, memcmp(e->all_tokens, j->tokens, e->n_all * sizeof *e->all_tokens) == 0);
    CHECK(m, e->sample == (e->start + e->n == e->n_all && !j->prompt_only));
    CHECK(m, e->out_index == e->n_all - e->n_prompt && e->n_prompt == j->n_prompt);
    CHECK(m, e->ban_eos == (e->out_index < j->min_tokens));
    CHECK(m, !m->cfg.long_prefill_threshold || !m->cfg.chunked_prefill ||
                 e->n <= m->cfg.long_prefill_threshold);
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

/* What the worker does, some time between the plan and its commit. Requests may be aborted by
 * then: their blocks must still be theirs. */
static void execute(struct sim *m, struct out *o)
{
    const struct plan *p = o->plan;

    o->executed = true;
    o->tokens = calloc(p->n_entries, sizeof *o->tokens);
    if (!o->tokens)
        abort();
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *e = &p->entries[i];
        struct job *j = e->user;
        uint32_t end = e->start + e->n;

        if (o->failed) {
            fake_write_garbage(&m->kv, e->blocks, e->start, end);
            j->poisoned = true;
            continue;
        }
        /* After a failed step of its own it reads garbage, and must not be believed. */
        CHECK(m, j->poisoned || fake_check(&m->kv, e->blocks, j->tokens, 0, e->start, j->salt));
        fake_write(&m->kv, e->blocks, j->tokens, e->start, end, j->salt);
        o->tokens[i] = fake_next_token(fake_read(&m->kv, e->blocks, end - 1));
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

static void commit_oldest(struct sim *m)
{
    struct out *o = &m->out[0];
    struct step_result r;

    if (!o->executed)
        execute(m, o);
    if (!o->failed)
        note_prompt_logprobs(m, o->plan);
    m->total->failed_steps += o->failed;
    r = (struct step_result){ .seq = o->plan->seq, .tokens = o->tokens, .failed = o->failed };
    sched_commit(m->s, &r, m->tick);
    free(o->tokens);
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
