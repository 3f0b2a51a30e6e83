/* Links between processes over UCX: connections and active messages, each a short message with an
 * optional bulk part. One `struct link` is one UCX worker, used by one thread (the comm thread);
 * other threads only call link_wake. Memory that a peer on this host may read: comm/region.h.
 *
 * Every wait has a timeout, every length a bound. A peer that dies, closes or talks nonsense ends its
 * own connection and nothing else. Only the configured address is bound.
 *
 * UCX is told (unless the user's UCX_* variables say otherwise) to use the network interface that
 * owns the address, shared memory that has no name in the file system, and to report through our
 * log. Its messages arrive in order except that a bulk part fetched by rendezvous may be overtaken
 * by messages sent after it. */
#ifndef SLUICE_COMM_LINK_H
#define SLUICE_COMM_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct link;
struct link_peer; /* one connection; valid until on_closed for it has returned */

#define LINK_MESSAGE_MAX 4096          /* bytes of a message without bulk */
#define LINK_HEAD_MAX    128           /* bytes of a message that has bulk */
#define LINK_BULK_MAX    (16ull << 20) /* bytes of a bulk part */
#define LINK_PEERS_MAX   1024          /* connections at a time; more are turned away */

/* Called from link_progress (and link_destroy: only on_closed and sends' done functions). They may
 * send, and close any peer; they must not call link_progress, link_wait or link_destroy. */
struct link_events {
    void *arg;
    /* Someone connected to our address. NULL where nothing listens. */
    void (*on_accept)(void *arg, struct link_peer *peer);
    /* msg and bulk are borrowed for the call. bulk is NULL where none was sent. */
    void (*on_message)(void *arg, struct link_peer *peer, const void *msg, size_t len,
                       const void *bulk, size_t bulk_len);
    /* The connection is over, whoever ended it: exactly once a peer. why: status of the cause. */
    void (*on_closed)(void *arg, struct link_peer *peer, int why);
};

/* host: a numeric or resolvable address of this host; the interface that owns it is the one that UCX
 * uses. It must be that interface's first IPv4 address, or an IPv6 address other than ::1: UCX's data
 * connections use no other (ERR_UNSUPPORTED, ERR_INVAL with a sentence). Of the loopback network
 * 127.0.0.0/8 any address will do; it is served, and reached, as 127.0.0.1: so two processes of a host
 * need different ports there. */
int link_create(struct link **out, const char *host, const struct link_events *ev, struct err *e);
/* Closes all peers. NULL is fine. */
void link_destroy(struct link *l);

/* Accepts connections at the host address given to link_create. port 0: any free one. */
int link_listen(struct link *l, uint16_t port, struct err *e);
uint16_t link_port(const struct link *l); /* 0 while not listening */
/* The numeric address that link_create's host stands for. Borrowed. */
const char *link_host(const struct link *l);

/* Starts to connect; messages may be sent at once. A failure comes as on_closed. host is a numeric
 * address (else ERR_NOTFOUND): a resolver's answer is nothing that this thread may wait for. */
int link_connect(struct link_peer **out, struct link *l, const char *host, uint16_t port,
                 struct err *e);
/* on_closed follows in the next link_progress with this cause. Messages not yet gone are dropped. */
void link_close(struct link_peer *peer, int why);

void link_set_user(struct link_peer *peer, void *user);
void *link_user(const struct link_peer *peer); /* NULL until set */
/* "127.0.0.1:5000" of the other end. Borrowed. */
const char *link_peer_name(const struct link_peer *peer);

/* A peer may send bulk parts of at most max bytes, and have at most that many in flight to us
 * (0 at first: none). More closes the connection. */
void link_allow_bulk(struct link_peer *peer, uint64_t max);

/* Sends msg (copied). bulk stays the caller's, unchanged, until done is called, which happens exactly
 * once if this returned 0, perhaps before it returns. done may be NULL without bulk. */
typedef void link_sent_fn(void *arg, int status);
int link_send(struct link_peer *peer, const void *msg, size_t len, const void *bulk,
              size_t bulk_len, link_sent_fn *done, void *arg);

/* Handles what has arrived, a bounded amount. Returns whether there was anything. */
bool link_progress(struct link *l);
/* Sleeps until something arrives, link_wake is called, or seconds have passed (< 0: no limit). */
void link_wait(struct link *l, double seconds);
/* From any thread: the next or present link_wait returns. */
void link_wake(struct link *l);

#endif
