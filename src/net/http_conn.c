/* One accepted connection: reads requests, one at a time, and hands them to the handler. Pipelined
 * bytes wait in the input buffer, whose high watermark bounds them, until the reply has ended. */
#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/bufferevent_ssl.h>
#include <event2/event.h>
#include <openssl/ssl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/status.h"
#include "net/loop.h"
#include "net/server_impl.h"
#include "net/timeval.h"
#include "sys/clock.h"

#define READ_SIZE  (64u << 10)
#define WRITE_SIZE (16u << 20) /* one event is never split by libevent's own write limit */

static void conn_advance(struct http_conn *c);

static void conn_move(struct http_conn *c, enum conn_state to)
{
    assert(c->state != CONN_LINGER);
    assert(to != CONN_HANDLER || c->req);
    c->state = to;
}

static void conn_arm(struct http_conn *c, double seconds)
{
    struct timeval tv = timeval_of(seconds);

    event_add(c->timer, &tv);
}

static void conn_free(struct http_conn *c)
{
    if (c->timer)
        event_free(c->timer);
    if (c->bev)
        bufferevent_free(c->bev);
    http_req_destroy(c->req);
    free(c);
}

void http_conn_close(struct http_conn *c)
{
    struct http_req *r = c->req;

    if (c->closed)
        return;
    c->closed = true;
    if (c->prev)
        c->prev->next = c->next;
    else
        c->server->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    c->server->n_conns--;
    if (c->state == CONN_HANDLER && r) {
        /* A handler that asked to be told ends the request here; another will still reply. */
        c->req = NULL;
        r->conn = NULL;
        if (r->close_fn) {
            r->close_fn(r->close_arg);
            http_req_destroy(r);
        }
    }
    if (!c->busy)
        conn_free(c);
}

/* Everything is sent: close, or first let the client finish talking. */
static void conn_sent(struct http_conn *c)
{
    if (!c->unread || c->server->tls) {
        http_conn_close(c);
        return;
    }
    shutdown(bufferevent_getfd(c->bev), SHUT_WR);
    conn_move(c, CONN_LINGER);
    conn_arm(c, HTTP_LINGER_SECONDS);
    bufferevent_enable(c->bev, EV_READ);
    conn_advance(c);
}

void http_conn_replied(struct http_conn *c, bool keep)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);

    c->req = NULL;
    c->served = true;
    if (!keep || c->server->stopping) {
        conn_move(c, CONN_LAST); /* its wait is the write limit */
        if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
            conn_sent(c);
        return;
    }
    conn_move(c, CONN_HEAD);
    c->scanned = 0;
    c->started_head = false;
    conn_arm(c, c->server->opt.keep_alive);
    /* The next request may be here already; its handler must not run inside this one's reply. */
    if (evbuffer_get_length(in) && !c->busy)
        bufferevent_trigger(c->bev, EV_READ, BEV_TRIG_DEFER_CALLBACKS | BEV_TRIG_IGNORE_WATERMARKS);
}

void http_conn_stop(struct http_conn *c)
{
    if (c->state != CONN_HEAD || c->started_head)
        return;
    conn_move(c, CONN_LAST);
    event_del(c->timer);
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0)
        conn_sent(c);
}

/* Answers by itself, without a handler, and closes. */
static void conn_refuse(struct http_conn *c, int status, const char *reason)
{
    struct buf body, out;

    http_req_destroy(c->req);
    c->req = NULL;
    buf_init(&body, BUF_MAX_LINE);
    buf_init(&out, BUF_MAX_LINE + BUF_MAX_LINE);
    if (c->server->opt.error_body)
        c->server->opt.error_body(&body, status, reason);
    else
        buf_printf(&body, "{\"detail\":\"%s\"}", reason);
    http_reply_head(&out, status);
    buf_printf(&out,
               "Content-Type: application/json\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n",
               body.len);
    buf_append(&out, buf_str(&body), body.len);
    c->unread = true;
    conn_move(c, CONN_LAST);
    bufferevent_disable(c->bev, EV_READ);
    if (out.status || bufferevent_write(c->bev, out.data, out.len) < 0)
        http_conn_close(c);
    buf_finish(&out);
    buf_finish(&body);
}

static void to_handler(struct http_conn *c)
{
    conn_move(c, CONN_HANDLER);
    event_del(c->timer);
    c->server->fn(c->server->arg, c->req);
}

/* The head is whole: decides how the body comes. */
static void begin_body(struct http_conn *c)
{
    static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
    struct http_req *r = c->req;

    if (r->head.framing == HTTP_BODY_LENGTH && r->head.length > c->server->opt.max_body) {
        conn_refuse(c, 413, "Request body too large");
        return;
    }
    if (r->head.framing == HTTP_BODY_NONE ||
        (r->head.framing == HTTP_BODY_LENGTH && !r->head.length)) {
        to_handler(c);
        return;
    }
    if (r->head.expect_continue && r->head.minor >= 1 &&
        evbuffer_get_length(bufferevent_get_input(c->bev)) == 0)
        bufferevent_write(c->bev, go_on, sizeof go_on - 1);
    conn_move(c, CONN_BODY);
    conn_arm(c, HTTP_BODY_SECONDS);
}

/* The functions below return whether the bytes at hand may allow another step. */

static bool read_head(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    size_t len = evbuffer_get_length(in), head_len;
    size_t max = c->server->opt.max_headers;
    const char *p;
    int st;

    if (len == 0)
        return false;
    if (!c->started_head) {
        c->started_head = true;
        conn_arm(c, HTTP_HEAD_SECONDS);
    }
    if (len > max)
        len = max;
    p = (const char *)evbuffer_pullup(in, (ev_ssize_t)len);
    head_len = p ? http_head_end(p, len, &c->scanned) : 0;
    if (head_len == 0) {
        if (len == max)
            conn_refuse(c, 431, "Request header fields too large");
        return false;
    }
    c->req = http_req_create(c, p, head_len, &st);
    evbuffer_drain(in, head_len);
    if (st == ERR_NOMEM)
        http_conn_close(c);
    else if (st == ERR_TOOLONG)
        conn_refuse(c, 431, "Too many request header fields");
    else if (st < 0)
        conn_refuse(c, 400, "Malformed HTTP request");
    else
        begin_body(c);
    return st == 0;
}

/* False: the body is too large or memory ran out, and that has been dealt with. */
static bool take_body(struct http_conn *c, const char *data, size_t n)
{
    int st = buf_append(&c->req->body, data, n);

    if (st == ERR_TOOLONG)
        conn_refuse(c, 413, "Request body too large");
    else if (st < 0)
        conn_refuse(c, 503, "Out of memory");
    return st == 0;
}

static bool read_sized_body(struct http_conn *c, const char *p, size_t n)
{
    struct http_req *r = c->req;
    size_t left = (size_t)r->head.length - r->body.len;

    if (n > left)
        n = left;
    if (!take_body(c, p, n))
        return false;
    evbuffer_drain(bufferevent_get_input(c->bev), n);
    if (n == left)
        to_handler(c);
    return true;
}

static bool read_chunked_body(struct http_conn *c, const char *p, size_t n)
{
    const char *data;
    size_t data_len;
    ssize_t used = http_chunked_take(&c->req->chunked, p, n, &data, &data_len);

    if (used < 0) {
        conn_refuse(c, 400, "Malformed chunked request body");
        return false;
    }
    if (!take_body(c, data, data_len))
        return false;
    evbuffer_drain(bufferevent_get_input(c->bev), (size_t)used);
    if (c->req->chunked.state == CHUNK_DONE)
        to_handler(c);
    return true;
}

static bool read_body(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);
    size_t n = evbuffer_get_contiguous_space(in);
    const char *p = n ? (const char *)evbuffer_pullup(in, (ev_ssize_t)n) : NULL;

    if (!p)
        return false;
    conn_arm(c, HTTP_BODY_SECONDS);
    return c->req->head.framing == HTTP_BODY_CHUNKED ? read_chunked_body(c, p, n)
                                                     : read_sized_body(c, p, n);
}

static bool conn_step(struct http_conn *c)
{
    struct evbuffer *in = bufferevent_get_input(c->bev);

    switch (c->state) {
    case CONN_HEAD:
        return read_head(c);
    case CONN_BODY:
        return read_body(c);
    case CONN_LINGER:
        evbuffer_drain(in, evbuffer_get_length(in));
        return false;
    case CONN_HANDLER:
    case CONN_LAST:
        break;
    }
    return false;
}

static void conn_advance(struct http_conn *c)
{
    if (c->busy)
        return;
    c->busy = true;
    while (!c->closed && conn_step(c))
        ;
    c->busy = false;
    if (c->closed)
        conn_free(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    conn_advance(arg);
}

/* It may be about an earlier reply, with more written since. */
static void on_written(struct bufferevent *bev, void *arg)
{
    struct http_conn *c = arg;

    if (c->state == CONN_LAST && evbuffer_get_length(bufferevent_get_output(bev)) == 0)
        conn_sent(c);
}

/* The client closed, broke, or took nothing for HTTP_WRITE_SECONDS. One that shuts its sending side has
 * gone too, except while the last reply is on its way. */
static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_conn *c = arg;

    (void)bev;
    if (what & BEV_EVENT_CONNECTED)
        return;
    if ((what & BEV_EVENT_EOF) && c->state == CONN_LAST) {
        c->unread = false;
        return;
    }
    http_conn_close(c);
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_conn *c = arg;

    (void)fd;
    (void)what;
    http_conn_close(c);
}

static struct bufferevent *new_bev(struct http_server *s, evutil_socket_t fd)
{
    struct bufferevent *bev;
    SSL *ssl;

    if (!s->tls)
        return bufferevent_socket_new(s->base, fd, BEV_OPT_CLOSE_ON_FREE);
    ssl = SSL_new(s->tls);
    if (!ssl)
        return NULL;
    bev = bufferevent_openssl_socket_new(s->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                         BEV_OPT_CLOSE_ON_FREE);
    if (bev)
        bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    else
        SSL_free(ssl);
    return bev;
}

struct http_conn *http_conn_create(struct http_server *s, evutil_socket_t fd,
                                   const struct sockaddr *peer, bool refuse)
{
    struct timeval write_limit = { (time_t)HTTP_WRITE_SECONDS, 0 };
    struct http_conn *c = calloc(1, sizeof *c);

    if (!c || !(c->bev = new_bev(s, fd))) {
        evutil_closesocket(fd);
        free(c);
        return NULL;
    }
    c->server = s;
    c->timer = evtimer_new(s->base, on_timer, c);
    if (!c->timer) {
        conn_free(c);
        return NULL;
    }
    http_format_address(c->peer, sizeof c->peer, peer);
    c->next = s->conns;
    if (c->next)
        c->next->prev = c;
    s->conns = c;
    s->n_conns++;
    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    bufferevent_setwatermark(c->bev, EV_READ, 0, s->opt.max_headers + READ_SIZE);
    bufferevent_set_max_single_read(c->bev, READ_SIZE);
    bufferevent_set_max_single_write(c->bev, WRITE_SIZE);
    bufferevent_set_timeouts(c->bev, NULL, &write_limit);
    conn_arm(c, HTTP_HEAD_SECONDS);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
    if (refuse)
        conn_refuse(c, 503, "Too many connections");
    return c;
}
