/* Posts travel over an eventfd and a list of our own, so that libevent itself stays single-threaded and
 * takes no locks. */
#include "net/loop.h"

#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/status.h"
#include "net/timeval.h"
#include "sys/clock.h"

#define LOOP_MAX_SIGNALS 8

struct post {
    struct post *next;
    void (*fn)(void *arg);
    void *arg;
};

struct loop {
    struct event_base *base;
    struct event *wake_event;
    int wake_fd;
    pthread_mutex_t lock; /* of the two below */
    struct post *first, **last;
    struct event *signals[LOOP_MAX_SIGNALS];
    int n_signals;
    void (*on_signal)(void *arg, int signo);
    void *signal_arg;
};

struct loop_timer {
    struct event *event;
    struct timeval period;
    bool repeat;
    void (*fn)(void *arg);
    void *arg;
};

static struct post *take_posts(struct loop *l)
{
    struct post *first;

    pthread_mutex_lock(&l->lock);
    first = l->first;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->lock);
    return first;
}

/* A round runs what was there when it began: posts that post again do not starve the sockets. */
static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct post *p, *next;
    uint64_t count;

    (void)what;
    if (read(fd, &count, sizeof count) < 0)
        return;
    for (p = take_posts(arg); p; p = next) {
        next = p->next;
        p->fn(p->arg);
        free(p);
    }
}

static struct event_base *new_base(void)
{
    struct event_config *config = event_config_new();
    struct event_base *base;

    if (!config)
        return NULL;
    event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
    event_config_set_flag(config, EVENT_BASE_FLAG_PRECISE_TIMER);
    base = event_base_new_with_config(config);
    event_config_free(config);
    return base;
}

int loop_create(struct loop **out, struct err *e)
{
    struct loop *l = calloc(1, sizeof *l);

    if (!l)
        return err_set(e, ERR_NOMEM, "event loop: out of memory");
    signal(SIGPIPE, SIG_IGN);
    pthread_mutex_init(&l->lock, NULL);
    l->last = &l->first;
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    l->base = new_base();
    if (l->wake_fd < 0 || !l->base ||
        !(l->wake_event = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, on_wake, l)) ||
        event_add(l->wake_event, NULL) < 0) {
        loop_destroy(l);
        return err_set(e, ERR_IO, "event loop: cannot create it (too many open files?)");
    }
    *out = l;
    return 0;
}

void loop_destroy(struct loop *l)
{
    struct post *p, *next;

    if (!l)
        return;
    for (p = take_posts(l); p; p = next) {
        next = p->next;
        free(p);
    }
    for (int i = 0; i < l->n_signals; i++)
        event_free(l->signals[i]);
    if (l->wake_event)
        event_free(l->wake_event);
    if (l->base) {
        /* Connections freed with callbacks pending are given back by the base's next round only. */
        event_base_loop(l->base, EVLOOP_NONBLOCK);
        event_base_free(l->base);
    }
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

struct event_base *loop_base(struct loop *l)
{
    return l->base;
}

int loop_run(struct loop *l)
{
    return event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY) < 0 ? ERR_IO : 0;
}

void loop_stop(struct loop *l)
{
    event_base_loopbreak(l->base);
}

int loop_post(struct loop *l, void (*fn)(void *arg), void *arg)
{
    struct post *p = malloc(sizeof *p);
    uint64_t one = 1;

    if (!p)
        return ERR_NOMEM;
    *p = (struct post){ .fn = fn, .arg = arg };
    pthread_mutex_lock(&l->lock);
    *l->last = p;
    l->last = &p->next;
    pthread_mutex_unlock(&l->lock);
    /* Only a full counter makes it fail, and then a wake-up is pending already. */
    (void)!write(l->wake_fd, &one, sizeof one);
    return 0;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct loop_timer *t = arg;

    (void)fd;
    (void)what;
    if (t->repeat)
        event_add(t->event, &t->period);
    t->fn(t->arg);
}

int loop_timer_create(struct loop_timer **out, struct loop *l, void (*fn)(void *arg), void *arg)
{
    struct loop_timer *t = calloc(1, sizeof *t);

    if (!t)
        return ERR_NOMEM;
    t->fn = fn;
    t->arg = arg;
    t->event = evtimer_new(l->base, on_timer, t);
    if (!t->event) {
        free(t);
        return ERR_NOMEM;
    }
    *out = t;
    return 0;
}

void loop_timer_start(struct loop_timer *t, double seconds, bool repeat)
{
    if (seconds < 0)
        seconds = 0;
    t->repeat = repeat;
    t->period = timeval_of(seconds);
    event_add(t->event, &t->period);
}

void loop_timer_stop(struct loop_timer *t)
{
    t->repeat = false;
    event_del(t->event);
}

void loop_timer_destroy(struct loop_timer *t)
{
    if (!t)
        return;
    event_free(t->event);
    free(t);
}

static void on_signal(evutil_socket_t signo, short what, void *arg)
{
    struct loop *l = arg;

    (void)what;
    l->on_signal(l->signal_arg, (int)signo);
}

int loop_signals(struct loop *l, const int *signals, void (*fn)(void *arg, int signo), void *arg)
{
    l->on_signal = fn;
    l->signal_arg = arg;
    for (; *signals; signals++) {
        struct event *ev;

        if (l->n_signals == LOOP_MAX_SIGNALS)
            return ERR_LIMIT;
        ev = evsignal_new(l->base, *signals, on_signal, l);
        if (!ev)
            return ERR_NOMEM;
        l->signals[l->n_signals++] = ev;
        if (event_add(ev, NULL) < 0)
            return ERR_IO;
    }
    return 0;
}

double loop_now(struct loop *l)
{
    (void)l;
    return clock_now();
}
