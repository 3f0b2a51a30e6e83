#include "proxy/relay.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "net/http_server.h"
#include "proxy/fault.h"
#include "proxy/legs.h"
#include "proxy/upstream.h"

#define SSE_TYPE "text/event-stream"

void relay_init(struct relay *r, struct http_req *req, const char *request_id, size_t max_reply)
{
    *r = (struct relay){ .req = req, .request_id = request_id, .cached_tokens = RELAY_KEEP_USAGE };
    buf_init(&r->headers, 2 * BUF_MAX_LINE);
    buf_init(&r->body, max_reply);
    buf_init(&r->output_ids, BUF_MAX_BODY);
    sse_init(&r->sse);
}

void relay_finish(struct relay *r)
{
    buf_finish(&r->headers);
    buf_finish(&r->body);
    buf_finish(&r->output_ids);
    sse_finish(&r->sse);
}

void relay_reset(struct relay *r, long long cached_tokens)
{
    assert(!r->sent);
    r->cached_tokens = cached_tokens;
    r->given_back = false;
    r->status = 0;
    r->events = r->complete = false;
    r->type[0] = '\0';
    buf_reset(&r->headers);
    buf_reset(&r->body);
    sse_finish(&r->sse);
    sse_init(&r->sse);
}

void relay_go_on(struct relay *r)
{
    assert(r->given_back);
    r->sent = false;
}

static void keep_header(void *arg, const char *name, const char *value)
{
    struct relay *r = arg;

    if (!upstream_passes(name))
        return;
    buf_append(&r->headers, name, strlen(name) + 1);
    buf_append(&r->headers, value, strlen(value) + 1);
}

void relay_head(struct relay *r, struct http_call *c, int status, bool gather)
{
    const char *type = http_call_header(c, "content-type");

    r->status = status;
    snprintf(r->type, sizeof r->type, "%s", type ? type : "");
    r->events = !gather && status == 200 && strncasecmp(r->type, SSE_TYPE, strlen(SSE_TYPE)) == 0;
    http_call_each_header(c, keep_header, r);
    if (r->request_id && !http_call_header(c, "x-request-id"))
        keep_header(r, "x-request-id", r->request_id);
}

static void set_headers(struct relay *r)
{
    const char *p = r->headers.data, *end = p + r->headers.len;

    while (p < end) {
        const char *value = p + strlen(p) + 1;

        http_set_header(r->req, p, value);
        p = value + strlen(value) + 1;
    }
}

static void commit(struct relay *r)
{
    r->committed = true;
    set_headers(r);
    http_reply_start(r->req, 200, SSE_TYPE "; charset=utf-8");
}

/* The event with its usage corrected, or as one that ends nothing. It has one data line, whose bytes the
 * event's data are. */
static int send_fixed(struct relay *r, const struct sse_event *ev)
{
    const char *at = memmem(ev->raw, ev->raw_len, ev->data, ev->data_len);
    struct buf out;
    int st;

    if (!at)
        return ERR_AGAIN;
    buf_init(&out, 2 * SSE_MAX_EVENT);
    buf_append(&out, ev->raw, (size_t)(at - ev->raw));
    if (r->given_back)
        st = legs_unfinished(&out, ev->data, ev->data_len);
    else
        st = legs_fix_usage(&out, ev->data, ev->data_len, r->cached_tokens);
    if (st == 0)
        st = buf_append(&out, at + ev->data_len,
                        (size_t)(ev->raw + ev->raw_len - at) - ev->data_len);
    if (st == 0)
        st = http_reply_send(r->req, out.data, out.len);
    buf_finish(&out);
    return st;
}

static void note_given_back(struct relay *r, const char *json, size_t len)
{
    struct splice_text ids;

    if (!legs_given_back(&ids, json, len))
        return;
    buf_reset(&r->output_ids);
    r->given_back = buf_append(&r->output_ids, ids.p, ids.len) == 0;
}

static int on_event(void *arg, const struct sse_event *ev)
{
    struct relay *r = arg;
    int st = ERR_AGAIN;

    if (ev->data && (strcmp(ev->data, "[DONE]") == 0 || strncmp(ev->data, "{\"error\"", 8) == 0))
        r->complete = true;
    if (r->given_back) /* the end of this reply is not the client's */
        return 0;
    if (!r->committed)
        commit(r);
    r->sent = true;
    r->n_events++;
    if (ev->data)
        note_given_back(r, ev->data, ev->data_len);
    if (ev->data && (r->given_back || r->cached_tokens != RELAY_KEEP_USAGE))
        st = send_fixed(r, ev);
    if (st == ERR_AGAIN)
        st = http_reply_send(r->req, ev->raw, ev->raw_len);
    return st;
}

int relay_data(struct relay *r, const void *data, size_t len)
{
    if (r->events)
        return sse_push(&r->sse, data, len, on_event, r);
    return buf_append(&r->body, data, len);
}

bool relay_gave_back(struct relay *r)
{
    if (!r->events && r->status == 200)
        note_given_back(r, buf_str(&r->body), r->body.len);
    return r->given_back;
}

bool relay_whole(const struct relay *r)
{
    if (r->headers.status)
        return false;
    return !r->events || (r->committed && r->complete && sse_left(&r->sse) == 0);
}

static void send_gathered(struct relay *r)
{
    const struct buf *body = &r->body;
    struct buf fixed;

    buf_init(&fixed, BUF_MAX_BODY);
    if (r->cached_tokens != RELAY_KEEP_USAGE && r->status == 200 &&
        legs_fix_usage(&fixed, buf_str(&r->body), r->body.len, r->cached_tokens) == 0)
        body = &fixed;
    set_headers(r);
    http_reply(r->req, r->status, r->type[0] ? r->type : NULL, buf_str(body), body->len);
    buf_finish(&fixed);
}

void relay_send(struct relay *r)
{
    if (r->committed)
        http_reply_end(r->req);
    else
        send_gathered(r);
    r->req = NULL;
}

void relay_break(struct relay *r, int status, const char *message)
{
    struct buf event;

    assert(r->committed);
    buf_init(&event, BUF_MAX_LINE);
    buf_puts(&event, "data: ");
    fault_object(&event, status, NULL, message);
    buf_puts(&event, "\n\n");
    http_reply_send(r->req, buf_str(&event), event.len);
    http_reply_end(r->req);
    buf_finish(&event);
    r->req = NULL;
}
