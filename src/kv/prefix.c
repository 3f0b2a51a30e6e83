#include "kv/prefix.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "kv/pool.h"
#include "kv/table.h"

static const char domain[] = "sluice kv prefix 1";

int kv_prefix_init(struct kv_prefix *p, uint32_t cap, uint32_t block_tokens, const void *extras,
                   size_t extras_len)
{
    struct hash_part parts[] = { { domain, sizeof domain },
                                 { &block_tokens, sizeof block_tokens },
                                 { extras, extras_len } };

    *p = (struct kv_prefix){ .cap = cap, .block_tokens = block_tokens };
    if (cap == 0)
        return 0;
    p->key = malloc(cap * sizeof *p->key);
    if (!p->key)
        return ERR_NOMEM;
    hash_sha256(&p->root, parts, extras_len ? 3 : 2);
    return 0;
}

void kv_prefix_finish(struct kv_prefix *p)
{
    free(p->key);
    *p = (struct kv_prefix){ 0 };
}

/* Key of block i; those before it are known or become known. */
static const struct hash256 *key_at(struct kv_prefix *p, const int32_t *tokens, uint32_t i)
{
    size_t bytes = p->block_tokens * sizeof *tokens;

    assert(i < p->cap);
    for (; p->n_keys <= i; p->n_keys++) {
        const struct hash256 *parent = p->n_keys ? &p->key[p->n_keys - 1] : &p->root;
        struct hash_part parts[] = { { parent, sizeof *parent },
                                     { tokens + (size_t)p->n_keys * p->block_tokens, bytes } };

        hash_sha256(&p->key[p->n_keys], parts, 2);
    }
    return &p->key[i];
}

struct kv_match kv_prefix_match(struct kv_prefix *p, const struct kv_pool *pool,
                                const int32_t *tokens, uint32_t max_blocks)
{
    struct kv_match m = { 0 };
    uint32_t max = max_blocks < p->cap ? max_blocks : p->cap;

    for (; m.n < max; m.n++) {
        uint32_t b = kv_pool_find(pool, key_at(p, tokens, m.n));

        if (b == KV_NO_BLOCK)
            break;
        m.n_idle += kv_pool_holders(pool, b) == 0;
    }
    return m;
}

void kv_prefix_share(struct kv_prefix *p, struct kv_pool *pool, struct kv_table *t, uint32_t n)
{
    assert(t->n == 0 && n <= p->n_keys);
    for (uint32_t i = 0; i < n; i++)
        kv_table_share(t, pool, kv_pool_find(pool, &p->key[i]));
    p->n_published = n;
}

void kv_prefix_publish(struct kv_prefix *p, struct kv_pool *pool, const struct kv_table *t,
                       const int32_t *tokens, uint32_t n_full)
{
    uint32_t end = n_full < p->cap ? n_full : p->cap;

    assert(n_full <= t->n);
    for (; p->n_published < end; p->n_published++)
        kv_pool_publish(pool, t->block[p->n_published], key_at(p, tokens, p->n_published));
}

void kv_prefix_unpublish(struct kv_prefix *p)
{
    p->n_published = 0;
}
