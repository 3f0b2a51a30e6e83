#include "kv/pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct block {
    struct hash256 key; /* while has_key */
    uint32_t holders;
    uint32_t prev, next; /* in the free list, while holders == 0 */
    uint32_t chain;      /* next block of the same bucket, while has_key */
    bool has_key;
};

/* The free list is a ring through block[n_blocks], which is no block but its two ends: next is
 * the block to take first. Blocks without a key come before those with one. */
struct kv_pool {
    struct block *block; /* n_blocks + 1 */
    uint32_t n_blocks;
    uint32_t n_free;
    uint32_t n_keys;
    uint32_t *bucket; /* first block of each bucket of the key index */
    uint32_t bucket_mask;
};

static void link_between(struct kv_pool *p, uint32_t prev, uint32_t b, uint32_t next)
{
    p->block[b].prev = prev;
    p->block[b].next = next;
    p->block[prev].next = b;
    p->block[next].prev = b;
    p->n_free++;
}

static void unlink_free(struct kv_pool *p, uint32_t b)
{
    struct block *k = &p->block[b];

    assert(k->holders == 0 && p->n_free > 0);
    p->block[k->prev].next = k->next;
    p->block[k->next].prev = k->prev;
    p->n_free--;
}

/* Keys are SHA-256: any of their bits are as good as a hash. */
static uint32_t *bucket_of(const struct kv_pool *p, const struct hash256 *key)
{
    uint32_t h;

    memcpy(&h, key->b, sizeof h);
    return &p->bucket[h & p->bucket_mask];
}

static void forget_key(struct kv_pool *p, uint32_t b)
{
    uint32_t *at = bucket_of(p, &p->block[b].key);

    while (*at != b)
        at = &p->block[*at].chain;
    *at = p->block[b].chain;
    p->block[b].has_key = false;
    p->n_keys--;
}

static uint32_t bucket_count(uint32_t n_blocks)
{
    uint32_t n = 16;

    while (n < n_blocks)
        n *= 2;
    return n;
}

int kv_pool_create(struct kv_pool **out, uint32_t n_blocks)
{
    struct kv_pool *p;
    uint32_t n_buckets = bucket_count(n_blocks <= KV_POOL_MAX_BLOCKS ? n_blocks : 0);

    if (n_blocks == 0 || n_blocks > KV_POOL_MAX_BLOCKS)
        return ERR_INVAL;
    p = calloc(1, sizeof *p);
    if (!p)
        return ERR_NOMEM;
    p->n_blocks = n_blocks;
    p->block = calloc((size_t)n_blocks + 1, sizeof *p->block);
    p->bucket = malloc(n_buckets * sizeof *p->bucket);
    if (!p->block || !p->bucket) {
        kv_pool_destroy(p);
        return ERR_NOMEM;
    }
    p->bucket_mask = n_buckets - 1;
    for (uint32_t i = 0; i < n_buckets; i++)
        p->bucket[i] = KV_NO_BLOCK;
    p->block[n_blocks].prev = p->block[n_blocks].next = n_blocks;
    for (uint32_t i = 0; i < n_blocks; i++)
        link_between(p, p->block[n_blocks].prev, i, n_blocks);
    *out = p;
    return 0;
}

void kv_pool_destroy(struct kv_pool *p)
{
    if (!p)
        return;
    free(p->block);
    free(p->bucket);
    free(p);
}

uint32_t kv_pool_total(const struct kv_pool *p)
{
    return p->n_blocks;
}

uint32_t kv_pool_free(const struct kv_pool *p)
{
    return p->n_free;
}

uint32_t kv_pool_holders(const struct kv_pool *p, uint32_t block)
{
    assert(block < p->n_blocks);
    return p->block[block].holders;
}

uint32_t kv_pool_take(struct kv_pool *p)
{
    uint32_t b = p->block[p->n_blocks].next;

    assert(p->n_free > 0);
    unlink_free(p, b);
    if (p->block[b].has_key)
        forget_key(p, b);
    p->block[b].holders = 1;
    return b;
}

void kv_pool_ref(struct kv_pool *p, uint32_t block)
{
    assert(block < p->n_blocks);
    if (p->block[block].holders == 0)
        unlink_free(p, block);
    p->block[block].holders++;
}

void kv_pool_unref(struct kv_pool *p, uint32_t block)
{
    uint32_t end = p->n_blocks;
    struct block *k = &p->block[block];

    assert(block < p->n_blocks && k->holders > 0);
    if (--k->holders > 0)
        return;
    if (k->has_key)
        link_between(p, p->block[end].prev, block, end);
    else
        link_between(p, end, block, p->block[end].next);
}

void kv_pool_publish(struct kv_pool *p, uint32_t block, const struct hash256 *key)
{
    struct block *k = &p->block[block];
    uint32_t *at = bucket_of(p, key);

    assert(kv_pool_writable(p, block));
    if (kv_pool_find(p, key) != KV_NO_BLOCK)
        return;
    k->key = *key;
    k->has_key = true;
    k->chain = *at;
    *at = block;
    p->n_keys++;
}

uint32_t kv_pool_find(const struct kv_pool *p, const struct hash256 *key)
{
    uint32_t b = *bucket_of(p, key);

    while (b != KV_NO_BLOCK && memcmp(&p->block[b].key, key, sizeof *key) != 0)
        b = p->block[b].chain;
    return b;
}

bool kv_pool_writable(const struct kv_pool *p, uint32_t block)
{
    assert(block < p->n_blocks);
    return p->block[block].holders == 1 && !p->block[block].has_key;
}

uint32_t kv_pool_forget_free(struct kv_pool *p)
{
    uint32_t end = p->n_blocks;

    for (uint32_t b = p->block[end].next; b != end; b = p->block[b].next)
        if (p->block[b].has_key)
            forget_key(p, b);
    return p->n_keys;
}
