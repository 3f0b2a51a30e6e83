/* Notes between the instances of a data-parallel group and its coordinator, which is at instance 0: over
 * TCP, of one fixed size. They carry no tensors: who is there, when to meet, when to wake up.
 * Internal to src/engine. */
#ifndef SLUICE_ENGINE_DP_NOTE_H
#define SLUICE_ENGINE_DP_NOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/hash.h"

#define DP_NOTE_TEXT    200
#define DP_NONCE_BYTES  32
#define DP_DOOR_SECONDS 5.0 /* for a newcomer to show that it knows the secret */

enum dp_note_kind {
    DP_HELLO = 1, /* coordinator: a nonce in text */
    DP_ARRIVE, /* member: rank; wave: the group's size; epoch: a number of this process; about: whether
                   * it goes in step; text: the proof, then its name */
    DP_REFUSED, /* coordinator: text says why; n: it may come again later; the connection ends */
    DP_UP,      /* coordinator: rank is there; text: its address */
    DP_DOWN,    /* coordinator: rank is gone; text: why */
    DP_READY,   /* member: has loaded and is in no group; about: what all must agree on */
    DP_MISSING, /* coordinator: who is not ready, in text; n: how many of these are not even there */
    DP_OPEN,    /* coordinator to instance 0: open a port for the ranks to meet, as epoch */
    DP_OPENED,  /* instance 0: at port n. 0: it could not */
    DP_MEET,    /* coordinator: all ranks meet at port n, as epoch */
    DP_WAKE,    /* member: has work, and was idle since the end of wave */
    DP_START,   /* coordinator: wave begins */
    DP_BROKEN,  /* member: epoch is over for it; text: why */
    DP_OVER,    /* coordinator: epoch is over for all; text: why */
    DP_LEAVE,   /* member: goes on purpose */
};

struct dp_note {
    uint64_t magic;
    uint32_t kind, rank;
    uint64_t epoch, wave, about;
    uint32_t n;
    char text[DP_NOTE_TEXT];
};

/* A connection that receives notes piece by piece. */
struct dp_line {
    int fd;
    struct dp_note in;
    size_t have;
};

/* 1 and *out (its text ends), 0 if it is not whole yet, or ERR_CLOSED, ERR_BADMSG. Does not wait. */
int dp_note_take(struct dp_line *l, struct dp_note *out);
/* Does not wait: a reader that is so far behind that a note does not fit is as good as gone.
 * ERR_CLOSED. */
int dp_note_give(int fd, const struct dp_note *n);

/* What shows that a newcomer knows the secret: for nonce and rank; NULL is the empty secret. */
void dp_note_prove(struct hash256 *out, const char *secret, const unsigned char *nonce,
                   uint32_t rank);

/* The connection tells of a host that has vanished, too; and sends small notes at once. */
void dp_socket_settle(int fd);

#endif
