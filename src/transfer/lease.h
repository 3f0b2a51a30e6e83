/* The leases of a producer: which blocks may be read under which name, and until when. Pure: no clock
 * (time is an argument), no thread, no event; the caller reports what lease_take_ended returns.
 *
 *     held --lease_end--> ending --(no reader left)--> taken
 *     held --deadline, no reader--> taken as LEASE_EXPIRED
 *
 * A lease that is being read does not expire: the read itself is bounded by its own timeout.
 *
 *     growing --lease_grown, layer by layer--> --lease_complete--> held
 *
 * A growing lease may be read as far as it has grown. It is not taken out before it is complete, whatever
 * ends it: its blocks are still being written. */
#ifndef SLUICE_TRANSFER_LEASE_H
#define SLUICE_TRANSFER_LEASE_H

#include <stdbool.h>
#include <stdint.h>

#include "transfer/transfer.h"

#define LEASE_MAX        8192       /* leases at a time */
#define LEASE_BLOCKS_MAX (1u << 20) /* blocks of one */
#define LEASE_BUCKETS    1024

struct lease {
    char id[TRANSFER_ID_MAX];
    uint32_t *blocks; /* owned */
    uint32_t n_blocks, n_tokens;
    uint64_t user;
    double deadline;
    bool named; /* a consumer may ask for it by name, with this digest of the prompt */
    unsigned char prompt[TRANSFER_PROMPT_BYTES];
    uint32_t readers;
    bool growing;
    uint32_t *done, n_layers; /* tokens whose KV is there, by layer; owned. NULL: all is there */
    bool ending;
    enum transfer_lease_end how; /* where ending, or taken */
    struct lease *next_in_bucket, *next, *prev;
};

struct lease_table {
    struct lease *bucket[LEASE_BUCKETS];
    struct lease *first, *last; /* oldest first */
    uint32_t n;
};

void lease_table_init(struct lease_table *t);
void lease_table_finish(struct lease_table *t); /* frees what is left */

/* ERR_INVAL (name empty or too long, no blocks for the tokens), ERR_EXISTS, ERR_LIMIT, ERR_NOMEM. */
int lease_add(struct lease_table *t, const char *id, const uint32_t *blocks, uint32_t n_blocks,
              uint32_t n_tokens, uint64_t user, double deadline);
/* One of which `done` tokens are there in each of n_layers layers. */
int lease_grow(struct lease_table *t, const char *id, const uint32_t *blocks, uint32_t n_blocks,
               uint32_t n_tokens, uint64_t user, uint32_t n_layers, uint32_t done);
/* The growing one of this name, even if it is ending; NULL. */
struct lease *lease_find_growing(const struct lease_table *t, const char *id);
void lease_grown(struct lease *l, uint32_t layer, uint32_t n_tokens);
/* All is there, or nothing more will come. */
void lease_complete(struct lease *l, double deadline);
uint32_t lease_hash(const char *id);
/* NULL if unknown or ending. */
struct lease *lease_find(const struct lease_table *t, const char *id);

void lease_read_begin(struct lease *l);
void lease_read_end(struct lease *l);
/* The first cause stays. */
void lease_end(struct lease *l, enum transfer_lease_end how);
/* Growing ones too: who calls this writes no more. */
void lease_end_all(struct lease_table *t, enum transfer_lease_end how);

/* Takes one lease that has ended by now out of the table, or NULL. The caller frees it. */
struct lease *lease_take_ended(struct lease_table *t, double now);
void lease_free(struct lease *l);
/* When the next lease without reader ends: now or later; HUGE_VAL if none will by itself. */
double lease_next(const struct lease_table *t);

#endif
