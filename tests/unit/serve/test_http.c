#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/log.h"
#include "base/status.h"
#include "fake_engine.h"
#include "front.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "serve/state.h"

/* A producer's /query, played on the same loop. */
static struct {
    const char *body;
    int n;
    bool hold; /* answers later */
    struct http_req *held;
} played;

static void play_query(void *arg, struct http_req *r)
{
    (void)arg;
    assert_string_equal(http_target(r), "/query");
    played.n++;
    if (played.hold)
        played.held = r;
    else
        http_reply(r, 200, "application/json", played.body, strlen(played.body));
}

static void nobody_asks(void *arg, struct http_req *r)
{
    (void)arg;
    http_reply(r, 500, NULL, NULL, 0);
}

static uint16_t free_port(void)
{
    struct http_server *s;
    struct err e;
    uint16_t port;

    assert_int_equal(http_server_create(&s, rig.loop,
                                        &(struct http_server_options){ .host = "127.0.0.1" },
                                        nobody_asks, NULL, &e),
                     0);
    port = http_server_port(s);
    http_server_destroy(s);
    return port;
}

/* ---- state ---- */

static void it_listens_before_it_is_ready(void **state)
{
    (void)state;
    fake_reset();
    configure();
    fake_hold_load(true);
    start();
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 503);
    call("GET", "/v1/models", NULL);
    assert_int_equal(rig.r.status, 503);
    complete("\"max_tokens\":1");
    assert_int_equal(rig.r.status, 503);
    assert_string_equal(rig.r.retry_after, "1");
    expect_body("still being loaded");
    call("GET", "/version", NULL);
    assert_int_equal(rig.r.status, 200);
    fake_hold_load(false);
    wait_ready();
    complete("\"max_tokens\":1");
    assert_int_equal(rig.r.status, 200);
    teardown(state);
}

static void a_model_that_cannot_be_loaded_ends_it(void **state)
{
    (void)state;
    fake_reset();
    configure();
    fake_fail_load(true);
    start();
    log_set_level(LOG_OFF);
    loop_run(rig.loop);
    log_set_level(LOG_ERROR);
    fake_fail_load(false);
    assert_int_equal(serve_exit_code(rig.s), 1);
    teardown(state);
}

static void a_taken_port_is_an_error(void **state)
{
    struct serve *second;
    struct err e = { "" };
    char port[8];

    (void)state;
    rig.cfg.port = rig.port;
    assert_int_equal(serve_create(&second, &rig.cfg, rig.loop, &e), ERR_IO);
    snprintf(port, sizeof port, "%u", rig.port);
    assert_non_null(strstr(e.text, port));
}

/* ---- routes ---- */

static void unknown_paths_and_methods(void **state)
{
    (void)state;
    call("GET", "/", NULL);
    assert_int_equal(rig.r.status, 404);
    assert_string_equal(buf_str(&rig.r.body), "{\"detail\":\"Not Found\"}");
    call("GET", "/v1/chat/completions", NULL);
    assert_int_equal(rig.r.status, 405);
    assert_string_equal(rig.r.allow, "POST");
    assert_string_equal(buf_str(&rig.r.body), "{\"detail\":\"Method Not Allowed\"}");
    call("HEAD", "/health", NULL);
    assert_int_equal(rig.r.status, 405);
    call("HEAD", "/metrics", NULL);
    assert_int_equal(rig.r.status, 200);
    call("DELETE", "/metrics", NULL);
    assert_string_equal(rig.r.allow, "GET, HEAD");
}

static void keys_guard_only_the_api(void **state)
{
    (void)state;
    rig.keys[0] = "secret";
    rig.cfg.api_keys = (struct opt_list){ rig.keys, 1 };
    call("GET", "/v1/models", NULL);
    assert_int_equal(rig.r.status, 401);
    assert_string_equal(buf_str(&rig.r.body), "{\"error\":\"Unauthorized\"}");
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 200);
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, rig.port, "GET", "/v1/models", "Authorization: Bearer secret",
                NULL, &rig.r);
    assert_int_equal(rig.r.status, 200);
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, rig.port, "GET", "/v1/models", "Authorization: Bearer secre",
                NULL, &rig.r);
    assert_int_equal(rig.r.status, 401);
}

static void keys_guard_the_api_below_a_root_path(void **state)
{
    (void)state;
    rig.keys[0] = "secret";
    rig.cfg.api_keys = (struct opt_list){ rig.keys, 1 };
    rig.cfg.root_path = "/llm";
    call("GET", "/llm/v1/models", NULL);
    assert_int_equal(rig.r.status, 401);
    call("GET", "/llm/health", NULL);
    assert_int_equal(rig.r.status, 200);
}

static void browsers_may_call_from_where_they_are_allowed(void **state)
{
    (void)state;
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, rig.port, "GET", "/v1/models", "Origin: http://a", NULL,
                &rig.r);
    assert_string_equal(rig.r.allow_origin, "http://a");
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, rig.port, "GET", "/v1/models", "Origin: http://b", NULL,
                &rig.r);
    assert_string_equal(rig.r.allow_origin, "");
}

static void models_are_listed(void **state)
{
    (void)state;
    call("GET", "/v1/models/M", NULL);
    assert_int_equal(rig.r.status, 200);
    expect_body("\"id\":\"M\"");
    call("GET", "/v1/models/other", NULL);
    assert_int_equal(rig.r.status, 404);
    expect_body("\"param\":\"model\"");
}

static void ids_are_the_clients_own(void **state)
{
    (void)state;
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, rig.port, "POST", "/v1/completions", "X-Request-Id: abc",
                "{\"prompt\":\"x\",\"max_tokens\":1}", &rig.r);
    assert_string_equal(rig.r.request_id, "abc");
    expect_body("\"id\":\"cmpl-abc\"");
    complete("\"max_tokens\":1,\"request_id\":\"mine\"");
    expect_body("\"id\":\"cmpl-mine\"");
    complete("\"max_tokens\":1");
    assert_int_equal(strlen(rig.r.request_id), 16);
}

/* ---- text ---- */

static void stop_strings_do_not_leak(void **state)
{
    static const struct {
        const char *members, *text, *reason;
        uint32_t tokens;
    } rows[] = {
        { "\"stop\":[\"EFG\"]", "ABCD", "\"finish_reason\":\"stop\",\"stop_reason\":\"EFG\"", 7 },
        { "\"stop\":[\"EFG\"],\"include_stop_str_in_output\":true", "ABCDEFG",
          "\"stop_reason\":\"EFG\"", 7 },
        { "\"stop\":[\"CX\",\"EFGHIJ\"]", "ABCD", "\"stop_reason\":\"EFGHIJ\"", 10 },
        { "\"stop\":[\"JK\"]", "ABCDEFGHIJ", "\"finish_reason\":\"stop\",\"stop_reason\":null",
          11 },
        { "\"stop\":\"C\",\"min_tokens\":5", "ABCDEFGHIJ", "\"stop_reason\":null", 11 },
        { "\"stop_token_ids\":[68]", "ABC", "\"finish_reason\":\"stop\",\"stop_reason\":68", 4 },
        { "\"stop_token_ids\":[68],\"include_stop_str_in_output\":true", "ABCD",
          "\"stop_reason\":68", 4 },
        { "\"max_tokens\":3", "ABC", "\"finish_reason\":\"length\",\"stop_reason\":null", 3 },
    };
    char members[256], text[64], usage[64];

    (void)state;
    fake.text = "ABCDEFGHIJ";
    fake.end_token = true;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *o;

        complete(rows[i].members);
        o = json_body();
        assert_string_equal(text_of(o, 0), rows[i].text);
        expect_body(rows[i].reason);
        snprintf(usage, sizeof usage, "\"completion_tokens\":%u", rows[i].tokens);
        expect_body(usage);
        json_decref(o);
        snprintf(members, sizeof members,
                 "%s,\"stream\":true,\"stream_options\":{\"include_usage\":true}", rows[i].members);
        complete(members);
        joined(text, sizeof text, 0);
        assert_string_equal(text, rows[i].text);
        expect_body(rows[i].reason);
        expect_body(usage);
    }
}

static void characters_are_never_cut(void **state)
{
    char text[64];

    (void)state;
    fake.text = "한🙂é";
    complete("\"max_tokens\":9,\"stream\":true");
    joined(text, sizeof text, 0);
    assert_string_equal(text, "한🙂é");
    complete("\"max_tokens\":5,\"stream\":true"); /* in mid-character: one mark at the end */
    joined(text, sizeof text, 0);
    assert_string_equal(text, "한\xef\xbf\xbd");
}

static void the_role_goes_with_the_first_token(void **state)
{
    const char *role, *first, *b;

    (void)state;
    chat("\"max_tokens\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    assert_int_equal(rig.r.status, 200);
    assert_string_equal(rig.r.type, "text/event-stream; charset=utf-8");
    b = buf_str(&rig.r.body);
    role = strstr(b, "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}");
    first = strstr(b, "\"delta\":{\"content\":\"");
    assert_true(role && first && role < first);
    assert_int_equal(count_in_body("\"finish_reason\":\"length\""), 1);
    expect_body("\"choices\":[],\"usage\":{\"prompt_tokens\":");
    assert_string_equal(b + strlen(b) - 14, "data: [DONE]\n\n");
    assert_int_equal(count_in_body("\"usage\""), 1);
    chat("\"max_tokens\":3,\"stream\":true,\"stream_options\":{}");
    assert_int_equal(count_in_body("\"usage\""), 0);
}

static void choices_are_numbered_across_prompts(void **state)
{
    json_t *o;

    (void)state;
    call("POST", "/v1/completions",
         "{\"prompt\":[[1,2],[3]],\"n\":2,\"max_tokens\":2,\"seed\":5,\"return_token_ids\":true}");
    o = json_body();
    assert_int_equal(json_array_size(json_object_get(o, "choices")), 4);
    assert_int_equal(fake.n_req, 4);
    assert_int_equal(fake.req[1].n_prompt, 2);
    assert_int_equal(fake.req[2].n_prompt, 1);
    assert_true(fake.req[0].sampling.seed == 5 && fake.req[2].sampling.seed == 5);
    assert_true(fake.req[1].sampling.seed != 5);
    expect_body("\"usage\":{\"prompt_tokens\":3,\"total_tokens\":11,\"completion_tokens\":8");
    expect_body("\"index\":3");
    json_decref(o);
}

static void log_probabilities_have_both_shapes(void **state)
{
    (void)state;
    fake.text = "ab";
    complete("\"max_tokens\":2,\"logprobs\":1,\"echo\":true");
    expect_body(
        "\"logprobs\":{\"text_offset\":[0,1,2,3],\"token_logprobs\":[null,-1.5,-1.5,-1.5],"
        "\"tokens\":[\"H\",\"i\",\"a\",\"b\"],\"top_logprobs\":[null,{\"i\":-1.5,\"z\":-0.5},"
        "{\"a\":-1.5,\"z\":-0.5},{\"b\":-1.5,\"z\":-0.5}]}");
    expect_body("\"text\":\"Hiab\"");
    expect_body("\"prompt_logprobs\":[null,{\"105\":{\"logprob\":-1.5,\"rank\":2,\"decoded_token\":"
                "\"i\"},\"122\":");
    complete("\"max_tokens\":1,\"logprobs\":0");
    expect_body("\"top_logprobs\":[{\"a\":-1.5}]");
    chat("\"max_tokens\":1,\"logprobs\":true");
    expect_body("\"logprobs\":{\"content\":[{\"token\":\"a\",\"logprob\":-1.5,\"bytes\":[97],"
                "\"top_logprobs\":[]}]}");
    chat("\"max_tokens\":1,\"logprobs\":true,\"top_logprobs\":2");
    expect_body("\"top_logprobs\":[{\"token\":\"a\",\"logprob\":-1.5,\"bytes\":[97]},{\"token\":"
                "\"z\",");
    fake.text = "\xc3";
    chat("\"max_tokens\":1,\"logprobs\":true"); /* half a character: its byte is shown */
    expect_body("\"token\":\"\xef\xbf\xbd\",\"logprob\":-1.5,\"bytes\":[195]");
}

static void lengths_are_checked_before_anything_starts(void **state)
{
    char body[FAKE_CONTEXT * 2 + 300], *p = body;
    uint32_t n = FAKE_CONTEXT - 4;

    (void)state;
    p += sprintf(p, "{\"prompt\":[");
    for (uint32_t i = 0; i < n; i++)
        p += sprintf(p, i ? ",1" : "1");
    strcpy(p, "],\"max_tokens\":4}");
    call("POST", "/v1/completions", body);
    assert_int_equal(rig.r.status, 200);
    strcpy(p, "],\"max_tokens\":5,\"stream\":true}");
    call("POST", "/v1/completions", body);
    assert_int_equal(rig.r.status, 400);
    expect_body("4096");
    expect_body("4092");
    expect_body("\"param\":\"max_tokens\"");
    strcpy(p, "],\"max_tokens\":null}"); /* no limit: what is left */
    call("POST", "/v1/completions", body);
    expect_body("\"completion_tokens\":4,");
    strcpy(p, ",1,1,1,1],\"max_tokens\":1}");
    call("POST", "/v1/completions", body);
    assert_int_equal(rig.r.status, 400);
    expect_body("\"param\":\"prompt\"");
}

static void tokens_and_text(void **state)
{
    (void)state;
    call("POST", "/tokenize", "{\"prompt\":\"Hi\",\"add_special_tokens\":false}");
    assert_string_equal(
        buf_str(&rig.r.body),
        "{\"count\":2,\"max_model_len\":4096,\"tokens\":[72,105],\"token_strs\":null}");
    call("POST", "/tokenize",
         "{\"messages\":[{\"role\":\"u\",\"content\":\"x\"}],"
         "\"add_generation_prompt\":false,\"return_token_strs\":true}");
    expect_body("\"tokens\":[256,117,10,120,257,10],\"token_strs\":[\"<|im_start|>\",\"u\",\"Ċ\"");
    call("POST", "/detokenize", "{\"tokens\":[72,105]}");
    assert_string_equal(buf_str(&rig.r.body), "{\"prompt\":\"Hi\"}");
    call("POST", "/detokenize", "{\"tokens\":[-1]}");
    assert_int_equal(rig.r.status, 400);
    call("GET", "/tokenizer_info", NULL);
    expect_body("\"eos_token\":\"<|im_end|>\"");
}

/* ---- failures ---- */

static void engine_errors_before_the_first_token(void **state)
{
    static const struct {
        int st, http;
    } rows[] = { { ERR_TOOLONG, 400 }, { ERR_LIMIT, 503 }, { ERR_NOMEM, 503 }, { ERR_IO, 500 } };

    (void)state;
    fake.submit_why = "because";
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fake.submit_status = rows[i].st;
        complete("\"max_tokens\":1,\"stream\":true");
        assert_int_equal(rig.r.status, rows[i].http);
        assert_string_equal(rig.r.type, "application/json");
        expect_body("because");
    }
    log_set_level(LOG_OFF);
    fake.submit_status = ERR_CLOSED; /* the engine has died */
    complete("\"max_tokens\":1");
    assert_int_equal(rig.r.status, 503);
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 503);
    log_set_level(LOG_ERROR);
}

/* It is not ready, says why, and is ready again when the others are there. */
static void apart_from_its_group_for_a_while(void **state)
{
    (void)state;
    snprintf(fake.apart, sizeof fake.apart, "waiting for data-parallel rank 2 (is not there)");
    fake.submit_status = ERR_BUSY;
    fake.submit_why = fake.apart;
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 503);
    expect_body("waiting for data-parallel rank 2 (is not there)");
    complete("\"max_tokens\":1");
    assert_int_equal(rig.r.status, 503);
    expect_body("waiting for data-parallel rank 2 (is not there)");
    fake.apart[0] = '\0';
    fake.submit_status = 0;
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 200);
    complete("\"max_tokens\":1");
    assert_int_equal(rig.r.status, 200);
}

static void fail_kv(struct fake_request *r)
{
    fake_end(r, FINISH_ERROR, ERR_TIMEOUT, "no answer from 10.0.0.1");
}

static void a_failed_kv_load_is_named(void **state)
{
    (void)state;
    log_set_level(LOG_OFF);
    fake.manual = true;
    fake.on_submit = fail_kv;
    complete(
        "\"max_tokens\":1,\"stream\":true,\"kv_transfer_params\":{\"do_remote_prefill\":true}");
    assert_int_equal(rig.r.status, 500);
    expect_body("KV load failed: no answer from 10.0.0.1");
    log_set_level(LOG_ERROR);
}

static void fill_queue(struct fake_request *r)
{
    fake_end(r, FINISH_ERROR, ERR_LIMIT, "3 requests are waiting");
}

static void a_full_queue_is_503(void **state)
{
    static const char *const kv[] = { "", ",\"kv_transfer_params\":{\"do_remote_prefill\":true}" };
    char members[80];

    (void)state;
    log_set_level(LOG_OFF);
    fake.manual = true;
    fake.on_submit = fill_queue;
    for (int i = 0; i < 2; i++) {
        snprintf(members, sizeof members, "\"max_tokens\":1%s", kv[i]);
        complete(members);
        assert_int_equal(rig.r.status, 503);
        assert_string_equal(rig.r.retry_after, "1");
        expect_body("\"message\":\"3 requests are waiting\"");
    }
    log_set_level(LOG_ERROR);
    call("GET", "/metrics", NULL);
    expect_body(
        "vllm:admission_rejections_total{model_name=\"M\",reason=\"max_num_queued_reqs\"} 2.0");
}

static void two_tokens_then_fail(struct fake_request *r)
{
    fake_token(r, 'a');
    fake_token(r, 'b');
}

static void fail_later(void *arg)
{
    (void)arg;
    fake_end(&fake.req[0], FINISH_ERROR, ERR_IO, "the step failed");
}

static void a_stream_that_breaks_says_so(void **state)
{
    (void)state;
    log_set_level(LOG_OFF);
    fake.manual = true;
    fake.on_submit = two_tokens_then_fail;
    rig.r.cancel_after = 0;
    client_finish(&rig.r);
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                 "{\"prompt\":\"x\",\"stream\":true}", &rig.r);
    while (rig.r.body.len == 0)
        one_round();
    loop_post(rig.loop, fail_later, NULL);
    while (!rig.r.done)
        loop_run(rig.loop);
    assert_int_equal(rig.r.status, 200);
    expect_body("\"text\":\"ab\"");
    expect_body("data: {\"error\":{\"message\":\"the step failed\"");
    assert_int_equal(count_in_body("[DONE]"), 0);
    log_set_level(LOG_ERROR);
}

static void one_token(struct fake_request *r)
{
    fake_token(r, 'a');
}

static void a_client_that_leaves_ends_its_request(void **state)
{
    (void)state;
    fake.manual = true;
    fake.on_submit = one_token;
    client_finish(&rig.r);
    rig.r.cancel_after = 1;
    client_call(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                "{\"prompt\":\"x\",\"n\":2,\"stream\":true}", &rig.r);
    rig.r.cancel_after = 0;
    assert_int_equal(rig.r.fail, HTTP_CANCELED);
    do
        call("GET", "/metrics", NULL); /* rounds of the loop in which the front notices */
    while (fake.n_cancelled < 2);
    assert_int_equal(fake.req[0].cancel_finish, FINISH_ABORT);
    call("GET", "/metrics", NULL);
    expect_body("finished_reason=\"abort\"} 2.0");
    call("GET", "/load", NULL);
    assert_string_equal(buf_str(&rig.r.body), "{\"server_load\":0}");
}

/* ---- transfer ---- */

static void prefill_answers_with_parameters(void **state)
{
    uint32_t blocks[] = { 4, 5 };
    struct kv_params kv = { .do_remote_prefill = true,
                            .remote_engine_id = "e",
                            .remote_request_id = "r",
                            .remote_host = "h",
                            .remote_port = 7,
                            .remote_block_ids = blocks,
                            .n_blocks = 2,
                            .remote_ptp_size = 1,
                            .remote_pp_size = 1,
                            .last_token_id = 72 };

    (void)state;
    fake.answer_kv = &kv;
    complete("\"max_tokens\":1,\"n\":3,\"kv_transfer_params\":{\"do_remote_decode\":true}");
    assert_int_equal(fake.n_req, 1); /* one prompt, one lease */
    expect_body(
        "\"kv_transfer_params\":{\"do_remote_prefill\":true,\"do_remote_decode\":false,"
        "\"remote_engine_id\":\"e\",\"remote_request_id\":\"r\",\"remote_block_ids\":[4,5],");
    complete("\"max_tokens\":1,\"stream\":true,\"kv_transfer_params\":{\"do_remote_decode\":true}");
    expect_body("\"kv_transfer_params\":{\"do_remote_prefill\":true");
    call("POST", "/v1/completions",
         "{\"prompt\":[\"a\",\"b\"],\"kv_transfer_params\":{\"do_remote_decode\":true}}");
    assert_false(fake.req[2].has_kv); /* of several prompts none is held */
    expect_body("\"kv_transfer_params\":null");
}

static bool first_had_token_when_second_came;

static void watch_order(struct fake_request *r)
{
    if (r->id == 1)
        fake_token(r, 'a');
    if (r->id == 2)
        first_had_token_when_second_came = fake.req[0].n_out > 0 && !r->has_kv;
    if (r->id > 1)
        fake_token(r, 'b');
    if (r->id == 3)
        for (int i = 0; i < 3; i++)
            fake_end(&fake.req[i], FINISH_LENGTH, 0, NULL);
}

static void decode_pulls_once_for_all_choices(void **state)
{
    (void)state;
    fake.manual = true;
    fake.on_submit = watch_order;
    complete("\"n\":3,\"kv_transfer_params\":{\"do_remote_prefill\":true,\"remote_host\":\"h\"}");
    assert_int_equal(fake.n_req, 3);
    assert_true(fake.req[0].has_kv);
    assert_true(first_had_token_when_second_came);
    assert_int_equal(rig.r.status, 200);
}

static void what_is_not_fetched_is_released(void **state)
{
    (void)state;
    complete("\"max_tokens\":5000,\"kv_transfer_params\":{\"do_remote_prefill\":true}");
    assert_int_equal(rig.r.status, 400);
    assert_int_equal(fake.n_released_remote, 1);
    complete("\"max_tokens\":1,\"prompt_logprobs\":1,\"kv_transfer_params\":{"
             "\"do_remote_prefill\":true}"); /* needs the prompt computed here */
    assert_int_equal(rig.r.status, 200);
    assert_int_equal(fake.n_released_remote, 2);
    assert_false(fake.req[0].has_kv);
    call("POST", "/v1/kv/release", "{\"kv_transfer_params\":{\"remote_request_id\":\"r\"}}");
    assert_string_equal(buf_str(&rig.r.body), "{\"released\":true}");
    call("POST", "/v1/kv/release", "{\"kv_transfer_params\":{\"remote_request_id\":\"r\"}}");
    assert_string_equal(buf_str(&rig.r.body), "{\"released\":false}");
    call("POST", "/v1/kv/release", "{}");
    assert_int_equal(rig.r.status, 400);
}

/* ---- a proxy that tells P and D at the same time ---- */

static void restart_with(const struct serve_kv_config *kv)
{
    teardown(NULL);
    fake_reset();
    configure();
    rig.cfg.kv = *kv;
}

static void a_producer_says_where_it_is(void **state)
{
    static const char answer[] =
        "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{\"0\":\"tcp://127.0.0.1:7777\"}},"
        "\"block_size\":16}}";
    struct http_server *taken;
    uint16_t port;
    struct err e = { "" };

    (void)state;
    call("GET", "/query", NULL);
    assert_int_equal(rig.r.status, 404); /* it is none */
    port = free_port();
    restart_with(&(struct serve_kv_config){ .produce = true, .bootstrap_port = port });
    fake.is_producer = true;
    start();
    wait_ready();
    call("GET", "/query", NULL);
    assert_string_equal(buf_str(&rig.r.body), answer);
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, port, "GET", "/query", NULL, NULL, &rig.r);
    assert_string_equal(buf_str(&rig.r.body), answer);
    client_finish(&rig.r);
    client_call(rig.client, rig.loop, port, "GET", "/v1/models", NULL, NULL, &rig.r);
    assert_int_equal(rig.r.status, 404); /* nothing else is there */
    /* A port that somebody has ends the start, with its number. */
    assert_int_equal(http_server_create(&taken, rig.loop,
                                        &(struct http_server_options){ .host = "127.0.0.1" },
                                        nobody_asks, NULL, &e),
                     0);
    rig.cfg.kv.bootstrap_port = http_server_port(taken);
    {
        struct serve *s;
        char text[16];

        snprintf(text, sizeof text, ":%u", rig.cfg.kv.bootstrap_port);
        assert_true(serve_create(&s, &rig.cfg, rig.loop, &e) < 0);
        assert_non_null(strstr(e.text, "KV bootstrap port"));
        assert_non_null(strstr(e.text, text));
    }
    http_server_destroy(taken);
}

static void ask_by_name(const char *address)
{
    char members[300];

    snprintf(members, sizeof members,
             "\"max_tokens\":1,\"kv_transfer_params\":{\"do_remote_decode\":false,"
             "\"do_remote_prefill\":true,\"transfer_id\":\"xfer-1\",\"remote_engine_id\":\"e\","
             "\"remote_bootstrap_addr\":\"%s\"}",
             address);
    complete(members);
}

static void a_consumer_finds_its_producer(void **state)
{
    struct http_server *p;
    struct err e = { "" };
    char address[40];

    (void)state;
    restart_with(&(struct serve_kv_config){ .consume = true, .connect_timeout = 2 });
    start();
    wait_ready();
    played.n = 0;
    played.body = "{\"0\":{\"engine_id\":\"e\",\"worker_addr\":{\"0\":{\"0\":\"tcp://[::1]:9\"}},"
                  "\"block_size\":32}}";
    assert_int_equal(http_server_create(&p, rig.loop,
                                        &(struct http_server_options){ .host = "127.0.0.1" },
                                        play_query, NULL, &e),
                     0);
    snprintf(address, sizeof address, "http://127.0.0.1:%u", http_server_port(p));
    ask_by_name(address);
    assert_int_equal(rig.r.status, 200);
    assert_true(fake.req[0].has_kv);
    assert_string_equal(fake.req[0].kv.remote_host, "::1");
    assert_int_equal(fake.req[0].kv.remote_port, 9);
    assert_int_equal(fake.req[0].kv.remote_block_size, 32);
    assert_string_equal(fake.req[0].kv.transfer_id, "xfer-1");
    ask_by_name(address); /* remembered */
    assert_int_equal(played.n, 1);
    assert_true(fake.req[1].has_kv);
    /* What is refused here is released there. */
    complete("\"max_tokens\":0,\"kv_transfer_params\":{\"do_remote_prefill\":true}");
    assert_int_equal(rig.r.status, 400);
    {
        char members[200];

        snprintf(members, sizeof members,
                 "\"max_tokens\":5000,\"kv_transfer_params\":{\"do_remote_prefill\":true,"
                 "\"transfer_id\":\"xfer-2\",\"remote_bootstrap_addr\":\"%s\"}",
                 address);
        complete(members);
    }
    assert_int_equal(rig.r.status, 400);
    assert_string_equal(fake.released_remote.transfer_id, "xfer-2");
    assert_int_equal(fake.released_remote.remote_port, 9);
    http_server_destroy(p);
}

/* Nobody there, or nonsense: by policy. */
static void a_producer_that_is_not_found(void **state)
{
    static const char *const bad[] = { "http://127.0.0.1:1", "nowhere", "ftp://127.0.0.1:1",
                                       "http://127.0.0.1:99999" };

    (void)state;
    log_set_level(LOG_OFF);
    played.n = 0;
    for (int policy = 0; policy < 2; policy++) {
        restart_with(&(struct serve_kv_config){
            .consume = true, .connect_timeout = 2, .fail_on_error = policy == 1 });
        start();
        wait_ready();
        for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
            ask_by_name(bad[i]);
            assert_int_equal(rig.r.status, policy ? 500 : 200);
            assert_int_equal(body_has(bad[i]), policy == 1);
        }
        assert_int_equal(fake.n_req, policy ? 0 : 4);
        assert_false(fake.req[0].has_kv);
        assert_int_equal(played.n, 0);
    }
    log_set_level(LOG_ERROR);
}

/* The client leaves while P is being looked for: P is told when it is found. */
static void a_client_that_leaves_while_p_is_looked_for(void **state)
{
    struct http_server *p;
    struct err e = { "" };
    char body[300];

    (void)state;
    restart_with(&(struct serve_kv_config){ .consume = true, .connect_timeout = 2 });
    start();
    wait_ready();
    played.hold = true;
    assert_int_equal(http_server_create(&p, rig.loop,
                                        &(struct http_server_options){ .host = "127.0.0.1" },
                                        play_query, NULL, &e),
                     0);
    snprintf(body, sizeof body,
             "{\"prompt\":\"x\",\"kv_transfer_params\":{\"do_remote_prefill\":true,"
             "\"transfer_id\":\"gone\",\"remote_bootstrap_addr\":\"http://127.0.0.1:%u\"}}",
             http_server_port(p));
    client_finish(&rig.r);
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL, body, &rig.r);
    while (!played.held)
        one_round();
    http_client_destroy(rig.client);
    assert_int_equal(
        http_client_create(&rig.client, rig.loop, &(struct http_client_options){ 0 }, &e), 0);
    for (int i = 0; i < 3; i++)
        call("GET", "/metrics", NULL);
    http_reply(played.held, 200, "application/json", played.body, strlen(played.body));
    while (fake.n_released_remote == 0)
        one_round();
    assert_string_equal(fake.released_remote.transfer_id, "gone");
    assert_int_equal(fake.n_req, 0);
    call("GET", "/load", NULL);
    assert_string_equal(buf_str(&rig.r.body), "{\"server_load\":0}");
    http_server_destroy(p);
    played.hold = false;
}

static void a_refused_prefill_is_told_to_who_waits(void **state)
{
    (void)state;
    complete("\"max_tokens\":5000,\"kv_transfer_params\":{\"do_remote_decode\":true,"
             "\"transfer_id\":\"x\"}");
    assert_int_equal(rig.r.status, 400);
    assert_int_equal(fake.n_refused, 1);
    fake.submit_status = ERR_LIMIT;
    complete("\"max_tokens\":1,\"kv_transfer_params\":{\"do_remote_decode\":true,"
             "\"transfer_id\":\"x\"}");
    assert_int_equal(rig.r.status, 503);
    assert_int_equal(fake.n_refused, 2);
    fake.submit_status = ERR_EXISTS; /* that name is another request's, which goes on */
    complete("\"max_tokens\":1,\"kv_transfer_params\":{\"do_remote_decode\":true,"
             "\"transfer_id\":\"x\"}");
    assert_int_equal(rig.r.status, 400);
    assert_int_equal(fake.n_refused, 2);
}

static void a_mismatch_is_no_readiness(void **state)
{
    json_t *peers = json_pack("[s]", "10.0.0.1:77");

    (void)state;
    log_set_level(LOG_OFF);
    restart_with(
        &(struct serve_kv_config){ .consume = true, .connect_timeout = 2, .peers = peers });
    start();
    do
        call("GET", "/ready", NULL);
    while (body_has("being loaded"));
    assert_int_equal(rig.r.status, 503);
    expect_body("block size of 10.0.0.1:77");
    assert_int_equal(fake.n_probed, 1);
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 503);
    complete("\"max_tokens\":1"); /* who asks is served all the same */
    assert_int_equal(rig.r.status, 200);
    fake.stats.matching = 1;
    call("GET", "/ready", NULL);
    assert_int_equal(rig.r.status, 200);
    json_decref(peers);
    log_set_level(LOG_ERROR);
}

static void a_busy_cache_is_not_reset_silently(void **state)
{
    (void)state;
    call("POST", "/reset_prefix_cache", NULL);
    assert_int_equal(rig.r.status, 200);
    fake.reset_status = ERR_BUSY;
    call("POST", "/reset_prefix_cache", NULL);
    assert_int_equal(rig.r.status, 503);
}

/* The engine answers only when its step has ended: nobody else waits for that. */
static void a_reset_holds_up_nobody(void **state)
{
    static struct reply left; /* outlives the test: its call ends with the client */
    struct reply reset = { 0 };

    (void)state;
    fake.manual = true;
    client_begin(rig.client, rig.loop, rig.port, "POST", "/reset_prefix_cache", NULL, NULL, &reset);
    while (!fake.reset_user)
        one_round();
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 200);
    assert_false(reset.done);
    fake_reset_done();
    while (!reset.done)
        loop_run(rig.loop);
    assert_int_equal(reset.status, 200);
    client_finish(&reset);
    fake.reset_user = NULL;
    client_begin(rig.client, rig.loop, rig.port, "POST", "/reset_prefix_cache", NULL, NULL, &left);
    while (!fake.reset_user)
        one_round(); /* and one that is never answered goes with the server */
}

/* Encoding it would take seconds in which nobody is served. */
static void a_text_that_cannot_fit_is_not_encoded(void **state)
{
    static char body[400000];
    static const char *const paths[] = { "/v1/completions", "/tokenize" };
    size_t n = sizeof body - 100;

    (void)state;
    memset(body, 'x', sizeof body);
    memcpy(body, "{\"prompt\":\"", 11);
    snprintf(body + n, 100, "\",\"max_tokens\":1}");
    for (int i = 0; i < 2; i++) {
        call("POST", paths[i], body);
        assert_int_equal(rig.r.status, 400);
        expect_body("the context of this model is 4096 tokens, which is a text of");
        expect_body("\"param\":\"prompt\"");
    }
}

/* ---- long texts ---- */

static void a_text_can_be_too_long_to_be_truncated(void **state)
{
    const size_t n = (16 << 20) + 1;
    char *body = malloc(n + 100);

    (void)state;
    restart_with(&(struct serve_kv_config){ 0 });
    rig.cfg.max_body_bytes = 32 << 20;
    start();
    wait_ready();
    assert_non_null(body);
    memset(body, 'x', n + 11);
    memcpy(body, "{\"prompt\":\"", 11);
    strcpy(body + 11 + n, "\",\"truncate_prompt_tokens\":5}");
    call("POST", "/v1/completions", body);
    assert_int_equal(rig.r.status, 400);
    expect_body("a text of 16777217 bytes is too long to be truncated, at most 16777216 are");
    free(body);
}

/* A prompt of that many letters, of which five tokens are kept. */
static const char *long_prompt(size_t n)
{
    static char body[1 << 20];

    memset(body, 'x', sizeof body);
    memcpy(body, "{\"prompt\":\"", 11);
    snprintf(body + 11 + n, 100, "\",\"max_tokens\":1,\"truncate_prompt_tokens\":5}");
    return body;
}

/* The request has been read, and its text is being encoded. */
static void wait_for_intake(const struct reply *r)
{
    while (rig.s->n_intakes == 0) {
        assert_false(r->done);
        one_round();
    }
}

static void a_long_text_holds_up_nobody(void **state)
{
    struct reply slow = { 0 };

    (void)state;
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                 long_prompt(900000), &slow);
    wait_for_intake(&slow);
    call("GET", "/load", NULL);
    assert_int_equal(rig.r.status, 200);
    while (!slow.done)
        loop_run(rig.loop);
    assert_int_equal(slow.status, 200);
    assert_non_null(strstr(buf_str(&slow.body), "\"prompt_tokens\":5,"));
    assert_int_equal(rig.s->n_intakes, 0);
    client_finish(&slow);
    call("GET", "/metrics", NULL); /* counted under its own path, whatever came in between */
    expect_body(
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"} 1.0");
}

static void a_long_text_is_tokenized_too(void **state)
{
    const size_t n = sizeof FAKE_LONG_TOKEN - 1, n_tokens = 2000;
    char *body = malloc(n * n_tokens + 100), *at = body;
    json_t *o;

    (void)state;
    assert_non_null(body);
    at += sprintf(at, "{\"prompt\":\"");
    for (size_t i = 0; i < n_tokens; i++, at += n)
        memcpy(at, FAKE_LONG_TOKEN, n);
    strcpy(at, "\",\"add_special_tokens\":false}");
    call("POST", "/tokenize", body);
    free(body);
    assert_int_equal(rig.r.status, 200);
    o = json_body();
    assert_int_equal(json_integer_value(json_object_get(o, "count")), n_tokens);
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), n_tokens);
    json_decref(o);
    call("GET", "/metrics", NULL);
    expect_body("http_requests_total{handler=\"/tokenize\",method=\"POST\",status=\"2xx\"} 1.0");
}

static void a_long_text_ends_with_the_server(void **state)
{
    static struct reply slow, left;

    (void)state;
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                 long_prompt(900000), &slow);
    wait_for_intake(&slow);
    intake_abort_all(rig.s, 503, "the server is shutting down");
    while (!slow.done)
        loop_run(rig.loop);
    assert_int_equal(slow.status, 503);
    client_finish(&slow);
    while (rig.s->n_intakes > 0)
        one_round();
    assert_int_equal(fake.n_req, 0);
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                 long_prompt(900000), &left);
    wait_for_intake(&left); /* teardown destroys the front over it */
}

static void limits_are_told_as_they_are(void **state)
{
    (void)state;
    complete("\"max_tokens\":4294967295"); /* the sum has more than 32 bits */
    assert_int_equal(rig.r.status, 400);
    expect_body("but 4294967297 were asked for: 2 in the prompt and 4294967295 in the output");
}

/* ---- metrics ---- */

/* Each line is a comment or "name{labels} value"; each family has its type before its samples. */
static void check_format(const char *text)
{
    char line[1024], family[128] = "", name[128];
    double value;

    for (const char *p = text, *end; *p; p = end + 1) {
        end = strchr(p, '\n');
        assert_non_null(end);
        snprintf(line, sizeof line, "%.*s", (int)(end - p), p);
        if (sscanf(line, "# TYPE %127s", family) == 1 || strncmp(line, "# HELP ", 7) == 0)
            continue;
        if (sscanf(line, "%127[a-zA-Z0-9_:]", name) != 1 || !strrchr(line, ' ') ||
            sscanf(strrchr(line, ' '), "%lf", &value) != 1)
            fail_msg("%s", line);
        if (strncmp(name, family, strlen(family)) != 0)
            fail_msg("%s stands under %s", line, family);
    }
}

static void metrics_have_the_known_names(void **state)
{
    static const char *const names[] = {
        "vllm:num_requests_running{engine=\"0\",model_name=\"M\"} 0.0",
        "vllm:num_requests_waiting{",
        "vllm:kv_cache_usage_perc{",
        "vllm:request_success_total{engine=\"0\",model_name=\"M\",finished_reason=\"length\"} 1.0",
        "vllm:time_to_first_token_seconds_count{engine=\"0\",model_name=\"M\"} 1",
        "vllm:inter_token_latency_seconds_count{engine=\"0\",model_name=\"M\"} 2",
        "vllm:e2e_request_latency_seconds_count{engine=\"0\",model_name=\"M\"} 1",
        "vllm:request_generation_tokens_sum{engine=\"0\",model_name=\"M\"} 3.0",
        "vllm:cache_config_info{block_size=\"16\"",
        "vllm:prefix_cache_queries_total{",
        "http_requests_total{handler=\"/v1/completions\",method=\"POST\",status=\"2xx\"} 1.0",
        "http_request_size_bytes_count{handler=\"/v1/completions\"} 1.0",
        "http_response_size_bytes_count{handler=\"/v1/completions\"} 1.0",
        "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",model_name=\"M\",source=\"device\"}"
        " 0.0",
        "vllm:prompt_tokens_cached_by_source_total{engine=\"0\",model_name=\"M\",source=\"p2p\"} "
        "0.0",
        "vllm:admission_rejections_total{model_name=\"M\",reason=\"max_num_queued_reqs\"} 0.0",
        "sluice:kv_leases{",
        "sluice:kv_transfer_bytes_total{",
        "sluice:kv_early_bytes_total{",
        "sluice:kv_transfer_seconds_bucket{",
        "sluice:kv_transfer_failures_total{",
        "vllm:iteration_tokens_total_bucket{",
    };

    (void)state;
    complete("\"max_tokens\":3");
    call("GET", "/metrics", NULL);
    assert_string_equal(rig.r.type, "text/plain; version=0.0.4; charset=utf-8");
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        expect_body(names[i]);
    check_format(buf_str(&rig.r.body));
}

static void sizes_are_those_of_the_bodies(void **state)
{
    char text[128];
    size_t len;

    (void)state;
    complete("\"max_tokens\":3");
    len = rig.r.body.len;
    complete("\"max_tokens\":3,\"stream\":true"); /* counts with its beginning */
    call("GET", "/metrics", NULL);
    expect_body("http_response_size_bytes_count{handler=\"/v1/completions\"} 2.0");
    snprintf(text, sizeof text, "http_response_size_bytes_sum{handler=\"/v1/completions\"} %zu.0",
             len);
    expect_body(text);
}

static void made_up_methods_do_not_use_up_the_series(void **state)
{
    char method[16];

    (void)state;
    for (int i = 0; i < 100; i++) {
        snprintf(method, sizeof method, "MADE%d", i);
        call(method, "/nowhere", NULL);
        assert_int_equal(rig.r.status, 404);
    }
    call("GET", "/v1/models", NULL);
    call("GET", "/metrics", NULL);
    expect_body("http_requests_total{handler=\"/v1/models\",method=\"GET\"");
    expect_body("method=\"other\",status=\"4xx\"} 100");
}

/* ---- the end ---- */

static void stop_while_running(struct fake_request *r)
{
    fake_token(r, 'a');
    serve_stop(rig.s);
}

static void finish_later(void *arg)
{
    (void)arg;
    fake_token(&fake.req[0], 'b');
    fake_end(&fake.req[0], FINISH_LENGTH, 0, NULL);
}

static void it_drains(void **state)
{
    struct reply second = { 0 };

    (void)state;
    log_set_level(LOG_OFF);
    fake.manual = true;
    fake.on_submit = stop_while_running;
    client_finish(&rig.r);
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                 "{\"prompt\":\"x\",\"stream\":true}", &rig.r);
    while (fake.n_req == 0)
        one_round();
    client_call(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                "{\"prompt\":\"x\"}", &second);
    assert_int_equal(second.status, 503);
    client_finish(&second);
    loop_post(rig.loop, finish_later, NULL);
    while (!rig.r.done)
        loop_run(rig.loop);
    expect_body("\"finish_reason\":\"length\"");
    expect_body("[DONE]");
    loop_run(rig.loop); /* ends by itself */
    assert_int_equal(serve_exit_code(rig.s), 0);
    log_set_level(LOG_ERROR);
}

static void what_does_not_end_in_time_is_told(void **state)
{
    (void)state;
    log_set_level(LOG_OFF);
    rig.cfg.shutdown_timeout = 0;
    fake.manual = true;
    fake.on_submit = one_token;
    client_finish(&rig.r);
    client_begin(rig.client, rig.loop, rig.port, "POST", "/v1/completions", NULL,
                 "{\"prompt\":\"x\",\"stream\":true}", &rig.r);
    while (rig.r.body.len == 0)
        one_round();
    serve_stop(rig.s);
    while (!rig.r.done)
        loop_run(rig.loop);
    expect_body("shutting down");
    assert_int_equal(count_in_body("[DONE]"), 0);
    assert_true(fake.req[0].cancelled);
    loop_run(rig.loop);
    log_set_level(LOG_ERROR);
}

/* ---- recorded calls ---- */

static bool same_kind(const json_t *a, const json_t *b)
{
    return json_typeof(a) == json_typeof(b) || (json_is_number(a) && json_is_number(b)) ||
           (json_is_boolean(a) && json_is_boolean(b));
}

/* The same members in the same order, the same kinds of values; lists by their first element. */
static void check_shape(const char *where, json_t *want, json_t *got)
{
    void *i = json_object_iter(want), *k = json_object_iter(got);

    if (!same_kind(want, got))
        fail_msg("%s: another kind of value", where);
    if (json_is_array(want) && json_array_size(want) && json_array_size(got))
        check_shape(where, json_array_get(want, 0), json_array_get(got, 0));
    for (; i && k; i = json_object_iter_next(want, i), k = json_object_iter_next(got, k)) {
        const char *name = json_object_iter_key(i);

        if (strcmp(name, json_object_iter_key(k)) != 0)
            fail_msg("%s: '%s' instead of '%s'", where, json_object_iter_key(k), name);
        if (strcmp(name, "top_logprobs") != 0 && strcmp(name, "prompt_logprobs") != 0 &&
            strcmp(name, "token_logprobs") != 0 && strcmp(name, "stop_reason") != 0)
            check_shape(name, json_object_iter_value(i), json_object_iter_value(k));
    }
    if (i || k)
        fail_msg("%s: another number of members", where);
}

static bool is_not_here(const char *path, json_t *q, int status)
{
    return strcmp(path, "/v1/responses") == 0 || strcmp(path, "/v1/models/M") == 0 ||
           strcmp(path, "/tokenizer_info") == 0 || json_object_get(q, "response_format") ||
           json_object_get(q, "structured_outputs") ||
           (json_object_get(q, "tool_choice") && status == 200);
}

static void check_call(json_t *line)
{
    const char *method = json_string_value(json_object_get(line, "method"));
    const char *path = json_string_value(json_object_get(line, "path"));
    json_t *q = json_object_get(line, "request"), *want = json_object_get(line, "response"), *got;
    int status = (int)json_integer_value(json_object_get(line, "status"));
    const char *raw = json_string_value(json_object_get(q, "__raw"));
    char *body = json_is_object(q) && !raw ? json_dumps(q, 0) : NULL;

    if (!is_not_here(path, q, status)) {
        call(method, path, raw ? raw : body);
        /* One recorded call differs by its Content-Type only. */
        if (rig.r.status != status && !(status == 400 && rig.r.status == 200))
            fail_msg("%s %s %s: %d, not %d: %s", method, path, body ? body : "", rig.r.status,
                     status, buf_str(&rig.r.body));
        if (json_is_object(want) && rig.r.status == status) {
            got = json_body();
            if (status == 200)
                check_shape(path, want, got);
            json_decref(got);
        }
    }
    free(body);
}

static void recorded_calls(void **state)
{
    FILE *f = fopen(WIRE_DATA "/wire.jsonl", "r");
    char *line = NULL;
    size_t cap = 0;

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);

        check_call(o);
        json_decref(o);
    }
    free(line);
    fclose(f);
}

#define WITH_FRONT(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_listens_before_it_is_ready),
        cmocka_unit_test(a_model_that_cannot_be_loaded_ends_it),
        WITH_FRONT(a_taken_port_is_an_error),
        WITH_FRONT(unknown_paths_and_methods),
        WITH_FRONT(keys_guard_only_the_api),
        WITH_FRONT(keys_guard_the_api_below_a_root_path),
        WITH_FRONT(browsers_may_call_from_where_they_are_allowed),
        WITH_FRONT(models_are_listed),
        WITH_FRONT(ids_are_the_clients_own),
        WITH_FRONT(stop_strings_do_not_leak),
        WITH_FRONT(characters_are_never_cut),
        WITH_FRONT(the_role_goes_with_the_first_token),
        WITH_FRONT(choices_are_numbered_across_prompts),
        WITH_FRONT(log_probabilities_have_both_shapes),
        WITH_FRONT(lengths_are_checked_before_anything_starts),
        WITH_FRONT(tokens_and_text),
        WITH_FRONT(engine_errors_before_the_first_token),
        WITH_FRONT(apart_from_its_group_for_a_while),
        WITH_FRONT(a_failed_kv_load_is_named),
        WITH_FRONT(a_full_queue_is_503),
        WITH_FRONT(a_stream_that_breaks_says_so),
        WITH_FRONT(a_client_that_leaves_ends_its_request),
        WITH_FRONT(prefill_answers_with_parameters),
        WITH_FRONT(decode_pulls_once_for_all_choices),
        WITH_FRONT(what_is_not_fetched_is_released),
        WITH_FRONT(a_producer_says_where_it_is),
        WITH_FRONT(a_consumer_finds_its_producer),
        WITH_FRONT(a_producer_that_is_not_found),
        WITH_FRONT(a_client_that_leaves_while_p_is_looked_for),
        WITH_FRONT(a_refused_prefill_is_told_to_who_waits),
        WITH_FRONT(a_mismatch_is_no_readiness),
        WITH_FRONT(a_busy_cache_is_not_reset_silently),
        WITH_FRONT(a_reset_holds_up_nobody),
        WITH_FRONT(a_text_that_cannot_fit_is_not_encoded),
        WITH_FRONT(a_text_can_be_too_long_to_be_truncated),
        WITH_FRONT(a_long_text_holds_up_nobody),
        WITH_FRONT(a_long_text_is_tokenized_too),
        WITH_FRONT(a_long_text_ends_with_the_server),
        WITH_FRONT(limits_are_told_as_they_are),
        WITH_FRONT(metrics_have_the_known_names),
        WITH_FRONT(sizes_are_those_of_the_bodies),
        WITH_FRONT(made_up_methods_do_not_use_up_the_series),
        WITH_FRONT(it_drains),
        WITH_FRONT(what_does_not_end_in_time_is_told),
        WITH_FRONT(recorded_calls),
    };

    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
