/* Ranks as processes: meeting, sends, collectives against plain sums, and ranks that die or lie. */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/group.h"
#include "sys/clock.h"

#define MAX_RANKS 8

struct run {
    uint32_t size;
    uint16_t port;
    int listen_fd;
    size_t scratch;
    double op_seconds;
    int (*rank)(struct group *g, const struct run *r); /* 0: as it should be */
    size_t n;
};

static struct group_options options(const struct run *r, uint32_t rank)
{
    return (struct group_options){ .rank = rank,
                                   .size = r->size,
                                   .host = "127.0.0.1",
                                   .master_host = "127.0.0.1",
                                   .master_port = r->port,
                                   .listen_fd = rank == 0 ? r->listen_fd : -1,
                                   .secret = "s",
                                   .about = 7,
                                   .meet_seconds = 30,
                                   .op_seconds = r->op_seconds,
                                   .scratch = r->scratch };
}

/* One rank's life; its exit code. */
static int live(const struct run *r, uint32_t rank)
{
    struct group_options o = options(r, rank);
    struct group *g;
    struct err e = { "" };
    int st = group_join(&g, &o, &e);

    if (st < 0) {
        fprintf(stderr, "rank %u: %s\n", rank, e.text);
        return 99;
    }
    st = r->rank(g, r);
    if (st)
        fprintf(stderr, "rank %u of %u, n %zu: %d (%s)\n", rank, r->size, r->n, st, group_why(g));
    group_leave(g);
    return st < 0 ? 98 : st;
}

static pid_t start(const struct run *r, uint32_t rank)
{
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0)
        _exit(live(r, rank));
    assert_true(pid > 0);
    return pid;
}

static int code_of(pid_t pid)
{
    int status;

    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void open_run(struct run *r)
{
    struct err e = { "" };

    if (group_listen(&r->listen_fd, &r->port, "127.0.0.1", 0, &e) < 0)
        fail_msg("%s", e.text);
}

/* All ranks must end with 0. */
static void run_all(struct run *r)
{
    pid_t pid[MAX_RANKS];

    open_run(r);
    for (uint32_t i = r->size; i-- > 0;)
        pid[i] = start(r, i);
    close(r->listen_fd);
    for (uint32_t i = 0; i < r->size; i++)
        assert_int_equal(code_of(pid[i]), 0);
}

/* A number that every rank can work out. */
static float number(uint32_t rank, size_t i)
{
    return (float)((i * 2654435761u + rank * 40503u) % 2003) / 1000 - 1;
}

static float sum_of(uint32_t size, size_t i)
{
    float s = number(0, i);

    for (uint32_t r = 1; r < size; r++)
        s += number(r, i);
    return s;
}

static int check_all_reduce(struct group *g, size_t n)
{
    float *x = malloc((n + 1) * sizeof *x);
    int st;

    for (size_t i = 0; i < n; i++)
        x[i] = number(group_rank(g), i);
    x[n] = 42;
    st = group_all_reduce(g, x, n);
    for (size_t i = 0; st == 0 && i < n; i++)
        if (x[i] != sum_of(group_size(g), i))
            st = 1;
    if (st == 0 && x[n] != 42)
        st = 2;
    free(x);
    return st;
}

static int check_reduce_scatter(struct group *g, size_t n)
{
    uint32_t size = group_size(g), me = group_rank(g);
    float *x = malloc(size * n * sizeof *x + 1), *out = malloc(n * sizeof *out + 1);
    int st;

    for (size_t i = 0; i < size * n; i++)
        x[i] = number(me, i);
    st = group_reduce_scatter(g, out, x, n);
    for (size_t i = 0; st == 0 && i < n; i++)
        if (out[i] != sum_of(size, me * n + i))
            st = 3;
    free(x);
    free(out);
    return st;
}

static int check_all_gather(struct group *g, size_t bytes)
{
    uint32_t size = group_size(g), me = group_rank(g);
    unsigned char *all = calloc(size, bytes), *part = malloc(bytes);
    int st;

    memset(part, (int)me + 1, bytes);
    st = group_all_gather(g, all, part, bytes);
    for (size_t i = 0; st == 0 && i < size * bytes; i++)
        if (all[i] != i / bytes + 1)
            st = 4;
    free(all);
    free(part);
    return st;
}

static int check_broadcast(struct group *g, size_t bytes)
{
    unsigned char *data = malloc(bytes);
    int st = 0;

    for (uint32_t root = 0; st == 0 && root < group_size(g); root++) {
        memset(data, group_rank(g) == root ? (int)root + 7 : 0, bytes);
        st = group_broadcast(g, root, data, bytes);
        for (size_t i = 0; st == 0 && i < bytes; i++)
            if (data[i] != root + 7)
                st = 5;
    }
    free(data);
    return st;
}

/* Rank a sends rank b (a + 2 b) % 5 units, so that some send nothing. */
static int check_all_to_all(struct group *g, size_t unit)
{
    uint32_t size = group_size(g), me = group_rank(g);
    size_t sat[MAX_RANKS], sn[MAX_RANKS], rat[MAX_RANKS], rn[MAX_RANKS], s = 0, r = 0;
    unsigned char *send, *recv;
    int st;

    for (uint32_t i = 0; i < size; i++) {
        sat[i] = s;
        s += sn[i] = (me + 2 * i) % 5 * unit;
        rat[i] = r;
        r += rn[i] = (i + 2 * me) % 5 * unit;
    }
    send = malloc(s + 1);
    recv = malloc(r + 1);
    for (uint32_t i = 0; i < size; i++)
        memset(send + sat[i], (int)(16 * me + i), sn[i]);
    st = group_all_to_all(g, send, sat, sn, recv, rat, rn);
    for (uint32_t i = 0; st == 0 && i < size; i++)
        for (size_t k = 0; k < rn[i]; k++)
            if (recv[rat[i] + k] != 16 * i + me)
                st = 6;
    free(send);
    free(recv);
    return st;
}

static int collectives(struct group *g, const struct run *r)
{
    int st = group_barrier(g);

    if (st == 0)
        st = check_all_reduce(g, (r->n + 3) / 4);
    if (st == 0)
        st = check_reduce_scatter(g, (r->n + 3) / 4 / group_size(g));
    if (st == 0)
        st = check_all_gather(g, r->n / group_size(g) + 1);
    if (st == 0)
        st = check_broadcast(g, r->n);
    if (st == 0)
        st = check_all_to_all(g, r->n / 16 + 1);
    return st == 0 ? group_barrier(g) : st;
}

/* 1 byte to 64 MB. */
static void test_collectives(void **state)
{
    static const uint32_t sizes[] = { 2, 3, 5, 8 };
    static const size_t bytes[] = { 1, 13, 4096, 65537, 3u << 20, 64u << 20 };

    (void)state;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++) {
            struct run r = { .size = sizes[s],
                             .op_seconds = 60,
                             .rank = collectives,
                             .n = bytes[i],
                             .scratch = bytes[i] + 4096 };

            if (bytes[i] < (64u << 20) || sizes[s] == 2)
                run_all(&r);
        }
}

static uint32_t n_descriptors(void)
{
    DIR *d = opendir("/proc/self/fd");
    uint32_t n = 0;

    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n;
}

/* Whatever ranks send each other, UCX has opened what it needs when they have met. */
static int opens_nothing(struct group *g, const struct run *r)
{
    uint32_t before = n_descriptors();
    int st = collectives(g, r);
    bool same = n_descriptors() == before;

    if (st == 0)
        st = group_barrier(g); /* who leaves before the others have counted would be missing */
    return st == 0 && !same ? 18 : st;
}

static void test_wired(void **state)
{
    struct run r = { .size = 4,
                     .op_seconds = 60,
                     .rank = opens_nothing,
                     .n = 3u << 20,
                     .scratch = (3u << 20) + 4096 };

    (void)state;
    run_all(&r);
    setenv("UCX_TLS", "tcp,self", 1); /* as between hosts */
    run_all(&r);
    unsetenv("UCX_TLS");
}

/* A ring of tagged messages, some large, received in another order than they were sent. */
static int ring(struct group *g, const struct run *r)
{
    uint32_t size = group_size(g), me = group_rank(g);
    uint32_t next = (me + 1) % size, before = (me + size - 1) % size;
    struct group_op op[4] = { { 0 } };
    char *out = malloc(r->n), *in = malloc(r->n), small = (char)me, got = 0;
    int st;

    memset(out, (int)me + 1, r->n);
    st = group_start_send(g, &op[0], next, 1, out, r->n);
    if (st == 0)
        st = group_start_send(g, &op[1], next, 2, &small, 1);
    if (st == 0)
        st = group_start_recv(g, &op[2], before, 2, &got, 1);
    if (st == 0)
        st = group_wait(g, &op[2]);
    if (st == 0)
        st = group_start_recv(g, &op[3], before, 1, in, r->n);
    while (st == 0 && (st = group_test(g, &op[3])) == 0)
        ;
    st = st == 1 ? 0 : st;
    for (int i = 0; st == 0 && i < 2; i++)
        st = group_wait(g, &op[i]);
    if (st == 0 &&
        (got != (char)before || in[0] != (char)(before + 1) || in[r->n - 1] != (char)(before + 1)))
        st = 7;
    free(out);
    free(in);
    return st;
}

static void test_ring(void **state)
{
    struct run r = { .size = 4, .op_seconds = 30, .rank = ring, .n = 5u << 20 };

    (void)state;
    run_all(&r);
}

/* Two rows and two columns of a square, each with sums of their own, interleaved. */
static int parts(struct group *g, const struct run *r)
{
    uint32_t me = group_rank(g), row[2] = { me / 2 * 2, me / 2 * 2 + 1 };
    uint32_t column[2] = { me % 2, me % 2 + 2 };
    struct group *rows, *columns;
    struct err e;
    float x = (float)(me + 1), y = (float)(10 * me + 1);
    int st;

    (void)r;
    if (group_part(&rows, g, 1, row, 2, &e) < 0 || group_part(&columns, g, 2, column, 2, &e) < 0)
        return 8;
    st = group_all_reduce(rows, &x, 1);
    if (st == 0)
        st = group_all_reduce(columns, &y, 1);
    if (st == 0 &&
        (x != (float)(row[0] + row[1] + 2) || y != (float)(10 * (column[0] + column[1]) + 2)))
        st = 9;
    return st == 0 ? group_barrier(g) : st;
}

static void test_parts(void **state)
{
    struct run r = { .size = 4, .op_seconds = 30, .rank = parts, .scratch = 4096 };

    (void)state;
    run_all(&r);
}

/* Rank 1 dies in the middle; all others end soon, and know who it was. */
static int one_dies(struct group *g, const struct run *r)
{
    double began = clock_now();
    int st = group_barrier(g);
    char byte;

    (void)r;
    if (st == 0 && group_rank(g) == 1)
        raise(SIGKILL);
    if (st == 0) /* else rank 1 was dead before we had left the barrier */
        st = group_recv(g, 1, 5, &byte, 1);
    if (st != ERR_CLOSED || clock_now() - began > 10)
        return 10;
    if (!strstr(group_why(g), "rank 1 "))
        return 11;
    return group_barrier(g) == ERR_CLOSED ? 0 : 12; /* and it stays broken */
}

static void test_death(void **state)
{
    struct run r = { .size = 4, .op_seconds = 30, .rank = one_dies };
    pid_t pid[4];

    (void)state;
    open_run(&r);
    for (uint32_t i = 0; i < 4; i++)
        pid[i] = start(&r, i);
    close(r.listen_fd);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(code_of(pid[i]), i == 1 ? 1000 + SIGKILL : 0);
}

static void die_now(int signo)
{
    (void)signo;
    raise(SIGKILL);
}

/* Rank 1 is killed somewhere in a long row of sums: in the middle of a copy, perhaps. The others are told,
 * and live. */
static int one_dies_busy(struct group *g, const struct run *r)
{
    float *x = calloc(r->n, sizeof *x);
    double began = clock_now();
    int st = group_barrier(g);

    if (group_rank(g) == 1) {
        signal(SIGALRM, die_now);
        ualarm(150000, 0);
    }
    while (st == 0 && clock_now() - began < 20)
        st = group_all_reduce(g, x, r->n);
    free(x);
    return st == ERR_CLOSED && strstr(group_why(g), "rank 1 ") ? 0 : 15;
}

static void test_death_in_traffic(void **state)
{
    (void)state;
    for (int round = 0; round < 8; round++) {
        struct run r = { .size = 3,
                         .op_seconds = 30,
                         .rank = one_dies_busy,
                         .n = round % 2 ? 100 : 1u << 20,
                         .scratch = (4u << 20) + 4096 };
        pid_t pid[3];

        open_run(&r);
        for (uint32_t i = 0; i < 3; i++)
            pid[i] = start(&r, i);
        close(r.listen_fd);
        for (uint32_t i = 0; i < 3; i++)
            assert_int_equal(code_of(pid[i]), i == 1 ? 1000 + SIGKILL : 0);
    }
}

/* The same for ranks that ask again and again whether an operation has ended. */
static int one_dies_tested(struct group *g, const struct run *r)
{
    struct group_op op = { 0 };
    double began = clock_now();
    char byte;
    int st = group_barrier(g);

    (void)r;
    if (group_rank(g) == 1) {
        clock_sleep(0.1);
        raise(SIGKILL);
    }
    if (st == 0)
        st = group_start_recv(g, &op, 1, 5, &byte, 1);
    while (st == 0 && clock_now() - began < 20)
        st = group_test(g, &op);
    return st == ERR_CLOSED && strstr(group_why(g), "rank 1 ") ? 0 : 17;
}

static void test_death_while_testing(void **state)
{
    struct run r = { .size = 3, .op_seconds = 30, .rank = one_dies_tested };
    pid_t pid[3];

    (void)state;
    open_run(&r);
    for (uint32_t i = 0; i < 3; i++)
        pid[i] = start(&r, i);
    close(r.listen_fd);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(code_of(pid[i]), i == 1 ? 1000 + SIGKILL : 0);
}

/* A rank that waits sleeps, whatever UCX waits on. */
static int waits(struct group *g, const struct run *r)
{
    char byte = 0;
    int st = group_barrier(g);
    clock_t used;

    (void)r;
    if (group_rank(g) == 0) {
        clock_sleep(1);
        return st < 0 ? st : group_send(g, 1, 5, &byte, 1);
    }
    used = clock();
    if (st == 0)
        st = group_recv(g, 0, 5, &byte, 1);
    return st < 0 ? st : clock() - used < CLOCKS_PER_SEC / 5 ? 0 : 16;
}

static void test_asleep(void **state)
{
    struct run r = { .size = 2, .op_seconds = 30, .rank = waits };

    (void)state;
    run_all(&r);
}

/* A rank that never sends is waited for as long as was said, and named. Whoever is first tells the other. */
static int silence(struct group *g, const struct run *r)
{
    char byte;
    double began = clock_now();
    int st = 0;

    (void)r;
    if (group_rank(g) == 0) {
        st = group_recv(g, 1, 5, &byte, 1);
        return st < 0 && strstr(group_why(g), "waited 1 s for rank") && clock_now() - began > 0.9
                   ? 0
                   : 13;
    }
    return group_recv(g, 0, 6, &byte, 1) < 0 ? 0 : 14; /* is told, or times out too */
}

static void test_timeout(void **state)
{
    struct run r = { .size = 2, .op_seconds = 1, .rank = silence };

    (void)state;
    run_all(&r);
}

static int join(uint32_t rank, uint32_t size, uint16_t port, int fd, const char *secret,
                uint64_t about, double seconds, struct err *e)
{
    struct run r = { .size = size, .port = port, .listen_fd = fd, .op_seconds = 1 };
    struct group_options o = options(&r, rank);
    struct group *g;
    int st;

    o.secret = secret;
    o.about = about;
    o.meet_seconds = seconds;
    if ((st = group_join(&g, &o, e)) == 0)
        group_leave(g);
    return st;
}

/* Who does not come is named; nobody at the address; another model; another secret. */
static void test_meeting_fails(void **state)
{
    struct err e = { "" };
    struct run r = { .size = 3 };
    pid_t pid;

    (void)state;
    open_run(&r);
    assert_int_equal(join(0, 3, r.port, r.listen_fd, "s", 7, 0.3, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "1, 2"));
    assert_int_equal(join(1, 3, r.port, -1, "s", 7, 0.3, &e), ERR_TIMEOUT);
    assert_non_null(strstr(e.text, "did not reach rank 0"));
    assert_true(group_listen(&r.listen_fd, &r.port, "192.0.2.1", 0, &e) == ERR_INVAL);
    assert_non_null(strstr(e.text, "127.0.0.1"));

    for (int lie = 0; lie < 2; lie++) {
        open_run(&r);
        fflush(NULL);
        if ((pid = fork()) == 0) {
            close(r.listen_fd);
            _exit(join(1, 2, r.port, -1, lie ? "other" : "s", lie ? 7 : 8, 10, &e) ==
                          (lie ? ERR_AUTH : ERR_MISMATCH)
                      ? 0
                      : 1);
        }
        assert_int_equal(join(0, 2, r.port, r.listen_fd, "s", 7, lie ? 1 : 10, &e),
                         lie ? ERR_TIMEOUT : ERR_MISMATCH);
        assert_int_equal(code_of(pid), 0);
    }
}

/* A stranger that talks nonsense at the meeting place is sent away; the ranks meet all the same. */
static void test_stranger(void **state)
{
    struct run r = { .size = 2, .op_seconds = 30, .rank = collectives, .n = 100, .scratch = 4096 };
    char command[128];
    pid_t pid[2];

    (void)state;
    open_run(&r);
    pid[0] = start(&r, 0);
    snprintf(command, sizeof command,
             "exec 3<>/dev/tcp/127.0.0.1/%u; head -c 500 /dev/zero >&3; sleep 0.2", r.port);
    fflush(NULL);
    if ((pid[1] = fork()) == 0) {
        close(r.listen_fd);
        execl("/bin/bash", "bash", "-c", command, NULL);
        _exit(1);
    }
    code_of(pid[1]);
    pid[1] = start(&r, 1);
    close(r.listen_fd);
    assert_int_equal(code_of(pid[0]), 0);
    assert_int_equal(code_of(pid[1]), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collectives),
        cmocka_unit_test(test_wired),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_death_in_traffic),
        cmocka_unit_test(test_death_while_testing),
        cmocka_unit_test(test_asleep),
        cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_meeting_fails),
        cmocka_unit_test(test_stranger),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
