/* The server over TLS, with a certificate made for the test. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "peer.h"

static char cert_path[64], key_path[64];

/* Writes a self-signed certificate and its key. */
static void make_certificate(void)
{
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509 *cert = X509_new();
    FILE *f;

    snprintf(cert_path, sizeof cert_path, P_tmpdir "/sluice_test_%d.crt", (int)getpid());
    snprintf(key_path, sizeof key_path, P_tmpdir "/sluice_test_%d.key", (int)getpid());
    assert_true(key && cert);
    ASN1_INTEGER_set(X509_get_serialNumber(cert), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert), 0);
    X509_gmtime_adj(X509_getm_notAfter(cert), 3600);
    X509_set_pubkey(cert, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(cert), "CN", MBSTRING_ASC,
                               (const unsigned char *)"localhost", -1, -1, 0);
    X509_set_issuer_name(cert, X509_get_subject_name(cert));
    assert_true(X509_sign(cert, key, EVP_sha256()) > 0);
    f = fopen(cert_path, "w");
    assert_true(f && PEM_write_X509(f, cert));
    fclose(f);
    f = fopen(key_path, "w");
    assert_true(f && PEM_write_PrivateKey(f, key, NULL, NULL, 0, NULL, NULL));
    fclose(f);
    X509_free(cert);
    EVP_PKEY_free(key);
}

static void remove_certificate(void)
{
    unlink(cert_path);
    unlink(key_path);
}

static void handler(void *arg, struct http_req *r)
{
    (void)arg;
    http_reply_start(r, 200, "text/plain");
    http_reply_send(r, "secret", 6);
    http_reply_end(r);
}

static void tls_peer(void *arg)
{
    SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
    SSL *ssl = SSL_new(ctx);
    int fd = peer_connect(*(uint16_t *)arg), n, got = 0;
    char text[2048];

    SSL_set_fd(ssl, fd);
    assert_int_equal(SSL_connect(ssl), 1);
    for (int i = 0; i < 2; i++) {
        const char *request = i == 0 ? "GET / HTTP/1.1\r\n\r\n"
                                     : "GET / HTTP/1.1\r\nConnection: close\r\n\r\n";

        assert_int_equal(SSL_write(ssl, request, (int)strlen(request)), strlen(request));
    }
    while ((n = SSL_read(ssl, text + got, (int)sizeof text - 1 - got)) > 0)
        got += n;
    text[got] = '\0';
    assert_non_null(strstr(strstr(text, "secret\r\n0\r\n\r\nHTTP/1.1 200 OK"), "secret"));
    SSL_free(ssl);
    SSL_CTX_free(ctx);
    close(fd);
}

static void two_requests_over_tls(void **state)
{
    struct http_server_options o = { .host = "127.0.0.1" };
    struct http_server *server;
    struct loop *loop;
    uint16_t port;

    (void)state;
    make_certificate();
    o.tls_cert = cert_path;
    o.tls_key = key_path;
    assert_int_equal(loop_create(&loop, NULL), 0);
    assert_int_equal(http_server_create(&server, loop, &o, handler, NULL, NULL), 0);
    port = http_server_port(server);
    peer_run(loop, tls_peer, &port);
    http_server_destroy(server);
    loop_destroy(loop);
    remove_certificate();
}

static void bad_certificate_is_named(void **state)
{
    struct http_server_options o = { .host = "127.0.0.1", .tls_cert = "/nonexistent/cert.pem" };
    struct http_server *server;
    struct err e = { "" };
    struct loop *loop;

    (void)state;
    assert_int_equal(loop_create(&loop, NULL), 0);
    assert_int_equal(http_server_create(&server, loop, &o, handler, NULL, &e), ERR_IO);
    assert_non_null(strstr(e.text, "/nonexistent/cert.pem"));
    loop_destroy(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_requests_over_tls),
        cmocka_unit_test(bad_certificate_is_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
