#include "engine/pipe.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/group.h"
#include "sys/clock.h"

#define SLOTS         2
#define FIRST_BYTES   4096 /* of a message that go with its head */
#define LEAVE_SECONDS 5.0
#define IDLE_SECONDS  5.0 /* longest sleep; nothing depends on it */
#define ORPHAN_SECONDS                                                                             \
    2.0 /* after rank 0 has left without a word: what it sent before would be here by then */

enum tag { TAG_FIRST = 1, TAG_REST, TAG_STATES };

/* What a message begins with. */
struct head {
    uint64_t bytes;
    uint32_t kind, unused;
};

struct message {
    struct message *next;
    uint32_t to;
    struct group_op first, rest;
    size_t bytes, cap; /* behind the head */
    struct head *head;
};

/* What a rank sends us. */
struct source {
    struct group_op op;
    bool in_rest; /* the head is here, and says that more comes */
    double heard; /* when something came last */
    size_t cap;
    struct head *head; /* FIRST_BYTES behind it, or as many as the message has */
};

enum slot_state {
    SLOT_FREE,
    SLOT_MOVING, /* the pipe's thread has it */
    SLOT_READY,  /* states that came; or states to be sent */
    SLOT_HELD,   /* the computing thread has it */
};

struct slot {
    enum slot_state state;
    struct group_op op;
    struct pipe_states *s;
};

/* Slots are used in turn: `next` is the computing thread's, `moving` the pipe's. */
struct states {
    struct slot slot[SLOTS];
    unsigned next, moving;
};

struct pipe {
    struct pipe_options o;
    uint32_t rank, size;
    size_t slot_bytes;
    pthread_t thread;
    bool running;
    int wake; /* an eventfd */

    /* the pipe's thread */
    struct source *source; /* [size] */
    struct message *sending, **sending_tail;
    double left_since; /* rank 0 has left; 0: not */

    pthread_mutex_t lock; /* the rest */
    pthread_cond_t changed;
    struct message *posted, **posted_tail;
    struct message *spare;
    size_t queued;
    struct states in, out;
    double *pong; /* [size] when a rank answered last */
    atomic_bool stop;
    double stop_at;
    int status;    /* < 0: broken */
    char why[256]; /* to abandon the group with; "": not */
};

static void wake(struct pipe *p)
{
    uint64_t one = 1;

    if (write(p->wake, &one, sizeof one) < 0)
        return; /* it is awake already */
}

/* ---- messages to send ---- */

static void message_free(struct message *m)
{
    if (m)
        free(m->head);
    free(m);
}

/* A used message with room, or a new one. Called with the lock. */
static struct message *message_take(struct pipe *p, size_t bytes)
{
    struct message *m = p->spare;
    struct head *head;

    if (m)
        p->spare = m->next;
    else if (!(m = calloc(1, sizeof *m)))
        return NULL;
    if (m->cap >= bytes && m->head)
        return m;
    if (!(head = realloc(m->head, sizeof *head + bytes))) {
        message_free(m);
        return NULL;
    }
    m->head = head;
    m->cap = bytes;
    return m;
}

int pipe_post(struct pipe *p, uint32_t to, uint32_t kind, const void *data, size_t bytes)
{
    struct message *m = NULL;
    int st = 0;

    pthread_mutex_lock(&p->lock);
    if (p->status < 0 || p->stop)
        st = ERR_CLOSED;
    else if (to >= p->size || to == p->rank || bytes > PIPE_MAX_MESSAGE ||
             bytes > PIPE_MAX_QUEUED - p->queued)
        st = ERR_LIMIT;
    else if (!(m = message_take(p, bytes)))
        st = ERR_NOMEM;
    if (st == 0) {
        m->next = NULL;
        m->to = to;
        m->bytes = bytes;
        m->first = m->rest = (struct group_op){ 0 };
        *m->head = (struct head){ .bytes = bytes, .kind = kind };
        if (bytes)
            memcpy(m->head + 1, data, bytes);
        *p->posted_tail = m;
        p->posted_tail = &m->next;
        p->queued += bytes;
    }
    pthread_mutex_unlock(&p->lock);
    if (st == 0)
        wake(p);
    return st;
}

static int start_send(struct pipe *p, struct message *m)
{
    size_t first = m->bytes < FIRST_BYTES ? m->bytes : FIRST_BYTES;
    const char *data = (const char *)(m->head + 1);
    int st = group_start_send(p->o.group, &m->first, m->to, TAG_FIRST, m->head,
                              sizeof *m->head + first);

    if (st < 0 || first == m->bytes)
        return st;
    return group_start_send(p->o.group, &m->rest, m->to, TAG_REST, data + first, m->bytes - first);
}

/* Has it left? 1, 0, or why not. */
static int message_sent(struct pipe *p, struct message *m)
{
    int st = group_ended(p->o.group, &m->first);

    return st == 1 && m->rest.started ? group_ended(p->o.group, &m->rest) : st;
}

/* Starts what was posted. Returns how many, or why not. */
static int send_posted(struct pipe *p)
{
    struct message *m;
    int n = 0, st = 0;

    pthread_mutex_lock(&p->lock);
    m = p->posted;
    p->posted = NULL;
    p->posted_tail = &p->posted;
    pthread_mutex_unlock(&p->lock);
    *p->sending_tail = m;
    for (; m && st == 0; m = m->next, n++) {
        p->sending_tail = &m->next;
        st = start_send(p, m);
    }
    for (; m; m = m->next)
        p->sending_tail = &m->next;
    return st < 0 ? st : n;
}

/* Takes back what has been sent. */
static int end_sends(struct pipe *p)
{
    struct message **at = &p->sending, *done = NULL;
    int n = 0, st = 0;

    while (*at && (st = message_sent(p, *at)) >= 0) {
        struct message *m = *at;

        if (st == 0) {
            at = &m->next;
            continue;
        }
        *at = m->next;
        m->next = done;
        done = m;
        n++;
    }
    if (st >= 0)
        p->sending_tail = at;
    pthread_mutex_lock(&p->lock);
    while (done) {
        struct message *m = done;

        done = m->next;
        p->queued -= m->bytes;
        m->next = p->spare;
        p->spare = m;
    }
    pthread_mutex_unlock(&p->lock);
    return st < 0 ? st : n;
}

/* ---- messages that come ---- */

static int expect(struct pipe *p, uint32_t from)
{
    struct source *s = &p->source[from];

    s->in_rest = false;
    s->op = (struct group_op){ 0 };
    return group_start_recv(p->o.group, &s->op, from, TAG_FIRST, s->head,
                            sizeof *s->head + FIRST_BYTES);
}

static int expect_rest(struct pipe *p, uint32_t from)
{
    struct source *s = &p->source[from];
    size_t bytes = s->head->bytes;
    struct head *head;

    if (bytes > PIPE_MAX_MESSAGE)
        return ERR_BADMSG;
    if (bytes > s->cap) {
        if (!(head = realloc(s->head, sizeof *head + bytes)))
            return ERR_NOMEM;
        s->head = head;
        s->cap = bytes;
    }
    s->in_rest = true;
    s->op = (struct group_op){ 0 };
    return group_start_recv(p->o.group, &s->op, from, TAG_REST, (char *)(s->head + 1) + FIRST_BYTES,
                            bytes - FIRST_BYTES);
}

static void deliver(struct pipe *p, uint32_t from, const struct head *h)
{
    switch (h->kind) {
    case PIPE_PING:
        pipe_post(p, from, PIPE_PONG, NULL, 0);
        break;
    case PIPE_PONG:
        pthread_mutex_lock(&p->lock);
        p->pong[from] = clock_now();
        pthread_cond_broadcast(&p->changed);
        pthread_mutex_unlock(&p->lock);
        break;
    default:
        p->o.arrived(p->o.arg, from, h->kind, h + 1, h->bytes);
    }
}

/* Messages that are here. Returns how many, or why not. */
static int take_messages(struct pipe *p)
{
    int n = 0;

    for (uint32_t r = 0; r < p->size; r++) {
        struct source *s = &p->source[r];
        int st = r == p->rank ? 0 : group_ended(p->o.group, &s->op);

        if (st == 0)
            continue;
        if (st == 1 && !s->in_rest && s->head->bytes > FIRST_BYTES) {
            st = expect_rest(p, r);
        } else if (st == 1) {
            deliver(p, r, s->head);
            st = expect(p, r);
        }
        if (st < 0)
            return st;
        n++;
    }
    return n;
}

/* ---- states ---- */

static void set_state(struct pipe *p, struct slot *s, enum slot_state state)
{
    pthread_mutex_lock(&p->lock);
    s->state = state;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
}

static enum slot_state state_of(struct pipe *p, const struct slot *s)
{
    enum slot_state state;

    pthread_mutex_lock(&p->lock);
    state = s->state;
    pthread_mutex_unlock(&p->lock);
    return state;
}

/* Both free buffers wait for what comes; those that are full are shown, in order. */
static int move_in(struct pipe *p)
{
    int n = 0, st;

    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *s = &p->in.slot[p->in.moving];

        if (state_of(p, s) != SLOT_MOVING)
            break;
        if ((st = group_ended(p->o.group, &s->op)) < 0)
            return st;
        if (st == 0)
            break;
        set_state(p, s, SLOT_READY);
        p->in.moving = (p->in.moving + 1) % SLOTS;
        n++;
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *s = &p->in.slot[(p->in.moving + i) % SLOTS];
        enum slot_state state = state_of(p, s);

        if (state == SLOT_MOVING)
            continue;
        if (state != SLOT_FREE)
            break;
        s->op = (struct group_op){ 0 };
        set_state(p, s, SLOT_MOVING);
        if ((st = group_start_recv(p->o.group, &s->op, p->o.from, TAG_STATES, s->s,
                                   p->slot_bytes)) < 0)
            return st;
    }
    return n;
}

static int move_out(struct pipe *p)
{
    int n = 0, st;

    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *s = &p->out.slot[p->out.moving];

        if (state_of(p, s) != SLOT_READY)
            break;
        s->op = (struct group_op){ 0 };
        set_state(p, s, SLOT_MOVING);
        if ((st = group_start_send(p->o.group, &s->op, p->o.to, TAG_STATES, s->s,
                                   sizeof *s->s + s->s->bytes)) < 0)
            return st;
        p->out.moving = (p->out.moving + 1) % SLOTS;
        n++;
    }
    for (unsigned i = 0; i < SLOTS; i++) {
        struct slot *s = &p->out.slot[i];

        if (state_of(p, s) != SLOT_MOVING)
            continue;
        if ((st = group_ended(p->o.group, &s->op)) < 0)
            return st;
        if (st == 0)
            continue;
        set_state(p, s, SLOT_FREE);
        n++;
    }
    return n;
}

static struct timespec deadline(double seconds)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)seconds;
    t.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

/* Waits until the computing thread's next slot is in that state, and takes it. */
static int take_slot(struct pipe *p, struct states *way, enum slot_state wanted,
                     struct pipe_states **out)
{
    struct timespec until = deadline(p->o.seconds);
    struct slot *s = &way->slot[way->next];
    int st = 0, late = 0;

    pthread_mutex_lock(&p->lock);
    while (p->status == 0 && s->state != wanted && late == 0)
        late = pthread_cond_timedwait(&p->changed, &p->lock, &until);
    if (p->status < 0)
        st = p->status;
    else if (s->state != wanted)
        st = ERR_TIMEOUT;
    else
        s->state = SLOT_HELD;
    pthread_mutex_unlock(&p->lock);
    if (st == 0)
        *out = s->s;
    return st;
}

static void give_slot(struct pipe *p, struct states *way, enum slot_state state)
{
    set_state(p, &way->slot[way->next], state);
    way->next = (way->next + 1) % SLOTS;
    wake(p);
}

int pipe_states_wait(struct pipe *p, const struct pipe_states **out)
{
    struct pipe_states *s = NULL;
    int st = take_slot(p, &p->in, SLOT_READY, &s);

    if (st == 0 && (s->bytes > p->o.state_bytes || s->n_times > ENGINE_MAX_STAGES))
        st = ERR_BADMSG;
    if (st == 0)
        *out = s;
    return st;
}

void pipe_states_done(struct pipe *p)
{
    give_slot(p, &p->in, SLOT_FREE);
}

int pipe_states_room(struct pipe *p, struct pipe_states **out)
{
    return take_slot(p, &p->out, SLOT_FREE, out);
}

void pipe_states_send(struct pipe *p)
{
    give_slot(p, &p->out, SLOT_READY);
}

/* ---- the thread ---- */

/* One round over everything. Returns how much has moved, or why nothing will. */
static int move_all(struct pipe *p)
{
    int n = 0, st;

    if ((st = send_posted(p)) < 0)
        return st;
    n += st;
    if ((st = take_messages(p)) < 0)
        return st;
    n += st;
    if (p->o.from != PIPE_NOBODY && (st = move_in(p)) < 0)
        return st;
    n += st;
    if (p->o.to != PIPE_NOBODY && (st = move_out(p)) < 0)
        return st;
    n += st;
    st = end_sends(p);
    return st < 0 ? st : n + st;
}

static void drain_wake(struct pipe *p)
{
    uint64_t n;

    if (read(p->wake, &n, sizeof n) < 0)
        return; /* nobody has called */
}

/* With the lock. */
static bool has_unsent(const struct pipe *p)
{
    if (p->posted || p->sending)
        return true;
    for (unsigned i = 0; i < SLOTS; i++)
        if (p->out.slot[i].state == SLOT_READY || p->out.slot[i].state == SLOT_MOVING)
            return true;
    return false;
}

/* Asked to stop, and everything is out, or it takes too long. */
static bool is_over(struct pipe *p)
{
    bool over;

    pthread_mutex_lock(&p->lock);
    over = atomic_load(&p->stop) && (!has_unsent(p) || clock_now() > p->stop_at);
    pthread_mutex_unlock(&p->lock);
    return over;
}

/* Rank 0 has left, and has not said that this rank shall. */
static bool is_orphan(struct pipe *p)
{
    if (p->rank == 0 || !group_has_left(p->o.group, 0))
        return false;
    if (p->left_since == 0)
        p->left_since = clock_now();
    return clock_now() - p->left_since > ORPHAN_SECONDS;
}

/* Somebody has called pipe_abandon. */
static bool is_abandoned(struct pipe *p)
{
    char why[sizeof p->why];

    pthread_mutex_lock(&p->lock);
    memcpy(why, p->why, sizeof why);
    pthread_mutex_unlock(&p->lock);
    if (*why)
        group_abandon(p->o.group, why);
    return *why;
}

void pipe_abandon(struct pipe *p, const char *why)
{
    pthread_mutex_lock(&p->lock);
    if (!*p->why)
        snprintf(p->why, sizeof p->why, "%s", *why ? why : "abandoned");
    pthread_mutex_unlock(&p->lock);
    wake(p);
}

static double patience(const struct pipe *p)
{
    return p->left_since > 0 || atomic_load(&p->stop) ? 0.1 : IDLE_SECONDS;
}

static void *run(void *arg)
{
    struct pipe *p = arg;
    int st = 0;

    for (uint32_t r = 0; st == 0 && r < p->size; r++)
        if (r != p->rank)
            st = expect(p, r);
    while (st >= 0 && !is_over(p)) {
        drain_wake(p);
        if (is_orphan(p))
            group_abandon(p->o.group, "rank 0 has left");
        st = is_abandoned(p) ? ERR_CLOSED : move_all(p);
        if (st == 0)
            st = group_sleep(p->o.group, patience(p));
    }
    if (st >= 0)
        return NULL;
    if (!*group_why(p->o.group)) /* found here: tell the others */
        group_abandon(p->o.group, status_text(st));
    pthread_mutex_lock(&p->lock);
    p->status = st;
    pthread_cond_broadcast(&p->changed);
    pthread_mutex_unlock(&p->lock);
    p->o.broken(p->o.arg, st, group_why(p->o.group));
    return NULL;
}

static int make_slots(struct states *way, size_t bytes)
{
    for (unsigned i = 0; i < SLOTS; i++) {
        if (!(way->slot[i].s = aligned_alloc(64, bytes)))
            return ERR_NOMEM;
        memset(way->slot[i].s, 0, sizeof *way->slot[i].s);
    }
    return 0;
}

static int allocate(struct pipe *p)
{
    p->source = calloc(p->size, sizeof *p->source);
    p->pong = calloc(p->size, sizeof *p->pong);
    if (!p->source || !p->pong)
        return ERR_NOMEM;
    for (uint32_t r = 0; r < p->size; r++) {
        p->source[r].cap = FIRST_BYTES;
        if (!(p->source[r].head = malloc(sizeof *p->source[r].head + FIRST_BYTES)))
            return ERR_NOMEM;
    }
    p->slot_bytes = (sizeof(struct pipe_states) + p->o.state_bytes + 63) & ~(size_t)63;
    if (p->o.from != PIPE_NOBODY && make_slots(&p->in, p->slot_bytes) < 0)
        return ERR_NOMEM;
    if (p->o.to != PIPE_NOBODY && make_slots(&p->out, p->slot_bytes) < 0)
        return ERR_NOMEM;
    return 0;
}

static void init_lock(struct pipe *p)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&p->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&p->changed, &attr);
    pthread_condattr_destroy(&attr);
}

/* The thread's callbacks find the pipe where the caller does. */
static int start(struct pipe *p, struct pipe **out)
{
    int st = group_watch(p->o.group, p->wake);

    if (st < 0)
        return st;
    *out = p;
    p->running = true;
    if (pthread_create(&p->thread, NULL, run, p) == 0)
        return 0;
    *out = NULL;
    p->running = false;
    return ERR_LIMIT;
}

int pipe_create(struct pipe **out, const struct pipe_options *o, struct err *e)
{
    struct pipe *p = calloc(1, sizeof *p);
    int st = 0;

    if (!p)
        return err_set(e, ERR_NOMEM, "no memory for the pipe between ranks");
    p->o = *o;
    p->rank = group_rank(o->group);
    p->size = group_size(o->group);
    p->posted_tail = &p->posted;
    p->sending_tail = &p->sending;
    init_lock(p);
    p->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p->wake < 0)
        st = err_set(e, ERR_LIMIT, "no descriptor for the pipe between ranks: %s", strerror(errno));
    else if (allocate(p) < 0)
        st = err_set(e, ERR_NOMEM, "no memory for the states of a step between ranks: %zu bytes",
                     p->slot_bytes);
    else if ((st = start(p, out)) < 0)
        err_set(e, st, "cannot start the pipe between ranks");
    if (st < 0)
        pipe_destroy(p);
    return st;
}

static void free_list(struct message *m)
{
    while (m) {
        struct message *next = m->next;

        message_free(m);
        m = next;
    }
}

void pipe_destroy(struct pipe *p)
{
    if (!p)
        return;
    if (p->running) {
        pthread_mutex_lock(&p->lock);
        p->stop_at = clock_now() + LEAVE_SECONDS;
        atomic_store(&p->stop, true);
        pthread_mutex_unlock(&p->lock);
        wake(p);
        pthread_join(p->thread, NULL);
        group_leave(p->o.group); /* before the buffers go that UCX may still fill */
    }
    free_list(p->posted);
    free_list(p->sending);
    free_list(p->spare);
    for (uint32_t r = 0; p->source && r < p->size; r++)
        free(p->source[r].head);
    for (unsigned i = 0; i < SLOTS; i++) {
        free(p->in.slot[i].s);
        free(p->out.slot[i].s);
    }
    if (p->wake >= 0)
        close(p->wake);
    pthread_cond_destroy(&p->changed);
    pthread_mutex_destroy(&p->lock);
    free(p->source);
    free(p->pong);
    free(p);
}

int pipe_lost(const struct pipe *p)
{
    return group_lost(p->o.group);
}

/* The first rank that has not answered since then. Called with the lock. */
static uint32_t unanswered(const struct pipe *p, double since)
{
    for (uint32_t r = 0; r < p->size; r++)
        if (r != p->rank && p->pong[r] < since)
            return r;
    return PIPE_NOBODY;
}

uint32_t pipe_silent(struct pipe *p, double seconds)
{
    struct timespec until = deadline(seconds);
    double since = clock_now();
    uint32_t r;
    int late = 0;

    for (r = 0; r < p->size; r++)
        if (r != p->rank)
            pipe_post(p, r, PIPE_PING, NULL, 0);
    pthread_mutex_lock(&p->lock);
    while ((r = unanswered(p, since)) != PIPE_NOBODY && p->status == 0 && late == 0)
        late = pthread_cond_timedwait(&p->changed, &p->lock, &until);
    pthread_mutex_unlock(&p->lock);
    return r;
}
