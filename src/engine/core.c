/* The engine thread: mail in, step plans run, events out. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "sys/clock.h"

/* Longest sleep without work: nothing depends on it, it only bounds every wait. */
#define CORE_IDLE_SECONDS 0.5
/* Until the next look at a front that does not fetch its events. */
#define CORE_STUCK_SECONDS 0.01

/* The token that the prefill chose is as good as one chosen here. A request that a failed pull shall
 * end with an error status must not have answered before. */
static bool first_is_usable(const struct engine *e, const struct job *j)
{
    return e->kv.on_failure == KV_FAIL_RECOMPUTE && j->kv.last_token_id >= 0 &&
           (uint32_t)j->kv.last_token_id < model_config(e->model)->vocab;
}

static void submit(struct engine *e, struct job *j)
{
    const struct model_config *mc = model_config(e->model);
    struct err err = { "" };
    struct sched_request r = {
        .prompt = j->prompt,
        .n_prompt = j->n_prompt,
        .sampling = &j->sampling,
        .eos_ids = mc->eos,
        .n_eos = mc->n_eos,
        .salt = j->salt,
        .salt_len = j->salt_len,
        .priority = j->priority,
        .role = j->role,
        .hit_multiple = j->kv.remote_block_size,
        .has_first = first_is_usable(e, j),
        .first = j->kv.last_token_id,
        .user = j,
    };
    struct engine_event ev = { .kind = ENGINE_END, .id = j->id, .user = j->user };
    int st = sched_add(e->sched, &r, j->t_arrive, &j->sched, &err);

    if (st == 0) {
        free(j->prompt);
        j->prompt = NULL;
        return;
    }
    ev.time = clock_now();
    ev.finish = FINISH_ERROR;
    ev.status = st;
    ev.why = strdup(err.text);
    ev.stop_id = -1;
    engine_outbox_put_reserved(&e->outbox, &ev);
    engine_remote_forget(e, j);
    engine_job_table_end(&e->jobs, j);
}

static void cancel(struct engine *e, struct job *j)
{
    enum finish finish;

    if (!engine_job_table_canceled(&e->jobs, j, &finish))
        return;
    if (j->ended && j->role == SCHED_PRODUCE && finish == FINISH_ABORT) {
        /* Its client left while the last step ran: nobody has the answer, nobody will pull. */
        transfer_abort_hold(e->transfer, j->transfer_id);
        return;
    }
    if (j->ended)
        return;
    sched_abort(e->sched, j->sched, finish, clock_now());
    if (j->pulling)
        transfer_cancel(e->transfer, (uint64_t)(uintptr_t)j);
}

static void reset(struct engine *e, const struct reset_mail *r)
{
    struct engine_event ev = { .kind = ENGINE_RESET, .user = r->user, .time = clock_now() };

    ev.status = sched_reset_prefix_cache(e->sched);
    engine_outbox_put_reserved(&e->outbox, &ev);
}

/* The job that embeds this piece of mail. */
#define JOB_OF(m, member) ((struct job *)(void *)((char *)(m)-offsetof(struct job, member)))

void engine_core_mail(struct engine *e, struct mail *m)
{
    struct mail *next;

    for (; m; m = next) {
        next = m->next;
        switch (m->kind) {
        case MAIL_SUBMIT:
            submit(e, JOB_OF(m, submit));
            break;
        case MAIL_PULLED:
            engine_remote_pulled(e, JOB_OF(m, pulled));
            break;
        case MAIL_LEASE_END:
            sched_release(e->sched, JOB_OF(m, lease_end)->sched, clock_now());
            break;
        case MAIL_CANCEL:
            cancel(e, JOB_OF(m, cancel));
            break;
        case MAIL_RESET:
            reset(e, (struct reset_mail *)(void *)m);
            free(m);
            break;
        }
    }
}

/* One allocation: the struct, then its lists. */
static struct engine_logprobs *make_logprobs(const struct k_sample *row, const struct k_choice *c)
{
    size_t n = (size_t)c->n_top + row->n_want;
    struct engine_logprobs *lp = malloc(sizeof *lp + n * sizeof *lp->top);

    if (!lp)
        return NULL;
    *lp = (struct engine_logprobs){
        .chosen = { .id = c->id, .logprob = c->logprob, .rank = c->rank },
        .n_top = c->n_top,
        .top = (struct engine_logprob *)(lp + 1),
        .n_want = row->n_want,
    };
    lp->want = lp->top + c->n_top;
    for (uint32_t i = 0; i < c->n_top; i++)
        lp->top[i] = (struct engine_logprob){ c->top_id[i], c->top_logprob[i], i + 1 };
    for (uint32_t i = 0; i < row->n_want; i++)
        lp->want[i] = (struct engine_logprob){ row->want_ids[i], row->want_out[i], 0 };
    return lp;
}

static void on_prompt(void *arg, const struct plan_entry *en, uint32_t position,
                      const struct k_sample *row, const struct k_choice *c)
{
    struct job *j = en->user;

    (void)arg;
    free(j->prompt_logprobs[position]); /* computed before a preemption */
    j->prompt_logprobs[position] = make_logprobs(row, c);
}

static void on_token(void *arg, const struct plan_entry *en, uint32_t out_index,
                     const struct k_sample *row, const struct k_choice *c)
{
    struct job *j = en->user;
    struct engine_logprobs **slot = &j->logprobs[out_index % JOB_STEP_TOKENS];

    (void)arg;
    if (en->sampling->logprobs < 0 && en->sampling->n_want == 0)
        return;
    free(*slot); /* of a token that was never told */
    *slot = make_logprobs(row, c);
}

/* Sends what comes before the end. What there is no memory for would be missing in the output: then
 * the request ends with an error, and no more of it is told. */
static void send_event(struct engine *e, struct job *j, struct engine_event *ev)
{
    if (j->lost) {
        engine_event_finish(ev);
        return;
    }
    if (engine_outbox_put(&e->outbox, ev) == 0)
        return;
    j->lost = true;
    engine_job_fail(j, ERR_NOMEM, "out of memory for the request's output");
    sched_abort(e->sched, j->sched, FINISH_ERROR, clock_now());
}

static void send_prompt_logprobs(struct engine *e, struct job *j)
{
    struct engine_event ev = { .kind = ENGINE_PROMPT, .id = j->id, .user = j->user };

    if (!j->prompt_logprobs || j->prompt_sent)
        return;
    ev.time = clock_now();
    ev.prompt = j->prompt_logprobs;
    ev.n_prompt = j->n_prompt;
    j->prompt_logprobs = NULL;
    j->prompt_sent = true;
    send_event(e, j, &ev);
}

static void send_token(struct engine *e, struct job *j, const struct sched_event *s)
{
    struct engine_logprobs **slot = &j->logprobs[s->out_index % JOB_STEP_TOKENS];
    struct engine_event ev = {
        .kind = ENGINE_TOKEN,
        .id = j->id,
        .user = j->user,
        .time = s->time,
        .token = s->token,
        .out_index = s->out_index,
        .logprobs = *slot,
        .finish = s->finish, /* of the last token: its end follows at once */
        .stop_id = -1,
    };

    *slot = NULL;
    j->last_token = s->token;
    j->t_last = s->time;
    if (j->t_first == 0)
        j->t_first = s->time;
    send_prompt_logprobs(e, j);
    send_event(e, j, &ev);
}

static void send_end(struct engine *e, struct job *j, const struct sched_event *s)
{
    struct engine_event ev = {
        .kind = ENGINE_END,
        .id = j->id,
        .user = j->user,
        .time = s->time,
        .finish = s->finish,
        .stop_id = s->stop_id,
        .n_cached = s->n_cached,
        .n_external = s->n_external,
        .n_preempted = s->n_preempted,
        .n_prefill = j->n_prefill,
        .t_arrive = j->t_arrive,
        .t_start = j->t_start,
        .t_first = j->t_first,
        .t_last = j->t_last,
    };

    if (s->finish == FINISH_LENGTH || s->finish == FINISH_STOP)
        send_prompt_logprobs(e, j);
    if (j->lost || (s->held && !(ev.kv = engine_remote_hold(e, j))))
        ev.finish = FINISH_ERROR;
    if (ev.finish == FINISH_ERROR) {
        ev.status = j->status < 0 ? j->status : ERR_IO;
        ev.why = j->why;
        j->why = NULL;
    }
    engine_remote_forget(e, j);
    j->ended = true;
    engine_outbox_put_reserved(&e->outbox, &ev);
}

static void send_start(struct engine *e, struct job *j, const struct sched_event *s)
{
    struct engine_event ev = {
        .kind = ENGINE_START, .id = j->id, .user = j->user, .time = s->time, .stop_id = -1
    };

    j->t_start = s->time;
    ev.n_cached = s->n_cached;
    ev.n_external = s->n_external;
    send_event(e, j, &ev);
}

void engine_core_drain(struct engine *e)
{
    struct sched_event s;

    while (sched_next_event(e->sched, &s)) {
        struct job *j = s.user;

        switch (s.kind) {
        case SCHED_EV_START:
            send_start(e, j, &s);
            break;
        case SCHED_EV_TOKEN:
            send_token(e, j, &s);
            break;
        case SCHED_EV_END:
            send_end(e, j, &s);
            break;
        case SCHED_EV_GONE:
            engine_job_table_end(&e->jobs, j);
            break;
        }
    }
}

void engine_samples_add(struct samples *s, double v)
{
    s->v[(s->head + s->n) % ENGINE_SAMPLES] = v;
    if (s->n < ENGINE_SAMPLES)
        s->n++;
    else
        s->head = (s->head + 1) % ENGINE_SAMPLES;
}

void engine_core_publish(struct engine *e)
{
    struct sched_stats now;

    sched_stats(e->sched, &now);
    pthread_mutex_lock(&e->lock);
    e->stats.sched = now;
    e->stats.busy = now.n_running + now.n_waiting > 0;
    if (!e->stats.busy)
        e->busy_since = 0;
    else if (e->busy_since == 0)
        e->busy_since = clock_now();
    pthread_mutex_unlock(&e->lock);
}

static void note_step(struct engine *e, const struct plan *p, double seconds, double now)
{
    pthread_mutex_lock(&e->lock);
    e->stats.steps++;
    e->stats.step_tokens += p->n_tokens;
    e->stats.step_seconds += seconds;
    e->stats.last_step_end = now;
    e->busy_since = now;
    engine_samples_add(&e->step_sizes, p->n_tokens);
    pthread_mutex_unlock(&e->lock);
}

/* Prompt tokens computed here, for the request's figures. */
static void note_prefill(const struct plan *p)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];

        if (en->start < en->n_prompt) {
            uint32_t left = en->n_prompt - en->start;

            ((struct job *)en->user)->n_prefill += en->n < left ? en->n : left;
        }
    }
}

/* How good the drafts were. */
static void note_drafts(struct engine *e, const struct plan *p)
{
    pthread_mutex_lock(&e->lock);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];

        if (en->n_draft == 0)
            continue;
        e->stats.spec_drafts++;
        e->stats.spec_draft_tokens += en->n_draft;
        e->stats.spec_accepted_tokens += e->choice[i].n - 1;
        for (uint32_t k = 0; k + 1 < e->choice[i].n; k++)
            e->stats.spec_accepted_pos[k]++;
    }
    pthread_mutex_unlock(&e->lock);
}

static void run_step(struct engine *e, const struct plan *p)
{
    const struct worker_sink sink = { .prompt = on_prompt, .token = on_token, .arg = e };
    double t0 = clock_now(), t1;

    note_prefill(p);
    engine_worker_run(e->worker, p, e->choice, &sink);
    if (e->step_delay > 0)
        clock_sleep(e->step_delay);
    t1 = clock_now();
    note_step(e, p, t1 - t0, t1);
    if (e->sched_config.n_draft_tokens)
        note_drafts(e, p);
    sched_commit(e->sched, &(struct step_result){ .seq = p->seq, .choice = e->choice }, t1);
}

static void trace_move(void *arg, double now, sched_id id, const char *from, const char *to,
                       const char *why)
{
    (void)arg;
    log_debug("request %llu at %.6f: %s -> %s (%s)", (unsigned long long)id, now, from, to, why);
}

void *engine_core_thread(void *engine)
{
    struct engine *e = engine;
    double patience = 0;

    if (log_enabled(LOG_DEBUG))
        sched_set_trace(e->sched, trace_move, NULL);
    while (!atomic_load(&e->stop)) {
        bool stuck = engine_outbox_full(&e->outbox);
        const struct plan *p;

        engine_core_mail(e, engine_inbox_take(&e->inbox, patience));
        p = stuck ? NULL : sched_step(e->sched, clock_now());
        engine_remote_start_pulls(e);
        engine_core_drain(e);
        engine_core_publish(e);
        engine_outbox_flush(&e->outbox);
        patience = p ? 0 : stuck ? CORE_STUCK_SECONDS : CORE_IDLE_SECONDS;
        if (!p)
            continue;
        run_step(e, p);
        engine_core_drain(e);
        engine_outbox_flush(&e->outbox);
    }
    return NULL;
}
