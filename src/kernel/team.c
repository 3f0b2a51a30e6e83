#include "kernel/team.h"

#include "base/status.h"

#include <assert.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Spins before a thread sleeps: some ten microseconds, longer than the usual skew between threads
 * that have a CPU each, and than the pause between two runs of a step. */
#define SPINS 2000

/* An operation that is put off, with its copy of the job. */
struct put_off {
    team_item_fn *fn;
    uint32_t n;
    _Alignas(16) char job[TEAM_MAX_JOB];
};

/* The calling thread's place in a team, and the next operation that it will come to: put_off[0],
 * with the small ones that follow it. */
#define MAX_PUT_OFF 12
static _Thread_local struct place {
    struct team *team;
    uint32_t index, op;
    uint32_t n;
    struct put_off put_off[MAX_PUT_OFF];
} place;

static void flush(struct team_ahead *next);

static inline void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

/* The sequentially consistent order of value and sleepers makes sure that either the writer sees
 * the sleeper or the sleeper sees the new value. */
static void wake(struct team_word *w)
{
    if (atomic_load(&w->sleepers))
        syscall(SYS_futex, &w->value, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

static void set(struct team_word *w, uint32_t value)
{
    atomic_store(&w->value, value);
    wake(w);
}

/* Asks for the next line of what is ahead. */
static inline void fetch_line(struct team_ahead *a)
{
    for (int i = 0; i < TEAM_MAX_AHEAD; i++)
        if (a->bytes[i]) {
            __builtin_prefetch(a->at[i]);
            a->at[i] += 64;
            a->bytes[i] -= a->bytes[i] < 64 ? a->bytes[i] : 64;
            return;
        }
}

static void wait_while(struct team_word *w, uint32_t value, struct team_ahead *ahead)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&w->value, memory_order_acquire) != value)
            return;
        if (ahead)
            fetch_line(ahead);
        relax();
    }
    atomic_fetch_add(&w->sleepers, 1);
    while (atomic_load(&w->value) == value)
        syscall(SYS_futex, &w->value, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
    atomic_fetch_sub(&w->sleepers, 1);
}

/* Joins the run if one is open. A worker counts as inside before it looks, so that the caller, who
 * closes before it counts, cannot miss it. */
static void join_run(struct team *t)
{
    atomic_fetch_add(&t->inside.value, 1);
    if (atomic_load(&t->gate.value) & 1) {
        place.op = t->first_op;
        t->fn(t->arg);
        flush(NULL);
    }
    if (atomic_fetch_sub(&t->inside.value, 1) == 1)
        wake(&t->inside);
}

struct worker {
    struct team *team;
    uint32_t index;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    struct team *t = w->team;
    uint32_t seen = 0;

    place.team = t;
    place.index = w->index;
    free(w);
    for (;;) {
        wait_while(&t->gate, seen, NULL);
        seen = atomic_load(&t->gate.value);
        if (t->stop)
            return NULL;
        if (seen & 1)
            join_run(t);
    }
}

static int start_worker(struct team *t)
{
    struct worker *w = malloc(sizeof *w);

    if (!w)
        return ERR_NOMEM;
    *w = (struct worker){ t, t->started + 1 };
    if (pthread_create(&t->workers[t->started], NULL, work, w) != 0) {
        free(w);
        return ERR_LIMIT;
    }
    pthread_setname_np(t->workers[t->started], "team");
    t->started++;
    return 0;
}

int team_create(struct team *t, uint32_t threads)
{
    sigset_t all, before;
    int st = 0;

    memset(t, 0, sizeof *t);
    t->threads = threads;
    if (threads > 1 && !(t->workers = calloc(threads - 1, sizeof *t->workers)))
        return ERR_NOMEM;
    /* signals are for the threads that know what to do about them */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (st == 0 && t->started + 1 < threads)
        st = start_worker(t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st < 0)
        team_destroy(t);
    return st;
}

void team_destroy(struct team *t)
{
    t->stop = true;
    set(&t->gate, atomic_load(&t->gate.value) + 2);
    for (uint32_t i = 0; i < t->started; i++)
        pthread_join(t->workers[i], NULL);
    free(t->workers);
    t->workers = NULL;
    t->started = 0;
}

void team_run(struct team *t, void (*fn)(void *arg), void *arg)
{
    uint32_t gate = atomic_load(&t->gate.value), left;

    assert(!(gate & 1) && !place.team);
    t->fn = fn;
    t->arg = arg;
    t->first_op = atomic_load(&t->op.value);
    place.team = t;
    place.index = 0;
    place.op = t->first_op;
    set(&t->gate, gate + 1);
    fn(arg);
    flush(NULL);
    set(&t->gate, gate + 2);
    while ((left = atomic_load(&t->inside.value)) != 0)
        wait_while(&t->inside, left, NULL);
    place.team = NULL;
}

/* False if the operation has ended or all its items are taken. */
static bool take(struct team *t, uint32_t op, uint32_t n, uint32_t *item)
{
    uint64_t v = atomic_load_explicit(&t->ticket, memory_order_acquire);

    do {
        if ((uint32_t)(v >> 32) != op || (uint32_t)v >= n)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&t->ticket, &v, v + 1, memory_order_acq_rel,
                                                    memory_order_acquire));
    *item = (uint32_t)v;
    return true;
}

static void end(struct team *t, uint32_t op)
{
    atomic_store_explicit(&t->done, 0, memory_order_relaxed);
    atomic_store_explicit(&t->ticket, (uint64_t)(op + 1) << 32, memory_order_release);
    set(&t->op, op + 1);
}

/* Does what is put off. */
static void flush(struct team_ahead *next)
{
    struct team *t = place.team;
    struct put_off *first = place.put_off;
    uint32_t op = place.op, item;

    if (place.n == 0)
        return;
    place.op++;
    while (take(t, op, first->n, &item)) {
        first->fn(first->job, item, place.index);
        if (atomic_fetch_add_explicit(&t->done, 1, memory_order_acq_rel) + 1 < first->n)
            continue;
        for (struct put_off *p = first + 1; p < first + place.n; p++)
            p->fn(p->job, 0, place.index);
        end(t, op);
    }
    place.n = 0;
    wait_while(&t->op, op, next);
}

void team_items(struct team *t, uint32_t n, team_item_fn *fn, void *job, size_t job_bytes)
{
    team_items_ahead(t, n, fn, NULL, job, job_bytes);
}

void team_items_ahead(struct team *t, uint32_t n, team_item_fn *fn, team_ahead_fn *ahead, void *job,
                      size_t job_bytes)
{
    struct team_ahead next = { 0 };
    struct put_off *p;

    assert(job_bytes <= TEAM_MAX_JOB);
    if (place.team != t || t->threads == 1) {
        for (uint32_t item = 0; item < n; item++)
            fn(job, item, 0);
        return;
    }
    if (n == 0)
        return;
    if (n > 1 || place.n == MAX_PUT_OFF) {
        if (ahead)
            ahead(job, place.index < n ? place.index : n - 1, &next);
        flush(&next);
    }
    p = &place.put_off[place.n++];
    p->fn = fn;
    p->n = n;
    memcpy(p->job, job, job_bytes);
}
