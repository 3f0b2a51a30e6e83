/* Who holds which block of the KV cache, and which free block still keeps a reusable prefix.
 *
 * Pure bookkeeping over block ids 0 .. n_blocks-1: the numbers themselves live with the workers
 * (kv/layout.h says where). README.md in this folder states the rules. Not thread-safe. */
#ifndef SLUICE_KV_POOL_H
#define SLUICE_KV_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/hash.h"

#define KV_NO_BLOCK        UINT32_MAX
#define KV_POOL_MAX_BLOCKS (1u << 26)

struct kv_pool;

/* ERR_INVAL for no blocks or more than KV_POOL_MAX_BLOCKS, ERR_NOMEM. */
int kv_pool_create(struct kv_pool **out, uint32_t n_blocks);
void kv_pool_destroy(struct kv_pool *p); /* NULL is fine */

uint32_t kv_pool_total(const struct kv_pool *p);
uint32_t kv_pool_free(const struct kv_pool *p); /* blocks without a holder, cached ones too */
uint32_t kv_pool_holders(const struct kv_pool *p, uint32_t block);

/* A free block, now with one holder and without a key. The caller has checked kv_pool_free. */
uint32_t kv_pool_take(struct kv_pool *p);
/* One holder more; a free block leaves the free list with its key. */
void kv_pool_ref(struct kv_pool *p, uint32_t block);
/* One holder less. Without any, the block is free: taken soon if it has no key, else as late as
 * possible. */
void kv_pool_unref(struct kv_pool *p, uint32_t block);

/* Gives a held block, whose tokens are all computed, the key of its content. From now on it is
 * read-only. A key that another block has already is left there: the content is the same. */
void kv_pool_publish(struct kv_pool *p, uint32_t block, const struct hash256 *key);
/* The block with this key, or KV_NO_BLOCK. */
uint32_t kv_pool_find(const struct kv_pool *p, const struct hash256 *key);
/* May the one holder write into it? True with exactly one holder and no key. */
bool kv_pool_writable(const struct kv_pool *p, uint32_t block);

/* Forgets the keys of all free blocks. Returns how many blocks with a key are held and keep it. */
uint32_t kv_pool_forget_free(struct kv_pool *p);

#endif
