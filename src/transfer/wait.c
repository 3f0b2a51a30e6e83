#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sys/clock.h"
#include "transfer/internal.h"

#define WAIT_NOTE_MIN 0.01 /* seconds: however impatient a consumer is */

static void count(struct transfer *t)
{
    pthread_mutex_lock(&t->lock);
    t->stats.waiting = t->n_waiters;
    pthread_mutex_unlock(&t->lock);
}

/* Takes *at out of the list. The caller frees it. */
static struct waiter *take_out(struct transfer *t, struct waiter **at)
{
    struct waiter *w = *at;

    *at = w->next;
    t->n_waiters--;
    count(t);
    return w;
}

static double note_seconds(const struct message_pull *m)
{
    return fmax(WAIT_NOTE_MIN, m->wait_ms / 1000.0);
}

static void park(struct conn *c, const struct message_pull *m)
{
    struct transfer *t = c->t;
    struct waiter *w = t->n_waiters < TRANSFER_READS_MAX ? calloc(1, sizeof *w) : NULL;

    if (!w) {
        serve_result(c, m->pull, ERR_LIMIT, "the producer has as many waiting pulls as it can");
        return;
    }
    w->conn = c;
    w->pull = *m;
    w->note_at = clock_now() + note_seconds(m);
    w->next = t->waiters;
    t->waiters = w;
    t->n_waiters++;
    count(t);
}

static const char *refusal(int status)
{
    switch (status) {
    case ERR_NOTFOUND:
        return "the prefill of this name failed, or its KV has been fetched or given up";
    case ERR_MISMATCH:
        return "the prefill of this name is another prompt's";
    case ERR_TIMEOUT:
        return "no prefill of this name was asked for in time";
    default:
        return status_text(status);
    }
}

void wait_ask(struct conn *c, const struct message_pull *m)
{
    struct transfer *t = c->t;
    int st;

    pthread_mutex_lock(&t->lock);
    st = await_ask(&t->awaits, m->lease, m->prompt, clock_now() + t->opt.pull_timeout);
    pthread_mutex_unlock(&t->lock);
    if (st < 0)
        serve_result(c, m->pull, st, refusal(st));
    else
        park(c, m);
}

static struct waiter **find(const struct conn *c, uint64_t pull)
{
    struct waiter **at = &c->t->waiters;

    while (*at && ((*at)->conn != c || (*at)->pull.pull != pull))
        at = &(*at)->next;
    return at;
}

bool wait_has(const struct conn *c, uint64_t pull)
{
    return *find(c, pull) != NULL;
}

bool wait_stop(struct conn *c, uint64_t pull)
{
    struct waiter **at = find(c, pull);

    if (!*at)
        return false;
    free(take_out(c->t, at));
    return true;
}

void wait_conn_lost(struct conn *c)
{
    struct waiter **at = &c->t->waiters;

    while (*at)
        if ((*at)->conn == c)
            free(take_out(c->t, at));
        else
            at = &(*at)->next;
}

/* 1: go on waiting; 0: the lease is there; or why it will not come. */
static int outlook(struct transfer *t, const struct waiter *w)
{
    const struct await *a;
    int st;

    pthread_mutex_lock(&t->lock);
    a = await_find(&t->awaits, w->pull.lease);
    if (lease_find(&t->leases, w->pull.lease))
        st = 0;
    else if (!a)
        st = ERR_TIMEOUT;
    else if (a->failed)
        st = ERR_NOTFOUND;
    else if (a->coming && !await_same_prompt(a->prompt, w->pull.prompt))
        st = ERR_MISMATCH;
    else
        st = 1;
    pthread_mutex_unlock(&t->lock);
    return st;
}

/* Serving and refusing close no connection at once; a pull whose lease has just ended is parked anew, at
 * the head: the list can be walked. */
static void look_at_all(struct transfer *t)
{
    struct waiter **at = &t->waiters;

    while (*at) {
        int st = outlook(t, *at);
        struct waiter *w;

        if (st > 0) {
            at = &(*at)->next;
            continue;
        }
        w = take_out(t, at);
        if (st == 0)
            serve_pull(w->conn, &w->pull);
        else
            serve_result(w->conn, w->pull.pull, st, refusal(st));
        free(w);
    }
}

void wait_timers(struct transfer *t, double now)
{
    bool look;

    pthread_mutex_lock(&t->lock);
    look = await_expire(&t->awaits, now) || t->awaits_changed;
    t->awaits_changed = false;
    pthread_mutex_unlock(&t->lock);
    if (look)
        look_at_all(t);
    for (struct waiter *w = t->waiters; w; w = w->next)
        if (w->note_at <= now) {
            conn_send_id(w->conn, MESSAGE_WAIT, w->pull.pull);
            w->note_at = now + note_seconds(&w->pull);
        }
}

double wait_next(struct transfer *t)
{
    double next;

    pthread_mutex_lock(&t->lock);
    next = t->awaits_changed ? 0 : t->awaits.next;
    pthread_mutex_unlock(&t->lock);
    for (const struct waiter *w = t->waiters; w; w = w->next)
        next = fmin(next, w->note_at);
    return next;
}

void wait_finish(struct transfer *t)
{
    while (t->waiters)
        free(take_out(t, &t->waiters));
}
