#include "play.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <string.h>

const uint32_t play_blocks[4] = { 7, 3, 12, 5 };

void play_hold(struct side *p, const char *id, uint64_t user)
{
    assert_int_equal(transfer_hold(p->t, id, play_blocks, 4, 60, user), 0);
}

void play_pull(struct side *d, const struct side *p, const char *id, uint64_t user)
{
    struct transfer_source src = side_source(p, id, play_blocks, 4);

    assert_int_equal(transfer_pull(d->t, &src, play_blocks, 4, 0, 60, user), 0);
}

void play_pair(struct side *p, struct side *d)
{
    side_init(p, true, 16, true);
    side_init(d, false, 16, true);
    side_start(p);
    side_start(d);
}

void play_pair_finish(struct side *p, struct side *d)
{
    side_finish(d);
    side_finish(p);
}

void play_grant(struct play *s)
{
    struct message m = { .kind = MESSAGE_GRANT };
    unsigned char ids[16];

    for (int i = 0; i < 4; i++)
        message_put_u32(ids + 4 * i, play_blocks[i]);
    m.u.grant.pull = s->pull.pull;
    m.u.grant.n_blocks = 4;
    m.u.grant.batch_pieces = 4;
    m.u.grant.checksums = true;
    raw_send(&s->r, &m, ids, sizeof ids);
}

void play_start(struct play *s, double pull_timeout)
{
    struct transfer_source src = { .host = "127.0.0.1",
                                   .engine_id = "engine-p",
                                   .transfer_id = "x",
                                   .blocks = play_blocks,
                                   .n_blocks = 4,
                                   .block_tokens = 16 };

    side_init(&s->p, true, 16, true);
    side_init(&s->d, false, 16, true);
    s->d.opt.pull_timeout = pull_timeout;
    side_start(&s->d);
    raw_init(&s->r, &s->p);
    src.port = raw_listen(&s->r);
    assert_int_equal(transfer_pull(s->d.t, &src, play_blocks, 4, 0, 60, 9), 0);
    raw_accept(&s->r);
    s->pull = raw_expect(&s->r, MESSAGE_PULL)->u.pull;
    play_grant(s);
}

void play_finish(struct play *s)
{
    raw_finish(&s->r);
    side_finish(&s->d);
}

/* Sends batch b (4 pieces of 1536 bytes of value b) with right checksums; flip: one bit is changed
 * after they were taken. */
void play_batch(struct play *s, uint64_t b, bool flip)
{
    enum { PIECE = 1536 };
    static unsigned char bulk[4 * (8 + PIECE)];
    struct message m = { .kind = MESSAGE_DATA };

    memset(bulk + 32, (int)b, 4 * PIECE);
    for (uint64_t i = 0; i < 4; i++) {
        struct checksum sum;

        checksum_init(&sum, 4 * b + i);
        checksum_add(&sum, bulk + 32 + i * PIECE, PIECE);
        message_put_u64(bulk + 8 * i, checksum_value(&sum));
    }
    if (flip)
        bulk[32 + 2 * PIECE + 77] ^= 0x10;
    m.u.data.pull = s->pull.pull;
    m.u.data.piece = 4 * b;
    m.u.data.n = 4;
    raw_send(&s->r, &m, bulk, sizeof bulk);
}
