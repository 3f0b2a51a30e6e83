#include "ops/strays.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

static bool seen(const pid_t *v, uint32_t n, pid_t pid)
{
    for (uint32_t i = 0; i < n; i++)
        if (v[i] == pid)
            return true;
    return false;
}

uint32_t strays_end(struct strays *s, bool (*known)(void *arg, pid_t pid), void *arg, bool now)
{
    FILE *f = fopen("/proc/thread-self/children", "r");
    pid_t found[STRAYS_MAX];
    uint32_t n = 0;
    int pid;

    if (!f)
        return 0;
    while (n < STRAYS_MAX && fscanf(f, "%d", &pid) == 1)
        if (!known(arg, pid))
            found[n++] = pid;
    fclose(f);
    for (uint32_t i = 0; i < n; i++)
        if (now || !seen(s->seen, s->n, found[i]))
            kill(found[i], now ? SIGKILL : SIGTERM);
    memcpy(s->seen, found, n * sizeof *found);
    return s->n = n;
}
