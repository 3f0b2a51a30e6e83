/* One rank of sluice launch: the template's process, its group, and what they write. Internal to
 * launch_*.c. */
#ifndef SLUICE_OPS_LAUNCH_RANK_H
#define SLUICE_OPS_LAUNCH_RANK_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/buf.h"
#include "ops/lines.h"

struct err;
struct guard;
struct launch_options;

enum { LAUNCH_STDOUT, LAUNCH_STDERR, LAUNCH_STREAMS };

struct launch_rank {
    uint32_t rank;
    pid_t pid;              /* of the template, and its group; 0: never started */
    bool led;               /* the template has not ended yet */
    bool gone;              /* nobody is left in the group */
    bool killed;            /* its time was over */
    double kill_at;         /* the group gets SIGKILL then; 0: it was not asked to end */
    int fd[LAUNCH_STREAMS]; /* -1: closed */
    struct lines lines[LAUNCH_STREAMS];
    int log; /* -1: none */
};

void launch_rank_init(struct launch_rank *r);   /* one that was never started */
void launch_rank_finish(struct launch_rank *r); /* its descriptors and buffers, not its process */

/* Starts the i-th local rank. The guard hears of it. On failure nothing is left open. */
int launch_rank_start(struct launch_rank *r, const struct launch_options *o, uint32_t i,
                      const struct guard *g, struct err *e);
/* Takes what the rank wrote to a stream and appends the lines to out; stops when there is no more, or out
 * has more than `enough` bytes. */
void launch_rank_read(struct launch_rank *r, int stream, struct buf *out, size_t enough);

#endif
