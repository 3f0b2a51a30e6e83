/* One rank's part of a step, and what ties it to the other ranks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/group.h"
#include "engine/internal.h"
#include "sys/clock.h"

static size_t state_bytes(const struct engine *e, uint32_t n_tokens)
{
    return (size_t)n_tokens * model_config(e->model)->hidden * sizeof(float);
}

static int take_states(struct engine *e, const struct plan *p, struct pipe_time *times,
                       struct err *err)
{
    const struct ranks *r = e->ranks;
    const struct pipe_states *s;
    int st = pipe_states_wait(e->pipe, &s);

    if (st < 0)
        return err_set(err, st, "rank %u waited for the states of step %llu: %s", r->rank,
                       (unsigned long long)p->seq, status_text(st));
    if (s->seq != p->seq || s->bytes != state_bytes(e, p->n_tokens) || s->n_times != r->stage)
        return err_set(err, ERR_BADMSG,
                       "rank %u expected the states of step %llu, %u tokens; those of step %llu "
                       "came, %llu bytes",
                       r->rank, (unsigned long long)p->seq, p->n_tokens, (unsigned long long)s->seq,
                       (unsigned long long)s->bytes);
    if (s->bytes)
        e->kernels->copy(e->kernels, engine_worker_states(e->worker), s->data, s->bytes);
    memcpy(times, s->time, r->stage * sizeof *times);
    pipe_states_done(e->pipe);
    return 0;
}

static int pass_states(struct engine *e, const struct plan *p, const struct pipe_time *times,
                       uint32_t n_times, struct err *err)
{
    struct pipe_states *s;
    int st = pipe_states_room(e->pipe, &s);

    if (st < 0)
        return err_set(err, st, "rank %u has no room for the states of step %llu: %s",
                       e->ranks->rank, (unsigned long long)p->seq, status_text(st));
    s->seq = p->seq;
    s->bytes = state_bytes(e, p->n_tokens);
    s->n_times = n_times;
    memcpy(s->time, times, n_times * sizeof *times);
    if (s->bytes)
        e->kernels->copy(e->kernels, s->data, engine_worker_states(e->worker), s->bytes);
    pipe_states_send(e->pipe);
    return 0;
}

int engine_stage_send(struct engine *e, const struct plan *p, struct err *err)
{
    int st;

    if (!e->pipe)
        return 0;
    buf_reset(&e->plan_bytes);
    st = plan_write(e->writer, p, &e->plan_bytes);
    for (uint32_t i = 1; st == 0 && i < e->ranks->n; i++)
        st = pipe_post(e->pipe, i, PIPE_PLAN, e->plan_bytes.data, e->plan_bytes.len);
    return st < 0 ? err_set(err, st, "a step plan cannot be sent to the other ranks: %s",
                            status_text(st))
                  : 0;
}

int engine_stage_run(struct engine *e, const struct plan *p, struct step_choice *out,
                     const struct worker_sink *sink, struct pipe_time *times, uint32_t *n_times,
                     struct err *err)
{
    struct ranks *r = e->ranks;
    bool pushes;
    int st;

    if (r->stage > 0 && (st = take_states(e, p, times, err)) < 0)
        return st;
    times[r->stage].start = clock_now();
    pushes = e->push && kv_push_begin(e->push, engine_remote_transfer(e), p);
    engine_worker_watch(e->worker, pushes ? kv_push_layer : NULL, e->push);
    engine_worker_run(e->worker, p, out, sink);
    if (e->step_delay > 0)
        clock_sleep(e->step_delay);
    times[r->stage].end = clock_now();
    *n_times = r->stage + 1;
    if (r->failed < 0)
        return err_set(err, r->failed, "step %llu: %s", (unsigned long long)p->seq,
                       r->whole ? group_why(r->whole) : status_text(r->failed));
    return r->stage + 1 < r->pp ? pass_states(e, p, times, *n_times, err) : 0;
}

bool engine_stage_is_lost(struct engine *e, double seconds)
{
    double until = clock_now() + seconds;

    while (e->pipe && !atomic_load(&e->is_lost) && clock_now() < until)
        clock_sleep(0.005);
    return atomic_load(&e->is_lost);
}

/* Pipe's thread. Boxes are used in turn; more than there are do not come from ranks that keep to
 * max_inflight. */
static void fill_box(struct engine *e, const void *data, size_t bytes)
{
    struct box *b = &e->box[e->next_box];

    if (atomic_load(&b->full)) {
        pipe_abandon(e->pipe, "more step plans or results came than may be in flight");
        return;
    }
    e->next_box = (e->next_box + 1) % e->n_boxes;
    buf_reset(&b->bytes);
    if (buf_append(&b->bytes, data, bytes) < 0) {
        pipe_abandon(e->pipe, "no memory for a step plan or its result");
        return;
    }
    atomic_store(&b->full, true);
    engine_inbox_post(&e->inbox, &b->mail);
}

static void arrived(void *arg, uint32_t from, uint32_t kind, const void *data, size_t bytes)
{
    struct engine *e = arg;
    bool first = e->ranks->rank == 0;

    if ((kind == PIPE_PLAN && !first && from == 0) ||
        (kind == PIPE_RESULT && first && from == ranks_last(e->ranks)))
        fill_box(e, data, bytes);
    else if (kind == PIPE_LEAVE && !first && from == 0)
        engine_inbox_post(&e->inbox, &e->leave_mail);
    else if (kind == PIPE_KV)
        engine_remote_arrived(e, from, data, bytes);
    else
        log_warning("rank %u sent a message of kind %u that is not understood", from, kind);
}

/* "rank 3 has ended", with its place and process id. */
static void tell_lost(struct engine *e, uint32_t rank, const char *why)
{
    char name[80], plain[32];
    size_t n = (size_t)snprintf(plain, sizeof plain, "rank %u ", rank);

    if (strncmp(why, plain, n) == 0)
        snprintf(e->lost, sizeof e->lost, "%s %s", ranks_name(e->ranks, rank, name, sizeof name),
                 why + n);
}

/* Pipe's thread. */
static void broken(void *arg, int status, const char *why)
{
    struct engine *e = arg;
    int lost = pipe_lost(e->pipe);

    (void)status;
    snprintf(e->lost, sizeof e->lost, "%s", why);
    if (lost >= 0)
        tell_lost(e, (uint32_t)lost, why);
    atomic_store(&e->is_lost, true);
    kv_lead_broken(e->kv_lead, e->lost);
    engine_inbox_post(&e->inbox, &e->broken_mail);
}

static int make_boxes(struct engine *e)
{
    e->n_boxes = 2 * e->sched_config.max_inflight + 2;
    e->broken_mail.kind = MAIL_BROKEN;
    e->leave_mail.kind = MAIL_LEAVE;
    if (!(e->box = calloc(e->n_boxes, sizeof *e->box)))
        return ERR_NOMEM;
    for (uint32_t i = 0; i < e->n_boxes; i++) {
        e->box[i].mail.kind = MAIL_BOX;
        buf_init(&e->box[i].bytes, PIPE_MAX_MESSAGE);
    }
    return 0;
}

int engine_stage_open_pipe(struct engine *e, struct err *err)
{
    struct ranks *r = e->ranks;
    const struct pipe_options o = {
        .group = r->pipe_group,
        .from = r->stage > 0 ? r->rank - r->tp : PIPE_NOBODY,
        .to = r->stage + 1 < r->pp ? r->rank + r->tp : PIPE_NOBODY,
        .state_bytes = state_bytes(e, e->sched_config.max_batched_tokens),
        /* rank 0 gives up first, and says who it was */
        .seconds = r->rank == 0 ? r->step_seconds : 2 * r->step_seconds,
        .arrived = arrived,
        .broken = broken,
        .arg = e,
    };
    int st;

    if (r->n == 1)
        return 0;
    if (make_boxes(e) < 0)
        return err_set(err, ERR_NOMEM, "no memory for %u steps in flight", e->n_boxes);
    if ((st = pipe_create(&e->pipe, &o, err)) == 0)
        r->pipe_group = NULL;
    return st;
}
