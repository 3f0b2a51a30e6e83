#include "sim.h"

/* A few families of prompts with the same beginning, of which each stretch of 16 has two variants:
 * so the same block comes after different ones. */
static void make_prompt(struct sim *m, struct job *j)
{
    uint32_t family = rnd(m, 4), same, variant = 0;

    j->n_prompt = 1 + rnd(m, chance(m, 50) ? 40 : m->most_prompt);
    if (chance(m, 30))
        j->n_prompt = 16 * (1 + j->n_prompt / 17); /* a whole number of blocks */
    same = chance(m, 30) ? j->n_prompt : rnd(m, j->n_prompt + 1);
    for (uint32_t i = 0; i < j->n_prompt; i++) {
        if (i % 16 == 0)
            variant = chance(m, 25);
        j->tokens[i] = i < same ? (int32_t)(family * 7 + (i * i + variant) % 31)
                                : (int32_t)rnd(m, FAKE_VOCAB);
    }
    j->salt = chance(m, 80) ? 0 : 1 + rnd(m, 2);
}

static void make_job(struct sim *m, struct job *j)
{
    *j = (struct job){ .role = (enum sched_role)rnd(m, 3) };
    make_prompt(m, j);
    j->prompt_only = chance(m, 4);
    j->prompt_logprobs = chance(m, 8);
    j->ignore_eos = chance(m, 50);
    j->max_out = j->prompt_only ? 0 : 1 + rnd(m, chance(m, 50) ? 20 : SIM_MAX_OUT);
    j->min_tokens = chance(m, 30) ? rnd(m, j->max_out + 1) : 0;
    j->abort_at = chance(m, 15) ? m->tick + rnd(m, 60) : SIM_NEVER;
    fake_generate(j->tokens, j->n_prompt, j->max_out, j->salt);
}

static bool must_fit(const struct sim *m, const struct job *j)
{
    return j->n_prompt + !j->prompt_only <= m->cfg.max_model_len &&
           j->n_prompt <= m->cfg.n_blocks * m->cfg.block_tokens;
}

/* The limits as the contract has them, computed once more. */
static void cap_output(const struct sim *m, struct job *j)
{
    uint32_t pool = m->cfg.n_blocks * m->cfg.block_tokens;

    if (j->max_out > m->cfg.max_model_len - j->n_prompt)
        j->max_out = m->cfg.max_model_len - j->n_prompt;
    if (j->max_out > pool + 1 - j->n_prompt)
        j->max_out = pool + 1 - j->n_prompt;
    if (j->role == SCHED_PRODUCE && j->max_out > 1)
        j->max_out = 1;
}

void sim_add_job(struct sim *m)
{
    struct job *j = &m->job[m->n_added];
    int32_t eos = FAKE_EOS;
    struct sampling p;
    struct sched_request r = { .prompt = j->tokens, .sampling = &p, .eos_ids = &eos, .n_eos = 1 };
    int st;

    make_job(m, j);
    sampling_init(&p);
    p.max_tokens = j->max_out;
    p.min_tokens = j->min_tokens;
    p.ignore_eos = j->ignore_eos;
    p.prompt_only = j->prompt_only;
    p.prompt_logprobs = j->prompt_logprobs ? 0 : -1;
    r.n_prompt = j->n_prompt;
    r.salt = &j->salt;
    r.salt_len = j->salt ? sizeof j->salt : 0;
    r.priority = rnd(m, 3);
    r.role = j->role;
    j->hit_multiple = 16 * rnd(m, 4);
    r.hit_multiple = j->hit_multiple;
    r.first = j->tokens[j->n_prompt];
    r.has_first = j->role == SCHED_CONSUME && chance(m, 50);
    j->has_first = r.has_first && !j->prompt_logprobs && !j->prompt_only && j->min_tokens == 0;
    r.user = j;
    st = sched_add(m->s, &r, m->tick, &j->id, NULL);
    CHECK(m, (st == 0) == must_fit(m, j));
    CHECK(m, st == 0 || st == ERR_TOOLONG);
    m->n_added++;
    if (st < 0) {
        m->n_gone++;
        return;
    }
    cap_output(m, j);
    j->live = true;
    m->n_live++;
}

static void abort_job(struct sim *m, struct job *j)
{
    const struct req *r = req_index_find(&m->s->index, j->id);
    bool quiet = chance(m, 20), over = !r || r->state == REQ_DONE;

    /* It may have ended in this tick already, with its events not read. */
    j->abort_at = SIM_NEVER;
    j->aborted = true;
    m->total->aborted++;
    if (quiet && !over && r->state != REQ_HELD)
        j->ended = true;
    CHECK(m, sched_abort(m->s, j->id, quiet ? FINISH_NONE : FINISH_ABORT, m->tick) ==
                 (over ? ERR_NOTFOUND : 0));
}

void sim_abort_jobs(struct sim *m)
{
    for (uint32_t i = 0; i < m->n_added; i++)
        if (m->job[i].live && !m->job[i].ended && m->tick >= m->job[i].abort_at)
            abort_job(m, &m->job[i]);
}

static void on_token(struct sim *m, struct job *j, const struct sched_event *e)
{
    bool banned = e->out_index < j->min_tokens;
    bool stop = e->token == FAKE_EOS && !j->ignore_eos && !banned;
    enum finish want = stop                             ? FINISH_STOP
                       : e->out_index + 1 == j->max_out ? FINISH_LENGTH
                                                        : FINISH_NONE;

    CHECK(m, j->started && e->out_index == j->n_out && j->n_out < j->max_out);
    CHECK(m, e->token == j->tokens[j->n_prompt + j->n_out]);
    CHECK(m, e->finish == want && e->stop_id == -1);
    j->n_out++;
    j->finish = e->finish;
    m->total->tokens++;
}

static void on_end(struct sim *m, struct job *j, const struct sched_event *e)
{
    bool well = e->finish == FINISH_STOP || e->finish == FINISH_LENGTH;

    CHECK(m, !j->ended && e->n_cached < j->n_prompt && e->n_external < j->n_prompt + j->has_first);
    CHECK(m, !j->prompt_logprobs || (e->n_cached == 0 && e->n_external == 0));
    CHECK(m, e->finish != FINISH_ABORT || j->aborted);
    CHECK(m, !j->poisoned || !well);
    CHECK(m, !well || j->prompt_only || j->finish == e->finish);
    CHECK(m, !well || !j->prompt_logprobs || j->logprobs_told == j->n_prompt - 1);
    CHECK(m, e->held == (well && j->role == SCHED_PRODUCE) || (j->aborted && !e->held));
    j->ended = true;
    j->held = e->held;
    j->release_at = m->tick + rnd(m, 40);
}

void sim_read_events(struct sim *m)
{
    struct sched_event e;

    while (sched_next_event(m->s, &e)) {
        struct job *j = e.user;

        CHECK(m, j->id == e.id && j->live);
        switch (e.kind) {
        case SCHED_EV_START:
            CHECK(m, !j->started);
            j->started = true;
            break;
        case SCHED_EV_TOKEN:
            on_token(m, j, &e);
            break;
        case SCHED_EV_END:
            on_end(m, j, &e);
            break;
        case SCHED_EV_GONE:
            CHECK(m, j->ended && !j->held && !j->pulling);
            j->live = false;
            m->n_live--;
            m->n_gone++;
            break;
        }
    }
}
