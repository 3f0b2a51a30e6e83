/* A small process that waits for the death of the one that started it, and then kills the process groups
 * that it was told of. The death signal of the kernel reaches children only; this reaches their
 * children, too, and works after a kill -9. */
#ifndef SLUICE_OPS_GUARD_H
#define SLUICE_OPS_GUARD_H

#include <stdint.h>
#include <sys/types.h>

struct err;

struct guard {
    pid_t pid; /* 0: none */
    int fd;    /* it lives as long as somebody holds this open; closed by exec */
};

/* For up to `slots` groups. It inherits the signal mask: signals that the caller has blocked do not end
 * it. */
int guard_start(struct guard *g, uint32_t slots, struct err *e);
/* The group in this slot; 0: it is gone. May be called in a child between fork and exec. */
void guard_tell(const struct guard *g, uint32_t slot, pid_t group);
/* Ends it, and kills the groups that are still in a slot. */
void guard_finish(struct guard *g);

#endif
