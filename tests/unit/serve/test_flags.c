#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/opts_value.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "serve/config.h"

#define MAX_ARGS 96

/* A command line split as a shell does: blanks, '...' and backslash-newline. */
static int split(char *line, char **argv)
{
    int n = 0;

    for (char *p = line; *p && n < MAX_ARGS;) {
        char *out;

        if (strchr(" \t\n", *p) || (p[0] == '\\' && p[1] == '\n')) {
            p++;
            continue;
        }
        argv[n++] = out = p;
        while (*p && !strchr(" \t\n", *p)) {
            if (*p == '\'') {
                for (p++; *p && *p != '\''; p++)
                    *out++ = *p;
                p += *p != '\0';
            } else {
                *out++ = *p++;
            }
        }
        if (*p)
            p++;
        *out = '\0';
    }
    return n;
}

struct run {
    struct serve_config cfg;
    struct serve_args args;
    struct err e;
    char line[4096];
    char *argv[MAX_ARGS];
    int st;
};

static struct run *parse(const char *line)
{
    struct run *r = calloc(1, sizeof *r);
    int n;

    assert_non_null(r);
    snprintf(r->line, sizeof r->line, "serve %s", line);
    n = split(r->line, r->argv);
    r->st = serve_flags_parse(&r->cfg, &r->args, n, r->argv, &r->e);
    return r;
}

static void done(struct run *r)
{
    if (r->st == 0)
        serve_flags_finish(&r->cfg, &r->args);
    free(r);
}

static void must_parse(const char *line)
{
    struct run *r = parse(line);

    if (r->st < 0)
        fail_msg("%s: %s", line, r->e.text);
    done(r);
}

static void must_fail(const char *line, const char *part)
{
    struct run *r = parse(line);

    if (r->st == 0)
        fail_msg("accepted: %s", line);
    if (!strstr(r->e.text, part))
        fail_msg("%s: '%s' lacks '%s'", line, r->e.text, part);
    done(r);
}

static void a_plain_line(void **state)
{
    struct run *r = parse("MODEL --port 1 --served-model-name a b --max-model-len 4k --seed 7 "
                          "--no-enable-prefix-caching --dtype float32 --api-key k");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_string_equal(r->cfg.model, "MODEL");
    assert_int_equal(r->cfg.max_model_len, 4000);
    assert_int_equal(r->cfg.served_names.n, 2);
    assert_true(r->cfg.has_seed && r->cfg.float32);
    assert_false(r->cfg.prefix_caching);
    assert_true(r->cfg.chunked_prefill);
    assert_false(r->cfg.kv.produce || r->cfg.kv.consume);
    done(r);
    r = parse("--model M");
    assert_string_equal(r->cfg.model, "M");
    assert_false(r->cfg.has_seed);
    done(r);
    must_fail("", "no model");
    must_fail("a b", "unexpected argument 'b'");
}

/* The lines of known deployments: every flag is known; more ranks than one are not here yet, which is
 * the only thing that stops them. */
#define PREFILL                                                                                    \
    "/weights --host 0.0.0.0 --port 8003 --served-model-name model %s --enable-expert-parallel "   \
    "--max-num-seqs 32 --max-model-len 131072 --max-num-batched-tokens 32768 "                     \
    "--gpu-memory-utilization 0.9 --enable-chunked-prefill --enable-prefix-caching "               \
    "--no-async-scheduling --trust-remote-code --additional-config '{ \"scheduler_config\": { "    \
    "\"profiling_chunk_config\": {\"enabled\":true, \"smooth_factor\":1.0, \"min_chunk\":4096} } " \
    "}' --kv-transfer-config '{ \"kv_connector\": \"MooncakeConnectorV1\", \"kv_role\": "          \
    "\"kv_producer\", \"kv_port\": \"36000\", \"engine_id\": \"0\", "                              \
    "\"kv_connector_extra_config\": "                                                              \
    "{ \"prefill\": { \"pp_size\": %d, \"dp_size\": 1, \"tp_size\": %d }, \"decode\": { "          \
    "\"dp_size\": 32, \"tp_size\": 1 } } }'"

static void deployment_lines(void **state)
{
    char line[4096];
    struct run *r;

    (void)state;
    snprintf(line, sizeof line, PREFILL, "", 1, 1);
    r = parse(line);
    assert_string_equal(r->e.text, "");
    assert_true(r->cfg.kv.produce);
    assert_false(r->cfg.kv.consume);
    assert_int_equal(r->cfg.kv.port, 36000);
    assert_string_equal(r->cfg.kv.engine_id, "0");
    assert_true(r->cfg.kv.lease_seconds == 480);
    done(r);
    snprintf(line, sizeof line, PREFILL, "--tensor-parallel-size 8 --pipeline-parallel-size 2", 2,
             8);
    must_fail(line, "--tensor-parallel-size 8: this build serves one rank");
    snprintf(line, sizeof line, PREFILL, "", 2, 8);
    must_fail(line, "prefill.tp_size is 8, but this build serves one rank");
    snprintf(line, sizeof line, PREFILL, "--quantization ascend", 1, 1);
    r = parse(line);
    assert_string_equal(r->e.text, "");
    assert_string_equal(r->cfg.quantization, "ascend");
    done(r);
    must_parse(
        "/w --host 0.0.0.0 --port 1 --data-parallel-size 1 --data-parallel-rank 0 "
        "--data-parallel-address 192.0.0.3 --data-parallel-rpc-port 12321 "
        "--tensor-parallel-size 1 --enable-expert-parallel --seed 1024 "
        "--max-num-batched-tokens 256 --max-num-seqs 40 --trust-remote-code "
        "--no-enable-prefix-caching --compilation-config '{\"cudagraph_mode\": "
        "\"FULL_DECODE_ONLY\"}' --additional-config '{\"scheduler_config\": "
        "{\"recompute_scheduler_enable\": true}, \"multistream_overlap_shared_expert\": true}' "
        "--kv-transfer-config '{\"kv_connector\": \"MooncakeConnectorV1\", \"kv_role\": "
        "\"kv_consumer\", \"kv_port\": \"36000\", \"engine_id\": \"0\"}'");
    must_fail("/w --data-parallel-size 1 --data-parallel-size-local 1 --api-server-count 1 "
              "--enforce-eager --kv-transfer-config '{\"kv_connector\": "
              "\"LLMDataDistCMgrConnector\", \"kv_buffer_device\": \"npu\", \"kv_role\": "
              "\"kv_producer\", \"kv_parallel_size\": 1, \"kv_port\": \"20001\", \"engine_id\": "
              "\"0\", \"kv_connector_module_path\": \"x\"}'",
              "which has MooncakeConnectorV1");
}

static void connector_faults_are_named(void **state)
{
    static const char *const rows[][2] = {
        { "{\"kv_role\":\"kv_both\"}", "kv_connector must be given" },
        { "{\"kv_connector\":\"MooncakeConnector\"}", "kv_role must be" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"both\"}", "kv_role must be" },
        { "{\"kv_conector\":\"x\"}", "did you mean 'kv_connector'" },
        { "{\"kv_connector\":\"NixlConnector\",\"kv_role\":\"kv_both\"}", "'NixlConnector'" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\",\"kv_port\":\"x\"}",
          "kv_port" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\",\"kv_port\":70000}",
          "kv_port" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
          "\"kv_load_failure_policy\":\"ignore\"}",
          "kv_load_failure_policy" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
          "\"kv_connector_extra_config\":{\"prefil\":{}}}",
          "did you mean 'prefill'" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
          "\"kv_connector_extra_config\":{\"checksums\":1}}",
          "checksums must be true or false" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
          "\"kv_connector_extra_config\":{\"bootstrap_port\":65536}}",
          "bootstrap_port must be a number in 0..65535" },
        { "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
          "\"kv_connector_extra_config\":{\"kv_peers\":[\"p:1\",\"p\"]}}",
          "kv_peers: 'p' is not host:port" },
    };
    char line[512];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "m --kv-transfer-config '%s'", rows[i][0]);
        must_fail(line, rows[i][1]);
    }
}

static void connector_settings_are_read(void **state)
{
    struct run *r;

    (void)state;
    setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "30", 1);
    r = parse(
        "m --host 127.0.0.5 --kv-transfer-config.kv_connector MooncakeConnector "
        "--kv-transfer-config.kv_role kv_both --kv-transfer-config.kv_load_failure_policy fail "
        "--kv-transfer-config.kv_connector_extra_config.kv_secret s3 "
        "--kv-transfer-config.kv_connector_extra_config.checksums false");
    unsetenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
    assert_string_equal(r->e.text, "");
    assert_true(r->cfg.kv.produce && r->cfg.kv.consume && r->cfg.kv.fail_on_error);
    assert_false(r->cfg.kv.checksums);
    assert_true(r->cfg.kv.lease_seconds == 30);
    assert_string_equal(r->cfg.kv.secret, "s3");
    assert_string_equal(r->cfg.kv.host, "127.0.0.5");
    done(r);
    setenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT", "soon", 1);
    must_fail("m --kv-transfer-config {\"kv_connector\":\"MooncakeConnector\"}", "'soon'");
    unsetenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
}

static void peers_and_the_bootstrap_port(void **state)
{
    static const char line[] =
        "m --kv-transfer-config '{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"%s\","
        "\"kv_connector_extra_config\":{\"kv_peers\":[\"p:1\",\"[::1]:2\"]%s}}'";
    char text[300];
    struct run *r;

    (void)state;
    setenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", "8998", 1);
    snprintf(text, sizeof text, line, "kv_producer", "");
    r = parse(text);
    assert_int_equal(r->cfg.kv.bootstrap_port, 8998);
    assert_null(r->cfg.kv.peers);
    done(r);
    snprintf(text, sizeof text, line, "kv_producer", ",\"bootstrap_port\":9000");
    r = parse(text);
    assert_int_equal(r->cfg.kv.bootstrap_port, 9000);
    done(r);
    snprintf(text, sizeof text, line, "kv_consumer", "");
    r = parse(text);
    assert_int_equal(r->cfg.kv.bootstrap_port, 0); /* nobody looks for D */
    assert_int_equal(json_array_size(r->cfg.kv.peers), 2);
    done(r);
    setenv("VLLM_MOONCAKE_BOOTSTRAP_PORT", "high", 1);
    must_fail("m --kv-transfer-config {\"kv_connector\":\"MooncakeConnector\"}", "'high'");
    unsetenv("VLLM_MOONCAKE_BOOTSTRAP_PORT");
}

static void what_is_not_here_is_refused(void **state)
{
    static const char *const rows[][2] = {
        { "--enable-lora", "LoRA" },
        { "-pp 2", "--pipeline-parallel-size 2" },
        { "-dp 2", "--data-parallel-size 2" },
        { "--nnodes 2", "one rank" },
        { "--tool-call-parser hermes", "tool-call parser" },
        { "--enable-auto-tool-choice", "tool-call parser" },
        { "--reasoning-parser x", "reasoning parser" },
        { "--hf-overrides [1]", "a JSON object is wanted" },
        { "--tokens-only", "--skip-tokenizer-init serves" },
        { "--logprobs-mode processed_logits", "raw_logprobs" },
        { "--kv-cache-dtype fp8", "not one of" },
        { "--runner pooling", "not one of" },
        { "--block-size 24", "not a multiple of 16" },
        { "--ssl-certfile x", "need each other" },
        { "--fingerprint-mode custom", "--fingerprint-value" },
        { "--allowed-origins *", "--allowed-origins" },
        { "--uds /x", "only TCP" },
        { "--gpu-memory-utilisation 0.5", "did you mean '--gpu-memory-utilization'" },
    };
    char line[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "m %s", rows[i][0]);
        must_fail(line, rows[i][1]);
    }
    must_parse(
        "m --no-enable-lora --hf-overrides {} --logprobs-mode raw_logprobs -tp 1 -pp 1 -dp 1 "
        "--speculative-config None --quantization None --reasoning-parser None");
}

static void drafts_are_counted(void **state)
{
    static const struct {
        const char *line;
        uint32_t n;
    } rows[] = {
        { "--speculative-config {\"method\":\"deepseek_mtp\",\"num_speculative_tokens\":2}", 2 },
        { "--speculative-config '{\"num_speculative_tokens\": 1, \"method\": \"mtp\"}'", 1 },
        { "-sc {\"method\":\"mtp\"}", 1 },
        { "-sc.method mtp -sc.num_speculative_tokens 3", 3 },
        { "--spec-method mtp --spec-tokens 4 --spec-model m", 4 },
        { "-sc {\"method\":\"mtp\",\"enforce_eager\":true} --spec-tokens 2", 2 },
        { "--speculative-config {}", 0 },
        { "--speculative-config None", 0 },
    };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char line[256];
        struct run *r;

        snprintf(line, sizeof line, "m %s", rows[i].line);
        r = parse(line);
        assert_string_equal(r->e.text, "");
        assert_int_equal(r->cfg.n_draft_tokens, rows[i].n);
        done(r);
    }
}

static void speculation_of_other_kinds_is_refused(void **state)
{
    static const char *const rows[][2] = {
        { "-sc {\"method\":\"eagle3\"}", "method 'eagle3' is not part of this build" },
        { "-sc {\"method\":\"ngram\",\"num_speculative_tokens\":3}", "mtp (also called" },
        { "-sc {\"num_speculative_tokens\":3}", "method is missing" },
        { "--spec-tokens 3", "method is missing" },
        { "-sc {\"methd\":\"mtp\"}", "unknown key 'methd'; did you mean 'method'?" },
        { "-sc {\"method\":\"mtp\",\"num_speculative_tokens\":0}", "1 or more" },
        { "-sc {\"method\":\"mtp\",\"num_speculative_tokens\":\"1\"}", "1 or more" },
        { "-sc {\"method\":\"mtp\",\"num_speculative_tokens\":9}", "is 9, at most 8 are drafted" },
        { "-sc {\"method\":1}", "method must be a text" },
        { "-sc {\"method\":\"mtp\",\"model\":\"/other\"}",
          "model '/other' is another one than 'm'" },
        { "-sc {\"method\":\"mtp\"} --spec-method mtp", "--spec-method is given too" },
        { "-sc {\"method\":\"mtp\",\"num_speculative_tokens\":1} --spec-tokens 1",
          "--spec-tokens is given too" },
    };
    char line[256];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "m %s", rows[i][0]);
        must_fail(line, rows[i][1]);
    }
}

static void what_the_model_is_told(void **state)
{
    struct run *r = parse("m --trust-remote-code --skip-tokenizer-init --hf-overrides "
                          "{\"a\":{\"b\":1}} --hf-overrides.a.c x");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_true(r->cfg.skip_tokenizer);
    assert_int_equal(json_object_size(json_object_get(r->cfg.hf_overrides, "a")), 2);
    done(r);
    r = parse("m --no-skip-tokenizer-init");
    assert_false(r->cfg.skip_tokenizer);
    done(r);
}

static void secrets_are_not_shown(void **state)
{
    struct run *r = parse("m --api-key top --kv-transfer-config "
                          "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
                          "\"kv_connector_extra_config\":{\"kv_secret\":\"hidden\"}}");
    char *text;

    (void)state;
    assert_string_equal(r->e.text, "");
    text = json_dumps(r->cfg.effective, 0);
    assert_null(strstr(text, "top"));
    assert_null(strstr(text, "hidden"));
    assert_non_null(strstr(text, "\"max_num_seqs\": 128"));
    assert_string_equal(r->cfg.kv.secret, "hidden");
    free(text);
    done(r);
}

static void a_yaml_file_comes_before_the_line(void **state)
{
    char path[] = "flags-test-XXXXXX", line[128];
    int fd = mkstemp(path);
    FILE *f = fdopen(fd, "w");
    struct run *r;

    (void)state;
    fputs("model: from-file\nport: 9\nserved-model-name: [a, b]\nenable-prefix-caching: false\n"
          "max_model_len: 4k\nkv-transfer-config:\n  kv_connector: MooncakeConnectorV1\n"
          "  kv_role: kv_consumer\n  kv_port: 7\nseed: null\n",
          f);
    fclose(f);
    snprintf(line, sizeof line, "--config %s --port 10", path);
    r = parse(line);
    assert_string_equal(r->e.text, "");
    assert_string_equal(r->cfg.model, "from-file");
    assert_int_equal(r->cfg.port, 10);
    assert_int_equal(r->cfg.served_names.n, 2);
    assert_false(r->cfg.prefix_caching || r->cfg.has_seed);
    assert_int_equal(r->cfg.max_model_len, 4000);
    assert_true(r->cfg.kv.consume);
    assert_int_equal(r->cfg.kv.port, 7);
    done(r);
    f = fopen(path, "w");
    fputs("a: [1\n", f);
    fclose(f);
    must_fail(line, path);
    unlink(path);
    must_fail(line, "cannot be opened");
}

/* Names in the table are unique and well formed, and what has no effect says why. */
static void the_table_is_sound(void **state)
{
    int n = 0;

    (void)state;
    for (const struct opt_spec *s = serve_flags; s->kind != OPT_END; s++, n++) {
        assert_int_equal(strncmp(s->names, "--", 2), 0);
        assert_non_null(s->note);
        for (const struct opt_spec *t = serve_flags; t < s; t++)
            assert_string_not_equal(s->names, t->names);
    }
    assert_true(n >= 317);
}

/* Every flag of the reference's list is known under every one of its names. */
static void no_flag_of_the_reference_is_missing(void **state)
{
    const char *shared = getenv("SLUICE_SHARED");
    char path[1024], line[4096], names[4096];
    FILE *f;

    (void)state;
    snprintf(path, sizeof path, "%s/vllm/serve-flags.tsv", shared ? shared : SHARED_DIR);
    if (!(f = fopen(path, "r")))
        skip();
    while (fgets(line, sizeof line, f)) {
        if (line[0] == '#' || sscanf(line, "%*[^\t]\t%4095[^\t]", names) != 1)
            continue;
        for (char *w = strtok(names, " "); w; w = strtok(NULL, " ")) {
            bool known = false;

            if (strncmp(w, "--no-", 5) == 0)
                continue;
            for (const struct opt_spec *s = serve_flags; s->kind != OPT_END; s++)
                known = known || opts_word_in(s->names, w);
            if (!known)
                fail_msg("%s is not known", w);
        }
    }
    fclose(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_line),
        cmocka_unit_test(deployment_lines),
        cmocka_unit_test(connector_faults_are_named),
        cmocka_unit_test(connector_settings_are_read),
        cmocka_unit_test(peers_and_the_bootstrap_port),
        cmocka_unit_test(what_is_not_here_is_refused),
        cmocka_unit_test(drafts_are_counted),
        cmocka_unit_test(speculation_of_other_kinds_is_refused),
        cmocka_unit_test(what_the_model_is_told),
        cmocka_unit_test(secrets_are_not_shown),
        cmocka_unit_test(a_yaml_file_comes_before_the_line),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(no_flag_of_the_reference_is_missing),
    };

    log_set_level(LOG_WARNING);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
