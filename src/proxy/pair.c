#include "proxy/pair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/rand.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "proxy/fault.h"
#include "proxy/pd_job.h"
#include "proxy/proxy_impl.h"
#include "proxy/upstream.h"

struct pair {
    struct proxy *proxy;
    struct pair *prev, *next;
    struct pd_job *job; /* NULL: it has ended */
    struct member *member;
    double score, start;
    struct http_call *call; /* NULL: P has answered, or failed */
    int status;
    struct buf body;
    char name[33];              /* transfer_id */
    struct member *holder;      /* of the lease that P has told of; NULL: none */
    struct legs_prefilled told; /* into body */
};

static void leave_member(struct pair *p)
{
    if (p->member)
        members_release(p->member, p->score);
    p->member = NULL;
}

static void pair_free(struct pair *p)
{
    if (p->prev)
        p->prev->next = p->next;
    else if (p->proxy->pairs == p)
        p->proxy->pairs = p->next;
    if (p->next)
        p->next->prev = p->prev;
    leave_member(p);
    if (p->holder)
        members_unhold(p->holder, 0);
    buf_finish(&p->body);
    free(p);
}

/* D cannot know what P had in its prefix cache: the client's usage is to tell it. Until D has ended, P's
 * lease is here to be released. */
static void prefilled(struct pair *p)
{
    struct proxy *x = p->proxy;

    members_report(p->member, ROUTE_OK);
    x->metrics.prefills++;
    x->metrics.prefill_seconds += loop_now(x->loop) - p->start;
    if (!p->job || legs_read_prefilled(&p->told, buf_str(&p->body), p->body.len) < 0)
        return;
    p->job->relay.cached_tokens = p->told.cached_tokens;
    if (p->told.kv_params.p) {
        p->holder = p->member;
        members_hold(p->holder, 0);
    }
}

static void note_failure(struct pair *p, enum http_fail fail)
{
    char message[300];

    if (fail == HTTP_OK && p->status < 500) { /* D says the same to the client */
        members_report(p->member, ROUTE_OK);
        return;
    }
    if (fail == HTTP_OK)
        snprintf(message, sizeof message, "answered %d: %.200s", p->status, buf_str(&p->body));
    else
        snprintf(message, sizeof message, "%s", http_fail_text(fail));
    fault_clean(message);
    log_warning("transfer %s: prefill instance %s: %s", p->name, p->member->name, message);
    members_report(p->member, fail == HTTP_CONNECT || fail == HTTP_TIMEOUT_CONNECT
                                  ? ROUTE_NO_CONNECT
                                  : ROUTE_ERROR);
}

static void on_head(void *arg, struct http_call *c, int status)
{
    struct pair *p = arg;

    (void)c;
    p->status = status;
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    struct pair *p = arg;

    (void)c;
    buf_append(&p->body, data, len);
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct pair *p = arg;

    (void)reused;
    (void)got_bytes;
    p->call = NULL;
    if (fail == HTTP_OK && p->body.status < 0)
        fail = HTTP_BAD;
    if (fail == HTTP_OK && p->status == 200)
        prefilled(p);
    else if (fail != HTTP_CANCELED)
        note_failure(p, fail);
    leave_member(p);
    if (!p->job)
        pair_free(p);
}

static int send_leg(struct pair *p)
{
    struct pd_job *j = p->job;
    const struct proxy_options *opt = &p->proxy->opt;
    struct upstream_headers headers;
    struct http_call_options o = { .host = p->member->host,
                                   .port = p->member->port,
                                   .method = "POST",
                                   .path = http_target(j->req),
                                   .first_byte_timeout = opt->first_byte_timeout,
                                   .idle_timeout = opt->silence_timeout,
                                   .on_head = on_head,
                                   .on_data = on_data,
                                   .on_done = on_done,
                                   .arg = p };
    struct legs_request in = j->in;
    struct buf body;
    int st;

    in.transfer_id = p->name;
    upstream_headers(&headers, j->req, j->id);
    o.headers = headers.kv;
    o.n_headers = headers.n;
    buf_init(&body, BUF_MAX_BODY);
    st = legs_prefill_body(&body, &in);
    o.body = body.data;
    o.body_len = body.len;
    if (st == 0)
        st = http_call(p->proxy->client, &o, &p->call);
    buf_finish(&body);
    return st;
}

struct pair *pair_start(struct pd_job *j)
{
    struct proxy *x = j->p;
    struct pair *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->proxy = x;
    p->job = j;
    p->score = j->score;
    p->start = loop_now(x->loop);
    rand_hex(p->name, 16);
    buf_init(&p->body, BUF_MAX_REPLY);
    p->next = x->pairs;
    if (p->next)
        p->next->prev = p;
    x->pairs = p;
    p->member = members_pick(x->members, MEMBER_PREFILL, p->score, NULL, 0);
    if (!p->member || send_leg(p) < 0) {
        pair_free(p);
        return NULL;
    }
    log_debug("request %s: prefill on %s, transfer %s", j->id, p->member->name, p->name);
    return p;
}

int pair_params(const struct pair *p, struct buf *out)
{
    return buf_printf(out,
                      "{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                      "\"transfer_id\":\"%s\",\"remote_bootstrap_addr\":\"http://%s\"}",
                      p->name, p->member->name);
}

void pair_end(struct pair *p, bool succeeded)
{
    if (!p)
        return;
    if (!succeeded && p->holder)
        upstream_release(p->proxy, p->holder, p->told.kv_params, p->job->authorization);
    p->job = NULL;
    if (!p->call)
        pair_free(p);
    else if (!succeeded)
        http_call_cancel(
            p->call); /* P sees its client leave; D lets go of a lease that has begun */
}

void pair_cancel_all(struct proxy *p)
{
    struct pair *next;

    for (struct pair *x = p->pairs; x; x = next) { /* their jobs have ended */
        next = x->next;
        http_call_cancel(x->call);
    }
}
