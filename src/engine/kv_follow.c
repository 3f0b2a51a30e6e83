#include "engine/kv_follow.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "engine/kv_push.h"
#include "engine/kv_wire.h"

#define N_STRINGS 5

struct kv_follow {
    struct kv_follow_options o;
    char *owned[N_STRINGS];
    pthread_mutex_t lock; /* of what rank 0 says; never taken by the transfer's callback */
    bool closed;
    _Atomic(struct transfer *) t; /* NULL until rank 0 says so, and when closed */
};

/* The texts of the options, each to be kept until the transfer is made. */
static void strings_of(struct transfer_options *o, const char **out[N_STRINGS])
{
    out[0] = &o->host;
    out[1] = &o->secret;
    out[2] = &o->fingerprint;
    out[3] = &o->kv_dtype;
    out[4] = &o->engine_id;
}

int kv_follow_create(struct kv_follow **out, const struct kv_follow_options *o, struct err *e)
{
    struct kv_follow *f = calloc(1, sizeof *f);
    const char **text[N_STRINGS];
    bool ok = f != NULL;

    if (f) {
        pthread_mutex_init(&f->lock, NULL);
        f->o = *o;
        strings_of(&f->o.transfer, text);
        for (int i = 0; i < N_STRINGS; i++) {
            f->owned[i] = *text[i] ? strdup(*text[i]) : NULL;
            ok = ok && (!*text[i] || f->owned[i]);
            *text[i] = f->owned[i];
        }
    }
    if (!ok) {
        kv_follow_destroy(f);
        return err_set(e, ERR_NOMEM, "no memory for KV transfer");
    }
    *out = f;
    return 0;
}

void kv_follow_close(struct kv_follow *f)
{
    struct transfer *t;

    if (!f)
        return;
    pthread_mutex_lock(&f->lock);
    f->closed = true;
    t = f->t;
    f->t = NULL;
    pthread_mutex_unlock(&f->lock);
    transfer_destroy(t);
}

void kv_follow_destroy(struct kv_follow *f)
{
    if (!f)
        return;
    kv_follow_close(f);
    pthread_mutex_destroy(&f->lock);
    for (int i = 0; i < N_STRINGS; i++)
        free(f->owned[i]);
    free(f);
}

/* If it cannot be sent the ranks are parting, and rank 0 waits for nothing any more. */
static void tell(struct kv_follow *f, struct kv_wire *m)
{
    struct transfer *t =
        f->t; /* not destroyed while its own callback, or the lock's holder, is here */
    size_t n;
    void *bytes;

    if (t)
        transfer_stats(t, &m->u.tell.stats);
    bytes = kv_wire_make(&n, m, NULL, NULL);
    if (!bytes || f->o.post(f->o.post_arg, 0, bytes, n) < 0)
        log_debug("KV transfer: rank 0 could not be told what came of request %llu",
                  (unsigned long long)m->id);
    free(bytes);
}

/* The comm thread, or transfer_destroy. */
static void on_event(void *arg, const struct transfer_event *ev)
{
    bool pulled = ev->kind == TRANSFER_PULLED;
    struct kv_wire m = { .kind = pulled ? KV_PULLED : KV_LEASE_ENDED, .id = ev->user };

    m.status = ev->status;
    if (ev->why)
        snprintf(m.u.tell.why, sizeof m.u.tell.why, "%s", ev->why);
    m.u.tell.bytes = ev->bytes;
    m.u.tell.seconds = ev->seconds;
    m.u.tell.how = ev->end;
    tell(arg, &m);
}

static void open_transfer(struct kv_follow *f, const struct kv_wire *q)
{
    struct transfer_options *o = &f->o.transfer;
    struct kv_wire m = { .kind = KV_OPENED, .id = q->id };
    struct transfer_rank *place = &m.u.tell.place;
    struct transfer *t;
    struct err e = { "" };

    o->engine_id = q->engine_id;
    m.status = f->t ? ERR_EXISTS : transfer_create(&t, o, on_event, f, &e);
    if (m.status == 0)
        f->t = t;
    o->engine_id = f->owned[N_STRINGS - 1];
    snprintf(m.u.tell.why, sizeof m.u.tell.why, "%s", e.text);
    if (f->t && o->produce) {
        snprintf(place->host, sizeof place->host, "%s", transfer_host(f->t));
        place->port = transfer_port(f->t);
    }
    place->first_layer = o->layout.first_layer;
    place->n_layers = o->layout.n_layers;
    place->first_head = o->layout.first_head;
    place->n_heads = o->layout.kv_heads;
    tell(f, &m);
}

/* The lease that cannot be held has ended before it began; who waits for it is told. */
static void hold(struct kv_follow *f, const struct kv_wire *q, const uint32_t *blocks)
{
    const struct transfer_event ev = { .kind = TRANSFER_LEASE_END,
                                       .user = q->id,
                                       .end = LEASE_ABORTED };
    int st = transfer_hold(f->t, q->name, blocks, q->u.ask.n_src, q->u.ask.n_tokens, q->id);

    if (st == 0)
        return;
    log_warning("KV transfer: the blocks of '%s' cannot be held: %s", q->name, status_text(st));
    transfer_drop(f->t, q->name);
    on_event(f, &ev);
}

static void pull(struct kv_follow *f, const struct kv_wire *q, const uint32_t *src,
                 const uint32_t *dst)
{
    const struct transfer_source s = {
        .host = q->u.ask.host,
        .port = q->u.ask.port,
        .engine_id = q->engine_id,
        .transfer_id = q->name,
        .prompt = q->u.ask.by_name ? q->u.ask.prompt : NULL,
        .blocks = src,
        .n_blocks = q->u.ask.n_src,
        .block_tokens = q->u.ask.block_tokens,
        .keep = true,
    };
    struct transfer_event ev = { .kind = TRANSFER_PULLED, .user = q->id };

    ev.status = transfer_pull(f->t, &s, dst, q->u.ask.n_dst, q->u.ask.first, q->u.ask.n_tokens,
                              q->id);
    ev.why = status_text(ev.status);
    if (ev.status < 0)
        on_event(f, &ev);
}

static void stop_push(struct kv_follow *f, const char *name)
{
    if (f->o.push)
        kv_push_remove(f->o.push, name);
}

/* With the transfer there. */
static void obey(struct kv_follow *f, const struct kv_wire *q, const uint32_t *src,
                 const uint32_t *dst)
{
    switch (q->kind) {
    case KV_EXPECT:
        if (transfer_expect(f->t, q->name, q->u.ask.prompt) < 0)
            log_debug("KV transfer: '%s' cannot be waited for here", q->name);
        break;
    case KV_DROP:
        stop_push(f, q->name);
        transfer_stop_growing(f->t, q->name);
        transfer_drop(f->t, q->name);
        break;
    case KV_GROW:
        if (f->o.push)
            kv_push_add(f->o.push, q->id, q->name, q->u.ask.n_tokens);
        break;
    case KV_HOLD:
        stop_push(f, q->name);
        hold(f, q, src);
        break;
    case KV_END:
        transfer_abort_hold(f->t, q->name);
        break;
    case KV_PULL:
        pull(f, q, src, dst);
        break;
    case KV_CANCEL:
        transfer_cancel(f->t, q->id);
        break;
    default:
        log_warning("KV transfer: message %u is none of rank 0's", q->kind);
    }
}

struct transfer *kv_follow_transfer(struct kv_follow *f)
{
    return f->t;
}

void kv_follow_arrived(struct kv_follow *f, const void *data, size_t bytes)
{
    const uint32_t *src, *dst;
    struct kv_wire q;

    if (kv_wire_read(&q, &src, &dst, data, bytes) < 0) {
        log_warning("KV transfer: a message of rank 0 is not understood");
        return;
    }
    pthread_mutex_lock(&f->lock);
    if (q.kind == KV_OPEN && !f->closed)
        open_transfer(f, &q);
    else if (f->t)
        obey(f, &q, src, dst);
    pthread_mutex_unlock(&f->lock);
}
