/* A completion request on its way: prefill on P, then decode on D, each leg tried again elsewhere
 * while the client has seen nothing.
 *
 *     LEG_PREFILL --P's answer--> LEG_DECODE --D's reply--> end
 *          |  ^                       |  ^
 *          v  | retry_delay           v  | retry_delay
 *        JOB_WAIT                   JOB_WAIT
 *
 * A D that is out of KV blocks gives a request back: then it begins anew, with the output so far behind the
 * prompt, and the client's stream goes on.
 *
 * Where P and D are asked at the same time (proxy_options.together), the job has a decode leg only, with
 * P's beside it (pair.h).
 *
 * What the job holds on the way, pd_job.c gives back. */
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "proxy/fault.h"
#include "proxy/pair.h"
#include "proxy/pd_job.h"
#include "proxy/proxy_impl.h"
#include "proxy/upstream.h"

#define RETRY_MAX_DELAY 5.0

static void start_leg(struct pd_job *j);

static void on_retry(void *arg)
{
    start_leg(arg);
}

/* The leg has failed with nothing sent to the client: again, elsewhere if possible, or the end. */
static void retry_or_fail(struct pd_job *j, int status, enum proxy_cause cause, const char *message)
{
    double delay = j->p->opt.retry_delay;

    if (j->relay.sent || j->tries > j->p->opt.max_retries ||
        members_count(j->p->members, j->leg, ROUTE_ACTIVE) == 0) {
        pd_job_fail(j, status, cause, message);
        return;
    }
    for (uint32_t i = 1; i < j->tries && delay < RETRY_MAX_DELAY; i++)
        delay *= 2;
    log_warning("request %s: %s; trying again", j->id, message);
    j->p->metrics.retries[j->leg]++;
    j->state = JOB_WAIT;
    loop_timer_start(j->retry, delay < RETRY_MAX_DELAY ? delay : RETRY_MAX_DELAY, false);
}

static enum proxy_cause cause_of(enum http_fail fail)
{
    switch (fail) {
    case HTTP_CONNECT:
    case HTTP_TIMEOUT_CONNECT:
        return CAUSE_CONNECT;
    case HTTP_TIMEOUT_FIRST:
    case HTTP_TIMEOUT_IDLE:
        return CAUSE_TIMEOUT;
    default:
        return CAUSE_BROKEN;
    }
}

/* No whole reply came. */
static void leg_broke(struct pd_job *j, enum http_fail fail)
{
    enum proxy_cause cause = cause_of(fail);
    char message[512];

    snprintf(message, sizeof message, "%s instance %s: %s", member_role_name(j->leg),
             j->member->name, http_fail_text(fail));
    members_report(j->member, cause == CAUSE_CONNECT ? ROUTE_NO_CONNECT : ROUTE_ERROR);
    pd_job_leave_member(j);
    retry_or_fail(j, cause == CAUSE_TIMEOUT ? 504 : 502, cause, message);
}

static void leg_answered_5xx(struct pd_job *j)
{
    int shown = j->relay.body.len < 300 ? (int)j->relay.body.len : 300;
    char message[512];

    snprintf(message, sizeof message, "%s instance %s answered %d: %.*s", member_role_name(j->leg),
             j->member->name, j->relay.status, shown, buf_str(&j->relay.body));
    fault_clean(message);
    members_report(j->member, ROUTE_ERROR);
    pd_job_leave_member(j);
    retry_or_fail(j, 502, CAUSE_UPSTREAM_5XX, message);
}

/* The client's own mistake, or a redirect: it is told exactly what the instance said, once. */
static void leg_refused(struct pd_job *j)
{
    int status = j->relay.status;

    members_report(j->member, ROUTE_OK);
    if (j->relay.committed) { /* it was given back, and nobody goes on with it */
        pd_job_fail(j, 502, CAUSE_UPSTREAM_4XX, "an instance refused to go on with the output");
        return;
    }
    http_off_close(j->req);
    relay_send(&j->relay);
    pd_job_end(j, status, CAUSE_UPSTREAM_4XX);
}

static void prefilled(struct pd_job *j)
{
    struct proxy *p = j->p;
    struct member *m = j->member;
    size_t len;

    free(j->answer);
    j->answer = buf_take(&j->relay.body, &len);
    if (!j->answer || legs_read_prefilled(&j->prefilled, j->answer, len) < 0) {
        leg_broke(j, HTTP_BAD);
        return;
    }
    members_report(m, ROUTE_OK);
    p->metrics.prefills++;
    p->metrics.prefill_seconds += loop_now(p->loop) - j->leg_start;
    if (!j->prefilled.kv_params.p && !m->no_params) {
        m->no_params = true;
        log_warning("prefill instance %s answered without kv_transfer_params: decode computes "
                    "the prompt again; is its --kv-transfer-config a producer?",
                    m->name);
    }
    if (j->prefilled.kv_params.p)
        pd_job_hold_kv(j, m);
    pd_job_leave_member(j);
    j->leg = MEMBER_DECODE;
    j->tries = 0;
    j->n_tried = 0;
    start_leg(j);
}

static void go_on(struct pd_job *j)
{
    struct buf *ids = &j->output_ids;

    log_info("request %s: decode instance %s has no KV blocks for it; prefilling it anew", j->id,
             j->member->name);
    j->p->metrics.given_back++;
    pd_job_leave_member(j);
    pd_job_begin_anew(j);
    buf_reset(ids);
    if (buf_append(ids, j->relay.output_ids.data, j->relay.output_ids.len) < 0) {
        pd_job_fail(j, 500, CAUSE_INTERNAL, "the proxy is out of memory");
        return;
    }
    j->in.output_ids = (struct splice_text){ buf_str(ids), ids->len };
    relay_go_on(&j->relay);
    j->leg = j->together ? MEMBER_DECODE : MEMBER_PREFILL;
    start_leg(j);
}

static void decoded(struct pd_job *j)
{
    int status = j->relay.status;

    members_report(j->member, ROUTE_OK);
    if (relay_gave_back(&j->relay)) {
        go_on(j);
        return;
    }
    if (j->relay.committed && !j->relay.events) {
        pd_job_fail(j, 502, CAUSE_BROKEN, "an instance went on with a stream by what is none");
        return;
    }
    http_off_close(j->req);
    relay_send(&j->relay);
    pd_job_end(j, status, CAUSE_NONE);
}

static void on_head(void *arg, struct http_call *c, int status)
{
    struct pd_job *j = arg;

    relay_head(&j->relay, c, status, j->leg == MEMBER_PREFILL);
}

static void note_first_byte(struct pd_job *j)
{
    struct proxy *p = j->p;

    if (j->leg != MEMBER_DECODE || j->kv_taken || j->relay.status != 200)
        return;
    pd_job_kv_taken(j);
    if (j->in.output_ids.p)
        return;
    p->metrics.first_bytes++;
    p->metrics.first_byte_seconds += loop_now(p->loop) - j->start;
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    struct pd_job *j = arg;
    int st;

    (void)c;
    note_first_byte(j);
    st = relay_data(&j->relay, data, len);
    if (st == 0)
        return;
    if (st == ERR_LIMIT) {
        log_warning("request %s: the client reads too slowly", j->id);
        http_off_close(j->req);
        http_reply_abort(j->req);
        pd_job_end(j, 0, CAUSE_CLIENT_SLOW);
    } else {
        pd_job_fail(j, 502, CAUSE_BROKEN, "the reply of an instance is too large");
    }
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct pd_job *j = arg;

    (void)reused;
    (void)got_bytes;
    if (!j->call)
        return; /* canceled by pd_job_leave_member */
    j->call = NULL;
    if (fail != HTTP_OK)
        leg_broke(j, fail);
    else if (j->relay.status >= 500)
        leg_answered_5xx(j);
    else if (j->relay.status >= 300)
        leg_refused(j);
    else if (!relay_whole(&j->relay))
        leg_broke(j, HTTP_TRUNCATED);
    else if (j->leg == MEMBER_PREFILL)
        prefilled(j);
    else
        decoded(j);
}

static void no_instance(struct pd_job *j)
{
    char message[128];

    snprintf(message, sizeof message, "no %s instance is available; try again later",
             member_role_name(j->leg));
    pd_job_fail(j, 503, CAUSE_NO_INSTANCE, message);
}

/* kv: what D is to know of the prefill; made here where that is under way. */
static int leg_body(struct buf *out, struct pd_job *j)
{
    struct splice_text params = j->prefilled.kv_params;
    struct buf named;
    int st = 0;

    if (j->leg == MEMBER_PREFILL)
        return legs_prefill_body(out, &j->in);
    buf_init(&named, BUF_MAX_LINE);
    if (j->pair && (st = pair_params(j->pair, &named)) == 0)
        params = (struct splice_text){ buf_str(&named), named.len };
    if (st == 0)
        st = legs_decode_body(out, &j->in, params);
    buf_finish(&named);
    return st;
}

static int send_leg(struct pd_job *j)
{
    const struct proxy_options *opt = &j->p->opt;
    struct upstream_headers headers;
    struct http_call_options o = { .host = j->member->host,
                                   .port = j->member->port,
                                   .method = "POST",
                                   .path = http_target(j->req),
                                   .first_byte_timeout = opt->first_byte_timeout,
                                   .idle_timeout = opt->silence_timeout,
                                   .stream = true,
                                   .on_head = on_head,
                                   .on_data = on_data,
                                   .on_done = on_done,
                                   .arg = j };
    struct buf body;
    int st;

    upstream_headers(&headers, j->req, j->id);
    o.headers = headers.kv;
    o.n_headers = headers.n;
    buf_init(&body, BUF_MAX_BODY);
    st = leg_body(&body, j);
    o.body = body.data;
    o.body_len = body.len;
    if (st == 0)
        st = http_call(j->p->client, &o, &j->call);
    buf_finish(&body);
    return st;
}

/* P's figure for the client's usage. */
static long long cached_tokens(const struct pd_job *j)
{
    if (j->pair)
        return 0; /* until P answers, which is before D has much to say */
    return j->leg == MEMBER_DECODE && j->prefiller ? j->prefilled.cached_tokens : RELAY_KEEP_USAGE;
}

/* D's leg is sent for the first time, or anew: P's goes with it. */
static void start_pair(struct pd_job *j)
{
    pair_end(j->pair, false);
    j->pair = pair_start(j);
}

static void start_leg(struct pd_job *j)
{
    j->member = members_pick(j->p->members, j->leg, j->score, j->tried, j->n_tried);
    if (!j->member) {
        no_instance(j);
        return;
    }
    j->state = JOB_LEG;
    j->tries++;
    if (j->n_tried < JOB_MAX_TRIED)
        j->tried[j->n_tried++] = j->member->node.id;
    j->leg_start = loop_now(j->p->loop);
    if (j->together)
        start_pair(j);
    relay_reset(&j->relay, cached_tokens(j));
    log_debug("request %s: %s on %s", j->id, member_role_name(j->leg), j->member->name);
    if (send_leg(j) < 0)
        pd_job_fail(j, 500, CAUSE_INTERNAL, "the proxy is out of memory");
}

void pd_handle(struct proxy *p, struct http_req *r)
{
    struct legs_request in;
    size_t len, at;
    const char *body = http_body(r, &len);
    bool direct;
    struct pd_job *j;

    if (legs_read(&in, body, len, &at) < 0) {
        p->metrics.errors[CAUSE_BAD_REQUEST]++;
        fault_reply(r, 400, NULL, "The request body is not a JSON object: error at byte %zu", at);
        return;
    }
    j = pd_job_create(p, r, &in, on_retry);
    if (!j) {
        fault_reply(r, 503, NULL, "the proxy is out of memory");
        return;
    }
    direct = in.plan == LEGS_DIRECT || members_total(p->members, MEMBER_PREFILL) == 0;
    /* Without a decode instance the prompt would be prefilled for nothing. */
    j->leg = MEMBER_DECODE;
    if (members_count(p->members, MEMBER_DECODE, ROUTE_ACTIVE) == 0) {
        no_instance(j);
        return;
    }
    j->together = !direct && p->opt.together;
    if (!direct && !j->together)
        j->leg = MEMBER_PREFILL;
    start_leg(j);
}

void pd_abort_all(struct proxy *p)
{
    while (p->jobs)
        pd_job_fail(p->jobs, 503, CAUSE_SHUTDOWN, "the proxy is shutting down");
}
