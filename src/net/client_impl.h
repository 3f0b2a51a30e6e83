/* What http_client.c (calls) and http_link.c (connections) share; not for others. */
#ifndef SLUICE_NET_CLIENT_IMPL_H
#define SLUICE_NET_CLIENT_IMPL_H

#include <event2/util.h>

#include "base/buf.h"
#include "net/http_client.h"
#include "net/http_parse.h"

struct bufferevent;
struct event;
struct event_base;
struct evdns_base;
struct evdns_getaddrinfo_request;

#define HTTP_MAX_IDLE       1024u /* connections kept, of all hosts together */
#define HTTP_MAX_REPLY_HEAD (64u << 10)

/* A connection to a host: resolving, connecting, carrying a call, or idle in the pool. */
struct http_link {
    struct http_client *client;
    struct http_link *prev, *next; /* idle ones, the latest first */
    char *host;
    uint16_t port;
    struct bufferevent *bev; /* NULL until there is an address */
    struct evdns_getaddrinfo_request *dns;
    struct evutil_addrinfo *addrs, *next_addr;
    struct event *timer;
    struct http_call *call; /* NULL: idle */
    bool resolved;
    bool idle;   /* in the pool */
    bool served; /* has carried a whole reply */
};

struct http_client {
    struct loop *loop;
    struct event_base *base;
    struct http_client_options opt; /* defaults filled in */
    struct evdns_base *dns;         /* made for the first name that is not an address */
    struct http_link *idle;
    uint32_t n_idle;
    struct http_call *calls;
};

/* A link for the call: an idle one, unless fresh, or a new one. Its events go to the call:
 * http_call_connected when it can be written to, http_call_link_failed instead. Never before this
 * returns. NULL: no memory. */
struct http_link *http_link_get(struct http_client *c, const char *host, uint16_t port, bool fresh,
                                struct http_call *call);
/* The call is over and the connection in order: back into the pool. */
void http_link_put(struct http_link *l);
/* Closes. */
void http_link_destroy(struct http_link *l);

/* From the link to its call: */
void http_call_connected(struct http_call *c);
void http_call_link_failed(struct http_call *c); /* no connection; the link is gone */
void http_call_readable(struct http_call *c);
void http_call_link_ended(struct http_call *c); /* closed or broken by the peer */

#endif
