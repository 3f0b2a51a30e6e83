#include "engine/mailbox.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "base/status.h"

void engine_inbox_init(struct inbox *b)
{
    pthread_condattr_t attr;

    *b = (struct inbox){ 0 };
    b->tail = &b->head;
    pthread_mutex_init(&b->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&b->some, &attr);
    pthread_condattr_destroy(&attr);
}

void engine_inbox_finish(struct inbox *b)
{
    pthread_cond_destroy(&b->some);
    pthread_mutex_destroy(&b->lock);
}

void engine_inbox_post(struct inbox *b, struct mail *m)
{
    m->next = NULL;
    pthread_mutex_lock(&b->lock);
    *b->tail = m;
    b->tail = &m->next;
    pthread_cond_signal(&b->some);
    pthread_mutex_unlock(&b->lock);
}

void engine_inbox_wake(struct inbox *b)
{
    pthread_mutex_lock(&b->lock);
    b->woken = true;
    pthread_cond_signal(&b->some);
    pthread_mutex_unlock(&b->lock);
}

static struct timespec deadline(double timeout)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)timeout;
    t.tv_nsec += (long)((timeout - (double)(time_t)timeout) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

struct mail *engine_inbox_take(struct inbox *b, double timeout)
{
    struct mail *m;

    pthread_mutex_lock(&b->lock);
    if (!b->head && !b->woken && timeout > 0) {
        struct timespec until = deadline(timeout);

        /* One wait: a wake without mail (engine_inbox_wake) must return too. */
        pthread_cond_timedwait(&b->some, &b->lock, &until);
    }
    m = b->head;
    b->head = NULL;
    b->tail = &b->head;
    b->woken = false;
    pthread_mutex_unlock(&b->lock);
    return m;
}

int engine_outbox_init(struct outbox *o, uint32_t cap, int (*notify)(void *), void *arg)
{
    *o = (struct outbox){ .cap = cap, .notify = notify, .notify_arg = arg };
    o->ring = malloc(cap * sizeof *o->ring);
    pthread_mutex_init(&o->lock, NULL);
    return o->ring ? 0 : ERR_NOMEM;
}

void engine_outbox_finish(struct outbox *o)
{
    for (; o->n; o->n--, o->head = (o->head + 1) % o->cap)
        engine_event_finish(&o->ring[o->head]);
    free(o->ring);
    pthread_mutex_destroy(&o->lock);
}

static int grow(struct outbox *o)
{
    struct engine_event *ring = malloc(2u * o->cap * sizeof *ring);

    if (!ring)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < o->n; i++)
        ring[i] = o->ring[(o->head + i) % o->cap];
    free(o->ring);
    o->ring = ring;
    o->head = 0;
    o->cap *= 2;
    return 0;
}

/* A place beside the reserved ones. */
static int make_room(struct outbox *o)
{
    return o->cap - o->n > o->reserved ? 0 : grow(o);
}

int engine_outbox_reserve(struct outbox *o)
{
    int st;

    pthread_mutex_lock(&o->lock);
    st = make_room(o);
    if (st == 0)
        o->reserved++;
    pthread_mutex_unlock(&o->lock);
    return st;
}

void engine_outbox_unreserve(struct outbox *o)
{
    pthread_mutex_lock(&o->lock);
    o->reserved--;
    pthread_mutex_unlock(&o->lock);
}

static void append(struct outbox *o, const struct engine_event *ev)
{
    o->ring[(o->head + o->n++) % o->cap] = *ev;
}

int engine_outbox_put(struct outbox *o, struct engine_event *ev)
{
    int st;

    pthread_mutex_lock(&o->lock);
    st = make_room(o);
    if (st == 0)
        append(o, ev);
    pthread_mutex_unlock(&o->lock);
    if (st < 0)
        engine_event_finish(ev);
    return st;
}

void engine_outbox_put_reserved(struct outbox *o, struct engine_event *ev)
{
    pthread_mutex_lock(&o->lock);
    assert(o->reserved > 0 && o->n < o->cap);
    o->reserved--;
    append(o, ev);
    pthread_mutex_unlock(&o->lock);
}

void engine_outbox_flush(struct outbox *o)
{
    bool tell;

    pthread_mutex_lock(&o->lock);
    tell = o->n && !o->announced;
    o->announced |= tell;
    pthread_mutex_unlock(&o->lock);
    if (tell && o->notify && o->notify(o->notify_arg) < 0) {
        pthread_mutex_lock(&o->lock);
        o->announced = false;
        pthread_mutex_unlock(&o->lock);
    }
}

bool engine_outbox_full(struct outbox *o)
{
    bool full;

    pthread_mutex_lock(&o->lock);
    full = o->n > OUTBOX_HIGH;
    pthread_mutex_unlock(&o->lock);
    return full;
}

uint32_t engine_outbox_take(struct outbox *o, struct engine_event *out, uint32_t max)
{
    uint32_t n = 0;

    pthread_mutex_lock(&o->lock);
    while (n < max && o->n) {
        out[n++] = o->ring[o->head];
        o->head = (o->head + 1) % o->cap;
        o->n--;
    }
    if (o->n == 0)
        o->announced = false;
    pthread_mutex_unlock(&o->lock);
    return n;
}
