#include "sys/clock.h"

#include <errno.h>
#include <time.h>

uint64_t clock_now_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double clock_now(void)
{
    return (double)clock_now_ns() * 1e-9;
}

double clock_wall(void)
{
    struct timespec t;

    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

void clock_sleep(double seconds)
{
    struct timespec t = { .tv_sec = (time_t)seconds };

    t.tv_nsec = (long)((seconds - (double)t.tv_sec) * 1e9);
    while (nanosleep(&t, &t) < 0 && errno == EINTR)
        ;
}
