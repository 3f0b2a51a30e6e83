#include <stdlib.h>

#include "sys/clock.h"
#include "transfer/internal.h"

/* Only this file writes into the consumer's blocks, and only while a job is in t->jobs: once its
 * TRANSFER_PULLED has been reported, nothing can land in them. */

/* ---- GRANT ---- */

/* The lease's blocks must be those that the request names: else the request and the lease are not of
 * the same prompt. */
static int same_blocks(const struct job *j, const unsigned char *ids)
{
    uint32_t needed = (j->n_tokens + j->src_tokens - 1) / j->src_tokens;

    for (uint32_t i = j->first / j->src_tokens; i < needed; i++)
        if (message_get_u32(ids + 4ull * i) != j->src[i])
            return 0;
    return 1;
}

/* By name: whatever blocks the lease has. The part owns its own then. */
static int take_blocks(struct job *j, const unsigned char *ids, uint32_t n)
{
    uint32_t *src = malloc((n + 1ull) * sizeof *src);

    if (!src)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++)
        src[i] = message_get_u32(ids + 4ull * i);
    free(j->src); /* of a connection before */
    j->src = src;
    j->n_src = n;
    return 0;
}

static int prepare(struct job *j, const struct message_grant *g)
{
    uint64_t batches;

    j->checksums = g->checksums;
    j->batch_pieces = g->batch_pieces;
    j->pieces_left = j->from.n_pieces;
    batches = (j->from.n_pieces + g->batch_pieces - 1) / g->batch_pieces;
    j->batches_left = batches;
    j->seen = calloc(batches / 64 + 1, sizeof *j->seen);
    if (!j->seen)
        return ERR_NOMEM;
    j->bulk_expected = j->in_place ? 0
                                   : TRANSFER_CREDITS * g->batch_pieces * (j->from.piece_bytes + 8);
    return 0;
}

/* Parts of pulls that were given up may still be on their way: twice as much is let in. */
static void expect_bulk(struct job *j)
{
    struct conn *c = j->conn;

    c->bulk_expected += j->bulk_expected;
    link_allow_bulk(c->link, 2 * (LINK_BULK_MAX + c->bulk_expected));
}

void receive_grant(struct transfer *t, struct job *j, const struct message_grant *g,
                   const unsigned char *ids, size_t len)
{
    struct conn *c = j->conn;

    if (j->state != JOB_ASKED || g->batch_pieces == 0 || len != 4ull * g->n_blocks ||
        (uint64_t)g->n_blocks * j->src_tokens < j->n_tokens) {
        conn_violation(c, "bad GRANT");
        return;
    }
    if (j->by_name && take_blocks(j, ids, g->n_blocks) < 0) {
        job_fail(t, j, ERR_NOMEM, "out of memory");
        return;
    }
    if (!j->by_name && !same_blocks(j, ids)) {
        job_fail(t, j, ERR_MISMATCH, "the lease holds other blocks than the request names");
        return;
    }
    if (plan_init(&j->from, &c->peer.layout, &j->to.range, j->src, j->n_src) < 0 ||
        (!j->in_place && j->from.piece_bytes * g->batch_pieces > LINK_BULK_MAX)) {
        conn_violation(c, "bad GRANT");
        return;
    }
    if (prepare(j, g) < 0) {
        job_fail(t, j, ERR_NOMEM, "out of memory");
        return;
    }
    expect_bulk(j);
    j->state = JOB_MOVING;
    j->progress = clock_now();
    if (j->by_name && !j->whole->granted)
        j->whole->started = j->progress; /* the wait was the prefill's time */
    j->whole->granted = true;
}

/* ---- DATA ---- */

static bool batch_fits(const struct job *j, const struct message_data *d, size_t len)
{
    uint64_t batch = d->piece / j->batch_pieces, left = j->from.n_pieces - d->piece;
    uint64_t bytes = (j->checksums ? 8 : 0) + (j->in_place ? 0 : j->from.piece_bytes);

    if (d->piece >= j->from.n_pieces || d->piece % j->batch_pieces != 0)
        return false;
    if (d->n != (left < j->batch_pieces ? left : j->batch_pieces) || len != d->n * bytes)
        return false;
    return !(j->seen[batch / 64] >> batch % 64 & 1);
}

/* Writes the pieces of a batch. ERR_CORRUPT if what stands there now is not what the producer had. */
static int write_batch(const struct transfer *t, const struct job *j, const struct message_data *d,
                       const unsigned char *bulk)
{
    const unsigned char *bytes = bulk + (j->checksums ? 8ull * d->n : 0);

    for (uint32_t i = 0; i < d->n; i++) {
        uint64_t piece = d->piece + i;
        struct checksum sum, *use = j->checksums ? &sum : NULL;

        checksum_init(&sum, piece);
        if (j->in_place)
            plan_copy(&j->to, t->opt.pool, &j->from, j->conn->pool, piece, use);
        else
            plan_scatter(&j->to, t->opt.pool, piece, bytes + i * j->from.piece_bytes, use);
        if (use && checksum_value(use) != message_get_u64(bulk + 8ull * i))
            return ERR_CORRUPT;
    }
    return 0;
}

void receive_data(struct transfer *t, struct job *j, const struct message_data *d,
                  const unsigned char *bulk, size_t len)
{
    uint64_t batch;

    if (j->state != JOB_MOVING || !batch_fits(j, d, len)) {
        conn_violation(j->conn, "DATA that was not asked for");
        return;
    }
    if (write_batch(t, j, d, bulk) < 0) {
        transfer_count(t, &t->stats.checksum_errors, 1);
        job_fail(t, j, ERR_CORRUPT, "a block's checksum is wrong");
        return;
    }
    batch = d->piece / j->batch_pieces;
    j->seen[batch / 64] |= 1ull << batch % 64;
    j->pieces_left -= d->n;
    j->batches_left--;
    j->bytes += d->n * j->from.piece_bytes;
    j->progress = clock_now();
    if (j->batches_left >= TRANSFER_CREDITS)
        conn_send_id(j->conn, MESSAGE_CREDIT, j->id);
    if (j->pieces_left == 0) {
        j->state = JOB_FINISHING;
        job_send_lease(j, MESSAGE_DONE);
    }
}
