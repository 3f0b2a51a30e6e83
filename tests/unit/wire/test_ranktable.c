#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "wire/ranktable.h"

#define DEVICE(host, id, cluster)                                                                  \
    "{\"server_id\":\"" host "\",\"device_id\":\"" #id "\",\"device_ip\":\"" host                  \
    "\",\"super_device_id\":\"" #cluster "\",\"cluster_id\":\"" #cluster "\"}"
#define TABLE(prefill, decode)                                                                     \
    "{\"version\":\"1.2\",\"server_count\":\"1\",\"prefill_device_list\":[" prefill                \
    "],\"decode_device_list\":[" decode "]}"

static int parse(struct ranktable *t, const char *text, struct err *e)
{
    *t = (struct ranktable){ 0 };
    return ranktable_parse(t, text, strlen(text), e);
}

static void finds_its_own_devices(void **state)
{
    static const char text[] = TABLE(DEVICE("10.0.0.1", 2, 1) "," DEVICE("10.0.0.1", 3, 2),
                                     DEVICE("10.0.0.1", 4, 3) "," DEVICE("10.0.0.1", 5, 4));
    static const uint32_t two[] = { 2, 3 }, five[] = { 5 };
    const struct ranktable_device *found[4];
    struct ranktable t, again;
    struct err e = { "" };
    char *written;

    (void)state;
    assert_int_equal(parse(&t, text, &e), 0);
    assert_int_equal(ranktable_find(&t, false, "10.0.0.1", two, 2, found, 4), 2);
    assert_int_equal(found[0]->device, 2);
    assert_int_equal(found[1]->cluster, 2);
    assert_int_equal(ranktable_find(&t, true, "10.0.0.1", two, 2, found, 4), 0);
    assert_int_equal(ranktable_find(&t, true, "10.0.0.1", five, 1, found, 4), 1);
    assert_int_equal(found[0]->cluster, 4);
    assert_int_equal(ranktable_find(&t, true, "10.0.0.1", NULL, 0, found, 4), 2);
    assert_int_equal(ranktable_find(&t, true, "10.0.0.2", NULL, 0, found, 4), 0);

    written = ranktable_write(&t);
    assert_non_null(written);
    assert_int_equal(parse(&again, written, &e), 0);
    assert_int_equal(again.n_prefill, 2);
    assert_memory_equal(again.prefill, t.prefill, 2 * sizeof *t.prefill);
    assert_memory_equal(again.decode, t.decode, 2 * sizeof *t.decode);
    free(written);
    ranktable_finish(&again);
    ranktable_finish(&t);
}

static void broken_tables_are_named(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        { "", "rank table" },
        { "[]", "not a JSON object" },
        { "{\"prefill_device_list\":[]}", "\"prefill_device_list\" must be a list" },
        { TABLE("1", DEVICE("10.0.0.1", 1, 2)), "prefill_device_list[0] is no object" },
        { TABLE(DEVICE("10.0.0.1", 0, 1), "{}"),
          "decode_device_list[0]: \"server_id\" is missing" },
        { TABLE(DEVICE("host", 0, 1), DEVICE("10.0.0.1", 1, 2)), "\"server_id\" is no numeric" },
        { TABLE("{\"server_id\":\"10.0.0.1\"}", DEVICE("10.0.0.1", 1, 2)),
          "\"device_id\" is missing" },
        { TABLE("{\"server_id\":\"10.0.0.1\",\"device_id\":\"x\"}", DEVICE("10.0.0.1", 1, 2)),
          "\"device_id\" must be a number" },
        { TABLE("{\"server_id\":\"10.0.0.1\",\"device_id\":-1}", DEVICE("10.0.0.1", 1, 2)),
          "\"device_id\" must be a number" },
        { TABLE("{\"server_id\":\"10.0.0.1\",\"device_id\":0}", DEVICE("10.0.0.1", 1, 2)),
          "\"device_ip\" is missing" },
        { TABLE(DEVICE("10.0.0.1", 0, 1), DEVICE("10.0.0.1", 0, 2)),
          "same server_id and device_id: device 0 of 10.0.0.1" },
        { TABLE(DEVICE("10.0.0.1", 0, 1), DEVICE("10.0.0.2", 0, 1)), "same super_device_id" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct ranktable t;
        struct err e = { "" };

        assert_int_equal(parse(&t, rows[i].text, &e), ERR_BADMSG);
        if (!strstr(e.text, rows[i].says))
            fail_msg("row %zu says \"%s\"", i, e.text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_its_own_devices),
        cmocka_unit_test(broken_tables_are_named),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
