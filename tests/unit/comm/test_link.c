#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>
#include <time.h>

#include "base/status.h"
#include "comm/link.h"
#include "sys/clock.h"

/* Two links in one thread, turned by hand. */
struct end {
    struct link *link;
    struct link_peer *peer;
    int messages, closed, why;
    size_t len, bulk_len;
    unsigned char msg[LINK_MESSAGE_MAX], bulk[1 << 20];
};
static struct end server, client;

static void on_accept(void *arg, struct link_peer *peer)
{
    ((struct end *)arg)->peer = peer;
}

static void on_message(void *arg, struct link_peer *peer, const void *msg, size_t len,
                       const void *bulk, size_t bulk_len)
{
    struct end *e = arg;

    assert_ptr_equal(peer, e->peer);
    e->messages++;
    e->len = len;
    e->bulk_len = bulk_len;
    memcpy(e->msg, msg, len);
    if (bulk_len > 0)
        memcpy(e->bulk, bulk, bulk_len);
}

static void on_closed(void *arg, struct link_peer *peer, int why)
{
    struct end *e = arg;

    if (peer == e->peer)
        e->peer = NULL;
    e->closed++;
    e->why = why;
}

static void start_at(struct end *e, const char *host, bool listen)
{
    struct link_events ev = { e, on_accept, on_message, on_closed };
    struct err err = { 0 };

    memset(e, 0, sizeof *e);
    if (link_create(&e->link, host, &ev, &err) < 0 || (listen && link_listen(e->link, 0, &err) < 0))
        fail_msg("%s", err.text);
}

static void turn_until(const int *count, int n)
{
    double until = clock_now() + 10;

    while (*count < n) {
        bool any = link_progress(server.link);

        any |= link_progress(client.link);
        if (!any)
            link_wait(client.link, 0.001);
        assert_true(clock_now() < until);
    }
}

static void start(struct end *e, bool listen)
{
    start_at(e, "127.0.0.1", listen);
}

static void say_hello(const char *host)
{
    struct err err = { 0 };

    assert_int_equal(link_connect(&client.peer, client.link, host, link_port(server.link), &err),
                     0);
    assert_int_equal(link_send(client.peer, "hello", 5, NULL, 0, NULL, NULL), 0);
    turn_until(&server.messages, 1);
    assert_memory_equal(server.msg, "hello", 5);
}

static void connect_both(void)
{
    start(&server, true);
    start(&client, false);
    say_hello("127.0.0.1");
}

static void finish_both(void)
{
    link_destroy(client.link);
    link_destroy(server.link);
}

static void count_sent(void *arg, int status)
{
    *(int *)arg += status == 0 ? 1 : 1000;
}

static void messages_both_ways(void **state)
{
    static unsigned char longest[LINK_MESSAGE_MAX];

    (void)state;
    connect_both();
    memset(longest, 3, sizeof longest);
    assert_int_equal(link_send(server.peer, longest, sizeof longest, NULL, 0, NULL, NULL), 0);
    turn_until(&client.messages, 1);
    assert_int_equal(client.len, sizeof longest);
    assert_memory_equal(client.msg, longest, sizeof longest);
    assert_int_equal(client.bulk_len, 0);
    finish_both();
}

/* From nothing to more than UCX sends at once. */
static void bulk_of_all_sizes(void **state)
{
    static const size_t sizes[] = { 0, 1, 100, 8192, 100000, 1 << 20 };
    static unsigned char bulk[1 << 20];
    int sent = 0;

    (void)state;
    connect_both();
    link_allow_bulk(client.peer, sizeof bulk);
    for (size_t i = 0; i < sizeof bulk; i++)
        bulk[i] = (unsigned char)(i * 31 >> 3);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(link_send(server.peer, "x", 1, bulk, sizes[i], count_sent, &sent), 0);
        turn_until(&client.messages, i + 1);
        turn_until(&sent, i + 1);
        assert_int_equal(client.len, 1);
        assert_int_equal(client.bulk_len, sizes[i]);
        assert_memory_equal(client.bulk, bulk, sizes[i]);
    }
    assert_int_equal(sent, 6);
    finish_both();
}

static void too_much_bulk(void **state)
{
    static unsigned char bulk[1 << 20];
    int sent = 0;

    (void)state;
    connect_both();
    link_allow_bulk(client.peer, sizeof bulk - 1);
    link_send(server.peer, "x", 1, bulk, sizeof bulk, count_sent, &sent);
    turn_until(&client.closed, 1);
    turn_until(&server.closed, 1);
    assert_int_equal(client.why, ERR_TOOLONG);
    assert_int_equal(client.messages, 0);
    turn_until(&sent, 1); /* done is called, whatever became of it */
    finish_both();
}

static void closing(void **state)
{
    (void)state;
    connect_both();
    link_close(server.peer, ERR_BUSY);
    link_close(server.peer, ERR_IO); /* the first cause stays */
    assert_int_equal(link_send(server.peer, "x", 1, NULL, 0, NULL, NULL), ERR_CLOSED);
    turn_until(&server.closed, 1);
    turn_until(&client.closed, 1);
    assert_int_equal(server.why, ERR_BUSY);
    assert_true(client.why < 0);
    finish_both();
    assert_int_equal(server.closed + client.closed, 2);
}

static void nobody_there(void **state)
{
    struct err err = { 0 };
    uint16_t port;

    (void)state;
    start(&server, true);
    port = link_port(server.link);
    link_destroy(server.link);
    start(&server, false);
    start(&client, false);
    assert_int_equal(link_connect(&client.peer, client.link, "127.0.0.1", port, &err), 0);
    turn_until(&client.closed, 1);
    assert_int_equal(client.why, ERR_CLOSED);
    finish_both();
}

static void bad_addresses(void **state)
{
    struct link_events ev = { 0 };
    struct err err = { 0 };
    struct link *l;

    (void)state;
    assert_int_equal(link_create(&l, "192.0.2.201", &ev, &err), ERR_INVAL);
    assert_non_null(strstr(err.text, "192.0.2.201"));
    assert_true(link_create(&l, "::1", &ev, &err) < 0);
    assert_int_equal(link_create(&l, "999.1.1.1.1", &ev, &err), ERR_NOTFOUND);
    start(&server, true);
    start(&client, false);
    assert_true(link_listen(client.link, link_port(server.link), &err) < 0);
    assert_non_null(strstr(err.text, "in use"));
    finish_both();
}

/* A name is resolved once, at the start; a peer's is not, for that may take seconds. */
static void names_are_for_the_start(void **state)
{
    struct link_events ev = { 0 };
    struct err err = { 0 };
    struct link_peer *peer;
    struct link *l;

    (void)state;
    assert_int_equal(link_create(&l, "localhost", &ev, &err), 0);
    assert_string_equal(link_host(l), "127.0.0.1");
    assert_int_equal(link_connect(&peer, l, "localhost", 9, &err), ERR_NOTFOUND);
    assert_non_null(strstr(err.text, "localhost"));
    link_destroy(l);
}

/* UCX knows one address of the loopback network; all are taken for it. */
static void any_loopback_address(void **state)
{
    (void)state;
    start_at(&server, "127.0.1.1", true);
    start_at(&client, "127.0.1.3", false);
    assert_string_equal(link_host(server.link), "127.0.0.1");
    say_hello("127.0.1.1");
    finish_both();
}

/* A wait sleeps, and a wake ends it. */
static void waits_asleep(void **state)
{
    struct timespec a, b;
    double t0;

    (void)state;
    connect_both();
    for (int i = 0; i < 50; i++) { /* what connecting left to do */
        link_progress(server.link);
        link_progress(client.link);
    }
    link_wake(client.link);
    t0 = clock_now();
    link_wait(client.link, 5);
    assert_true(clock_now() - t0 < 4);
    link_progress(client.link);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    t0 = clock_now();
    while (clock_now() - t0 < 0.1) {
        link_progress(client.link);
        link_wait(client.link, 0.1);
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    assert_true((double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) * 1e-9 < 0.05);
    finish_both();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_both_ways),
        cmocka_unit_test(bulk_of_all_sizes),
        cmocka_unit_test(too_much_bulk),
        cmocka_unit_test(closing),
        cmocka_unit_test(nobody_there),
        cmocka_unit_test(bad_addresses),
        cmocka_unit_test(names_are_for_the_start),
        cmocka_unit_test(any_loopback_address),
        cmocka_unit_test(waits_asleep),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
