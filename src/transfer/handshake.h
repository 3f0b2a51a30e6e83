/* Who may pull from whom: both sides prove that they know the shared secret, then compare what they
 * are. Pure; the connection that carries it is transfer/conn.c.
 *
 * The proof of a side is HMAC-SHA256(secret, its role, both nonces, its identity): it is worth nothing
 * on another connection, in the other direction or with another identity. The consumer goes first, so
 * that the producer computes nothing for strangers. The secret guards who takes part; it does not
 * encrypt what travels. */
#ifndef SLUICE_TRANSFER_HANDSHAKE_H
#define SLUICE_TRANSFER_HANDSHAKE_H

#include "transfer/message.h"

struct err;

enum handshake_role { HANDSHAKE_CONSUMER, HANDSHAKE_PRODUCER };

struct handshake {
    const char *secret;                          /* NULL: none; borrowed */
    unsigned char nonce[2][MESSAGE_NONCE_BYTES]; /* by role */
};

void handshake_init(struct handshake *h, enum handshake_role own, const char *secret);
/* Takes the peer's HELLO or WELCOME. ERR_MISMATCH (version), ERR_AUTH (only one side has a secret). */
int handshake_hello(struct handshake *h, enum handshake_role own, const struct message_hello *peer,
                    struct err *e);
void handshake_prove(const struct handshake *h, enum handshake_role role,
                     unsigned char out[MESSAGE_PROOF_BYTES], const struct identity *id);
/* ERR_AUTH unless the peer, whose role is given, knows the secret. */
int handshake_verify(const struct handshake *h, enum handshake_role role,
                     const struct message_ready *peer, struct err *e);

/* Whether KV can move from one to the other. ERR_MISMATCH with a sentence that names the field and
 * both values. */
int handshake_compare(const struct identity *producer, const struct identity *consumer,
                      struct err *e);
#endif
