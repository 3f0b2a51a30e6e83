/* The engine in a data-parallel group: when its ranks meet those of the other instances, and what it
 * tells dp.h of itself. */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "comm/group.h"
#include "engine/internal.h"

#define MEET_SECONDS 120.0

/* What rank 0 of an instance tells its others when all are called. */
struct call {
    int32_t status; /* < 0: nobody goes anywhere */
    uint32_t port;
};

static void wake(void *arg)
{
    struct engine *e = arg;

    engine_inbox_wake(&e->inbox);
}

static int tell_ranks(struct engine *e, int status, uint16_t port)
{
    struct call c = { status, port };

    return e->ranks->n > 1 ? group_broadcast(e->ranks->pipe_group, 0, &c, sizeof c) : 0;
}

static int call(void *arg, uint16_t port, struct err *err)
{
    struct engine *e = arg;
    int st = tell_ranks(e, 0, port);

    return st < 0 ? err_set(err, st, "%s", group_why(e->ranks->pipe_group)) : 0;
}

static int met(void *arg, struct group *whole, struct err *err)
{
    struct engine *e = arg;

    e->ranks->failed = 0;
    return ranks_use(e->ranks, whole, e->dp_first, err);
}

static void parted(void *arg)
{
    struct engine *e = arg;

    ranks_unuse(e->ranks);
}

/* What shapes the exchanges of a step, and what they are exchanges of. */
static uint64_t about(const struct engine *e)
{
    const struct sched_config *s = &e->sched_config;
    const struct model_part *p = &e->ranks->part;
    const char *model = model_fingerprint(e->model);
    const uint32_t numbers[] = { 1,
                                 e->ranks->pp,
                                 e->ranks->tp,
                                 p->ep_size,
                                 p->head_size,
                                 p->sequence_parallel,
                                 p->overlap_shared_expert,
                                 s->max_batched_tokens,
                                 s->n_draft_tokens };
    const struct hash_part parts[] = { { numbers, sizeof numbers }, { model, strlen(model) } };
    struct hash256 h;
    uint64_t out;

    hash_sha256(&h, parts, 2);
    memcpy(&out, h.b, sizeof out);
    return out;
}

static struct dp_options options(struct engine *e, const struct engine_options *o)
{
    const struct engine_ranks *r = &o->ranks;

    return (struct dp_options){
        .rank = r->dp_rank,
        .size = r->dp_size,
        .n_ranks = e->ranks->n,
        .own_host = r->host,
        .host = r->dp_host,
        .port = r->dp_port,
        .secret = r->secret,
        .meet_seconds = r->meet_seconds > 0 ? r->meet_seconds : MEET_SECONDS,
        .step_seconds = e->ranks->step_seconds,
        .scratch = e->ranks->scratch,
        .in_step = e->dp_in_step,
        .wake = wake,
        .call = call,
        .met = met,
        .parted = parted,
        .arg = e,
    };
}

int engine_dp_look(struct engine_options *o, struct err *err)
{
    struct model_config c;
    int st;

    if (!o->ranks.expert_parallel)
        return 0;
    if ((st = model_read_config(&c, o->model.path, o->model.hf_overrides, err)) < 0)
        return st;
    if (c.experts > 0)
        return 0;
    log_info("expert parallelism has no effect: %s has no experts", c.arch);
    o->ranks.expert_parallel = false;
    return 0;
}

int engine_dp_begin(struct engine *e, const struct engine_options *o, struct err *err)
{
    const struct engine_ranks *r = &o->ranks;
    struct dp_options d;

    if (r->dp_size <= 1)
        return 0;
    e->dp_in_step = r->expert_parallel || r->head_ranks > 1;
    e->dp_first = r->dp_rank * e->ranks->n;
    d = options(e, o);
    return e->ranks->rank == 0 ? engine_dp_open(&e->dp, &d, err) : 0;
}

/* A rank other than 0 of its instance: goes where that one is called. */
static int follow(struct engine *e, const struct engine_options *o, struct err *err)
{
    const struct dp_options d = options(e, o);
    struct call c;
    struct group *whole;
    int st = group_broadcast(e->ranks->pipe_group, 0, &c, sizeof c);

    if (st < 0)
        return err_set(err, st, "%s", group_why(e->ranks->pipe_group));
    if (c.status < 0)
        return err_set(err, c.status, "the data-parallel group did not meet");
    if ((st = engine_dp_follow(&whole, &d, e->ranks->rank, (uint16_t)c.port, about(e), err)) < 0)
        return st;
    if ((st = ranks_use(e->ranks, whole, e->dp_first, err)) == 0)
        e->ranks->owns_whole = true;
    return st;
}

static int lead(struct engine *e, struct err *err)
{
    int st = engine_dp_meet(e->dp, about(e), err);

    if (st < 0)
        tell_ranks(e, st, 0); /* they may wait for the call still */
    return st;
}

int engine_dp_gather(struct engine *e, const struct engine_options *o, struct err *err)
{
    if (!e->dp_in_step)
        return 0;
    return e->ranks->rank == 0 ? lead(e, err) : follow(e, o, err);
}
