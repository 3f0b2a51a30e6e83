/* The event loop (libevent): one thread; other threads only call loop_post. */
#ifndef SLUICE_NET_LOOP_H
#define SLUICE_NET_LOOP_H

#include <stdbool.h>
#include <stdint.h>

struct err;
struct event_base;
struct loop;
struct loop_timer;

int loop_create(struct loop **out, struct err *e);
void loop_destroy(struct loop *l);            /* after everything that uses it */
struct event_base *loop_base(struct loop *l); /* for files of net/ */

/* Runs until loop_stop. Returns 0 or ERR_IO. */
int loop_run(struct loop *l);
void loop_stop(struct loop *l); /* loop thread only */

/* Runs fn(arg) on the loop thread soon. Any thread. Posted calls run in order. ERR_NOMEM. */
int loop_post(struct loop *l, void (*fn)(void *arg), void *arg);

/* A timer on the loop thread; once or repeating. Destroying it in its own callback is fine. */
int loop_timer_create(struct loop_timer **out, struct loop *l, void (*fn)(void *arg), void *arg);
void loop_timer_start(struct loop_timer *t, double seconds, bool repeat);
void loop_timer_stop(struct loop_timer *t);
void loop_timer_destroy(struct loop_timer *t);

/* Calls fn(arg, signo) on the loop thread for each of these signals (ends with 0). SIGPIPE is ignored
 * from loop_create on. */
int loop_signals(struct loop *l, const int *signals, void (*fn)(void *arg, int signo), void *arg);

/* Loop time: monotonic seconds. */
double loop_now(struct loop *l);

#endif
