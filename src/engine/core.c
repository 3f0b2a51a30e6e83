/* The engine thread: mail in, step plans run, events out. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "sys/clock.h"

/* Longest sleep without work: nothing depends on it, it only bounds every wait. */
#define CORE_IDLE_SECONDS 0.5
/* Until the next look at a front that does not fetch its events. */
#define CORE_STUCK_SECONDS 0.01
/* When a step has failed: longest wait for the news that a rank has ended, and for a rank's answer. */
#define CAUSE_SECONDS  0.5
#define SILENT_SECONDS 2.0
/* For the steps of other instances, when this one is told to stop. */
#define LEAVE_SECONDS 15.0

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
        .n_output = j->n_output,
        .give_back = j->give_back,
        .pinned = e->push && j->expected,
        .user = j,
    };
    struct engine_event ev = { .kind = ENGINE_END, .id = j->id, .user = j->user };
    int st = atomic_load(&e->broken) ? err_set(&err, ERR_CLOSED, "%s", e->broken_why)
                                     : sched_add(e->sched, &r, j->t_arrive, &j->sched, &err);

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
        kv_lead_abort_hold(e->kv_lead, j->transfer_id);
        return;
    }
    if (j->ended)
        return;
    sched_abort(e->sched, j->sched, finish, clock_now());
    if (j->pulling)
        engine_remote_cancel(e, j);
}

static void reset(struct engine *e, const struct reset_mail *r)
{
    struct engine_event ev = { .kind = ENGINE_RESET, .user = r->user, .time = clock_now() };

    ev.status = sched_reset_prefix_cache(e->sched);
    engine_outbox_put_reserved(&e->outbox, &ev);
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

/* A step has ended: its tokens are known, at `now`. */
static void note_step(struct engine *e, const struct flight_of *f,
                      const struct engine_step_times *t, double now)
{
    double began = f->t0;

    pthread_mutex_lock(&e->lock);
    if (began < e->stats.last_step_end) /* it began while the one before it was on its way */
        began = e->stats.last_step_end;
    e->stats.steps++;
    e->stats.step_tokens += f->plan->n_tokens;
    e->stats.step_seconds += now - began;
    e->stats.last_step_end = now;
    e->busy_since = now;
    for (uint32_t i = 0; i < t->n_stages; i++)
        e->stats.stage_seconds[i] += t->stage[i].end - t->stage[i].start;
    bubble_add(&e->bubble, e->stats.stage_bubble, t);
    engine_samples_add(&e->step_sizes, f->plan->n_tokens);
    pthread_mutex_unlock(&e->lock);
    if (e->timeline)
        e->timeline(e->timeline_arg, t);
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

static struct flight_of *oldest(const struct engine *e)
{
    return &e->flight[e->first_flight];
}

static void end_flight(struct engine *e, const struct step_choice *choice, double now)
{
    const struct flight_of *f = oldest(e);
    const struct step_result r = { .seq = f->plan->seq, .choice = choice, .failed = !choice };

    e->first_flight = (e->first_flight + 1) % e->sched_config.max_inflight;
    e->n_flights--;
    if (f->plan != &f->empty)
        sched_commit(e->sched, &r, now);
}

/* What the chunk planner learns of it. */
static void note_chunks(struct engine *e, const struct engine_step_times *t)
{
    double seconds[ENGINE_MAX_STAGES];
    struct err warning;

    for (uint32_t i = 0; i < t->n_stages; i++)
        seconds[i] = t->stage[i].end - t->stage[i].start;
    sched_note_times(e->sched, t->seq, seconds, t->n_stages);
    while (sched_next_warning(e->sched, &warning))
        log_warning("%s", warning.text);
}

/* The oldest plan in flight has been computed by all stages; e->choice is what it gave. */
static void finish_step(struct engine *e, const struct pipe_time *times, uint32_t n_times)
{
    const struct flight_of *f = oldest(e);
    const struct ranks *r = e->ranks;
    double now = clock_now();
    struct engine_step_times t = { .seq = f->plan->seq,
                                   .n_tokens = f->plan->n_tokens,
                                   .n_prefill_tokens = f->plan->n_prefill_tokens,
                                   .n_requests = f->plan->n_entries,
                                   .n_stages = n_times };

    for (uint32_t i = 0; i < f->plan->n_entries && i < ENGINE_STEP_PARTS; i++) {
        const struct plan_entry *en = &f->plan->entries[i];

        t.part[t.n_parts++] = (struct engine_step_part){ ((struct job *)en->user)->id, en->n,
                                                         en->start };
    }
    if (f->plan == &f->empty) {
        end_flight(e, e->choice, now);
        return;
    }
    for (uint32_t i = 0; i < n_times; i++) {
        double ahead = i < r->pp ? r->clock_ahead[i * r->tp] : 0;

        t.stage[i] = (struct engine_stage_time){ times[i].start - ahead, times[i].end - ahead };
    }
    note_step(e, f, &t, now);
    note_chunks(e, &t);
    if (e->sched_config.n_draft_tokens)
        note_drafts(e, f->plan);
    end_flight(e, e->choice, now);
}

static void fail_job(struct engine *e, struct job *j, int status, const char *why, double now)
{
    if (j->ended || j->sched == 0)
        return;
    engine_job_fail(j, status, why);
    sched_abort(e->sched, j->sched, FINISH_ERROR, now);
    if (j->pulling)
        engine_remote_cancel(e, j);
}

void engine_core_drop_flights(struct engine *e)
{
    while (e->n_flights > 0) {
        e->dropped = oldest(e)->plan->seq;
        end_flight(e, NULL, clock_now());
    }
}

void engine_core_fail_all(struct engine *e, int status, const char *why)
{
    double now = clock_now();

    pthread_mutex_lock(&e->jobs.lock);
    for (uint32_t i = 0; i < JOB_BUCKETS; i++)
        for (struct job *j = e->jobs.bucket[i]; j; j = j->hash_next)
            fail_job(e, j, status, why, now);
    pthread_mutex_unlock(&e->jobs.lock);
    engine_core_drop_flights(e);
}

/* This instance can do nothing any more. The other ranks hear of it, and end. */
static void break_down(struct engine *e, int status, const char *why)
{
    if (atomic_load(&e->broken))
        return;
    snprintf(e->broken_why, sizeof e->broken_why, "%s", why);
    atomic_store(&e->broken, true);
    log_error("%s", e->broken_why);
    if (e->pipe)
        pipe_abandon(e->pipe, e->broken_why);
    ranks_abandon(e->ranks, e->broken_why);
    engine_core_fail_all(e, status, e->broken_why);
    if (e->outbox.notify)
        e->outbox.notify(e->outbox.notify_arg);
}

/* Of the oldest plan in flight, from the last stage. */
static void take_result(struct engine *e, struct box *b)
{
    const struct worker_sink sink = { .prompt = on_prompt, .token = on_token, .arg = e };
    struct pipe_time times[ENGINE_MAX_STAGES];
    uint32_t n_times;
    uint64_t seq;
    int st = result_seq(&seq, b->bytes.data, b->bytes.len);

    if (st == 0 && seq > e->dropped) {
        st = e->n_flights == 0
                 ? ERR_BADMSG
                 : result_read(b->bytes.data, b->bytes.len, oldest(e)->plan,
                               model_config(e->model)->vocab, e->choice, &sink, times, &n_times);
        if (st == 0)
            finish_step(e, times, n_times);
    }
    if (st < 0)
        break_down(e, st, "the last stage sent a result that fits no step in flight");
    atomic_store(&b->full, false);
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
        case MAIL_BOX:
            take_result(e, (struct box *)(void *)m);
            break;
        case MAIL_BROKEN:
            break_down(e, ERR_CLOSED, e->lost);
            break;
        case MAIL_LEAVE: /* of the other ranks */
            break;
        }
    }
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
    engine_remote_started(e, j, s->id);
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
            if (e->writer)
                plan_writer_forget(e->writer, s.id);
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

/* When the last stage could begin with it. */
static double step_began(struct engine *e, const struct flight_of *f)
{
    return f->t0 > e->stats.last_step_end ? f->t0 : e->stats.last_step_end;
}

/* Who of the ranks it was, as far as that can be found out. */
static const char *name_cause(struct engine *e, struct err *err)
{
    uint32_t silent;
    char name[80];

    if (engine_stage_is_lost(e, CAUSE_SECONDS))
        return e->lost;
    if (!e->pipe || (silent = pipe_silent(e->pipe, SILENT_SECONDS)) == PIPE_NOBODY)
        return err->text;
    err_prefix(err, ERR_TIMEOUT, "%s does not answer",
               ranks_name(e->ranks, silent, name, sizeof name));
    return err->text;
}

/* p NULL: a step that only other instances have work for. */
static const struct plan *begin_flight(struct engine *e, const struct plan *p)
{
    struct flight_of *f =
        &e->flight[(e->first_flight + e->n_flights++) % e->sched_config.max_inflight];

    *f = (struct flight_of){ .plan = p ? p : &f->empty, .t0 = clock_now() };
    f->empty.seq = ++e->n_empty | 1ull << 63; /* none of the scheduler's */
    return f->plan;
}

/* The data-parallel group has come apart, or could not finish the step in flight. An instance of one rank
 * goes on when all have met again; of several, none knows how far the others came. */
static void come_apart(struct engine *e)
{
    char why[RANKS_WHY_MAX] = "";

    engine_dp_is_apart(e->dp, why, sizeof why);
    if (e->ranks->n > 1)
        break_down(e, ERR_CLOSED, why);
    else
        engine_core_fail_all(e, ERR_CLOSED, why);
}

static void step_failed(struct engine *e, int st, struct err *err)
{
    /* a rank of this instance, which the pipe knows of, or something of another one */
    if (!e->dp_in_step || e->ranks->failed == 0 || engine_stage_is_lost(e, CAUSE_SECONDS)) {
        break_down(e, st, name_cause(e, err));
        return;
    }
    engine_dp_fail(e->dp);
    come_apart(e);
}

/* Begins a plan, and ends it too where there is but one stage. */
static void run_step(struct engine *e, const struct plan *p)
{
    const struct worker_sink sink = { .prompt = on_prompt, .token = on_token, .arg = e };
    struct pipe_time times[ENGINE_MAX_STAGES];
    struct err err = { "" };
    uint32_t n_times;
    int st;

    p = begin_flight(e, p);
    note_prefill(p);
    if ((st = engine_stage_send(e, p, &err)) == 0)
        st = engine_stage_run(e, p, e->choice, &sink, times, &n_times, &err);
    if (st < 0)
        step_failed(e, st, &err);
    else if (e->ranks->pp == 1)
        finish_step(e, times, n_times);
}

/* A step takes too long: some rank does not answer, or does and is stuck. */
static void check_flights(struct engine *e)
{
    double limit = e->ranks->step_seconds;
    const struct flight_of *f = oldest(e);
    struct err err = { "" };

    if (e->n_flights == 0 || clock_now() - step_began(e, f) < limit)
        return;
    err_set(&err, ERR_TIMEOUT, "step %llu was not computed within %.0f s",
            (unsigned long long)f->plan->seq, limit);
    break_down(e, ERR_TIMEOUT, name_cause(e, &err));
}

/* The same of a transfer. One that takes long is no fault as long as all ranks are alive. */
static void check_transfers(struct engine *e)
{
    double now = clock_now();
    uint32_t silent;
    char name[80], why[160];

    if (!e->kv_lead || !e->pipe || atomic_load(&e->broken) ||
        !kv_lead_is_overdue(e->kv_lead, now, e->ranks->step_seconds))
        return;
    silent = pipe_silent(e->pipe, SILENT_SECONDS);
    if (silent == PIPE_NOBODY) {
        kv_lead_renew(e->kv_lead, now);
        return;
    }
    snprintf(why, sizeof why, "%s does not answer",
             ranks_name(e->ranks, silent, name, sizeof name));
    break_down(e, ERR_TIMEOUT, why);
}

/* Whether to run a step now: p, or where it is NULL one for other instances only. */
static bool takes_step(struct engine *e, const struct plan *p)
{
    enum dp_turn turn;

    if (!e->dp_in_step || atomic_load(&e->broken))
        return p != NULL;
    if (!p && e->n_flights == e->sched_config.max_inflight)
        return false; /* the others wait for this instance as it is */
    if ((turn = engine_dp_turn(e->dp, p != NULL)) == DP_APART) {
        if (p)
            begin_flight(e, p); /* and ends with the rest */
        come_apart(e);
        engine_core_drain(e);
        engine_outbox_flush(&e->outbox);
    }
    assert(turn != DP_REST || !p);
    return turn == DP_STEP;
}

/* Told to stop, but the instances that make steps together are in the middle of some: what they are at
 * should come to its end. */
static bool must_go_on(struct engine *e, double *until)
{
    if (!e->dp_in_step || atomic_load(&e->broken) || !engine_dp_in_wave(e->dp))
        return false;
    if (*until == 0)
        *until = clock_now() + LEAVE_SECONDS;
    return clock_now() < *until;
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
    double patience = 0, stop_until = 0;

    if (log_enabled(LOG_DEBUG))
        sched_set_trace(e->sched, trace_move, NULL);
    while (!atomic_load(&e->stop) || must_go_on(e, &stop_until)) {
        bool stuck = engine_outbox_full(&e->outbox) || atomic_load(&e->stop);
        const struct plan *p;
        bool step;

        engine_core_mail(e, engine_inbox_take(&e->inbox, patience));
        check_flights(e);
        check_transfers(e);
        p = stuck || atomic_load(&e->broken) ? NULL : sched_step(e->sched, clock_now());
        engine_remote_start_pulls(e);
        engine_core_drain(e);
        engine_core_publish(e);
        engine_outbox_flush(&e->outbox);
        step = takes_step(e, p);
        patience = step ? 0 : stuck ? CORE_STUCK_SECONDS : CORE_IDLE_SECONDS;
        if (!step)
            continue;
        run_step(e, p);
        engine_core_drain(e);
        engine_outbox_flush(&e->outbox);
    }
    return NULL;
}
