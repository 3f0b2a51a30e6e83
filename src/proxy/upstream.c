#include "proxy/upstream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/status.h"
#include "net/http_server.h"
#include "proxy/proxy_impl.h"

#define RELEASE_PATH    "/v1/kv/release"
#define RELEASE_SECONDS 10.0
#define ASK_SECONDS     30.0

static bool in_list(const char *name, const char *const *list)
{
    for (; *list; list++)
        if (strcasecmp(name, *list) == 0)
            return true;
    return false;
}

static const char *const hop_by_hop[] = { "connection",
                                          "keep-alive",
                                          "proxy-connection",
                                          "proxy-authenticate",
                                          "proxy-authorization",
                                          "te",
                                          "trailer",
                                          "transfer-encoding",
                                          "upgrade",
                                          "content-length",
                                          NULL };

bool upstream_passes(const char *name)
{
    static const char *const own[] = { "content-type", "date", NULL };

    return !in_list(name, hop_by_hop) && !in_list(name, own);
}

static void add_header(struct upstream_headers *h, const char *name, const char *value)
{
    if (h->n < UPSTREAM_MAX_HEADERS)
        h->kv[h->n++] = (struct http_header_kv){ name, value };
}

static void pass_header(void *arg, const char *name, const char *value)
{
    static const char *const own[] = { "host", "expect", "accept-encoding", "x-request-id", NULL };

    if (!in_list(name, hop_by_hop) && !in_list(name, own))
        add_header(arg, name, value);
}

void upstream_headers(struct upstream_headers *out, const struct http_req *r,
                      const char *request_id)
{
    out->n = 0;
    http_each_header(r, pass_header, out);
    if (!request_id)
        request_id = http_header(r, "x-request-id");
    if (request_id)
        add_header(out, "X-Request-Id", request_id);
}

/* A lease on its way to be released. Its holder stays a member until it has answered. */
struct upstream_release {
    struct proxy *proxy;
    struct upstream_release *prev, *next;
    struct member *prefiller;
    struct http_call *call;
    int status;
};

struct question {
    struct upstream_gather *gather;
    struct http_call *call;
};

struct upstream_gather {
    struct proxy *proxy;
    struct upstream_gather *prev, *next;
    struct http_req *req;
    void (*done)(struct proxy *p, struct http_req *r, const struct upstream_answer *a, size_t n);
    size_t n, waiting;
    struct question *questions;
    struct upstream_answer *answers;
};

static void gather_free(struct upstream_gather *g)
{
    for (size_t i = 0; i < g->n; i++) {
        struct http_call *c = g->questions[i].call;

        g->questions[i].call = NULL;
        if (c)
            http_call_cancel(c);
        buf_finish(&g->answers[i].body);
    }
    if (g->prev)
        g->prev->next = g->next;
    else if (g->proxy->gathers == g)
        g->proxy->gathers = g->next;
    if (g->next)
        g->next->prev = g->prev;
    free(g->questions);
    free(g->answers);
    free(g);
}

static struct upstream_answer *answer_of(struct question *q)
{
    return &q->gather->answers[q - q->gather->questions];
}

static void on_head(void *arg, struct http_call *c, int status)
{
    struct upstream_answer *a = answer_of(arg);
    const char *type = http_call_header(c, "content-type");

    a->status = status;
    snprintf(a->type, sizeof a->type, "%s", type ? type : "");
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    (void)c;
    buf_append(&answer_of(arg)->body, data, len);
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct question *q = arg;
    struct upstream_gather *g = q->gather;

    (void)reused;
    (void)got_bytes;
    if (!q->call)
        return; /* canceled by gather_free */
    q->call = NULL;
    answer_of(q)->fail = fail == HTTP_OK && answer_of(q)->body.status ? HTTP_BAD : fail;
    if (--g->waiting)
        return;
    http_off_close(g->req);
    g->done(g->proxy, g->req, g->answers, g->n);
    gather_free(g);
}

static void on_client_gone(void *arg)
{
    gather_free(arg);
}

static int ask_one(struct upstream_gather *g, size_t i, struct member *m, const char *path)
{
    struct upstream_headers headers;
    size_t body_len;
    const char *body = http_body(g->req, &body_len);
    struct http_call_options o = { .host = m->host,
                                   .port = m->port,
                                   .method = http_method(g->req),
                                   .path = path,
                                   .body = body,
                                   .body_len = body_len,
                                   .first_byte_timeout = ASK_SECONDS,
                                   .idle_timeout = ASK_SECONDS,
                                   .on_head = on_head,
                                   .on_data = on_data,
                                   .on_done = on_done,
                                   .arg = &g->questions[i] };

    upstream_headers(&headers, g->req, NULL);
    o.headers = headers.kv;
    o.n_headers = headers.n;
    g->questions[i].gather = g;
    snprintf(g->answers[i].name, sizeof g->answers[i].name, "%s", m->name);
    return http_call(g->proxy->client, &o, &g->questions[i].call);
}

int upstream_ask(struct proxy *p, struct http_req *r, struct member *const *to, size_t n,
                 const char *path,
                 void (*done)(struct proxy *p, struct http_req *r, const struct upstream_answer *a,
                              size_t n))
{
    struct upstream_gather *g = calloc(1, sizeof *g);
    int st = 0;

    if (!g)
        return ERR_NOMEM;
    g->proxy = p;
    g->req = r;
    g->done = done;
    g->questions = calloc(n, sizeof *g->questions);
    g->answers = calloc(n, sizeof *g->answers);
    if (!g->questions || !g->answers) {
        gather_free(g);
        return ERR_NOMEM;
    }
    g->n = g->waiting = n;
    for (size_t i = 0; i < n; i++)
        buf_init(&g->answers[i].body, BUF_MAX_REPLY);
    for (size_t i = 0; i < n && st == 0; i++)
        st = ask_one(g, i, to[i], path);
    g->next = p->gathers;
    if (g->next)
        g->next->prev = g;
    p->gathers = g;
    if (st < 0)
        gather_free(g);
    else
        http_on_close(r, on_client_gone, g);
    return st;
}

void upstream_cancel_all(struct proxy *p)
{
    while (p->gathers) {
        http_off_close(p->gathers->req);
        http_reply_abort(p->gathers->req);
        gather_free(p->gathers);
    }
    while (p->releases)
        http_call_cancel(p->releases->call);
}

static void on_release_head(void *arg, struct http_call *c, int status)
{
    struct upstream_release *rel = arg;

    (void)c;
    rel->status = status;
}

static void on_released(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct upstream_release *rel = arg;
    struct proxy *p = rel->proxy;

    (void)reused;
    (void)got_bytes;
    if (rel->status == 404 || rel->status == 405)
        rel->prefiller->no_release = true;
    else if (fail != HTTP_OK && fail != HTTP_CANCELED)
        log_warning("prefill instance %s was not told to release a lease: %s", rel->prefiller->name,
                    http_fail_text(fail));
    else if (fail == HTTP_OK && rel->status >= 400)
        log_warning(
            "prefill instance %s did not release a lease: it answered %d; the lease ends when "
            "it expires",
            rel->prefiller->name, rel->status);
    if (rel->prev)
        rel->prev->next = rel->next;
    else
        p->releases = rel->next;
    if (rel->next)
        rel->next->prev = rel->prev;
    members_unhold(rel->prefiller, 0);
    free(rel);
}

static int send_release(struct upstream_release *rel, struct splice_text kv_params,
                        const char *authorization)
{
    const struct http_header_kv headers[] = { { "Content-Type", "application/json" },
                                              { "Authorization", authorization } };
    struct http_call_options o = { .host = rel->prefiller->host,
                                   .port = rel->prefiller->port,
                                   .method = "POST",
                                   .path = RELEASE_PATH,
                                   .headers = headers,
                                   .n_headers = authorization ? 2 : 1,
                                   .first_byte_timeout = RELEASE_SECONDS,
                                   .idle_timeout = RELEASE_SECONDS,
                                   .on_head = on_release_head,
                                   .on_done = on_released,
                                   .arg = rel };
    struct buf body;
    int st;

    buf_init(&body, BUF_MAX_BODY);
    buf_puts(&body, "{\"kv_transfer_params\":");
    buf_append(&body, kv_params.p, kv_params.len);
    st = buf_puts(&body, "}");
    o.body = body.data;
    o.body_len = body.len;
    if (st == 0)
        st = http_call(rel->proxy->client, &o, &rel->call);
    buf_finish(&body);
    return st;
}

void upstream_release(struct proxy *p, struct member *prefiller, struct splice_text kv_params,
                      const char *authorization)
{
    struct upstream_release *rel;

    if (prefiller->no_release || p->closing)
        return;
    rel = calloc(1, sizeof *rel);
    if (rel) {
        rel->proxy = p;
        rel->prefiller = prefiller;
    }
    if (!rel || send_release(rel, kv_params, authorization) < 0) {
        log_warning("prefill instance %s was not told to release a lease: out of memory",
                    prefiller->name);
        free(rel);
        return;
    }
    members_hold(prefiller, 0);
    rel->next = p->releases;
    if (rel->next)
        rel->next->prev = rel;
    p->releases = rel;
    p->metrics.releases++;
}
