/* Processes that lost their parent and became children of this one, which is the reaper of its descendants
 * (PR_SET_CHILD_SUBREAPER): ending them, once everything is to end. */
#ifndef SLUICE_OPS_STRAYS_H
#define SLUICE_OPS_STRAYS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define STRAYS_MAX 1024 /* in one look; the next one sees more */

struct strays {
    pid_t seen[STRAYS_MAX]; /* in the last look */
    uint32_t n;
};

/* A look: each child that is not `known` gets SIGTERM in the first look that sees it, and SIGKILL if `kill`.
 * Returns their number; 0 where the kernel does not list children. */
uint32_t strays_end(struct strays *s, bool (*known)(void *arg, pid_t pid), void *arg, bool kill);

#endif
