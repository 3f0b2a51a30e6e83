/* The pipe between ranks: messages of any size arrive whole and in order while states pass through, the
 * living answer, and who is gone is noticed. Each rank is a process. */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/group.h"
#include "engine/pipe.h"
#include "sys/clock.h"

#define RANKS       3
#define MESSAGES    400
#define STEPS       60
#define STATE_BYTES 300000

#define CHECK(x)                                                                                   \
    do {                                                                                           \
        if (!(x)) {                                                                                \
            fprintf(stderr, "rank %u, line %d: %s\n", n->rank, __LINE__, #x);                      \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)

/* A rank, as its callbacks see it. */
struct node {
    uint32_t rank;
    struct pipe *p;
    atomic_uint got[RANKS]; /* messages from each, in order */
    atomic_bool leave, broken;
    atomic_int lost;
};

/* Sizes around the border of the first piece, some large, some empty. */
static size_t size_of(uint32_t from, uint32_t to, uint32_t k)
{
    uint32_t x = (from * 31 + to * 17 + k) * 2654435761u >> 8;

    if (k % 7 == 0)
        return 4090 + x % 16;
    if (k % 50 == 1)
        return 3000000 + x % 1000;
    return k % 11 == 3 ? 0 : x % 30000;
}

static unsigned char byte_of(uint32_t from, uint32_t to, uint32_t k, size_t i)
{
    return (unsigned char)(from * 101 + to * 57 + k * 13 + i * 7 + (i >> 8));
}

static void arrived(void *arg, uint32_t from, uint32_t kind, const void *data, size_t bytes)
{
    struct node *n = arg;
    const unsigned char *p = data;
    uint32_t k = atomic_load(&n->got[from]);

    if (kind == PIPE_LEAVE) {
        atomic_store(&n->leave, true);
        return;
    }
    CHECK(kind == PIPE_KV && k < MESSAGES && bytes == size_of(from, n->rank, k));
    for (size_t i = 0; i < bytes; i++)
        CHECK(p[i] == byte_of(from, n->rank, k, i));
    atomic_store(&n->got[from], k + 1);
}

static void broken(void *arg, int status, const char *why)
{
    struct node *n = arg;

    (void)why;
    CHECK(status < 0);
    atomic_store(&n->lost, pipe_lost(n->p));
    atomic_store(&n->broken, true);
}

static void post(struct node *n, uint32_t to, uint32_t k)
{
    size_t bytes = size_of(n->rank, to, k);
    unsigned char *data = malloc(bytes + 1);
    int st;

    CHECK(data);
    for (size_t i = 0; i < bytes; i++)
        data[i] = byte_of(n->rank, to, k, i);
    while ((st = pipe_post(n->p, to, PIPE_KV, data, bytes)) == ERR_LIMIT)
        clock_sleep(0.001);
    CHECK(st == 0);
    free(data);
}

static void *post_all(void *arg)
{
    struct node *n = arg;

    for (uint32_t k = 0; k < MESSAGES; k++)
        for (uint32_t to = 0; to < RANKS; to++)
            if (to != n->rank)
                post(n, to, k);
    return NULL;
}

/* Rank 0 makes states, each adds its number, the last one looks at them. */
static void pass_states(struct node *n, uint64_t seq)
{
    size_t bytes = seq % 5 == 0 ? 0 : seq * 7919 % STATE_BYTES;
    const struct pipe_states *in = NULL;
    struct pipe_states *out;

    if (n->rank > 0) {
        CHECK(pipe_states_wait(n->p, &in) == 0);
        CHECK(in->seq == seq && in->bytes == bytes && in->n_times == n->rank);
        for (size_t i = 0; i < bytes; i += 97)
            CHECK((unsigned char)in->data[i] == (unsigned char)(seq + i + n->rank - 1));
        CHECK(in->time[n->rank - 1].start == (double)seq);
    }
    if (n->rank + 1 < RANKS) {
        CHECK(pipe_states_room(n->p, &out) == 0);
        out->seq = seq;
        out->bytes = bytes;
        out->n_times = n->rank + 1;
        out->time[n->rank] = (struct pipe_time){ (double)seq, 0 };
        for (size_t i = 0; i < bytes; i++)
            out->data[i] = (char)(seq + i + n->rank);
        pipe_states_send(n->p);
    }
    if (n->rank > 0)
        pipe_states_done(n->p);
}

static void wait_for(struct node *n, atomic_uint *what, uint32_t much)
{
    double until = clock_now() + 60;

    while (atomic_load(what) < much && clock_now() < until)
        clock_sleep(0.002);
    CHECK(atomic_load(what) >= much);
}

static void wait_until(struct node *n, atomic_bool *what)
{
    double until = clock_now() + 60;

    while (!atomic_load(what) && clock_now() < until)
        clock_sleep(0.002);
    CHECK(atomic_load(what));
}

static void traffic(struct node *n)
{
    pthread_t poster;

    CHECK(pthread_create(&poster, NULL, post_all, n) == 0);
    for (uint64_t seq = 1; seq <= STEPS; seq++)
        pass_states(n, seq);
    pthread_join(poster, NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != n->rank)
            wait_for(n, &n->got[r], MESSAGES);
    if (n->rank > 0) {
        wait_until(n, &n->leave);
        return;
    }
    CHECK(pipe_silent(n->p, 30) == PIPE_NOBODY);
    CHECK(pipe_post(n->p, 0, PIPE_KV, "x", 1) == ERR_LIMIT); /* not to itself */
    for (uint32_t r = 1; r < RANKS; r++)
        CHECK(pipe_post(n->p, r, PIPE_LEAVE, NULL, 0) == 0);
}

/* Rank 1 is killed while rank 2 waits for its states. */
static void death(struct node *n)
{
    const struct pipe_states *in;

    if (n->rank == 1) { /* when all are there */
        wait_for(n, &n->got[0], 1);
        wait_for(n, &n->got[2], 1);
        raise(SIGKILL);
    }
    post(n, 1, 0);
    if (n->rank == 2)
        CHECK(pipe_states_wait(n->p, &in) < 0);
    wait_until(n, &n->broken);
    CHECK(n->rank > 0 || atomic_load(&n->lost) == 1);
    CHECK(pipe_post(n->p, n->rank ? 0 : 2, PIPE_KV, NULL, 0) == ERR_CLOSED);
}

/* All are there, and know it. */
static void meet(struct node *n)
{
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != n->rank)
            post(n, r, 0);
    for (uint32_t r = 0; r < RANKS; r++)
        if (r != n->rank)
            wait_for(n, &n->got[r], 1);
}

/* Any thread may end it for all. */
static void abandon(struct node *n)
{
    meet(n);
    if (n->rank == 2)
        pipe_abandon(n->p, "enough of it");
    wait_until(n, &n->broken);
}

/* Rank 0 goes without a word to say that the others shall. */
static void orphans(struct node *n)
{
    meet(n);
    if (n->rank > 0)
        wait_until(n, &n->broken);
}

static void live(uint32_t rank, int listen_fd, uint16_t port, void (*run)(struct node *))
{
    struct node *n = calloc(1, sizeof *n);
    const struct group_options g = { .rank = rank,
                                     .size = RANKS,
                                     .host = "127.0.0.1",
                                     .master_host = "127.0.0.1",
                                     .master_port = port,
                                     .listen_fd = rank ? -1 : listen_fd,
                                     .meet_seconds = 60,
                                     .op_seconds = 60 };
    struct pipe_options o = { .from = rank > 0 ? rank - 1 : PIPE_NOBODY,
                              .to = rank + 1 < RANKS ? rank + 1 : PIPE_NOBODY,
                              .state_bytes = STATE_BYTES,
                              .seconds = 60,
                              .arrived = arrived,
                              .broken = broken,
                              .arg = n };
    struct err e = { "" };

    if (rank > 0)
        close(listen_fd);
    n->rank = rank;
    CHECK(group_join(&o.group, &g, &e) == 0);
    CHECK(pipe_create(&n->p, &o, &e) == 0);
    run(n);
    pipe_destroy(n->p);
    free(n);
    exit(0); /* and not _exit: leaks are looked for */
}

static void run_ranks(void (*run)(struct node *), const int *codes)
{
    struct err e = { "" };
    uint16_t port;
    pid_t pid[RANKS];
    int fd;

    assert_int_equal(group_listen(&fd, &port, "127.0.0.1", 0, &e), 0);
    fflush(NULL);
    for (uint32_t r = 0; r < RANKS; r++)
        if ((pid[r] = fork()) == 0)
            live(r, fd, port, run);
    close(fd);
    for (uint32_t r = 0; r < RANKS; r++) {
        int status;

        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        assert_int_equal(WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status),
                         codes[r]);
    }
}

static const int all_well[RANKS] = { 0 };

static void test_traffic(void **state)
{
    (void)state;
    run_ranks(traffic, all_well);
}

static void test_death(void **state)
{
    (void)state;
    run_ranks(death, (const int[RANKS]){ 0, 1000 + SIGKILL, 0 });
}

static void test_abandon(void **state)
{
    (void)state;
    run_ranks(abandon, all_well);
}

static void test_orphans(void **state)
{
    (void)state;
    run_ranks(orphans, all_well);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_traffic),
        cmocka_unit_test(test_death),
        cmocka_unit_test(test_abandon),
        cmocka_unit_test(test_orphans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
