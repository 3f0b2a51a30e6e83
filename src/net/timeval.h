/* Seconds for libevent. */
#ifndef SLUICE_NET_TIMEVAL_H
#define SLUICE_NET_TIMEVAL_H

#include <sys/time.h>

/* seconds >= 0. */
static inline struct timeval timeval_of(double seconds)
{
    time_t whole = (time_t)seconds;

    return (struct timeval){ whole, (suseconds_t)((seconds - (double)whole) * 1e6) };
}

#endif
