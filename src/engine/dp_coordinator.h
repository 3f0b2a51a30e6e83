/* The place where the instances of a data-parallel group know of each other: a thread of instance 0 that
 * listens at the group's address. Every instance, 0 too, is connected to it (dp_member.h).
 *
 *     GATHERING --all are ready--> OPENING --port--> MET --somebody is gone or has failed--> GATHERING
 *
 * Instances that do not go in step only learn who is up. For those that do, it calls the ranks to meet
 * when all are ready, starts a wave of steps when one of them has work, and ends the meeting when one is
 * gone. It computes nothing and waits for nobody. Internal to src/engine. */
#ifndef SLUICE_ENGINE_DP_COORDINATOR_H
#define SLUICE_ENGINE_DP_COORDINATOR_H

#include <stdint.h>

struct err;
struct dp_coordinator;

struct dp_coordinator_options {
    const char *host;
    uint16_t port; /* 0: any */
    const char *secret;
    uint32_t size;
};

/* ERR_INVAL: host is not an address of this host; ERR_BUSY: the port is in use. */
int dp_coordinator_open(struct dp_coordinator **out, const struct dp_coordinator_options *o,
                        struct err *e);
void dp_coordinator_close(struct dp_coordinator *c); /* NULL is fine */
uint16_t dp_coordinator_port(const struct dp_coordinator *c);

#endif
