#include "engine/dp_coordinator.h"

#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rand.h"
#include "base/status.h"
#include "comm/group.h"
#include "engine/dp_note.h"
#include "sys/clock.h"

#define STRANGERS 16 /* connections at a time that have not shown who they are */
/* A meeting that failed at once is not called again at once: the pause doubles up to this. */
#define PAUSE_FIRST 0.2
#define PAUSE_MOST  30.0
#define LASTED      10.0 /* seconds after which a meeting was a good one */

enum phase {
    GATHERING, /* not all are ready */
    OPENING,   /* instance 0 opens a port */
    MET,       /* the ranks were called; waves come and go */
};

/* A connection. Those of members are in `member`, by rank. */
struct guest {
    struct dp_line line; /* fd -1: none */
    unsigned char nonce[DP_NONCE_BYTES];
    double until; /* a stranger's */
    char name[64];
    uint64_t process;    /* a number of its process */
    bool in_step;        /* goes in step with the others, in a group */
    bool ready, was_met; /* was_met: has been in a meeting since it came */
    uint64_t about;
};

struct dp_coordinator {
    uint32_t size;
    char *secret;
    int listen_fd, stop_fd;
    uint16_t port;
    pthread_t thread;
    bool running;
    atomic_bool stop;

    /* the thread's */
    struct guest *member; /* [size] */
    struct guest stranger[STRANGERS];
    struct pollfd *poll; /* stop, listen, strangers, members */
    enum phase phase;
    uint64_t epoch, wave;
    double met_at, not_before, pause;
    char missing[DP_NOTE_TEXT]; /* as last told */
};

static void drop_guest(struct guest *g)
{
    if (g->line.fd >= 0)
        close(g->line.fd);
    *g = (struct guest){ .line.fd = -1 };
}

static void member_gone(struct dp_coordinator *c, uint32_t rank, const char *why);

static void tell(struct dp_coordinator *c, uint32_t rank, const struct dp_note *n)
{
    struct guest *g = &c->member[rank];

    if (g->line.fd >= 0 && dp_note_give(g->line.fd, n) < 0)
        shutdown(g->line.fd, SHUT_RDWR); /* read as its end, in its turn */
}

static void tell_all(struct dp_coordinator *c, const struct dp_note *n)
{
    for (uint32_t r = 0; r < c->size; r++)
        tell(c, r, n);
}

static struct dp_note note(uint32_t kind, uint64_t epoch)
{
    return (struct dp_note){ .kind = kind, .epoch = epoch };
}

static void set_text(struct dp_note *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void set_text(struct dp_note *n, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(n->text, sizeof n->text, fmt, ap);
    va_end(ap);
}

/* ---- meetings ---- */

static void new_epoch(struct dp_coordinator *c)
{
    uint32_t r;

    rand_bytes(&r, sizeof r); /* what an earlier coordinator called never is of this one */
    c->epoch = (uint64_t)r << 32 | (uint32_t)(c->epoch + 1);
    c->wave = 0;
}

static void end_meeting(struct dp_coordinator *c, const char *why)
{
    struct dp_note n = note(DP_OVER, c->epoch);
    double now = clock_now();

    if (c->phase == GATHERING)
        return;
    c->pause = now - c->met_at > LASTED ? PAUSE_FIRST : fmin(2 * c->pause, PAUSE_MOST);
    c->not_before = now + c->pause;
    c->phase = GATHERING;
    c->missing[0] = '\0';
    for (uint32_t r = 0; r < c->size; r++)
        c->member[r].ready = false;
    set_text(&n, "%s", why);
    tell_all(c, &n);
}

/* Who is not ready, as a sentence's object; returns how many are not there. */
static uint32_t list_missing(const struct dp_coordinator *c, char out[DP_NOTE_TEXT])
{
    uint32_t absent = 0;
    size_t n = 0;

    out[0] = '\0';
    for (uint32_t r = 0; r < c->size; r++) {
        const struct guest *g = &c->member[r];
        const char *state = g->line.fd < 0 ? "is not there"
                            : !g->in_step  ? "has no expert parallelism"
                            : g->was_met   ? "does not answer"
                                           : "is being loaded";

        if (g->line.fd < 0)
            absent++;
        if (!g->ready && n + 64 < DP_NOTE_TEXT)
            n += (size_t)snprintf(out + n, DP_NOTE_TEXT - n, "%sdata-parallel rank %u (%s)",
                                  n ? ", " : "", r, state);
    }
    return absent;
}

static void tell_missing(struct dp_coordinator *c)
{
    struct dp_note n = note(DP_MISSING, c->epoch);

    n.n = list_missing(c, n.text);
    if (strcmp(n.text, c->missing) == 0)
        return;
    memcpy(c->missing, n.text, sizeof c->missing);
    tell_all(c, &n);
}

/* Calls a meeting when all are ready. */
static void look_round(struct dp_coordinator *c)
{
    struct dp_note n;
    bool any = false, all = true;

    for (uint32_t r = 0; r < c->size; r++) {
        any |= c->member[r].in_step;
        all &= c->member[r].ready;
    }
    if (c->phase != GATHERING || !any)
        return;
    tell_missing(c);
    if (!all || clock_now() < c->not_before)
        return;
    new_epoch(c);
    c->phase = OPENING;
    c->met_at = clock_now();
    n = note(DP_OPEN, c->epoch);
    tell(c, 0, &n);
}

static void on_opened(struct dp_coordinator *c, const struct dp_note *in)
{
    struct dp_note n = note(DP_MEET, c->epoch);

    if (c->phase != OPENING || in->epoch != c->epoch)
        return;
    if (in->n == 0 || in->n > UINT16_MAX) {
        end_meeting(c, "data-parallel rank 0 could not open a port");
        return;
    }
    c->phase = MET;
    for (uint32_t r = 0; r < c->size; r++)
        c->member[r].was_met = true;
    n.n = in->n;
    tell_all(c, &n);
}

static void on_wake(struct dp_coordinator *c, const struct dp_note *in)
{
    struct dp_note n = note(DP_START, c->epoch);

    if (c->phase != MET || in->epoch != c->epoch || in->wave != c->wave)
        return; /* a later wave is on its way to the sender already */
    n.wave = ++c->wave;
    tell_all(c, &n);
}

/* ---- members ---- */

static void on_ready(struct dp_coordinator *c, uint32_t rank, const struct dp_note *in)
{
    struct guest *g = &c->member[rank];

    for (uint32_t r = 0; r < c->size; r++) {
        struct dp_note no = note(DP_REFUSED, 0);

        if (r == rank || !c->member[r].ready || c->member[r].about == in->about)
            continue;
        set_text(&no,
                 "data-parallel rank %u has another model, layout or options than rank %u; start "
                 "all with the same",
                 rank, r);
        tell(c, rank, &no);
        member_gone(c, rank, "it was refused: another model, layout or options");
        return;
    }
    g->ready = true;
    g->about = in->about;
}

static void member_gone(struct dp_coordinator *c, uint32_t rank, const char *why)
{
    struct dp_note n = note(DP_DOWN, c->epoch);
    bool in_step = c->member[rank].in_step;

    if (c->member[rank].line.fd < 0)
        return;
    drop_guest(&c->member[rank]);
    n.rank = rank;
    set_text(&n, "data-parallel rank %u has gone: %s", rank, why);
    tell_all(c, &n);
    if (in_step)
        end_meeting(c, n.text);
}

static void take_note(struct dp_coordinator *c, uint32_t rank, const struct dp_note *in)
{
    switch (in->kind) {
    case DP_READY:
        on_ready(c, rank, in);
        break;
    case DP_OPENED:
        if (rank == 0)
            on_opened(c, in);
        break;
    case DP_WAKE:
        on_wake(c, in);
        break;
    case DP_BROKEN:
        if (in->epoch == c->epoch)
            end_meeting(c, in->text);
        break;
    case DP_LEAVE:
        member_gone(c, rank, "it was told to stop");
        break;
    default:
        member_gone(c, rank, "it sent what is no note");
    }
}

static void hear_member(struct dp_coordinator *c, uint32_t rank)
{
    struct dp_note in;
    int st;

    while (c->member[rank].line.fd >= 0 && (st = dp_note_take(&c->member[rank].line, &in)) != 0)
        if (st > 0)
            take_note(c, rank, &in);
        else
            member_gone(c, rank,
                        st == ERR_CLOSED ? "its connection has ended" : "it sent what is no note");
}

/* ---- the door ---- */

static void refuse(struct guest *g, bool for_now, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void refuse(struct guest *g, bool for_now, const char *fmt, ...)
{
    struct dp_note n = note(DP_REFUSED, 0);
    va_list ap;

    n.n = for_now;
    va_start(ap, fmt);
    vsnprintf(n.text, sizeof n.text, fmt, ap);
    va_end(ap);
    log_warning("data-parallel group: %s is refused: %s", g->name, n.text);
    dp_note_give(g->line.fd, &n);
    drop_guest(g);
}

static void greet(struct dp_coordinator *c, int fd)
{
    struct dp_note n = note(DP_HELLO, 0);

    for (uint32_t i = 0; i < STRANGERS; i++) {
        struct guest *g = &c->stranger[i];

        if (g->line.fd >= 0)
            continue;
        g->line = (struct dp_line){ .fd = fd };
        g->until = clock_now() + DP_DOOR_SECONDS;
        snprintf(g->name, sizeof g->name, "a newcomer");
        rand_bytes(g->nonce, sizeof g->nonce);
        memcpy(n.text, g->nonce, sizeof g->nonce);
        dp_socket_settle(fd);
        if (dp_note_give(fd, &n) < 0)
            drop_guest(g);
        return;
    }
    close(fd); /* it comes again */
}

/* Every member knows of every other. */
static void introduce(struct dp_coordinator *c, uint32_t rank)
{
    struct dp_note n = note(DP_UP, c->epoch);

    n.rank = rank;
    set_text(&n, "%s", c->member[rank].name);
    tell_all(c, &n);
    for (uint32_t r = 0; r < c->size; r++) {
        if (r == rank || c->member[r].line.fd < 0)
            continue;
        n.rank = r;
        set_text(&n, "%s", c->member[r].name);
        tell(c, rank, &n);
    }
    c->missing[0] = '\0'; /* the newcomer has not heard it */
}

static void let_in(struct dp_coordinator *c, struct guest *g, const struct dp_note *in)
{
    struct hash256 want, proof;
    struct guest *seat;

    memcpy(&proof, in->text, sizeof proof);
    dp_note_prove(&want, c->secret, g->nonce, in->rank);
    if (in->kind != DP_ARRIVE || !hash_equal(&want, &proof)) {
        refuse(g, false, "the secret is not that of data-parallel rank 0");
        return;
    }
    snprintf(g->name, sizeof g->name, "%.60s", in->text + sizeof proof);
    if (in->wave != c->size || in->rank >= c->size) {
        refuse(g, false, "data-parallel rank %u of %llu does not fit a group of %u", in->rank,
               (unsigned long long)in->wave, c->size);
        return;
    }
    seat = &c->member[in->rank];
    if (seat->line.fd >= 0 && seat->process != in->epoch) {
        refuse(g, true, "data-parallel rank %u is there already (%s)", in->rank, seat->name);
        return;
    }
    member_gone(c, in->rank, "it lost its connection");
    *seat = *g;
    seat->process = in->epoch;
    seat->in_step = in->about != 0;
    g->line.fd = -1;
    introduce(c, in->rank);
}

static void hear_stranger(struct dp_coordinator *c, struct guest *g)
{
    struct dp_note in;
    int st = dp_note_take(&g->line, &in);

    if (st < 0)
        drop_guest(g);
    else if (st > 0)
        let_in(c, g, &in);
}

/* ---- the thread ---- */

static void set_polls(struct dp_coordinator *c)
{
    struct pollfd *p = c->poll;

    *p++ = (struct pollfd){ .fd = c->stop_fd, .events = POLLIN };
    *p++ = (struct pollfd){ .fd = c->listen_fd, .events = POLLIN };
    for (uint32_t i = 0; i < STRANGERS; i++)
        *p++ = (struct pollfd){ .fd = c->stranger[i].line.fd, .events = POLLIN };
    for (uint32_t r = 0; r < c->size; r++)
        *p++ = (struct pollfd){ .fd = c->member[r].line.fd, .events = POLLIN };
}

static void hear_all(struct dp_coordinator *c)
{
    const struct pollfd *door = c->poll + 2, *seats = door + STRANGERS;

    /* Members first: those at the door may take their seats, which poll knows nothing of. */
    for (uint32_t r = 0; r < c->size; r++)
        if (seats[r].revents)
            hear_member(c, r);
    for (uint32_t i = 0; i < STRANGERS; i++)
        if (door[i].revents)
            hear_stranger(c, &c->stranger[i]);
    if (c->poll[1].revents) {
        int fd = accept4(c->listen_fd, NULL, NULL, SOCK_CLOEXEC);

        if (fd >= 0)
            greet(c, fd);
    }
}

/* Until the next thing that only time brings; -1: nothing. */
static int patience(struct dp_coordinator *c)
{
    double now = clock_now(), until = INFINITY;

    for (uint32_t i = 0; i < STRANGERS; i++) {
        struct guest *g = &c->stranger[i];

        if (g->line.fd >= 0 && g->until <= now)
            drop_guest(g);
        else if (g->line.fd >= 0)
            until = fmin(until, g->until);
    }
    if (c->phase == GATHERING && c->not_before > now)
        until = fmin(until, c->not_before);
    return isinf(until) ? -1 : (int)ceil((until - now) * 1e3);
}

static void *run(void *arg)
{
    struct dp_coordinator *c = arg;

    while (!atomic_load(&c->stop)) {
        int ms = patience(c);

        set_polls(c);
        if (poll(c->poll, 2 + STRANGERS + c->size, ms) > 0)
            hear_all(c);
        look_round(c);
    }
    return NULL;
}

/* ---- the door of the whole ---- */

static int allocate(struct dp_coordinator *c, const struct dp_coordinator_options *o)
{
    c->listen_fd = c->stop_fd = -1;
    c->size = o->size;
    c->pause = PAUSE_FIRST;
    for (uint32_t i = 0; i < STRANGERS; i++)
        c->stranger[i].line.fd = -1;
    c->member = calloc(o->size, sizeof *c->member);
    c->poll = calloc(2 + STRANGERS + (size_t)o->size, sizeof *c->poll);
    c->secret = o->secret ? strdup(o->secret) : NULL;
    if (!c->member || !c->poll || (o->secret && !c->secret))
        return ERR_NOMEM;
    for (uint32_t r = 0; r < o->size; r++)
        c->member[r].line.fd = -1;
    return 0;
}

int dp_coordinator_open(struct dp_coordinator **out, const struct dp_coordinator_options *o,
                        struct err *e)
{
    struct dp_coordinator *c = calloc(1, sizeof *c);
    int st;

    if (!c || allocate(c, o) < 0) {
        dp_coordinator_close(c);
        return err_set(e, ERR_NOMEM, "no memory for a data-parallel group of %u", o->size);
    }
    if ((st = group_listen(&c->listen_fd, &c->port, o->host, o->port, e)) < 0) {
        dp_coordinator_close(c);
        return err_prefix(e, st, "data-parallel group");
    }
    fcntl(c->listen_fd, F_SETFL, O_NONBLOCK); /* who knocked may have left */
    if ((c->stop_fd = eventfd(0, EFD_CLOEXEC)) < 0 || pthread_create(&c->thread, NULL, run, c)) {
        dp_coordinator_close(c);
        return err_set(e, ERR_LIMIT, "cannot start the data-parallel group's thread");
    }
    c->running = true;
    *out = c;
    return 0;
}

uint16_t dp_coordinator_port(const struct dp_coordinator *c)
{
    return c->port;
}

void dp_coordinator_close(struct dp_coordinator *c)
{
    if (!c)
        return;
    if (c->running) {
        atomic_store(&c->stop, true);
        eventfd_write(c->stop_fd, 1);
        pthread_join(c->thread, NULL);
    }
    for (uint32_t r = 0; c->member && r < c->size; r++)
        drop_guest(&c->member[r]);
    for (uint32_t i = 0; i < STRANGERS; i++)
        drop_guest(&c->stranger[i]);
    if (c->listen_fd >= 0)
        close(c->listen_fd);
    if (c->stop_fd >= 0)
        close(c->stop_fd);
    free(c->member);
    free(c->poll);
    free(c->secret);
    free(c);
}
