/* An instance's end of the connection to its data-parallel group's coordinator: a thread that keeps it,
 * comes back when it is lost, and remembers what was said. What it is told of: who is up; where to meet;
 * that a wave of steps begins; that the meeting is over. Internal to src/engine. */
#ifndef SLUICE_ENGINE_DP_MEMBER_H
#define SLUICE_ENGINE_DP_MEMBER_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/dp_note.h"

struct err;
struct dp_member;

struct dp_member_options {
    uint32_t rank, size;
    const char *own_host; /* the address that the connection leaves from; NULL: any */
    const char *host;     /* the coordinator's */
    uint16_t port;
    const char *secret;
    bool in_step; /* goes in step with the others, in a group */
    /* Called by the thread when something has changed that the engine thread waits for. */
    void (*wake)(void *arg);
    void *wake_arg;
};

int dp_member_open(struct dp_member **out, const struct dp_member_options *o, struct err *e);
/* Says that the rank goes on purpose. NULL is fine. */
void dp_member_close(struct dp_member *m);

/* What is known now. */
struct dp_view {
    bool connected;
    uint32_t asked;  /* counts the times after which the coordinator wants to hear DP_READY */
    uint64_t epoch;  /* of the last call to meet, 0 before the first */
    uint16_t port;   /* where to meet; 0: not called, or that meeting is over */
    uint64_t wave;   /* the last that began in this epoch */
    uint32_t absent; /* ranks that are not even there, as far as the coordinator knows */
    bool refused;    /* for good: rank 0 will not have this rank */
    char why[DP_NOTE_TEXT];     /* why the last meeting is over, or the rank is refused */
    char missing[DP_NOTE_TEXT]; /* who is waited for; "" if nobody is */
};
void dp_member_view(struct dp_member *m, struct dp_view *out);
/* Waits until something has changed since `seen` was taken, or for `seconds`. */
void dp_member_wait(struct dp_member *m, const struct dp_view *seen, double seconds);
/* up[r] for every rank below n. */
void dp_member_up(struct dp_member *m, bool *up, uint32_t n);

/* Says it if there is a connection; what is lost with one the next one does not need. */
void dp_member_say(struct dp_member *m, const struct dp_note *n);
/* Rank 0: the socket of the epoch's meeting; the caller's from then on, once. -1: there is none. */
int dp_member_take_listener(struct dp_member *m, uint64_t epoch);

#endif
