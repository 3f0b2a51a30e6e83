#include "ops/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "sys/clock.h"

#define SECONDS_BETWEEN_LINES   5.0 /* in a log */
#define SECONDS_BETWEEN_UPDATES 0.2 /* on a terminal */

const char *progress_bytes(char out[32], uint64_t bytes)
{
    static const char *const units[] = { "bytes", "kB", "MB", "GB", "TB" };
    double v = (double)bytes;
    unsigned u = 0;

    for (; v >= 1000 && u < 4; u++)
        v /= 1000;
    snprintf(out, 32, u ? "%.1f %s" : "%.0f %s", v, units[u]);
    return out;
}

void progress_init(struct progress *p, const char *what, uint64_t total, bool quiet)
{
    *p = (struct progress){ .what = what, .total = total, .quiet = quiet };
    pthread_mutex_init(&p->lock, NULL);
    p->terminal = isatty(STDERR_FILENO);
    p->began = p->shown = clock_now();
}

static void show(const struct progress *p, double now, const char *end)
{
    char done[32], total[32], rate[32];
    double seconds = now - p->began > 1e-3 ? now - p->began : 1e-3;

    fprintf(stderr, "%s%s: %s of %s (%.0f %%), %s/s%s", p->terminal ? "\r\033[K" : "", p->what,
            progress_bytes(done, p->done), progress_bytes(total, p->total),
            p->total ? 100.0 * (double)p->done / (double)p->total : 100.0,
            progress_bytes(rate, (uint64_t)((double)p->done / seconds)), end);
}

void progress_add(struct progress *p, uint64_t bytes)
{
    double now = clock_now();

    pthread_mutex_lock(&p->lock);
    p->done += bytes;
    if (!p->quiet &&
        now - p->shown >= (p->terminal ? SECONDS_BETWEEN_UPDATES : SECONDS_BETWEEN_LINES)) {
        p->shown = now;
        show(p, now, p->terminal ? "" : "\n");
    }
    pthread_mutex_unlock(&p->lock);
}

void progress_finish(struct progress *p)
{
    if (!p->quiet)
        show(p, clock_now(), "\n");
    pthread_mutex_destroy(&p->lock);
}
