#include "engine/kv_lead.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/status.h"
#include "engine/kv_push.h"
#include "engine/kv_wire.h"
#include "sys/clock.h"

/* What one of the other ranks has told. */
struct follower {
    bool opened;
    int status; /* of its opening */
    char why[KV_WIRE_WHY_MAX];
    struct transfer_rank place;
    struct transfer_stats stats;
};

/* Lock order: `lock`, then what the transfer and the pipe lock inside their calls. `ended` is called
 * without it. */
struct kv_lead {
    struct kv_lead_options o;
    struct transfer *t; /* NULL before and after */
    char host[KV_WIRE_HOST_MAX];
    uint16_t port;

    pthread_mutex_t lock;
    pthread_cond_t opened;
    struct kv_track *tracks;
    uint64_t next_id;
    double next_look; /* for what is overdue */
    bool closed;      /* the other ranks are told, and answer, no more */
    char why_closed[KV_TRACK_WHY_MAX];
    struct follower *follower; /* [n]; [0] unused */
};

/* ---- to the others ---- */

static int post_to(struct kv_lead *l, uint32_t rank, const struct kv_wire *m, const uint32_t *src,
                   const uint32_t *dst)
{
    size_t n;
    void *bytes;
    int st = ERR_NOMEM;

    if (l->closed)
        return ERR_CLOSED;
    bytes = kv_wire_make(&n, m, src, dst);
    if (bytes)
        st = l->o.post(l->o.post_arg, rank, bytes, n);
    free(bytes);
    return st;
}

/* A failure shows when the rank does not answer: the group is broken then. */
static void post_to_all(struct kv_lead *l, const struct kv_wire *m, uint32_t except)
{
    for (uint32_t r = 1; r < l->o.n; r++)
        if (r != except && post_to(l, r, m, NULL, NULL) < 0)
            log_debug("KV transfer: rank %u could not be told", r);
}

static void set_text(char *out, size_t cap, const char *text)
{
    snprintf(out, cap, "%s", text ? text : "");
}

/* ---- tracks; under the lock ---- */

static void track(struct kv_lead *l, struct kv_track *t, bool is_lease, uint32_t n)
{
    t->id = ++l->next_id;
    t->is_lease = is_lease;
    t->here = true;
    t->ending = false;
    t->n_left = n;
    t->since = clock_now();
    t->next = l->tracks;
    t->at = &l->tracks;
    if (t->next)
        t->next->at = &t->next;
    l->tracks = t;
}

static void untrack(struct kv_track *t)
{
    *t->at = t->next;
    if (t->next)
        t->next->at = t->at;
    t->next = NULL;
    t->at = NULL;
}

static struct kv_track *find(const struct kv_lead *l, uint64_t id, bool is_lease)
{
    struct kv_track *t = l->tracks;

    while (t && (t->id != id || t->is_lease != is_lease))
        t = t->next;
    return t;
}

/* Ends it on all ranks but the one that has ended already. */
static void end_others(struct kv_lead *l, struct kv_track *t, uint32_t rank)
{
    struct kv_wire m = { .kind = t->is_lease ? KV_END : KV_CANCEL, .id = t->id };

    if (t->ending)
        return;
    t->ending = true;
    t->since = clock_now();
    set_text(m.name, sizeof m.name, t->name);
    post_to_all(l, &m, rank);
    if (rank == 0 || !t->here || !l->t)
        return;
    if (t->is_lease)
        transfer_abort_hold(l->t, t->name);
    else
        transfer_cancel(l->t, t->id);
}

/* One rank's part is over. Whether it was the last: then the track is out of the list. */
static bool part_ended(struct kv_track *t, uint32_t rank)
{
    if (rank == 0)
        t->here = false;
    if (--t->n_left > 0)
        return false;
    untrack(t);
    return true;
}

static bool pull_ended(struct kv_lead *l, struct kv_track *t, uint32_t rank,
                       const struct transfer_event *ev)
{
    t->bytes += ev->bytes;
    t->seconds = ev->seconds > t->seconds ? ev->seconds : t->seconds;
    if (ev->status < 0 && t->status == 0) {
        t->status = ev->status;
        set_text(t->why, sizeof t->why, ev->why ? ev->why : status_text(ev->status));
        end_others(l, t, rank);
    }
    return part_ended(t, rank);
}

static void on_end(struct kv_lead *l, uint32_t rank, const struct transfer_event *ev)
{
    bool is_lease = ev->kind == TRANSFER_LEASE_END, over = false;
    struct kv_track *t;

    pthread_mutex_lock(&l->lock);
    t = find(l, ev->user, is_lease);
    if (t && is_lease) {
        end_others(l, t, rank);
        over = part_ended(t, rank);
    } else if (t) {
        over = pull_ended(l, t, rank, ev);
    }
    pthread_mutex_unlock(&l->lock);
    if (over)
        l->o.ended(l->o.arg, t);
}

static void on_event(void *arg, const struct transfer_event *ev)
{
    on_end(arg, 0, ev);
}

/* ---- opening ---- */

static void on_opened(struct kv_lead *l, uint32_t from, const struct kv_wire *m)
{
    struct follower *f = &l->follower[from];

    pthread_mutex_lock(&l->lock);
    f->opened = true;
    f->status = m->status;
    set_text(f->why, sizeof f->why, m->u.tell.why);
    f->place = m->u.tell.place;
    pthread_cond_signal(&l->opened);
    pthread_mutex_unlock(&l->lock);
}

/* The first rank that has not opened, or failed to; n: all have. Under the lock. */
static uint32_t not_open(const struct kv_lead *l)
{
    for (uint32_t r = 1; r < l->o.n; r++)
        if (!l->follower[r].opened || l->follower[r].status < 0)
            return r;
    return l->o.n;
}

static struct timespec after(double seconds)
{
    struct timespec ts;

    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_sec += (time_t)seconds + 1;
    return ts;
}

static int wait_for_all(struct kv_lead *l, struct err *e)
{
    struct timespec until = after(l->o.seconds);
    uint32_t r;
    int st = 0, waited = 0;

    pthread_mutex_lock(&l->lock);
    while ((r = not_open(l)) < l->o.n && !l->follower[r].opened && !l->closed && waited == 0)
        waited = pthread_cond_timedwait(&l->opened, &l->lock, &until);
    if (r < l->o.n && l->follower[r].opened)
        st = err_set(e, l->follower[r].status, "rank %u: %s", r, l->follower[r].why);
    else if (l->closed)
        st = err_set(e, ERR_CLOSED, "%s", l->why_closed);
    else if (r < l->o.n)
        st = err_set(e, ERR_TIMEOUT, "rank %u did not open its KV transfer within %.0f s", r,
                     l->o.seconds);
    pthread_mutex_unlock(&l->lock);
    return st;
}

static int open_others(struct kv_lead *l, struct err *e)
{
    struct kv_wire m = { .kind = KV_OPEN };
    int st;

    set_text(m.engine_id, sizeof m.engine_id, l->o.transfer.engine_id);
    for (uint32_t r = 1; r < l->o.n; r++) {
        pthread_mutex_lock(&l->lock);
        st = post_to(l, r, &m, NULL, NULL);
        pthread_mutex_unlock(&l->lock);
        if (st < 0)
            return err_set(e, st, "rank %u cannot be told to open its KV transfer: %s", r,
                           status_text(st));
    }
    return wait_for_all(l, e);
}

/* Rank 0 is the last: it tells where the others are. */
static int open_own(struct kv_lead *l, struct err *e)
{
    struct transfer_rank *ranks = calloc(l->o.n, sizeof *ranks);
    struct transfer_options *o = &l->o.transfer;
    int st;

    if (!ranks)
        return err_set(e, ERR_NOMEM, "no memory for KV transfer");
    for (uint32_t r = 1; r < l->o.n; r++)
        ranks[r] = l->follower[r].place;
    for (uint32_t r = 1; o->produce && r < l->o.n; r++)
        log_info("KV transfer: rank %u is at %s:%u", r, ranks[r].host, ranks[r].port);
    o->ranks = ranks;
    o->n_ranks = l->o.n;
    st = transfer_create(&l->t, o, on_event, l, e);
    memset(o, 0, sizeof *o); /* its texts and tables are the caller's */
    free(ranks);
    if (st < 0)
        return st;
    set_text(l->host, sizeof l->host, transfer_host(l->t));
    l->port = transfer_port(l->t);
    return 0;
}

int kv_lead_open(struct kv_lead **out, const struct kv_lead_options *o, struct err *e)
{
    struct kv_lead *l = calloc(1, sizeof *l);
    int st;

    if (l)
        l->follower = calloc(o->n, sizeof *l->follower);
    if (!l || !l->follower) {
        free(l);
        *out = NULL;
        return err_set(e, ERR_NOMEM, "no memory for KV transfer");
    }
    l->o = *o;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->opened, NULL);
    *out = l;
    st = o->n > 1 ? open_others(l, e) : 0;
    return st < 0 ? st : open_own(l, e);
}

/* ---- ending ---- */

/* What the other ranks still owe is counted as ended. A track that is over by this, or NULL; under the
 * lock. */
static struct kv_track *give_up_one(struct kv_lead *l, const char *why)
{
    for (struct kv_track *t = l->tracks; t; t = t->next) {
        if (t->n_left == t->here)
            continue;
        t->n_left = t->here;
        if (!t->is_lease && t->status == 0) {
            t->status = ERR_CLOSED;
            set_text(t->why, sizeof t->why, why);
        }
        if (t->here) {
            end_others(l, t, UINT32_MAX);
            continue;
        }
        untrack(t);
        return t;
    }
    return NULL;
}

void kv_lead_broken(struct kv_lead *l, const char *why)
{
    struct kv_track *t;

    if (!l)
        return;
    do {
        pthread_mutex_lock(&l->lock);
        if (!l->closed)
            set_text(l->why_closed, sizeof l->why_closed, why);
        l->closed = true;
        t = give_up_one(l, why);
        pthread_cond_signal(&l->opened);
        pthread_mutex_unlock(&l->lock);
        if (t)
            l->o.ended(l->o.arg, t);
    } while (t);
}

void kv_lead_close(struct kv_lead *l)
{
    struct transfer *t;

    if (!l)
        return;
    kv_lead_broken(l, "the instance is closing");
    pthread_mutex_lock(&l->lock);
    t = l->t;
    l->t = NULL;
    pthread_mutex_unlock(&l->lock);
    transfer_destroy(t);
}

void kv_lead_destroy(struct kv_lead *l)
{
    if (!l)
        return;
    kv_lead_close(l);
    pthread_cond_destroy(&l->opened);
    pthread_mutex_destroy(&l->lock);
    free(l->follower);
    free(l);
}

/* ---- from the others ---- */

static void on_ended(struct kv_lead *l, uint32_t from, const struct kv_wire *m)
{
    const struct transfer_event ev = {
        .kind = m->kind == KV_PULLED ? TRANSFER_PULLED : TRANSFER_LEASE_END,
        .user = m->id,
        .status = m->status,
        .why = m->u.tell.why[0] ? m->u.tell.why : NULL,
        .bytes = m->u.tell.bytes,
        .seconds = m->u.tell.seconds,
    };

    pthread_mutex_lock(&l->lock);
    l->follower[from].stats = m->u.tell.stats;
    pthread_mutex_unlock(&l->lock);
    on_end(l, from, &ev);
}

void kv_lead_arrived(struct kv_lead *l, uint32_t from, const void *data, size_t bytes)
{
    const uint32_t *src, *dst;
    struct kv_wire m;

    if (kv_wire_read(&m, &src, &dst, data, bytes) < 0 || from == 0 || from >= l->o.n)
        log_warning("KV transfer: a message of rank %u is not understood", from);
    else if (m.kind == KV_OPENED)
        on_opened(l, from, &m);
    else if (m.kind == KV_PULLED || m.kind == KV_LEASE_ENDED)
        on_ended(l, from, &m);
    else
        log_warning("KV transfer: message %u is none of rank %u's", m.kind, from);
}

/* ---- producer ---- */

/* A rank that cannot be told ends the lease everywhere. */
static void hold_others(struct kv_lead *l, struct kv_track *t, const struct kv_wire *m,
                        const uint32_t *blocks)
{
    for (uint32_t r = 1; r < l->o.n; r++)
        if (post_to(l, r, m, blocks, NULL) < 0) {
            t->n_left--; /* the own part is left */
            end_others(l, t, r);
        }
}

int kv_lead_hold(struct kv_lead *l, struct kv_track *t, const uint32_t *blocks, uint32_t n_blocks,
                 uint32_t n_tokens)
{
    struct kv_wire m = { .kind = KV_HOLD };
    int st = ERR_CLOSED;

    if (l->o.push)
        kv_push_remove(l->o.push, t->name);
    pthread_mutex_lock(&l->lock);
    track(l, t, true, l->o.n);
    if (l->t)
        st = transfer_hold(l->t, t->name, blocks, n_blocks, n_tokens, t->id);
    if (st < 0) {
        untrack(t);
    } else {
        m.id = t->id;
        set_text(m.name, sizeof m.name, t->name);
        m.u.ask.n_src = n_blocks;
        m.u.ask.n_tokens = n_tokens;
        hold_others(l, t, &m, blocks);
    }
    pthread_mutex_unlock(&l->lock);
    return st;
}

int kv_lead_abort_hold(struct kv_lead *l, const char *name)
{
    int st;

    pthread_mutex_lock(&l->lock);
    st = l->t ? transfer_abort_hold(l->t, name) : ERR_NOTFOUND; /* the others follow when it ends */
    pthread_mutex_unlock(&l->lock);
    return st;
}

int kv_lead_expect(struct kv_lead *l, const char *name,
                   const unsigned char prompt[TRANSFER_PROMPT_BYTES])
{
    struct kv_wire m = { .kind = KV_EXPECT };
    int st;

    set_text(m.name, sizeof m.name, name);
    memcpy(m.u.ask.prompt, prompt, sizeof m.u.ask.prompt);
    pthread_mutex_lock(&l->lock);
    st = l->t ? transfer_expect(l->t, name, prompt) : ERR_CLOSED;
    if (st == 0)
        post_to_all(l, &m, 0);
    pthread_mutex_unlock(&l->lock);
    return st;
}

void kv_lead_drop(struct kv_lead *l, const char *name)
{
    struct kv_wire m = { .kind = KV_DROP };

    set_text(m.name, sizeof m.name, name);
    if (l->o.push)
        kv_push_remove(l->o.push, name);
    pthread_mutex_lock(&l->lock);
    if (l->t) {
        transfer_stop_growing(l->t, name);
        transfer_drop(l->t, name);
    }
    post_to_all(l, &m, 0);
    pthread_mutex_unlock(&l->lock);
}

void kv_lead_grow(struct kv_lead *l, const char *name, uint64_t id, uint32_t n_tokens)
{
    struct kv_wire m = { .kind = KV_GROW, .id = id };

    set_text(m.name, sizeof m.name, name);
    m.u.ask.n_tokens = n_tokens;
    kv_push_add(l->o.push, id, name, n_tokens);
    pthread_mutex_lock(&l->lock);
    post_to_all(l, &m, 0);
    pthread_mutex_unlock(&l->lock);
}

/* ---- consumer ---- */

static void pull_others(struct kv_lead *l, struct kv_track *t, const struct kv_wire *m,
                        const uint32_t *src, const uint32_t *dst)
{
    for (uint32_t r = 1; r < l->o.n; r++) {
        int st = post_to(l, r, m, src, dst);

        if (st == 0)
            continue;
        t->n_left--; /* the own part is left */
        if (t->status == 0) {
            t->status = st;
            snprintf(t->why, sizeof t->why, "rank %u cannot be told to pull: %s", r,
                     status_text(st));
        }
        end_others(l, t, r);
    }
}

static void ask_others(struct kv_lead *l, struct kv_track *t, const struct transfer_source *src,
                       const uint32_t *dst, uint32_t n_dst, uint32_t first, uint32_t n_tokens)
{
    struct kv_wire m = { .kind = KV_PULL, .id = t->id };

    set_text(m.name, sizeof m.name, src->transfer_id);
    set_text(m.engine_id, sizeof m.engine_id, src->engine_id);
    set_text(m.u.ask.host, sizeof m.u.ask.host, src->host);
    m.u.ask.port = src->port;
    m.u.ask.by_name = src->prompt != NULL;
    if (src->prompt)
        memcpy(m.u.ask.prompt, src->prompt, sizeof m.u.ask.prompt);
    m.u.ask.n_src = src->n_blocks;
    m.u.ask.n_dst = n_dst;
    m.u.ask.first = first;
    m.u.ask.n_tokens = n_tokens;
    m.u.ask.block_tokens = src->block_tokens;
    pull_others(l, t, &m, src->blocks, dst);
}

int kv_lead_pull(struct kv_lead *l, struct kv_track *t, const struct transfer_source *src,
                 const uint32_t *dst, uint32_t n_dst, uint32_t first, uint32_t n_tokens)
{
    struct transfer_source s = *src;
    bool all = l->o.n > 1 && first < n_tokens; /* with nothing to fetch, rank 0 says so alone */
    int st = ERR_CLOSED;

    s.keep = all;
    pthread_mutex_lock(&l->lock);
    track(l, t, false, all ? l->o.n : 1);
    t->owes_done = all;
    t->status = 0;
    t->bytes = 0;
    t->seconds = 0;
    if (l->t && !(all && l->closed))
        st = transfer_pull(l->t, &s, dst, n_dst, first, n_tokens, t->id);
    if (st < 0)
        untrack(t);
    else if (all)
        ask_others(l, t, &s, dst, n_dst, first, n_tokens);
    pthread_mutex_unlock(&l->lock);
    return st;
}

bool kv_lead_owes_done(const struct kv_track *t)
{
    return t->status == 0 && t->owes_done;
}

int kv_lead_done(struct kv_lead *l, struct kv_track *t, const struct transfer_source *src)
{
    int st = ERR_CLOSED;

    pthread_mutex_lock(&l->lock);
    track(l, t, false, 1);
    t->owes_done = false;
    t->bytes = 0;
    t->seconds = 0;
    if (l->t)
        st = transfer_done(l->t, src, t->id);
    if (st < 0)
        untrack(t);
    pthread_mutex_unlock(&l->lock);
    return st;
}

void kv_lead_cancel(struct kv_lead *l, struct kv_track *t)
{
    pthread_mutex_lock(&l->lock);
    if (t->at)
        end_others(l, t, UINT32_MAX);
    pthread_mutex_unlock(&l->lock);
}

int kv_lead_release_remote(struct kv_lead *l, const struct transfer_source *src)
{
    int st;

    pthread_mutex_lock(&l->lock);
    st = l->t ? transfer_release_remote(l->t, src) : ERR_CLOSED;
    pthread_mutex_unlock(&l->lock);
    return st;
}

int kv_lead_probe(struct kv_lead *l, const char *host, uint16_t port, struct err *e)
{
    return transfer_probe(l->t, host, port, e);
}

/* ---- time ---- */

bool kv_lead_is_overdue(struct kv_lead *l, double now, double seconds)
{
    bool is = false;

    pthread_mutex_lock(&l->lock);
    if (now >= l->next_look) {
        l->next_look = now + 1;
        for (const struct kv_track *t = l->tracks; t && !is; t = t->next)
            is = t->n_left > t->here && (t->ending || !t->is_lease) && now - t->since > seconds;
    }
    pthread_mutex_unlock(&l->lock);
    return is;
}

void kv_lead_renew(struct kv_lead *l, double now)
{
    pthread_mutex_lock(&l->lock);
    for (struct kv_track *t = l->tracks; t; t = t->next)
        t->since = now;
    pthread_mutex_unlock(&l->lock);
}

/* ---- figures ---- */

void kv_lead_stats(struct kv_lead *l, struct transfer_stats *out)
{
    memset(out, 0, sizeof *out);
    pthread_mutex_lock(&l->lock);
    if (l->t)
        transfer_stats(l->t, out);
    for (uint32_t r = 1; r < l->o.n; r++) {
        const struct transfer_stats *s = &l->follower[r].stats;

        out->bytes_sent += s->bytes_sent;
        out->bytes_early += s->bytes_early;
        out->bytes_received += s->bytes_received;
        out->checksum_errors += s->checksum_errors;
        out->protocol_errors += s->protocol_errors;
        out->refused += s->refused;
        out->peers += s->peers;
    }
    pthread_mutex_unlock(&l->lock);
}

struct transfer *kv_lead_transfer(struct kv_lead *l)
{
    return l->t;
}

const char *kv_lead_host(const struct kv_lead *l)
{
    return l->host;
}

uint16_t kv_lead_port(const struct kv_lead *l)
{
    return l->port;
}
