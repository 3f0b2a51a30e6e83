#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sys/clock.h"
#include "transfer/internal.h"

void job_free(struct job *j)
{
    if (!j)
        return;
    if (j->kind != JOB_PART || j->by_name)
        free(j->src);
    if (j->kind != JOB_PART)
        free(j->dst);
    free(j->seen);
    free(j);
}

static struct job *find_job(const struct transfer *t, uint64_t id)
{
    struct job *j = t->jobs;

    while (j && j->id != id)
        j = j->next;
    return j;
}

static void unlink_job(struct transfer *t, struct job *j)
{
    struct job **at = &t->jobs;

    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
}

static void report_probe(struct transfer *t, struct probe *p, int status, const char *text)
{
    if (!p)
        return;
    pthread_mutex_lock(&t->lock);
    p->status = status;
    if (status < 0)
        err_set(&p->e, status, "%s", text);
    p->is_over = true;
    pthread_cond_signal(&p->over);
    pthread_mutex_unlock(&t->lock);
}

static void count_pull(struct transfer *t, const struct job *j, int status, double seconds)
{
    pthread_mutex_lock(&t->lock);
    t->stats.pulls--;
    if (status == 0)
        t->stats.pulls_ok++;
    else
        t->stats.pulls_failed++;
    t->stats.bytes_received += j->bytes;
    t->stats.pull_seconds += seconds;
    pthread_mutex_unlock(&t->lock);
}

/* Out of the list; its connection forgets it. */
static void take_out(struct transfer *t, struct job *j)
{
    unlink_job(t, j);
    if (j->conn)
        j->conn->bulk_expected -= j->bulk_expected;
}

static void finish_part(struct transfer *t, struct job *j, int status, const char *text)
{
    struct job *whole = j->whole;
    bool is_only = j->is_only;

    take_out(t, j);
    whole->bytes += j->bytes;
    job_free(j);
    if (status < 0)
        job_finish(t, whole, status, text);
    else
        parts_ended(t, whole, is_only);
}

void job_finish(struct transfer *t, struct job *j, int status, const char *text)
{
    struct transfer_event ev = {
        .kind = TRANSFER_PULLED,
        .user = j->user,
        .status = status,
        .why = status < 0 ? text : NULL,
        .seconds = clock_now() - j->started,
    };

    if (j->kind == JOB_PART) {
        finish_part(t, j, status, text);
        return;
    }
    parts_drop(t, j);
    ev.bytes = j->bytes;
    take_out(t, j);
    pthread_mutex_lock(&t->lock);
    t->n_jobs--;
    pthread_mutex_unlock(&t->lock);
    if (j->kind == JOB_PROBE)
        report_probe(t, j->probe, status, text);
    if (j->kind == JOB_PULL) {
        count_pull(t, j, status, ev.seconds);
        transfer_emit(t, &ev);
    }
    job_free(j);
}

/* What the producer serves shall be read no more. */
static void send_stop(const struct job *j)
{
    if (j->conn && (j->state == JOB_ASKED || j->state == JOB_MOVING || j->state == JOB_FINISHING))
        conn_send_id(j->conn, MESSAGE_STOP, j->id);
}

void job_fail(struct transfer *t, struct job *j, int status, const char *why)
{
    struct err e;

    err_set(&e, status, "KV pull of '%s' from %s:%u: %s", j->lease, j->host, j->port, why);
    send_stop(j);
    job_finish(t, j, status, e.text);
}

void job_drop(struct transfer *t, struct job *j)
{
    send_stop(j);
    take_out(t, j);
    if (j->whole)
        j->whole->bytes += j->bytes;
    job_free(j);
}

/* ---- asking ---- */

void job_send_lease(struct job *j, enum message_kind kind)
{
    struct message m = { .kind = kind };

    m.u.name.id = j->id;
    m.u.name.keep = j->kind == JOB_PART && !j->is_only;
    m.u.name.by_name = j->by_name;
    memcpy(m.u.name.prompt, j->prompt, sizeof m.u.name.prompt);
    strcpy(m.u.name.lease, j->lease);
    conn_send(j->conn, &m);
}

static uint32_t cell_tokens(const struct job *j)
{
    uint32_t own = j->conn->t->opt.layout.block_tokens;

    return own < j->src_tokens ? own : j->src_tokens;
}

/* Often enough that a producer that has gone silent is told from one that has nothing yet. */
static uint32_t wait_ms(const struct transfer *t)
{
    double ms = t->opt.pull_timeout * 1000 / 4;

    return ms < 1 ? 1 : ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

static void send_pull(struct job *j)
{
    const struct transfer *t = j->conn->t;
    struct message m = { .kind = MESSAGE_PULL };
    struct message_pull *p = &m.u.pull;

    p->pull = j->id;
    strcpy(p->lease, j->lease);
    p->range = j->to.range;
    p->in_place = j->in_place;
    p->batch_pieces = t->opt.batch_blocks > 0 ? t->opt.batch_blocks : UINT32_MAX;
    p->credits = TRANSFER_CREDITS;
    if (j->waits)
        p->wait_ms = wait_ms(t);
    if (j->by_name)
        memcpy(p->prompt, j->prompt, sizeof p->prompt);
    conn_send(j->conn, &m);
}

/* Whether the rank is what rank 0 has said of it. */
static int check_rank(const struct job *j, struct err *e)
{
    const struct identity *p = &j->conn->peer;
    const struct kv_layout *l = &p->layout;
    const struct rank_part *r = &j->part;

    if (p->rank == r->rank && l->first_layer <= r->first_layer &&
        (uint64_t)l->first_layer + l->n_layers >= (uint64_t)r->first_layer + r->n_layers &&
        l->first_head <= r->first_head &&
        (uint64_t)l->first_head + l->kv_heads >= (uint64_t)r->first_head + r->n_heads)
        return 0;
    return err_set(e, ERR_MISMATCH,
                   "rank 0 of the producer says that its rank %u is there with layers %u to %u and "
                   "KV heads %u to %u; it is rank %u with layers %u to %u and KV heads %u to %u",
                   r->rank, r->first_layer, r->first_layer + r->n_layers - 1, r->first_head,
                   r->first_head + r->n_heads - 1, p->rank, l->first_layer,
                   l->first_layer + l->n_layers - 1, l->first_head,
                   l->first_head + l->kv_heads - 1);
}

/* What the source said of the producer, against what it is. */
static int check_source(const struct job *j, struct err *e)
{
    const struct identity *p = &j->conn->peer;

    if (j->kind != JOB_PART && p->rank != 0)
        return err_set(e, ERR_MISMATCH,
                       "this is the KV port of rank %u of '%s'; that of rank 0 must be named",
                       p->rank, p->engine_id);
    if ((j->kind == JOB_PART || !j->by_name) && j->engine_id[0] &&
        strcmp(j->engine_id, p->engine_id) != 0)
        return err_set(e, ERR_NOTFOUND,
                       "the instance there is '%s', not '%s': it was restarted, or the address is "
                       "another's",
                       p->engine_id, j->engine_id);
    if (j->kind == JOB_PART && j->src_tokens != p->layout.block_tokens)
        return err_set(e, ERR_MISMATCH, "block size: %u tokens in the request, %u at the producer",
                       j->src_tokens, p->layout.block_tokens);
    return j->kind == JOB_PART ? check_rank(j, e) : 0;
}

/* A part asks for its bytes. On a rank other than 0 the lease may begin later than the news of it
 * came. */
static void ask(struct transfer *t, struct job *j)
{
    struct plan_range range = {
        .first_layer = j->part.first_layer,
        .n_layers = j->part.n_layers,
        .first_head = j->part.first_head,
        .n_heads = j->part.n_heads,
        .first_token = j->first,
        .n_tokens = j->n_tokens,
        .cell_tokens = cell_tokens(j),
    };
    int st = plan_init(&j->to, &t->opt.layout, &range, j->dst, j->n_dst);

    assert(st == 0); /* transfer_pull has checked the numbers, ranks_plan the ranges */
    (void)st;
    j->in_place = j->conn->pool != NULL;
    j->waits = j->by_name || j->conn->peer.rank > 0;
    j->state = JOB_ASKED;
    send_pull(j);
}

static void begin_pull(struct transfer *t, struct job *j)
{
    if (!j->fetched && j->first < j->n_tokens) {
        parts_begin(t, j);
    } else if (!j->fetched && j->by_name) { /* no need to wait until it is there */
        job_send_lease(j, MESSAGE_RELEASE);
        job_finish(t, j, 0, NULL);
    } else {
        j->state = JOB_FINISHING;
        job_send_lease(j, MESSAGE_DONE);
    }
}

/* The connection stands: the job begins. */
static void go(struct transfer *t, struct job *j)
{
    struct err e;
    int st = check_source(j, &e);

    j->progress = clock_now();
    if (st < 0) {
        job_fail(t, j, st, e.text);
    } else if (j->kind == JOB_PULL) {
        begin_pull(t, j);
    } else if (j->kind == JOB_PART) {
        ask(t, j);
    } else {
        if (j->kind == JOB_RELEASE)
            job_send_lease(j, MESSAGE_RELEASE);
        job_finish(t, j, 0, NULL);
    }
}

void job_start(struct transfer *t, struct job *j)
{
    struct err e;
    int st = conn_get(&j->conn, t, j->host, j->port, &e);

    j->state = JOB_CONNECTING;
    j->reused = st == 1;
    if (st < 0)
        job_fail(t, j, st, e.text);
    else if (j->conn->state == CONN_READY)
        go(t, j);
}

static void cancel(struct transfer *t, uint64_t user)
{
    for (struct job *j = t->jobs; j; j = j->next)
        if (j->kind == JOB_PULL && j->user == user) {
            job_fail(t, j, ERR_CANCELED, "canceled");
            return;
        }
}

void pull_take(struct transfer *t, struct job *j, double now)
{
    if (j->kind == JOB_CANCEL) {
        cancel(t, j->user);
        job_free(j);
        pthread_mutex_lock(&t->lock);
        t->n_jobs--;
        pthread_mutex_unlock(&t->lock);
        return;
    }
    j->id = ++t->next_job;
    j->progress = now;
    j->next = t->jobs;
    t->jobs = j;
    job_start(t, j);
}

/* ---- RESULT and dispatch ---- */

static void on_result(struct transfer *t, struct job *j, const struct message_result *r)
{
    if (r->status < 0) {
        job_fail(t, j, r->status, r->text[0] ? r->text : status_text(r->status));
    } else if (j->state == JOB_FINISHING) {
        /* The lease stood until now: nothing that was read in place can have been overwritten. */
        job_finish(t, j, 0, NULL);
    } else {
        conn_violation(j->conn, "RESULT before DONE");
    }
}

static void on_wait(struct job *j)
{
    if (j->waits && (j->state == JOB_ASKED || j->state == JOB_MOVING))
        j->progress = clock_now();
    else
        conn_violation(j->conn, message_name(MESSAGE_WAIT));
}

static uint64_t job_of(const struct message *m)
{
    switch (m->kind) {
    case MESSAGE_GRANT:
        return m->u.grant.pull;
    case MESSAGE_DATA:
        return m->u.data.pull;
    case MESSAGE_RESULT:
        return m->u.result.id;
    case MESSAGE_WAIT:
        return m->u.id;
    default:
        return 0; /* no job has this id */
    }
}

void pull_message(struct conn *c, const struct message *m, const void *bulk, size_t bulk_len)
{
    struct transfer *t = c->t;
    uint64_t id = job_of(m);
    struct job *j = find_job(t, id);

    if (id == 0 || id > t->next_job || (j && j->conn != c)) {
        conn_violation(c, message_name(m->kind));
    } else if (!j) { /* of a job that has ended; the bytes go nowhere */
        if (m->kind == MESSAGE_RESULT && m->u.result.status < 0)
            conn_send_id(c, MESSAGE_STOP, id);
    } else if (m->kind == MESSAGE_GRANT) {
        receive_grant(t, j, &m->u.grant, bulk, bulk_len);
    } else if (m->kind == MESSAGE_DATA) {
        receive_data(t, j, &m->u.data, bulk, bulk_len);
    } else if (m->kind == MESSAGE_WAIT) {
        on_wait(j);
    } else {
        on_result(t, j, &m->u.result);
    }
}

/* A job on this connection, or one that waits for it; NULL if there is none. What is done with a job may end
 * others: the list is looked through anew each time. */
static struct job *job_on(const struct transfer *t, const struct conn *c, bool waits)
{
    struct job *j = t->jobs;

    while (j && (j->conn != c || (waits && j->state != JOB_CONNECTING)))
        j = j->next;
    return j;
}

void pull_conn_ready(struct conn *c)
{
    struct job *j;

    link_allow_bulk(c->link, 2 * LINK_BULK_MAX);
    while ((j = job_on(c->t, c, true)))
        go(c->t, j);
}

/* The producer knows us, but does not match: what it holds for the jobs here will not be fetched. */
void pull_conn_refused(struct conn *c)
{
    for (struct job *j = c->t->jobs; j; j = j->next)
        if (j->conn == c && (j->kind == JOB_PULL || j->kind == JOB_RELEASE)) {
            job_send_lease(j, MESSAGE_RELEASE);
            c->parting = true;
        }
}

/* A connection that had been there before the job may have been to an earlier run of the producer,
 * found out only now: the job gets one more, new one, unless bytes have moved already. A pull that waits
 * for its parts needs none. */
void pull_conn_lost(struct conn *c, int status, const char *text)
{
    struct transfer *t = c->t;
    struct job *j;

    while ((j = job_on(t, c, false))) {
        j->conn = NULL;
        if (j->state == JOB_SPLIT)
            continue;
        if (j->reused && !j->retried && !c->noted && j->state != JOB_MOVING && j->bytes == 0 &&
            status != ERR_CANCELED) {
            j->retried = true;
            job_start(t, j);
        } else {
            job_fail(t, j, status, text);
        }
    }
}

/* When the job is given up unless something happens. */
static double job_deadline(const struct transfer *t, const struct job *j)
{
    double next = j->progress + t->opt.pull_timeout;

    if (j->state == JOB_CONNECTING ||
        j->state == JOB_SPLIT) /* the connection, or the parts, have it */
        return HUGE_VAL;
    if (j->by_name && j->state == JOB_ASKED)
        next = fmin(next, j->started + t->opt.lease_seconds);
    return next;
}

static struct job *overdue(const struct transfer *t, double now)
{
    struct job *j = t->jobs;

    while (j && job_deadline(t, j) > now)
        j = j->next;
    return j;
}

void pull_timers(struct transfer *t, double now)
{
    char text[80];
    struct job *j;

    snprintf(text, sizeof text, "no progress for %.3g s", t->opt.pull_timeout);
    while ((j = overdue(t, now))) {
        struct conn *c = j->conn;

        if (j->progress + t->opt.pull_timeout > now) {
            job_fail(t, j, ERR_TIMEOUT, "the prefill did not end in time");
            continue;
        }
        /* Nothing at all was heard: later jobs shall not wait on this connection as well. */
        if (c->heard + t->opt.pull_timeout <= now && !c->why.text[0])
            conn_fail(c, ERR_TIMEOUT, text);
        job_fail(t, j, ERR_TIMEOUT, text);
    }
}

double pull_next(const struct transfer *t)
{
    double next = HUGE_VAL;

    for (const struct job *j = t->jobs; j; j = j->next)
        next = fmin(next, job_deadline(t, j));
    return next;
}

void pull_finish(struct transfer *t)
{
    while (t->jobs)
        job_fail(t, t->jobs, ERR_CANCELED, "this instance shuts down");
}
