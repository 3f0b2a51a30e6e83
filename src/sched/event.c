/* What the caller is told. There is no queue of events that could fill up: a request remembers
 * what of it is told, and those with something to tell stand in a list. So an event costs no
 * memory, and a caller that reads late loses nothing but the exact time of its tokens. */
#include <assert.h>

#include "sched/core.h"

void sched_note_event(struct sched *s, struct req *r)
{
    if (r->in_events)
        return;
    r->in_events = true;
    r->event_next = NULL;
    *(s->event_tail ? &s->event_tail->event_next : &s->event_head) = r;
    s->event_tail = r;
}

static void pop(struct sched *s)
{
    struct req *r = s->event_head;

    s->event_head = r->event_next;
    if (!s->event_head)
        s->event_tail = NULL;
    r->in_events = false;
}

static void fill_start(struct sched_event *e, const struct req *r)
{
    e->kind = SCHED_EV_START;
    e->time = r->t_start;
    e->n_cached = r->n_cached;
    e->n_external = r->n_external;
}

static void fill_token(struct sched_event *e, const struct req *r)
{
    e->kind = SCHED_EV_TOKEN;
    e->time = r->t_token;
    e->out_index = r->n_told;
    e->token = r->tokens[r->n_prompt + r->n_told];
    if (r->n_told == r->end_index) {
        e->finish = r->finish;
        e->stop_id = r->stop_id;
    }
}

static void fill_end(struct sched_event *e, const struct req *r)
{
    e->kind = SCHED_EV_END;
    e->time = r->t_end;
    e->finish = r->finish;
    e->stop_id = r->stop_id;
    e->n_cached = r->n_cached;
    e->n_external = r->n_external;
    e->n_preempted = r->n_preempted;
    e->held = r->state == REQ_HELD; /* not if the hold has ended already */
}

static void fill_gone(struct sched_event *e, const struct req *r)
{
    e->kind = SCHED_EV_GONE;
    e->time = r->t_gone;
}

/* The next thing to tell of r, in this order. False: all is told. */
static bool tell(struct sched_event *e, struct req *r)
{
    if (r->start_due) {
        fill_start(e, r);
        r->start_due = false;
    } else if (r->n_told < req_n_out(r)) {
        fill_token(e, r);
        r->n_told++;
    } else if (r->end_due) {
        fill_end(e, r);
        r->end_due = false;
    } else if (r->state == REQ_GONE) {
        fill_gone(e, r);
    } else {
        return false;
    }
    return true;
}

int sched_next_event(struct sched *s, struct sched_event *out)
{
    for (struct req *r; (r = s->event_head);) {
        *out = (struct sched_event){ .id = r->id, .user = r->user, .stop_id = -1 };
        if (!tell(out, r)) {
            pop(s);
            continue;
        }
        if (out->kind == SCHED_EV_GONE) {
            pop(s);
            queue_remove(&s->queue[REQ_GONE], r);
            req_destroy(r);
        }
        return 1;
    }
    return 0;
}
