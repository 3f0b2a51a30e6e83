/* Heads and chunked bodies: what is taken, what is refused, at any segmentation. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "net/http_parse.h"

static char bytes[8192];

/* Parses a copy without a byte to spare, so that a sanitizer sees the first one too many. */
static int parse(struct http_head *h, const char *text, bool reply)
{
    size_t len = strlen(text), scanned = 0, end;
    char *copy = malloc(len ? len : 1);
    int st;

    assert_non_null(copy);
    memcpy(copy, text, len);
    end = http_head_end(copy, len, &scanned);
    if (end == 0) {
        free(copy);
        return ERR_AGAIN;
    }
    st = reply ? http_parse_reply(h, copy, end) : http_parse_request(h, copy, end);
    if (st == 0) {
        memcpy(bytes, copy, end);
        http_head_terminate(h, bytes);
    }
    free(copy);
    return st;
}

static void request_is_taken_apart(void **state)
{
    struct http_head h;

    (void)state;
    assert_int_equal(parse(&h,
                           "\r\nPOST /v1/x?a=1 HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n"
                           "X-Empty:\r\nX-Pad: \t a b \t\r\nEXPECT: 100-Continue\r\n\r\nbody",
                           false),
                     0);
    assert_string_equal(bytes + h.method.at, "POST");
    assert_string_equal(bytes + h.target.at, "/v1/x?a=1");
    assert_int_equal(h.minor, 1);
    assert_int_equal(h.framing, HTTP_BODY_LENGTH);
    assert_int_equal(h.length, 12);
    assert_true(h.keep_alive);
    assert_true(h.expect_continue);
    assert_int_equal(h.n_fields, 5);
    assert_string_equal(http_head_field(&h, bytes, "host"), "h");
    assert_string_equal(http_head_field(&h, bytes, "x-empty"), "");
    assert_string_equal(http_head_field(&h, bytes, "X-PAD"), "a b");
    assert_null(http_head_field(&h, bytes, "X"));
}

static void connection_and_version(void **state)
{
    static const struct {
        const char *text;
        bool keep;
    } rows[] = {
        { "GET / HTTP/1.1\r\n\r\n", true },
        { "GET / HTTP/1.1\n\n", true },
        { "GET / HTTP/1.1\r\nConnection: close\r\n\r\n", false },
        { "GET / HTTP/1.1\r\nConnection: foo, Close\r\n\r\n", false },
        { "GET / HTTP/1.0\r\n\r\n", false },
        { "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", true },
    };
    struct http_head h;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(parse(&h, rows[i].text, false), 0);
        assert_int_equal(h.keep_alive, rows[i].keep);
        assert_int_equal(h.framing, HTTP_BODY_NONE);
    }
}

static void bad_requests(void **state)
{
    static const char *const rows[] = {
        "GET /\r\n\r\n",
        "GET  / HTTP/1.1\r\n\r\n",
        " GET / HTTP/1.1\r\n\r\n",
        "G\x01T / HTTP/1.1\r\n\r\n",
        "GET /a\x7f HTTP/1.1\r\n\r\n",
        "GET / HTTP/2.0\r\n\r\n",
        "GET / HTTP/1.1 \r\n\r\n",
        "GET / http/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nNo colon\r\n\r\n",
        "GET / HTTP/1.1\r\n: v\r\n\r\n",
        "GET / HTTP/1.1\r\nA : v\r\n\r\n",
        "GET / HTTP/1.1\r\nA: v\r\n folded\r\n\r\n",
        "GET / HTTP/1.1\r\nA: v\x02\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: \r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: +1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1,1\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 9999999999999999999\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        "GET / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
        "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
    };
    struct http_head h;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(parse(&h, rows[i], false), ERR_BADMSG);
}

static void too_many_fields(void **state)
{
    struct http_head h;
    char text[4096] = "GET / HTTP/1.1\r\n";

    (void)state;
    for (unsigned i = 0; i < HTTP_MAX_FIELDS; i++)
        strcat(text, "A: b\r\n");
    strcat(text, "\r\n");
    assert_int_equal(parse(&h, text, false), 0);
    strcpy(text + strlen(text) - 2, "A: b\r\n\r\n");
    assert_int_equal(parse(&h, text, false), ERR_TOOLONG);
}

static void head_end_at_every_cut(void **state)
{
    static const char text[] = "\r\n\r\nGET / HTTP/1.1\r\nA: b\r\n\r\nrest";
    size_t end = sizeof text - 1 - 4;

    (void)state;
    for (size_t first = 0; first < end; first++) {
        size_t scanned = 0;

        assert_int_equal(http_head_end(text, first, &scanned), 0);
        for (size_t len = first + 1; len < end; len++)
            assert_int_equal(http_head_end(text, len, &scanned), 0);
        assert_int_equal(http_head_end(text, sizeof text - 1, &scanned), end);
    }
}

static void replies(void **state)
{
    static const struct {
        const char *text;
        int st, status;
        enum http_framing framing;
        bool keep;
    } rows[] = {
        { "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 0, 200, HTTP_BODY_LENGTH, true },
        { "HTTP/1.1 200\r\nTransfer-Encoding: Chunked\r\n\r\n", 0, 200, HTTP_BODY_CHUNKED, true },
        { "HTTP/1.1 404 Not Found\r\n\r\n", 0, 404, HTTP_BODY_CLOSE, false },
        { "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", 0, 200, HTTP_BODY_LENGTH, false },
        { "HTTP/1.1 204 \r\nContent-Length: 3\r\n\r\n", 0, 204, HTTP_BODY_NONE, true },
        { "HTTP/1.1 100 Continue\r\n\r\n", 0, 100, HTTP_BODY_NONE, true },
        { "HTTP/1.1 99 X\r\n\r\n", ERR_BADMSG, 0, 0, false },
        { "HTTP/1.1 2000 X\r\n\r\n", ERR_BADMSG, 0, 0, false },
        { "HTTP/1.1\r\n\r\n", ERR_BADMSG, 0, 0, false },
        { "ICY 200 OK 12345\r\n\r\n", ERR_BADMSG, 0, 0, false },
    };
    struct http_head h;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(parse(&h, rows[i].text, true), rows[i].st);
        if (rows[i].st < 0)
            continue;
        assert_int_equal(h.status, rows[i].status);
        assert_int_equal(h.framing, rows[i].framing);
        assert_int_equal(h.keep_alive, rows[i].keep);
    }
}

/* Decodes text given in two pieces; the result is in bytes. Returns what is left over, or a status. */
static ssize_t unchunk(const char *text, size_t cut)
{
    size_t len = strlen(text), out = 0, piece_end[2] = { cut, len }, at = 0;
    struct http_chunked c = { 0 };

    for (int i = 0; i < 2; i++) {
        while (at < piece_end[i] && c.state != CHUNK_DONE) {
            const char *data;
            size_t n;
            ssize_t used = http_chunked_take(&c, text + at, piece_end[i] - at, &data, &n);

            if (used < 0)
                return used;
            assert_true(used > 0);
            memcpy(bytes + out, data, n);
            out += n;
            at += (size_t)used;
        }
    }
    bytes[out] = '\0';
    return c.state == CHUNK_DONE ? (ssize_t)(len - at) : ERR_AGAIN;
}

static void chunks_at_every_cut(void **state)
{
    static const char text[] =
        "5\r\nhello\r\n1;x=\"y\"\r\n \r\n00A \r\n0123456789\r\n0\r\nT: v\r\n\r\nGET";

    (void)state;
    for (size_t cut = 0; cut < sizeof text; cut++) {
        assert_int_equal(unchunk(text, cut), 3);
        assert_string_equal(bytes, "hello 0123456789");
    }
}

static void bad_chunks(void **state)
{
    static const char *const rows[] = {
        "\r\n",         "x\r\n",           "-1\r\n",
        "5\nhello\r\n", "5\r\nhelloX\r\n", "5\r\nhello0\r\n",
        ";a\r\n\r\n",   "5\rhello\n",      "1234567890123456\r\n",
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        assert_int_equal(unchunk(rows[i], 1), ERR_BADMSG);
    assert_int_equal(unchunk("5\r\nhell", 2), ERR_AGAIN);
}

static void chunk_extensions_are_bounded(void **state)
{
    struct http_chunked c = { 0 };
    const char *data;
    size_t n;
    ssize_t used = http_chunked_take(&c, "1;", 2, &data, &n);

    (void)state;
    for (size_t i = 0; i <= HTTP_MAX_CHUNK_EXTRA && used >= 0; i++)
        used = http_chunked_take(&c, "e", 1, &data, &n);
    assert_int_equal(used, ERR_BADMSG);
}

static void percent(void **state)
{
    char a[] = "/a%20b%2Fc+d", b[] = "x+y%2b", c[] = "%4", d[] = "%zz", e[] = "%00";

    (void)state;
    assert_true(http_percent_decode(a, false));
    assert_string_equal(a, "/a b/c+d");
    assert_true(http_percent_decode(b, true));
    assert_string_equal(b, "x y+");
    assert_false(http_percent_decode(c, false));
    assert_false(http_percent_decode(d, false));
    assert_false(http_percent_decode(e, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(request_is_taken_apart),
        cmocka_unit_test(connection_and_version),
        cmocka_unit_test(bad_requests),
        cmocka_unit_test(too_many_fields),
        cmocka_unit_test(head_end_at_every_cut),
        cmocka_unit_test(replies),
        cmocka_unit_test(chunks_at_every_cut),
        cmocka_unit_test(bad_chunks),
        cmocka_unit_test(chunk_extensions_are_bounded),
        cmocka_unit_test(percent),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
