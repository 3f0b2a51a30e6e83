/* One completion request from its arrival to its end: what it holds, and how it gives it back. pd.c
 * leads it through its legs. */
#ifndef SLUICE_PROXY_PD_JOB_H
#define SLUICE_PROXY_PD_JOB_H

#include <stdbool.h>
#include <stdint.h>

#include "proxy/legs.h"
#include "proxy/members.h"
#include "proxy/metrics.h"
#include "proxy/relay.h"

struct http_call;
struct http_req;
struct loop_timer;
struct pair;
struct proxy;

#define JOB_MAX_TRIED 16u
#define JOB_MAX_ID    128u

enum pd_job_state {
    JOB_LEG,  /* a leg runs */
    JOB_WAIT, /* the leg is tried again after a delay */
    JOB_ENDED
};

struct pd_job {
    struct proxy *p;
    struct pd_job *prev, *next;
    struct http_req *req;
    enum pd_job_state state;
    enum member_role leg;
    struct legs_request in;
    char id[JOB_MAX_ID + 40]; /* X-Request-Id of both legs */
    char *authorization;      /* the client's: a release comes after it may have left; NULL: none */
    double start, leg_start;
    double score;
    struct member *member; /* of the running leg; charged with the score */
    struct http_call *call;
    struct loop_timer *retry;
    uint32_t tries;
    uint64_t tried[JOB_MAX_TRIED];
    size_t n_tried;
    struct relay relay;
    struct member *prefiller; /* holds the KV: held with the score */
    bool together;            /* P and D are asked at the same time */
    struct pair *pair;        /* P's leg then; NULL: none */
    bool kv_taken;            /* D has begun to answer: its KV has been pulled */
    char *answer;             /* P's; prefilled points into it */
    struct legs_prefilled prefilled;
    struct buf output_ids; /* of a request that was given back; in.output_ids points into it */
};

/* Joins p->jobs and watches for the client's leaving. on_retry(job) runs when the timer does. NULL: no
 * memory. */
struct pd_job *pd_job_create(struct proxy *p, struct http_req *r, const struct legs_request *in,
                             void (*on_retry)(void *job));

/* The running leg is over: its call is canceled if it still runs, its member no longer charged. */
void pd_job_leave_member(struct pd_job *j);
/* The KV of the job is now held by m until D has begun to answer or the job ends. */
void pd_job_hold_kv(struct pd_job *j, struct member *m);
/* D has sent its first bytes, so it has pulled the KV: P's load is gone. */
void pd_job_kv_taken(struct pd_job *j);

/* The job goes on with another prefill: what P held has been taken. */
void pd_job_begin_anew(struct pd_job *j);

/* The client has been answered (status) or has gone (0). Every way out goes through here: the running
 * leg is stopped, what was charged is given back, and unless cause is CAUSE_NONE P is told to let go of
 * the KV at once. The job is freed. */
void pd_job_end(struct pd_job *j, int status, enum proxy_cause cause);
/* Tells the client, as well as it still can be told, and ends the job. */
void pd_job_fail(struct pd_job *j, int status, enum proxy_cause cause, const char *message);

#endif
