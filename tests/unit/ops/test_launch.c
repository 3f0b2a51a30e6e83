/* What a rank's template gets, what is refused before anything starts, lines, and the guard. The life of
 * ranks as processes is in tests/e2e/test_launch.py. */
#include "rig.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ops/guard.h"
#include "ops/launch.h"
#include "ops/lines.h"
#include "sys/clock.h"

/* Node 2 of the documents' deployment, with two devices a rank. */
static const struct launch_options node2 = {
    .dp_size = 32,
    .tp_size = 2,
    .n_local = 16,
    .first_rank = 16,
    .address = "192.0.0.3",
    .rpc_port = 12321,
    .first_port = 7100,
    .template_path = "/dev/null",
};

static void test_arguments(void **state)
{
    static const char *const first[] = { "0,1", "7100", "32", "16", "192.0.0.3", "12321", "2" };
    static const char *const last[] = { "30,31", "7115", "32", "31", "192.0.0.3", "12321", "2" };
    struct launch_options o = node2;
    struct launch_args a;

    (void)state;
    launch_args_make(&a, &o, 0);
    for (int i = 0; i < LAUNCH_ARGS; i++)
        assert_string_equal(a.v[i], first[i]);
    launch_args_make(&a, &o, 15);
    for (int i = 0; i < LAUNCH_ARGS; i++)
        assert_string_equal(a.v[i], last[i]);

    o.first_device = 4;
    launch_args_make(&a, &o, 1);
    assert_string_equal(a.v[0], "6,7");
    o.tp_size = 1;
    launch_args_make(&a, &o, 1);
    assert_string_equal(a.v[0], "5");
}

/* The longest list of devices that launch_check lets through fits. */
static void test_longest_devices(void **state)
{
    struct launch_options o = node2;
    struct launch_args a;

    (void)state;
    o.n_local = 1;
    o.tp_size = LAUNCH_MAX_TP;
    o.first_device = 998975;
    launch_args_make(&a, &o, 0);
    assert_int_equal(strlen(a.v[0]), LAUNCH_MAX_TP * 7 - 1);
    assert_string_equal(a.v[0] + strlen(a.v[0]) - 6, "999998");
}

static char *template_file(void)
{
    char *path = strdup("/tmp/sluice-launch-XXXXXX");
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    close(fd);
    return path;
}

static void test_refused(void **state)
{
    static const struct {
        struct launch_options o;
        const char *says;
    } row[] = {
        { { .n_local = 0 }, "--dp-size-local 0" },
        { { .first_rank = 17 }, "ranks 17 to 32, but --dp-size 32 has ranks 0 to 31" },
        { { .first_rank = 32, .n_local = 1 }, "--dp-rank-start 32" },
        { { .first_rank = 65535, .n_local = 1 }, "--dp-rank-start 65535" },
        { { .dp_size = 2000, .n_local = 1025 }, "at most 1024 ranks" },
        { { .tp_size = 1025 }, "at most 1024 ranks of 1024" },
        { { .first_device = 999970 }, "beyond device 999999" },
        { { .first_port = 65521 }, "ports up to 65536; the last port is 65535" },
        { { .first_rank = 0, .rpc_port = 7103 }, "also the port of rank 3" },
        { { .address = "192.0.0.3192.0.0.4" }, "--dp-address '192.0.0.3192.0.0.4' is not a host" },
        { { .address = "192.0.0.3--dp-rpc-port" }, "is not a host" },
        { { .address = "" }, "is not a host" },
        { { .address = "a b" }, "is not a host" },
        { { .template_path = "/nowhere/t.sh" }, "/nowhere/t.sh: No such file" },
        { { .template_path = "/tmp" }, "/tmp is not a file" },
    };
    char *path = template_file();
    struct launch_options o = node2;
    struct err e = { "" };

    (void)state;
    o.template_path = path;
    o.first_port = 47100; /* nobody listens here */
    if (launch_check(&o, &e) < 0)
        fail_msg("%s", e.text);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const struct launch_options *x = &row[i].o;

        o = node2;
        o.template_path = x->template_path ? x->template_path : path;
        o.address = x->address ? x->address : o.address;
        o.dp_size = x->dp_size ? x->dp_size : o.dp_size;
        o.tp_size = x->tp_size ? x->tp_size : o.tp_size;
        o.first_rank = x->first_rank || x->rpc_port ? x->first_rank : o.first_rank;
        o.n_local = x->n_local || i == 0 ? x->n_local : o.n_local;
        o.first_device = x->first_device;
        o.first_port = x->first_port ? x->first_port : o.first_port;
        o.rpc_port = x->rpc_port ? x->rpc_port : o.rpc_port;
        assert_int_equal(launch_check(&o, &e), ERR_INVAL);
        if (!strstr(e.text, row[i].says))
            fail_msg("'%s' does not say '%s'", e.text, row[i].says);
    }
    unlink(path);
    free(path);
}

static int listen_at(const char *host, uint16_t *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET };
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    inet_pton(AF_INET, host, &a.sin_addr);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(fd, 1), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* A port in use on every address is named. On another address of this host, another node of a
 * rehearsal may use it. */
static void test_port_in_use(void **state)
{
    char *path = template_file();
    struct launch_options o = node2;
    struct err e = { "" };
    uint16_t port;
    int fd = listen_at("0.0.0.0", &port);

    (void)state;
    o.template_path = path;
    o.n_local = 1;
    o.first_port = port;
    assert_int_equal(launch_check(&o, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "is in use"));
    close(fd);
    assert_int_equal(launch_check(&o, &e), 0);
    fd = listen_at("127.0.1.3", &port);
    o.first_port = port;
    assert_int_equal(launch_check(&o, &e), 0);
    close(fd);
    unlink(path);
    free(path);
}

/* Cut anywhere, the same lines come out. */
static void test_lines(void **state)
{
    static const char text[] = "one\n\ntwo three\nlast";

    (void)state;
    for (size_t cut = 0; cut < sizeof text; cut++)
        for (size_t cut2 = cut; cut2 < sizeof text; cut2++) {
            struct buf out, plain;
            struct lines l;

            buf_init(&out, 1 << 16);
            buf_init(&plain, 1 << 16);
            lines_init(&l, "[rank 3] ");
            lines_add(&l, text, cut, &out, &plain);
            lines_add(&l, text + cut, cut2 - cut, &out, &plain);
            lines_add(&l, text + cut2, sizeof text - 1 < cut2 ? 0 : sizeof text - 1 - cut2, &out,
                      &plain);
            assert_string_equal(buf_str(&out), "[rank 3] one\n[rank 3] \n[rank 3] two three\n");
            assert_string_equal(buf_str(&plain), "one\n\ntwo three\n");
            lines_end(&l, &out, &plain);
            lines_end(&l, &out, NULL); /* once is enough */
            assert_string_equal(buf_str(&out) +
                                    strlen("[rank 3] one\n[rank 3] \n[rank 3] two three\n"),
                                "[rank 3] last\n");
            assert_string_equal(buf_str(&plain), "one\n\ntwo three\nlast\n");
            lines_finish(&l);
            buf_finish(&out);
            buf_finish(&plain);
        }
}

/* A line without end is cut, and nothing of it is lost. */
static void test_long_line(void **state)
{
    size_t n = 2 * LINES_MAX_LINE + 5;
    char *data = malloc(n);
    struct buf out;
    struct lines l;

    (void)state;
    for (size_t i = 0; i < n; i++)
        data[i] = (char)('a' + i % 26);
    buf_init(&out, 1 << 20);
    lines_init(&l, "> ");
    for (size_t at = 0; at < n; at += 1000)
        lines_add(&l, data + at, n - at < 1000 ? n - at : 1000, &out, NULL);
    lines_end(&l, &out, NULL);
    assert_int_equal(out.len, n + 3 * 3);
    assert_memory_equal(out.data + 2, data, LINES_MAX_LINE);
    assert_memory_equal(out.data + LINES_MAX_LINE + 2, "\n> ", 3);
    assert_memory_equal(out.data + 3 + LINES_MAX_LINE + 2, data + LINES_MAX_LINE, LINES_MAX_LINE);
    assert_memory_equal(out.data + out.len - 6, data + n - 5, 5);
    lines_finish(&l);
    buf_finish(&out);
    free(data);
}

/* Starts the guard and two groups of a process each, and dies as said. The process in slot i writes its
 * pid to out[i] and holds that open. The guard is told that the group in slot 1 is gone. */
static _Noreturn void live_and_die(const int out[2], bool finish)
{
    struct guard g;
    struct err e;

    if (guard_start(&g, 2, &e) < 0)
        _exit(1);
    for (uint32_t i = 0; i < 2; i++) {
        pid_t pid = fork();

        if (pid == 0) {
            pid = getpid();
            setpgid(0, 0);
            guard_tell(&g, i, pid);
            if (i == 1)
                guard_tell(&g, 1, 0);
            close(g.fd);
            close(out[1 - i]);
            if (write(out[i], &pid, sizeof pid) == sizeof pid)
                pause();
            _exit(0);
        }
    }
    clock_sleep(0.2); /* both have told */
    if (finish)
        guard_finish(&g);
    else
        raise(SIGKILL);
    _exit(0);
}

static void check_guard(bool finish)
{
    int kept[2], freed[2];
    pid_t pid, in_slot[2];
    char byte;

    assert_true(pipe(kept) == 0 && pipe(freed) == 0);
    fflush(NULL);
    if ((pid = fork()) == 0)
        live_and_die((const int[]){ kept[1], freed[1] }, finish);
    close(kept[1]);
    close(freed[1]);
    assert_int_equal(read(kept[0], &in_slot[0], sizeof(pid_t)), sizeof(pid_t));
    assert_int_equal(read(freed[0], &in_slot[1], sizeof(pid_t)), sizeof(pid_t));
    alarm(20);
    assert_int_equal(read(kept[0], &byte, 1), 0); /* closed: the group was killed */
    alarm(0);
    waitpid(pid, NULL, 0);
    assert_int_equal(kill(in_slot[1], 0), 0); /* and the other one was not */
    kill(in_slot[1], SIGKILL);
    assert_int_equal(read(freed[0], &byte, 1), 0);
    close(kept[0]);
    close(freed[0]);
}

static void test_guard(void **state)
{
    (void)state;
    check_guard(false);
    check_guard(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_arguments), cmocka_unit_test(test_longest_devices),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_port_in_use),
        cmocka_unit_test(test_lines),     cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_guard),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
