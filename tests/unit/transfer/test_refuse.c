#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "raw.h"
#include "side.h"
#include "sys/clock.h"

/* Producer and consumer, alike except for what `change` does to the consumer; a probe must give
 * `want` and a sentence with both texts, and a pull the same. */
static void refused(void (*change)(struct side *d), int want, const char *a, const char *b)
{
    uint32_t blocks[1] = { 0 };
    struct transfer_source src;
    struct transfer_stats st;
    struct err e = { 0 };
    struct side p, d;

    side_init(&p, true, 32, true);
    side_init(&d, false, 32, true);
    change(&d);
    side_start(&p);
    side_start(&d);
    src = side_source(&p, "x", blocks, 1);
    assert_int_equal(transfer_hold(p.t, "x", blocks, 1, 10, 1), 0);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", transfer_port(p.t), &e), want);
    assert_non_null(strstr(e.text, a));
    assert_non_null(strstr(e.text, b));
    if (transfer_pull(d.t, &src, blocks, 1, 0, 10, 2) == 0) {
        assert_int_equal(side_event(&d, 0).status, want);
        assert_non_null(strstr(d.why, a));
    }
    transfer_release_remote(d.t, &src);
    if (want == ERR_MISMATCH) /* one that is known, but does not match, can still let go */
        assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    transfer_stats(p.t, &st);
    assert_true(st.refused > 0);
    assert_int_equal(st.leases, want == ERR_MISMATCH ? 0 : 1);
    transfer_stats(d.t, &st);
    assert_true(st.refused > 0);
    assert_int_equal(st.mismatching, 1);
    assert_int_equal(st.matching, 0);
    assert_non_null(strstr(st.mismatch, a));
    assert_non_null(strstr(st.mismatch, b));
    assert_int_equal(side_written(&d), 0);
    side_finish(&d);
    side_finish(&p);
}

static void change_secret(struct side *d)
{
    d->opt.secret = "other";
}
static void change_no_secret(struct side *d)
{
    d->opt.secret = NULL;
}
static void change_fingerprint(struct side *d)
{
    d->opt.fingerprint = "model-2";
}
static void change_dtype(struct side *d)
{
    d->opt.kv_dtype = "float32";
}
static void change_layers(struct side *d)
{
    d->opt.layout.n_layers = 5;
}
static void change_planes(struct side *d)
{
    d->opt.layout.planes = 1;
}
static void change_first(struct side *d)
{
    d->opt.layout.first_layer = 6;
}
static void change_heads(struct side *d)
{
    d->opt.layout.kv_heads = 9;
}
static void change_dim(struct side *d)
{
    d->opt.layout.head_dim = 64;
}
static void change_elem(struct side *d)
{
    d->opt.layout.elem_bytes = 4;
}
static void change_block(struct side *d)
{
    d->opt.layout.block_tokens = 48;
}

static void every_field(void **state)
{
    (void)state;
    log_set_level(LOG_OFF);
    refused(change_secret, ERR_AUTH, "secret", "wrong");
    refused(change_no_secret, ERR_AUTH, "secret", "not set");
    refused(change_fingerprint, ERR_MISMATCH, "'model' at", "'model-2' at");
    refused(change_dtype, ERR_MISMATCH, "'float16' at", "'float32' at");
    refused(change_layers, ERR_MISMATCH, "layers: 7 at", "9 at");
    refused(change_planes, ERR_MISMATCH, "planes of a layer: 2 at", "1 at");
    refused(change_first, ERR_MISMATCH, "layers: 7 at", "9 at");
    refused(change_heads, ERR_MISMATCH, "heads: 3 at", "9 at");
    refused(change_dim, ERR_MISMATCH, "dimension: 16 at", "64 at");
    refused(change_elem, ERR_MISMATCH, "element: 2 at", "4 at");
    refused(change_block, ERR_MISMATCH, "block size: 32", "48");
}

static void other_version(void **state)
{
    struct side p;
    struct raw r;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_hello(&r, transfer_port(p.t), MESSAGE_VERSION + 6, true);
    raw_expect(&r, MESSAGE_REFUSED);
    assert_int_equal(r.last.u.result.status, ERR_MISMATCH);
    assert_non_null(strstr(r.last.u.result.text, "4 here, 10 at the peer"));
    raw_finish(&r);
    side_finish(&p);
}

/* Identity and proof belong together: another identity with the same proof is refused. */
static void borrowed_proof(void **state)
{
    struct message m = { .kind = MESSAGE_PROVE };
    struct transfer_stats st;
    uint32_t block = 0;
    struct side p;
    struct raw r;
    struct err e;

    (void)state;
    side_init(&p, true, 16, true);
    side_start(&p);
    raw_init(&r, &p);
    raw_hello(&r, transfer_port(p.t), MESSAGE_VERSION, true);
    raw_expect(&r, MESSAGE_WELCOME);
    assert_int_equal(handshake_hello(&r.handshake, HANDSHAKE_CONSUMER, &r.last.u.hello, &e), 0);
    m.u.ready.identity = r.identity;
    handshake_prove(&r.handshake, HANDSHAKE_CONSUMER, m.u.ready.proof, &r.identity);
    strcpy(m.u.ready.identity.engine_id, "somebody");
    assert_int_equal(transfer_hold(p.t, "x", &block, 1, 10, 1), 0);
    raw_send(&r, &m, NULL, 0);
    raw_expect(&r, MESSAGE_REFUSED);
    assert_int_equal(r.last.u.result.status, ERR_AUTH);
    m = (struct message){ .kind = MESSAGE_RELEASE }; /* who is unknown ends no lease */
    strcpy(m.u.name.lease, "x");
    raw_send(&r, &m, NULL, 0);
    raw_expect_closed(&r);
    transfer_stats(p.t, &st);
    assert_int_equal(st.leases, 1);
    raw_finish(&r);
    side_finish(&p);
}

/* A producer that does not know the secret gets nothing from the consumer but a closed connection. */
static void false_producer(void **state)
{
    uint32_t blocks[1] = { 0 };
    struct transfer_source src = { .host = "127.0.0.1",
                                   .engine_id = "engine-p",
                                   .transfer_id = "x",
                                   .blocks = blocks,
                                   .n_blocks = 1,
                                   .block_tokens = 16 };
    struct side p, d;
    struct raw r;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&d, false, 16, true);
    side_start(&d);
    p.opt.secret = "guessed";
    raw_init(&r, &p);
    src.port = raw_listen(&r);
    assert_int_equal(transfer_pull(d.t, &src, blocks, 1, 0, 10, 2), 0);
    raw_accept(&r);
    raw_expect_closed(&r);
    assert_int_equal(side_event(&d, 0).status, ERR_AUTH);
    raw_finish(&r);
    side_finish(&d);
}

static void unknown_lease(void **state)
{
    uint32_t blocks[2] = { 0, 1 };
    struct transfer_source src;
    struct side p, d;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&d, false, 16, true);
    side_start(&p);
    side_start(&d);
    src = side_source(&p, "nobody's", blocks, 2);
    assert_int_equal(transfer_pull(d.t, &src, blocks, 2, 0, 20, 2), 0);
    assert_int_equal(side_event(&d, 0).status, ERR_NOTFOUND);
    assert_non_null(strstr(d.why, "nobody's"));
    /* The lease exists, but its blocks are others than the request says. */
    assert_int_equal(transfer_hold(p.t, "x", blocks, 2, 20, 1), 0);
    src = side_source(&p, "x", (uint32_t[]){ 0, 2 }, 2);
    assert_int_equal(transfer_pull(d.t, &src, blocks, 2, 0, 20, 3), 0);
    assert_int_equal(side_event(&d, 1).status, ERR_MISMATCH);
    /* Or the instance is another one. */
    src = side_source(&p, "x", blocks, 2);
    src.engine_id = "engine-before";
    assert_int_equal(transfer_pull(d.t, &src, blocks, 2, 0, 20, 4), 0);
    assert_int_equal(side_event(&d, 2).status, ERR_NOTFOUND);
    assert_non_null(strstr(d.why, "engine-before"));
    side_finish(&d);
    side_finish(&p);
}

static void probe(void **state)
{
    struct err e = { 0 };
    struct side p, d;
    uint16_t port;

    (void)state;
    side_init(&p, true, 32, true);
    side_init(&d, false, 16, true);
    side_start(&p);
    side_start(&d);
    port = transfer_port(p.t);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", port, &e), 0);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", port, &e), 0);
    side_finish(&p);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", port, &e), ERR_CLOSED);
    assert_non_null(strstr(e.text, "127.0.0.1"));
    side_finish(&d);
}

/* Until the notes of d are so. */
static void until_noted(struct side *d, uint32_t matching, uint32_t mismatching)
{
    double until = clock_now() + SIDE_SECONDS;
    struct transfer_stats st;

    do {
        transfer_stats(d->t, &st);
        if (clock_now() > until)
            fail_msg("%u match, %u do not", st.matching, st.mismatching);
        clock_sleep(0.001);
    } while (st.matching != matching || st.mismatching != mismatching);
    assert_int_equal(st.mismatch[0] != 0, mismatching > 0);
}

/* A mismatch is remembered until it is mended or its producer has gone, which is found without a pull. */
static void mismatches_are_looked_at_again(void **state)
{
    struct side p, q, d;
    struct err e = { 0 };
    uint16_t port;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&q, true, 16, true);
    side_init(&d, false, 16, true);
    p.opt.fingerprint = "revision 1";
    d.opt.recheck_seconds = 0.01;
    side_start(&p);
    side_start(&d);
    port = transfer_port(p.t);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", port, &e), ERR_MISMATCH);
    until_noted(&d, 0, 1);
    side_finish(&p);
    until_noted(&d, 0, 0);
    side_init(&p, true, 16, true);
    p.opt.port = port;
    p.opt.secret = "other";
    side_start(&p);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", port, &e), ERR_AUTH);
    until_noted(&d, 0, 1);
    side_start(&q); /* another one, which matches */
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", transfer_port(q.t), &e), 0);
    until_noted(&d, 1, 1);
    side_finish(&p);
    side_init(&p, true, 16, true);
    p.opt.port = port;
    side_start(&p);
    assert_int_equal(transfer_probe(d.t, "127.0.0.1", port, &e), 0);
    until_noted(&d, 2, 0);
    side_finish(&d);
    side_finish(&q);
    side_finish(&p);
}

static void occupied_port(void **state)
{
    struct err e = { 0 };
    struct side p, q;

    (void)state;
    side_init(&p, true, 16, true);
    side_init(&q, true, 16, true);
    side_start(&p);
    q.opt.port = transfer_port(p.t);
    assert_true(side_try_start(&q, &e) < 0);
    assert_non_null(strstr(e.text, "in use"));
    side_finish(&q);
    side_init(&q, true, 16, true);
    q.opt.host = "192.0.2.200";
    assert_int_equal(side_try_start(&q, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "192.0.2.200"));
    side_finish(&q);
    side_finish(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field),
        cmocka_unit_test(other_version),
        cmocka_unit_test(borrowed_proof),
        cmocka_unit_test(false_producer),
        cmocka_unit_test(unknown_lease),
        cmocka_unit_test(probe),
        cmocka_unit_test(mismatches_are_looked_at_again),
        cmocka_unit_test(occupied_port),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
