/* One end of a transfer for the tests: the object, its pool, and the events it reported. */
#ifndef SLUICE_TESTS_TRANSFER_SIDE_H
#define SLUICE_TESTS_TRANSFER_SIDE_H

#include <pthread.h>
#include <stdbool.h>

#include "transfer/transfer.h"

#define SIDE_EVENTS_MAX 256
#define SIDE_SECONDS    20.0 /* longest wait for anything */

struct side {
    struct transfer *t;
    struct transfer_options opt;
    bool shared; /* the pool may be mapped by peers */
    unsigned char *pool;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct transfer_event events[SIDE_EVENTS_MAX];
    char why[1200]; /* of the last PULLED with an error */
    int n;
};

/* 3 layers, 3 heads of 16, float16, 64 blocks; short timeouts. Change s->opt, then side_start. */
void side_init(struct side *s, bool produce, uint32_t block_tokens, bool shared);
void side_start(struct side *s); /* the pool is filled: with numbers (producer), or with 0xee */
int side_try_start(struct side *s, struct err *e);
void side_finish(struct side *s);

int side_count(struct side *s); /* events so far */
/* The n-th event (from 0), waited for. */
struct transfer_event side_event(struct side *s, int n);
/* The first event of this kind for this user, waited for. */
struct transfer_event side_wait(struct side *s, enum transfer_event_kind kind, uint64_t user);

/* Waits until nothing is held, pulled or connected as far as stats tell. */
void side_wait_idle(struct side *s);

/* A source that names the producer's lease `id` with these blocks. Borrows. */
struct transfer_source side_source(const struct side *p, const char *id, const uint32_t *blocks,
                                   uint32_t n_blocks);

/* Offset of an element of the pool, by token, as kernel.h's layout says, without the code under test. */
uint64_t side_offset(const struct kv_layout *l, uint32_t layer, uint32_t kv, const uint32_t *blocks,
                     uint32_t head, uint32_t token, uint32_t dim);
/* Whether tokens first .. n-1 are equal on both sides, every element of the layers that both have. */
bool side_equal(const struct side *p, const uint32_t *pb, const struct side *d, const uint32_t *db,
                uint32_t first, uint32_t n);
/* How many bytes of the pool are not 0xee. */
uint64_t side_written(const struct side *d);

int count_fds(void);
int count_threads(void);

#endif
