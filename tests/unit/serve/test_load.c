/* What options ask of the model: passed on, or refused before anything is served; and a front without a
 * tokenizer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "fake_engine.h"
#include "front.h"
#include "net/loop.h"
#include "serve/state.h"

/* ---- loading ---- */

static int prepare(void **state)
{
    (void)state;
    fake_reset();
    configure();
    return 0;
}

/* Loading fails with a sentence that has this part. */
static void must_not_load(const char *part)
{
    log_set_level(LOG_OFF);
    start();
    loop_run(rig.loop);
    log_set_level(LOG_ERROR);
    assert_int_equal(serve_exit_code(rig.s), 1);
    if (!strstr(rig.s->load_error.text, part))
        fail_msg("'%s' is not in: %s", part, rig.s->load_error.text);
}

static void options_reach_the_model(void **state)
{
    (void)state;
    rig.cfg.hf_overrides = json_pack("{s{si}}", "rope_scaling", "factor", 2);
    rig.cfg.quantization = "ascend";
    rig.cfg.dtype = "half";
    rig.cfg.n_draft_tokens = 2;
    fake.mtp_layers = 1;
    start();
    wait_ready();
    assert_string_equal(fake.overrides, "{\"rope_scaling\":{\"factor\":2}}");
    assert_string_equal(fake.quantization, "ascend");
    assert_true(fake.opened.mtp);
    assert_int_equal(fake.opened.dtype, MODEL_DTYPE_FLOAT16);
    assert_int_equal(fake.n_draft_tokens, 2);
    json_decref(rig.cfg.hf_overrides);
}

static void nothing_is_asked_for_by_default(void **state)
{
    (void)state;
    rig.cfg.hf_overrides = json_object(); /* --hf-overrides {} */
    fake.mtp_layers = 1;
    start();
    wait_ready();
    assert_null(fake.opened.hf_overrides);
    assert_null(fake.opened.quantization);
    assert_false(fake.opened.mtp);
    call("GET", "/metrics", NULL);
    assert_false(body_has("spec_decode"));
    json_decref(rig.cfg.hf_overrides);
}

static void speculation_needs_a_layer_for_it(void **state)
{
    (void)state;
    rig.cfg.n_draft_tokens = 1;
    must_not_load("MODEL (FakeForCausalLM) has no multi-token prediction layer");
}

static void acceptance_is_counted(void **state)
{
    static const char *const lines[] = {
        "vllm:spec_decode_num_drafts_total{engine=\"0\",model_name=\"M\"} 10.0",
        "vllm:spec_decode_num_draft_tokens_total{engine=\"0\",model_name=\"M\"} 19.0",
        "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\",model_name=\"M\"} 12.0",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"M\",position="
        "\"0\"} "
        "8.0",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",model_name=\"M\",position="
        "\"1\"} "
        "4.0",
    };

    (void)state;
    rig.cfg.n_draft_tokens = 2;
    fake.mtp_layers = 1;
    memcpy(fake.spec, ((uint64_t[]){ 10, 19, 8, 4 }), sizeof fake.spec);
    start();
    wait_ready();
    call("GET", "/metrics", NULL);
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++)
        expect_body(lines[i]);
    assert_false(body_has("position=\"2\""));
}

static void ranks_and_stages_are_shown(void **state)
{
    (void)state;
    start();
    wait_ready();
    call("GET", "/metrics", NULL);
    expect_body("sluice:ranks{engine=\"0\",model_name=\"M\"} 6.0");
    expect_body("sluice:stage_busy_seconds_total{engine=\"0\",model_name=\"M\",stage=\"1\"} 2.5");
    expect_body("sluice:dp_rank_up{engine=\"0\",model_name=\"M\",rank=\"0\"} 1.0");
    expect_body("sluice:dp_rank_up{engine=\"0\",model_name=\"M\",rank=\"1\"} 0.0");
}

static void chunk_plans_are_shown_where_there_are_any(void **state)
{
    (void)state;
    start();
    wait_ready();
    call("GET", "/metrics", NULL);
    assert_false(body_has("sluice:chunk_"));
    fake.chunk_mode = SCHED_MODE_PLANNED;
    call("GET", "/metrics", NULL);
    expect_body("sluice:chunk_plans_total{engine=\"0\",model_name=\"M\"} 4.0");
    expect_body("sluice:chunk_plan_chunks{engine=\"0\",model_name=\"M\"} 3.0");
    expect_body("sluice:chunk_bound_seconds{engine=\"0\",model_name=\"M\"} 1.5");
    expect_body("sluice:chunk_mode{engine=\"0\",model_name=\"M\",mode=\"");
}

static void the_label_says_which_engine_of_a_group(void **state)
{
    (void)state;
    rig.cfg.ranks.dp_size = 8;
    rig.cfg.ranks.dp_rank = 7;
    start();
    wait_ready();
    call("GET", "/metrics", NULL);
    expect_body("vllm:num_requests_running{engine=\"7\",model_name=\"M\"} 0.0");
    assert_false(body_has("engine=\"0\""));
    rig.cfg.ranks = (struct engine_ranks){ 0 };
}

/* Whoever asks is told why, and the loop ends with an exit code that says so. */
static void a_broken_engine_ends_the_instance(void **state)
{
    (void)state;
    fake.manual = true;
    start();
    wait_ready();
    log_set_level(LOG_OFF);
    fake_break("rank 1 (pp1 tp0, pid 77) has ended");
    one_round();
    call("GET", "/health", NULL);
    assert_int_equal(rig.r.status, 503);
    expect_body("rank 1 (pp1 tp0, pid 77) has ended");
    complete("\"max_tokens\":3");
    assert_int_equal(rig.r.status, 503);
    assert_int_equal(serve_exit_code(rig.s), 1);
}

/* As on many ranks of one host, by the layers of the model and what the environment says. */
static void parts_must_be_there_for_all_ranks(void **state)
{
    struct err e = { "" };

    (void)state;
    rig.cfg.ranks.pp = 9;
    rig.cfg.ranks.tp = 1;
    assert_true(serve_check_model(&rig.cfg, &e) < 0);
    assert_non_null(strstr(e.text, "--pipeline-parallel-size 9 is more than the 8 layers"));
    rig.cfg.ranks.pp = 2;
    rig.cfg.ranks.stage_layers[0] = 3;
    rig.cfg.ranks.stage_layers[1] = 4;
    assert_true(serve_check_model(&rig.cfg, &e) < 0);
    assert_non_null(strstr(e.text, "the stages have 7 layers together, but MODEL has 8"));
    rig.cfg.ranks.stage_layers[1] = 5;
    assert_int_equal(serve_check_model(&rig.cfg, &e), 0);
    rig.cfg.ranks.tp = 4;
    assert_true(serve_check_model(&rig.cfg, &e) < 0);
    assert_non_null(strstr(e.text, "--tensor-parallel-size 4 does not divide the 6 attention"));
    rig.cfg.ranks.tp = 3;
    assert_int_equal(serve_check_model(&rig.cfg, &e), 0);
    rig.cfg.ranks = (struct engine_ranks){ 0 };
}

static void tokens_of_one_step_have_no_latency_between_them(void **state)
{
    (void)state;
    fake.one_step = true;
    start();
    wait_ready();
    complete("\"max_tokens\":3,\"return_token_ids\":true,\"stream\":true");
    expect_body("\"token_ids\":[72,101,108]"); /* and one event has them */
    call("GET", "/metrics", NULL);
    expect_body("vllm:inter_token_latency_seconds_count{engine=\"0\",model_name=\"M\"} 0");
    expect_body("vllm:request_generation_tokens_sum{engine=\"0\",model_name=\"M\"} 3.0");
}

static void a_context_beyond_the_model_needs_a_word(void **state)
{
    (void)state;
    rig.cfg.max_model_len = 8193;
    must_not_load("set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if that is meant");
}

static void and_with_the_word_it_is_taken(void **state)
{
    (void)state;
    rig.cfg.max_model_len = 8193;
    setenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "1", 1);
    log_set_level(LOG_ERROR);
    start();
    wait_ready();
    unsetenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN");
    assert_int_equal(fake.opened.max_model_len, 8193);
}

static void overrides_count_for_the_context(void **state)
{
    (void)state;
    rig.cfg.max_model_len = 16384; /* the fake model's with any override */
    rig.cfg.hf_overrides = json_pack("{si}", "max_position_embeddings", 16384);
    start();
    wait_ready();
    json_decref(rig.cfg.hf_overrides);
}

static void a_model_without_tokenizer_names_the_option(void **state)
{
    (void)state;
    fake.no_tokenizer = true;
    must_not_load("MODEL: there is no tokenizer.json; --skip-tokenizer-init serves the model");
}

/* ---- ids in, ids out ---- */

static int setup_ids(void **state)
{
    prepare(state);
    fake.no_tokenizer = true;
    rig.cfg.skip_tokenizer = true;
    start();
    wait_ready();
    return 0;
}

static void ask(const char *members)
{
    char body[512];

    snprintf(body, sizeof body, "{\"model\":\"M\",\"prompt\":[5,6,7],%s}", members);
    call("POST", "/v1/completions", body);
}

static void ids_go_in_and_out(void **state)
{
    json_t *o;

    (void)state;
    ask("\"max_tokens\":3,\"return_token_ids\":true");
    assert_int_equal(rig.r.status, 200);
    o = json_body();
    assert_string_equal(text_of(o, 0), "");
    json_decref(o);
    expect_body("\"token_ids\":[72,101,108]"); /* the fake engine's "Hel" */
    expect_body("\"prompt_token_ids\":[5,6,7]");
    expect_body("\"usage\":{\"prompt_tokens\":3,\"total_tokens\":6,\"completion_tokens\":3");
    assert_int_equal(fake.req[0].prompt[2], 7);
}

static void ids_are_streamed(void **state)
{
    (void)state;
    ask("\"max_tokens\":2,\"return_token_ids\":true,\"stream\":true,\"echo\":true");
    assert_int_equal(rig.r.status, 200);
    expect_body("\"text\":\"\"");
    expect_body("\"token_ids\":[72,101]");
    expect_body("\"finish_reason\":\"length\"");
    expect_body("data: [DONE]");
}

static void log_probabilities_name_ids(void **state)
{
    (void)state;
    ask("\"max_tokens\":1,\"logprobs\":1,\"prompt_logprobs\":1");
    assert_int_equal(rig.r.status, 200);
    expect_body("\"tokens\":[\"token_id:72\"]");
    expect_body("\"decoded_token\":\"token_id:6\"");
}

static void expect_refusal(const char *param)
{
    char text[64];

    assert_int_equal(rig.r.status, 400);
    expect_body("--skip-tokenizer-init");
    snprintf(text, sizeof text, param ? "\"param\":\"%s\"" : "\"param\":null", param);
    expect_body(text);
    assert_int_equal(fake.n_req, 0);
}

static void texts_are_refused(void **state)
{
    (void)state;
    complete("\"max_tokens\":1");
    expect_refusal("prompt");
    call("POST", "/v1/completions", "{\"prompt\":[[1],\"x\"]}");
    expect_refusal("prompt");
    chat("\"max_tokens\":1");
    expect_refusal("messages");
    ask("\"stop\":[\"x\"]");
    expect_refusal("stop");
    call("POST", "/tokenize", "{\"prompt\":\"x\"}");
    expect_refusal(NULL);
    call("POST", "/detokenize", "{\"tokens\":[1]}");
    expect_refusal(NULL);
    call("GET", "/tokenizer_info", NULL);
    expect_refusal(NULL);
}

static void the_rest_answers_as_ever(void **state)
{
    (void)state;
    call("GET", "/v1/models", NULL);
    assert_int_equal(rig.r.status, 200);
    expect_body("\"max_model_len\":4096");
    call("GET", "/metrics", NULL);
    assert_int_equal(rig.r.status, 200);
    call("GET", "/server_info", NULL);
    assert_int_equal(rig.r.status, 200);
    ask("\"max_tokens\":100,\"stop_token_ids\":[108]");
    expect_body("\"finish_reason\":\"stop\"");
    expect_body("\"stop_reason\":108");
}

#define LOADING(f) cmocka_unit_test_setup_teardown(f, prepare, teardown)
#define IDS(f)     cmocka_unit_test_setup_teardown(f, setup_ids, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        LOADING(options_reach_the_model),
        LOADING(nothing_is_asked_for_by_default),
        LOADING(speculation_needs_a_layer_for_it),
        LOADING(acceptance_is_counted),
        LOADING(ranks_and_stages_are_shown),
        LOADING(chunk_plans_are_shown_where_there_are_any),
        LOADING(the_label_says_which_engine_of_a_group),
        LOADING(a_broken_engine_ends_the_instance),
        cmocka_unit_test_setup(parts_must_be_there_for_all_ranks, prepare),
        LOADING(tokens_of_one_step_have_no_latency_between_them),
        LOADING(a_context_beyond_the_model_needs_a_word),
        LOADING(and_with_the_word_it_is_taken),
        LOADING(overrides_count_for_the_context),
        LOADING(a_model_without_tokenizer_names_the_option),
        IDS(ids_go_in_and_out),
        IDS(ids_are_streamed),
        IDS(log_probabilities_name_ids),
        IDS(texts_are_refused),
        IDS(the_rest_answers_as_ever),
    };

    log_set_level(LOG_ERROR);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
