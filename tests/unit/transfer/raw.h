/* A peer that speaks the protocol by hand, so that it can also break it: one connection, one thread (the
 * test's own), everything waited for. */
#ifndef SLUICE_TESTS_TRANSFER_RAW_H
#define SLUICE_TESTS_TRANSFER_RAW_H

#include <stdbool.h>

#include "comm/link.h"
#include "transfer/handshake.h"

#define RAW_MESSAGES_MAX 64

struct raw {
    struct link *link;
    struct link_peer *peer; /* NULL before and after */
    bool closed;
    struct message come[RAW_MESSAGES_MAX]; /* not yet expected, from n_seen on; bulk is dropped */
    int n, n_seen;
    struct message last; /* that was expected */
    struct handshake handshake;
    struct identity identity;
};

struct side;

/* Copies what `like` is (its options), so that the other side accepts it. */
void raw_init(struct raw *r, const struct side *like);
void raw_finish(struct raw *r);
void raw_send(struct raw *r, const struct message *m, const void *bulk, size_t bulk_len);
void raw_send_bytes(struct raw *r, const void *bytes, size_t len);
/* The next message is of this kind. Borrowed until the next call. */
const struct message *raw_expect(struct raw *r, enum message_kind kind);
void raw_expect_closed(struct raw *r);

void raw_connect(struct raw *r, uint16_t port); /* consumer: up to READY */
void raw_hello(struct raw *r, uint16_t port, uint32_t version, bool secret);
void raw_prove(struct raw *r);
uint16_t raw_listen(struct raw *r); /* producer */
void raw_accept(struct raw *r);     /* up to READY */
/* By name. */
void raw_ask(struct raw *r, const char *lease, uint32_t n_tokens, uint32_t wait_ms,
             const unsigned char *prompt);
void raw_pull(struct raw *r, const char *lease, uint32_t n_tokens, uint32_t credits, bool in_place);

#endif
