/* Which instance takes a request, and which instances may be asked at all. Policy only: no socket, no
 * clock, no thread; what happened is reported back.
 *
 * Load is counted at dispatch, in tokens: a request's score is charged to its node when it is picked
 * and taken back when it ends, so a burst is spread before any server has said a word. A prefill node
 * also bears the KV that it still holds for decode nodes, at ROUTE_KV_WEIGHT. Equal loads take turns.
 *
 * A node that cannot be connected to is out at once; one that answers 5xx, breaks or is late is out
 * after `fail_limit` such outcomes in a row. A client's own 4xx is a success of the node. Probes bring a
 * node back. A node that is out is never used, not even if all are. */
#ifndef SLUICE_PROXY_ROUTE_H
#define SLUICE_PROXY_ROUTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ROUTE_MAX_NODES      1024u /* of one role */
#define ROUTE_KV_WEIGHT      0.3   /* as the reference proxy weighs it */
#define ROUTE_REQUEST_TOKENS 16.0  /* what a request costs beside its tokens */

enum route_state {
    ROUTE_PENDING, /* added, has not answered a probe yet */
    ROUTE_ACTIVE,  /* takes requests */
    ROUTE_FAILED,  /* does not answer; probed until it does */
    ROUTE_DRAINING /* being removed: takes nothing new, goes when its last request has ended */
};
const char *route_state_name(enum route_state s); /* "pending" */

enum route_outcome {
    ROUTE_OK,         /* any answer below 500 */
    ROUTE_NO_CONNECT, /* nobody there */
    ROUTE_ERROR       /* 5xx, broken, late */
};

struct route_node {
    enum route_state state;
    uint64_t id;          /* never used twice */
    double tokens;        /* score of the requests that run here */
    double kv;            /* score of the KV held here for others */
    uint32_t requests;    /* that run here */
    uint32_t holds;       /* KV held here */
    uint32_t fails;       /* failed requests in a row */
    uint32_t probe_fails; /* failed probes in a row */
    uint32_t oks;         /* good probes in a row, while out */
};

/* The nodes of one role. */
struct route {
    struct route_node *node[ROUTE_MAX_NODES]; /* borrowed */
    uint32_t n;
    uint32_t turn;       /* where the search for the least loaded starts */
    uint32_t fail_limit; /* failures in a row that put an active node out */
    uint32_t ok_limit;   /* good probes in a row that bring it back */
    uint32_t wait_limit; /* probes that a pending node may fail before it counts as failed */
};

/* What a request costs, by the length of its JSON body: about four bytes a token. */
double route_score(size_t body_bytes);

/* ERR_LIMIT beyond ROUTE_MAX_NODES. */
int route_add(struct route *r, struct route_node *n);
void route_remove(struct route *r, struct route_node *n);

/* The least loaded active node that is not in tried (ids); NULL: none. Charges the score to it. */
struct route_node *route_pick(struct route *r, double score, const uint64_t *tried, size_t n_tried);
/* The request is over on this node. */
void route_release(struct route_node *n, double score);
/* The node holds KV for a decode node; it has let go of it. */
void route_hold(struct route_node *n, double score);
void route_unhold(struct route_node *n, double score);

/* What came of a request. True: the node has changed its state. */
bool route_report(const struct route *r, struct route_node *n, enum route_outcome o);
/* What came of a probe; an answer other than 2xx is ROUTE_ERROR. True: the node has changed its
 * state. A good probe does not forgive an active node its failed requests. */
bool route_report_probe(const struct route *r, struct route_node *n, enum route_outcome o);

uint32_t route_count(const struct route *r, enum route_state s);

#endif
