#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "wire/kv_bootstrap.h"

static void addresses(void **state)
{
    static const struct {
        const char *text, *scheme, *host;
        uint16_t port;
    } rows[] = {
        { "127.0.0.1:8998", NULL, "127.0.0.1", 8998 },
        { "[::1]:1", NULL, "::1", 1 },
        { "p-0.prefill:65535", NULL, "p-0.prefill", 65535 },
        { "http://10.0.0.1:8998", "http", "10.0.0.1", 8998 },
        { "http://[fe80::1]:8998/", "http", "fe80::1", 8998 },
        { "10.0.0.1:8998", "http", "10.0.0.1", 8998 },
        { "tcp://h:7", "tcp", "h", 7 },
    };
    static const struct {
        const char *text, *scheme;
    } bad[] = {
        { "", NULL },           { "h", NULL },           { "h:", NULL },
        { "h:0", NULL },        { "h:65536", NULL },     { "h:-1", NULL },
        { "h:1x", NULL },       { ":1", NULL },          { "[]:1", NULL },
        { "[::1:1", NULL },     { "[::1]", NULL },       { "h:1/", NULL },
        { "http://h:1", NULL }, { "tcp://h:1", "http" }, { "https://h:1", "http" },
        { "http://", "http" },  { "h: 1", NULL },
    };
    char host[KV_PARAMS_HOST_MAX];
    struct err e;
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(kv_address_parse(host, &port, rows[i].text, rows[i].scheme, &e), 0);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (kv_address_parse(host, &port, bad[i].text, bad[i].scheme, &e) != ERR_INVAL)
            fail_msg("'%s' was taken", bad[i].text);
}

static void round_trip(void **state)
{
    struct kv_bootstrap b = { .engine_id = "e-1", .host = "::1", .port = 7, .block_size = 32 }, got;
    struct err e = { "" };
    json_t *o = kv_bootstrap_encode(&b);
    char *text = json_dumps(o, JSON_COMPACT);

    (void)state;
    assert_string_equal(text, "{\"0\":{\"engine_id\":\"e-1\",\"worker_addr\":{\"0\":{\"0\":"
                              "\"tcp://[::1]:7\"}},\"block_size\":32}}");
    assert_int_equal(kv_bootstrap_decode(&got, o, "e-1", &e), 0);
    assert_string_equal(got.engine_id, "e-1");
    assert_string_equal(got.host, "::1");
    assert_int_equal(got.port, 7);
    assert_int_equal(got.block_size, 32);
    free(text);
    json_decref(o);
}

static int decode(struct kv_bootstrap *out, const char *text, const char *engine_id)
{
    json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
    struct err e = { "" };
    int st;

    assert_non_null(o);
    st = kv_bootstrap_decode(out, o, engine_id, &e);
    assert_true(st == 0 || e.text[0]);
    json_decref(o);
    return st;
}

#define RANK(key, id, addr)                                                                        \
    "\"" key "\":{\"engine_id\":\"" id "\",\"worker_addr\":{\"0\":{\"0\":\"" addr "\"}}}"

static void the_right_rank(void **state)
{
    static const char two[] = "{" RANK("0", "a", "tcp://h:1") "," RANK("1", "b", "tcp://h:2") "}";
    static const char one[] = "{" RANK("3", "new", "tcp://h:3") "}";
    struct kv_bootstrap b;

    (void)state;
    assert_int_equal(decode(&b, two, "b"), 0);
    assert_int_equal(b.port, 2);
    assert_int_equal(b.block_size, 0);
    assert_int_equal(decode(&b, two, ""), 0);
    assert_int_equal(decode(&b, two, "c"), ERR_NOTFOUND);
    assert_int_equal(decode(&b, one, "old"), 0); /* restarted */
    assert_string_equal(b.engine_id, "new");
    assert_int_equal(decode(&b, "{}", ""), ERR_NOTFOUND);
    assert_int_equal(decode(&b, "[]", ""), ERR_BADMSG);
    assert_int_equal(decode(&b, "{\"0\":1}", ""), ERR_BADMSG);
    assert_int_equal(decode(&b, "{\"0\":{\"engine_id\":\"a\"}}", ""), ERR_BADMSG);
    assert_int_equal(decode(&b, "{" RANK("0", "a", "udp://h:1") "}", ""), ERR_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(the_right_rank),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
