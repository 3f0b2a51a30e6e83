#include "main/serve_ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "serve/config.h"
#include "sys/clock.h"

#define POLL_SECONDS 0.01
#define SECRET_BYTES 32

struct ranks {
    uint32_t first, n, tp;
    bool ending;
    pid_t pid[]; /* [n] by rank - first; 0: not a process of its own, or it has ended */
};

/* ---- starting ---- */

/* Only processes that know it may join. Among ranks that one call starts it is made here; others must be
 * told by the environment, as between P and D. */
static int choose_secret(struct serve_config *c, struct err *e)
{
    struct engine_ranks *r = &c->ranks;
    const char *given = getenv("SLUICE_RANKS_SECRET");
    unsigned char raw[SECRET_BYTES];
    bool alone = c->n_local_ranks == r->pp * r->tp && r->dp_size == 1;

    if (given && given[0]) {
        r->secret = given;
        return 0;
    }
    if (!alone) {
        log_info("SLUICE_RANKS_SECRET is not set: whoever reaches the ports of the ranks can join");
        return 0;
    }
    if (getrandom(raw, sizeof raw, 0) != sizeof raw)
        return err_set(e, ERR_IO, "no random numbers: %s", strerror(errno));
    for (size_t i = 0; i < sizeof raw; i++)
        snprintf(c->secret + 2 * i, 3, "%02x", raw[i]);
    r->secret = c->secret;
    return 0;
}

static int open_meeting(struct serve_config *c, struct err *e)
{
    struct engine_ranks *r = &c->ranks;
    int st;

    if (c->first_rank > 0 || r->pp * r->tp == 1)
        return 0;
    st = group_listen(&r->listen_fd, &r->master_port, r->master_host, r->master_port, e);
    return st < 0 ? err_prefix(e, st, "ranks (--master-addr, --master-port)") : 0;
}

static void name_process(const struct serve_config *c)
{
    static char who[64], name[16];
    uint32_t rank = c->ranks.rank;

    snprintf(who, sizeof who, "serve (rank %u, pp%u tp%u)", rank, rank / c->ranks.tp,
             rank % c->ranks.tp);
    snprintf(name, sizeof name, "sluice-rank%u", rank);
    prctl(PR_SET_NAME, name);
    log_init(who);
}

/* Signals from a terminal reach the whole group: what they mean is for the parent to say. */
static void become_rank(struct serve_config *c, uint32_t rank, pid_t parent)
{
    sigset_t none;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1); /* it died before it could be watched */
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (c->ranks.listen_fd >= 0)
        close(c->ranks.listen_fd);
    c->ranks.listen_fd = -1;
    c->ranks.rank = rank;
    name_process(c);
}

/* True in the new process. */
static int start_rank(struct ranks *r, struct serve_config *c, uint32_t i, struct err *e)
{
    pid_t parent = getpid(), pid;

    fflush(NULL); /* nothing is printed twice */
    pid = fork();
    if (pid < 0)
        return err_set(e, ERR_LIMIT, "rank %u cannot be started: %s", r->first + i,
                       strerror(errno));
    if (pid == 0) {
        become_rank(c, r->first + i, parent);
        return 1;
    }
    r->pid[i] = pid;
    return 0;
}

int ranks_start(struct ranks **out, struct serve_config *c, uint32_t *rank, struct err *e)
{
    struct ranks *r = calloc(1, sizeof *r + c->n_local_ranks * sizeof r->pid[0]);
    int st = r ? 0 : ERR_NOMEM;

    *out = NULL;
    *rank = c->first_rank;
    if (st < 0 || (st = choose_secret(c, e)) < 0 || (st = open_meeting(c, e)) < 0) {
        free(r);
        return st;
    }
    r->first = c->first_rank;
    r->n = c->n_local_ranks;
    r->tp = c->ranks.tp;
    for (uint32_t i = r->first == 0; i < r->n; i++) {
        st = start_rank(r, c, i, e);
        if (st > 0) {
            *rank = r->first + i;
            free(r);
            return 0;
        }
        if (st < 0) {
            ranks_kill(r);
            ranks_wait(r, 0);
            ranks_free(r);
            return st;
        }
    }
    *out = r;
    return 0;
}

/* ---- looking after them ---- */

static void describe_end(char *out, size_t cap, const struct ranks *r, uint32_t i, int status)
{
    uint32_t rank = r->first + i;
    int n = snprintf(out, cap, "rank %u (pp%u tp%u, pid %d) ", rank, rank / r->tp, rank % r->tp,
                     (int)r->pid[i]);

    if (n < 0 || (size_t)n >= cap)
        return;
    if (WIFSIGNALED(status))
        snprintf(out + n, cap - (size_t)n, "was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(out + n, cap - (size_t)n, "ended with status %d", WEXITSTATUS(status));
}

/* True if it has just ended. */
static bool has_ended(struct ranks *r, uint32_t i, int *status)
{
    return r->pid[i] > 0 && waitpid(r->pid[i], status, WNOHANG) == r->pid[i];
}

static bool any_left(const struct ranks *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        if (r->pid[i] > 0)
            return true;
    return false;
}

bool ranks_alone(const struct ranks *r)
{
    return !any_left(r);
}

bool ranks_look(struct ranks *r, char *why, size_t cap)
{
    char text[128];
    bool lost = false;
    int status;

    for (uint32_t i = 0; i < r->n; i++) {
        if (!has_ended(r, i, &status))
            continue;
        describe_end(text, sizeof text, r, i, status);
        r->pid[i] = 0;
        if (status == 0 && (r->ending || r->first > 0)) /* rank 0 told it to */
            continue;
        if (r->ending) {
            log_info("%s", text);
            continue;
        }
        log_error("%s: the instance cannot go on without it", text);
        if (!lost)
            snprintf(why, cap, "%s", text);
        lost = true;
        r->ending = true; /* the others follow it */
    }
    return lost;
}

void ranks_expect_end(struct ranks *r)
{
    r->ending = true;
}

void ranks_kill(struct ranks *r)
{
    r->ending = true;
    for (uint32_t i = 0; i < r->n; i++)
        if (r->pid[i] > 0)
            kill(r->pid[i], SIGKILL);
}

bool ranks_wait(struct ranks *r, double seconds)
{
    double until = clock_now() + seconds;
    bool well = true;
    char text[128];
    int status;

    r->ending = true;
    for (;;) {
        for (uint32_t i = 0; i < r->n; i++)
            if (has_ended(r, i, &status)) {
                describe_end(text, sizeof text, r, i, status);
                if (status != 0)
                    log_info("%s", text);
                well = well && status == 0;
                r->pid[i] = 0;
            }
        if (!any_left(r) || clock_now() >= until)
            break;
        clock_sleep(POLL_SECONDS);
    }
    for (uint32_t i = 0; i < r->n; i++)
        if (r->pid[i] > 0) {
            if (seconds > 0)
                log_warning("rank %u (pid %d) did not end within %g s: killed", r->first + i,
                            (int)r->pid[i], seconds);
            kill(r->pid[i], SIGKILL);
            waitpid(r->pid[i], NULL, 0);
            r->pid[i] = 0;
            well = false;
        }
    return well;
}

void ranks_free(struct ranks *r)
{
    free(r);
}

/* ---- a host without rank 0 ---- */

/* The signal that came, 0 after a second without one. */
static int next_signal(const sigset_t *set)
{
    struct timespec second = { 1, 0 };
    int signo = sigtimedwait(set, NULL, &second);

    return signo > 0 ? signo : 0;
}

int ranks_supervise(struct ranks *r, double patience)
{
    double end_at = 0;
    bool lost = false;
    char why[128];
    sigset_t set;
    int signo;

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigprocmask(SIG_BLOCK, &set, NULL);
    while (lost = ranks_look(r, why, sizeof why) || lost, any_left(r)) {
        if (lost || (end_at > 0 && clock_now() >= end_at))
            break;
        signo = next_signal(&set);
        if (signo != SIGTERM && signo != SIGINT)
            continue;
        if (end_at > 0)
            break;
        log_info("shutting down: rank 0 has %g s to end the instance", patience);
        ranks_expect_end(r);
        end_at = clock_now() + patience;
    }
    ranks_kill(r);
    ranks_wait(r, 5);
    return lost ? 1 : 0;
}
