#include "model/courier.h"

#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"

struct courier {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    void (*fn)(void *arg); /* NULL: nothing to do */
    void *arg;
    bool stop;
};

static void *serve(void *arg)
{
    struct courier *c = arg;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        if (!c->fn) {
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        pthread_mutex_unlock(&c->lock);
        c->fn(c->arg);
        pthread_mutex_lock(&c->lock);
        c->fn = NULL;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Signals are for the threads that know what to do about them. */
static int start_thread(struct courier *c)
{
    sigset_t all, before;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    rc = pthread_create(&c->thread, NULL, serve, c);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc != 0)
        return ERR_LIMIT;
    pthread_setname_np(c->thread, "courier");
    return 0;
}

int courier_create(struct courier **out)
{
    struct courier *c = calloc(1, sizeof *c);
    int st;

    if (!c)
        return ERR_NOMEM;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    if ((st = start_thread(c)) < 0) {
        pthread_cond_destroy(&c->changed);
        pthread_mutex_destroy(&c->lock);
        free(c);
        return st;
    }
    *out = c;
    return 0;
}

void courier_destroy(struct courier *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    assert(!c->fn);
    c->stop = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    pthread_join(c->thread, NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void courier_start(struct courier *c, void (*fn)(void *arg), void *arg)
{
    pthread_mutex_lock(&c->lock);
    assert(!c->fn);
    c->fn = fn;
    c->arg = arg;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void courier_wait(struct courier *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->fn)
        pthread_cond_wait(&c->changed, &c->lock);
    pthread_mutex_unlock(&c->lock);
}
