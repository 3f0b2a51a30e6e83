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
    free(j->src);
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

/* The only way out of t->jobs. text: why, where status < 0. */
static void finish(struct transfer *t, struct job *j, int status, const char *text)
{
    struct transfer_event ev = {
        .kind = TRANSFER_PULLED,
        .user = j->user,
        .status = status,
        .why = status < 0 ? text : NULL,
        .bytes = j->bytes,
        .seconds = clock_now() - j->started,
    };

    unlink_job(t, j);
    if (j->conn)
        j->conn->bulk_expected -= j->bulk_expected;
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

void job_fail(struct transfer *t, struct job *j, int status, const char *why)
{
    struct err e;

    err_set(&e, status, "KV pull of '%s' from %s:%u: %s", j->lease, j->host, j->port, why);
    if (j->conn && j->state != JOB_CONNECTING)
        conn_send_id(j->conn, MESSAGE_STOP, j->id);
    finish(t, j, status, e.text);
}

/* ---- asking ---- */

void job_send_lease(struct job *j, enum message_kind kind)
{
    struct message m = { .kind = kind };

    m.u.name.id = j->id;
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
    if (j->by_name) {
        p->wait_ms = wait_ms(t);
        memcpy(p->prompt, j->prompt, sizeof p->prompt);
    }
    conn_send(j->conn, &m);
}

/* What the source said of the producer, against what it is. */
static int check_source(const struct job *j, struct err *e)
{
    const struct identity *p = &j->conn->peer;

    if (!j->by_name && j->engine_id[0] && strcmp(j->engine_id, p->engine_id) != 0)
        return err_set(e, ERR_NOTFOUND,
                       "the instance there is '%s', not '%s': it was restarted, or the address is "
                       "another's",
                       p->engine_id, j->engine_id);
    if (j->kind == JOB_PULL && j->src_tokens != p->layout.block_tokens)
        return err_set(e, ERR_MISMATCH, "block size: %u tokens in the request, %u at the producer",
                       j->src_tokens, p->layout.block_tokens);
    return 0;
}

/* The connection stands: the job begins. */
static void go(struct transfer *t, struct job *j)
{
    const struct kv_layout *own = &t->opt.layout;
    struct plan_range range = {
        .first_layer = own->first_layer,
        .n_layers = handshake_layers(&t->identity, &j->conn->peer),
        .n_heads = own->kv_heads,
        .first_token = j->first,
        .n_tokens = j->n_tokens,
    };
    struct err e;
    int st = check_source(j, &e);

    j->progress = clock_now();
    if (st < 0) {
        job_fail(t, j, st, e.text);
    } else if (j->kind == JOB_PROBE) {
        finish(t, j, 0, NULL);
    } else if (j->kind == JOB_RELEASE) {
        job_send_lease(j, MESSAGE_RELEASE);
        finish(t, j, 0, NULL);
    } else if (j->first == j->n_tokens && j->by_name) { /* no need to wait until it is there */
        job_send_lease(j, MESSAGE_RELEASE);
        finish(t, j, 0, NULL);
    } else if (j->first == j->n_tokens) {
        j->state = JOB_FINISHING;
        job_send_lease(j, MESSAGE_DONE);
    } else {
        range.cell_tokens = cell_tokens(j);
        j->in_place = j->conn->pool != NULL;
        j->state = JOB_ASKED;
        st = plan_init(&j->to, own, &range, j->dst, j->n_dst);
        assert(st == 0); /* transfer_pull has checked the numbers */
        send_pull(j);
    }
}

static void start(struct transfer *t, struct job *j)
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
    start(t, j);
}

/* ---- RESULT and dispatch ---- */

static void on_result(struct transfer *t, struct job *j, const struct message_result *r)
{
    if (r->status < 0) {
        job_fail(t, j, r->status, r->text[0] ? r->text : status_text(r->status));
    } else if (j->state == JOB_FINISHING) {
        /* The lease stood until now: nothing that was read in place can have been overwritten. */
        finish(t, j, 0, NULL);
    } else {
        conn_violation(j->conn, "RESULT before DONE");
    }
}

static void on_wait(struct job *j)
{
    if (j->by_name && j->state == JOB_ASKED)
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

void pull_conn_ready(struct conn *c)
{
    struct job *next;

    link_allow_bulk(c->link, 2 * LINK_BULK_MAX);
    for (struct job *j = c->t->jobs; j; j = next) {
        next = j->next;
        if (j->conn == c && j->state == JOB_CONNECTING)
            go(c->t, j);
    }
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
 * found out only now: the job gets one more, new one, unless bytes have moved already. */
void pull_conn_lost(struct conn *c, int status, const char *text)
{
    struct transfer *t = c->t;
    struct job *next;

    for (struct job *j = t->jobs; j; j = next) {
        next = j->next;
        if (j->conn != c)
            continue;
        j->conn = NULL;
        if (j->reused && !j->retried && !c->noted && j->state != JOB_MOVING && j->bytes == 0 &&
            status != ERR_CANCELED) {
            j->retried = true;
            start(t, j);
        } else {
            job_fail(t, j, status, text);
        }
    }
}

/* When the job is given up unless something happens. */
static double job_deadline(const struct transfer *t, const struct job *j)
{
    double next = j->progress + t->opt.pull_timeout;

    if (j->state == JOB_CONNECTING) /* the connection has its own */
        return HUGE_VAL;
    if (j->by_name && j->state == JOB_ASKED)
        next = fmin(next, j->started + t->opt.lease_seconds);
    return next;
}

void pull_timers(struct transfer *t, double now)
{
    char text[80];
    struct job *next;

    snprintf(text, sizeof text, "no progress for %.3g s", t->opt.pull_timeout);
    for (struct job *j = t->jobs; j; j = next) {
        struct conn *c = j->conn;

        next = j->next;
        if (job_deadline(t, j) > now)
            continue;
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
