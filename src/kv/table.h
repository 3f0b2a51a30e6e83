/* A request's block list: block[i] keeps the tokens i * block_tokens and following. */
#ifndef SLUICE_KV_TABLE_H
#define SLUICE_KV_TABLE_H

#include <stdint.h>

struct kv_pool;

struct kv_table {
    uint32_t *block;
    uint32_t n;
    uint32_t cap; /* n never exceeds this */
};

int kv_table_init(struct kv_table *t, uint32_t cap); /* 0 or ERR_NOMEM; allocates nothing later */
void kv_table_finish(struct kv_table *t);            /* holds no block any more */

/* Takes free blocks until there are `want`. ERR_TOOLONG beyond cap, ERR_NOBLOCKS: nothing has
 * changed. */
int kv_table_grow(struct kv_table *t, struct kv_pool *pool, uint32_t want);
/* Appends a block that the pool has already, as one holder more. */
void kv_table_share(struct kv_table *t, struct kv_pool *pool, uint32_t block);
/* Gives all blocks back, the last one first, so that of a cached prefix the end is lost first. */
void kv_table_clear(struct kv_table *t, struct kv_pool *pool);

#endif
