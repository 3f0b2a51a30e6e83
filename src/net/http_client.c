/* Calls: one request and its reply over a link of http_link.c. */
#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "net/client_impl.h"
#include "net/loop.h"
#include "net/timeval.h"

enum call_state {
    CALL_CONNECT, /* until the link can be written to */
    CALL_HEAD,    /* the request is out, the reply's head is not complete */
    CALL_BODY,
    CALL_DONE /* on_done has run */
};

struct http_call {
    struct http_client *client;
    struct http_call *prev, *next;
    struct http_call_options opt; /* host and path are not used after the start */
    char *host;
    enum call_state state;
    struct http_link *link;
    struct event *timer; /* the wait of the present state */
    struct buf request;
    bool is_head;
    bool resent;
    bool got_bytes;
    bool busy; /* a callback is on the stack: free later */
    struct http_head head;
    char *bytes; /* the head, terminated */
    size_t scanned;
    uint64_t received; /* of the body */
    struct http_chunked chunked;
    struct buf body;
};

const char *http_fail_text(enum http_fail f)
{
    static const char *const texts[] = {
        [HTTP_OK] = "ok",
        [HTTP_CONNECT] = "cannot connect",
        [HTTP_TIMEOUT_CONNECT] = "no connection within the time limit",
        [HTTP_TIMEOUT_FIRST] = "no reply within the time limit",
        [HTTP_TIMEOUT_IDLE] = "the reply stopped coming",
        [HTTP_RESET] = "the connection ended before a reply came",
        [HTTP_TRUNCATED] = "the connection ended in the middle of the reply",
        [HTTP_BAD] = "the reply is malformed or too large",
        [HTTP_CANCELED] = "canceled",
    };

    return texts[f];
}

int http_client_create(struct http_client **out, struct loop *l,
                       const struct http_client_options *o, struct err *e)
{
    struct http_client *c = calloc(1, sizeof *c);

    if (!c)
        return err_set(e, ERR_NOMEM, "HTTP client: out of memory");
    c->loop = l;
    c->base = loop_base(l);
    if (o)
        c->opt = *o;
    if (c->opt.connect_timeout <= 0)
        c->opt.connect_timeout = 5;
    if (c->opt.idle_reuse <= 0)
        c->opt.idle_reuse = 4;
    if (!c->opt.max_idle_per_host)
        c->opt.max_idle_per_host = 64;
    if (!c->opt.max_reply)
        c->opt.max_reply = 64u << 20;
    *out = c;
    return 0;
}

void http_client_destroy(struct http_client *c)
{
    if (!c)
        return;
    while (c->calls)
        http_call_cancel(c->calls);
    while (c->idle)
        http_link_destroy(c->idle);
    if (c->dns)
        evdns_base_free(c->dns, 0);
    free(c);
}

static void arm(struct http_call *c, double seconds)
{
    struct timeval tv = timeval_of(seconds);

    if (seconds > 0)
        event_add(c->timer, &tv);
    else
        event_del(c->timer);
}

static void call_free(struct http_call *c)
{
    http_link_destroy(c->link);
    if (c->timer)
        event_free(c->timer);
    buf_finish(&c->request);
    buf_finish(&c->body);
    free(c->bytes);
    free(c->host);
    free(c);
}

static void unlink_call(struct http_call *c)
{
    if (c->prev)
        c->prev->next = c->next;
    else
        c->client->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
}

/* Ends the call. With busy set, the frame that set it frees the call. */
static void finish(struct http_call *c, enum http_fail fail)
{
    bool reused = c->link && c->link->served;

    assert(c->state != CALL_DONE);
    c->state = CALL_DONE;
    event_del(c->timer);
    unlink_call(c);
    if (fail == HTTP_OK && c->head.keep_alive)
        http_link_put(c->link);
    else
        http_link_destroy(c->link);
    c->link = NULL;
    if (c->opt.on_done)
        c->opt.on_done(c->opt.arg, fail, reused, c->got_bytes);
    if (!c->busy)
        call_free(c);
}

void http_call_cancel(struct http_call *c)
{
    if (c->state != CALL_DONE)
        finish(c, HTTP_CANCELED);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_call *c = arg;

    (void)fd;
    (void)what;
    switch (c->state) {
    case CALL_CONNECT:
        finish(c, HTTP_TIMEOUT_CONNECT);
        break;
    case CALL_HEAD:
        finish(c, HTTP_TIMEOUT_FIRST);
        break;
    case CALL_BODY:
        finish(c, HTTP_TIMEOUT_IDLE);
        break;
    case CALL_DONE:
        break;
    }
}

static bool clean(const char *text)
{
    return !strpbrk(text, "\r\n");
}

/* The request as bytes, kept until the call ends: it may be sent twice. */
static int build_request(struct http_call *c, const struct http_call_options *o)
{
    bool v6 = strchr(o->host, ':');
    struct buf *b = &c->request;

    buf_init(b, BUF_MAX_BODY + BUF_MAX_LINE);
    if (!clean(o->method) || !clean(o->path) || strchr(o->path, ' '))
        return ERR_INVAL;
    buf_printf(b, "%s %s HTTP/1.1\r\nHost: %s%s%s:%u\r\n", o->method, o->path, v6 ? "[" : "",
               o->host, v6 ? "]" : "", o->port);
    for (size_t i = 0; i < o->n_headers; i++) {
        if (!clean(o->headers[i].name) || !clean(o->headers[i].value))
            return ERR_INVAL;
        buf_printf(b, "%s: %s\r\n", o->headers[i].name, o->headers[i].value);
    }
    if (o->body_len || strcmp(o->method, "POST") == 0 || strcmp(o->method, "PUT") == 0)
        buf_printf(b, "Content-Length: %zu\r\n", o->body_len);
    buf_puts(b, "\r\n");
    return buf_append(b, o->body, o->body_len);
}

static int get_link(struct http_call *c, bool fresh)
{
    c->link = http_link_get(c->client, c->host, c->opt.port, fresh, c);
    if (!c->link)
        return ERR_NOMEM;
    c->state = CALL_CONNECT;
    arm(c, c->client->opt.connect_timeout);
    return 0;
}

int http_call(struct http_client *client, const struct http_call_options *o, struct http_call **out)
{
    struct http_call *c = calloc(1, sizeof *c);
    int st;

    if (!c)
        return ERR_NOMEM;
    c->client = client;
    c->opt = *o;
    c->is_head = strcmp(o->method, "HEAD") == 0;
    buf_init(&c->body, client->opt.max_reply);
    c->host = strdup(o->host);
    c->timer = evtimer_new(client->base, on_timer, c);
    st = c->host && c->timer ? build_request(c, o) : ERR_NOMEM;
    if (st == 0)
        st = get_link(c, o->fresh);
    if (st < 0) {
        call_free(c);
        return st;
    }
    c->next = client->calls;
    if (c->next)
        c->next->prev = c;
    client->calls = c;
    if (out)
        *out = c;
    return 0;
}

void http_call_connected(struct http_call *c)
{
    c->state = CALL_HEAD;
    arm(c, c->opt.first_byte_timeout);
    if (bufferevent_write(c->link->bev, c->request.data, c->request.len) < 0)
        finish(c, HTTP_CONNECT);
}

void http_call_link_failed(struct http_call *c)
{
    c->link = NULL;
    finish(c, HTTP_CONNECT);
}

/* The server closed an idle connection just when it was used again: that says nothing about it. */
static bool resend(struct http_call *c)
{
    if (c->state == CALL_BODY || c->got_bytes || !c->link->served || c->resent)
        return false;
    c->resent = true;
    http_link_destroy(c->link);
    c->link = NULL;
    return get_link(c, true) == 0;
}

static void complete(struct http_call *c)
{
    if (!c->opt.stream && c->opt.on_data)
        c->opt.on_data(c->opt.arg, c, buf_str(&c->body), c->body.len);
    if (c->state != CALL_DONE)
        finish(c, HTTP_OK);
}

void http_call_link_ended(struct http_call *c)
{
    if (resend(c))
        return;
    c->busy = true;
    if (c->state == CALL_BODY && c->head.framing == HTTP_BODY_CLOSE)
        complete(c);
    else
        finish(c, c->state == CALL_BODY ? HTTP_TRUNCATED : HTTP_RESET);
    c->busy = false;
    call_free(c);
}

/* The functions below return whether the bytes at hand may allow another step. */

static bool begin_body(struct http_call *c)
{
    if (c->is_head)
        c->head.framing = HTTP_BODY_NONE;
    c->state = CALL_BODY;
    arm(c, c->opt.idle_timeout);
    if (c->opt.on_head)
        c->opt.on_head(c->opt.arg, c, c->head.status);
    if (c->state == CALL_DONE)
        return false;
    if (c->head.framing == HTTP_BODY_NONE ||
        (c->head.framing == HTTP_BODY_LENGTH && c->head.length == 0)) {
        complete(c);
        return false;
    }
    return true;
}

static bool read_head(struct http_call *c, struct evbuffer *in)
{
    size_t len = evbuffer_get_length(in), head_len;
    const char *p;

    if (len > HTTP_MAX_REPLY_HEAD)
        len = HTTP_MAX_REPLY_HEAD;
    p = len ? (const char *)evbuffer_pullup(in, (ev_ssize_t)len) : NULL;
    if (!p)
        return false;
    c->got_bytes = true;
    head_len = http_head_end(p, len, &c->scanned);
    if (head_len == 0) {
        if (len == HTTP_MAX_REPLY_HEAD)
            finish(c, HTTP_BAD);
        return false;
    }
    free(c->bytes);
    c->bytes = malloc(head_len);
    if (!c->bytes) {
        finish(c, HTTP_BAD);
        return false;
    }
    memcpy(c->bytes, p, head_len);
    evbuffer_drain(in, head_len);
    c->scanned = 0;
    if (http_parse_reply(&c->head, c->bytes, head_len) < 0) {
        finish(c, HTTP_BAD);
        return false;
    }
    http_head_terminate(&c->head, c->bytes);
    return c->head.status < 200 || begin_body(c); /* 1xx: the head proper follows */
}

/* False: the call has ended. */
static bool deliver(struct http_call *c, const char *data, size_t n)
{
    c->received += n;
    if (n == 0)
        return true;
    if (!c->opt.stream) {
        if (buf_append(&c->body, data, n) == 0)
            return true;
        finish(c, HTTP_BAD);
    } else if (c->opt.on_data) {
        c->opt.on_data(c->opt.arg, c, data, n);
    }
    return c->state != CALL_DONE;
}

/* How much of p[0..n) the body takes, and what of it is data. ERR_BADMSG. */
static ssize_t body_piece(struct http_call *c, const char *p, size_t n, const char **data,
                          size_t *data_len)
{
    if (c->head.framing == HTTP_BODY_CHUNKED)
        return http_chunked_take(&c->chunked, p, n, data, data_len);
    *data = p;
    *data_len = n;
    if (c->head.framing == HTTP_BODY_LENGTH && n > c->head.length - c->received)
        *data_len = (size_t)(c->head.length - c->received);
    return (ssize_t)*data_len;
}

static bool body_ended(const struct http_call *c)
{
    if (c->head.framing == HTTP_BODY_CHUNKED)
        return c->chunked.state == CHUNK_DONE;
    return c->head.framing == HTTP_BODY_LENGTH && c->received == c->head.length;
}

static bool read_body(struct http_call *c, struct evbuffer *in)
{
    size_t n = evbuffer_get_contiguous_space(in), data_len;
    const char *p = n ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : NULL;
    const char *data;
    ssize_t used;

    if (!p)
        return false;
    arm(c, c->opt.idle_timeout);
    used = body_piece(c, p, n, &data, &data_len);
    if (used < 0) {
        finish(c, HTTP_BAD);
        return false;
    }
    if (!deliver(c, data, data_len))
        return false;
    evbuffer_drain(in, (size_t)used);
    if (!body_ended(c))
        return true;
    complete(c);
    return false;
}

void http_call_readable(struct http_call *c)
{
    bool more = true;

    c->busy = true;
    while (more && c->state != CALL_DONE) {
        struct evbuffer *in = bufferevent_get_input(c->link->bev);

        more = c->state == CALL_BODY ? read_body(c, in) : read_head(c, in);
    }
    c->busy = false;
    if (c->state == CALL_DONE)
        call_free(c);
}

const char *http_call_header(const struct http_call *c, const char *name)
{
    return http_head_field(&c->head, c->bytes, name);
}

void http_call_each_header(const struct http_call *c,
                           void (*fn)(void *arg, const char *name, const char *value), void *arg)
{
    for (uint32_t i = 0; i < c->head.n_fields; i++)
        fn(arg, c->bytes + c->head.field[i].name.at, c->bytes + c->head.field[i].value.at);
}
