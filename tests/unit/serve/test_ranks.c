/* The processes of an instance: how they begin and how they end. No engine: a rank here does what its
 * number says. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "main/serve_ranks.h"
#include "serve/config.h"
#include "sys/clock.h"

#define PATIENCE 20.0 /* seconds; nothing here should take one */

static void shape(struct serve_config *c, uint32_t pp, uint32_t tp, uint32_t first, uint32_t local)
{
    *c = (struct serve_config){ .first_rank = first, .n_local_ranks = local };
    c->ranks = (struct engine_ranks){ .pp = pp,
                                      .tp = tp,
                                      .rank = first,
                                      .dp_size = 1,
                                      .host = "127.0.0.1",
                                      .master_host = "127.0.0.1",
                                      .listen_fd = -1 };
}

/* What a rank of these tests does: never returns into the test's own code. */
typedef void behave_fn(const struct serve_config *c);

static void sleep_for_ever(const struct serve_config *c)
{
    (void)c;
    for (;;)
        clock_sleep(1);
}

static struct ranks *start(struct serve_config *c, behave_fn *behave)
{
    struct err e = { "" };
    struct ranks *r;
    uint32_t rank;

    if (ranks_start(&r, c, &rank, &e) < 0)
        fail_msg("%s", e.text);
    if (!r) {
        behave(c);
        _exit(0);
    }
    assert_int_equal(rank, c->first_rank);
    return r;
}

static void finish(struct ranks *r, const struct serve_config *c)
{
    if (c->ranks.listen_fd >= 0)
        close(c->ranks.listen_fd);
    ranks_free(r);
}

/* ---- what a rank knows ---- */

static void check_itself(const struct serve_config *c)
{
    char secret[65];

    snprintf(secret, sizeof secret, "%s", c->ranks.secret);
    if (c->ranks.rank < 1 || c->ranks.rank > 5 || c->ranks.listen_fd != -1 ||
        c->ranks.master_port == 0 || strlen(secret) != 64)
        _exit(9);
    raise(SIGTERM); /* ignored */
    raise(SIGINT);
}

static void ranks_know_what_they_are(void **state)
{
    struct serve_config c;
    struct ranks *r;

    (void)state;
    shape(&c, 2, 3, 0, 6);
    r = start(&c, check_itself);
    assert_int_equal(c.ranks.rank, 0);
    assert_true(c.ranks.listen_fd >= 0 && c.ranks.master_port > 0);
    ranks_expect_end(r);
    assert_true(ranks_wait(r, PATIENCE));
    assert_true(ranks_alone(r));
    finish(r, &c);
}

static void one_rank_needs_no_process(void **state)
{
    struct serve_config c;
    struct ranks *r;

    (void)state;
    shape(&c, 1, 1, 0, 1);
    r = start(&c, sleep_for_ever);
    assert_true(ranks_alone(r));
    assert_int_equal(c.ranks.listen_fd, -1);
    assert_true(ranks_wait(r, 0));
    finish(r, &c);
}

/* ---- deaths ---- */

static void die_at_two(const struct serve_config *c)
{
    if (c->ranks.rank == 2)
        raise(SIGKILL);
    sleep_for_ever(c);
}

static void look_until(struct ranks *r, char *why, size_t cap)
{
    double until = clock_now() + PATIENCE;

    while (!ranks_look(r, why, cap)) {
        assert_true(clock_now() < until);
        clock_sleep(0.01);
    }
}

static void a_killed_rank_is_named(void **state)
{
    struct serve_config c;
    char why[160] = "";
    struct ranks *r;

    (void)state;
    shape(&c, 2, 2, 0, 4);
    r = start(&c, die_at_two);
    look_until(r, why, sizeof why);
    assert_non_null(strstr(why, "rank 2 (pp1 tp0, pid "));
    assert_non_null(strstr(why, "was ended by signal 9 (Killed)"));
    assert_false(ranks_look(r, why, sizeof why)); /* told once */
    assert_false(ranks_alone(r));
    ranks_kill(r);
    assert_false(ranks_wait(r, PATIENCE));
    assert_true(ranks_alone(r));
    finish(r, &c);
}

static void fail_with_seven(const struct serve_config *c)
{
    (void)c;
    _exit(7);
}

static void a_status_is_named(void **state)
{
    struct serve_config c;
    char why[160] = "";
    struct ranks *r;

    (void)state;
    shape(&c, 1, 2, 0, 2);
    r = start(&c, fail_with_seven);
    look_until(r, why, sizeof why);
    assert_non_null(strstr(why, "ended with status 7"));
    ranks_wait(r, PATIENCE);
    finish(r, &c);
}

static void one_that_does_not_end_is_killed(void **state)
{
    struct serve_config c;
    struct ranks *r;
    double t0;

    (void)state;
    shape(&c, 1, 3, 0, 3);
    r = start(&c, sleep_for_ever);
    t0 = clock_now();
    assert_false(ranks_wait(r, 0.2));
    assert_true(clock_now() - t0 >= 0.2);
    assert_true(ranks_alone(r));
    finish(r, &c);
}

/* ---- the parent ---- */

/* Every rank holds the end of a pipe: its other end is at its end when all have gone. */
static int pipe_fd[2];

static void hold_the_pipe(const struct serve_config *c)
{
    close(pipe_fd[0]);
    sleep_for_ever(c);
}

/* In a process of its own: what a parent does until it is ended. */
static pid_t start_parent(bool supervise, uint32_t first, double patience)
{
    pid_t pid = fork();
    struct serve_config c;
    struct ranks *r;
    int code;

    assert_true(pid >= 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    shape(&c, 1, 4, first, first ? 2 : 4);
    r = start(&c, hold_the_pipe);
    close(pipe_fd[0]);
    if (!supervise) {
        if (write(pipe_fd[1], "r", 1) != 1)
            _exit(2);
        sleep_for_ever(&c);
    }
    if (write(pipe_fd[1], "r", 1) != 1)
        _exit(2);
    code = ranks_supervise(r, patience);
    _exit(code);
}

static void expect_all_gone(void)
{
    char byte;

    assert_int_equal(read(pipe_fd[0], &byte, 1), 0);
    close(pipe_fd[0]);
}

static void wait_started(void)
{
    char byte;

    close(pipe_fd[1]);
    assert_int_equal(read(pipe_fd[0], &byte, 1), 1);
}

static void ranks_die_with_a_killed_parent(void **state)
{
    pid_t parent;

    (void)state;
    assert_int_equal(pipe(pipe_fd), 0);
    parent = start_parent(false, 0, 0);
    wait_started();
    kill(parent, SIGKILL);
    waitpid(parent, NULL, 0);
    alarm((unsigned)PATIENCE);
    expect_all_gone();
    alarm(0);
}

/* Signals before the supervisor waits for them end it at once, and its ranks with it. */
static int status_after(double patience, int n_signals)
{
    pid_t parent;
    int status;

    assert_int_equal(pipe(pipe_fd), 0);
    parent = start_parent(true, 2, patience);
    wait_started();
    clock_sleep(0.3);
    for (int i = 0; i < n_signals; i++) {
        kill(parent, SIGTERM);
        clock_sleep(0.2); /* two of a kind at once are one */
    }
    alarm((unsigned)PATIENCE);
    waitpid(parent, &status, 0);
    expect_all_gone();
    alarm(0);
    return status;
}

static void a_host_without_rank_0_ends_when_told(void **state)
{
    (void)state;
    assert_int_equal(status_after(0.2, 1), 0);     /* rank 0 did not end them in time */
    assert_int_equal(status_after(10 * 60, 2), 0); /* at once */
}

static void end_well(const struct serve_config *c)
{
    (void)c;
}

/* Rank 0 tells them, wherever it is. */
static void it_ends_when_its_ranks_do(void **state)
{
    struct serve_config c;
    struct ranks *r;

    (void)state;
    shape(&c, 2, 2, 2, 2);
    r = start(&c, end_well);
    assert_int_equal(ranks_supervise(r, 1), 0);
    finish(r, &c);
}

static void it_fails_when_a_rank_dies(void **state)
{
    struct serve_config c;
    struct ranks *r;

    (void)state;
    shape(&c, 2, 2, 2, 2);
    r = start(&c, die_at_two);
    assert_int_equal(ranks_supervise(r, 1), 1);
    assert_true(ranks_alone(r));
    finish(r, &c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_know_what_they_are),
        cmocka_unit_test(one_rank_needs_no_process),
        cmocka_unit_test(a_killed_rank_is_named),
        cmocka_unit_test(a_status_is_named),
        cmocka_unit_test(one_that_does_not_end_is_killed),
        cmocka_unit_test(ranks_die_with_a_killed_parent),
        cmocka_unit_test(a_host_without_rank_0_ends_when_told),
        cmocka_unit_test(it_ends_when_its_ranks_do),
        cmocka_unit_test(it_fails_when_a_rank_dies),
    };

    log_set_level(LOG_OFF);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
