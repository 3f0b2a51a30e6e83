#include "sched/queue.h"

#include <assert.h>
#include <stddef.h>

#include "sched/request.h"

/* The request after which r belongs, NULL for the front. */
static struct req *place_of(const struct queue *q, const struct req *r)
{
    struct req *at = q->tail;

    if (q->head && req_before(r, q->head))
        return NULL;
    while (at && req_before(r, at))
        at = at->prev;
    return at;
}

void queue_insert(struct queue *q, struct req *r)
{
    struct req *prev = place_of(q, r);
    struct req *next = prev ? prev->next : q->head;

    r->prev = prev;
    r->next = next;
    *(prev ? &prev->next : &q->head) = r;
    *(next ? &next->prev : &q->tail) = r;
    q->n++;
}

void queue_remove(struct queue *q, struct req *r)
{
    assert(q->n > 0);
    *(r->prev ? &r->prev->next : &q->head) = r->next;
    *(r->next ? &r->next->prev : &q->tail) = r->prev;
    r->prev = r->next = NULL;
    q->n--;
}
