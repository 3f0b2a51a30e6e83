/* Keys of full blocks, so that a prompt's beginning that was computed before is found again.
 *
 *     root     = SHA-256("sluice kv prefix 1", block_tokens, extras)
 *     key of i = SHA-256(key of i-1 or root, the token ids of block i)
 *
 * A key stands for everything from position 0 to the end of its block, and for the extras (cache
 * salt and the like, each tagged by its kind by the caller). Two keys that are equal mean equal
 * tokens, so the tokens themselves are not compared. A request hashes each of its blocks once. */
#ifndef SLUICE_KV_PREFIX_H
#define SLUICE_KV_PREFIX_H

#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

struct kv_pool;
struct kv_table;

/* One request's keys. Works on the request's token array, which only ever grows. */
struct kv_prefix {
    struct hash256 root;
    struct hash256 *key; /* key[0 .. n_keys-1] are known */
    uint32_t n_keys;
    uint32_t cap;         /* blocks beyond this have no key; 0: no prefix caching */
    uint32_t n_published; /* leading blocks of the table that the pool knows by their keys */
    uint32_t block_tokens;
};

int kv_prefix_init(struct kv_prefix *p, uint32_t cap, uint32_t block_tokens, const void *extras,
                   size_t extras_len); /* 0 or ERR_NOMEM */
void kv_prefix_finish(struct kv_prefix *p);

/* The longest cached prefix. */
struct kv_match {
    uint32_t n;      /* blocks */
    uint32_t n_idle; /* of these, free ones: sharing them uses up as many free blocks */
};
struct kv_match kv_prefix_match(struct kv_prefix *p, const struct kv_pool *pool,
                                const int32_t *tokens, uint32_t max_blocks);
/* Puts the first n blocks of a match, made just before, into the empty table. */
void kv_prefix_share(struct kv_prefix *p, struct kv_pool *pool, struct kv_table *t, uint32_t n);
/* Gives their keys to those of the first n_full blocks that have none. All their tokens are
 * computed. */
void kv_prefix_publish(struct kv_prefix *p, struct kv_pool *pool, const struct kv_table *t,
                       const int32_t *tokens, uint32_t n_full);
/* The table was cleared. The keys stay known. */
void kv_prefix_unpublish(struct kv_prefix *p);

#endif
