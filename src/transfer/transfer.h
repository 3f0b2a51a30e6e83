/* KV between instances: a prefill instance (producer) offers finished prompts' blocks under leases,
 * a decode instance (consumer) pulls them into its own blocks. Pull: the consumer asks, and says DONE.
 *
 * One object a rank. It owns a comm thread that progresses the link, serves pulls, runs lease
 * timers and reports through one callback. The pool's memory is registered once; blocks are pinned
 * by their owner (the engine core) for as long as a lease or a pull names them:
 * - producer: from transfer_hold until the callback reports TRANSFER_LEASE_END;
 * - consumer: from transfer_pull until the callback reports TRANSFER_PULLED. After transfer_cancel the
 *   report still comes, and only then are the blocks free: late data never lands in someone
 *   else's block. */
#ifndef SLUICE_TRANSFER_TRANSFER_H
#define SLUICE_TRANSFER_TRANSFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kv/layout.h"

struct err;
struct transfer;

#define TRANSFER_ID_MAX       128 /* bytes of an engine id or a transfer id, with the NUL */
#define TRANSFER_PROMPT_BYTES 32  /* of a digest of the prompt, the same on both sides */

struct transfer_options {
    const char *host; /* address to listen on and to announce; only this one is bound */
    uint16_t port;    /* 0: any free one (then see transfer_port) */
    bool produce, consume;
    const char *secret;      /* shared secret; NULL: none. Peers without it are refused */
    const char *engine_id;   /* this instance; a boot id is added so that a restart is noticed */
    const char *fingerprint; /* of the model: must be equal on both sides */
    const char *kv_dtype;    /* "float16" */
    double lease_seconds;    /* a lease ends by itself after this */
    double pull_timeout;     /* a pull fails after this long without progress */
    double connect_timeout;
    double recheck_seconds; /* until a producer that did not match is looked at again; 0: 5 */
    bool checksums;         /* each block travels with one */
    uint32_t batch_blocks;  /* most blocks in one message batch; 0: chosen */
    struct kv_layout layout;
    void *pool; /* kv_layout_pool_bytes(&layout) bytes: transfer_memory_alloc or any memory */
};

/* Where a pull reads from: kv_transfer_params in plain form. All is copied by transfer_pull.
 *
 * With `prompt` the lease is known by its name alone: it may be still to come, then the pull waits; its
 * blocks are those that it has, its engine is whoever has it. The digest must be the one that the
 * producer gave to transfer_expect (all zero in transfer_release_remote: whatever it was). */
struct transfer_source {
    const char *host;
    uint16_t port;
    const char *engine_id;
    const char *transfer_id;     /* remote_request_id: names the lease */
    const unsigned char *prompt; /* TRANSFER_PROMPT_BYTES; NULL: not by name */
    const uint32_t *blocks;      /* the producer's block ids from position 0 on; by name: none */
    uint32_t n_blocks;
    uint32_t block_tokens; /* the producer's */
};

enum transfer_event_kind {
    TRANSFER_PULLED,    /* a pull ended: status 0, or why not */
    TRANSFER_LEASE_END, /* a lease ended: DONE, abort, expiry or shutdown */
};
enum transfer_lease_end { LEASE_DONE, LEASE_ABORTED, LEASE_EXPIRED, LEASE_SHUTDOWN };

struct transfer_event {
    enum transfer_event_kind kind;
    uint64_t user;   /* as given to hold or pull */
    int status;      /* PULLED: 0 or ERR_* */
    const char *why; /* PULLED with status < 0: a sentence; borrowed for the call */
    uint64_t bytes;  /* PULLED */
    double seconds;  /* PULLED: from transfer_pull (by name: from the grant) to the end */
    enum transfer_lease_end end;
};
/* Called on the comm thread (or inside transfer_destroy); must not call back into transfer_*. */
typedef void transfer_event_fn(void *arg, const struct transfer_event *ev);

/* Memory for a pool from the link, so that peers on this host read it directly where UCX can; plain
 * zeroed memory where it cannot. Freed by transfer_memory_free. */
int transfer_memory_alloc(void **out, size_t bytes, struct err *e);
void transfer_memory_free(void *p, size_t bytes);

int transfer_create(struct transfer **out, const struct transfer_options *opt,
                    transfer_event_fn *fn, void *arg, struct err *e);
/* Ends all leases (LEASE_SHUTDOWN) and pulls (ERR_CANCELED), joins the comm thread. NULL is fine. */
void transfer_destroy(struct transfer *t);
uint16_t transfer_port(const struct transfer *t);
/* The numeric address that options.host stands for: what peers are told. Borrowed. */
const char *transfer_host(const struct transfer *t);

/* Producer: the blocks (in order of position, holding n_tokens tokens) may be read by whoever names
 * transfer_id, until the lease ends. blocks is copied. ERR_EXISTS, ERR_LIMIT, ERR_NOMEM. */
int transfer_hold(struct transfer *t, const char *transfer_id, const uint32_t *blocks,
                  uint32_t n_blocks, uint32_t n_tokens, uint64_t user);
/* Producer: a prefill is in hand that will be held as transfer_id. Consumers that ask for it by name wait
 * until transfer_hold, or are told at once by transfer_drop that it will not come (which may also be
 * said of a name that was never expected). ERR_EXISTS: the name is in use. ERR_INVAL, ERR_LIMIT,
 * ERR_NOMEM. A name that nobody here expects is waited for during pull_timeout. */
int transfer_expect(struct transfer *t, const char *transfer_id,
                    const unsigned char prompt[TRANSFER_PROMPT_BYTES]);
void transfer_drop(struct transfer *t, const char *transfer_id);
/* Ends a lease now, or an expected one as soon as it begins (LEASE_ABORTED); ERR_NOTFOUND if it has
 * ended. A read in progress is fenced first: the event comes when nobody reads any more. */
int transfer_abort_hold(struct transfer *t, const char *transfer_id);

/* Consumer: fetches the KV of tokens first .. n_tokens-1 (first: a multiple of both block sizes) into
 * dst blocks (this side's ids from position 0 on), then says DONE to the producer. With first ==
 * n_tokens nothing is fetched, only DONE is said. A pull by name waits for its lease, at most
 * lease_seconds. dst is copied. Returns at once; the result is a TRANSFER_PULLED event, always exactly
 * one. ERR_MISMATCH, ERR_LIMIT, ERR_NOMEM: no event follows. */
int transfer_pull(struct transfer *t, const struct transfer_source *src, const uint32_t *dst,
                  uint32_t n_dst, uint32_t first, uint32_t n_tokens, uint64_t user);
int transfer_cancel(struct transfer *t, uint64_t user);
/* Consumer: tells the producer to end the lease without a pull (the request failed or was aborted
 * before). Best effort, bounded by the connect timeout. */
int transfer_release_remote(struct transfer *t, const struct transfer_source *src);

/* Checks that a producer can be reached and matches (handshake): 0 or ERR_* with a sentence with both
 * sides' values. Blocks at most connect_timeout. */
int transfer_probe(struct transfer *t, const char *host, uint16_t port, struct err *e);

struct transfer_stats {
    uint32_t leases; /* now */
    uint32_t pulls;  /* now */
    uint64_t leases_total, leases_expired;
    uint64_t pulls_ok, pulls_failed;
    uint64_t bytes_sent, bytes_received;
    uint64_t checksum_errors, protocol_errors, refused;
    double pull_seconds; /* sum over finished pulls */
    uint32_t peers;
    uint32_t waiting; /* now: consumers that wait for a lease to begin */
    /* Consumer: producers by address that were met and match, and that do not. The latter are looked at
     * again by themselves; one that has gone is forgotten. */
    uint32_t matching, mismatching;
    char mismatch[512]; /* the latest sentence of those that do not, with the address; "" */
};
void transfer_stats(struct transfer *t, struct transfer_stats *out); /* any thread */

#endif
