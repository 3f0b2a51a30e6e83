/* KV transfer on a rank other than 0: does what rank 0 says (kv_lead.h), and tells it what has come of it. */
#ifndef SLUICE_ENGINE_KV_FOLLOW_H
#define SLUICE_ENGINE_KV_FOLLOW_H

#include <stddef.h>
#include <stdint.h>

#include "transfer/transfer.h"

struct err;
struct kv_follow;
struct kv_push;

/* Sends bytes (copied) to another rank; any thread. */
typedef int kv_post_fn(void *arg, uint32_t to, const void *data, size_t bytes);

struct kv_follow_options {
    struct transfer_options transfer; /* of this rank; its engine id comes from rank 0. Copied */
    kv_post_fn *post;
    void *post_arg;
    struct kv_push *push; /* NULL: nothing is. Borrowed */
};

/* Opens nothing: the transfer begins when rank 0 says so. */
int kv_follow_create(struct kv_follow **out, const struct kv_follow_options *o, struct err *e);
/* Ends what runs, and tells of it: nothing is posted any more afterwards. Both take NULL. */
void kv_follow_close(struct kv_follow *f);
void kv_follow_destroy(struct kv_follow *f); /* closes first; nothing may arrive any more */
/* A message of rank 0; any thread. */
void kv_follow_arrived(struct kv_follow *f, const void *data, size_t bytes);
/* NULL before it begins and when closed. For the thread that closes. */
struct transfer *kv_follow_transfer(struct kv_follow *f);

#endif
