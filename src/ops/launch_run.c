/* The life of all ranks: one loop over what they write, signals and deaths.
 *
 * Every template leads a process group. This process is the reaper of its descendants: whoever loses its
 * parent becomes its child. So it learns how a server ended whose shell was gone before it, and
 * finds those that have left their group. */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "ops/guard.h"
#include "ops/launch.h"
#include "ops/launch_rank.h"
#include "ops/outlet.h"
#include "ops/strays.h"
#include "sys/clock.h"

#define TICK_SECONDS  0.2 /* between looks at groups that were told to end */
#define DRAIN_SECONDS 2.0 /* for the last lines, when all ranks have gone */

struct launch {
    const struct launch_options *o;
    struct guard guard;
    int signals; /* descriptor of these: SIGCHLD and those that end us */
    struct launch_rank *rank;
    uint32_t n;
    struct pollfd *poll; /* signals, the two outputs, then the streams of all ranks */
    struct outlet out[LAUNCH_STREAMS];
    struct strays strays;
    uint32_t n_asked; /* signals that asked to end */
    bool stopping;
    double kill_at; /* strays; those of a group have their rank's */
    double done_at; /* 0, or when the last process had gone */
    int exit_status;
};

static void note_status(struct launch *l, int code)
{
    if (l->exit_status == 0)
        l->exit_status = code;
}

static void read_rank(struct launch *l, struct launch_rank *r, int stream)
{
    launch_rank_read(r, stream, &l->out[stream].pending, OUTLET_ENOUGH);
    outlet_flush(&l->out[stream]);
}

static bool group_exists(const struct launch_rank *r)
{
    return kill(-r->pid, 0) == 0 || errno != ESRCH;
}

static struct launch_rank *rank_of_group(struct launch *l, pid_t group)
{
    for (uint32_t i = 0; i < l->n; i++)
        if (l->rank[i].pid == group && !l->rank[i].gone)
            return &l->rank[i];
    return NULL;
}

/* The guard, and everybody in the group of a rank. */
static bool is_known(void *arg, pid_t pid)
{
    struct launch *l = arg;

    return pid == l->guard.pid || rank_of_group(l, getpgid(pid));
}

static void end_rank(struct launch *l, struct launch_rank *r)
{
    if (r->gone || !r->pid || r->kill_at != 0)
        return;
    r->kill_at = clock_now() + l->o->shutdown_timeout;
    kill(-r->pid, SIGTERM);
}

static void end_all(struct launch *l)
{
    if (l->stopping)
        return;
    l->stopping = true;
    l->kill_at = clock_now() + l->o->shutdown_timeout;
    for (uint32_t i = 0; i < l->n; i++)
        end_rank(l, &l->rank[i]);
}

/* From now on every look kills what is left. */
static void kill_all(struct launch *l)
{
    l->stopping = true;
    l->kill_at = -INFINITY;
    for (uint32_t i = 0; i < l->n; i++)
        l->rank[i].kill_at = -INFINITY;
}

static int code_of(const siginfo_t *si)
{
    return si->si_code == CLD_EXITED ? si->si_status : 128 + si->si_status;
}

static void describe(char *out, size_t cap, const siginfo_t *si)
{
    if (si->si_code == CLD_EXITED)
        snprintf(out, cap, "ended with status %d", si->si_status);
    else
        snprintf(out, cap, "was ended by signal %d (%s)", si->si_status, strsignal(si->si_status));
}

/* A shell whose server was told to end dies of the same signal, or says that its child did. */
static bool ended_well(const siginfo_t *si)
{
    return code_of(si) == 0 || code_of(si) == 128 + SIGTERM;
}

/* Nobody asked it to end: the others end with it. */
static void on_death(struct launch *l, struct launch_rank *r, const siginfo_t *si)
{
    char how[96];

    for (int s = 0; s < LAUNCH_STREAMS; s++)
        read_rank(l, r, s); /* its last words come first */
    describe(how, sizeof how, si);
    log_error("rank %u (pid %d) %s%s", r->rank, (int)r->pid, how,
              l->o->keep_going ? "; the others go on" : "; ending the others");
    note_status(l, code_of(si) ? code_of(si) : 1);
    if (l->o->keep_going)
        end_rank(l, r);
    else
        end_all(l);
}

static void on_child(struct launch *l, const siginfo_t *si)
{
    struct launch_rank *r = rank_of_group(l, getpgid(si->si_pid));
    char how[96];

    if (si->si_pid == l->guard.pid) {
        log_warning("the guard has been ended: a kill -9 of this process may leave servers");
        l->guard.pid = 0;
    }
    if (!r)
        return;
    if (r->pid == si->si_pid)
        r->led = false;
    if (r->pid == si->si_pid && r->kill_at == 0) {
        on_death(l, r, si);
    } else if (r->kill_at != 0 && !ended_well(si)) {
        describe(how, sizeof how, si);
        if (!r->killed)
            log_warning("rank %u: process %d %s", r->rank, (int)si->si_pid, how);
        note_status(l, code_of(si));
    }
}

/* Looked at before it is reaped: until then the kernel knows its group. */
static void reap(struct launch *l)
{
    siginfo_t si = { 0 };

    while (waitid(P_ALL, 0, &si, WEXITED | WNOHANG | WNOWAIT) == 0 && si.si_pid) {
        on_child(l, &si);
        waitpid(si.si_pid, NULL, 0);
        si.si_pid = 0;
    }
}

static void on_signal(struct launch *l, int signo)
{
    if (signo == SIGCHLD)
        return; /* every round looks */
    if (++l->n_asked == 1) {
        log_info("%s: ending all ranks", strsignal(signo));
        end_all(l);
        return;
    }
    log_warning("%s again: killing what is left", strsignal(signo));
    l->exit_status = 128 + signo;
    kill_all(l);
}

static void read_signals(struct launch *l)
{
    struct signalfd_siginfo s;

    while (read(l->signals, &s, sizeof s) == sizeof s)
        on_signal(l, (int)s.ssi_signo);
}

static void kill_rank(struct launch_rank *r)
{
    if (!r->killed && r->led)
        log_warning("rank %u has not ended; killing it", r->rank);
    else if (!r->killed)
        log_warning("what rank %u has started has not ended; killing it", r->rank);
    r->killed = true;
    kill(-r->pid, SIGKILL);
}

/* Kills what had its time, and finds out what is gone. */
static void look(struct launch *l)
{
    double now = clock_now();
    uint32_t left = 0;

    for (uint32_t i = 0; i < l->n; i++) {
        struct launch_rank *r = &l->rank[i];

        if (r->gone)
            continue;
        if (r->kill_at != 0 && now >= r->kill_at)
            kill_rank(r);
        if (!r->led && !group_exists(r)) {
            r->gone = true;
            guard_tell(&l->guard, i, 0);
        }
        left += !r->gone;
    }
    if (left == 0)
        end_all(l); /* with keep_going the last one may have died just now */
    if (l->stopping)
        left += strays_end(&l->strays, is_known, l, now >= l->kill_at);
    if (left == 0 && l->done_at == 0)
        l->done_at = now;
}

static bool has_output(const struct launch *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        for (int s = 0; s < LAUNCH_STREAMS; s++)
            if (l->rank[i].fd[s] >= 0)
                return true;
    return l->out[LAUNCH_STDOUT].pending.len || l->out[LAUNCH_STDERR].pending.len;
}

static bool finished(const struct launch *l)
{
    return l->done_at != 0 && (!has_output(l) || clock_now() > l->done_at + DRAIN_SECONDS);
}

static uint32_t fill_poll(struct launch *l)
{
    struct pollfd *p = l->poll;

    *p++ = (struct pollfd){ .fd = l->signals, .events = POLLIN };
    for (int s = 0; s < LAUNCH_STREAMS; s++)
        *p++ = (struct pollfd){ .fd = l->out[s].pending.len ? l->out[s].fd : -1,
                                .events = POLLOUT };
    for (uint32_t i = 0; i < l->n; i++)
        for (int s = 0; s < LAUNCH_STREAMS; s++)
            *p++ = (struct pollfd){ .fd = l->out[s].pending.len < OUTLET_ENOUGH ? l->rank[i].fd[s]
                                                                                : -1,
                                    .events = POLLIN };
    return (uint32_t)(p - l->poll);
}

/* Waits, then takes what has come: output first, so that what a rank said is there when it is named. */
static void turn(struct launch *l)
{
    bool watch = l->done_at != 0;
    const struct pollfd *p = &l->poll[1 + LAUNCH_STREAMS];
    uint32_t n = fill_poll(l);

    for (uint32_t i = 0; i < l->n; i++)
        watch |= l->rank[i].kill_at != 0 || (!l->rank[i].led && !l->rank[i].gone);
    if (poll(l->poll, n, watch ? (int)(TICK_SECONDS * 1e3) : -1) < 0)
        return;
    for (int s = 0; s < LAUNCH_STREAMS; s++)
        outlet_flush(&l->out[s]);
    for (uint32_t i = 0; i < l->n; i++)
        for (int s = 0; s < LAUNCH_STREAMS; s++)
            if (p++->revents)
                read_rank(l, &l->rank[i], s);
    read_signals(l);
    reap(l);
    look(l);
}

static int watch_signals(struct launch *l, struct err *e)
{
    static const int ending[] = { SIGINT, SIGTERM, SIGHUP };
    struct sigaction old;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < sizeof ending / sizeof *ending; i++)
        /* nohup has SIGHUP ignored, which a signalfd would not heed */
        if (ending[i] != SIGHUP ||
            (sigaction(SIGHUP, NULL, &old) == 0 && old.sa_handler != SIG_IGN))
            sigaddset(&set, ending[i]);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigprocmask(SIG_BLOCK, &set, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    l->signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    return l->signals < 0 ? err_set(e, ERR_LIMIT, "cannot watch signals: %s", strerror(errno)) : 0;
}

static int open_all(struct launch *l, struct err *e)
{
    const struct launch_options *o = l->o;
    int st;

    l->rank = calloc(o->n_local, sizeof *l->rank);
    l->poll = calloc(1 + LAUNCH_STREAMS + LAUNCH_STREAMS * (size_t)o->n_local, sizeof *l->poll);
    if (!l->rank || !l->poll)
        return err_set(e, ERR_NOMEM, "no memory for %u ranks", o->n_local);
    for (uint32_t i = 0; i < o->n_local; i++)
        launch_rank_init(&l->rank[i]);
    for (int s = 0; s < LAUNCH_STREAMS; s++)
        outlet_init(&l->out[s], s + 1);
    if (o->log_dir && mkdir(o->log_dir, 0755) < 0 && errno != EEXIST)
        return err_set(e, ERR_IO, "cannot make --log-dir %s: %s", o->log_dir, strerror(errno));
    if ((st = watch_signals(l, e)) < 0)
        return st;
    return guard_start(&l->guard, o->n_local, e);
}

static void close_all(struct launch *l)
{
    for (uint32_t i = 0; i < l->n; i++)
        launch_rank_finish(&l->rank[i]);
    guard_finish(&l->guard);
    for (int s = 0; s < LAUNCH_STREAMS; s++)
        outlet_finish(&l->out[s]);
    if (l->signals >= 0)
        close(l->signals);
    free(l->rank);
    free(l->poll);
}

int launch_run(const struct launch_options *o, int *exit_status, struct err *e)
{
    struct launch l = { .o = o, .signals = -1 };
    int st = open_all(&l, e);

    while (st == 0 && l.n < o->n_local)
        if ((st = launch_rank_start(&l.rank[l.n], o, l.n, &l.guard, e)) == 0)
            l.n++;
    if (st < 0)
        end_all(&l);
    while (l.n && !finished(&l))
        turn(&l);
    if (st == 0)
        *exit_status = l.exit_status;
    close_all(&l);
    return st;
}
