#include "client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/loop.h"

static void copy_header(char *out, size_t cap, const struct http_call *c, const char *name)
{
    const char *v = http_call_header(c, name);

    snprintf(out, cap, "%s", v ? v : "");
}

static void on_head(void *arg, struct http_call *c, int status)
{
    struct reply *r = arg;

    r->status = status;
    copy_header(r->type, sizeof r->type, c, "Content-Type");
    copy_header(r->request_id, sizeof r->request_id, c, "X-Request-Id");
    copy_header(r->allow, sizeof r->allow, c, "Allow");
    copy_header(r->retry_after, sizeof r->retry_after, c, "Retry-After");
    copy_header(r->allow_origin, sizeof r->allow_origin, c, "Access-Control-Allow-Origin");
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    struct reply *r = arg;

    buf_append(&r->body, data, len);
    if (++r->n_data == r->cancel_after)
        http_call_cancel(c);
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct reply *r = arg;

    (void)reused;
    (void)got_bytes;
    r->fail = fail;
    r->done = true;
    loop_stop(r->loop);
}

void client_begin(struct http_client *c, struct loop *l, uint16_t port, const char *method,
                  const char *path, const char *header, const char *body, struct reply *r)
{
    char name[64] = "", *value;
    struct http_header_kv headers[2] = { { "Content-Type", "application/json" } };
    uint32_t cancel_after = r->cancel_after;
    struct http_call *call;

    if (header) {
        snprintf(name, sizeof name, "%s", header);
        value = strchr(name, ':');
        *value = '\0';
        headers[1] = (struct http_header_kv){ name, value + 2 };
    }
    *r = (struct reply){ .loop = l, .cancel_after = cancel_after };
    buf_init(&r->body, BUF_MAX_REPLY);
    if (http_call(c,
                  &(struct http_call_options){ .host = "127.0.0.1",
                                               .port = port,
                                               .method = method,
                                               .path = path,
                                               .headers = headers,
                                               .n_headers = header ? 2 : 1,
                                               .body = body,
                                               .body_len = body ? strlen(body) : 0,
                                               .stream = true,
                                               .on_head = on_head,
                                               .on_data = on_data,
                                               .on_done = on_done,
                                               .arg = r },
                  &call) < 0)
        abort();
}

void client_call(struct http_client *c, struct loop *l, uint16_t port, const char *method,
                 const char *path, const char *header, const char *body, struct reply *r)
{
    client_begin(c, l, port, method, path, header, body, r);
    while (!r->done)
        loop_run(l);
}

void client_finish(struct reply *r)
{
    buf_finish(&r->body);
}
