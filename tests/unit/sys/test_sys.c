#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "sys/clock.h"
#include "sys/map.h"
#include "sys/topo.h"

static void a_mapped_file_reads_as_its_bytes(void **state)
{
    char path[] = "/tmp/sluice-test-XXXXXX";
    int fd = mkstemp(path);
    struct map m;

    (void)state;
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "weights", 7), 7);
    close(fd);
    assert_int_equal(map_open(&m, path, NULL), 0);
    assert_int_equal(m.size, 7);
    assert_memory_equal(m.data, "weights", 7);
    map_drop(&m, 0, m.size);
    assert_memory_equal(m.data, "weights", 7);
    map_close(&m);
    unlink(path);
}

static void a_device_is_no_file_to_map(void **state)
{
    struct map m;

    (void)state;
    assert_int_equal(map_open(&m, "/dev/null", NULL), ERR_IO); /* not a regular file */
}

static void a_missing_file_is_named(void **state)
{
    struct err e = { "" };
    struct map m;

    (void)state;
    assert_int_equal(map_open(&m, "/nonexistent/model.gguf", &e), ERR_NOTFOUND);
    assert_non_null(strstr(e.text, "/nonexistent/model.gguf"));
}

static void the_machine_has_a_cpu_and_memory(void **state)
{
    (void)state;
    assert_true(topo_cpus() >= 1);
    assert_true(topo_memory_total() >= topo_memory_available());
    assert_true(topo_memory_available() > 0);
}

static void the_clock_only_goes_forward(void **state)
{
    double t = clock_now();

    (void)state;
    clock_sleep(0.002);
    assert_true(clock_now() - t >= 0.002);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_mapped_file_reads_as_its_bytes),
        cmocka_unit_test(a_device_is_no_file_to_map),
        cmocka_unit_test(a_missing_file_is_named),
        cmocka_unit_test(the_machine_has_a_cpu_and_memory),
        cmocka_unit_test(the_clock_only_goes_forward),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
