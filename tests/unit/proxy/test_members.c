/* Addresses of instances. What members do over the network is played in tests/e2e/proxy. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/status.h"
#include "proxy/members.h"

static void good_addresses(void **state)
{
    static const struct {
        const char *text, *host;
        uint16_t port;
    } rows[] = {
        { "127.0.0.1:8000", "127.0.0.1", 8000 },
        { "[::1]:80", "::1", 80 },
        { "http://p-1.example:65535/", "p-1.example", 65535 },
        { "localhost:1", "localhost", 1 },
    };
    char host[MEMBER_MAX_HOST];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(member_parse(host, &port, rows[i].text, NULL), 0);
        assert_string_equal(host, rows[i].host);
        assert_int_equal(port, rows[i].port);
    }
}

static void bad_addresses(void **state)
{
    static const char *const rows[] = {
        "",
        "host",
        ":80",
        "host:",
        "host:0",
        "host:65536",
        "host:8x",
        "host:-1",
        "::1:80",
        "[::1:80",
        "[::1]80",
        "[]:80",
        "a b:80",
        "a/b:80",
        "a:80/x",
        "host: 80",
        "host:99999999999999999999",
    };
    struct err e;
    char host[MEMBER_MAX_HOST];
    uint16_t port;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        e.text[0] = '\0';
        assert_int_equal(member_parse(host, &port, rows[i], &e), ERR_INVAL);
        assert_non_null(strstr(e.text, rows[i]));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_addresses),
        cmocka_unit_test(bad_addresses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
