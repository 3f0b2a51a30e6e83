/* Prefills whose KV goes out while they are computed: on each rank, which of the requests in the step plans
 * they are, and how far the layers of this rank have come. Rank 0 says on all ranks which request is one,
 * before its first plan, and when it is one no more; between that the computing thread tells the
 * transfer. */
#ifndef SLUICE_ENGINE_KV_PUSH_H
#define SLUICE_ENGINE_KV_PUSH_H

#include <stdbool.h>
#include <stdint.h>

#include "sched/sched.h"

struct err;
struct kv_push;
struct transfer;

/* max: requests at a time, as many as run. first_layer: of this rank. */
int kv_push_create(struct kv_push **out, uint32_t max, uint32_t first_layer, struct err *e);
void kv_push_destroy(struct kv_push *p); /* NULL is fine */

/* The request's lease will be `name`, of n_tokens tokens. Any thread. Where there are too many it is not
 * pushed: its KV goes when the lease is held. */
void kv_push_add(struct kv_push *p, sched_id id, const char *name, uint32_t n_tokens);
/* It is held, or will not be. When this has returned no lease of the name begins to grow. */
void kv_push_remove(struct kv_push *p, const char *name);

/* The computing thread: a plan is about to be run. Whether some of it is pushed: then kv_push_layer(p,
 * layer) is to be called when its keys and values are there in this layer (by its number in the model), in any
 * thread that the plan runs on. */
bool kv_push_begin(struct kv_push *p, struct transfer *t, const struct plan *plan);
void kv_push_layer(void *push, uint32_t layer);

#endif
