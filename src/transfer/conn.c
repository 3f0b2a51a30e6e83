#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "sys/clock.h"
#include "transfer/internal.h"

#define LEAVE_SECONDS 1.0 /* a refused peer has so long to read why */

static enum handshake_role own_role(const struct conn *c)
{
    return c->incoming ? HANDSHAKE_PRODUCER : HANDSHAKE_CONSUMER;
}

int conn_send(struct conn *c, const struct message *m)
{
    unsigned char bytes[MESSAGE_MAX];
    size_t n = message_encode(bytes, m);

    return link_send(c->link, bytes, n, NULL, 0, NULL, NULL);
}

void conn_send_id(struct conn *c, enum message_kind kind, uint64_t id)
{
    struct message m = { .kind = kind };

    m.u.id = id;
    conn_send(c, &m);
}

void conn_fail(struct conn *c, int status, const char *text)
{
    if (!c->why.text[0])
        err_set(&c->why, status, "%s", text);
    link_close(c->link, status);
}

void conn_violation(struct conn *c, const char *what)
{
    log_warning("KV transfer: %s broke the protocol (%s); connection closed",
                link_peer_name(c->link), what);
    transfer_count(c->t, &c->t->stats.protocol_errors, 1);
    conn_fail(c, ERR_BADMSG, "the peer broke the KV transfer protocol");
}

/* ---- making ---- */

static struct conn *make(struct transfer *t, bool incoming)
{
    struct conn *c = calloc(1, sizeof *c);

    if (!c)
        return NULL;
    c->t = t;
    c->incoming = incoming;
    c->heard = clock_now();
    c->deadline = c->heard + t->opt.connect_timeout;
    handshake_init(&c->handshake, own_role(c), t->opt.secret);
    return c;
}

static void keep(struct conn *c, struct link_peer *peer)
{
    c->link = peer;
    link_set_user(peer, c);
    c->next = c->t->conns;
    c->t->conns = c;
    pthread_mutex_lock(&c->t->lock);
    c->t->stats.peers++;
    pthread_mutex_unlock(&c->t->lock);
}

static void send_hello(struct conn *c, enum message_kind kind)
{
    struct message m = { .kind = kind };

    m.u.hello.version = MESSAGE_VERSION;
    m.u.hello.secret = c->t->opt.secret != NULL;
    memcpy(m.u.hello.nonce, c->handshake.nonce[own_role(c)], MESSAGE_NONCE_BYTES);
    conn_send(c, &m);
}

int conn_get(struct conn **out, struct transfer *t, const char *host, uint16_t port, struct err *e)
{
    struct link_peer *peer;
    struct conn *c;
    int st;

    for (c = t->conns; c; c = c->next)
        if (!c->incoming && !c->why.text[0] && c->port == port && strcmp(c->host, host) == 0) {
            *out = c;
            return 1;
        }
    c = make(t, false);
    if (!c)
        return err_set(e, ERR_NOMEM, "out of memory");
    st = link_connect(&peer, t->link, host, port, e);
    if (st < 0) {
        free(c);
        return st;
    }
    snprintf(c->host, sizeof c->host, "%s", host);
    c->port = port;
    keep(c, peer);
    send_hello(c, MESSAGE_HELLO);
    *out = c;
    return 0;
}

static void on_accept(void *arg, struct link_peer *peer)
{
    struct conn *c = make(arg, true);

    if (c)
        keep(c, peer);
    else
        link_close(peer, ERR_NOMEM);
}

/* ---- handshake ---- */

static void refuse(struct conn *c, int status, const char *text)
{
    struct message m = { .kind = MESSAGE_REFUSED };

    log_warning("KV transfer: refused %s: %s", link_peer_name(c->link), text);
    transfer_count(c->t, &c->t->stats.refused, 1);
    m.u.result.status = status;
    snprintf(m.u.result.text, sizeof m.u.result.text, "%s", text);
    conn_send(c, &m);
    c->state = CONN_REFUSED;
    c->deadline = clock_now() + LEAVE_SECONDS;
}

/* Closing would drop what was sent last. The jobs end now. */
static void part(struct conn *c, int status, const struct err *why)
{
    c->why = *why;
    c->state = CONN_REFUSED;
    c->deadline = clock_now() + LEAVE_SECONDS;
    pull_conn_lost(c, status, why->text);
}

/* The consumer's view of a failed handshake. */
static void give_up(struct conn *c, int status, const char *text)
{
    struct err e;

    err_set(&e, status, "KV producer %s: %s", link_peer_name(c->link), text);
    log_warning("%s", e.text);
    if ((status == ERR_MISMATCH || status == ERR_AUTH) && c->peer.rank == 0)
        note_mismatch(c, e.text);
    transfer_count(c->t, &c->t->stats.refused, 1);
    if (c->parting)
        part(c, status, &e);
    else
        conn_fail(c, status, e.text);
}

static void send_identity(struct conn *c, enum message_kind kind)
{
    struct message m = { .kind = kind };

    m.u.ready.identity = c->t->identity;
    handshake_prove(&c->handshake, own_role(c), m.u.ready.proof, &c->t->identity);
    if (kind == MESSAGE_READY)
        m.u.ready.key = c->t->key;
    conn_send(c, &m);
}

static void greet(struct conn *c, const struct message_hello *hello)
{
    struct err e;
    int st = handshake_hello(&c->handshake, own_role(c), hello, &e);

    if (st < 0 && c->incoming) {
        refuse(c, st, e.text);
    } else if (st < 0) {
        give_up(c, st, e.text);
    } else {
        c->state = CONN_PROVING;
        if (c->incoming)
            send_hello(c, MESSAGE_WELCOME);
        else
            send_identity(c, MESSAGE_PROVE);
    }
}

/* The producer's memory, if this process may map it. */
static void map_pool(struct conn *c, const struct region_key *key)
{
    uint64_t bytes = kv_layout_pool_bytes(&c->peer.layout);

    if (region_open(&c->pool, key, bytes) == 0)
        c->pool_bytes = bytes;
    else
        c->pool = NULL;
}

/* Both sides say it, once a connection. */
static void note_draft_layers(const struct conn *c)
{
    uint32_t own = c->t->identity.layout.n_draft, peer = c->peer.layout.n_draft;

    if (own != peer)
        log_info(
            "KV transfer: %s '%s' has %u layers for multi-token prediction, this instance %u; "
            "only what both have is transferred (drafts after a transferred prompt may be worse, "
            "tokens are the same)",
            c->incoming ? "consumer" : "producer", c->peer.engine_id, peer, own);
}

static void become_ready(struct conn *c)
{
    c->state = CONN_READY;
    if (!c->incoming && c->peer.rank == 0)
        note_match(c);
    log_debug("KV transfer: %s %s is '%s', %s", c->incoming ? "consumer" : "producer",
              link_peer_name(c->link), c->peer.engine_id,
              c->pool ? "read in place" : "data is sent");
    note_draft_layers(c);
    if (c->incoming)
        send_identity(c, MESSAGE_READY);
    else
        pull_conn_ready(c);
}

/* Every rank of the producer is known: do they hold what this rank needs? */
static void check_ranks(struct conn *c)
{
    struct rank_part *parts = malloc(c->n_ranks * sizeof *parts);
    struct err e = { "out of memory" };
    uint32_t n;
    int st = parts ? ranks_plan(parts, &n, c->ranks, &c->peer.shape, &c->t->opt.layout, 0, &e)
                   : ERR_NOMEM;

    free(parts);
    if (st == 0) {
        become_ready(c);
        return;
    }
    pull_conn_refused(c);
    give_up(c, st, e.text);
}

static void take_rank(struct conn *c, const struct message_rank *m)
{
    struct err e;

    if (m->rank != c->n_known) {
        conn_violation(c, "RANK out of order");
    } else if (rank_check(&m->is, m->rank, &c->peer.layout, &e) < 0) {
        give_up(c, ERR_MISMATCH, e.text);
    } else {
        c->ranks[c->n_known++] = m->is;
        if (c->n_known == c->n_ranks)
            check_ranks(c);
    }
}

/* The producer's rank 0 is asked what the others hold. Of the only one it is known. */
static void begin_map(struct conn *c)
{
    const struct kv_layout *l = &c->peer.layout;

    c->n_ranks = shape_ranks(&c->peer.shape);
    c->ranks = calloc(c->n_ranks, sizeof *c->ranks);
    c->state = CONN_MAPPING;
    if (!c->ranks) {
        conn_fail(c, ERR_NOMEM, "out of memory");
    } else if (c->n_ranks > 1) {
        conn_send_id(c, MESSAGE_MAP, 0);
    } else {
        c->ranks[0].first_layer = l->first_layer;
        c->ranks[0].n_layers = l->n_layers;
        c->ranks[0].first_head = l->first_head;
        c->ranks[0].n_heads = l->kv_heads;
        check_ranks(c);
    }
}

static void matched(struct conn *c, const struct message_ready *ready)
{
    if (!c->incoming)
        map_pool(c, &ready->key);
    if (!c->incoming && c->peer.rank == 0)
        begin_map(c);
    else
        become_ready(c);
}

static void prove(struct conn *c, const struct message_ready *ready)
{
    const struct identity *own = &c->t->identity;
    struct err e;
    int st = handshake_verify(&c->handshake, 1 - own_role(c), ready, &e);

    c->proved = st == 0;
    if (st == 0 && c->incoming)
        st = handshake_compare(own, &ready->identity, &e);
    else if (st == 0)
        st = handshake_compare(&ready->identity, own, &e);
    c->peer = ready->identity;
    if (st == 0)
        matched(c, ready);
    else if (c->incoming)
        refuse(c, st, e.text);
    else
        give_up(c, st, e.text);
}

/* ---- dispatch ---- */

static void on_refused(struct conn *c, const struct message_result *r)
{
    if (c->state == CONN_PROVING && r->status == ERR_MISMATCH)
        pull_conn_refused(c);
    give_up(c, r->status < 0 ? r->status : ERR_BADMSG, r->text);
}

/* What a refused peer still sends: no more than this is listened to. */
static void on_parting(struct conn *c, const void *msg, size_t len)
{
    struct message m;

    if (c->proved && message_decode(&m, msg, len) == 0 && m.kind == MESSAGE_RELEASE)
        serve_message(c, &m);
}

static void on_handshake(struct conn *c, const struct message *m)
{
    enum message_kind hello = c->incoming ? MESSAGE_HELLO : MESSAGE_WELCOME;
    enum message_kind identity = c->incoming ? MESSAGE_PROVE : MESSAGE_READY;

    if (m->kind == MESSAGE_REFUSED && !c->incoming)
        on_refused(c, &m->u.result);
    else if (c->state == CONN_GREETING && m->kind == hello)
        greet(c, &m->u.hello);
    else if (c->state == CONN_PROVING && m->kind == identity)
        prove(c, &m->u.ready);
    else if (c->state == CONN_MAPPING && m->kind == MESSAGE_RANK)
        take_rank(c, &m->u.rank);
    else
        conn_violation(c, message_name(m->kind));
}

static void on_message(void *arg, struct link_peer *peer, const void *msg, size_t len,
                       const void *bulk, size_t bulk_len)
{
    struct conn *c = link_user(peer);
    struct message m;

    (void)arg;
    if (!c || c->why.text[0])
        return;
    c->heard = clock_now();
    if (c->state == CONN_REFUSED)
        on_parting(c, msg, len);
    else if (message_decode(&m, msg, len) < 0)
        conn_violation(c, "malformed message");
    else if (c->state != CONN_READY)
        on_handshake(c, &m);
    else if (c->incoming)
        serve_message(c, &m);
    else
        pull_message(c, &m, bulk, bulk_len);
}

/* ---- ending ---- */

static void on_closed(void *arg, struct link_peer *peer, int why)
{
    struct transfer *t = arg;
    struct conn *c = link_user(peer), **at = &t->conns;

    if (!c)
        return;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    if (!c->why.text[0])
        err_set(&c->why, why, "the connection to %s ended: %s", link_peer_name(peer),
                status_text(why));
    pthread_mutex_lock(&t->lock);
    t->stats.peers--;
    pthread_mutex_unlock(&t->lock);
    if (!c->incoming && c->state != CONN_READY && !c->noted)
        note_unreachable(t, c->host, c->port);
    serve_conn_lost(c);
    pull_conn_lost(c, why < 0 ? why : ERR_CLOSED, c->why.text);
    region_close(c->pool, c->pool_bytes);
    free(c->ranks);
    free(c);
}

const struct link_events conn_events = {
    .on_accept = on_accept,
    .on_message = on_message,
    .on_closed = on_closed,
};

static bool has_deadline(const struct conn *c)
{
    return c->parting || (c->state != CONN_READY && !c->why.text[0]);
}

void conn_timers(struct transfer *t, double now)
{
    for (struct conn *c = t->conns; c; c = c->next) {
        if (!has_deadline(c) || c->deadline > now)
            continue;
        if (!c->parting)
            err_set(&c->why, ERR_TIMEOUT, "%s did not answer within %.3g s",
                    link_peer_name(c->link), t->opt.connect_timeout);
        c->parting = false;
        link_close(c->link, ERR_TIMEOUT);
    }
}

double conn_next(const struct transfer *t)
{
    double next = HUGE_VAL;

    for (const struct conn *c = t->conns; c; c = c->next)
        if (has_deadline(c))
            next = fmin(next, c->deadline);
    return next;
}
