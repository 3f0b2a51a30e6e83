/* The proxy: one address in front of prefill and decode instances. It speaks HTTP only and never sees
 * a tensor: P's kv_transfer_params travel through it as opaque text. Loop thread only. */
#ifndef SLUICE_PROXY_PROXY_H
#define SLUICE_PROXY_PROXY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/members.h"

struct err;
struct loop;
struct proxy;

struct proxy_options {
    const char *host; /* NULL: all addresses */
    uint16_t port;    /* 0: any free one */
    size_t max_body;
    uint32_t max_connections;
    double keep_alive;    /* of clients, idle */
    uint32_t max_retries; /* of a leg, while nothing has been sent to the client */
    bool together;        /* both legs are sent at once, under a name that the proxy makes up */
    double retry_delay;   /* seconds before the first retry; doubles */
    double connect_timeout;
    double first_byte_timeout; /* a leg's whole wait for its status line; 0: none */
    double silence_timeout;    /* between two bytes of a reply; 0: none */
    struct members_options members;
};

/* Listens at once; requests find instances as these become active. */
int proxy_create(struct proxy **out, struct loop *l, const struct proxy_options *o, struct err *e);
void proxy_destroy(struct proxy *p); /* what runs is cut */

struct members *proxy_members(struct proxy *p);
uint16_t proxy_port(const struct proxy *p);

/* New requests are answered 503 from here on; done(arg) runs when the last running one has ended, never
 * before this returns. ERR_NOMEM. */
int proxy_drain(struct proxy *p, void (*done)(void *arg), void *arg);
/* Ends what still runs with an error that says so. */
void proxy_abort(struct proxy *p);

#endif
