#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "sched/core.h"

#define FIRST_BUCKETS 64u
#define MAX_BUCKETS   (1u << 24) /* beyond this the chains get longer */

static void put(struct req **bucket, uint32_t n_buckets, struct req *r)
{
    struct req **at = &bucket[r->id & (n_buckets - 1)];

    r->id_next = *at;
    *at = r;
}

static int grow(struct req_index *x)
{
    uint32_t n = x->n_buckets ? 2 * x->n_buckets : FIRST_BUCKETS;
    struct req **bucket = calloc(n, sizeof(struct req *));

    if (!bucket)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < x->n_buckets; i++) {
        for (struct req *r = x->bucket[i], *next; r; r = next) {
            next = r->id_next;
            put(bucket, n, r);
        }
    }
    free(x->bucket);
    x->bucket = bucket;
    x->n_buckets = n;
    return 0;
}

int req_index_add(struct req_index *x, struct req *r)
{
    if (x->n == x->n_buckets && x->n_buckets < MAX_BUCKETS && grow(x) < 0)
        return ERR_NOMEM;
    put(x->bucket, x->n_buckets, r);
    x->n++;
    return 0;
}

void req_index_remove(struct req_index *x, const struct req *r)
{
    struct req **at = &x->bucket[r->id & (x->n_buckets - 1)];

    while (*at != r)
        at = &(*at)->id_next;
    *at = r->id_next;
    x->n--;
}

struct req *req_index_find(const struct req_index *x, sched_id id)
{
    struct req *r = x->n_buckets ? x->bucket[id & (x->n_buckets - 1)] : NULL;

    while (r && r->id != id)
        r = r->id_next;
    return r;
}
