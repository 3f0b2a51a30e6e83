/* Data-parallel ranks as processes that make steps together, without a model: every step exchanges
 * numbers that show which step it is. Ranks come in any order, die, stop, and come back. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "comm/group.h"
#include "engine/dp.h"
#include "engine/engine.h"
#include "sys/clock.h"

#define MAX_RANKS 5
#define PATIENCE  60 /* seconds after which the test gives up: nothing is measured by it */

/* What the test and a rank share. */
struct seat {
    pthread_mutex_t lock;
    pthread_cond_t some;
    bool woken, stop;
    uint32_t work;         /* steps that this rank wants */
    uint32_t done, failed; /* of these, steps made and steps that came to nothing */
    bool wrong;            /* an exchange brought what it should not */
    bool here;             /* the rank is ready */
    int status;            /* of opening and meeting */
    char said[1024];       /* the sentence for it, or why it is apart */
    bool apart;
    struct engine_dp_stats stats;
};

struct table {
    struct seat seat[MAX_RANKS];
};

struct run {
    uint32_t size;
    uint16_t port;
    bool in_step;
    double meet_seconds, step_seconds, work_seconds;
    uint32_t head_ranks;
    const char *secret[MAX_RANKS];
    uint64_t about[MAX_RANKS];
    struct table *t;
    pid_t pid[MAX_RANKS];
};

/* ---- a rank ---- */

struct rank {
    const struct run *r;
    uint32_t rank;
    struct seat *seat;
    struct dp *dp;
    struct group *whole, *head; /* while all are together */
    bool failed;
};

static int on_met(void *arg, struct group *whole, struct err *e)
{
    struct rank *me = arg;
    uint32_t n = me->r->head_ranks, member[MAX_RANKS];

    me->whole = whole;
    for (uint32_t i = 0; i < n; i++)
        member[i] = me->rank / n * n + i;
    return n > 1 ? group_part(&me->head, whole, 1, member, n, e) : 0;
}

static void on_parted(void *arg)
{
    struct rank *me = arg;

    me->whole = me->head = NULL;
}

static void wake(void *arg)
{
    struct seat *s = ((struct rank *)arg)->seat;

    pthread_mutex_lock(&s->lock);
    s->woken = true;
    pthread_cond_signal(&s->some);
    pthread_mutex_unlock(&s->lock);
}

/* Every rank sends every other (from, to, step). */
static bool exchange(struct rank *me, uint64_t step)
{
    uint64_t out[MAX_RANKS][3], in[MAX_RANKS][3];
    size_t at[MAX_RANKS], bytes[MAX_RANKS];
    bool right = true;

    for (uint32_t i = 0; i < me->r->size; i++) {
        out[i][0] = me->rank;
        out[i][1] = i;
        out[i][2] = step;
        at[i] = i * sizeof out[0];
        bytes[i] = sizeof out[0];
    }
    me->failed = group_all_to_all(me->whole, out, at, bytes, in, at, bytes) < 0;
    if (me->failed)
        return true; /* garbage is allowed */
    for (uint32_t i = 0; i < me->r->size; i++)
        right &= in[i][0] == i && in[i][1] == me->rank && in[i][2] == step;
    return right;
}

/* The same among those that share the head. */
static bool exchange_head(struct rank *me, uint64_t step)
{
    uint32_t n = me->r->head_ranks, first = n ? me->rank / n * n : 0;
    uint64_t out[MAX_RANKS], in[MAX_RANKS];
    size_t at[MAX_RANKS], bytes[MAX_RANKS];

    for (uint32_t i = 0; i < n; i++) {
        out[i] = step * 100 + me->rank;
        at[i] = i * sizeof out[0];
        bytes[i] = sizeof out[0];
    }
    if (n > 1)
        me->failed = group_all_to_all(me->head, out, at, bytes, in, at, bytes) < 0;
    for (uint32_t i = 0; n > 1 && i < n && !me->failed; i++)
        if (in[i] != step * 100 + first + i)
            return false;
    return true;
}

static void make_step(struct rank *me, bool has_work)
{
    struct engine_dp_stats st;
    bool right = true;

    me->failed = false;
    engine_dp_stats(me->dp, &st);
    if (me->r->in_step)
        right = exchange(me, st.steps) && (me->failed || exchange_head(me, st.steps));
    if (me->r->work_seconds > 0)
        clock_sleep(me->r->work_seconds);
    pthread_mutex_lock(&me->seat->lock);
    me->seat->wrong |= !right;
    if (has_work && !me->failed) {
        me->seat->work--;
        me->seat->done++;
    }
    pthread_mutex_unlock(&me->seat->lock);
    if (me->failed)
        engine_dp_fail(me->dp);
}

static void publish(struct rank *me)
{
    struct seat *s = me->seat;

    pthread_mutex_lock(&s->lock);
    engine_dp_stats(me->dp, &s->stats);
    s->apart = engine_dp_is_apart(me->dp, s->said, sizeof s->said);
    if (s->apart) {
        s->failed += s->work;
        s->work = 0;
    }
    pthread_mutex_unlock(&s->lock);
}

/* Returns whether there is work; false in *go: to stop. */
static bool wait_for_work(struct seat *s, bool *go, bool may_sleep)
{
    struct timespec until;
    bool work;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&s->lock);
    if (may_sleep && !s->woken && !s->stop && s->work == 0)
        pthread_cond_timedwait(&s->some, &s->lock, &until);
    s->woken = false;
    *go = !s->stop;
    work = s->work > 0;
    pthread_mutex_unlock(&s->lock);
    return work;
}

static void serve(struct rank *me)
{
    enum dp_turn turn = DP_REST;
    bool go = true;

    while (go) {
        bool work = wait_for_work(me->seat, &go, turn != DP_STEP);

        turn = engine_dp_turn(me->dp, work);
        if (turn == DP_STEP)
            make_step(me, work);
        publish(me);
    }
    while (engine_dp_in_wave(me->dp) && engine_dp_turn(me->dp, false) == DP_STEP)
        make_step(me, false);
}

static void live(const struct run *r, uint32_t rank)
{
    struct rank me = { .r = r, .rank = rank, .seat = &r->t->seat[rank] };
    const struct dp_options o = { .rank = rank,
                                  .size = r->size,
                                  .own_host = "127.0.0.1",
                                  .host = "127.0.0.1",
                                  .port = r->port,
                                  .secret = r->secret[rank],
                                  .meet_seconds = r->meet_seconds,
                                  .step_seconds = r->step_seconds,
                                  .n_ranks = 1,
                                  .in_step = r->in_step,
                                  .wake = wake,
                                  .met = on_met,
                                  .parted = on_parted,
                                  .arg = &me };
    struct err e = { "" };
    int st = engine_dp_open(&me.dp, &o, &e);

    if (st == 0)
        st = engine_dp_meet(me.dp, r->about[rank], &e);
    pthread_mutex_lock(&me.seat->lock);
    snprintf(me.seat->said, sizeof me.seat->said, "%s", e.text);
    me.seat->status = st;
    me.seat->here = true;
    pthread_mutex_unlock(&me.seat->lock);
    if (st == 0) {
        publish(&me);
        serve(&me);
    }
    engine_dp_close(me.dp);
}

/* ---- the test's side ---- */

static uint16_t free_port(void)
{
    struct err e = { "" };
    uint16_t port;
    int fd;

    if (group_listen(&fd, &port, "127.0.0.1", 0, &e) < 0)
        fail_msg("%s", e.text);
    close(fd);
    return port;
}

static void seat_init(struct seat *s)
{
    pthread_mutexattr_t m;
    pthread_condattr_t c;

    memset(s, 0, sizeof *s);
    pthread_mutexattr_init(&m);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->lock, &m);
    pthread_condattr_init(&c);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    pthread_cond_init(&s->some, &c);
}

static void start(struct run *r, uint32_t rank)
{
    seat_init(&r->t->seat[rank]);
    fflush(NULL);
    r->pid[rank] = fork();
    assert_true(r->pid[rank] >= 0);
    if (r->pid[rank] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* a test that fails leaves nobody */
        live(r, rank);
        exit(0);
    }
}

static struct run make_run(uint32_t size, bool in_step)
{
    struct run r = { .size = size,
                     .port = free_port(),
                     .in_step = in_step,
                     .meet_seconds = PATIENCE,
                     .step_seconds = PATIENCE };

    r.t = mmap(NULL, sizeof *r.t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(r.t, MAP_FAILED);
    for (uint32_t i = 0; i < size; i++)
        r.secret[i] = "s";
    return r;
}

static struct seat look(const struct run *r, uint32_t rank)
{
    struct seat *s = &r->t->seat[rank], copy;

    pthread_mutex_lock(&s->lock);
    copy = *s;
    pthread_mutex_unlock(&s->lock);
    return copy;
}

typedef bool condition(const struct run *r, uint32_t rank, uint64_t n);

static void wait_until(const struct run *r, uint32_t rank, condition *is, uint64_t n,
                       const char *what)
{
    double until = clock_now() + PATIENCE;

    while (!is(r, rank, n)) {
        struct seat s = look(r, rank);

        if (clock_now() > until)
            fail_msg("rank %u: not %s %llu; done %u, failed %u, work %u, apart %d, steps %llu, "
                     "meetings %llu (%s)",
                     rank, what, (unsigned long long)n, s.done, s.failed, s.work, s.apart,
                     (unsigned long long)s.stats.steps, (unsigned long long)s.stats.meetings,
                     s.said);
        clock_sleep(0.005);
    }
}

static bool is_here(const struct run *r, uint32_t rank, uint64_t n)
{
    (void)n;
    return look(r, rank).here;
}

static bool has_done(const struct run *r, uint32_t rank, uint64_t n)
{
    return look(r, rank).done >= n;
}

static bool is_apart(const struct run *r, uint32_t rank, uint64_t n)
{
    return look(r, rank).apart == (n != 0);
}

static bool has_met(const struct run *r, uint32_t rank, uint64_t n)
{
    struct seat s = look(r, rank);

    return s.stats.meetings >= n && !s.apart;
}

static bool sees(const struct run *r, uint32_t rank, uint64_t other)
{
    return look(r, rank).stats.up[other];
}

static bool misses(const struct run *r, uint32_t rank, uint64_t other)
{
    return !look(r, rank).stats.up[other];
}

static void all_here(const struct run *r)
{
    for (uint32_t i = 0; i < r->size; i++) {
        wait_until(r, i, is_here, 0, "here");
        if (look(r, i).status < 0)
            fail_msg("rank %u: %s", i, look(r, i).said);
    }
}

static void start_all(struct run *r)
{
    for (uint32_t i = r->size; i-- > 0;)
        start(r, i);
    all_here(r);
}

static void give(const struct run *r, uint32_t rank, uint32_t work)
{
    struct seat *s = &r->t->seat[rank];

    pthread_mutex_lock(&s->lock);
    s->work += work;
    pthread_cond_signal(&s->some);
    pthread_mutex_unlock(&s->lock);
}

static void tell_to_stop(const struct run *r, uint32_t rank)
{
    struct seat *s = &r->t->seat[rank];

    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->some);
    pthread_mutex_unlock(&s->lock);
}

static void reap(struct run *r, uint32_t rank, int code)
{
    int status;

    assert_int_equal(waitpid(r->pid[rank], &status, 0), r->pid[rank]);
    if (code >= 0) {
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), code);
    }
}

static void stop_all(struct run *r)
{
    for (uint32_t i = 0; i < r->size; i++)
        tell_to_stop(r, i);
    for (uint32_t i = 0; i < r->size; i++) {
        reap(r, i, 0);
        assert_false(look(r, i).wrong);
    }
    munmap(r->t, sizeof *r->t);
}

static bool counts(const struct run *r, uint32_t rank, uint64_t n)
{
    return look(r, rank).stats.steps == n;
}

/* All have made the same number of steps: that of rank 0, which has come to rest. */
static void assert_in_step(const struct run *r)
{
    uint64_t steps = look(r, 0).stats.steps;

    for (uint32_t i = 0; i < r->size; i++)
        wait_until(r, i, counts, steps, "at step");
    for (uint32_t i = 0; i < r->size; i++)
        assert_int_equal(look(r, i).stats.waves, look(r, 0).stats.waves);
}

/* ---- tests ---- */

static void any_rank_may_be_first(void **state)
{
    (void)state;
    for (uint32_t first = 0; first < 4; first++) {
        struct run r = make_run(4, true);

        start_all(&r);
        give(&r, first, 3);
        wait_until(&r, first, has_done, 3, "done");
        wait_until(&r, 0, counts, 3, "at step");
        assert_in_step(&r);
        stop_all(&r);
    }
}

static void a_thousand_pieces_with_gaps(void **state)
{
    struct run r = make_run(4, true);
    uint32_t want[MAX_RANKS] = { 0 }, x = 12345;

    (void)state;
    r.head_ranks = 2;
    start_all(&r);
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t rank, work;

        x = x * 1664525 + 1013904223;
        rank = (x >> 16) % 4;
        work = 1 + (x >> 20) % 3;
        want[rank] += work;
        give(&r, rank, work);
        if ((x >> 24) % 4 == 0) /* long enough for all to come to rest now and then */
            clock_sleep((x >> 8) % 5 * 0.001);
    }
    for (uint32_t i = 0; i < 4; i++)
        wait_until(&r, i, has_done, want[i], "done");
    clock_sleep(0.1);
    assert_in_step(&r);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(look(&r, i).failed, 0);
    stop_all(&r);
}

static double cpu_seconds(pid_t pid)
{
    struct timespec t;
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &t), 0);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void idle_ranks_sleep(void **state)
{
    struct run r = make_run(4, true);
    double before[MAX_RANKS];

    (void)state;
    start_all(&r);
    give(&r, 2, 5);
    wait_until(&r, 2, has_done, 5, "done");
    clock_sleep(0.2);
    for (uint32_t i = 0; i < 4; i++)
        before[i] = cpu_seconds(r.pid[i]);
    clock_sleep(2);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(cpu_seconds(r.pid[i]) - before[i] < 0.04);
    stop_all(&r);
}

/* Rank `who` is killed while all have work; then it comes back. */
static void kill_and_return(uint32_t who, bool busy)
{
    struct run r = make_run(3, true);
    char name[32];

    r.work_seconds = 0.002;
    start_all(&r);
    for (uint32_t i = 0; busy && i < 3; i++)
        give(&r, i, 100000);
    for (uint32_t i = 0; busy && i < 3; i++)
        wait_until(&r, i, has_done, 3, "done");
    kill(r.pid[who], SIGKILL);
    reap(&r, who, -1);
    snprintf(name, sizeof name, "data-parallel rank %u", who);
    for (uint32_t i = 0; i < 3; i++) {
        if (i == who)
            continue;
        wait_until(&r, i, is_apart, 1, "apart");
        wait_until(&r, i, misses, who, "without rank");
        if (!strstr(look(&r, i).said, name))
            fail_msg("'%s' does not name %s", look(&r, i).said, name);
        assert_int_equal(look(&r, i).failed > 0, busy);
    }
    start(&r, who);
    all_here(&r);
    for (uint32_t i = 0; i < 3; i++)
        wait_until(&r, i, has_met, i == who ? 1 : 2, "met");
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t done = look(&r, i).done;

        give(&r, i, 5);
        wait_until(&r, i, has_done, done + 5, "done");
        wait_until(&r, i, sees, who, "with rank");
    }
    clock_sleep(0.05);
    assert_in_step(&r);
    stop_all(&r);
}

static void a_rank_dies_and_returns(void **state)
{
    (void)state;
    kill_and_return(2, true);
}

static void an_idle_rank_dies_and_returns(void **state)
{
    (void)state;
    kill_and_return(1, false);
}

static void rank_0_dies_and_returns(void **state)
{
    (void)state;
    kill_and_return(0, true);
}

static void a_stopped_rank_is_named(void **state)
{
    struct run r = make_run(3, true);

    (void)state;
    r.step_seconds = 1.5;
    start_all(&r);
    give(&r, 1, 2);
    wait_until(&r, 1, has_done, 2, "done");
    kill(r.pid[2], SIGSTOP);
    give(&r, 1, 2);
    wait_until(&r, 1, is_apart, 1, "apart");
    wait_until(&r, 0, is_apart, 1, "apart");
    assert_non_null(strstr(look(&r, 1).said, "rank 2"));
    assert_int_equal(look(&r, 1).failed, 2);
    kill(r.pid[2], SIGCONT);
    for (uint32_t i = 0; i < 3; i++)
        wait_until(&r, i, has_met, 2, "met");
    give(&r, 1, 2);
    wait_until(&r, 1, has_done, 4, "done");
    stop_all(&r);
}

/* One is told to stop while another has work: that comes to its end first. */
static void who_stops_waits_for_the_wave(void **state)
{
    struct run r = make_run(3, true);

    (void)state;
    r.work_seconds = 0.01;
    start_all(&r);
    give(&r, 2, 40);
    wait_until(&r, 2, has_done, 1, "done");
    tell_to_stop(&r, 0);
    wait_until(&r, 2, has_done, 40, "done");
    assert_int_equal(look(&r, 2).failed, 0);
    stop_all(&r);
}

/* Without common steps nothing waits for anything. */
static void independent_ranks_only_know_of_each_other(void **state)
{
    struct run r = make_run(3, false);

    (void)state;
    start(&r, 2);
    wait_until(&r, 2, is_here, 0, "here");
    give(&r, 2, 1);
    wait_until(&r, 2, has_done, 1, "done");
    assert_false(look(&r, 2).apart);
    start(&r, 0);
    start(&r, 1);
    for (uint32_t i = 0; i < 3; i++)
        for (uint32_t j = 0; j < 3; j++)
            wait_until(&r, i, sees, j, "with rank");
    kill(r.pid[1], SIGKILL);
    reap(&r, 1, -1);
    wait_until(&r, 0, misses, 1, "without rank");
    wait_until(&r, 2, misses, 1, "without rank");
    assert_false(look(&r, 2).apart);
    start(&r, 1);
    wait_until(&r, 2, sees, 1, "with rank");
    kill(r.pid[0], SIGKILL);
    reap(&r, 0, -1);
    wait_until(&r, 2, misses, 0, "without rank");
    start(&r, 0);
    wait_until(&r, 2, sees, 0, "with rank");
    wait_until(&r, 0, sees, 2, "with rank");
    stop_all(&r);
}

static void who_does_not_come_is_named(void **state)
{
    struct run r = make_run(3, true);

    (void)state;
    r.meet_seconds = 1;
    start(&r, 0);
    start(&r, 1);
    for (uint32_t i = 0; i < 2; i++) {
        wait_until(&r, i, is_here, 0, "here");
        assert_int_equal(look(&r, i).status, ERR_TIMEOUT);
        reap(&r, i, 0);
    }
    assert_non_null(strstr(look(&r, 0).said, "data-parallel rank 2 (is not there)"));
    munmap(r.t, sizeof *r.t);
}

static void nobody_at_the_address(void **state)
{
    struct run r = make_run(2, true);

    (void)state;
    r.meet_seconds = 0.5;
    start(&r, 1);
    wait_until(&r, 1, is_here, 0, "here");
    assert_int_equal(look(&r, 1).status, ERR_TIMEOUT);
    assert_non_null(strstr(look(&r, 1).said, "nobody answers at 127.0.0.1"));
    reap(&r, 1, 0);
    munmap(r.t, sizeof *r.t);
}

/* The one that does not fit is told; the others meet without it. */
static bool is_up_with(const struct run *r, uint32_t rank, uint64_t n)
{
    uint64_t up = 0;

    for (uint32_t i = 0; i < r->size; i++)
        up += look(r, rank).stats.up[i];
    return up == n;
}

/* Another process with the same rank is not let in while the first is there, and comes in afterwards. */
static void a_seat_is_taken_once(void **state)
{
    struct run r = make_run(2, false), again = make_run(2, false);

    (void)state;
    again.port = r.port;
    start_all(&r);
    wait_until(&r, 0, is_up_with, 2, "up with");
    start(&again, 1);
    wait_until(&again, 1, is_here, 0, "here");
    clock_sleep(0.5);
    assert_true(misses(&again, 1, 0)); /* it is not let in */
    assert_true(is_up_with(&r, 1, 2));
    kill(r.pid[1], SIGKILL);
    reap(&r, 1, -1);
    wait_until(&again, 1, sees, 0, "with rank");
    wait_until(&r, 0, is_up_with, 2, "up with");
    tell_to_stop(&again, 1);
    reap(&again, 1, 0);
    tell_to_stop(&r, 0);
    reap(&r, 0, 0);
    munmap(again.t, sizeof *again.t);
    munmap(r.t, sizeof *r.t);
}

static void strangers_are_refused(void **state)
{
    struct run r = make_run(2, true);

    (void)state;
    r.secret[1] = "another";
    start(&r, 0);
    start(&r, 1);
    wait_until(&r, 1, is_here, 0, "here");
    assert_int_equal(look(&r, 1).status, ERR_MISMATCH);
    assert_non_null(strstr(look(&r, 1).said, "secret"));
    reap(&r, 1, 0);

    r.secret[1] = "s";
    r.about[1] = 5;
    start(&r, 1);
    wait_until(&r, 1, is_here, 0, "here");
    assert_int_equal(look(&r, 1).status, ERR_MISMATCH);
    assert_non_null(strstr(look(&r, 1).said, "another model"));
    reap(&r, 1, 0);

    r.about[1] = 0;
    start(&r, 1);
    all_here(&r);
    give(&r, 1, 2);
    wait_until(&r, 1, has_done, 2, "done");
    stop_all(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_rank_may_be_first),
        cmocka_unit_test(a_thousand_pieces_with_gaps),
        cmocka_unit_test(idle_ranks_sleep),
        cmocka_unit_test(a_rank_dies_and_returns),
        cmocka_unit_test(an_idle_rank_dies_and_returns),
        cmocka_unit_test(rank_0_dies_and_returns),
        cmocka_unit_test(a_stopped_rank_is_named),
        cmocka_unit_test(who_stops_waits_for_the_wave),
        cmocka_unit_test(independent_ranks_only_know_of_each_other),
        cmocka_unit_test(who_does_not_come_is_named),
        cmocka_unit_test(nobody_at_the_address),
        cmocka_unit_test(a_seat_is_taken_once),
        cmocka_unit_test(strangers_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
