#include "transfer/lease.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void lease_table_init(struct lease_table *t)
{
    memset(t, 0, sizeof *t);
}

void lease_free(struct lease *l)
{
    if (!l)
        return;
    free(l->blocks);
    free(l->done);
    free(l);
}

void lease_table_finish(struct lease_table *t)
{
    while (t->first) {
        struct lease *l = t->first;

        t->first = l->next;
        lease_free(l);
    }
    lease_table_init(t);
}

/* FNV-1a. */
uint32_t lease_hash(const char *id)
{
    uint32_t h = 2166136261u;

    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 16777619u;
    return h;
}

static uint32_t bucket_of(const char *id)
{
    return lease_hash(id) % LEASE_BUCKETS;
}

static struct lease *lookup(const struct lease_table *t, const char *id)
{
    struct lease *l = t->bucket[bucket_of(id)];

    while (l && strcmp(l->id, id) != 0)
        l = l->next_in_bucket;
    return l;
}

struct lease *lease_find(const struct lease_table *t, const char *id)
{
    struct lease *l = lookup(t, id);

    return l && !l->ending ? l : NULL;
}

static void insert(struct lease_table *t, struct lease *l)
{
    struct lease **bucket = &t->bucket[bucket_of(l->id)];

    l->next_in_bucket = *bucket;
    *bucket = l;
    l->prev = t->last;
    if (t->last)
        t->last->next = l;
    else
        t->first = l;
    t->last = l;
    t->n++;
}

static void unlink_lease(struct lease_table *t, struct lease *l)
{
    struct lease **at = &t->bucket[bucket_of(l->id)];

    while (*at != l)
        at = &(*at)->next_in_bucket;
    *at = l->next_in_bucket;
    if (l->prev)
        l->prev->next = l->next;
    else
        t->first = l->next;
    if (l->next)
        l->next->prev = l->prev;
    else
        t->last = l->prev;
    t->n--;
}

int lease_add(struct lease_table *t, const char *id, const uint32_t *blocks, uint32_t n_blocks,
              uint32_t n_tokens, uint64_t user, double deadline)
{
    struct lease *l;

    if (!id[0] || strlen(id) >= TRANSFER_ID_MAX || n_blocks == 0 || n_tokens == 0)
        return ERR_INVAL;
    if (lookup(t, id))
        return ERR_EXISTS;
    if (t->n >= LEASE_MAX || n_blocks > LEASE_BLOCKS_MAX)
        return ERR_LIMIT;
    l = calloc(1, sizeof *l);
    if (!l || !(l->blocks = malloc(n_blocks * sizeof *blocks))) {
        lease_free(l);
        return ERR_NOMEM;
    }
    strcpy(l->id, id);
    memcpy(l->blocks, blocks, n_blocks * sizeof *blocks);
    l->n_blocks = n_blocks;
    l->n_tokens = n_tokens;
    l->user = user;
    l->deadline = deadline;
    insert(t, l);
    return 0;
}

int lease_grow(struct lease_table *t, const char *id, const uint32_t *blocks, uint32_t n_blocks,
               uint32_t n_tokens, uint64_t user, uint32_t n_layers, uint32_t done)
{
    uint32_t *by_layer = malloc(n_layers * sizeof *by_layer);
    struct lease *l;
    int st = by_layer ? lease_add(t, id, blocks, n_blocks, n_tokens, user, HUGE_VAL) : ERR_NOMEM;

    if (st < 0) {
        free(by_layer);
        return st;
    }
    l = lookup(t, id);
    l->growing = true;
    l->done = by_layer;
    l->n_layers = n_layers;
    for (uint32_t i = 0; i < n_layers; i++)
        by_layer[i] = done;
    return 0;
}

struct lease *lease_find_growing(const struct lease_table *t, const char *id)
{
    struct lease *l = lookup(t, id);

    return l && l->growing ? l : NULL;
}

void lease_grown(struct lease *l, uint32_t layer, uint32_t n_tokens)
{
    assert(l->growing && layer < l->n_layers);
    if (l->done[layer] < n_tokens)
        l->done[layer] = n_tokens;
}

void lease_complete(struct lease *l, double deadline)
{
    assert(l->growing);
    l->growing = false;
    l->deadline = deadline;
}

void lease_read_begin(struct lease *l)
{
    assert(!l->ending);
    l->readers++;
}

void lease_read_end(struct lease *l)
{
    assert(l->readers > 0);
    l->readers--;
}

void lease_end(struct lease *l, enum transfer_lease_end how)
{
    if (l->ending)
        return;
    l->ending = true;
    l->how = how;
}

void lease_end_all(struct lease_table *t, enum transfer_lease_end how)
{
    for (struct lease *l = t->first; l; l = l->next) {
        lease_end(l, how);
        l->growing = false;
    }
}

struct lease *lease_take_ended(struct lease_table *t, double now)
{
    for (struct lease *l = t->first; l; l = l->next) {
        if (l->readers > 0 || l->growing)
            continue;
        if (!l->ending && l->deadline <= now)
            lease_end(l, LEASE_EXPIRED);
        if (l->ending) {
            unlink_lease(t, l);
            return l;
        }
    }
    return NULL;
}

double lease_next(const struct lease_table *t)
{
    double next = HUGE_VAL;

    for (const struct lease *l = t->first; l; l = l->next)
        if (l->readers == 0 && !l->growing)
            next = fmin(next, l->ending ? 0 : l->deadline);
    return next;
}
