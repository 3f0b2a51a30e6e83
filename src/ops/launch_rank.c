#include "ops/launch_rank.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "ops/guard.h"
#include "ops/launch.h"

#define READ_BYTES 4096
#define NOT_RUN    127 /* exit status, as a shell's */

void launch_rank_init(struct launch_rank *r)
{
    *r = (struct launch_rank){ .fd = { -1, -1 }, .log = -1 };
}

static void close_fd(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void launch_rank_finish(struct launch_rank *r)
{
    for (int i = 0; i < LAUNCH_STREAMS; i++) {
        close_fd(&r->fd[i]);
        lines_finish(&r->lines[i]);
    }
    close_fd(&r->log);
}

static int open_log(struct launch_rank *r, const char *dir, struct err *e)
{
    char path[4096];

    if ((size_t)snprintf(path, sizeof path, "%s/rank-%u.log", dir, r->rank) >= sizeof path)
        return err_set(e, ERR_INVAL, "--log-dir: the name is too long");
    r->log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    return r->log < 0 ? err_set(e, ERR_IO, "cannot write %s: %s", path, strerror(errno)) : 0;
}

/* The new process. A template that may not be executed is given to bash, as the reference launcher does
 * with all of them. */
static _Noreturn void become(const char *const args[LAUNCH_ARGS + 3], const int out[LAUNCH_STREAMS],
                             pid_t parent, const struct guard *g, uint32_t slot)
{
    int null = open("/dev/null", O_RDONLY);
    char *argv[LAUNCH_ARGS + 3];
    sigset_t none;

    memcpy(argv, args, sizeof argv); /* exec takes no const, and changes nothing */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(NOT_RUN);
    setpgid(0, 0);
    guard_tell(g, slot, getpid());
    dup2(null, 0);
    for (int i = 0; i < LAUNCH_STREAMS; i++)
        dup2(out[i], i + 1);
    close(null);
    signal(SIGPIPE, SIG_DFL);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (access(argv[1], X_OK) == 0)
        execv(argv[1], argv + 1);
    if (errno == EACCES || errno == ENOEXEC)
        execvp(argv[0], argv);
    dprintf(2, "cannot run %s: %s\n", argv[1], strerror(errno));
    _exit(NOT_RUN);
}

static int spawn(struct launch_rank *r, const struct launch_options *o, uint32_t i,
                 const struct guard *g, struct err *e)
{
    const char *argv[LAUNCH_ARGS + 3] = { "bash", o->template_path };
    int in[LAUNCH_STREAMS][2] = { { -1, -1 }, { -1, -1 } };
    pid_t parent = getpid();
    struct launch_args args;
    bool open = pipe2(in[0], O_CLOEXEC) == 0 && pipe2(in[1], O_CLOEXEC) == 0;
    int why;

    launch_args_make(&args, o, i);
    memcpy(&argv[2], args.v, sizeof args.v);
    r->pid = open ? fork() : -1;
    if (r->pid == 0)
        become(argv, (const int[]){ in[0][1], in[1][1] }, parent, g, i);
    why = errno;
    for (int s = 0; s < LAUNCH_STREAMS; s++) {
        close_fd(&in[s][1]);
        r->fd[s] = in[s][0];
        fcntl(r->fd[s], F_SETFL, O_NONBLOCK);
    }
    if (r->pid < 0) {
        r->pid = 0;
        return err_set(e, ERR_LIMIT, "cannot start rank %u: %s", r->rank, strerror(why));
    }
    setpgid(r->pid, r->pid); /* whoever comes first, it or we */
    r->led = true;
    return 0;
}

int launch_rank_start(struct launch_rank *r, const struct launch_options *o, uint32_t i,
                      const struct guard *g, struct err *e)
{
    char prefix[LINES_MAX_PREFIX];
    int st = 0;

    r->rank = o->first_rank + i;
    snprintf(prefix, sizeof prefix, "[rank %u] ", r->rank);
    for (int s = 0; s < LAUNCH_STREAMS; s++)
        lines_init(&r->lines[s], prefix);
    if ((o->log_dir && (st = open_log(r, o->log_dir, e)) < 0) || (st = spawn(r, o, i, g, e)) < 0)
        launch_rank_finish(r);
    return st;
}

static void write_log(struct launch_rank *r, struct buf *plain)
{
    if (plain->len && write(r->log, plain->data, plain->len) < (ssize_t)plain->len) {
        log_warning("rank %u: its file in --log-dir is no longer written: %s", r->rank,
                    strerror(errno));
        close_fd(&r->log);
    }
    buf_finish(plain);
}

void launch_rank_read(struct launch_rank *r, int stream, struct buf *out, size_t enough)
{
    struct lines *l = &r->lines[stream];
    struct buf plain, *also = r->log >= 0 ? &plain : NULL;
    char data[READ_BYTES];

    buf_init(&plain, BUF_MAX_REPLY);
    while (r->fd[stream] >= 0 && out->len < enough) {
        ssize_t n = read(r->fd[stream], data, sizeof data);

        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (n > 0) {
            lines_add(l, data, (size_t)n, out, also);
            continue;
        }
        lines_end(l, out, also);
        close_fd(&r->fd[stream]);
    }
    if (also)
        write_log(r, also);
}
