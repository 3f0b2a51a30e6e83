/* The decode side of the form in which a proxy tells P and D of a request at the same time: D knows where
 * to ask (remote_bootstrap_addr), not yet whom to pull from. GET /query there, remembered for a moment,
 * fills in the rest of kv_transfer_params. The prefill side is /query itself, in api.c's table and at a
 * port of its own. Loop thread only. */
#ifndef SLUICE_SERVE_BOOTSTRAP_H
#define SLUICE_SERVE_BOOTSTRAP_H

#include "wire/kv_bootstrap.h"

struct bootstrap;
struct err;
struct loop;

/* timeout: to connect, and to answer. ERR_NOMEM, ERR_IO. */
int bootstrap_create(struct bootstrap **out, struct loop *l, double timeout, struct err *e);
/* Who still waits is told that it failed. NULL is fine. */
void bootstrap_destroy(struct bootstrap *b);

/* why: a sentence where st < 0, borrowed for the call. */
typedef void bootstrap_fn(void *arg, int st, const struct kv_bootstrap *found, const char *why);

/* Finds the prefill instance that p names by address and engine. Calls fn exactly once: before it
 * returns if the answer is at hand, else later. */
void bootstrap_find(struct bootstrap *b, const struct kv_params *p, bootstrap_fn *fn, void *arg);
/* What was remembered of this address was of no use. */
void bootstrap_forget(struct bootstrap *b, const char *address);

/* Whether p says only where to ask. */
bool bootstrap_needed(const struct kv_params *p);
/* Puts what was found into p. */
void bootstrap_fill(struct kv_params *p, const struct kv_bootstrap *found);

#endif
