#include "kernel/team.h"

#include <limits.h>
#include <linux/futex.h>
#include <omp.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spins before a thread sleeps: some ten microseconds, longer than the usual skew between threads
 * that have a CPU each. Where they have not, spinning would only keep the others from running. */
#define SPINS 2000

static _Thread_local struct share current;

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

struct share team_share(struct team *t)
{
    if (current.team == t)
        return current;
    return (struct share){ .team = t, .index = 0, .count = 1 };
}

void team_run(struct team *t, void (*fn)(void *arg), void *arg)
{
#pragma omp parallel num_threads(t->threads)
    {
        struct share outer = current;

        current = (struct share){ t, (uint32_t)omp_get_thread_num(),
                                  (uint32_t)omp_get_num_threads() };
        fn(arg);
        current = outer;
    }
}

static void sleep_until_after(struct team *t, uint32_t epoch)
{
    atomic_fetch_add(&t->sleepers, 1);
    while (atomic_load(&t->epoch) == epoch)
        syscall(SYS_futex, &t->epoch, FUTEX_WAIT_PRIVATE, epoch, NULL, NULL, 0);
    atomic_fetch_sub(&t->sleepers, 1);
}

/* The last one to come lets the others go. The sequentially consistent order of epoch and sleepers
 * makes sure that either it sees the sleeper or the sleeper sees the new epoch. */
static void release(struct team *t, uint32_t epoch)
{
    atomic_store_explicit(&t->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&t->next, 0, memory_order_relaxed);
    atomic_store(&t->epoch, epoch + 1);
    if (atomic_load(&t->sleepers))
        syscall(SYS_futex, &t->epoch, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

void team_barrier(const struct share *s)
{
    struct team *t = s->team;
    uint32_t epoch;

    if (s->count == 1) {
        atomic_store_explicit(&t->next, 0, memory_order_relaxed);
        return;
    }
    epoch = atomic_load_explicit(&t->epoch, memory_order_acquire);
    if (atomic_fetch_add_explicit(&t->arrived, 1, memory_order_acq_rel) + 1 == s->count) {
        release(t, epoch);
        return;
    }
    for (unsigned i = 0; atomic_load_explicit(&t->epoch, memory_order_acquire) == epoch; i++) {
        if (i == SPINS) {
            sleep_until_after(t, epoch);
            return;
        }
        relax();
    }
}

uint32_t team_next(const struct share *s, uint32_t n)
{
    uint32_t i = atomic_fetch_add_explicit(&s->team->next, 1, memory_order_relaxed);

    return i < n ? i : n;
}
