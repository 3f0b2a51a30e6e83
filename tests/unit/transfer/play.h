/* The scenes that the fault tests share: a pair of sides with one prompt of 60 tokens in 4 blocks, and a
 * producer played by hand. */
#ifndef SLUICE_TESTS_TRANSFER_PLAY_H
#define SLUICE_TESTS_TRANSFER_PLAY_H

#include "raw.h"
#include "side.h"

extern const uint32_t play_blocks[4];

struct play {
    struct side p, d; /* p is only a description: the raw peer plays it */
    struct raw r;
    struct message_pull pull;
};

/* p and d as a pair. Both have the same blocks, play_blocks. */
void play_hold(struct side *p, const char *id, uint64_t user);
void play_pull(struct side *d, const struct side *p, const char *id, uint64_t user);
void play_pair(struct side *p, struct side *d);
void play_pair_finish(struct side *p, struct side *d);

/* d pulls from the raw peer, as user 9, and has got a GRANT. */
void play_start(struct play *s, double pull_timeout);
void play_finish(struct play *s);
void play_grant(struct play *s);
/* Batch b of 6: 4 pieces of 1536 bytes of value b, with right checksums; flip: one bit is changed
 * after they were taken. */
void play_batch(struct play *s, uint64_t b, bool flip);

#endif
