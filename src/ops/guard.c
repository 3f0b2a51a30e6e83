#include "ops/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"

struct news {
    uint32_t slot;
    pid_t group;
};

/* Nothing that somebody may wait to see closed stays open here. */
static void close_all_but(int fd)
{
    int null = open("/dev/null", O_RDWR);

    for (int i = 0; i < 3 && null >= 0; i++)
        dup2(null, i);
    if (fd > 3)
        close_range(3, (unsigned)fd - 1, 0);
    close_range((unsigned)fd + 1, ~0u, 0);
}

static _Noreturn void watch(int fd, pid_t *group, uint32_t slots)
{
    struct news n;
    ssize_t got;

    prctl(PR_SET_NAME, "sluice-guard");
    setpgid(0, 0);
    close_all_but(fd);
    while ((got = read(fd, &n, sizeof n)) == sizeof n || (got < 0 && errno == EINTR))
        if (got > 0 && n.slot < slots)
            group[n.slot] = n.group;
    for (uint32_t i = 0; i < slots; i++)
        if (group[i] > 0)
            kill(-group[i], SIGKILL);
    _exit(0);
}

int guard_start(struct guard *g, uint32_t slots, struct err *e)
{
    pid_t *group = calloc(slots, sizeof *group);
    int fd[2];

    if (!group || pipe2(fd, O_CLOEXEC) < 0) {
        free(group);
        return err_set(e, ERR_LIMIT, "cannot make a pipe: %s", strerror(errno));
    }
    g->pid = fork();
    if (g->pid == 0) {
        close(fd[1]);
        watch(fd[0], group, slots);
    }
    free(group);
    close(fd[0]);
    if (g->pid < 0) {
        g->pid = 0;
        close(fd[1]);
        return err_set(e, ERR_LIMIT, "cannot start a process: %s", strerror(errno));
    }
    g->fd = fd[1];
    return 0;
}

void guard_tell(const struct guard *g, uint32_t slot, pid_t group)
{
    struct news n = { slot, group };

    /* A guard that somebody killed is missed only if we are killed, too. */
    if (write(g->fd, &n, sizeof n) < 0)
        return;
}

void guard_finish(struct guard *g)
{
    if (!g->pid)
        return;
    close(g->fd);
    waitpid(g->pid, NULL, 0);
    g->pid = 0;
}
