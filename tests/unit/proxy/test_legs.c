/* What P and D are sent, and whose figures the client gets. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "proxy/legs.h"

#define SIX                                                                                        \
    "\"kv_transfer_params\":{\"do_remote_decode\":true,\"do_remote_prefill\":false,"               \
    "\"remote_engine_id\":null,\"remote_block_ids\":null,\"remote_host\":null,"                    \
    "\"remote_port\":null}"

static struct legs_request read_ok(const char *body)
{
    struct legs_request r;
    size_t at;

    assert_int_equal(legs_read(&r, body, strlen(body), &at), 0);
    return r;
}

static void prefill_bodies(void **state)
{
    static const struct {
        const char *in, *out;
    } rows[] = {
        { "{\"prompt\":\"a\"}", "{\"prompt\":\"a\",\"max_tokens\":1,\"stream\":false," SIX "}" },
        { "{\"max_tokens\":100,\"min_tokens\":50,\"stream\":true,\"stream_options\":{},\"n\":3}",
          "{\"max_tokens\":1,\"stream\":false,\"n\":1," SIX "}" },
        { "{\"max_completion_tokens\":100,\"max_tokens\":null,\"stream\":null}",
          "{\"max_completion_tokens\":1,\"max_tokens\":1,\"stream\":false," SIX "}" },
        { "{\"max_completion_tokens\":null,\"seed\":18446744073709551615}",
          "{\"seed\":18446744073709551615,\"max_tokens\":1,\"stream\":false," SIX "}" },
        { "{\"kv_transfer_params\":{\"x\":1},\"max_tokens\":5,\"stream\":false}",
          "{" SIX ",\"max_tokens\":1,\"stream\":false}" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct legs_request r = read_ok(rows[i].in);
        struct buf b;

        buf_init(&b, 1000);
        assert_int_equal(legs_prefill_body(&b, &r), 0);
        assert_string_equal(buf_str(&b), rows[i].out);
        buf_finish(&b);
    }
}

static void prefill_with_a_name(void **state)
{
    struct legs_request r = read_ok("{\"prompt\":\"a\",\"max_tokens\":5,\"stream\":false}");
    struct buf b;

    (void)state;
    r.transfer_id = "t-1";
    r.output_ids = (struct splice_text){ "[1,2]", 5 };
    buf_init(&b, 1000);
    assert_int_equal(legs_prefill_body(&b, &r), 0);
    assert_non_null(strstr(buf_str(&b), "\"do_remote_decode\":true,"));
    assert_non_null(strstr(buf_str(&b), "\"transfer_id\":\"t-1\",\"output_token_ids\":[1,2]}"));
    buf_finish(&b);
}

static void decode_bodies(void **state)
{
    static const char body[] =
        "{ \"t\":0.10, \"kv_transfer_params\" : {\"remote_host\":\"evil\"} }";
    struct legs_request r = read_ok(body);
    struct buf b;

    (void)state;
    buf_init(&b, 1000);
    assert_int_equal(legs_decode_body(&b, &r, (struct splice_text){ "{\"k\":1}", 7 }), 0);
    assert_string_equal(buf_str(&b), "{ \"t\":0.10, \"kv_transfer_params\" : {\"k\":1} }");
    buf_reset(&b);
    assert_int_equal(legs_decode_body(&b, &r, (struct splice_text){ NULL, 0 }), 0);
    assert_string_equal(buf_str(&b), "{ \"t\":0.10}");
    buf_finish(&b);
}

static void plans(void **state)
{
    static const struct {
        const char *body;
        enum legs_plan plan;
        bool stream;
    } rows[] = {
        { "{\"prompt\":\"a\",\"stream\":true}", LEGS_PD, true },
        { "{\"prompt\":[1,2,3],\"stream\":\"true\"}", LEGS_PD, false },
        { "{\"prompt\":[\"a\"]}", LEGS_PD, false },
        { "{\"prompt\":[[1,2]]}", LEGS_PD, false },
        { "{\"prompt\":[ \"a\",\"b\"]}", LEGS_DIRECT, false },
        { "{\"prompt\":[[1],[2]]}", LEGS_DIRECT, false },
        { "{\"prompt\":\"a\",\"echo\":true}", LEGS_PD, false },
        { "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":null}", LEGS_PD, false },
        { "{\"prompt\":\"a\",\"echo\":true,\"logprobs\":0}", LEGS_DIRECT, false },
        { "{\"prompt\":\"a\",\"prompt_logprobs\":0}", LEGS_DIRECT, false },
        { "{\"prompt\":\"a\",\"prompt_logprobs\":null,\"n\":2}", LEGS_PD, false },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct legs_request r = read_ok(rows[i].body);

        assert_int_equal(r.plan, rows[i].plan);
        assert_int_equal(r.stream, rows[i].stream);
    }
}

static void prefilled_answers(void **state)
{
    static const char full[] = "{\"usage\":{\"prompt_tokens_details\":{\"cached_tokens\":32}},"
                               "\"kv_transfer_params\":{\"a\":[1.0]}}";
    static const char bare[] = "{\"usage\":{\"prompt_tokens_details\":null},"
                               "\"kv_transfer_params\":null}";
    struct legs_prefilled p;

    (void)state;
    assert_int_equal(legs_read_prefilled(&p, full, strlen(full)), 0);
    assert_int_equal(p.cached_tokens, 32);
    assert_int_equal(p.kv_params.len, 11);
    assert_memory_equal(p.kv_params.p, "{\"a\":[1.0]}", 11);
    assert_int_equal(legs_read_prefilled(&p, bare, strlen(bare)), 0);
    assert_int_equal(p.cached_tokens, 0);
    assert_null(p.kv_params.p);
    assert_int_equal(legs_read_prefilled(&p, "oops", 4), ERR_BADMSG);
}

static void usage_is_corrected(void **state)
{
    static const struct {
        const char *in, *out; /* out NULL: nothing to correct */
    } rows[] = {
        { "{\"choices\":[],\"usage\":{\"p\":1.0,\"prompt_tokens_details\":{\"cached_tokens\":40,"
          "\"z\":1}}}",
          "{\"choices\":[],\"usage\":{\"p\":1.0,\"prompt_tokens_details\":{\"cached_tokens\":0,"
          "\"z\":1}}}" },
        { "{\"usage\":{\"p\":1}}", "{\"usage\":{\"p\":1,\"prompt_tokens_details\":"
                                   "{\"cached_tokens\":0}}}" },
        { "{\"usage\":null}", NULL },
        { "{\"text\":\"usage\"}", NULL },
        { "[\"usage\"]", NULL },
        { "{\"usage\":{", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct buf b;

        buf_init(&b, 1000);
        assert_int_equal(legs_fix_usage(&b, rows[i].in, strlen(rows[i].in), 0),
                         rows[i].out ? 0 : ERR_AGAIN);
        assert_string_equal(buf_str(&b), rows[i].out ? rows[i].out : "");
        buf_finish(&b);
    }
}

#define IDS "\"output_token_ids\":[5,6]"

/* What D says when it gives a request back: the ids are taken, and the client sees no end. */
static void outputs_that_are_given_back(void **state)
{
    static const char event[] =
        "{\"id\":\"c\",\"choices\":[ {\"index\":0,\"text\":\" a\",\"finish_reason\":\"stop\","
        "\"stop_reason\":\"recomputed\"} ],\"kv_transfer_params\":{" IDS "}}";
    static const char middle[] = "{\"id\":\"c\",\"choices\":[{\"index\":0,\"text\":\" a\","
                                 "\"finish_reason\":null,\"stop_reason\":null}]}";
    static const char *const others[] = {
        "{\"choices\":[{\"text\":\"recomputed\",\"stop_reason\":null}]}",
        "{\"choices\":[{\"text\":\"x\",\"stop_reason\":\"recomputed\"}]}", /* no ids */
        "{\"choices\":[{\"stop_reason\":\"recomputed\"},{}],\"kv_transfer_params\":{" IDS "}}",
        "{\"choices\":[],\"x\":\"recomputed\"}",
        "{\"choices\":\"recomputed\"}",
        "\"recomputed\"",
    };
    struct splice_text ids;
    struct buf b;

    (void)state;
    assert_true(legs_given_back(&ids, event, strlen(event)));
    assert_int_equal(ids.len, 5);
    assert_memory_equal(ids.p, "[5,6]", 5);
    buf_init(&b, 1000);
    assert_int_equal(legs_unfinished(&b, event, strlen(event)), 0);
    assert_string_equal(buf_str(&b), middle);
    buf_finish(&b);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(legs_given_back(&ids, others[i], strlen(others[i])));
}

/* Both legs of what goes on have the output so far. */
static void legs_with_an_output(void **state)
{
    struct legs_request r = read_ok("{\"prompt\":\"a\",\"max_tokens\":9}");
    struct splice_text kv = { "{\"remote_port\":1}", 17 }, none = { NULL, 0 };
    struct buf b;

    (void)state;
    r.output_ids = (struct splice_text){ "[5,6]", 5 };
    buf_init(&b, 1000);
    assert_int_equal(legs_prefill_body(&b, &r), 0);
    assert_non_null(strstr(buf_str(&b), "\"max_tokens\":1"));
    assert_non_null(strstr(buf_str(&b), "\"do_remote_decode\":true"));
    assert_non_null(strstr(buf_str(&b), "\"remote_port\":null," IDS "}"));
    buf_reset(&b);
    assert_int_equal(legs_decode_body(&b, &r, kv), 0);
    assert_string_equal(buf_str(&b), "{\"prompt\":\"a\",\"max_tokens\":9,"
                                     "\"kv_transfer_params\":{\"remote_port\":1," IDS "}}");
    buf_reset(&b);
    assert_int_equal(legs_decode_body(&b, &r, none), 0);
    assert_string_equal(buf_str(&b),
                        "{\"prompt\":\"a\",\"max_tokens\":9,\"kv_transfer_params\":{" IDS "}}");
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outputs_that_are_given_back),
        cmocka_unit_test(legs_with_an_output),
        cmocka_unit_test(prefill_bodies),
        cmocka_unit_test(prefill_with_a_name),
        cmocka_unit_test(decode_bodies),
        cmocka_unit_test(plans),
        cmocka_unit_test(prefilled_answers),
        cmocka_unit_test(usage_is_corrected),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
