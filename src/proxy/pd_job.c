#include "proxy/pd_job.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rand.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "proxy/fault.h"
#include "proxy/pair.h"
#include "proxy/proxy_impl.h"
#include "proxy/upstream.h"

void pd_job_leave_member(struct pd_job *j)
{
    struct http_call *c = j->call;
    struct member *m = j->member;

    j->call = NULL;
    j->member = NULL;
    if (c)
        http_call_cancel(c);
    if (m)
        members_release(m, j->score);
}

static void job_free(struct pd_job *j)
{
    relay_finish(&j->relay);
    buf_finish(&j->output_ids);
    free(j->answer);
    free(j->authorization);
    loop_timer_destroy(j->retry);
    free(j);
}

void pd_job_hold_kv(struct pd_job *j, struct member *m)
{
    j->prefiller = m;
    members_hold(m, j->score);
}

void pd_job_kv_taken(struct pd_job *j)
{
    if (j->kv_taken)
        return;
    j->kv_taken = true;
    if (j->prefiller) {
        /* The member itself is still needed, should its lease be released. */
        members_hold(j->prefiller, 0);
        members_unhold(j->prefiller, j->score);
    }
}

static void let_go_of_kv(struct pd_job *j, bool succeeded)
{
    struct member *m = j->prefiller;

    if (!m)
        return;
    j->prefiller = NULL;
    if (!succeeded && j->prefilled.kv_params.p)
        upstream_release(j->p, m, j->prefilled.kv_params, j->authorization);
    members_unhold(m, j->kv_taken ? 0 : j->score);
}

void pd_job_begin_anew(struct pd_job *j)
{
    let_go_of_kv(j, true);
    pair_end(j->pair, true);
    j->pair = NULL;
    j->kv_taken = false;
    j->prefilled.kv_params = (struct splice_text){ NULL, 0 };
    j->tries = 0;
    j->n_tried = 0;
}

void pd_job_end(struct pd_job *j, int status, enum proxy_cause cause)
{
    struct proxy *p = j->p;

    assert(j->state != JOB_ENDED);
    j->state = JOB_ENDED;
    pd_job_leave_member(j);
    let_go_of_kv(j, cause == CAUSE_NONE);
    pair_end(j->pair, cause == CAUSE_NONE);
    p->metrics.requests[status / 100 > 5 ? 5 : status / 100]++;
    if (cause != CAUSE_NONE)
        p->metrics.errors[cause]++;
    p->metrics.events += j->relay.n_events;
    p->metrics.running--;
    if (j->prev)
        j->prev->next = j->next;
    else
        p->jobs = j->next;
    if (j->next)
        j->next->prev = j->prev;
    job_free(j);
}

void pd_job_fail(struct pd_job *j, int status, enum proxy_cause cause, const char *message)
{
    char seconds[16];

    log_warning("request %s: %d, %s", j->id, status, message);
    http_off_close(j->req);
    if (j->relay.committed) {
        relay_break(&j->relay, status, message);
        pd_job_end(j, 200, cause);
        return;
    }
    if (status == 503) {
        snprintf(seconds, sizeof seconds, "%d", (int)(j->p->opt.members.probe_interval + 1));
        http_set_header(j->req, "Retry-After", seconds);
    }
    http_set_header(j->req, "x-request-id", j->id);
    fault_reply(j->req, status, NULL, "%s", message);
    pd_job_end(j, status, cause);
}

static void on_client_gone(void *arg)
{
    struct pd_job *j = arg;

    log_info("request %s: the client has left", j->id);
    pd_job_end(j, 0, CAUSE_CLIENT_GONE);
}

/* The client's id, or a new one. An id that is in use gets a suffix: instances may take requests of
 * one id for one request. */
static void set_id(struct pd_job *j)
{
    const char *given = http_header(j->req, "x-request-id");
    char unique[33];

    rand_hex(unique, 16);
    if (!given || !given[0] || strlen(given) > JOB_MAX_ID) {
        snprintf(j->id, sizeof j->id, "%s", unique);
        return;
    }
    snprintf(j->id, sizeof j->id, "%s", given);
    for (const struct pd_job *other = j->p->jobs; other; other = other->next) {
        if (other == j || strcmp(other->id, given) != 0)
            continue;
        snprintf(j->id, sizeof j->id, "%s-%s", given, unique);
        return;
    }
}

struct pd_job *pd_job_create(struct proxy *p, struct http_req *r, const struct legs_request *in,
                             void (*on_retry)(void *job))
{
    struct pd_job *j = calloc(1, sizeof *j);
    const char *authorization = http_header(r, "authorization");

    if (!j)
        return NULL;
    if (authorization)
        j->authorization = strdup(authorization);
    if ((authorization && !j->authorization) ||
        loop_timer_create(&j->retry, p->loop, on_retry, j) < 0) {
        free(j->authorization);
        free(j);
        return NULL;
    }
    j->p = p;
    j->req = r;
    j->in = *in;
    j->start = loop_now(p->loop);
    j->score = route_score(in->body.len);
    set_id(j);
    relay_init(&j->relay, r, j->id, BUF_MAX_REPLY);
    buf_init(&j->output_ids, BUF_MAX_BODY);
    j->next = p->jobs;
    if (j->next)
        j->next->prev = j;
    p->jobs = j;
    p->metrics.running++;
    http_on_close(r, on_client_gone, j);
    return j;
}
