/* Connections of the client: names, one address after another, and the pool of idle ones. */
#include <assert.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/dns.h>
#include <event2/event.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/client_impl.h"
#include "net/loop.h"
#include "net/timeval.h"

#define READ_SIZE (64u << 10)

static void try_next(struct http_link *l);

static void soon(struct http_link *l)
{
    struct timeval now = { 0, 0 };

    event_add(l->timer, &now);
}

static void pool_remove(struct http_link *l)
{
    struct http_client *c = l->client;

    if (l->prev)
        l->prev->next = l->next;
    else
        c->idle = l->next;
    if (l->next)
        l->next->prev = l->prev;
    l->prev = l->next = NULL;
    c->n_idle--;
    l->idle = false;
    event_del(l->timer);
}

void http_link_destroy(struct http_link *l)
{
    if (!l)
        return;
    if (l->idle)
        pool_remove(l);
    if (l->dns)
        evdns_getaddrinfo_cancel(l->dns);
    if (l->addrs)
        evutil_freeaddrinfo(l->addrs);
    if (l->bev)
        bufferevent_free(l->bev);
    if (l->timer)
        event_free(l->timer);
    free(l->host);
    free(l);
}

/* No address is left. */
static void fail(struct http_link *l)
{
    struct http_call *call = l->call;

    http_link_destroy(l);
    http_call_link_failed(call);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct http_link *l = arg;

    (void)bev;
    if (l->call)
        http_call_readable(l->call);
    else
        http_link_destroy(l); /* an idle server has nothing to say: out of step */
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    struct http_link *l = arg;
    int one = 1;

    if (what & BEV_EVENT_CONNECTED) {
        setsockopt(bufferevent_getfd(bev), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        evutil_freeaddrinfo(l->addrs);
        l->addrs = NULL;
        http_call_connected(l->call);
    } else if (l->addrs) {
        bufferevent_free(bev);
        l->bev = NULL;
        try_next(l);
    } else if (l->call) {
        http_call_link_ended(l->call);
    } else {
        http_link_destroy(l);
    }
}

/* An address that fails at once is skipped a round later, as one that fails late is. */
static void try_next(struct http_link *l)
{
    struct evutil_addrinfo *ai = l->next_addr;

    if (!ai) {
        fail(l);
        return;
    }
    l->next_addr = ai->ai_next;
    l->bev = bufferevent_socket_new(l->client->base, -1,
                                    BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!l->bev) {
        fail(l);
        return;
    }
    bufferevent_setcb(l->bev, on_read, NULL, on_event, l);
    bufferevent_setwatermark(l->bev, EV_READ, 0, HTTP_MAX_REPLY_HEAD + READ_SIZE);
    bufferevent_set_max_single_read(l->bev, READ_SIZE);
    bufferevent_enable(l->bev, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(l->bev, ai->ai_addr, (int)ai->ai_addrlen) < 0) {
        bufferevent_free(l->bev);
        l->bev = NULL;
        soon(l);
    }
}

static void on_resolved(int result, struct evutil_addrinfo *list, void *arg)
{
    struct http_link *l = arg;

    if (result == EVUTIL_EAI_CANCEL)
        return;
    l->dns = NULL;
    l->resolved = true;
    l->addrs = l->next_addr = list;
    soon(l);
}

/* A resolver that reads /etc/hosts even where there is no /etc/resolv.conf. */
static struct evdns_base *resolver(struct http_client *c)
{
    if (!c->dns)
        c->dns = evdns_base_new(c->base, EVDNS_BASE_INITIALIZE_NAMESERVERS |
                                             EVDNS_BASE_DISABLE_WHEN_INACTIVE);
    if (!c->dns && (c->dns = evdns_base_new(c->base, EVDNS_BASE_DISABLE_WHEN_INACTIVE)))
        evdns_base_load_hosts(c->dns, NULL);
    return c->dns;
}

static void resolve(struct http_link *l)
{
    struct evutil_addrinfo hints = { .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM };
    struct evutil_addrinfo *list;
    struct evdns_getaddrinfo_request *dns;
    char port[8];

    snprintf(port, sizeof port, "%u", l->port);
    hints.ai_flags = EVUTIL_AI_NUMERICHOST;
    if (evutil_getaddrinfo(l->host, port, &hints, &list) == 0) {
        on_resolved(0, list, l);
        return;
    }
    hints.ai_flags = 0;
    if (!resolver(l->client)) {
        fail(l);
        return;
    }
    dns = evdns_getaddrinfo(l->client->dns, l->host, port, &hints, on_resolved, l);
    if (!l->resolved)
        l->dns = dns;
}

/* The one timer of a link: expiry while idle; with a call, the next step of getting connected. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct http_link *l = arg;

    (void)fd;
    (void)what;
    if (!l->call)
        http_link_destroy(l);
    else if (l->bev)
        http_call_connected(l->call);
    else if (l->resolved)
        try_next(l);
    else
        resolve(l);
}

static struct http_link *pool_take(struct http_client *c, const char *host, uint16_t port)
{
    for (struct http_link *l = c->idle; l; l = l->next) {
        if (l->port != port || strcmp(l->host, host) != 0)
            continue;
        pool_remove(l);
        return l;
    }
    return NULL;
}

static struct http_link *link_create(struct http_client *c, const char *host, uint16_t port)
{
    struct http_link *l = calloc(1, sizeof *l);

    if (!l)
        return NULL;
    l->client = c;
    l->port = port;
    l->host = strdup(host);
    l->timer = evtimer_new(c->base, on_timer, l);
    if (!l->host || !l->timer) {
        http_link_destroy(l);
        return NULL;
    }
    return l;
}

struct http_link *http_link_get(struct http_client *c, const char *host, uint16_t port, bool fresh,
                                struct http_call *call)
{
    struct http_link *l = fresh ? NULL : pool_take(c, host, port);

    if (!l)
        l = link_create(c, host, port);
    if (!l)
        return NULL;
    l->call = call;
    soon(l);
    return l;
}

static uint32_t idle_of_host(const struct http_link *like)
{
    uint32_t n = 0;

    for (const struct http_link *l = like->client->idle; l; l = l->next)
        n += l->port == like->port && strcmp(l->host, like->host) == 0;
    return n;
}

void http_link_put(struct http_link *l)
{
    struct http_client *c = l->client;
    struct timeval tv = timeval_of(c->opt.idle_reuse);

    l->call = NULL;
    l->served = true;
    if (c->n_idle >= HTTP_MAX_IDLE || idle_of_host(l) >= c->opt.max_idle_per_host ||
        evbuffer_get_length(bufferevent_get_input(l->bev))) {
        http_link_destroy(l);
        return;
    }
    l->idle = true;
    l->next = c->idle;
    if (l->next)
        l->next->prev = l;
    c->idle = l;
    c->n_idle++;
    event_add(l->timer, &tv);
}
