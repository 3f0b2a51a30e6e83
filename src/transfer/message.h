/* The messages between producer and consumer: little-endian, every length bounded. Pure.
 *
 *     consumer                         producer
 *     HELLO version, nonce       ->
 *                                <-    WELCOME version, nonce
 *     PROVE proof, identity      ->                           (transfer/handshake.h)
 *                                <-    READY proof, identity, region key
 *     MAP                        ->                           (to rank 0 of several)
 *                                <-    RANK, one for each: its address, layers and heads
 *     PULL lease, range, credits ->
 *                                <-    WAIT (the lease is still to come; again and again)
 *                                <-    GRANT + block ids
 *                                <-    DATA batch + checksums + (unless read in place) the bytes
 *     CREDIT                     ->    one more batch may come
 *     DONE lease                 ->    the lease ends; with `keep` only this read of it
 *                                <-    RESULT of the DONE
 *
 * At any time: REFUSED <- (in place of WELCOME or READY), RESULT with an error <- (the pull cannot be,
 * or no longer be, served), STOP -> (nothing of the pull is read any more; its lease ends),
 * RELEASE -> (the lease ends; by name: or will end as soon as it begins; also from a consumer that was
 * REFUSED because it does not match). A consumer answers an error on a running pull with STOP: until then the
 * producer keeps the blocks, since they may be read in place. */
#ifndef SLUICE_TRANSFER_MESSAGE_H
#define SLUICE_TRANSFER_MESSAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/region.h"
#include "transfer/plan.h"
#include "transfer/transfer.h"

#define MESSAGE_VERSION     4
#define MESSAGE_MAGIC       0x564b4c53u /* "SLKV" */
#define MESSAGE_MAX         2048        /* bytes of any */
#define MESSAGE_NONCE_BYTES 32
#define MESSAGE_PROOF_BYTES 32
#define MESSAGE_BOOT_BYTES  16
#define MESSAGE_NAME_MAX    256 /* bytes of a fingerprint, with the NUL */
#define MESSAGE_DTYPE_MAX   32
#define MESSAGE_TEXT_MAX    1024 /* bytes of a sentence, with the NUL */

enum message_kind {
    MESSAGE_HELLO = 1,
    MESSAGE_WELCOME,
    MESSAGE_PROVE,
    MESSAGE_READY,
    MESSAGE_REFUSED,
    MESSAGE_PULL,
    MESSAGE_GRANT,
    MESSAGE_DATA,
    MESSAGE_CREDIT,
    MESSAGE_DONE,
    MESSAGE_RESULT,
    MESSAGE_STOP,
    MESSAGE_RELEASE,
    MESSAGE_WAIT,
    MESSAGE_MAP,
    MESSAGE_RANK,
};

/* Who a side is and how its memory looks. */
struct identity {
    char engine_id[TRANSFER_ID_MAX];
    unsigned char boot[MESSAGE_BOOT_BYTES]; /* of this run of it */
    char fingerprint[MESSAGE_NAME_MAX];
    char kv_dtype[MESSAGE_DTYPE_MAX];
    struct kv_layout layout;
    struct transfer_shape shape;
    uint32_t rank;
    struct transfer_shape producers, consumers; /* what it expects of its peers */
    bool produce, checksums;
};

struct message_hello { /* and WELCOME */
    uint32_t version;
    unsigned char nonce[MESSAGE_NONCE_BYTES];
    bool secret; /* this side has one */
};

struct message_ready { /* and PROVE, which has no key */
    unsigned char proof[MESSAGE_PROOF_BYTES];
    struct identity identity;
    struct region_key key; /* all zero: cannot be read in place */
};

struct message_pull {
    uint64_t pull;
    char lease[TRANSFER_ID_MAX];
    struct plan_range range;
    bool in_place;         /* the consumer reads the producer's memory itself */
    uint32_t batch_pieces; /* most pieces in one DATA; the bytes stay under LINK_BULK_MAX */
    uint32_t credits;      /* DATA messages that may be on their way */
    uint32_t wait_ms; /* the lease may be still to come: longest time between two WAITs; else 0 */
    unsigned char
        prompt[TRANSFER_PROMPT_BYTES]; /* by name; all zero: the lease is known by its blocks */
};

struct message_grant {
    uint64_t pull;
    uint32_t n_blocks;     /* the bulk part holds so many ids, from position 0 on */
    uint32_t batch_pieces; /* of every DATA but the last */
    bool checksums;
};

struct message_data { /* the bulk part: n checksums of 8 bytes, then n pieces */
    uint64_t pull, piece;
    uint32_t n;
};

struct message_name { /* DONE, RELEASE: id comes back in the RESULT of a DONE */
    uint64_t id;
    char lease[TRANSFER_ID_MAX];
    bool keep;    /* DONE: others read the lease, too: it stays */
    bool by_name; /* RELEASE: the lease may be still to come, and is meant only for this prompt */
    unsigned char prompt[TRANSFER_PROMPT_BYTES]; /* by name; all zero: for any */
};

struct message_rank {
    uint32_t rank;
    struct transfer_rank is;
};

struct message_result { /* and REFUSED (id 0) */
    uint64_t id;
    int32_t status;
    char text[MESSAGE_TEXT_MAX];
};

struct message {
    enum message_kind kind;
    union {
        struct message_hello hello;
        struct message_ready ready;
        struct message_pull pull;
        struct message_grant grant;
        struct message_data data;
        struct message_name name;
        struct message_rank rank;
        struct message_result result;
        uint64_t id; /* CREDIT, STOP, WAIT: the pull; MAP: 0 */
    } u;
};

/* The message as bytes. Strings must fit their fields. Returns the length. */
size_t message_encode(unsigned char out[MESSAGE_MAX], const struct message *m);
/* 0, or ERR_BADMSG: not a message, cut short, or with bytes left over. */
int message_decode(struct message *m, const void *data, size_t len);
/* "PULL". Never NULL. */
const char *message_name(enum message_kind kind);

/* The bytes of an identity, which the proofs cover. */
size_t identity_encode(unsigned char out[MESSAGE_MAX], const struct identity *id);

/* Numbers of a bulk part. */
void message_put_u64(unsigned char out[8], uint64_t v);
uint64_t message_get_u64(const unsigned char in[8]);
void message_put_u32(unsigned char out[4], uint32_t v);
uint32_t message_get_u32(const unsigned char in[4]);

#endif
