#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "play.h"
#include "sys/clock.h"

static void kill_self(void)
{
    kill(getpid(), SIGKILL);
}

/* A child that is this program anew (UCX does not survive a fork), playing a consumer that dies when
 * it has been granted a pull, or a producer that dies when it has sent one batch. */
static pid_t start_child(const char *part, int *in, int *out)
{
    int down[2], up[2];
    char fds[2][16];
    pid_t pid;

    assert_int_equal(pipe(down) + pipe(up), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(down[1]);
        close(up[0]);
        snprintf(fds[0], sizeof fds[0], "%d", down[0]);
        snprintf(fds[1], sizeof fds[1], "%d", up[1]);
        execl("/proc/self/exe", "test_death", part, fds[0], fds[1], (char *)NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    *in = up[0];
    *out = down[1];
    return pid;
}

static void dying_consumer(int in, int out)
{
    static struct raw r;
    struct side like;
    uint16_t port;

    (void)out;
    if (read(in, &port, sizeof port) != sizeof port)
        _exit(1);
    side_init(&like, true, 16, true);
    raw_init(&r, &like);
    raw_connect(&r, port);
    raw_pull(&r, "a", 60, 1, true);
    raw_expect(&r, MESSAGE_GRANT);
    kill_self();
}

static void consumer_killed(void **state)
{
    int in, out, status;
    struct side p, d;
    pid_t pid = start_child("consumer", &in, &out);
    double t0;
    uint16_t port;

    (void)state;
    play_pair(&p, &d);
    play_hold(&p, "a", 1);
    port = transfer_port(p.t);
    assert_int_equal(write(out, &port, sizeof port), sizeof port);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    t0 = clock_now();
    assert_int_equal(side_wait(&p, TRANSFER_LEASE_END, 1).end, LEASE_ABORTED);
    assert_true(clock_now() - t0 < 5); /* by the broken connection: the timeouts are longer */
    play_hold(&p, "b", 3);
    play_pull(&d, &p, "b", 4);
    assert_int_equal(side_event(&d, 0).status, 0);
    play_pair_finish(&p, &d);
    close(in);
    close(out);
}

static void dying_producer(int in, int out)
{
    static struct play s;
    uint16_t port;

    (void)in;
    side_init(&s.p, true, 16, true);
    raw_init(&s.r, &s.p);
    port = raw_listen(&s.r);
    if (write(out, &port, sizeof port) != sizeof port)
        _exit(1);
    raw_accept(&s.r);
    s.pull = raw_expect(&s.r, MESSAGE_PULL)->u.pull;
    play_grant(&s);
    play_batch(&s, 0, false);
    raw_expect(&s.r, MESSAGE_CREDIT);
    kill_self();
}

static void producer_killed(void **state)
{
    struct transfer_source src = { .host = "127.0.0.1",
                                   .engine_id = "engine-p",
                                   .transfer_id = "x",
                                   .blocks = play_blocks,
                                   .n_blocks = 4,
                                   .block_tokens = 16 };
    int in, out, status;
    pid_t pid = start_child("producer", &in, &out);
    struct transfer_stats st;
    struct side d;
    double t0;

    (void)state;
    side_init(&d, false, 16, true);
    side_start(&d);
    assert_int_equal(read(in, &src.port, sizeof src.port), sizeof src.port);
    assert_int_equal(transfer_pull(d.t, &src, play_blocks, 4, 0, 60, 9), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    t0 = clock_now();
    assert_int_equal(side_event(&d, 0).status, ERR_CLOSED);
    assert_true(clock_now() - t0 < 5);
    /* Nobody there: refused at once. */
    assert_int_equal(transfer_pull(d.t, &src, play_blocks, 4, 0, 60, 10), 0);
    assert_int_equal(side_event(&d, 1).status, ERR_CLOSED);
    transfer_stats(d.t, &st);
    assert_int_equal(st.pulls + st.peers, 0);
    assert_int_equal(st.pulls_failed, 2);
    side_finish(&d);
    close(in);
    close(out);
}

/* The same address, a new run: the next pull finds it, a lease of the old run is unknown. */
static void producer_restarts(void **state)
{
    struct side p, q, d;

    (void)state;
    play_pair(&p, &d);
    play_hold(&p, "a", 1);
    play_pull(&d, &p, "a", 1);
    assert_int_equal(side_event(&d, 0).status, 0);
    play_hold(&p, "old", 2);
    side_init(&q, true, 16, true);
    for (int i = 0; i < 5; i++) {
        struct side *old = i % 2 ? &q : &p, *new = i % 2 ? &p : &q;
        uint16_t port = transfer_port(old->t);
        double t0;

        side_finish(old);
        side_init(new, true, 16, true);
        new->opt.port = port;
        side_start(new);
        t0 = clock_now();
        play_pull(&d, new, "old", 10 + i);
        assert_int_equal(side_wait(&d, TRANSFER_PULLED, 10 + i).status, ERR_NOTFOUND);
        play_hold(new, "new", 3);
        play_pull(&d, new, "new", 20 + i);
        assert_int_equal(side_wait(&d, TRANSFER_PULLED, 20 + i).status, 0);
        assert_true(clock_now() - t0 < 3);
    }
    side_finish(&q);
    side_finish(&d);
}

static int count_shm(void)
{
    DIR *d = opendir("/dev/shm");
    int n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

static void nothing_in_shm(void **state)
{
    int before = count_shm();

    consumer_killed(state);
    assert_int_equal(count_shm(), before);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(consumer_killed),
        cmocka_unit_test(producer_killed),
        cmocka_unit_test(producer_restarts),
        cmocka_unit_test(nothing_in_shm),
    };

    if (argc == 4) {
        (strcmp(argv[1], "consumer") == 0 ? dying_consumer : dying_producer)(atoi(argv[2]),
                                                                             atoi(argv[3]));
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
