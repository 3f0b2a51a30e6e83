/* What `sluice ranktable` writes, and what it refuses. */
#include "rig.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "ops/ranktable.h"

static const char *const loopback[] = { "127.0.1.1", "127.0.1.3" };

/* The documents' counts, on addresses that any machine has. */
static const struct ranktable_options two_hosts = {
    .hosts = loopback,
    .n_hosts = 2,
    .devices_per_host = 16,
    .interface = "lo",
    .n_prefill = 16,
    .n_decode = 16,
};

static void the_documents_table(void **state)
{
    struct ranktable t, read;
    struct err e = { "" };
    char path[64];

    (void)state;
    snprintf(path, sizeof path, "/tmp/sluice-ranktable-%d.json", (int)getpid());
    assert_int_equal(ranktable_make(&t, &two_hosts, &e), 0);
    assert_int_equal(ranktable_save(&t, path, &e), 0);
    assert_int_equal(ranktable_load(&read, path, &e), 0);
    unlink(path);
    assert_int_equal(read.n_prefill, 16);
    assert_int_equal(read.n_decode, 16);
    assert_string_equal(read.prefill[15].host, "127.0.1.1");
    assert_int_equal(read.prefill[15].device, 15);
    assert_string_equal(read.decode[0].host, "127.0.1.3");
    assert_int_equal(read.decode[0].device, 0);
    assert_int_equal(read.decode[0].cluster, 17);
    ranktable_finish(&read);
    ranktable_finish(&t);
}

static void prefill_and_decode_may_share_a_host(void **state)
{
    struct ranktable_options o = two_hosts;
    const struct ranktable_device *found[4];
    static const uint32_t visible[] = { 4, 5 };
    struct ranktable t;
    struct err e = { "" };

    (void)state;
    o.n_hosts = 1;
    o.devices_per_host = 4;
    o.device_ids = "2,3,4,5";
    o.n_prefill = o.n_decode = 2;
    assert_int_equal(ranktable_make(&t, &o, &e), 0);
    assert_int_equal(ranktable_find(&t, false, "127.0.1.1", NULL, 0, found, 4), 2);
    assert_int_equal(found[0]->device, 2);
    assert_int_equal(ranktable_find(&t, true, "127.0.1.1", visible, 2, found, 4), 2);
    assert_int_equal(found[1]->device, 5);
    ranktable_finish(&t);
}

static void mistakes_are_named(void **state)
{
    static const char *const twice[] = { "127.0.1.1", "127.0.1.1" };
    static const char *const glued[] = { "127.0.1.1127.0.1.3" };
    static const char *const foreign[] = { "192.0.2.1", "192.0.2.2" };
    struct ranktable_options rows[8];
    static const char *const says[] = { "is there twice",
                                        "put a blank between two",
                                        "none of the addresses is this host's",
                                        "no interface 'nosuch0'",
                                        "do not add up to the 32 devices",
                                        "device 1 is there twice",
                                        "2 devices, but --npus-per-node 16",
                                        "is no list like" };
    struct ranktable t;

    (void)state;
    for (size_t i = 0; i < 8; i++)
        rows[i] = two_hosts;
    rows[0].hosts = twice;
    rows[1].hosts = glued;
    rows[1].n_hosts = 1;
    rows[2].hosts = foreign;
    rows[3].interface = "nosuch0";
    rows[4].n_decode = 8;
    rows[5].device_ids = "0,1,1";
    rows[6].device_ids = "0,1";
    rows[7].device_ids = "0,,1";
    for (size_t i = 0; i < 8; i++) {
        struct err e = { "" };

        assert_int_equal(ranktable_make(&t, &rows[i], &e), ERR_INVAL);
        if (!strstr(e.text, says[i]))
            fail_msg("row %zu says \"%s\"", i, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_documents_table),
        cmocka_unit_test(prefill_and_decode_may_share_a_host),
        cmocka_unit_test(mistakes_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
