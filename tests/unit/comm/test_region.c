#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/region.h"

#define BYTES 100000

static void same_memory(void **state)
{
    struct region_key key;
    const void *seen;
    void *p;

    (void)state;
    assert_int_equal(region_alloc(&p, BYTES, NULL), 0);
    assert_int_equal(region_key(&key, p), 0);
    assert_int_equal(region_open(&seen, &key, BYTES), 0);
    assert_int_equal(((const char *)seen)[BYTES - 1], 0);
    memset(p, 5, BYTES);
    assert_memory_equal(p, seen, BYTES);
    region_close(seen, BYTES);
    region_free(p, BYTES);
}

static void wrong_keys(void **state)
{
    struct region_key key, bad = { { 0 } };
    const void *seen;
    void *p;

    (void)state;
    assert_int_equal(region_open(&seen, &bad, BYTES), ERR_NOTFOUND);
    assert_int_equal(region_alloc(&p, BYTES, NULL), 0);
    assert_int_equal(region_key(&key, p), 0);
    assert_int_equal(region_key(&bad, (char *)p + 1), ERR_NOTFOUND);
    assert_int_equal(region_open(&seen, &key, BYTES + 1), ERR_MISMATCH);
    for (size_t i = 0; i < sizeof key.b; i++) {
        bad = key;
        bad.b[i] ^= 1;
        if (region_open(&seen, &bad, BYTES) == 0) { /* a byte that says nothing */
            memset(p, 9, BYTES);
            assert_memory_equal(p, seen, BYTES);
            region_close(seen, BYTES);
        }
    }
    region_free(p, BYTES);
    assert_true(region_open(&seen, &key, BYTES) < 0); /* stale */
    assert_int_equal(region_alloc(&p, 0, NULL), ERR_NOMEM);
}

/* The owner is killed: what was mapped stays readable, the key opens nothing any more. */
static void owner_dies(void **state)
{
    struct region_key key;
    const void *seen, *again;
    int fds[2];
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(fds), 0);
    pid = fork();
    if (pid == 0) {
        void *p;

        if (region_alloc(&p, BYTES, NULL) < 0 || region_key(&key, p) < 0)
            _exit(1);
        memset(p, 77, BYTES);
        if (write(fds[1], &key, sizeof key) != sizeof key)
            _exit(1);
        pause();
    }
    assert_int_equal(read(fds[0], &key, sizeof key), sizeof key);
    assert_int_equal(region_open(&seen, &key, BYTES), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    assert_int_equal(((const char *)seen)[BYTES - 1], 77);
    assert_true(region_open(&again, &key, BYTES) < 0);
    region_close(seen, BYTES);
    close(fds[0]);
    close(fds[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_memory),
        cmocka_unit_test(wrong_keys),
        cmocka_unit_test(owner_dies),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
