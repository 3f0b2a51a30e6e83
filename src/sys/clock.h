/* Time. Only live code asks the clock; the core (sched, kv, proxy/route) is given the time. */
#ifndef SLUICE_SYS_CLOCK_H
#define SLUICE_SYS_CLOCK_H

#include <stdint.h>

double clock_now(void);      /* monotonic seconds */
uint64_t clock_now_ns(void); /* monotonic nanoseconds */
double clock_wall(void);     /* seconds since 1970 */
void clock_sleep(double seconds);

#endif
