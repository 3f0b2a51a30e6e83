#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "base/status.h"
#include "wire/openai.h"

#define VOCAB 1000

static struct sampling defaults;
static struct oai_rules rules = { .vocab = VOCAB, .max_logprobs = 20, .defaults = &defaults };

static int decode(struct oai_request *r, enum oai_kind kind, const char *body, struct oai_error *e)
{
    return oai_decode(r, kind, body, strlen(body), &rules, e);
}

/* ---- what is read ---- */

static void prompts_have_four_forms(void **state)
{
    struct oai_request r;
    struct oai_error e;

    (void)state;
    assert_int_equal(decode(&r, OAI_COMPLETION, "{\"prompt\":\"a\\u0000b\"}", &e), 0);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].len, 3);
    assert_int_equal(r.sampling.max_tokens, 16);
    assert_true(r.add_special_tokens);
    oai_request_finish(&r);
    assert_int_equal(decode(&r, OAI_COMPLETION, "{\"prompt\":[\"a\",\"b\"]}", &e), 0);
    assert_int_equal(r.n_prompts, 2);
    assert_string_equal(r.prompts[1].text, "b");
    oai_request_finish(&r);
    assert_int_equal(decode(&r, OAI_COMPLETION, "{\"prompt\":[1,2,999]}", &e), 0);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 999);
    oai_request_finish(&r);
    assert_int_equal(decode(&r, OAI_COMPLETION, "{\"prompt\":[[1],[2,3]]}", &e), 0);
    assert_int_equal(r.n_prompts, 2);
    assert_int_equal(r.prompts[1].n_ids, 2);
    oai_request_finish(&r);
}

static void every_member_lands_in_its_place(void **state)
{
    struct oai_request r;
    struct oai_error e;

    (void)state;
    assert_int_equal(
        decode(&r, OAI_COMPLETION,
               "{\"model\":\"m\",\"prompt\":\"x\",\"temperature\":0.5,\"top_p\":0.9,\"min_p\":0.1,"
               "\"top_k\":-1,\"seed\":-5,\"presence_penalty\":1,\"frequency_penalty\":-2,"
               "\"repetition_penalty\":1.5,\"max_tokens\":7.0,\"min_tokens\":3,\"ignore_eos\":true,"
               "\"stop\":[\"a\",\"bc\"],\"stop_token_ids\":[5],\"logit_bias\":{\"7\":500,\"8\":-1},"
               "\"allowed_token_ids\":[1,2],\"logprobs\":2,\"echo\":true,\"n\":3,"
               "\"include_stop_str_in_output\":true,\"skip_special_tokens\":false,"
               "\"return_token_ids\":true,\"cache_salt\":\"s\",\"stream\":true,"
               "\"stream_options\":{\"include_usage\":true,\"continuous_usage_stats\":true},"
               "\"truncate_prompt_tokens\":-1,\"truncation_side\":\"right\",\"unknown\":{}}",
               &e),
        0);
    assert_string_equal(r.model, "m");
    assert_true(r.sampling.temperature == 0.5f && r.sampling.top_p == 0.9f);
    assert_int_equal(r.sampling.top_k, 0);
    assert_true(r.sampling.has_seed && r.sampling.seed == (uint64_t)-5);
    assert_int_equal(r.sampling.max_tokens, 7);
    assert_int_equal(r.sampling.min_tokens, 3);
    assert_int_equal(r.n_stops, 2);
    assert_int_equal(r.sampling.n_stop_ids, 1);
    assert_int_equal(r.sampling.n_bias, 2);
    assert_true(r.sampling.bias[0].bias == 100 && r.sampling.bias[1].id == 8);
    assert_int_equal(r.sampling.n_allowed, 2);
    assert_int_equal(r.sampling.logprobs, 2);
    assert_int_equal(r.sampling.prompt_logprobs, 2); /* echo shows those of the prompt too */
    assert_true(r.include_usage && r.continuous_usage && r.truncate_right);
    assert_int_equal(r.truncate, -1);
    assert_int_equal(r.salt.len, 1);
    oai_request_finish(&r);
}

static void null_means_the_default(void **state)
{
    struct oai_request r;
    struct oai_error e;

    (void)state;
    assert_int_equal(decode(&r, OAI_COMPLETION,
                            "{\"prompt\":\"x\",\"temperature\":null,\"n\":null,\"stop\":null,"
                            "\"logprobs\":null,\"stream\":null,\"suffix\":null,\"max_tokens\":null,"
                            "\"kv_transfer_params\":null,\"logit_bias\":null}",
                            &e),
                     0);
    assert_true(r.sampling.temperature == 1);
    assert_false(r.has_max_tokens); /* null is "no limit", absent is 16 */
    assert_false(r.want_logprobs);
    oai_request_finish(&r);
}

static void greedy_ignores_what_shapes(void **state)
{
    struct oai_request r;
    struct oai_error e;

    (void)state;
    assert_int_equal(decode(&r, OAI_COMPLETION,
                            "{\"prompt\":\"x\",\"temperature\":0,\"top_p\":0.1,\"top_k\":5}", &e),
                     0);
    assert_true(r.sampling.top_p == 1 && r.sampling.top_k == 0);
    oai_request_finish(&r);
}

static const char *content(const struct oai_request *r, size_t i)
{
    return json_string_value(json_object_get(json_array_get(r->messages, i), "content"));
}

static void messages_become_strings(void **state)
{
    struct oai_request r;
    struct oai_error e;
    const json_t *call, *args;

    (void)state;
    assert_int_equal(
        decode(&r, OAI_CHAT,
               "{\"messages\":[{\"role\":\"developer\",\"content\":\"a\"},"
               "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"b\"},"
               "{\"type\":\"text\",\"text\":\"c\"}]},"
               "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":"
               "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]}],"
               "\"max_tokens\":5,\"max_completion_tokens\":6,\"logprobs\":true,\"top_logprobs\":3,"
               "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],"
               "\"chat_template_kwargs\":{\"thinking\":true}}",
               &e),
        0);
    assert_string_equal(content(&r, 0), "a");
    assert_string_equal(content(&r, 1), "b\nc");
    assert_string_equal(content(&r, 2), "");
    call = json_array_get(json_object_get(json_array_get(r.messages, 2), "tool_calls"), 0);
    args = json_object_get(json_object_get(call, "function"), "arguments");
    assert_int_equal(json_integer_value(json_object_get(args, "x")), 1);
    assert_int_equal(r.sampling.max_tokens, 6);
    assert_string_equal(r.max_tokens_name, "max_completion_tokens");
    assert_int_equal(r.sampling.logprobs, 3);
    assert_false(r.add_special_tokens);
    assert_non_null(r.tools);
    oai_request_finish(&r);
}

static void transfer_parameters_are_read(void **state)
{
    struct oai_request r;
    struct oai_error e;

    (void)state;
    assert_int_equal(decode(&r, OAI_COMPLETION,
                            "{\"prompt\":\"x\",\"kv_transfer_params\":{\"do_remote_decode\":true}}",
                            &e),
                     0);
    assert_true(r.has_kv && r.kv.do_remote_decode);
    oai_request_finish(&r);
    assert_int_equal(decode(&r, OAI_COMPLETION, "{\"prompt\":\"x\",\"kv_transfer_params\":{}}", &e),
                     0);
    assert_false(r.has_kv);
    oai_request_finish(&r);
}

/* ---- what is refused ---- */

struct fault {
    const char *members; /* beside a good prompt or good messages */
    const char *param;
};

static void check_fault(enum oai_kind kind, const char *start, const struct fault *f)
{
    struct oai_request r;
    struct oai_error e = { 0 };
    char body[1024];

    snprintf(body, sizeof body, "{%s%s%s}", start, start[0] ? "," : "", f->members);
    if (decode(&r, kind, body, &e) == 0)
        fail_msg("accepted: %s", body);
    assert_int_equal(e.code, 400);
    if (strcmp(e.param, f->param) != 0)
        fail_msg("%s: param '%s', not '%s'", body, e.param, f->param);
    assert_true(e.message[0] != '\0');
    assert_string_equal(e.type,
                        strncmp(f->param, "body", 4) == 0 ? "Bad Request" : "BadRequestError");
}

static void bad_members_are_named(void **state)
{
    static const struct fault both[] = {
        { "\"temperature\":-0.1", "temperature" },
        { "\"temperature\":1e999", "temperature" },
        { "\"temperature\":-1e999", "temperature" },
        { "\"temperature\":\"hot\"", "body.temperature" },
        { "\"top_p\":0", "top_p" },
        { "\"top_p\":-0.5", "top_p" },
        { "\"top_p\":1.01", "top_p" },
        { "\"top_p\":1e999", "top_p" },
        { "\"min_p\":-0.01", "min_p" },
        { "\"min_p\":1.5", "min_p" },
        { "\"top_k\":-2", "top_k" },
        { "\"top_k\":1.5", "body.top_k" },
        { "\"presence_penalty\":2.1", "presence_penalty" },
        { "\"presence_penalty\":-2.1", "presence_penalty" },
        { "\"frequency_penalty\":-3", "frequency_penalty" },
        { "\"frequency_penalty\":1e999", "frequency_penalty" },
        { "\"repetition_penalty\":0", "repetition_penalty" },
        { "\"repetition_penalty\":-1", "repetition_penalty" },
        { "\"n\":0", "n" },
        { "\"n\":-1", "n" },
        { "\"n\":129", "n" },
        { "\"n\":2,\"temperature\":0", "n" },
        { "\"max_tokens\":0", "max_tokens" },
        { "\"max_tokens\":-1", "max_tokens" },
        { "\"max_tokens\":1.5", "body.max_tokens" },
        { "\"min_tokens\":-1", "min_tokens" },
        { "\"min_tokens\":5,\"max_tokens\":4", "min_tokens" },
        { "\"stop\":\"\"", "stop" },
        { "\"stop\":[\"a\",\"\"]", "stop" },
        { "\"stop\":[\"a\",1]", "body.stop" },
        { "\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]", "stop" },
        { "\"stream_options\":{\"include_usage\":true}", "stream_options" },
        { "\"stream\":\"yes\"", "body.stream" },
        { "\"stream\":true,\"stream_options\":[]", "body.stream_options" },
        { "\"logit_bias\":{\"1000\":1}", "logit_bias" },
        { "\"logit_bias\":{\"-1\":1}", "logit_bias" },
        { "\"logit_bias\":{\"x\":1}", "logit_bias" },
        { "\"logit_bias\":[1]", "body.logit_bias" },
        { "\"stop_token_ids\":[1000]", "stop_token_ids" },
        { "\"stop_token_ids\":[-1]", "stop_token_ids" },
        { "\"stop_token_ids\":5", "body.stop_token_ids" },
        { "\"allowed_token_ids\":[]", "allowed_token_ids" },
        { "\"allowed_token_ids\":[4294967296]", "allowed_token_ids" },
        { "\"prompt_logprobs\":21", "prompt_logprobs" },
        { "\"prompt_logprobs\":1,\"stream\":true", "prompt_logprobs" },
        { "\"seed\":99999999999999999999", "seed" },
        { "\"seed\":1.5", "body.seed" },
        { "\"cache_salt\":\"\"", "cache_salt" },
        { "\"cache_salt\":1", "body.cache_salt" },
        { "\"priority\":1", "priority" },
        { "\"truncate_prompt_tokens\":-2", "truncate_prompt_tokens" },
        { "\"kv_transfer_params\":{\"remote_port\":-1}", "kv_transfer_params" },
        { "\"kv_transfer_params\":[]", "kv_transfer_params" },
        { "\"use_beam_search\":true", "use_beam_search" },
        { "\"bad_words\":[\"x\"]", "bad_words" },
        { "\"structured_outputs\":{\"choice\":[\"a\"]}", "structured_outputs" },
        { "\"response_format\":{\"type\":\"json_object\"}", "response_format" },
        { "\"ec_transfer_params\":{\"a\":1}", "ec_transfer_params" },
        { "\"watermarking\":true", "watermarking" },
        { "\"model\":5", "body.model" },
    };
    static const struct fault completion[] = {
        { "\"logprobs\":21", "logprobs" },
        { "\"logprobs\":-1", "logprobs" },
        { "\"logprobs\":true", "body.logprobs" },
        { "\"suffix\":\"y\"", "suffix" },
        { "\"prompt_embeds\":\"AAAA\"", "prompt_embeds" },
    };
    static const struct fault chat[] = {
        { "\"max_tokens\":0,\"echo\":true", "max_tokens" },
        { "\"max_completion_tokens\":0", "max_completion_tokens" },
        { "\"top_logprobs\":2", "top_logprobs" },
        { "\"logprobs\":true,\"top_logprobs\":21", "top_logprobs" },
        { "\"logprobs\":1", "body.logprobs" },
        { "\"tool_choice\":\"required\"", "tool_choice" },
        { "\"tool_choice\":\"perhaps\"", "body.tool_choice" },
        { "\"tools\":{}", "body.tools" },
        { "\"chat_template\":\"x\"", "chat_template" },
        { "\"chat_template_kwargs\":{\"thinking\":\"yes\"}", "chat_template_kwargs" },
        { "\"continue_final_message\":true", "continue_final_message" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof both / sizeof both[0]; i++) {
        check_fault(OAI_COMPLETION, "\"prompt\":\"x\"", &both[i]);
        check_fault(OAI_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]", &both[i]);
    }
    for (size_t i = 0; i < sizeof completion / sizeof completion[0]; i++)
        check_fault(OAI_COMPLETION, "\"prompt\":\"x\"", &completion[i]);
    for (size_t i = 0; i < sizeof chat / sizeof chat[0]; i++)
        check_fault(OAI_CHAT, "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]", &chat[i]);
}

static void bad_prompts_are_named(void **state)
{
    static const struct fault prompts[] = {
        { "\"prompt\":\"\"", "prompt" },
        { "\"prompt\":[]", "prompt" },
        { "\"prompt\":[[]]", "prompt" },
        { "\"prompt\":[\"\"]", "prompt" },
        { "\"prompt\":null", "prompt" },
        { "\"prompt\":[1000]", "prompt" },
        { "\"prompt\":[-1]", "prompt" },
        { "\"prompt\":[[1],[1000]]", "prompt" },
        { "\"prompt\":5", "body.prompt" },
        { "\"prompt\":[1,\"a\"]", "body.prompt" },
        { "\"prompt\":[\"a\",1]", "body.prompt" },
        { "\"prompt\":[\"a\",\"b\"],\"kv_transfer_params\":{\"do_remote_prefill\":true}",
          "prompt" },
    };
    static const struct fault messages[] = {
        { "\"model\":\"m\"", "body.messages" },
        { "\"messages\":5", "body.messages" },
        { "\"messages\":[]", "messages" },
        { "\"messages\":[5]", "body.messages.0" },
        { "\"messages\":[{\"content\":\"x\"}]", "body.messages.0" },
        { "\"messages\":[{\"role\":\"user\",\"content\":5}]", "body.messages.0" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]", "messages" },
        { "\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]",
          "body.messages.0" },
    };

    (void)state;
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++)
        check_fault(OAI_COMPLETION, "", &prompts[i]);
    for (size_t i = 0; i < sizeof messages / sizeof messages[0]; i++)
        check_fault(OAI_CHAT, "", &messages[i]);
}

static void bodies_that_are_no_object(void **state)
{
    static const char *const rows[][2] = {
        { "{\"model\":", "body.9" },
        { "[]", "body" },
        { "", "body.0" },
        { "{\"prompt\":\"x\",\"prompt\":\"y\"}", NULL },
        { "{\"prompt\":\"\xff\"}", NULL },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct oai_request r;
        struct oai_error e;

        assert_int_equal(decode(&r, OAI_COMPLETION, rows[i][0], &e), ERR_INVAL);
        assert_int_equal(e.code, 400);
        assert_string_equal(e.type, "Bad Request");
        if (rows[i][1])
            assert_string_equal(e.param, rows[i][1]);
        for (const char *p = e.message; *p; p++) /* what is quoted must not break the reply */
            assert_true((unsigned char)*p < 0x80);
    }
}

/* Neutral values of what is not here are accepted. */
static void nothing_asked_nothing_refused(void **state)
{
    struct oai_request r;
    struct oai_error e;

    (void)state;
    assert_int_equal(
        decode(&r, OAI_CHAT,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":[],"
               "\"tool_choice\":\"none\",\"response_format\":{\"type\":\"text\"},"
               "\"use_beam_search\":false,\"structured_outputs\":null,\"bad_words\":[],"
               "\"store\":true,\"metadata\":{},\"service_tier\":\"auto\",\"priority\":0,"
               "\"parallel_tool_calls\":true,\"user\":\"u\",\"best_of\":2}",
               &e),
        0);
    oai_request_finish(&r);
}

/* The recorded requests: each is read or refused as the reference does, apart from what this server
 * does not have. */
static bool is_not_here(const json_t *q)
{
    return json_object_get(q, "response_format") || json_object_get(q, "structured_outputs") ||
           json_object_get(q, "tool_choice");
}

static void check_recorded(const json_t *line)
{
    const char *path = json_string_value(json_object_get(line, "path"));
    json_t *q = json_object_get(line, "request");
    int status = (int)json_integer_value(json_object_get(line, "status"));
    bool chat = strcmp(path, "/v1/chat/completions") == 0;
    const char *param;
    struct oai_request r;
    struct oai_error e = { 0 };
    char *body;

    if ((!chat && strcmp(path, "/v1/completions") != 0) || json_is_null(q) || is_not_here(q) ||
        json_object_get(q, "__raw") || (status != 200 && status != 400))
        return;
    body = json_dumps(q, 0);
    param = json_string_value(
        json_object_get(json_object_get(json_object_get(line, "response"), "error"), "param"));
    rules.vocab = 49152;
    if (decode(&r, chat ? OAI_CHAT : OAI_COMPLETION, body, &e) == 0) {
        /* a length beyond the context and a wrong Content-Type are not seen here */
        if (status != 200 && param && strcmp(param, "max_tokens") != 0)
            fail_msg("accepted: %s", body);
        oai_request_finish(&r);
    } else {
        if (status != 400)
            fail_msg("refused: %s: %s", body, e.message);
        if (param)
            assert_string_equal(e.param, param);
    }
    rules.vocab = VOCAB;
    free(body);
}

static void recorded_requests(void **state)
{
    FILE *f = fopen(WIRE_DATA "/wire.jsonl", "r");
    char *line = NULL;
    size_t cap = 0;
    int n = 0;

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);

        assert_non_null(o);
        check_recorded(o);
        json_decref(o);
        n++;
    }
    assert_int_equal(n, 58);
    free(line);
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_have_four_forms),
        cmocka_unit_test(every_member_lands_in_its_place),
        cmocka_unit_test(null_means_the_default),
        cmocka_unit_test(greedy_ignores_what_shapes),
        cmocka_unit_test(messages_become_strings),
        cmocka_unit_test(transfer_parameters_are_read),
        cmocka_unit_test(bad_members_are_named),
        cmocka_unit_test(bad_prompts_are_named),
        cmocka_unit_test(bodies_that_are_no_object),
        cmocka_unit_test(nothing_asked_nothing_refused),
        cmocka_unit_test(recorded_requests),
    };

    sampling_init(&defaults);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
