#include "raw.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"
#include "side.h"
#include "sys/clock.h"

static void on_accept(void *arg, struct link_peer *peer)
{
    ((struct raw *)arg)->peer = peer;
}

static void on_message(void *arg, struct link_peer *peer, const void *msg, size_t len,
                       const void *bulk, size_t bulk_len)
{
    struct raw *r = arg;

    (void)peer;
    (void)bulk;
    (void)bulk_len;
    assert_true(r->n < RAW_MESSAGES_MAX);
    assert_int_equal(message_decode(&r->come[r->n++], msg, len), 0);
}

static void on_closed(void *arg, struct link_peer *peer, int why)
{
    struct raw *r = arg;

    (void)peer;
    (void)why;
    r->peer = NULL;
    r->closed = true;
}

void raw_init(struct raw *r, const struct side *like)
{
    struct link_events ev = { r, on_accept, on_message, on_closed };
    struct err e = { 0 };

    memset(r, 0, sizeof *r);
    if (link_create(&r->link, "127.0.0.1", &ev, &e) < 0)
        fail_msg("%s", e.text);
    strcpy(r->identity.engine_id, like->opt.engine_id);
    strcpy(r->identity.fingerprint, like->opt.fingerprint);
    strcpy(r->identity.kv_dtype, like->opt.kv_dtype);
    r->identity.layout = like->opt.layout;
    r->identity.shape = like->opt.shape;
    r->identity.rank = like->opt.rank;
    r->identity.produce = like->opt.produce;
    r->identity.checksums = like->opt.checksums;
    r->handshake.secret = like->opt.secret;
}

void raw_finish(struct raw *r)
{
    link_destroy(r->link);
}

static void turn(struct raw *r, double until)
{
    if (!link_progress(r->link))
        link_wait(r->link, 0.01);
    if (clock_now() > until)
        fail_msg("nothing came within %.0f s", SIDE_SECONDS);
}

static void on_sent(void *arg, int status)
{
    (void)status;
    *(bool *)arg = true;
}

void raw_send(struct raw *r, const struct message *m, const void *bulk, size_t bulk_len)
{
    double until = clock_now() + SIDE_SECONDS;
    unsigned char bytes[MESSAGE_MAX];
    size_t n = message_encode(bytes, m);
    bool sent = false;

    if (!bulk) {
        raw_send_bytes(r, bytes, n);
        return;
    }
    assert_int_equal(link_send(r->peer, bytes, n, bulk, bulk_len, on_sent, &sent), 0);
    while (!sent)
        turn(r, until);
}

void raw_send_bytes(struct raw *r, const void *bytes, size_t len)
{
    assert_int_equal(link_send(r->peer, bytes, len, NULL, 0, NULL, NULL), 0);
}

const struct message *raw_expect(struct raw *r, enum message_kind kind)
{
    double until = clock_now() + SIDE_SECONDS;

    while (r->n_seen == r->n && !r->closed)
        turn(r, until);
    assert_true(r->n_seen < r->n);
    r->last = r->come[r->n_seen++];
    if (r->n_seen == r->n)
        r->n_seen = r->n = 0;
    assert_string_equal(message_name(r->last.kind), message_name(kind));
    return &r->last;
}

void raw_expect_closed(struct raw *r)
{
    double until = clock_now() + SIDE_SECONDS;

    while (!r->closed)
        turn(r, until);
}

void raw_hello(struct raw *r, uint16_t port, uint32_t version, bool secret)
{
    struct message m = { .kind = MESSAGE_HELLO };
    struct err e = { 0 };

    handshake_init(&r->handshake, HANDSHAKE_CONSUMER, r->handshake.secret);
    if (link_connect(&r->peer, r->link, "127.0.0.1", port, &e) < 0)
        fail_msg("%s", e.text);
    link_allow_bulk(r->peer, LINK_BULK_MAX);
    m.u.hello.version = version;
    m.u.hello.secret = secret;
    memcpy(m.u.hello.nonce, r->handshake.nonce[HANDSHAKE_CONSUMER], MESSAGE_NONCE_BYTES);
    raw_send(r, &m, NULL, 0);
}

void raw_prove(struct raw *r)
{
    struct message m = { .kind = MESSAGE_PROVE };

    m.u.ready.identity = r->identity;
    handshake_prove(&r->handshake, HANDSHAKE_CONSUMER, m.u.ready.proof, &r->identity);
    raw_send(r, &m, NULL, 0);
}

void raw_connect(struct raw *r, uint16_t port)
{
    struct err e;

    raw_hello(r, port, MESSAGE_VERSION, r->handshake.secret != NULL);
    raw_expect(r, MESSAGE_WELCOME);
    assert_int_equal(handshake_hello(&r->handshake, HANDSHAKE_CONSUMER, &r->last.u.hello, &e), 0);
    raw_prove(r);
    raw_expect(r, MESSAGE_READY);
    assert_int_equal(handshake_verify(&r->handshake, HANDSHAKE_PRODUCER, &r->last.u.ready, &e), 0);
}

uint16_t raw_listen(struct raw *r)
{
    struct err e = { 0 };

    if (link_listen(r->link, 0, &e) < 0)
        fail_msg("%s", e.text);
    return link_port(r->link);
}

void raw_accept(struct raw *r)
{
    struct message m = { .kind = MESSAGE_WELCOME };
    struct err e;

    handshake_init(&r->handshake, HANDSHAKE_PRODUCER, r->handshake.secret);
    raw_expect(r, MESSAGE_HELLO);
    assert_int_equal(handshake_hello(&r->handshake, HANDSHAKE_PRODUCER, &r->last.u.hello, &e), 0);
    m.u.hello.version = MESSAGE_VERSION;
    m.u.hello.secret = r->handshake.secret != NULL;
    memcpy(m.u.hello.nonce, r->handshake.nonce[HANDSHAKE_PRODUCER], MESSAGE_NONCE_BYTES);
    raw_send(r, &m, NULL, 0);
    raw_expect(r, MESSAGE_PROVE);
    memset(&m, 0, sizeof m);
    m.kind = MESSAGE_READY;
    m.u.ready.identity = r->identity;
    handshake_prove(&r->handshake, HANDSHAKE_PRODUCER, m.u.ready.proof, &r->identity);
    raw_send(r, &m, NULL, 0);
}

static struct message pull_of(const struct raw *r, const char *lease, uint32_t n_tokens)
{
    const struct kv_layout *l = &r->identity.layout;
    struct message m = { .kind = MESSAGE_PULL };

    m.u.pull.pull = 1;
    strcpy(m.u.pull.lease, lease);
    m.u.pull.range = (struct plan_range){ .first_layer = l->first_layer,
                                          .n_layers = l->n_layers,
                                          .first_head = l->first_head,
                                          .n_heads = l->kv_heads,
                                          .n_tokens = n_tokens,
                                          .cell_tokens = l->block_tokens };
    m.u.pull.batch_pieces = 1;
    m.u.pull.credits = 1;
    return m;
}

void raw_pull(struct raw *r, const char *lease, uint32_t n_tokens, uint32_t credits, bool in_place)
{
    struct message m = pull_of(r, lease, n_tokens);

    m.u.pull.in_place = in_place;
    m.u.pull.credits = credits;
    raw_send(r, &m, NULL, 0);
}

void raw_ask(struct raw *r, const char *lease, uint32_t n_tokens, uint32_t wait_ms,
             const unsigned char *prompt)
{
    struct message m = pull_of(r, lease, n_tokens);

    m.u.pull.wait_ms = wait_ms;
    memcpy(m.u.pull.prompt, prompt, sizeof m.u.pull.prompt);
    raw_send(r, &m, NULL, 0);
}
