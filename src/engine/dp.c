#include "engine/dp.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "engine/dp_coordinator.h"
#include "engine/dp_member.h"
#include "engine/engine.h"
#include "sys/clock.h"

#define JOIN_SECONDS  30.0 /* for ranks that are all there to find each other */
#define CAUSE_SECONDS 1.0  /* longest wait for the coordinator's word on why the group broke */
#define LOAD_TIMES    10   /* so many times meet_seconds a rank may take to load */
#define LEADERS       16   /* id of the sub-group of the instances' first ranks */

/* What ranks tell each other before each step. */
struct turn {
    uint32_t step; /* the same on all */
    uint32_t has_plan;
};

struct dp {
    struct dp_options o;
    char *own_host, *host, *secret;
    struct dp_coordinator *coordinator; /* rank 0 */
    struct dp_member *member;
    uint64_t about;
    struct turn *turns; /* [size] */

    struct group *group;   /* NULL: apart */
    struct group *leaders; /* the first ranks of the instances */
    uint64_t epoch;        /* of the last attempt to meet */
    uint32_t answered;     /* dp_view.asked that was answered last */
    uint64_t wave;         /* the last that began here */
    bool in_wave;

    pthread_mutex_t lock;   /* the rest */
    char why[DP_NOTE_TEXT]; /* why the group is apart; "" while it is not */
    uint64_t meetings, waves, steps;
};

/* ---- together and apart ---- */

static void set_apart(struct dp *d, const char *why)
{
    pthread_mutex_lock(&d->lock);
    snprintf(d->why, sizeof d->why, "%s", why);
    pthread_mutex_unlock(&d->lock);
}

static void say(struct dp *d, uint32_t kind, uint64_t epoch, const char *why)
{
    struct dp_note n = { .kind = kind, .epoch = epoch, .wave = d->wave, .about = d->about };

    snprintf(n.text, sizeof n.text, "%s", why);
    dp_member_say(d->member, &n);
}

/* Leaves the group such that nobody waits for this rank in it. */
static void fall_apart(struct dp *d, const char *why)
{
    char text[DP_NOTE_TEXT];

    snprintf(text, sizeof text, "%s", why); /* may be the group's own */
    if (d->o.parted)
        d->o.parted(d->o.arg);
    group_abandon(d->group, text);
    group_leave(d->group);
    d->group = d->leaders = NULL;
    d->in_wave = false;
    set_apart(d, text);
    say(d, DP_BROKEN, d->epoch, text);
}

/* The coordinator knows in a moment why, if one has died, or has fallen apart itself; unless this rank has
 * heard it, of a rank that the coordinator does not know. */
void engine_dp_fail(struct dp *d)
{
    struct dp_view v;
    double until = clock_now() + CAUSE_SECONDS;

    if (!d->group)
        return;
    if (d->o.n_ranks > 1 && group_lost(d->group) >= 0)
        until = 0;
    dp_member_view(d->member, &v);
    while (v.port != 0 && clock_now() < until) {
        dp_member_wait(d->member, &v, until - clock_now());
        dp_member_view(d->member, &v);
    }
    fall_apart(d, v.port == 0 ? v.why : group_why(d->group));
}

static struct group_options group_options(const struct dp_options *o, uint32_t rank, uint16_t port,
                                          uint64_t about)
{
    return (struct group_options){
        .rank = o->rank * o->n_ranks + rank,
        .size = o->size * o->n_ranks,
        .host = o->own_host ? o->own_host : o->host,
        .master_host = o->host,
        .master_port = port,
        .listen_fd = -1,
        .secret = o->secret,
        .about = about,
        .meet_seconds = JOIN_SECONDS,
        .op_seconds = o->step_seconds,
        .scratch = o->scratch,
        .instance_ranks = o->n_ranks,
    };
}

int engine_dp_follow(struct group **out, const struct dp_options *o, uint32_t rank, uint16_t port,
                     uint64_t about, struct err *e)
{
    const struct group_options g = group_options(o, rank, port, about);

    return group_join(out, &g, e);
}

static int part_leaders(struct dp *d, struct err *e)
{
    uint32_t rank[GROUP_MAX_RANKS];

    for (uint32_t i = 0; i < d->o.size; i++)
        rank[i] = i * d->o.n_ranks;
    return group_part(&d->leaders, d->group, LEADERS, rank, d->o.size, e);
}

static int join(struct dp *d, uint16_t port, struct err *e)
{
    struct group_options g = group_options(&d->o, 0, port, d->about);
    int st;

    if (d->o.rank == 0 && (g.listen_fd = dp_member_take_listener(d->member, d->epoch)) < 0)
        return err_set(e, ERR_CLOSED, "the place to meet has gone");
    if (d->o.call && (st = d->o.call(d->o.arg, port, e)) < 0) {
        if (g.listen_fd >= 0)
            close(g.listen_fd);
        return st;
    }
    if ((st = group_join(&d->group, &g, e)) < 0) {
        d->group = NULL;
        return st;
    }
    st = part_leaders(d, e);
    return st == 0 && d->o.met ? d->o.met(d->o.arg, d->group, e) : st;
}

static bool come_together(struct dp *d, const struct dp_view *v)
{
    struct err e = { "" };

    d->epoch = v->epoch;
    if (join(d, v->port, &e) < 0) {
        log_warning("data-parallel rank %u could not join the others: %s", d->o.rank, e.text);
        if (d->group)
            fall_apart(d, e.text);
        else
            say(d, DP_BROKEN, d->epoch, e.text);
        return false;
    }
    d->wave = 0;
    d->in_wave = false;
    pthread_mutex_lock(&d->lock);
    d->why[0] = '\0';
    d->meetings++;
    d->waves = d->steps = 0;
    pthread_mutex_unlock(&d->lock);
    log_info("data-parallel rank %u of %u: all ranks are there", d->o.rank, d->o.size);
    return true;
}

/* What a rank does that is in no group: says so, and goes where it is called. */
static void look_for_group(struct dp *d, const struct dp_view *v)
{
    if (v->connected && d->answered != v->asked) {
        d->answered = v->asked;
        say(d, DP_READY, 0, "");
    }
    if (v->port && v->epoch != d->epoch)
        come_together(d, v);
}

static int waited_in_vain(const struct dp *d, const struct dp_view *v, struct err *e)
{
    if (!v->connected && v->why[0])
        return err_set(e, ERR_TIMEOUT, "data-parallel rank %u of %u could not join for %.0f s: %s",
                       d->o.rank, d->o.size, d->o.meet_seconds, v->why);
    return err_set(e, ERR_TIMEOUT,
                   "data-parallel rank %u of %u waited %.0f s for %s; start all with the same "
                   "--data-parallel-address and --data-parallel-rpc-port",
                   d->o.rank, d->o.size, d->o.meet_seconds, v->missing);
}

int engine_dp_meet(struct dp *d, uint64_t about, struct err *e)
{
    double now = clock_now(), until = now + d->o.meet_seconds;
    double loaded = now + LOAD_TIMES * d->o.meet_seconds;

    d->about = about;
    while (d->o.in_step && !d->group) {
        struct dp_view v;

        dp_member_view(d->member, &v);
        if (v.refused)
            return err_set(e, ERR_MISMATCH, "rank 0 at %s:%u refused this rank: %s", d->host,
                           d->o.port, v.why);
        now = clock_now();
        if (now > loaded || (now > until && v.absent > 0))
            return waited_in_vain(d, &v, e);
        look_for_group(d, &v);
        if (!d->group && d->epoch != 0 && d->o.n_ranks > 1)
            return err_set(e, ERR_CLOSED,
                           "the ranks of the data-parallel group did not find each other");
        if (!d->group)
            dp_member_wait(d->member, &v, 0.5);
    }
    return 0;
}

bool engine_dp_is_apart(struct dp *d, char *why, size_t size)
{
    struct dp_view v;
    bool apart;

    if (!d->o.in_step)
        return false;
    dp_member_view(d->member, &v);
    pthread_mutex_lock(&d->lock);
    apart = d->why[0] != '\0';
    if (apart && v.missing[0] && d->o.n_ranks == 1)
        snprintf(why, size, "waiting for %s", v.missing);
    else if (apart)
        snprintf(why, size, "the data-parallel group has come apart: %s", d->why);
    pthread_mutex_unlock(&d->lock);
    return apart;
}

/* ---- steps ---- */

/* Asks for a wave and waits for its beginning, or for news that none will. */
static void ask_for_wave(struct dp *d, struct dp_view *v)
{
    double until = clock_now() + d->o.step_seconds;

    say(d, DP_WAKE, d->epoch, "");
    while (v->port && v->wave == d->wave && clock_now() < until) {
        dp_member_wait(d->member, v, until - clock_now());
        dp_member_view(d->member, v);
    }
    if (v->port && v->wave == d->wave) {
        v->port = 0;
        snprintf(v->why, sizeof v->why, "data-parallel rank 0 did not answer for %.0f s",
                 d->o.step_seconds);
    }
}

static void begin_wave(struct dp *d, uint64_t wave)
{
    d->wave = wave;
    d->in_wave = true;
    pthread_mutex_lock(&d->lock);
    d->waves++;
    pthread_mutex_unlock(&d->lock);
}

/* Tells the others and hears them: 1 if anybody has work, 0, or why not. */
static int agree(struct dp *d, bool has_plan)
{
    struct turn mine = { .step = (uint32_t)d->steps, .has_plan = has_plan };
    int st = group_all_gather(d->leaders, d->turns, &mine, sizeof mine), any = 0;

    for (uint32_t r = 0; st == 0 && r < d->o.size; r++) {
        if (d->turns[r].step != mine.step) {
            log_error("data-parallel rank %u is at step %u, this rank at %u", r, d->turns[r].step,
                      mine.step);
            st = ERR_MISMATCH;
        }
        any |= d->turns[r].has_plan != 0;
    }
    return st < 0 ? st : any;
}

static enum dp_turn next_step(struct dp *d, bool has_plan)
{
    int any = agree(d, has_plan);

    if (any < 0) {
        engine_dp_fail(d);
        return DP_APART;
    }
    if (any == 0) {
        d->in_wave = false;
        return DP_REST;
    }
    pthread_mutex_lock(&d->lock);
    d->steps++;
    pthread_mutex_unlock(&d->lock);
    return DP_STEP;
}

/* One look at what the coordinator says; true if that settles what to do now. */
static bool look(struct dp *d, bool has_plan, enum dp_turn *turn)
{
    struct dp_view v;

    dp_member_view(d->member, &v);
    if (d->group && v.port && !d->in_wave && v.wave == d->wave && has_plan)
        ask_for_wave(d, &v);
    if (d->group && v.port == 0)
        fall_apart(d, v.why);
    if (!d->group) {
        look_for_group(d, &v);
        *turn = DP_APART;
        return !d->group;
    }
    *turn = DP_REST;
    if (!d->in_wave && v.wave == d->wave)
        return true;
    if (!d->in_wave)
        begin_wave(d, v.wave);
    /* At a wave's end the next one may have begun already; its wake-up may have come before that. */
    return (*turn = next_step(d, has_plan)) != DP_REST;
}

enum dp_turn engine_dp_turn(struct dp *d, bool has_plan)
{
    enum dp_turn turn;

    if (!d->o.in_step)
        return has_plan ? DP_STEP : DP_REST;
    while (!look(d, has_plan, &turn))
        continue;
    return turn;
}

bool engine_dp_in_wave(const struct dp *d)
{
    return d->in_wave;
}

void engine_dp_stats(struct dp *d, struct engine_dp_stats *out)
{
    *out = (struct engine_dp_stats){ .rank = d->o.rank, .size = d->o.size };
    dp_member_up(d->member, out->up, ENGINE_MAX_DP);
    pthread_mutex_lock(&d->lock);
    out->meetings = d->meetings;
    out->waves = d->waves;
    out->steps = d->steps;
    pthread_mutex_unlock(&d->lock);
}

/* ---- the door ---- */

static int copy_options(struct dp *d, const struct dp_options *o)
{
    d->o = *o;
    pthread_mutex_init(&d->lock, NULL);
    if (o->in_step)
        snprintf(d->why, sizeof d->why, "it has not met yet");
    d->own_host = o->own_host ? strdup(o->own_host) : NULL;
    d->host = strdup(o->host);
    d->secret = o->secret ? strdup(o->secret) : NULL;
    d->turns = calloc(o->size, sizeof *d->turns);
    d->o.own_host = d->own_host;
    d->o.host = d->host;
    d->o.secret = d->secret;
    return (o->own_host && !d->own_host) || !d->host || (o->secret && !d->secret) || !d->turns
               ? ERR_NOMEM
               : 0;
}

static int open_ends(struct dp *d, struct err *e)
{
    struct dp_coordinator_options c = {
        .host = d->host, .port = d->o.port, .secret = d->secret, .size = d->o.size
    };
    struct dp_member_options m = { .rank = d->o.rank,
                                   .size = d->o.size,
                                   .own_host = d->own_host,
                                   .host = d->host,
                                   .port = d->o.port,
                                   .secret = d->secret,
                                   .in_step = d->o.in_step,
                                   .wake = d->o.wake,
                                   .wake_arg = d->o.arg };
    int st = 0;

    if (d->o.rank == 0)
        st = dp_coordinator_open(&d->coordinator, &c, e);
    return st < 0 ? st : dp_member_open(&d->member, &m, e);
}

int engine_dp_open(struct dp **out, const struct dp_options *o, struct err *e)
{
    struct dp *d;
    int st;

    if (o->rank >= o->size || o->n_ranks == 0 || o->size > GROUP_MAX_RANKS / o->n_ranks ||
        o->size > ENGINE_MAX_DP)
        return err_set(e, ERR_RANGE,
                       "data-parallel rank %u of %u instances of %u ranks: at most %d ranks in all",
                       o->rank, o->size, o->n_ranks, GROUP_MAX_RANKS);
    if (!(d = calloc(1, sizeof *d)))
        return err_set(e, ERR_NOMEM, "no memory for a data-parallel rank");
    if (copy_options(d, o) < 0)
        st = err_set(e, ERR_NOMEM, "no memory for a data-parallel rank");
    else
        st = open_ends(d, e);
    if (st < 0) {
        engine_dp_close(d);
        return st;
    }
    *out = d;
    return 0;
}

void engine_dp_close(struct dp *d)
{
    if (!d)
        return;
    if (d->group && d->o.parted)
        d->o.parted(d->o.arg);
    if (d->group && d->in_wave)
        group_abandon(d->group, "a data-parallel rank was told to stop");
    group_leave(d->group);
    dp_member_close(d->member);
    dp_coordinator_close(d->coordinator);
    pthread_mutex_destroy(&d->lock);
    free(d->own_host);
    free(d->host);
    free(d->secret);
    free(d->turns);
    free(d);
}
