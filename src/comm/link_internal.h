/* The inside of struct link. link.c: the worker, listening, waiting. link_peer.c: connections, and what
 * they send and receive. Internal to comm/. */
#ifndef SLUICE_COMM_LINK_INTERNAL_H
#define SLUICE_COMM_LINK_INTERNAL_H

#include "comm/link.h"
#include "comm/link_config.h"

#define LINK_AM_ID        1
#define LINK_PENDING_MAX  64 /* connection requests not yet looked at */
#define LINK_SETTLE_WAITS 8  /* of 1 ms, after a close */

struct link_peer {
    struct link *link;
    struct link_peer *next;
    ucp_ep_h ep;
    void *user;
    bool closing; /* on_closed is due, or has been called */
    int why;
    uint64_t allow, in_flight; /* bulk: largest in total, and now coming in */
    uint32_t receives;         /* rendezvous receives that UCX still works on */
    void *close_request;       /* UCX gives the endpoint up */
    bool ep_closed;
    bool told; /* on_closed has been called */
    char name[LINK_NAME_MAX];
};

struct link {
    struct link_events ev;
    union link_address address;
    char host[INET6_ADDRSTRLEN]; /* the same as text */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    uint16_t port;
    int efd; /* UCX's; borrowed */
    struct link_peer *peers;
    uint32_t n_peers;
    bool closing_any; /* some peer's closing is set and it is not gone yet */
    int settle;       /* waits to keep short, after a close */
    ucp_conn_request_h pending[LINK_PENDING_MAX];
    uint32_t n_pending;
};

/* UCX's handlers; arg is the link. */
ucs_status_t link_on_am(void *arg, const void *header, size_t header_len, void *data, size_t len,
                        const ucp_am_recv_param_t *param);
void link_on_request(ucp_conn_request_h request, void *arg);

void link_accept_pending(struct link *l);
/* Moves every closing peer on: the owner is told, then the endpoint goes, and when UCX has let go of it
 * and of its receives, the peer. Returns whether there was one. */
bool link_sweep(struct link *l);

#endif
