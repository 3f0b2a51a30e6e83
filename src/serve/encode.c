#include "serve/encode.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "base/status.h"
#include "net/loop.h"
#include "text/tokenizer.h"

/* First in, first out. */
struct queue {
    struct encode_task *first, *last;
};

struct encoder {
    struct loop *loop;
    const struct tokenizer *tok;
    pthread_t thread;
    size_t bytes; /* of all tasks whose done was not called; loop thread only */

    pthread_mutex_t lock; /* the rest */
    pthread_cond_t pushed;
    struct queue todo, ready;
    bool posted; /* deliver is on its way */
    atomic_bool stop;
};

static void put(struct queue *q, struct encode_task *t)
{
    t->next = NULL;
    if (q->last)
        q->last->next = t;
    else
        q->first = t;
    q->last = t;
}

static struct encode_task *take(struct queue *q)
{
    struct encode_task *t = q->first;

    if (!t)
        return NULL;
    q->first = t->next;
    if (!q->first)
        q->last = NULL;
    return t;
}

/* ---- a task ---- */

size_t encode_bytes(const struct encode_task *t)
{
    size_t n = 0;

    for (uint32_t i = 0; i < t->n_items; i++)
        n += t->items[i].text ? t->items[i].len : 0;
    return n;
}

void encode_run(const struct tokenizer *tok, struct encode_task *t, const atomic_bool *stop)
{
    for (uint32_t i = 0; i < t->n_items; i++) {
        struct encode_item *it = &t->items[i];

        if (!it->text)
            continue;
        it->status = stop && *stop
                         ? ERR_CLOSED
                         : tokenizer_encode(tok, it->text, it->len, t->flags, &it->ids, &it->n);
    }
}

/* ---- the loop's side ---- */

static void finish(struct encoder *e, struct encode_task *t)
{
    e->bytes -= encode_bytes(t);
    t->done(t->arg);
}

static void deliver(void *arg)
{
    struct encoder *e = arg;
    struct encode_task *t;
    struct queue ready;

    pthread_mutex_lock(&e->lock);
    ready = e->ready;
    e->ready = (struct queue){ 0 };
    e->posted = false;
    pthread_mutex_unlock(&e->lock);
    while ((t = take(&ready)))
        finish(e, t);
}

int encoder_push(struct encoder *e, struct encode_task *t)
{
    size_t bytes = encode_bytes(t);

    if (bytes > ENCODE_MAX_QUEUED - e->bytes)
        return ERR_LIMIT;
    e->bytes += bytes;
    pthread_mutex_lock(&e->lock);
    put(&e->todo, t);
    pthread_cond_signal(&e->pushed);
    pthread_mutex_unlock(&e->lock);
    return 0;
}

/* ---- the thread ---- */

/* Tells the loop that something is ready, under the lock. Without memory for that: a little later. */
static void post(struct encoder *e)
{
    static const struct timespec a_little = { 0, 10 * 1000 * 1000 };

    while (!e->posted && !e->stop) {
        e->posted = loop_post(e->loop, deliver, e) == 0;
        if (e->posted)
            return;
        pthread_mutex_unlock(&e->lock);
        nanosleep(&a_little, NULL);
        pthread_mutex_lock(&e->lock);
    }
}

static void *run(void *arg)
{
    struct encoder *e = arg;

    pthread_mutex_lock(&e->lock);
    while (!e->stop) {
        struct encode_task *t = take(&e->todo);

        if (!t) {
            pthread_cond_wait(&e->pushed, &e->lock);
            continue;
        }
        pthread_mutex_unlock(&e->lock);
        encode_run(e->tok, t, &e->stop);
        pthread_mutex_lock(&e->lock);
        put(&e->ready, t);
        post(e);
    }
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

/* ---- life ---- */

int encoder_create(struct encoder **out, struct loop *l, const struct tokenizer *tok,
                   struct err *err)
{
    struct encoder *e = calloc(1, sizeof *e);

    if (!e)
        return ERR_NOMEM;
    e->loop = l;
    e->tok = tok;
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->pushed, NULL);
    if (pthread_create(&e->thread, NULL, run, e) != 0) {
        pthread_cond_destroy(&e->pushed);
        pthread_mutex_destroy(&e->lock);
        free(e);
        return err_set(err, ERR_NOMEM, "no thread for long texts can be made");
    }
    *out = e;
    return 0;
}

void encoder_destroy(struct encoder *e)
{
    struct encode_task *t;

    if (!e)
        return;
    pthread_mutex_lock(&e->lock);
    e->stop = true;
    pthread_cond_signal(&e->pushed);
    pthread_mutex_unlock(&e->lock);
    pthread_join(e->thread, NULL);
    while ((t = take(&e->ready)))
        finish(e, t);
    while ((t = take(&e->todo))) {
        encode_run(e->tok, t, &e->stop);
        finish(e, t);
    }
    pthread_cond_destroy(&e->pushed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}
