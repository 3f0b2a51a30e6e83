#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sys/clock.h"
#include "transfer/internal.h"

static struct reader *find_reader(const struct transfer *t, const struct conn *c, uint64_t pull)
{
    struct reader *r = t->readers;

    while (r && (r->conn != c || r->pull != pull))
        r = r->next;
    return r;
}

static bool lease_ending(struct transfer *t, const struct lease *l)
{
    bool ending;

    pthread_mutex_lock(&t->lock);
    ending = l->ending;
    pthread_mutex_unlock(&t->lock);
    return ending;
}

static bool lease_is_growing(struct transfer *t, const struct lease *l)
{
    bool growing;

    pthread_mutex_lock(&t->lock);
    growing = l->growing;
    pthread_mutex_unlock(&t->lock);
    return growing;
}

/* Takes the read out. */
static void leave_lease(struct transfer *t, struct reader *r)
{
    struct reader **at = &t->readers;

    while (*at != r)
        at = &(*at)->next;
    *at = r->next;
    t->n_readers--;
    pthread_mutex_lock(&t->lock);
    lease_read_end(r->lease);
    pthread_mutex_unlock(&t->lock);
    free(r->sent);
    free(r);
}

/* The same, and the lease ends. */
static void end_reader(struct transfer *t, struct reader *r, enum transfer_lease_end how)
{
    pthread_mutex_lock(&t->lock);
    lease_end(r->lease, how);
    pthread_mutex_unlock(&t->lock);
    leave_lease(t, r);
}

void serve_conn_lost(struct conn *c)
{
    struct transfer *t = c->t;
    struct reader *next;

    for (struct reader *r = t->readers; r; r = next) {
        next = r->next;
        if (r->conn == c)
            end_reader(t, r, LEASE_ABORTED);
    }
    wait_conn_lost(c);
}

void serve_result(struct conn *c, uint64_t id, int status, const char *text)
{
    struct message m = { .kind = MESSAGE_RESULT };

    m.u.result.id = id;
    m.u.result.status = status;
    snprintf(m.u.result.text, sizeof m.u.result.text, "%s", text);
    conn_send(c, &m);
}

/* ---- PULL ---- */

static void on_bulk_sent(void *arg, int status)
{
    struct buffer *b = arg;
    struct reader *r = b->t->readers;

    while (r && r->serial != b->read)
        r = r->next;
    if (r && status == 0)
        r->granted = true;
    transfer_buffer_return(b);
}

static int send_grant(struct reader *r)
{
    struct message m = { .kind = MESSAGE_GRANT };
    unsigned char head[MESSAGE_MAX];
    uint32_t n = r->lease->n_blocks;
    struct buffer *b = transfer_buffer(r->conn->t, 4ull * n);
    size_t len;
    int st;

    if (!b)
        return ERR_NOMEM;
    b->read = r->serial;
    for (uint32_t i = 0; i < n; i++)
        message_put_u32(b->data + 4ull * i, r->lease->blocks[i]);
    m.u.grant.pull = r->pull;
    m.u.grant.n_blocks = n;
    m.u.grant.batch_pieces = r->batch_pieces;
    m.u.grant.checksums = r->checksums;
    len = message_encode(head, &m);
    st = link_send(r->conn->link, head, len, b->data, 4ull * n, on_bulk_sent, b);
    if (st < 0)
        transfer_buffer_return(b);
    return st;
}

static uint32_t smaller(uint64_t a, uint64_t b)
{
    return (uint32_t)(a < b ? a : b);
}

/* Whether the pull is one that this side's peers may ask for: its cells are the smaller block. */
static bool cells_fit(const struct conn *c, const struct plan_range *r)
{
    return r->cell_tokens == smaller(c->t->opt.layout.block_tokens, c->peer.layout.block_tokens);
}

static uint32_t batch_pieces(const struct transfer *t, const struct plan *p,
                             const struct message_pull *m)
{
    uint64_t n = (m->in_place ? TRANSFER_READ_BYTES : TRANSFER_SENT_BYTES) / p->piece_bytes;

    if (t->opt.batch_blocks > 0)
        n = smaller(n, t->opt.batch_blocks);
    n = smaller(n, m->batch_pieces);
    return n > 0 ? (uint32_t)n : 1;
}

/* The lease as a pinned reader of it, or NULL. */
static struct lease *take_lease(struct transfer *t, const char *id)
{
    struct lease *l;

    pthread_mutex_lock(&t->lock);
    l = lease_find(&t->leases, id);
    if (l)
        lease_read_begin(l);
    pthread_mutex_unlock(&t->lock);
    return l;
}

static void drop_lease(struct transfer *t, struct lease *l)
{
    pthread_mutex_lock(&t->lock);
    lease_read_end(l);
    pthread_mutex_unlock(&t->lock);
}

/* The batches of a lease that grows are sent as they become ready. Of one plane at most and small, so that
 * few wait for two layers or two chunks. False: out of memory. */
static bool follow_growth(struct reader *r, const struct message_pull *m)
{
    uint64_t batches;

    if (!lease_is_growing(r->conn->t, r->lease))
        return true;
    r->batch_pieces = smaller(r->batch_pieces, r->plan.n_cells);
    r->batch_pieces = smaller(r->batch_pieces, 1 + TRANSFER_GROW_BYTES / r->plan.piece_bytes);
    batches = (r->plan.n_pieces + r->batch_pieces - 1) / r->batch_pieces;
    r->sent = calloc(batches / 64 + 1, sizeof *r->sent);
    r->note_seconds = m->wait_ms > 0 ? m->wait_ms / 1000.0 : r->conn->t->opt.pull_timeout / 4;
    r->note_at = clock_now() + r->note_seconds;
    return r->sent != NULL;
}

static struct reader *make_reader(struct conn *c, const struct message_pull *m, struct lease *l,
                                  const struct plan *plan)
{
    struct transfer *t = c->t;
    struct reader *r = t->n_readers < TRANSFER_READS_MAX ? calloc(1, sizeof *r) : NULL;

    if (!r)
        return NULL;
    r->conn = c;
    r->lease = l;
    r->plan = *plan;
    r->serial = ++t->next_serial;
    r->pull = m->pull;
    r->credits = m->credits;
    r->in_place = m->in_place;
    r->checksums = t->opt.checksums || c->peer.checksums;
    r->batch_pieces = batch_pieces(t, plan, m);
    if (!follow_growth(r, m)) {
        free(r);
        return NULL;
    }
    r->progress = clock_now();
    r->next = t->readers;
    t->readers = r;
    t->n_readers++;
    return r;
}

/* By name the consumer cannot know what the lease holds: it must be its own prompt's. */
static bool same_prompt(const struct lease *l, const struct message_pull *m)
{
    static const unsigned char any[TRANSFER_PROMPT_BYTES];

    if (memcmp(m->prompt, any, sizeof any) == 0)
        return true;
    return l->named && memcmp(l->prompt, m->prompt, sizeof l->prompt) == 0 &&
           m->range.n_tokens <= l->n_tokens;
}

void serve_pull(struct conn *c, const struct message_pull *m)
{
    struct transfer *t = c->t;
    struct lease *l = take_lease(t, m->lease);
    struct plan plan;
    struct reader *r;

    if (!l && m->wait_ms > 0) {
        wait_ask(c, m);
        return;
    }
    if (!l) {
        serve_result(c, m->pull, ERR_NOTFOUND, "no such lease: it has ended, or was never given");
        return;
    }
    if (!same_prompt(l, m)) {
        drop_lease(t, l);
        serve_result(c, m->pull, ERR_MISMATCH, "the lease of this name is another prompt's");
        return;
    }
    if (!cells_fit(c, &m->range) || m->range.n_tokens > l->n_tokens ||
        plan_init(&plan, &t->opt.layout, &m->range, l->blocks, l->n_blocks) < 0) {
        drop_lease(t, l);
        conn_violation(c, "PULL outside of its lease");
        return;
    }
    r = make_reader(c, m, l, &plan);
    if (!r) {
        drop_lease(t, l);
        serve_result(c, m->pull, ERR_LIMIT, "the producer serves as many pulls as it can");
    } else if (send_grant(r) < 0) {
        end_reader(t, r, LEASE_ABORTED);
        serve_result(c, m->pull, ERR_NOMEM, "the producer is out of memory");
    }
}

static void on_pull(struct conn *c, const struct message_pull *m)
{
    if (find_reader(c->t, c, m->pull) || wait_has(c, m->pull) || m->batch_pieces == 0 ||
        m->credits == 0 || m->credits > TRANSFER_CREDITS_MAX)
        conn_violation(c, "PULL with bad numbers");
    else
        serve_pull(c, m);
}

/* ---- the other messages ---- */

static void on_credit(struct conn *c, uint64_t pull)
{
    struct reader *r = find_reader(c->t, c, pull);

    if (!r) /* it has been stopped meanwhile */
        return;
    if (r->credits >= TRANSFER_CREDITS_MAX) {
        conn_violation(c, "more credits than there may be");
        return;
    }
    r->credits++;
    r->progress = clock_now();
}

static void on_stop(struct conn *c, uint64_t pull)
{
    struct reader *r = find_reader(c->t, c, pull);

    if (r)
        end_reader(c->t, r, LEASE_ABORTED);
    else
        wait_stop(c, pull);
}

/* Ends the lease and, as its reader says so, this connection's read of it. */
static int end_lease(struct conn *c, const char *id, enum transfer_lease_end how)
{
    struct transfer *t = c->t;
    struct lease *l;

    pthread_mutex_lock(&t->lock);
    l = lease_find(&t->leases, id);
    if (l)
        lease_end(l, how);
    pthread_mutex_unlock(&t->lock);
    for (struct reader *r = t->readers; l && r; r = r->next)
        if (r->conn == c && r->lease == l) {
            end_reader(t, r, how);
            break;
        }
    return l ? 0 : ERR_NOTFOUND;
}

/* The end of one read of a lease that others read, too. */
static int end_read(struct conn *c, const struct message_name *m)
{
    struct transfer *t = c->t;
    struct reader *r = find_reader(t, c, m->id);
    bool stood;

    if (!r)
        return ERR_NOTFOUND;
    stood = !lease_ending(t, r->lease);
    leave_lease(t, r);
    return stood ? 0 : ERR_NOTFOUND;
}

static void on_done(struct conn *c, const struct message_name *m)
{
    int st = m->keep ? end_read(c, m) : end_lease(c, m->lease, LEASE_DONE);

    serve_result(c, m->id, st, st < 0 ? "the lease ended before the pull was done" : "");
}

/* What will not be fetched need not be kept; by name, not even what is still to come. */
static void on_release(struct conn *c, const struct message_name *m)
{
    struct transfer *t = c->t;
    const struct lease *l;
    bool is_meant;

    pthread_mutex_lock(&t->lock);
    l = lease_find(&t->leases, m->lease);
    is_meant = l && (!m->by_name || (l->named && await_same_prompt(l->prompt, m->prompt)));
    if (!l && m->by_name)
        await_give_up(&t->awaits, m->lease, m->prompt, clock_now() + t->opt.pull_timeout);
    pthread_mutex_unlock(&t->lock);
    if (is_meant)
        end_lease(c, m->lease, LEASE_ABORTED);
}

static void on_map(struct conn *c)
{
    const struct transfer *t = c->t;
    struct message m = { .kind = MESSAGE_RANK };

    if (!t->ranks) {
        conn_violation(c, "MAP asked of a rank that is not the first");
        return;
    }
    for (uint32_t i = 0; i < t->n_ranks; i++) {
        m.u.rank.rank = i;
        m.u.rank.is = t->ranks[i];
        conn_send(c, &m);
    }
}

void serve_message(struct conn *c, const struct message *m)
{
    switch (m->kind) {
    case MESSAGE_MAP:
        on_map(c);
        break;
    case MESSAGE_PULL:
        on_pull(c, &m->u.pull);
        break;
    case MESSAGE_CREDIT:
        on_credit(c, m->u.id);
        break;
    case MESSAGE_DONE:
        on_done(c, &m->u.name);
        break;
    case MESSAGE_STOP:
        on_stop(c, m->u.id);
        break;
    case MESSAGE_RELEASE:
        on_release(c, &m->u.name);
        break;
    default:
        conn_violation(c, message_name(m->kind));
    }
}

/* ---- sending ---- */

/* Checksums, then the bytes unless the reader fetches them itself. Returns the length. */
static size_t fill_batch(const struct reader *r, uint64_t first, uint32_t n, unsigned char *out)
{
    const struct plan *p = &r->plan;
    const void *pool = r->conn->t->opt.pool;
    unsigned char *bytes = out + (r->checksums ? 8ull * n : 0);

    for (uint32_t i = 0; i < n; i++) {
        uint64_t piece = first + i;
        struct checksum sum;

        checksum_init(&sum, piece);
        if (!r->in_place) {
            plan_gather(p, pool, piece, bytes, r->checksums ? &sum : NULL);
            bytes += p->piece_bytes;
        } else if (r->checksums) {
            plan_check(p, pool, piece, &sum);
        }
        if (r->checksums)
            message_put_u64(out + 8ull * i, checksum_value(&sum));
    }
    return (size_t)(bytes - out);
}

/* Whether the KV of these pieces is there. Under the lock. */
static bool is_done(const struct reader *r, uint64_t first, uint32_t n)
{
    const struct plan *p = &r->plan;
    const struct lease *l = r->lease;

    if (!l->growing)
        return true;
    for (uint64_t piece = first; piece < first + n; piece++) {
        uint32_t plane = (uint32_t)(piece / p->n_cells);
        uint32_t layer = p->range.first_layer - p->layout.first_layer + plane / p->layout.planes;
        uint64_t end = (p->first_cell + piece % p->n_cells + 1) * p->range.cell_tokens;

        if (l->done[layer] < (end < p->range.n_tokens ? end : p->range.n_tokens))
            return false;
    }
    return true;
}

static bool is_sent(const struct reader *r, uint64_t piece)
{
    uint64_t batch = piece / r->batch_pieces;

    return r->sent && r->sent[batch / 64] >> batch % 64 & 1;
}

static uint32_t pieces_from(const struct reader *r, uint64_t piece)
{
    return smaller(r->batch_pieces, r->plan.n_pieces - piece);
}

/* The first batch that is ready and not sent. False: there is none now. */
static bool next_batch(struct transfer *t, struct reader *r, uint64_t *out)
{
    uint64_t piece;
    bool found = false;

    while (r->next_piece < r->plan.n_pieces && is_sent(r, r->next_piece))
        r->next_piece += pieces_from(r, r->next_piece);
    pthread_mutex_lock(&t->lock);
    for (piece = r->next_piece; piece < r->plan.n_pieces; piece += r->batch_pieces) {
        found = !is_sent(r, piece) && is_done(r, piece, pieces_from(r, piece));
        if (found)
            break;
    }
    pthread_mutex_unlock(&t->lock);
    *out = piece;
    return found;
}

/* Whether the prompt, of which there is a lease already, is still computed here. Under the lock. */
static bool is_early(const struct transfer *t, const struct lease *l)
{
    uint32_t n = kv_layout_main_layers(&t->opt.layout);

    return l->growing && n > 0 && l->done[n - 1] < l->n_tokens;
}

static void note_sent(struct transfer *t, struct reader *r, uint64_t piece, uint32_t n)
{
    uint64_t batch = piece / r->batch_pieces, bytes = n * r->plan.piece_bytes;

    if (r->sent)
        r->sent[batch / 64] |= 1ull << batch % 64;
    else
        r->next_piece += n;
    r->credits--;
    pthread_mutex_lock(&t->lock);
    t->stats.bytes_sent += bytes;
    t->stats.bytes_early += is_early(t, r->lease) ? bytes : 0;
    pthread_mutex_unlock(&t->lock);
}

static int send_batch(struct reader *r, uint64_t piece)
{
    struct transfer *t = r->conn->t;
    struct message m = { .kind = MESSAGE_DATA };
    uint32_t n = pieces_from(r, piece);
    uint64_t piece_bytes = r->in_place ? 0 : r->plan.piece_bytes;
    struct buffer *b = transfer_buffer(t, n * (8 + piece_bytes));
    unsigned char head[MESSAGE_MAX];
    size_t len, bulk;
    int st;

    if (!b)
        return ERR_NOMEM;
    b->read = r->serial;
    bulk = fill_batch(r, piece, n, b->data);
    m.u.data.pull = r->pull;
    m.u.data.piece = piece;
    m.u.data.n = n;
    len = message_encode(head, &m);
    st = link_send(r->conn->link, head, len, b->data, bulk, on_bulk_sent, b);
    if (st < 0) {
        transfer_buffer_return(b);
        return st;
    }
    note_sent(t, r, piece, n);
    return 0;
}

static bool can_send(const struct reader *r)
{
    return r->granted && !r->told && r->credits > 0 && r->next_piece < r->plan.n_pieces;
}

static void stop_reader(struct reader *r, int status, const char *text)
{
    r->told = true;
    serve_result(r->conn, r->pull, status, text);
}

/* One batch for each read in turn, so that a long one does not hold up the others. */
bool serve_step(struct transfer *t, double now)
{
    int made = 0;
    uint64_t piece;

    for (struct reader *r = t->readers; r && made < TRANSFER_ROUND; r = r->next)
        if (can_send(r) && next_batch(t, r, &piece)) {
            made++;
            r->progress = now;
            if (send_batch(r, piece) < 0)
                stop_reader(r, ERR_NOMEM, "the producer could not send");
        }
    return made > 0;
}

/* ---- time ---- */

static void report_ended(struct transfer *t, double now)
{
    struct lease *l;

    for (;;) {
        struct transfer_event ev = { .kind = TRANSFER_LEASE_END };

        pthread_mutex_lock(&t->lock);
        l = lease_take_ended(&t->leases, now);
        if (l && (l->named || t->opt.rank > 0)) { /* who asks for it again shall not wait */
            await_drop(&t->awaits, l->id, now + t->opt.pull_timeout);
            t->awaits_changed = true;
        }
        t->stats.leases = t->leases.n;
        if (l && l->how == LEASE_EXPIRED)
            t->stats.leases_expired++;
        pthread_mutex_unlock(&t->lock);
        if (!l)
            return;
        ev.user = l->user;
        ev.end = l->how;
        lease_free(l);
        transfer_emit(t, &ev);
    }
}

/* A read in place goes on until the reader says STOP; what is sent has been copied already. */
static void check_reader(struct transfer *t, struct reader *r, double now)
{
    if (!r->told && lease_ending(t, r->lease)) {
        stop_reader(r, ERR_CANCELED, "the producer ended the lease");
        r->progress = now;
    }
    if (r->sent && !r->told && lease_is_growing(t, r->lease)) {
        r->progress = now; /* the prefill's time */
        if (r->note_at <= now) {
            conn_send_id(r->conn, MESSAGE_WAIT, r->pull);
            r->note_at = now + r->note_seconds;
        }
    } else if (r->sent) {
        r->note_at = HUGE_VAL;
    }
    if (r->told && !r->in_place)
        end_reader(t, r, LEASE_ABORTED);
    else if (r->progress + t->opt.pull_timeout <= now && !r->conn->why.text[0])
        conn_fail(r->conn, ERR_TIMEOUT, "a pull made no progress");
}

void serve_timers(struct transfer *t, double now)
{
    struct reader *next;

    for (struct reader *r = t->readers; r; r = next) {
        next = r->next;
        check_reader(t, r, now);
    }
    report_ended(t, now);
    wait_timers(t, now);
}

double serve_next(struct transfer *t)
{
    double next;

    pthread_mutex_lock(&t->lock);
    next = lease_next(&t->leases);
    pthread_mutex_unlock(&t->lock);
    for (struct reader *r = t->readers; r; r = r->next) {
        next = fmin(next, r->progress + t->opt.pull_timeout);
        if (r->sent)
            next = fmin(next, r->note_at);
    }
    return fmin(next, wait_next(t));
}

void serve_finish(struct transfer *t)
{
    wait_finish(t);
    while (t->readers)
        end_reader(t, t->readers, LEASE_SHUTDOWN);
    pthread_mutex_lock(&t->lock);
    lease_end_all(&t->leases, LEASE_SHUTDOWN);
    pthread_mutex_unlock(&t->lock);
    report_ended(t, 0);
}
