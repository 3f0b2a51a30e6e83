#include "engine/dp_member.h"

#include <errno.h>
#include <math.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rand.h"
#include "base/status.h"
#include "comm/group.h"
#include "sys/clock.h"

/* Between attempts to reach the coordinator: short at first, while everybody starts. */
#define PAUSE_FIRST 0.1
#define PAUSE_MOST  2.0

struct dp_member {
    struct dp_member_options o;
    char *own_host, *host, *secret;
    uint64_t process; /* a number of this process, for the coordinator */
    pthread_t thread;
    bool running;
    int stop_fd;
    atomic_bool stop;
    struct dp_line line; /* the thread's, but for its fd: under lock */

    pthread_mutex_t lock; /* the rest */
    pthread_cond_t changed;
    struct dp_view view;
    bool *up; /* [size] */
    int listen_fd;
    uint64_t listen_epoch;
};

/* ---- what is known ---- */

static bool differs(const struct dp_view *a, const struct dp_view *b)
{
    return a->connected != b->connected || a->asked != b->asked || a->epoch != b->epoch ||
           a->port != b->port || a->wave != b->wave || a->absent != b->absent ||
           a->refused != b->refused;
}

void dp_member_view(struct dp_member *m, struct dp_view *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->view;
    pthread_mutex_unlock(&m->lock);
}

void dp_member_wait(struct dp_member *m, const struct dp_view *seen, double seconds)
{
    struct timespec until;
    double whole = floor(seconds);

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)((seconds - whole) * 1e9);
    if (until.tv_nsec >= 1000000000) {
        until.tv_sec++;
        until.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&m->lock);
    while (!differs(seen, &m->view))
        if (pthread_cond_timedwait(&m->changed, &m->lock, &until) != 0)
            break;
    pthread_mutex_unlock(&m->lock);
}

void dp_member_up(struct dp_member *m, bool *up, uint32_t n)
{
    pthread_mutex_lock(&m->lock);
    for (uint32_t r = 0; r < n && r < m->o.size; r++)
        up[r] = m->up[r];
    pthread_mutex_unlock(&m->lock);
}

void dp_member_say(struct dp_member *m, const struct dp_note *n)
{
    pthread_mutex_lock(&m->lock);
    if (m->view.connected && dp_note_give(m->line.fd, n) < 0)
        shutdown(m->line.fd, SHUT_RDWR); /* the thread sees its end */
    pthread_mutex_unlock(&m->lock);
}

int dp_member_take_listener(struct dp_member *m, uint64_t epoch)
{
    int fd = -1;

    pthread_mutex_lock(&m->lock);
    if (m->listen_epoch == epoch) {
        fd = m->listen_fd;
        m->listen_fd = -1;
    }
    pthread_mutex_unlock(&m->lock);
    return fd;
}

/* With the lock held: whoever waits looks again. */
static void changed(struct dp_member *m)
{
    pthread_cond_broadcast(&m->changed);
}

static void wake(struct dp_member *m)
{
    if (m->o.wake)
        m->o.wake(m->o.wake_arg);
}

/* ---- what is said ---- */

static void end_meeting(struct dp_member *m, const char *why)
{
    if (m->view.port == 0)
        return;
    m->view.port = 0;
    snprintf(m->view.why, sizeof m->view.why, "%s", why);
    log_warning("the data-parallel group has come apart: %s", why);
}

/* Makes the socket at which the ranks will meet, in this process's interface. */
static void open_meeting(struct dp_member *m, uint64_t epoch)
{
    struct dp_note n = { .kind = DP_OPENED, .epoch = epoch };
    struct err e = { "" };
    uint16_t port = 0;
    int fd = -1;

    if (group_listen(&fd, &port, m->host, 0, &e) < 0)
        log_error("data-parallel group: %s", e.text);
    pthread_mutex_lock(&m->lock);
    if (m->listen_fd >= 0)
        close(m->listen_fd);
    m->listen_fd = fd;
    m->listen_epoch = epoch;
    pthread_mutex_unlock(&m->lock);
    n.n = port;
    dp_member_say(m, &n);
}

static void rank_came(struct dp_member *m, const struct dp_note *in)
{
    if (in->rank >= m->o.size || m->up[in->rank])
        return;
    m->up[in->rank] = true;
    log_info("data-parallel rank %u is up (%s)", in->rank, in->text);
}

static void rank_went(struct dp_member *m, const struct dp_note *in)
{
    if (in->rank >= m->o.size)
        return;
    m->up[in->rank] = false;
    log_warning("%s", in->text);
}

static void now_missing(struct dp_member *m, const struct dp_note *in)
{
    if (in->text[0] && strcmp(m->view.missing, in->text) != 0)
        log_info("waiting for %s", in->text);
    snprintf(m->view.missing, sizeof m->view.missing, "%s", in->text);
    m->view.absent = in->n;
}

static void now_meet(struct dp_member *m, const struct dp_note *in)
{
    m->view.epoch = in->epoch;
    m->view.port = (uint16_t)in->n;
    m->view.wave = 0;
    m->view.missing[0] = '\0';
}

/* Not for now: it asks again, and is told the same. */
static void now_refused(struct dp_member *m, const struct dp_note *in)
{
    if (strcmp(m->view.why, in->text) != 0)
        log_error("data-parallel rank %u is refused by rank 0: %s", m->o.rank, in->text);
    m->view.refused = in->n == 0;
    snprintf(m->view.why, sizeof m->view.why, "%s", in->text);
}

static void take_note(struct dp_member *m, const struct dp_note *in)
{
    switch (in->kind) {
    case DP_UP:
        rank_came(m, in);
        break;
    case DP_DOWN:
        rank_went(m, in);
        break;
    case DP_MISSING:
        now_missing(m, in);
        break;
    case DP_MEET:
        now_meet(m, in);
        break;
    case DP_START:
        if (in->epoch == m->view.epoch)
            m->view.wave = in->wave;
        break;
    case DP_OVER:
        m->view.asked++;
        if (in->epoch == m->view.epoch)
            end_meeting(m, in->text);
        break;
    case DP_REFUSED:
        now_refused(m, in);
        break;
    default: /* of a later version */
        break;
    }
}

static bool hear(struct dp_member *m)
{
    struct dp_note in;
    int st;

    while ((st = dp_note_take(&m->line, &in)) > 0) {
        if (in.kind == DP_OPEN) {
            open_meeting(m, in.epoch);
            continue;
        }
        pthread_mutex_lock(&m->lock);
        take_note(m, &in);
        changed(m);
        pthread_mutex_unlock(&m->lock);
        wake(m);
    }
    return st == 0;
}

/* ---- the connection ---- */

/* Waits for events on fd; false: told to stop, or `seconds` are over. */
static bool wait_for(struct dp_member *m, int fd, short events, double seconds)
{
    struct pollfd p[2] = { { .fd = m->stop_fd, .events = POLLIN }, { .fd = fd, .events = events } };
    int ms = seconds < 0 ? -1 : (int)ceil(seconds * 1e3);

    return poll(p, 2, ms) > 0 && !p[0].revents && p[1].revents;
}

static void pause_for(struct dp_member *m, double seconds)
{
    struct pollfd p = { .fd = m->stop_fd, .events = POLLIN };

    poll(&p, 1, (int)ceil(seconds * 1e3));
}

/* Traffic leaves from the interface that was chosen. Where that cannot be (another family), the host
 * decides. */
static void bind_own(const struct dp_member *m, int fd, int family)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = family };
    struct addrinfo *own = NULL;

    if (!m->own_host || getaddrinfo(m->own_host, NULL, &hints, &own) != 0)
        return;
    if (bind(fd, own->ai_addr, own->ai_addrlen) < 0)
        log_debug("data-parallel group: cannot bind to %s: %s", m->own_host, strerror(errno));
    freeaddrinfo(own);
}

static int connect_to(struct dp_member *m, const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int fault = 0;
    socklen_t len = sizeof fault;

    if (fd < 0)
        return -1;
    bind_own(m, fd, a->ai_family);
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    if (errno == EINPROGRESS && wait_for(m, fd, POLLOUT, DP_DOOR_SECONDS) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &len) == 0 && fault == 0)
        return fd;
    close(fd);
    return -1;
}

static int reach(struct dp_member *m)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC };
    struct addrinfo *list = NULL;
    char service[8];
    int fd = -1;

    snprintf(service, sizeof service, "%u", m->o.port);
    if (getaddrinfo(m->host, service, &hints, &list) != 0)
        return -1;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = connect_to(m, a);
    freeaddrinfo(list);
    return fd;
}

static void introduce(struct dp_member *m, const struct dp_note *hello)
{
    struct dp_note n = { .kind = DP_ARRIVE,
                         .rank = m->o.rank,
                         .wave = m->o.size,
                         .epoch = m->process,
                         .about = m->o.in_step };
    struct hash256 proof;
    char host[40] = "";

    gethostname(host, sizeof host - 1);
    dp_note_prove(&proof, m->secret, (const unsigned char *)hello->text, m->o.rank);
    memcpy(n.text, &proof, sizeof proof);
    snprintf(n.text + sizeof proof, sizeof n.text - sizeof proof, "%s, pid %d",
             m->own_host ? m->own_host : host, (int)getpid());
    dp_note_give(m->line.fd, &n);
}

/* A connection at which the coordinator has said hello, and knows who we are. */
static bool come_in(struct dp_member *m)
{
    struct dp_note hello;
    int st = 0, fd = reach(m);

    if (fd < 0)
        return false;
    dp_socket_settle(fd);
    m->line = (struct dp_line){ .fd = fd };
    while (st == 0 && wait_for(m, fd, POLLIN, DP_DOOR_SECONDS))
        st = dp_note_take(&m->line, &hello);
    if (st <= 0 || hello.kind != DP_HELLO) {
        close(fd);
        m->line.fd = -1;
        return false;
    }
    introduce(m, &hello);
    return true;
}

static void set_connected(struct dp_member *m)
{
    pthread_mutex_lock(&m->lock);
    m->view.connected = true;
    m->view.asked++;
    m->view.missing[0] = '\0'; /* it will tell */
    changed(m);
    pthread_mutex_unlock(&m->lock);
    wake(m);
}

/* Nobody is known of any more but this rank itself. */
static void lose(struct dp_member *m)
{
    char why[DP_NOTE_TEXT];

    snprintf(why, sizeof why, "data-parallel rank 0 at %s:%u has gone: its connection has ended",
             m->host, m->o.port);
    pthread_mutex_lock(&m->lock);
    close(m->line.fd);
    m->line.fd = -1;
    m->view.connected = false;
    if (m->up[0] && m->o.rank != 0 && m->view.port == 0)
        log_warning("%s", why);
    for (uint32_t r = 0; r < m->o.size; r++)
        m->up[r] = r == m->o.rank;
    end_meeting(m, why);
    m->view.absent = 1;
    snprintf(m->view.missing, sizeof m->view.missing,
             "data-parallel rank 0 (nobody answers at %s:%u)", m->host, m->o.port);
    changed(m);
    pthread_mutex_unlock(&m->lock);
    wake(m);
}

static void *run(void *arg)
{
    struct dp_member *m = arg;
    double pause = PAUSE_FIRST;

    while (!atomic_load(&m->stop) && !m->view.refused) { /* which this thread alone sets */
        if (come_in(m)) {
            double since = clock_now();

            set_connected(m);
            while (!atomic_load(&m->stop) && (wait_for(m, m->line.fd, POLLIN, -1) && hear(m)))
                continue;
            if (atomic_load(&m->stop))
                break;
            lose(m);
            if (clock_now() - since > PAUSE_MOST)
                pause = PAUSE_FIRST;
        }
        pause_for(m, pause);
        pause = fmin(1.5 * pause, PAUSE_MOST);
    }
    return NULL;
}

/* ---- the door ---- */

static int allocate(struct dp_member *m, const struct dp_member_options *o)
{
    pthread_condattr_t attr;

    m->o = *o;
    m->line.fd = m->stop_fd = m->listen_fd = -1;
    pthread_mutex_init(&m->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&m->changed, &attr);
    pthread_condattr_destroy(&attr);
    rand_bytes(&m->process, sizeof m->process);
    m->own_host = o->own_host ? strdup(o->own_host) : NULL;
    m->host = strdup(o->host);
    m->secret = o->secret ? strdup(o->secret) : NULL;
    m->up = calloc(o->size, sizeof *m->up);
    if ((o->own_host && !m->own_host) || !m->host || (o->secret && !m->secret) || !m->up)
        return ERR_NOMEM;
    m->up[o->rank] = true;
    m->view.absent = 1;
    snprintf(m->view.missing, sizeof m->view.missing,
             "data-parallel rank 0 (nobody answers at %s:%u)", m->host, o->port);
    return 0;
}

int dp_member_open(struct dp_member **out, const struct dp_member_options *o, struct err *e)
{
    struct dp_member *m = calloc(1, sizeof *m);

    if (!m)
        return err_set(e, ERR_NOMEM, "no memory for a data-parallel rank");
    if (allocate(m, o) < 0) {
        dp_member_close(m);
        return err_set(e, ERR_NOMEM, "no memory for a data-parallel rank");
    }
    if ((m->stop_fd = eventfd(0, EFD_CLOEXEC)) < 0 || pthread_create(&m->thread, NULL, run, m)) {
        dp_member_close(m);
        return err_set(e, ERR_LIMIT, "cannot start the data-parallel rank's thread");
    }
    m->running = true;
    *out = m;
    return 0;
}

void dp_member_close(struct dp_member *m)
{
    if (!m)
        return;
    if (m->running) {
        dp_member_say(m, &(struct dp_note){ .kind = DP_LEAVE });
        atomic_store(&m->stop, true);
        eventfd_write(m->stop_fd, 1);
        pthread_join(m->thread, NULL);
    }
    if (m->line.fd >= 0)
        close(m->line.fd);
    if (m->listen_fd >= 0)
        close(m->listen_fd);
    if (m->stop_fd >= 0)
        close(m->stop_fd);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    free(m->own_host);
    free(m->host);
    free(m->secret);
    free(m->up);
    free(m);
}
