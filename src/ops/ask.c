#include "ops/ask.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/loop.h"
#include "wire/kv_bootstrap.h"
#include "wire/kv_params.h"

#define CONNECT_SECONDS 10.0
#define SHOWN           300 /* of an answer that is not understood */

struct ask {
    struct loop *loop;
    struct http_client *http;
    char host[KV_PARAMS_HOST_MAX];
    uint16_t port;
    char *key; /* "Bearer ..."; NULL: none */
    double timeout;
    /* of the call under way */
    struct buf *reply;
    int status;
    enum http_fail fail;
};

static int make_key(struct ask *a, const char *api_key)
{
    if (api_key && asprintf(&a->key, "Bearer %s", api_key) < 0) {
        a->key = NULL;
        return ERR_NOMEM;
    }
    return 0;
}

int ask_create(struct ask **out, const char *url, const char *api_key, double timeout,
               struct err *e)
{
    const struct http_client_options o = { .connect_timeout = CONNECT_SECONDS };
    struct ask *a = calloc(1, sizeof *a);
    int st;

    if (!a)
        return err_set(e, ERR_NOMEM, "out of memory");
    a->timeout = timeout;
    st = kv_address_parse(a->host, &a->port, url, "http", e);
    if (st == 0 && (st = make_key(a, api_key)) < 0)
        err_set(e, st, "out of memory");
    if (st < 0 || (st = loop_create(&a->loop, e)) < 0 ||
        (st = http_client_create(&a->http, a->loop, &o, e)) < 0) {
        ask_destroy(a);
        return st;
    }
    *out = a;
    return 0;
}

void ask_destroy(struct ask *a)
{
    if (!a)
        return;
    if (a->http)
        http_client_destroy(a->http);
    if (a->loop)
        loop_destroy(a->loop);
    free(a->key);
    free(a);
}

static void on_head(void *arg, struct http_call *c, int status)
{
    struct ask *a = arg;

    (void)c;
    a->status = status;
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    struct ask *a = arg;

    (void)c;
    buf_append(a->reply, data, len);
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct ask *a = arg;

    (void)reused;
    (void)got_bytes;
    a->fail = fail;
    loop_stop(a->loop);
}

int ask_for(struct ask *a, const char *path, const struct buf *body, struct buf *reply,
            struct err *e)
{
    const struct http_header_kv headers[] = { { "Content-Type", "application/json" },
                                              { "Authorization", a->key } };
    const struct http_call_options o = {
        .host = a->host,
        .port = a->port,
        .method = body ? "POST" : "GET",
        .path = path,
        .headers = headers,
        .n_headers = a->key ? 2 : 1,
        .body = body ? body->data : NULL,
        .body_len = body ? body->len : 0,
        .first_byte_timeout = a->timeout,
        .idle_timeout = a->timeout,
        .on_head = on_head,
        .on_data = on_data,
        .on_done = on_done,
        .arg = a,
    };
    struct http_call *call;
    int st;

    a->reply = reply;
    a->status = 0;
    buf_reset(reply);
    if ((st = http_call(a->http, &o, &call)) < 0 || (st = loop_run(a->loop)) < 0)
        return err_set(e, st, "%s:%u%s cannot be asked: %s", a->host, a->port, path,
                       status_text(st));
    if (a->fail != HTTP_OK)
        return err_set(e, ERR_IO, "%s:%u%s did not answer: %s", a->host, a->port, path,
                       http_fail_text(a->fail));
    if (reply->status < 0)
        return err_set(e, reply->status, "%s:%u%s: the answer is too large", a->host, a->port,
                       path);
    return a->status;
}

/* The sentence of an error in OpenAI's shape, else the beginning of what came. */
static void show_refusal(const struct ask *a, const char *path, const struct buf *reply,
                         struct err *e)
{
    json_t *root = NULL;
    const char *text = NULL;

    if (json_read(&root, buf_str(reply), reply->len, NULL, e) == 0)
        text = json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    if (text)
        err_set(e, ERR_IO, "%s:%u%s answers %d: %s", a->host, a->port, path, a->status, text);
    else
        err_set(e, ERR_IO, "%s:%u%s answers %d: %.*s", a->host, a->port, path, a->status, SHOWN,
                buf_str(reply));
    json_decref(root);
}

int ask_well(struct ask *a, const char *path, const struct buf *body, struct buf *reply,
             struct err *e)
{
    int st = ask_for(a, path, body, reply, e);

    if (st < 0)
        return st;
    if (st == 200)
        return 0;
    show_refusal(a, path, reply, e);
    return ERR_IO;
}
