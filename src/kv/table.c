#include "kv/table.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "kv/pool.h"

int kv_table_init(struct kv_table *t, uint32_t cap)
{
    *t = (struct kv_table){ .block = malloc((cap ? cap : 1) * sizeof *t->block), .cap = cap };
    return t->block ? 0 : ERR_NOMEM;
}

void kv_table_finish(struct kv_table *t)
{
    assert(t->n == 0);
    free(t->block);
    *t = (struct kv_table){ 0 };
}

int kv_table_grow(struct kv_table *t, struct kv_pool *pool, uint32_t want)
{
    if (want > t->cap)
        return ERR_TOOLONG;
    if (want > t->n && want - t->n > kv_pool_free(pool))
        return ERR_NOBLOCKS;
    while (t->n < want)
        t->block[t->n++] = kv_pool_take(pool);
    return 0;
}

void kv_table_share(struct kv_table *t, struct kv_pool *pool, uint32_t block)
{
    assert(t->n < t->cap);
    kv_pool_ref(pool, block);
    t->block[t->n++] = block;
}

void kv_table_clear(struct kv_table *t, struct kv_pool *pool)
{
    while (t->n > 0)
        kv_pool_unref(pool, t->block[--t->n]);
}
