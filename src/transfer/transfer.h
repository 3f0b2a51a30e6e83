/* KV between instances: a prefill instance (producer) offers finished prompts' blocks under leases,
 * a decode instance (consumer) pulls them into its own blocks. Pull: the consumer asks, and says DONE.
 *
 * Either instance may be several ranks (pipeline stages, tensor parallel), split differently. Each rank has
 * an object of its own. A consumer's rank is told where the producer's rank 0 is, learns from it what the
 * other ranks hold, and pulls from those that have its layers and heads. What is to happen on several ranks
 * (a lease that begins or ends, a pull) their owner says to each: nothing here goes between ranks of
 * one instance.
 *
 * An object owns a comm thread that progresses the link, serves pulls, runs lease
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
#define TRANSFER_RANKS_MAX    1024
#define TRANSFER_ADDRESS_MAX  64 /* bytes of a numeric address, with the NUL */

/* Into how many ranks something is split. 0 counts as 1; in what is expected of a peer: nothing was said. */
struct transfer_shape {
    uint32_t pp, tp, dp; /* pipeline stages, tensor-parallel ranks of each; instances */
};

/* What one rank of a producer holds, and where: rank = stage * tp + place in the stage. */
struct transfer_rank {
    char host[TRANSFER_ADDRESS_MAX];
    uint16_t port;
    uint32_t first_layer, n_layers, first_head, n_heads; /* as in its layout */
};

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
    double recheck_seconds;      /* until a producer that did not match is looked at again; 0: 5 */
    bool checksums;              /* each block travels with one */
    uint32_t batch_blocks;       /* most blocks in one message batch; 0: chosen */
    struct transfer_shape shape; /* of this instance */
    uint32_t rank;
    /* Rank 0 of a producer of several ranks: all of them, in order; copied. The first is filled in. */
    const struct transfer_rank *ranks;
    uint32_t n_ranks;
    /* What the configuration says of the instances that this one pulls from, and that pull from it. A peer
     * of another shape is refused. */
    struct transfer_shape producers, consumers;
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
    /* Other ranks of this instance pull from the same lease: it stays, until transfer_done. */
    bool keep;
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
/* Producer: the same while the prompt is still computed, for consumers that come by name (transfer_expect):
 * `done` of the n_tokens tokens are there in all layers, and more as transfer_grown tells: of one layer
 * (local to this rank) as many tokens from the beginning on. What has been told does not change any more.
 * It ends by transfer_hold with the same name, blocks and tokens, which completes it and says whose it is, or by
 * transfer_stop_growing, which aborts it; no TRANSFER_LEASE_END comes before. transfer_grown allocates
 * nothing and waits for nothing; ERR_NOTFOUND: no lease of this name grows. */
int transfer_grow(struct transfer *t, const char *transfer_id, const uint32_t *blocks,
                  uint32_t n_blocks, uint32_t n_tokens, uint32_t done, uint64_t user);
int transfer_grown(struct transfer *t, const char *transfer_id, uint32_t layer, uint32_t n_tokens);
void transfer_stop_growing(struct transfer *t, const char *transfer_id);
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
/* Consumer: says DONE after the pulls of all ranks (source.keep) have succeeded. Its TRANSFER_PULLED event says
 * whether the lease had stood until then. ERR_LIMIT, ERR_NOMEM, ERR_TOOLONG: no event follows. */
int transfer_done(struct transfer *t, const struct transfer_source *src, uint64_t user);
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
    uint64_t bytes_early; /* of those sent, before all layers here had the prompt */
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
