/* The server against raw sockets: framing, limits, pipelining, clients that leave. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "peer.h"

#define MAX_BODY 10000

static struct loop *loop;
static struct http_server *server;
static uint16_t port;
/* The peer's thread waits for these: atomic. */
static int n_closed;
static struct http_req *held; /* of /hold and /orphan */

static void on_close(void *arg)
{
    (void)arg;
    __atomic_add_fetch(&n_closed, 1, __ATOMIC_SEQ_CST);
    __atomic_store_n(&held, NULL, __ATOMIC_SEQ_CST);
}

static void three_events(struct http_req *r)
{
    http_set_header(r, "X-One", "1");
    http_reply_start(r, 200, "text/event-stream; charset=utf-8");
    assert_true(http_reply_started(r));
    assert_int_equal(http_reply_send(r, "data: 1\n\n", 9), 0);
    assert_int_equal(http_reply_send(r, "data: 22\n\n", 10), 0);
    http_reply_end(r);
}

static void handler(void *arg, struct http_req *r)
{
    const char *path = http_path(r), *q = http_query(r, "q");
    size_t len;
    const char *body = http_body(r, &len);

    (void)arg;
    assert_int_equal(strncmp(http_peer(r), "127.0.0.1:", 10), 0);
    if (strcmp(path, "/echo") == 0) {
        http_set_header(r, "X-Method", http_method(r));
        http_reply(r, 200, "text/plain", body, len);
    } else if (strcmp(path, "/a b") == 0) {
        http_reply(r, 200, "text/plain", q ? q : "none", strlen(q ? q : "none"));
    } else if (strcmp(path, "/stream") == 0) {
        three_events(r);
    } else if (strcmp(path, "/hold") == 0) {
        http_on_close(r, on_close, NULL);
        __atomic_store_n(&held, r, __ATOMIC_SEQ_CST);
    } else if (strcmp(path, "/orphan") == 0) {
        __atomic_store_n(&held, r, __ATOMIC_SEQ_CST);
    } else {
        http_reply(r, 204, NULL, NULL, 0);
    }
}

static void error_body(struct buf *out, int status, const char *reason)
{
    buf_printf(out, "{\"code\":%d,\"message\":\"%s\"}", status, reason);
}

static int start(uint32_t max_connections)
{
    struct http_server_options o = { .host = "127.0.0.1",
                                     .max_body = MAX_BODY,
                                     .max_headers = 2000,
                                     .keep_alive = 0.05,
                                     .max_connections = max_connections,
                                     .error_body = error_body };

    n_closed = 0;
    held = NULL;
    if (loop_create(&loop, NULL) < 0 ||
        http_server_create(&server, loop, &o, handler, NULL, NULL) < 0)
        return -1;
    port = http_server_port(server);
    return 0;
}

static int setup(void **state)
{
    (void)state;
    return start(0);
}

static int setup_two_connections(void **state)
{
    (void)state;
    return start(2);
}

static int teardown(void **state)
{
    (void)state;
    http_server_destroy(server);
    loop_destroy(loop);
    return 0;
}

/* Sends a text, a byte a write if slow, and checks that the whole answer has each of the pieces in
 * order and then ends. */
static void expect(const char *request, bool slow, const char *const *pieces)
{
    int fd = peer_connect(port);
    const char *at;

    assert_true(fd >= 0);
    if (slow)
        peer_send_bytes(fd, request);
    else
        peer_send(fd, request);
    at = peer_read(fd, NULL);
    for (; *pieces; pieces++) {
        const char *found = strstr(at, *pieces);

        if (!found)
            print_error("no '%s' in the rest of the answer: %s\n", *pieces, at);
        assert_non_null(found);
        at = found + strlen(*pieces);
    }
    close(fd);
}
#define PIECES(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void echo_peer(void *arg)
{
    (void)arg;
    expect("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", false,
           PIECES("HTTP/1.1 200 OK\r\n", "Date: ", "Content-Type: text/plain\r\n",
                  "X-Method: POST\r\n", "Content-Length: 5\r\n\r\nhello"));
    expect("POST /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", true, PIECES("\r\n\r\nhello"));
    expect("HEAD /echo HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", false,
           PIECES("X-Method: HEAD", "Content-Length: 5\r\n\r\n"));
    expect("BREW /echo HTTP/1.1\r\nConnection: close\r\n\r\n", false,
           PIECES("X-Method: BREW", "Connection: close"));
    expect("GET http://host/a%20b?x=1&q=%3d+& HTTP/1.1\r\n\r\n", false, PIECES("\r\n\r\n= "));
    expect("GET /a%20b?q HTTP/1.1\r\n\r\n", false, PIECES("Content-Length: 0\r\n"));
    expect("GET /x HTTP/1.1\r\n\r\n", false, PIECES("204 No Content"));
}

static void echoes(void **state)
{
    (void)state;
    peer_run(loop, echo_peer, NULL);
}

static void chunked_peer(void *arg)
{
    static const char request[] = "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
                                  "1\r\nh\r\n3;x=y\r\nell\r\n1\r\no\r\n0\r\nTrailer: 1\r\n\r\n";

    (void)arg;
    expect(request, false, PIECES("Content-Length: 5\r\n\r\nhello"));
    expect(request, true, PIECES("Content-Length: 5\r\n\r\nhello"));
    expect("POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nX\r\n", false,
           PIECES("400 Bad Request", "Connection: close", "{\"code\":400"));
}

static void chunked_bodies(void **state)
{
    (void)state;
    peer_run(loop, chunked_peer, NULL);
}

static void continue_peer(void *arg)
{
    int fd = peer_connect(port);

    (void)arg;
    peer_send(fd, "POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n");
    assert_string_equal(peer_read(fd, "\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
    peer_send(fd, "hello");
    assert_non_null(strstr(peer_read(fd, "hello"), "HTTP/1.1 200 OK"));
    close(fd);
    expect("POST /echo HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 10001\r\n\r\n", false,
           PIECES("HTTP/1.1 413 "));
}

static void expect_continue(void **state)
{
    (void)state;
    peer_run(loop, continue_peer, NULL);
}

static void pipeline_peer(void *arg)
{
    (void)arg;
    expect("POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\na"
           "GET /stream HTTP/1.1\r\n\r\n"
           "POST /echo HTTP/1.1\r\nContent-Length: 1\r\nConnection: close\r\n\r\nc"
           "POST /echo HTTP/1.1\r\nContent-Length: 1\r\n\r\nd",
           false,
           PIECES("\r\n\r\na", "Transfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n", "\r\n\r\nc"));
}

static void pipelined(void **state)
{
    (void)state;
    peer_run(loop, pipeline_peer, NULL);
}

static void stream_peer(void *arg)
{
    int fd = peer_connect(port);
    const char *all;

    (void)arg;
    peer_send(fd, "GET /stream HTTP/1.1\r\n\r\n");
    all = peer_read(fd, "0\r\n\r\n");
    assert_non_null(strstr(all, "Content-Type: text/event-stream; charset=utf-8\r\nX-One: 1\r\n"));
    assert_null(strstr(all, "Content-Length"));
    assert_string_equal(strstr(all, "\r\n\r\n"),
                        "\r\n\r\n9\r\ndata: 1\n\n\r\na\r\ndata: 22\n\n\r\n0\r\n\r\n");
    close(fd);
    /* HTTP/1.0 knows no chunks: the end of the connection is the end of the reply. */
    expect("GET /stream HTTP/1.0\r\n\r\n", false,
           PIECES("Connection: close\r\n\r\ndata: 1\n\ndata: 22\n\n"));
    expect("POST /echo HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na"
           "GET /stream HTTP/1.0\r\n\r\n",
           false, PIECES("Connection: keep-alive", "\r\n\r\na", "data: 22\n\n"));
}

static void streams(void **state)
{
    (void)state;
    peer_run(loop, stream_peer, NULL);
}

static void limits_peer(void *arg)
{
    char big[4096] = "GET / HTTP/1.1\r\nX: ";
    int fd = peer_connect(port);

    (void)arg;
    expect("POST /echo HTTP/1.1\r\nContent-Length: 10001\r\n\r\nhello", false,
           PIECES("HTTP/1.1 413 ", "Connection: close", "{\"code\":413,"));
    /* A chunked one is noticed on the way; what follows is thrown away and the answer still arrives. */
    peer_send(fd, "POST /echo HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n");
    memset(big, 'x', 4000);
    big[4000] = '\0';
    for (int i = 0; i < 40; i++) {
        peer_send(fd, "fa0\r\n");
        peer_send(fd, big);
        peer_send(fd, "\r\n");
    }
    assert_non_null(strstr(peer_read(fd, NULL), "HTTP/1.1 413 "));
    close(fd);
    snprintf(big, sizeof big, "GET / HTTP/1.1\r\nX: ");
    memset(big + strlen(big), 'y', 2000);
    strcpy(big + 2010, "\r\n\r\n");
    expect(big, false, PIECES("HTTP/1.1 431 ", "{\"code\":431,"));
    expect("GET /\r\n\r\n", false, PIECES("HTTP/1.1 400 ", "{\"code\":400,"));
    expect("GET /%zz HTTP/1.1\r\n\r\n", false, PIECES("HTTP/1.1 400 "));
}

static void limits(void **state)
{
    (void)state;
    peer_run(loop, limits_peer, NULL);
}

/* Lets the loop thread take `held` away between two steps of the peer. */
static void wait_until(bool (*done)(void))
{
    for (int i = 0; i < 5000 && !done(); i++)
        usleep(1000);
    assert_true(done());
}

static bool is_held(void)
{
    return __atomic_load_n(&held, __ATOMIC_SEQ_CST);
}

static bool is_closed(void)
{
    return __atomic_load_n(&n_closed, __ATOMIC_SEQ_CST) == 1;
}

static void leave_peer(void *arg)
{
    int fd = peer_connect(port);

    (void)arg;
    peer_send(fd, "GET /hold HTTP/1.1\r\n\r\n");
    wait_until(is_held);
    close(fd);
    wait_until(is_closed);
}

static void client_that_leaves_is_noticed(void **state)
{
    (void)state;
    peer_run(loop, leave_peer, NULL);
    assert_int_equal(n_closed, 1);
    assert_int_equal(http_server_connections(server), 0);
}

static void orphan_peer(void *arg)
{
    int fd = peer_connect(port);

    (void)arg;
    peer_send(fd, "GET /orphan HTTP/1.1\r\n\r\n");
    wait_until(is_held);
    close(fd);
    for (int i = 0; i < 5000 && http_server_connections(server); i++)
        usleep(1000);
}

static void late_reply_goes_nowhere(void **state)
{
    (void)state;
    peer_run(loop, orphan_peer, NULL);
    assert_int_equal(http_server_connections(server), 0);
    http_reply_start(held, 200, NULL);
    assert_int_equal(http_reply_send(held, "x", 1), ERR_CLOSED);
    http_reply_end(held);
}

static void abort_held(void *arg)
{
    (void)arg;
    http_reply_start(held, 200, "text/plain");
    http_reply_send(held, "part", 4);
    http_reply_abort(held);
}

static void abort_peer(void *arg)
{
    int fd = peer_connect(port);

    (void)arg;
    peer_send(fd, "GET /hold HTTP/1.1\r\n\r\n");
    wait_until(is_held);
    loop_post(loop, abort_held, NULL);
    assert_null(strstr(peer_read(fd, NULL), "0\r\n\r\n"));
    close(fd);
}

static void aborted_reply_is_cut(void **state)
{
    (void)state;
    peer_run(loop, abort_peer, NULL);
    assert_int_equal(n_closed, 0);
}

static void slow_reader(void *arg)
{
    char *block = calloc(1, 1 << 20);
    int st = 0, sent = 0;

    (void)arg;
    http_reply_start(held, 200, "text/plain");
    while (st == 0 && sent < 100) {
        st = http_reply_send(held, block, 1 << 20);
        sent++;
    }
    assert_int_equal(st, ERR_LIMIT);
    assert_true(sent <= 6);
    http_reply_abort(held);
    free(block);
}

static void slow_reader_peer(void *arg)
{
    int fd = peer_connect(port);

    (void)arg;
    peer_send(fd, "GET /hold HTTP/1.1\r\n\r\n");
    wait_until(is_held);
    loop_post(loop, slow_reader, NULL);
    while (*peer_recv(fd))
        ;
    close(fd);
}

static void slow_reader_is_bounded(void **state)
{
    (void)state;
    peer_run(loop, slow_reader_peer, NULL);
}

static void idle_peer(void *arg)
{
    int fd = peer_connect(port);

    (void)arg;
    for (int i = 0; i < 3; i++) {
        peer_send(fd, "GET /x HTTP/1.1\r\n\r\n");
        assert_non_null(strstr(peer_read(fd, "\r\n\r\n"), "204"));
    }
    assert_true(peer_at_end(fd)); /* after keep_alive, in order */
    close(fd);
}

static void idle_connection_closes(void **state)
{
    (void)state;
    peer_run(loop, idle_peer, NULL);
}

static void crowd_peer(void *arg)
{
    int a = peer_connect(port), b = peer_connect(port);

    (void)arg;
    peer_send(a, "GET /x HTTP/1.1\r\n\r\n");
    assert_non_null(strstr(peer_read(a, "\r\n\r\n"), "204"));
    expect("GET /x HTTP/1.1\r\n\r\n", false, PIECES("HTTP/1.1 503 ", "{\"code\":503,"));
    close(a);
    close(b);
}

static void too_many_connections(void **state)
{
    (void)state;
    peer_run(loop, crowd_peer, NULL);
}

static void stop_and_answer(void *arg)
{
    (void)arg;
    http_server_stop(server);
    http_reply(held, 200, NULL, "bye", 3);
}

static void stop_peer(void *arg)
{
    int fd = peer_connect(port), idle = peer_connect(port);

    (void)arg;
    peer_send(fd, "GET /hold HTTP/1.1\r\n\r\n");
    wait_until(is_held);
    loop_post(loop, stop_and_answer, NULL);
    assert_non_null(
        strstr(peer_read(fd, NULL), "Connection: close\r\nContent-Length: 3\r\n\r\nbye"));
    assert_true(peer_at_end(idle));
    assert_int_equal(peer_connect(port), -1);
    close(fd);
    close(idle);
}

static void stop_lets_the_running_end(void **state)
{
    (void)state;
    peer_run(loop, stop_peer, NULL);
}

#define LARGE (8u << 20)

static void answer_and_stop(void *arg)
{
    char *body = malloc(LARGE);

    (void)arg;
    assert_non_null(body);
    memset(body, 'b', LARGE);
    http_reply(held, 200, NULL, body, LARGE);
    http_server_stop(server);
    free(body);
}

static void last_reply_peer(void *arg)
{
    int fd = peer_connect(port);
    size_t n = 0, got;

    (void)arg;
    peer_send(fd, "GET /hold HTTP/1.1\r\n\r\n");
    wait_until(is_held);
    loop_post(loop, answer_and_stop, NULL);
    while ((got = strlen(peer_recv(fd))) > 0)
        n += got;
    assert_true(n > LARGE);
    close(fd);
}

static void stop_lets_the_last_reply_out(void **state)
{
    (void)state;
    peer_run(loop, last_reply_peer, NULL);
}

static void taken_port_is_named(void **state)
{
    struct http_server_options o = { .host = "127.0.0.1", .port = port };
    struct http_server *second;
    struct err e = { "" };
    char want[32];

    (void)state;
    assert_int_equal(http_server_create(&second, loop, &o, handler, NULL, &e), ERR_IO);
    snprintf(want, sizeof want, "127.0.0.1:%u", port);
    assert_non_null(strstr(e.text, want));
    snprintf(want, sizeof want, "pid %d", (int)getpid());
    assert_non_null(strstr(e.text, want));
}

static void all_addresses(void **state)
{
    struct http_server_options o = { .port = 0 };
    struct http_server *second;

    (void)state;
    assert_int_equal(http_server_create(&second, loop, &o, handler, NULL, NULL), 0);
    assert_true(http_server_port(second) != 0);
    http_server_destroy(second);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(echoes),
        TEST(chunked_bodies),
        TEST(expect_continue),
        TEST(pipelined),
        TEST(streams),
        TEST(limits),
        TEST(client_that_leaves_is_noticed),
        TEST(late_reply_goes_nowhere),
        TEST(aborted_reply_is_cut),
        TEST(slow_reader_is_bounded),
        TEST(idle_connection_closes),
        cmocka_unit_test_setup_teardown(too_many_connections, setup_two_connections, teardown),
        TEST(stop_lets_the_running_end),
        TEST(stop_lets_the_last_reply_out),
        TEST(taken_port_is_named),
        TEST(all_addresses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
