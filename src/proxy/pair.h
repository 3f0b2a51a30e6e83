/* The prefill of a request whose two legs are sent at once: P computes while D, which knows the same
 * transfer_id, waits for what comes of it. What fails on P, D is told by P; so nothing here ends the
 * request. */
#ifndef SLUICE_PROXY_PAIR_H
#define SLUICE_PROXY_PAIR_H

#include <stdbool.h>

struct buf;
struct pair;
struct pd_job;
struct proxy;

/* Sends P's leg of the job. NULL: no prefill instance is active, or no memory; D computes the prompt then. */
struct pair *pair_start(struct pd_job *j);
/* Appends the kv_transfer_params for D's leg. The buffer's status. */
int pair_params(const struct pair *p, struct buf *out);
/* D's leg is over: if it came to its end P's answer is waited for; else its prefill, or the lease that
 * came of it, is given up. NULL is fine. */
void pair_end(struct pair *p, bool succeeded);
/* Ends all that still wait. */
void pair_cancel_all(struct proxy *p);

#endif
