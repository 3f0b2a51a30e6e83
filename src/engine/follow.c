/* A rank other than 0: does what rank 0 plans, until that leaves. */
#include <stdlib.h>

#include "base/log.h"
#include "engine/internal.h"
#include "sys/clock.h"

/* Longest sleep without work: nothing depends on it, it only bounds every wait. */
#define IDLE_SECONDS 5.0
/* Longest wait for the news that the ranks are not together any more. */
#define CAUSE_SECONDS 0.5

static void no_token(void *arg, const struct plan_entry *en, uint32_t index,
                     const struct k_sample *row, const struct k_choice *c)
{
    (void)arg;
    (void)en;
    (void)index;
    (void)row;
    (void)c;
}

static int send_result(struct engine *e, const struct pipe_time *times, uint32_t n_times,
                       struct err *err)
{
    int st = result_end(&e->result, e->choice, times, n_times);

    if (st == 0)
        st = pipe_post(e->pipe, 0, PIPE_RESULT, e->result.b.data, e->result.b.len);
    return st < 0 ? err_set(err, st, "rank %u: the result of a step: %s", e->ranks->rank,
                            status_text(st))
                  : 0;
}

static int run_box(struct engine *e, struct box *b, struct err *err)
{
    const struct worker_sink quiet = { .prompt = no_token, .token = no_token };
    bool last = e->ranks->rank == ranks_last(e->ranks);
    struct worker_sink sink = last ? result_sink(&e->result) : quiet;
    struct pipe_time times[ENGINE_MAX_STAGES];
    const struct plan *p;
    uint32_t n_times;
    int st = plan_read(e->reader, b->bytes.data, b->bytes.len, &p);

    atomic_store(&b->full, false);
    if (st < 0)
        return err_set(err, st, "rank %u cannot read a step plan: %s", e->ranks->rank,
                       status_text(st));
    if (last)
        result_begin(&e->result, p);
    if ((st = engine_stage_run(e, p, e->choice, &sink, times, &n_times, err)) < 0)
        return st;
    return last ? send_result(e, times, n_times, err) : 0;
}

/* Handles mail in order. 1: told to leave; 0; or why this rank ends. */
static int follow(struct engine *e, struct mail *m, struct err *err)
{
    struct mail *next;
    int st = 0;

    for (; m && st == 0; m = next) {
        next = m->next;
        switch (m->kind) {
        case MAIL_BOX:
            st = run_box(e, (struct box *)(void *)m, err);
            break;
        case MAIL_LEAVE:
            return 1;
        case MAIL_BROKEN:
            return err_set(err, ERR_CLOSED, "%s", e->lost);
        default:
            break;
        }
    }
    return st;
}

/* A step that failed because the ranks fell apart: the sentence of that is the better one. Else the others
 * hear this one. */
static int cause(struct engine *e, int st, struct err *err)
{
    if (engine_stage_is_lost(e, CAUSE_SECONDS))
        return err_set(err, st, "%s", e->lost);
    pipe_abandon(e->pipe, err->text);
    engine_stage_is_lost(e, CAUSE_SECONDS); /* until it is on its way */
    return st;
}

int engine_worker_serve(const struct engine_options *opt, struct err *err)
{
    struct engine *e = calloc(1, sizeof *e);
    struct plan_limits limits;
    int st;

    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the engine");
    engine_inbox_init(&e->inbox);
    engine_job_table_init(&e->jobs);
    pthread_mutex_init(&e->lock, NULL);
    result_writer_init(&e->result);
    if ((st = engine_open_part(e, opt, err)) == 0) {
        limits = engine_plan_limits(e);
        st = plan_reader_create(&e->reader, &limits, err);
    }
    if (st == 0)
        log_info("rank %u is ready: stage %u of %u, place %u of %u", e->ranks->rank,
                 e->ranks->stage, e->ranks->pp, e->ranks->place, e->ranks->tp);
    while (st == 0)
        st = follow(e, engine_inbox_take(&e->inbox, IDLE_SECONDS), err);
    if (st < 0 && e->pipe)
        st = cause(e, st, err);
    engine_close(e);
    return st < 0 ? st : 0;
}
