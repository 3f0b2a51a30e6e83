/* The two queues between the engine thread and everybody else: mail in, events out. */
#ifndef SLUICE_ENGINE_MAILBOX_H
#define SLUICE_ENGINE_MAILBOX_H

#include <pthread.h>

#include "engine/engine.h"
#include "engine/job.h"

struct inbox {
    pthread_mutex_t lock;
    pthread_cond_t some;
    struct mail *head, **tail;
    bool closed; /* no more mail is taken from outside */
    bool woken;  /* the next take does not wait */
};

void engine_inbox_init(struct inbox *b);
void engine_inbox_finish(struct inbox *b);
/* Never fails; the mail is embedded in what it is about. */
void engine_inbox_post(struct inbox *b, struct mail *m);
/* Everything that waits, in order; NULL if nothing came within timeout seconds (0: does not wait). */
struct mail *engine_inbox_take(struct inbox *b, double timeout);
/* Wakes the taker without mail, or the next one if nobody waits now. */
void engine_inbox_wake(struct inbox *b);

/* Events for the front: a ring that grows as needed. The engine makes no further step while more
 * than OUTBOX_HIGH wait, so that a front that is stuck costs time and not memory: what one more
 * round can add is bounded by the requests that exist. */
#define OUTBOX_HIGH 65536
struct outbox {
    pthread_mutex_t lock;
    struct engine_event *ring;
    uint32_t cap, head, n;
    uint32_t reserved; /* places that others' events leave free */
    bool announced;    /* notify was called and nobody has fetched since */
    int (*notify)(void *arg);
    void *notify_arg;
};

int engine_outbox_init(struct outbox *o, uint32_t cap, int (*notify)(void *), void *arg);
void engine_outbox_finish(struct outbox *o);
/* Keeps a place for one event that must not be lost: the end of a request. 0 or ERR_NOMEM. */
int engine_outbox_reserve(struct outbox *o);
void engine_outbox_unreserve(struct outbox *o); /* it will not come */
/* Takes over what ev owns. Without memory to grow, the event is finished and ERR_NOMEM returned. */
int engine_outbox_put(struct outbox *o, struct engine_event *ev);
/* The same into a place that was reserved: cannot fail. */
void engine_outbox_put_reserved(struct outbox *o, struct engine_event *ev);
/* Tells the front, once, if events wait; the next flush tries again if that failed. */
void engine_outbox_flush(struct outbox *o);
bool engine_outbox_full(struct outbox *o); /* more than OUTBOX_HIGH wait */
uint32_t engine_outbox_take(struct outbox *o, struct engine_event *out, uint32_t max);

#endif
