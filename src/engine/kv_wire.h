/* KV transfer's messages between rank 0 of an instance and the others. Internal to src/engine. Both ends are
 * of one build: numbers and structs are in the machine's own order. */
#ifndef SLUICE_ENGINE_KV_WIRE_H
#define SLUICE_ENGINE_KV_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "transfer/transfer.h"

#define KV_WIRE_HOST_MAX 256
#define KV_WIRE_WHY_MAX  512

enum kv_wire_kind {
    /* rank 0 to another */
    KV_OPEN,   /* start: engine_id */
    KV_EXPECT, /* name, prompt */
    KV_DROP,   /* name */
    KV_GROW,   /* id of the request in step plans, name, n_tokens: it is pushed */
    KV_HOLD,   /* id, name, n_tokens; blocks: src */
    KV_END,    /* name: the lease ends */
    KV_PULL,   /* id and all that a pull needs; blocks: src, then dst */
    KV_CANCEL, /* id: of a pull */
    /* and back */
    KV_OPENED,      /* status, why; place */
    KV_PULLED,      /* id, status, why, bytes, seconds; stats */
    KV_LEASE_ENDED, /* id, how; stats */
    KV_WIRE_KINDS,
};

struct kv_wire {
    uint32_t kind;
    int32_t status;
    uint64_t id; /* of the request */
    char name[TRANSFER_ID_MAX], engine_id[TRANSFER_ID_MAX];
    union {
        struct {
            char host[KV_WIRE_HOST_MAX];
            uint16_t port;
            unsigned char by_name; /* 0 or 1 */
            unsigned char prompt[TRANSFER_PROMPT_BYTES];
            uint32_t n_src, n_dst, first, n_tokens, block_tokens;
        } ask;
        struct {
            char why[KV_WIRE_WHY_MAX];
            uint64_t bytes;
            double seconds;
            uint32_t how;
            struct transfer_rank place;
            struct transfer_stats stats;
        } tell;
    } u;
};

/* Makes the bytes of a message and of its blocks (n_src, then n_dst ids). free() them. NULL: no memory. */
void *kv_wire_make(size_t *n, const struct kv_wire *m, const uint32_t *src, const uint32_t *dst);
/* Copies the message; *src and *dst point into data. ERR_BADMSG unless all lengths and texts are sound;
 * ERR_MISMATCH if data is not aligned for numbers. */
int kv_wire_read(struct kv_wire *m, const uint32_t **src, const uint32_t **dst, const void *data,
                 size_t n);

#endif
