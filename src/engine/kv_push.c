#include "engine/kv_push.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "transfer/transfer.h"

struct pushed {
    sched_id id; /* 0: a free place */
    char name[TRANSFER_ID_MAX];
    uint32_t n_tokens;
    bool grows;   /* the transfer knows of it */
    uint32_t end; /* of its chunk in the running plan; 0: it has none */
};

struct kv_push {
    uint32_t first_layer;
    struct transfer *t; /* of the running plan */
    atomic_uint n;      /* places taken; read without the lock */
    pthread_mutex_t lock;
    uint32_t max;
    struct pushed place[];
};

int kv_push_create(struct kv_push **out, uint32_t max, uint32_t first_layer, struct err *e)
{
    struct kv_push *p = calloc(1, sizeof *p + max * sizeof *p->place);

    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for KV that is pushed");
    p->max = max;
    p->first_layer = first_layer;
    pthread_mutex_init(&p->lock, NULL);
    *out = p;
    return 0;
}

void kv_push_destroy(struct kv_push *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->lock);
    free(p);
}

/* Under the lock. id 0: a free place. NULL. */
static struct pushed *find(struct kv_push *p, sched_id id)
{
    for (uint32_t i = 0; i < p->max; i++)
        if (p->place[i].id == id)
            return &p->place[i];
    return NULL;
}

void kv_push_add(struct kv_push *p, sched_id id, const char *name, uint32_t n_tokens)
{
    struct pushed *x;

    pthread_mutex_lock(&p->lock);
    x = find(p, 0);
    if (x) {
        *x = (struct pushed){ .id = id, .n_tokens = n_tokens };
        snprintf(x->name, sizeof x->name, "%s", name);
        p->n++;
    }
    pthread_mutex_unlock(&p->lock);
}

/* Under the lock. */
static void leave(struct kv_push *p, struct pushed *x)
{
    x->id = 0;
    x->end = 0;
    p->n--;
}

void kv_push_remove(struct kv_push *p, const char *name)
{
    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->max; i++)
        if (p->place[i].id && strcmp(p->place[i].name, name) == 0)
            leave(p, &p->place[i]);
    pthread_mutex_unlock(&p->lock);
}

/* The first chunk of a request: what is before it is in the prefix cache. */
static bool begin_growth(struct pushed *x, struct transfer *t, const struct plan_entry *en)
{
    int st = transfer_grow(t, x->name, en->blocks, en->n_blocks, x->n_tokens, en->start, 0);

    x->grows = st == 0;
    if (st < 0)
        log_debug("KV of '%s' is not sent before it is whole: %s", x->name, status_text(st));
    return x->grows;
}

bool kv_push_begin(struct kv_push *p, struct transfer *t, const struct plan *plan)
{
    bool any = false;

    if (atomic_load(&p->n) == 0 || !t)
        return false;
    pthread_mutex_lock(&p->lock);
    p->t = t;
    for (uint32_t i = 0; i < p->max; i++)
        p->place[i].end = 0;
    for (uint32_t i = 0; i < plan->n_entries; i++) {
        const struct plan_entry *en = &plan->entries[i];
        struct pushed *x = find(p, en->id);

        if (!x)
            continue;
        if (!x->grows && !begin_growth(x, t, en)) {
            leave(p, x);
            continue;
        }
        x->end = en->start + en->n;
        any = true;
    }
    pthread_mutex_unlock(&p->lock);
    return any;
}

void kv_push_layer(void *push, uint32_t layer)
{
    struct kv_push *p = push;

    pthread_mutex_lock(&p->lock);
    for (uint32_t i = 0; i < p->max; i++)
        if (p->place[i].end)
            transfer_grown(p->t, p->place[i].name, layer - p->first_layer, p->place[i].end);
    pthread_mutex_unlock(&p->lock);
}
