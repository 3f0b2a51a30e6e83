#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "wire/kv_params.h"

static int decode(struct kv_params *p, const char *text, struct err *e)
{
    json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
    int st;

    assert_non_null(o);
    st = kv_params_decode(p, o, e);
    json_decref(o);
    return st;
}

static void what_a_proxy_asks_of_prefill(void **state)
{
    struct kv_params p;

    (void)state;
    assert_int_equal(decode(&p,
                            "{\"do_remote_decode\":true,\"do_remote_prefill\":false,"
                            "\"remote_engine_id\":null,\"remote_block_ids\":null,"
                            "\"remote_host\":null,\"remote_port\":null}",
                            NULL),
                     0);
    assert_true(p.do_remote_decode);
    assert_false(p.do_remote_prefill);
    assert_string_equal(p.remote_engine_id, "");
    assert_string_equal(p.transfer_id, "");
    assert_null(p.remote_block_ids);
    assert_int_equal(p.last_token_id, -1);
    assert_int_equal(p.remote_ptp_size, 1);
    kv_params_finish(&p);
}

static void what_a_proxy_asks_of_decode_meanwhile(void **state)
{
    struct kv_params p;

    (void)state;
    assert_int_equal(decode(&p,
                            "{\"do_remote_decode\":false,\"do_remote_prefill\":true,"
                            "\"transfer_id\":\"xfer-1\",\"remote_engine_id\":\"e\","
                            "\"remote_bootstrap_addr\":\"http://10.0.0.1:8998\"}",
                            NULL),
                     0);
    assert_true(p.do_remote_prefill);
    assert_string_equal(p.transfer_id, "xfer-1");
    assert_string_equal(p.remote_engine_id, "e");
    assert_string_equal(p.remote_bootstrap_addr, "http://10.0.0.1:8998");
    assert_string_equal(p.remote_host, "");
    kv_params_finish(&p);
}

static void an_answer_survives_the_way_through_a_proxy(void **state)
{
    static const char *text =
        "{\"do_remote_prefill\":true,\"do_remote_decode\":false,\"remote_engine_id\":\"e\","
        "\"remote_request_id\":\"r\",\"remote_block_ids\":[3,1,4294967295],\"remote_host\":\"::1\","
        "\"remote_port\":36000,\"remote_block_size\":16,\"num_prompt_blocks\":3,"
        "\"remote_ptp_size\":2,\"remote_pp_size\":4,\"last_token_id\":7}";
    struct kv_params p, copy;
    char *back;
    json_t *o;

    (void)state;
    assert_int_equal(decode(&p, text, NULL), 0);
    assert_int_equal(kv_params_copy(&copy, &p), 0);
    kv_params_finish(&p);
    o = kv_params_encode(&copy);
    back = json_dumps(o, JSON_COMPACT);
    assert_string_equal(back, text);
    free(back);
    json_decref(o);
    kv_params_finish(&copy);
}

static void other_spellings_are_taken(void **state)
{
    struct kv_params p;

    (void)state;
    assert_int_equal(decode(&p,
                            "{\"do_remote_prefill\":true,\"remote_engine_id\":0,"
                            "\"remote_port\":\"36000\",\"remote_block_ids\":[[5,6]],"
                            "\"transfer_id\":\"t\",\"remote_bootstrap_addr\":\"x\"}",
                            NULL),
                     0);
    assert_string_equal(p.remote_engine_id, "0");
    assert_string_equal(p.transfer_id, "t");
    assert_int_equal(p.remote_port, 36000);
    assert_int_equal(p.n_blocks, 2);
    assert_int_equal(p.remote_block_ids[1], 6);
    kv_params_finish(&p);
}

static void an_output_that_goes_on(void **state)
{
    struct kv_params p, copy;

    (void)state;
    assert_int_equal(decode(&p,
                            "{\"do_remote_prefill\":true,\"remote_block_ids\":[4],"
                            "\"output_token_ids\":[7,0,2147483647]}",
                            NULL),
                     0);
    assert_int_equal(kv_params_copy(&copy, &p), 0);
    kv_params_finish(&p);
    assert_int_equal(copy.n_output, 3);
    assert_int_equal(copy.output_ids[0], 7);
    assert_int_equal(copy.output_ids[2], INT32_MAX);
    assert_int_equal(copy.remote_block_ids[0], 4);
    kv_params_finish(&copy);
    assert_int_equal(decode(&p, "{\"output_token_ids\":[]}", NULL), 0);
    assert_int_equal(p.n_output, 0);
    kv_params_finish(&p);
}

static void faults_name_the_member(void **state)
{
    static const char *const rows[][2] = {
        { "[]", "must be an object" },
        { "{\"do_remote_decode\":1}", "do_remote_decode" },
        { "{\"do_remote_decode\":true,\"do_remote_prefill\":true}", "both true" },
        { "{\"remote_port\":65536}", "remote_port" },
        { "{\"remote_port\":\"x\"}", "remote_port" },
        { "{\"remote_port\":-1}", "remote_port" },
        { "{\"remote_block_ids\":[1,-1]}", "remote_block_ids[1]" },
        { "{\"remote_block_ids\":[1,2.5]}", "remote_block_ids[1]" },
        { "{\"remote_block_ids\":[[1],[2]]}", "remote_block_ids[0]" },
        { "{\"remote_block_ids\":\"1\"}", "remote_block_ids" },
        { "{\"remote_ptp_size\":0}", "remote_ptp_size" },
        { "{\"remote_host\":true}", "remote_host" },
        { "{\"last_token_id\":-2}", "last_token_id" },
        { "{\"output_token_ids\":7}", "output_token_ids" },
        { "{\"output_token_ids\":[1,-1]}", "output_token_ids[1]" },
        { "{\"output_token_ids\":[1,2147483648]}", "output_token_ids[1]" },
    };
    char text[400] = "{\"remote_engine_id\":\"";
    struct kv_params p;

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = { "" };

        assert_int_equal(decode(&p, rows[i][0], &e), ERR_BADMSG);
        assert_non_null(strstr(e.text, rows[i][1]));
    }
    memset(text + strlen(text), 'x', KV_PARAMS_ID_MAX);
    strcat(text, "\"}");
    assert_int_equal(decode(&p, text, NULL), ERR_LIMIT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_proxy_asks_of_prefill),
        cmocka_unit_test(what_a_proxy_asks_of_decode_meanwhile),
        cmocka_unit_test(an_answer_survives_the_way_through_a_proxy),
        cmocka_unit_test(other_spellings_are_taken),
        cmocka_unit_test(an_output_that_goes_on),
        cmocka_unit_test(faults_name_the_member),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
