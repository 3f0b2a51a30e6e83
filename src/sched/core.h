/* The scheduler's inside, shared by the files of this folder and by its tests.
 *
 *     sched.c    create and destroy; what the caller asks from outside: add, abort, release
 *     request.c  one request and its moves        queue.c  requests of one state, in order
 *     admit.c    WAIT to RUN or PULL; pulls       plan.c   what the next step computes
 *     pack.c     prompts of a step by time        pace.c   what is known about time
 *     commit.c   what a step gave; when to end    event.c  what the caller is told
 *     index.c    ids */
#ifndef SLUICE_SCHED_CORE_H
#define SLUICE_SCHED_CORE_H

#include "kv/pool.h"
#include "sched/pace.h"
#include "sched/queue.h"
#include "sched/request.h"
#include "sched/sched.h"

/* Requests by id: ids rise by one, so their low bits are a perfect hash. Grows in sched_add. */
struct req_index {
    struct req **bucket;
    uint32_t n_buckets; /* a power of two */
    uint32_t n;
};
int req_index_add(struct req_index *x, struct req *r); /* 0 or ERR_NOMEM */
void req_index_remove(struct req_index *x, const struct req *r);
struct req *req_index_find(const struct req_index *x, sched_id id); /* or NULL */

/* A plan that is out. */
struct flight {
    struct plan plan;
    struct plan_entry *entry; /* max_seqs */
    struct req **req;         /* the requests of the entries */
};

struct sched {
    struct sched_config cfg;
    struct kv_pool *pool;
    struct pace *pace; /* NULL: chunks are not planned */
    struct queue queue[REQ_N_STATES];
    struct req_index index;
    sched_id last_id;

    struct flight *flight; /* a ring of max_inflight */
    uint32_t first_flight, n_flights;
    uint64_t last_seq;

    struct req *event_head, *event_tail; /* requests with something to tell */
    uint32_t n_orders;                   /* PULL requests whose order was not fetched yet */
    struct sched_stats count;            /* of this, the totals that only rise */
    double now;
    sched_trace_fn *trace;
    void *trace_arg;
};

/* A step while it is planned. NULL for a round that only orders pulls. */
struct outline {
    struct flight *flight;
    uint32_t budget;    /* tokens left */
    bool short_of_kv;   /* someone was preempted or stalls: admit nobody */
    bool by_time;       /* who is admitted gets blocks now, and its chunk when all in sight share */
    uint32_t n_visible; /* by time: prompts in sight */
};

#define SCHED_VISIBLE 16 /* prompts that share steps by time; more wait in the queue */
#define SCHED_SHORT_LOOK                                                                           \
    1024 /* requests at the head of the queue among which short ones are found */

/* admit.c */
void sched_admit_ready(struct sched *s); /* READY to RUN while there is a place */
void sched_admit_waiting(struct sched *s, struct outline *o); /* WAIT to RUN or PULL, in order */

/* plan.c: the next chunk of r, of at most so many tokens. */
void sched_plan_chunk(struct sched *s, struct outline *o, struct req *r, uint32_t most);

/* pack.c */
void sched_plan_prompts(struct sched *s, struct outline *o); /* and admits them */
void sched_prompt_done(struct sched *s, struct req *r);      /* all of r's prompt is computed */
struct req *sched_next_waiting(const struct sched *s);       /* who is admitted next; NULL */

/* commit.c */
void sched_finish(struct sched *s, struct req *r, enum finish f, const char *why);
/* The first output token, which came with the request; it may end it. */
void sched_take_first(struct sched *s, struct req *r);
/* To GONE if r is DONE and nothing uses its blocks any more. */
void sched_retire(struct sched *s, struct req *r);

/* event.c: r has something to tell. */
void sched_note_event(struct sched *s, struct req *r);

#endif
