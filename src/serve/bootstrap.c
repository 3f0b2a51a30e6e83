#include "serve/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/loop.h"

#define ANSWERS_MAX   64   /* addresses remembered */
#define WAITS_MAX     8192 /* questions at a time */
#define FRESH_SECONDS 2.0  /* shorter than a restart takes */
#define MAX_REPLY     (64u << 10)

struct answer {
    char address[KV_PARAMS_HOST_MAX];
    struct kv_bootstrap found;
    double until;
};

/* One question on its way. */
struct wait {
    struct wait *next, **link;
    struct bootstrap *b;
    struct kv_params p; /* without block ids */
    bootstrap_fn *fn;
    void *arg;
    int status; /* of the reply */
    struct buf body;
};

struct bootstrap {
    struct loop *loop;
    struct http_client *http;
    double timeout;
    struct answer answers[ANSWERS_MAX];
    uint32_t n_answers;
    struct wait *waits;
    uint32_t n_waits;
};

int bootstrap_create(struct bootstrap **out, struct loop *l, double timeout, struct err *e)
{
    struct http_client_options o = { .connect_timeout = timeout, .max_reply = MAX_REPLY };
    struct bootstrap *b = calloc(1, sizeof *b);
    int st;

    if (!b)
        return err_set(e, ERR_NOMEM, "out of memory");
    b->loop = l;
    b->timeout = timeout;
    if ((st = http_client_create(&b->http, l, &o, e)) < 0) {
        bootstrap_destroy(b);
        return st;
    }
    *out = b;
    return 0;
}

void bootstrap_destroy(struct bootstrap *b)
{
    if (!b)
        return;
    http_client_destroy(b->http);
    free(b);
}

/* ---- what is remembered ---- */

static struct answer *lookup(struct bootstrap *b, const char *address)
{
    for (uint32_t i = 0; i < b->n_answers; i++)
        if (strcmp(b->answers[i].address, address) == 0)
            return &b->answers[i];
    return NULL;
}

static void remember(struct bootstrap *b, const char *address, const struct kv_bootstrap *found)
{
    struct answer *a = lookup(b, address);

    if (!a && b->n_answers == ANSWERS_MAX) { /* the oldest makes room */
        memmove(b->answers, b->answers + 1, (ANSWERS_MAX - 1) * sizeof *b->answers);
        b->n_answers--;
    }
    if (!a)
        a = &b->answers[b->n_answers++];
    snprintf(a->address, sizeof a->address, "%s", address);
    a->found = *found;
    a->until = loop_now(b->loop) + FRESH_SECONDS;
}

void bootstrap_forget(struct bootstrap *b, const char *address)
{
    struct answer *a = lookup(b, address);

    if (a)
        a->until = 0;
}

/* ---- asking ---- */

static void end_wait(struct wait *w, int st, const struct kv_bootstrap *found, const char *why)
{
    struct err e;

    *w->link = w->next;
    if (w->next)
        w->next->link = w->link;
    w->b->n_waits--;
    if (st < 0)
        err_set(&e, st, "KV bootstrap %s: %s", w->p.remote_bootstrap_addr, why);
    w->fn(w->arg, st, found, st < 0 ? e.text : NULL);
    buf_finish(&w->body);
    free(w);
}

static void on_head(void *arg, struct http_call *c, int status)
{
    (void)c;
    ((struct wait *)arg)->status = status;
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    (void)c;
    buf_append(&((struct wait *)arg)->body, data, len);
}

static int read_answer(const struct wait *w, struct kv_bootstrap *found, struct err *e)
{
    json_t *reply;
    int st;

    if (w->status != 200)
        return err_set(e, ERR_NOTFOUND, "GET /query answers %d", w->status);
    if (w->body.status < 0)
        return err_set(e, w->body.status, "%s", status_text(w->body.status));
    if ((st = json_read(&reply, w->body.data, w->body.len, NULL, e)) < 0)
        return st;
    st = kv_bootstrap_decode(found, reply, w->p.remote_engine_id, e);
    json_decref(reply);
    return st;
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct wait *w = arg;
    struct kv_bootstrap found;
    struct err e = { "" };
    int st;

    (void)reused;
    (void)got_bytes;
    if (fail != HTTP_OK) {
        end_wait(w, ERR_CLOSED, NULL, http_fail_text(fail));
        return;
    }
    st = read_answer(w, &found, &e);
    if (st == 0)
        remember(w->b, w->p.remote_bootstrap_addr, &found);
    end_wait(w, st, st < 0 ? NULL : &found, e.text);
}

static int begin_call(struct bootstrap *b, struct wait *w, struct err *e)
{
    char host[KV_PARAMS_HOST_MAX];
    struct http_call_options o = { .host = host,
                                   .method = "GET",
                                   .path = "/query",
                                   .first_byte_timeout = b->timeout,
                                   .idle_timeout = b->timeout,
                                   .on_head = on_head,
                                   .on_data = on_data,
                                   .on_done = on_done,
                                   .arg = w };
    struct http_call *call;
    int st = kv_address_parse(host, &o.port, w->p.remote_bootstrap_addr, "http", e);

    if (st < 0)
        return st;
    if ((st = http_call(b->http, &o, &call)) < 0)
        err_set(e, st, "%s", status_text(st));
    return st;
}

static void ask(struct bootstrap *b, const struct kv_params *p, bootstrap_fn *fn, void *arg)
{
    struct wait *w = b->n_waits < WAITS_MAX ? calloc(1, sizeof *w) : NULL;
    struct err e;
    int st;

    if (!w) {
        fn(arg, ERR_LIMIT, NULL, "too many questions to KV bootstraps at a time");
        return;
    }
    w->b = b;
    w->p = *p;
    w->p.remote_block_ids = NULL;
    w->fn = fn;
    w->arg = arg;
    buf_init(&w->body, BUF_MAX_REPLY);
    w->next = b->waits;
    w->link = &b->waits;
    if (w->next)
        w->next->link = &w->next;
    b->waits = w;
    b->n_waits++;
    if ((st = begin_call(b, w, &e)) < 0)
        end_wait(w, st, NULL, e.text);
}

void bootstrap_find(struct bootstrap *b, const struct kv_params *p, bootstrap_fn *fn, void *arg)
{
    const struct answer *a = lookup(b, p->remote_bootstrap_addr);

    if (a && loop_now(b->loop) < a->until &&
        (!p->remote_engine_id[0] || strcmp(p->remote_engine_id, a->found.engine_id) == 0))
        fn(arg, 0, &a->found, NULL);
    else
        ask(b, p, fn, arg);
}

bool bootstrap_needed(const struct kv_params *p)
{
    return p->do_remote_prefill && p->remote_bootstrap_addr[0] && !p->remote_host[0];
}

void bootstrap_fill(struct kv_params *p, const struct kv_bootstrap *found)
{
    snprintf(p->remote_host, sizeof p->remote_host, "%s", found->host);
    p->remote_port = found->port;
    p->remote_block_size = found->block_size;
}
