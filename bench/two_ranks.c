#include "two_ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/group.h"

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "%s\n", what);
    exit(1);
}

void two_ranks(size_t scratch, unsigned limit,
               void (*run)(void *arg, struct group *g, uint32_t rank), void *arg)
{
    struct group_options o = { .size = RANKS,
                               .host = "127.0.0.1",
                               .master_host = "127.0.0.1",
                               .meet_seconds = 60,
                               .op_seconds = limit,
                               .scratch = scratch };
    struct err e = { "" };
    struct group *g;
    pid_t pid;

    if (group_listen(&o.listen_fd, &o.master_port, o.host, 0, &e) < 0)
        die(e.text);
    if ((pid = fork()) < 0)
        die("cannot start a process");
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(o.listen_fd);
        o.listen_fd = -1;
        o.rank = 1;
    }
    alarm(limit);
    if (group_join(&g, &o, &e) < 0)
        die(e.text);
    run(arg, g, o.rank);
    group_leave(g);
    if (pid == 0)
        _exit(0);
    waitpid(pid, NULL, 0);
}
