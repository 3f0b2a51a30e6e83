/* Names that have no lease yet, on a producer. A request may be known to the consumer before the prefill
 * has ended, or even begun: then the consumer asks by name, and waits. Pure, like lease.h.
 *
 *     expect --> coming --hold--> a lease        (the prefill is in hand: no deadline, its end is certain)
 *     ask    --> asked  --expect--> coming       (nobody here has heard of it: waits until a deadline)
 *     drop   --> failed                          (it will not come, or has been and gone: who asks is told)
 *     give_up: the consumer wants it no more; a lease of this name ends as soon as it begins
 *
 * What is not coming is forgotten at its deadline. */
#ifndef SLUICE_TRANSFER_AWAIT_H
#define SLUICE_TRANSFER_AWAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "transfer/transfer.h"

#define AWAIT_MAX     8192 /* names at a time; beyond, the oldest that is not coming is forgotten */
#define AWAIT_BUCKETS 1024

struct await {
    char id[TRANSFER_ID_MAX];
    bool coming, failed, given_up;
    unsigned char prompt[TRANSFER_PROMPT_BYTES]; /* where coming, or given up */
    double deadline;                             /* HUGE_VAL where coming */
    struct await *next_in_bucket, *next, *prev;
};

struct await_table {
    struct await *bucket[AWAIT_BUCKETS];
    struct await *first, *last; /* oldest first */
    uint32_t n;
    double next; /* no deadline is before this */
};

void await_table_init(struct await_table *t);
void await_table_finish(struct await_table *t);

const struct await *await_find(const struct await_table *t, const char *id); /* NULL */

/* ERR_INVAL (name empty or too long), ERR_EXISTS (coming already), ERR_LIMIT, ERR_NOMEM. */
int await_expect(struct await_table *t, const char *id, const unsigned char *prompt);
/* prompt: all zero for any. 0: wait, at most until the deadline unless it is coming. ERR_NOTFOUND: it
 * failed. ERR_MISMATCH: it is coming, but is another prompt's. ERR_INVAL, ERR_LIMIT, ERR_NOMEM. */
int await_ask(struct await_table *t, const char *id, const unsigned char *prompt, double deadline);
/* What there is no memory for is not remembered: then who asks waits until its deadline. */
void await_drop(struct await_table *t, const char *id, double deadline);
/* prompt: of the consumer, all zero for any; another prompt's wish does not count. */
void await_give_up(struct await_table *t, const char *id, const unsigned char *prompt,
                   double deadline);
/* Whether the digests are equal, or one of them is all zero. */
bool await_same_prompt(const unsigned char *a, const unsigned char *b);
/* A lease of this name begins: it is not awaited any more. Copies what is known of it. */
void await_hold(struct await_table *t, const char *id, struct await *out);

/* Forgets what is over by now. Whether there was any. */
bool await_expire(struct await_table *t, double now);

#endif
