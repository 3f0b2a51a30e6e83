/* KV transfer of an instance of one or more ranks, seen from rank 0: what is held, pulled and ended here is
 * held, pulled and ended on every rank, and a pull or a lease has ended when it has on all of them.
 *
 * The first rank that fails ends a pull on the others. A lease that ends on one rank, for whatever reason, ends
 * on all; DONE is said to the producer once, when all ranks have what they need. Any thread may call
 * anything; `ended` is called on a thread of the link, or of whoever calls kv_lead_arrived, _broken or
 * _close, and may not call back. */
#ifndef SLUICE_ENGINE_KV_LEAD_H
#define SLUICE_ENGINE_KV_LEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/kv_follow.h"
#include "transfer/transfer.h"

struct err;
struct kv_lead;

#define KV_TRACK_WHY_MAX 512

/* A pull, or a lease, on all ranks. The caller's memory, zeroed; in use from the call that begins it until
 * `ended` is called with it. */
struct kv_track {
    void *user;       /* the caller's */
    const char *name; /* of the lease; borrowed */
    /* the outcome of a pull */
    int status;
    char why[KV_TRACK_WHY_MAX]; /* a sentence where status < 0 */
    uint64_t bytes;             /* of all ranks */
    double seconds;             /* of the slowest */

    /* private */
    struct kv_track *next, **at;
    uint64_t id;
    bool is_lease, ending;
    bool here; /* rank 0's own part is not over */
    bool owes_done;
    double since;    /* when the other ranks were told to end it, or to pull */
    uint32_t n_left; /* ranks whose part is not over */
};

struct kv_lead_options {
    struct transfer_options transfer; /* of rank 0; the table of all ranks is made here */
    uint32_t n;                       /* ranks; 1: alone */
    double seconds;                   /* in which the others have to begin */
    kv_post_fn *post;
    void *post_arg;
    struct kv_push *push; /* NULL: nothing is. Borrowed */
    void (*ended)(void *arg, struct kv_track *t);
    void *arg;
};

/* Starts the transfer on the other ranks, then here. What they answer comes by kv_lead_arrived on another
 * thread, for which *out is set before they are asked. After a failure, too, *out is to be destroyed, when
 * nothing can arrive any more. */
int kv_lead_open(struct kv_lead **out, const struct kv_lead_options *o, struct err *e);
/* Ends all pulls (ERR_CANCELED) and leases; `ended` is called for each. NULL is fine. Nothing may
 * arrive while and after it is destroyed. */
void kv_lead_close(struct kv_lead *l);   /* the transfer; calls do nothing from now on */
void kv_lead_destroy(struct kv_lead *l); /* closes first */

void kv_lead_arrived(struct kv_lead *l, uint32_t from, const void *data, size_t bytes);
/* The other ranks are gone: what waits for them ends. */
void kv_lead_broken(struct kv_lead *l, const char *why);

/* Whether a rank has owed the end of a pull, or of a lease that is to end, for so many seconds. That may be a
 * long transfer, or a rank that is stuck: who has found that all are alive renews their time. Looks
 * once a second. */
bool kv_lead_is_overdue(struct kv_lead *l, double now, double seconds);
void kv_lead_renew(struct kv_lead *l, double now);

/* As in transfer.h, on all ranks. Where one fails here, nothing is tracked. */
int kv_lead_hold(struct kv_lead *l, struct kv_track *t, const uint32_t *blocks, uint32_t n_blocks,
                 uint32_t n_tokens);
int kv_lead_abort_hold(struct kv_lead *l, const char *name);
int kv_lead_expect(struct kv_lead *l, const char *name,
                   const unsigned char prompt[TRANSFER_PROMPT_BYTES]);
void kv_lead_drop(struct kv_lead *l, const char *name);
/* What is expected by this name is the request with this id in step plans, of which none has been sent yet: its
 * KV goes out while it is computed (kv_push.h). Until kv_lead_hold or kv_lead_drop. */
void kv_lead_grow(struct kv_lead *l, const char *name, uint64_t id, uint32_t n_tokens);
int kv_lead_pull(struct kv_lead *l, struct kv_track *t, const struct transfer_source *src,
                 const uint32_t *dst, uint32_t n_dst, uint32_t first, uint32_t n_tokens);
/* Whether DONE is still to be said of a pull that has succeeded. Then by this, with the same track. */
bool kv_lead_owes_done(const struct kv_track *t);
int kv_lead_done(struct kv_lead *l, struct kv_track *t, const struct transfer_source *src);
void kv_lead_cancel(struct kv_lead *l, struct kv_track *t);
int kv_lead_release_remote(struct kv_lead *l, const struct transfer_source *src);
int kv_lead_probe(struct kv_lead *l, const char *host, uint16_t port, struct err *e);

/* Sums over the ranks, as far as the others have told; leases, pulls and matches are rank 0's. */
void kv_lead_stats(struct kv_lead *l, struct transfer_stats *out);
/* Rank 0's; NULL before and after. For the thread that opens and closes. */
struct transfer *kv_lead_transfer(struct kv_lead *l);
/* The KV address of rank 0. */
const char *kv_lead_host(const struct kv_lead *l);
uint16_t kv_lead_port(const struct kv_lead *l);

#endif
