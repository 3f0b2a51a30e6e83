/* The client against scripted servers, and against our own server. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "peer.h"

static struct loop *loop;
static struct http_client *client;
static uint16_t port;
static int listener;

/* What a call has seen. */
static struct {
    struct http_call *call;
    int status, n_data;
    char body[1024];
    size_t len;
    enum http_fail fail;
    bool reused, got_bytes;
    char retry_after[16];
    int cancel_at; /* 1: in on_head, 2: in on_data */
    int n_done;    /* the peer's thread waits for it: atomic */
} seen;

static void on_head(void *arg, struct http_call *c, int status)
{
    const char *v = http_call_header(c, "retry-after");

    (void)arg;
    seen.status = status;
    if (v)
        snprintf(seen.retry_after, sizeof seen.retry_after, "%s", v);
    if (seen.cancel_at == 1)
        http_call_cancel(c);
}

static void on_data(void *arg, struct http_call *c, const void *data, size_t len)
{
    (void)arg;
    assert_true(seen.len + len < sizeof seen.body);
    memcpy(seen.body + seen.len, data, len);
    seen.len += len;
    seen.n_data++;
    if (seen.cancel_at == 2)
        http_call_cancel(c);
}

static void on_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    (void)arg;
    seen.fail = fail;
    seen.reused = reused;
    seen.got_bytes = got_bytes;
    __atomic_add_fetch(&seen.n_done, 1, __ATOMIC_SEQ_CST);
}

/* Runs one call to its end, the loop stopping when both it and the peer are through. */
static struct http_call_options options;

static void start_call(void *arg)
{
    (void)arg;
    memset(&seen, 0, offsetof(typeof(seen), cancel_at));
    options.port = port;
    assert_int_equal(http_call(client, &options, &seen.call), 0);
    assert_int_equal(seen.n_done, 0);
}

/* In the peer's thread: the call starts soon. */
static void begin(void)
{
    __atomic_store_n(&seen.n_done, 0, __ATOMIC_SEQ_CST);
    loop_post(loop, start_call, NULL);
}

static void wait_done(void)
{
    for (int i = 0; i < 5000 && !__atomic_load_n(&seen.n_done, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    assert_int_equal(seen.n_done, 1);
}

static int setup(void **state)
{
    struct http_client_options o = { .connect_timeout = 2, .idle_reuse = 0.5 };

    (void)state;
    seen.cancel_at = 0;
    options = (struct http_call_options){ .host = "127.0.0.1",
                                          .method = "POST",
                                          .path = "/p?q=1",
                                          .body = "ab",
                                          .body_len = 2,
                                          .on_head = on_head,
                                          .on_data = on_data,
                                          .on_done = on_done };
    listener = peer_listen(&port);
    if (loop_create(&loop, NULL) < 0)
        return -1;
    return http_client_create(&client, loop, &o, NULL);
}

static int teardown(void **state)
{
    (void)state;
    http_client_destroy(client);
    loop_destroy(loop);
    close(listener);
    return 0;
}

/* Accepts, reads the request, plays the text (a byte a write if slow) and closes. */
static const char *play_text;
static bool play_slow;

static void play_peer(void *arg)
{
    int fd;

    (void)arg;
    begin();
    fd = peer_accept(listener);
    peer_read(fd, "\r\n\r\nab");
    if (play_slow)
        peer_send_bytes(fd, play_text);
    else
        peer_send(fd, play_text);
    close(fd);
    wait_done();
}

static void play(const char *text, bool slow)
{
    play_text = text;
    play_slow = slow;
    peer_run(loop, play_peer, NULL);
}

static void whole_replies(void **state)
{
    static const char *const texts[] = {
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nRetry-After: 7\r\n\r\nhello",
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nRetry-After: 7\r\n\r\n"
         "2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n"),
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nRetry-After: 7\r\n\r\nhello",
    };

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        for (int mode = 0; mode < 4; mode++) {
            options.stream = mode & 1;
            play(texts[i], mode & 2);
            assert_int_equal(seen.fail, HTTP_OK);
            assert_int_equal(seen.status, 200);
            assert_string_equal(seen.retry_after, "7");
            assert_int_equal(seen.len, 5);
            assert_memory_equal(seen.body, "hello", 5);
            assert_true(seen.got_bytes);
            assert_false(seen.reused);
            if (!options.stream)
                assert_int_equal(seen.n_data, 1);
        }
    }
}

static void broken_replies(void **state)
{
    static const struct {
        const char *text;
        enum http_fail fail;
        bool got_bytes;
    } rows[] = {
        { "", HTTP_RESET, false },
        { "HTTP/1.1 200 OK\r\nConte", HTTP_RESET, true },
        { "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", HTTP_TRUNCATED, true },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", HTTP_TRUNCATED,
          true },
        { "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", HTTP_BAD, true },
        { "SSH-2.0-x\r\n\r\n", HTTP_BAD, true },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int stream = 0; stream < 2; stream++) {
            options.stream = stream;
            play(rows[i].text, false);
            assert_int_equal(seen.fail, rows[i].fail);
            assert_int_equal(seen.got_bytes, rows[i].got_bytes);
            if (!stream)
                assert_int_equal(seen.n_data, 0);
        }
    }
}

static void request_peer(void *arg)
{
    int fd;

    (void)arg;
    begin();
    fd = peer_accept(listener);
    snprintf(seen.body, sizeof seen.body,
             "POST /p?q=1 HTTP/1.1\r\nHost: 127.0.0.1:%u\r\nX-A: b\r\n"
             "Content-Length: 2\r\n\r\nab",
             port);
    assert_string_equal(peer_read(fd, "\r\n\r\nab"), seen.body);
    peer_send(fd, "HTTP/1.1 204 X\r\n\r\n");
    wait_done();
    close(fd);
}

static void request_on_the_wire(void **state)
{
    static const struct http_header_kv headers[] = { { "X-A", "b" }, { "X-B", "c\r\nEvil: 1" } };

    (void)state;
    options.headers = headers;
    options.n_headers = 1;
    peer_run(loop, request_peer, NULL);
    assert_int_equal(seen.status, 204);
    options.n_headers = 2;
    assert_int_equal(http_call(client, &options, NULL), ERR_INVAL);
}

/* Serves one request, then closes the idle connection just as the next request arrives; then serves
 * that one on a new connection. */
static void race_peer(void *arg)
{
    int fd, second;

    (void)arg;
    begin();
    fd = peer_accept(listener);
    peer_read(fd, "ab");
    peer_send(fd, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1");
    wait_done();
    begin();
    peer_read(fd, "ab");
    close(fd);
    second = peer_accept(listener);
    peer_read(second, "ab");
    peer_send(second, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n2");
    for (int i = 0; i < 5000 && !__atomic_load_n(&seen.n_done, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    close(second);
}

static void keep_alive_race_is_unseen(void **state)
{
    (void)state;
    peer_run(loop, race_peer, NULL);
    assert_int_equal(seen.n_done, 1);
    assert_int_equal(seen.fail, HTTP_OK);
    assert_int_equal(seen.body[0], '2');
    assert_false(seen.reused);
}

static void silent_peer(void *arg)
{
    int fd;

    begin();
    fd = peer_accept(listener);
    peer_read(fd, "ab");
    if (arg)
        peer_send(fd, arg);
    wait_done();
    assert_true(peer_at_end(fd)); /* the client has hung up */
    close(fd);
}

static void silence_limits(void **state)
{
    static char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhe";

    (void)state;
    options.first_byte_timeout = 0.05;
    peer_run(loop, silent_peer, NULL);
    assert_int_equal(seen.fail, HTTP_TIMEOUT_FIRST);
    options.first_byte_timeout = 0;
    options.idle_timeout = 0.05;
    options.stream = true;
    peer_run(loop, silent_peer, head);
    assert_int_equal(seen.fail, HTTP_TIMEOUT_IDLE);
    assert_int_equal(seen.n_data, 1);
}

static void cancel_in_callbacks(void **state)
{
    static char head[] = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

    (void)state;
    for (int stream = 0; stream < 2; stream++) {
        options.stream = stream;
        for (int at = 1; at <= 2; at++) {
            seen.cancel_at = at;
            peer_run(loop, silent_peer, head);
            assert_int_equal(seen.fail, HTTP_CANCELED);
            assert_int_equal(seen.n_data, at - 1);
        }
    }
}

static void refused_peer(void *arg)
{
    (void)arg;
    begin();
    wait_done();
}

static void nobody_listens(void **state)
{
    (void)state;
    close(listener);
    peer_run(loop, refused_peer, NULL);
    assert_int_equal(seen.fail, HTTP_CONNECT);
    options.host = "localhost"; /* by way of the resolver */
    peer_run(loop, refused_peer, NULL);
    assert_int_equal(seen.fail, HTTP_CONNECT);
    listener = peer_listen(&port);
}

static void destroy_cancels(void **state)
{
    (void)state;
    seen.n_done = 0;
    start_call(NULL);
    http_client_destroy(client);
    client = NULL;
    assert_int_equal(seen.n_done, 1);
    assert_int_equal(seen.fail, HTTP_CANCELED);
}

/* Our server closes idle connections after 20 ms; the client would keep them for 500. */
static void serve(void *arg, struct http_req *r)
{
    size_t len;
    const char *body = http_body(r, &len);

    (void)arg;
    http_reply(r, 200, "text/plain", body, len);
}

static void against_peer(void *arg)
{
    (void)arg;
    for (int i = 0; i < 30; i++) {
        begin();
        wait_done();
        assert_int_equal(seen.fail, HTTP_OK);
        assert_memory_equal(seen.body, "ab", 2);
        usleep((useconds_t)(17500 + 200 * i));
    }
}

static void against_our_server(void **state)
{
    struct http_server_options o = { .host = "127.0.0.1", .keep_alive = 0.02 };
    struct http_server *server;

    (void)state;
    assert_int_equal(http_server_create(&server, loop, &o, serve, NULL, NULL), 0);
    port = http_server_port(server);
    options.host = "localhost";
    peer_run(loop, against_peer, NULL);
    http_server_destroy(server);
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(whole_replies),       TEST(broken_replies),
        TEST(request_on_the_wire), TEST(keep_alive_race_is_unseen),
        TEST(silence_limits),      TEST(cancel_in_callbacks),
        TEST(nobody_listens),      TEST(destroy_cancels),
        TEST(against_our_server),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
