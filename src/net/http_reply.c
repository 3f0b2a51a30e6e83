/* Replies, whole or as a stream. */
#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "base/status.h"
#include "net/server_impl.h"

void http_on_close(struct http_req *r, void (*fn)(void *arg), void *arg)
{
    r->close_fn = fn;
    r->close_arg = arg;
}

void http_off_close(struct http_req *r)
{
    r->close_fn = NULL;
}

void http_set_header(struct http_req *r, const char *name, const char *value)
{
    assert(!r->started);
    /* A value from outside must not be able to add a header of its own. */
    if (strpbrk(name, "\r\n:") || strpbrk(value, "\r\n"))
        return;
    buf_printf(&r->headers, "%s: %s\r\n", name, value);
}

void http_reply_head(struct buf *out, int status)
{
    time_t now = time(NULL);
    struct tm tm;
    char date[64];

    gmtime_r(&now, &tm);
    strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    buf_printf(out, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, http_reason(status), date);
}

/* The connection can carry another request after this reply. */
static bool keeps(const struct http_req *r)
{
    return r->head.keep_alive && !r->conn->server->stopping &&
           (r->chunked_reply || !r->started || r->no_body);
}

static void put_head(struct http_req *r, struct buf *out, int status, const char *type)
{
    http_reply_head(out, status);
    if (type)
        buf_printf(out, "Content-Type: %s\r\n", type);
    buf_append(out, buf_str(&r->headers), r->headers.len);
    if (!keeps(r))
        buf_puts(out, "Connection: close\r\n");
    else if (r->head.minor == 0)
        buf_puts(out, "Connection: keep-alive\r\n");
}

/* The reply is complete: the request ends, the connection goes on or closes. */
static void finish(struct http_req *r, bool keep)
{
    struct http_conn *c = r->conn;

    http_req_destroy(r);
    http_conn_replied(c, keep);
}

static bool status_has_body(int status)
{
    return status >= 200 && status != 204 && status != 304;
}

void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t len)
{
    struct evbuffer *out;
    struct buf head;
    bool keep, failed;

    assert(!r->started);
    if (!r->conn) {
        http_req_destroy(r);
        return;
    }
    keep = keeps(r);
    buf_init(&head, 2 * BUF_MAX_LINE);
    put_head(r, &head, status, type);
    if (status_has_body(status))
        buf_printf(&head, "Content-Length: %zu\r\n", len);
    else
        r->no_body = true;
    buf_puts(&head, "\r\n");
    out = bufferevent_get_output(r->conn->bev);
    failed = head.status || r->headers.status || evbuffer_add(out, head.data, head.len) < 0 ||
             (!r->no_body && len && evbuffer_add(out, body, len) < 0);
    buf_finish(&head);
    if (failed)
        http_reply_abort(r);
    else
        finish(r, keep);
}

void http_reply_start(struct http_req *r, int status, const char *type)
{
    struct buf head;

    assert(!r->started);
    r->started = true;
    if (!r->conn)
        return;
    r->no_body |= !status_has_body(status);
    r->chunked_reply = r->head.minor >= 1 && status_has_body(status);
    buf_init(&head, 2 * BUF_MAX_LINE);
    put_head(r, &head, status, type);
    if (r->chunked_reply)
        buf_puts(&head, "Transfer-Encoding: chunked\r\n");
    buf_puts(&head, "\r\n");
    /* Without memory for the head nothing of the reply may follow: the client sees a cut. */
    if (head.status || r->headers.status ||
        bufferevent_write(r->conn->bev, head.data, head.len) < 0) {
        r->conn->req = NULL;
        http_conn_close(r->conn);
        r->conn = NULL;
    }
    buf_finish(&head);
}

int http_reply_send(struct http_req *r, const void *data, size_t len)
{
    struct evbuffer *out;

    assert(r->started);
    if (!r->conn)
        return ERR_CLOSED;
    if (r->no_body || len == 0)
        return 0;
    out = bufferevent_get_output(r->conn->bev);
    if (evbuffer_get_length(out) > HTTP_MAX_UNSENT)
        return ERR_LIMIT;
    /* Head, bytes and tail of the chunk are in the buffer before the loop writes: one send. */
    if ((r->chunked_reply && evbuffer_add_printf(out, "%zx\r\n", len) < 0) ||
        evbuffer_add(out, data, len) < 0 || (r->chunked_reply && evbuffer_add(out, "\r\n", 2) < 0))
        return ERR_LIMIT;
    return 0;
}

void http_reply_end(struct http_req *r)
{
    bool keep;

    assert(r->started);
    if (!r->conn) {
        http_req_destroy(r);
        return;
    }
    keep = keeps(r);
    if (r->chunked_reply && !r->no_body)
        bufferevent_write(r->conn->bev, "0\r\n\r\n", 5);
    finish(r, keep);
}

void http_reply_abort(struct http_req *r)
{
    struct http_conn *c = r->conn;

    if (c) {
        /* A reply without length looks whole when it is closed in order: it has to be reset. */
        struct linger reset = { 1, 0 };

        setsockopt(bufferevent_getfd(c->bev), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        r->close_fn = NULL;
        r->conn = NULL;
        c->req = NULL;
        http_conn_close(c);
    }
    http_req_destroy(r);
}

bool http_reply_started(const struct http_req *r)
{
    return r->started;
}
