/* Listening sockets, limits and the list of connections; http_conn.c reads, http_reply.c answers. */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "net/loop.h"
#include "net/server_impl.h"

/* Connections beyond max_connections that are told 503; even more are closed without a word. */
#define HTTP_MAX_REFUSING 64u
#define HTTP_BACKLOG      1024

void http_format_address(char *out, size_t size, const struct sockaddr *sa)
{
    char ip[INET6_ADDRSTRLEN] = "?";

    if (sa->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)sa;

        inet_ntop(AF_INET6, &in6->sin6_addr, ip, sizeof ip);
        if (IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
            snprintf(out, size, "%s:%u", strrchr(ip, ':') + 1, ntohs(in6->sin6_port));
        else
            snprintf(out, size, "[%s]:%u", ip, ntohs(in6->sin6_port));
    } else if (sa->sa_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)sa;

        inet_ntop(AF_INET, &in->sin_addr, ip, sizeof ip);
        snprintf(out, size, "%s:%u", ip, ntohs(in->sin_port));
    } else {
        snprintf(out, size, "?");
    }
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *peer,
                      int peer_len, void *arg)
{
    struct http_server *s = arg;
    int one = 1;

    (void)listener;
    (void)peer_len;
    if (s->n_conns >= s->opt.max_connections + HTTP_MAX_REFUSING) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    http_conn_create(s, fd, peer, s->n_conns >= s->opt.max_connections);
}

static void set_port(struct sockaddr *sa, uint16_t port)
{
    if (sa->sa_family == AF_INET6)
        ((struct sockaddr_in6 *)(void *)sa)->sin6_port = htons(port);
    else
        ((struct sockaddr_in *)(void *)sa)->sin_port = htons(port);
}

static uint16_t bound_port(struct evconnlistener *listener)
{
    struct sockaddr_storage ss;
    socklen_t len = sizeof ss;

    if (getsockname(evconnlistener_get_fd(listener), (struct sockaddr *)&ss, &len) < 0)
        return 0;
    return ntohs(ss.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&ss)->sin6_port
                                          : ((struct sockaddr_in *)&ss)->sin_port);
}

/* Usually out of file descriptors: the waiting connection stays ready, so rest instead of spinning. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    struct timeval pause = { 0, 100000 };
    struct http_server *s = arg;

    log_warning("cannot accept a connection: %s", strerror(errno));
    evconnlistener_disable(listener);
    event_add(s->rest, &pause);
}

static void on_rested(evutil_socket_t fd, short what, void *arg)
{
    struct http_server *s = arg;

    (void)fd;
    (void)what;
    for (int i = 0; i < s->n_listeners; i++)
        evconnlistener_enable(s->listeners[i]);
}

/* ERR_NOTFOUND: not an address of this machine. */
static int listen_on(struct http_server *s, struct sockaddr *sa, socklen_t len, bool dual,
                     struct err *e)
{
    unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
    struct evconnlistener *listener;
    char where[80], owner[80] = "";

    if (s->port)
        set_port(sa, s->port);
    if (sa->sa_family == AF_INET6 && !dual)
        flags |= LEV_OPT_BIND_IPV6ONLY;
    listener = evconnlistener_new_bind(s->base, on_accept, s, flags, HTTP_BACKLOG, sa, (int)len);
    if (!listener) {
        int cause = errno;
        bool foreign = cause == EADDRNOTAVAIL || cause == EAFNOSUPPORT;

        http_format_address(where, sizeof where, sa);
        if (cause == EADDRINUSE)
            http_port_owner(owner, sizeof owner, s->port);
        return err_set(e, foreign ? ERR_NOTFOUND : ERR_IO, "cannot listen on %s: %s%s%s%s%s", where,
                       strerror(cause), owner[0] ? " (held by " : "", owner, owner[0] ? ")" : "",
                       foreign ? "" : "; give another port or stop it");
    }
    evconnlistener_set_error_cb(listener, on_accept_error);
    s->listeners[s->n_listeners++] = listener;
    if (!s->port)
        s->port = bound_port(listener);
    return 0;
}

/* One socket for both families, or only v4 where the kernel has no v6. */
static int listen_all(struct http_server *s, struct err *e)
{
    struct sockaddr_in6 any6 = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT };
    struct sockaddr_in any4 = { .sin_family = AF_INET };
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return listen_on(s, (struct sockaddr *)&any4, sizeof any4, false, e);
    close(fd);
    return listen_on(s, (struct sockaddr *)&any6, sizeof any6, true, e);
}

/* A name may have addresses of a family that this machine lacks (::1 in many containers): one that can
 * be bound is enough. */
static int listen_host(struct http_server *s, const char *host, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list, *ai;
    int rc = getaddrinfo(host, NULL, &hints, &list), st = 0;

    if (rc)
        return err_set(e, ERR_IO, "host '%s' is not an address of this machine: %s", host,
                       gai_strerror(rc));
    for (ai = list; ai && s->n_listeners < HTTP_MAX_LISTENERS; ai = ai->ai_next) {
        st = listen_on(s, ai->ai_addr, ai->ai_addrlen, false, e);
        if (st < 0 && st != ERR_NOTFOUND)
            break;
    }
    freeaddrinfo(list);
    if (st != ERR_NOTFOUND)
        return st;
    return s->n_listeners ? 0 : ERR_IO;
}

static int load_tls(struct http_server *s, struct err *e)
{
    const char *cert = s->opt.tls_cert, *key = s->opt.tls_key;
    char why[256];

    s->tls = SSL_CTX_new(TLS_server_method());
    if (s->tls && SSL_CTX_use_certificate_chain_file(s->tls, cert) == 1 &&
        SSL_CTX_use_PrivateKey_file(s->tls, key, SSL_FILETYPE_PEM) == 1 &&
        SSL_CTX_check_private_key(s->tls) == 1)
        return 0;
    ERR_error_string_n(ERR_get_error(), why, sizeof why);
    return err_set(e, ERR_IO, "TLS certificate %s with key %s cannot be used: %s", cert,
                   key ? key : "(none)", why);
}

static void fill_defaults(struct http_server_options *o)
{
    if (!o->max_body)
        o->max_body = 64u << 20;
    if (!o->max_headers)
        o->max_headers = 64u << 10;
    if (o->keep_alive <= 0)
        o->keep_alive = 5;
    if (!o->max_connections)
        o->max_connections = 4096;
    if (!o->tls_key)
        o->tls_key = o->tls_cert;
}

int http_server_create(struct http_server **out, struct loop *l,
                       const struct http_server_options *o, http_handler *fn, void *arg,
                       struct err *e)
{
    struct http_server *s = calloc(1, sizeof *s);
    int st = 0;

    if (!s)
        return err_set(e, ERR_NOMEM, "HTTP server: out of memory");
    s->loop = l;
    s->base = loop_base(l);
    s->opt = *o;
    s->fn = fn;
    s->arg = arg;
    s->port = o->port;
    fill_defaults(&s->opt);
    s->rest = evtimer_new(s->base, on_rested, s);
    if (!s->rest)
        st = err_set(e, ERR_NOMEM, "HTTP server: out of memory");
    if (st == 0 && s->opt.tls_cert)
        st = load_tls(s, e);
    if (st == 0)
        st = o->host ? listen_host(s, o->host, e) : listen_all(s, e);
    if (st < 0) {
        http_server_destroy(s);
        return st;
    }
    *out = s;
    return 0;
}

void http_server_stop(struct http_server *s)
{
    struct http_conn *c, *next;

    for (int i = 0; i < s->n_listeners; i++)
        evconnlistener_free(s->listeners[i]);
    s->n_listeners = 0;
    s->stopping = true;
    for (c = s->conns; c; c = next) {
        next = c->next;
        http_conn_stop(c);
    }
}

void http_server_destroy(struct http_server *s)
{
    if (!s)
        return;
    http_server_stop(s);
    while (s->conns)
        http_conn_close(s->conns);
    if (s->rest)
        event_free(s->rest);
    SSL_CTX_free(s->tls);
    free(s);
}

uint16_t http_server_port(const struct http_server *s)
{
    return s->port;
}

uint32_t http_server_connections(const struct http_server *s)
{
    return s->n_conns;
}
