/* The processes of an instance on this host. `sluice serve` forks them before it has a thread, a loop or
 * a link; each is this program again, without another command line to read.
 *
 * Rank 0 is the process that was started: it has the API and looks after the others. On a host without
 * rank 0 the process that was started only looks after its ranks. A rank that dies ends the instance;
 * when the process that was started dies, however it dies, its ranks die with it. */
#ifndef SLUICE_MAIN_SERVE_RANKS_H
#define SLUICE_MAIN_SERVE_RANKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct ranks;
struct serve_config;

/* Starts this host's other ranks, and where rank 0 is here opens the socket at which it will wait for
 * them. Returns in every process: *rank is that of the caller; the one that was started has `out`, in
 * the others it is NULL. In those cfg->ranks has their own rank. On failure nothing runs. */
int ranks_start(struct ranks **out, struct serve_config *cfg, uint32_t *rank, struct err *e);

/* Whether there is no other process to look after. */
bool ranks_alone(const struct ranks *r);
/* Looks which ranks have ended. True if one did that should not have, and then why has the sentence, of
 * the first of them. */
bool ranks_look(struct ranks *r, char *why, size_t cap);
/* From now on ranks may end: they were told to, or are about to be. */
void ranks_expect_end(struct ranks *r);
/* SIGKILL to all that are left. */
void ranks_kill(struct ranks *r);
/* Waits for the ranks to end, at most so long, then kills what is left. True if all ended by
 * themselves and well. */
bool ranks_wait(struct ranks *r, double seconds);
/* After ranks_wait. NULL is fine. */
void ranks_free(struct ranks *r);

/* Looks after the ranks of a host without rank 0 until all have ended; the exit status. Rank 0 tells
 * them to end; a signal to this process only says that this will come soon, a second one ends them at
 * once. */
int ranks_supervise(struct ranks *r, double patience);

#endif
