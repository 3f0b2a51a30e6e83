#include "sim.h"

void sim_fetch_pulls(struct sim *m)
{
    struct sched_pull p;

    while (sched_next_pull(m->s, &p)) {
        struct job *j = p.user;

        CHECK(m, j->id == p.id && j->role == SCHED_CONSUME && !j->pulling && !j->ended);
        CHECK(m, p.first_token % m->cfg.block_tokens == 0 && p.first_token <= p.n_tokens);
        CHECK(m, !j->hit_multiple || p.first_token % j->hit_multiple == 0);
        CHECK(m,
              p.n_tokens == (j->prompt_logprobs                                ? 0
                             : j->has_first && p.first_token + 1 < j->n_prompt ? j->n_prompt
                                                                               : j->n_prompt - 1));
        CHECK(m, p.n_blocks * m->cfg.block_tokens >= j->n_prompt);
        CHECK(m, fake_check(&m->kv, p.blocks, j->tokens, 0, p.first_token, j->salt));
        j->pull = p;
        j->pulling = true;
        j->pull_end_at = m->tick + rnd(m, 30);
        j->pull_result = chance(m, 80)   ? SCHED_PULL_OK
                         : chance(m, 70) ? SCHED_PULL_RECOMPUTE
                                         : SCHED_PULL_FAIL;
        m->total->pulls++;
    }
}

/* A pull writes until the moment it is reported, whatever became of its request. */
static void end_pull(struct sim *m, struct job *j)
{
    const struct sched_pull *p = &j->pull;

    if (j->pull_result == SCHED_PULL_OK)
        fake_write(&m->kv, p->blocks, j->tokens, p->first_token, p->n_tokens, j->salt);
    else
        fake_write_garbage(&m->kv, p->blocks, p->first_token, p->n_tokens);
    j->pulling = false;
    m->progress_at = m->tick;
    sched_pull_done(m->s, j->id, j->pull_result, m->tick);
    if (chance(m, 10)) /* said twice */
        sched_pull_done(m->s, j->id, SCHED_PULL_OK, m->tick);
}

static void release(struct sim *m, struct job *j)
{
    const uint32_t *blocks;
    uint32_t n_blocks, n_tokens;

    CHECK(m, sched_held(m->s, j->id, &blocks, &n_blocks, &n_tokens) == 0);
    CHECK(m, n_tokens == j->n_prompt && n_blocks * m->cfg.block_tokens >= n_tokens);
    CHECK(m, fake_check(&m->kv, blocks, j->tokens, 0, n_tokens, j->salt));
    j->held = false;
    m->progress_at = m->tick;
    CHECK(m, chance(m, 80) ? sched_release(m->s, j->id, m->tick) == 0
                           : sched_abort(m->s, j->id, FINISH_ABORT, m->tick) == 0);
    CHECK(m, sched_release(m->s, j->id, m->tick) == ERR_NOTFOUND);
}

void sim_run_transfers(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_added; i++) {
        struct job *j = &m->job[i];

        if (j->pulling && m->tick >= j->pull_end_at)
            end_pull(m, j);
        if (j->held && m->tick >= j->release_at)
            release(m, j);
    }
}
