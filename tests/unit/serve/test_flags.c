#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/opts_value.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "main/serve_ports.h"
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

/* The lines of known deployments. */
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
    snprintf(line, sizeof line, PREFILL,
             "--tensor-parallel-size 8 --pipeline-parallel-size 2 --quantization ascend", 2, 8);
    r = parse(line);
    assert_string_equal(r->e.text, "");
    assert_true(r->cfg.kv.produce);
    assert_false(r->cfg.kv.consume);
    assert_int_equal(r->cfg.kv.port, 36000);
    assert_string_equal(r->cfg.kv.engine_id, "0");
    assert_true(r->cfg.kv.lease_seconds == 480);
    assert_string_equal(r->cfg.quantization, "ascend");
    assert_int_equal(r->cfg.ranks.pp, 2);
    assert_int_equal(r->cfg.ranks.tp, 8);
    assert_int_equal(r->cfg.n_local_ranks, 16);
    assert_true(r->cfg.ranks.expert_parallel);
    assert_int_equal(r->cfg.chunks.policy, SCHED_CHUNK_OPTIMAL);
    assert_int_equal(r->cfg.chunks.min_chunk, 4096);
    done(r);
    snprintf(line, sizeof line, PREFILL, "--tensor-parallel-size 8", 1, 8);
    must_fail(line, "profiling_chunk_config: enabled needs pipeline stages");
    snprintf(line, sizeof line, PREFILL, "--pipeline-parallel-size 2", 2, 8);
    must_fail(line, "prefill.tp_size is 8, but this instance");
    r = parse(
        "/w --host 0.0.0.0 --port 1 --data-parallel-size 32 --data-parallel-rank 17 "
        "--data-parallel-address 127.0.0.3 --data-parallel-rpc-port 12321 "
        "--tensor-parallel-size 1 --enable-expert-parallel --seed 1024 "
        "--max-num-batched-tokens 256 --max-num-seqs 40 --trust-remote-code "
        "--no-enable-prefix-caching --compilation-config '{\"cudagraph_mode\": "
        "\"FULL_DECODE_ONLY\"}' --additional-config '{\"scheduler_config\": "
        "{\"recompute_scheduler_enable\": true}, \"multistream_overlap_shared_expert\": true, "
        "\"finegrained_tp_config\": {\"lmhead_tensor_parallel_size\": 16}}' "
        "--kv-transfer-config '{\"kv_connector\": \"MooncakeConnectorV1\", \"kv_role\": "
        "\"kv_consumer\", \"kv_port\": \"36000\", \"engine_id\": \"0\"}'");
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.ranks.dp_size, 32);
    assert_int_equal(r->cfg.ranks.dp_rank, 17);
    assert_string_equal(r->cfg.ranks.dp_host, "127.0.0.3");
    assert_int_equal(r->cfg.ranks.dp_port, 12321);
    assert_int_equal(r->cfg.ranks.head_ranks, 16);
    assert_true(r->cfg.ranks.overlap_shared_expert && r->cfg.recompute_when_full);
    assert_int_equal(r->cfg.kv.port, 36017);
    done(r);
    must_fail("/w --data-parallel-size 1 --data-parallel-size-local 1 --api-server-count 1 "
              "--enforce-eager --kv-transfer-config '{\"kv_connector\": "
              "\"LLMDataDistCMgrConnector\", \"kv_buffer_device\": \"npu\", \"kv_role\": "
              "\"kv_producer\", \"kv_parallel_size\": 1, \"kv_port\": \"20001\", \"engine_id\": "
              "\"0\", \"kv_connector_module_path\": \"x\"}'",
              "set DISAGGREGATED_PREFILL_RANK_TABLE_PATH");
}

static void connectors(void **state)
{
    static const struct {
        const char *name;
        bool layerwise;
    } rows[] = { { "MooncakeConnectorV1", false },
                 { "MooncakeConnector", false },
                 { "MooncakeLayerwiseConnector", true } };

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[200];
        struct run *r;

        snprintf(text, sizeof text,
                 "m --kv-transfer-config '{\"kv_connector\":\"%s\",\"kv_role\":\"kv_producer\"}'",
                 rows[i].name);
        r = parse(text);
        assert_string_equal(r->e.text, "");
        assert_true(r->cfg.kv.produce && !r->cfg.kv.consume);
        assert_int_equal(r->cfg.kv.layerwise, rows[i].layerwise);
        done(r);
    }
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

/* What is said of this instance's own side is so, or it does not start; of the other side it is kept. */
static void sizes_of_both_sides(void **state)
{
    static const char line[] =
        "m %s --kv-transfer-config '{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"%s\","
        "\"kv_connector_extra_config\":{\"prefill\":{\"pp_size\":2,\"tp_size\":8},"
        "\"decode\":{\"dp_size\":1,\"tp_size\":3}}}'";
    char text[400];
    struct run *r;

    (void)state;
    snprintf(text, sizeof text, line, "-tp 3", "kv_consumer");
    r = parse(text);
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.kv.producers.pp, 2);
    assert_int_equal(r->cfg.kv.producers.tp, 8);
    assert_int_equal(r->cfg.kv.producers.dp, 0);
    assert_int_equal(r->cfg.kv.consumers.tp, 3);
    done(r);
    snprintf(text, sizeof text, line, "-tp 2", "kv_consumer");
    must_fail(text, "decode.tp_size is 3, but this instance, which is on that side, has "
                    "--tensor-parallel-size 2");
    snprintf(text, sizeof text, line, "-tp 8", "kv_producer");
    must_fail(text, "prefill.pp_size is 2, but this instance, which is on that side, has "
                    "--pipeline-parallel-size 1");
    snprintf(text, sizeof text, line, "-tp 8", "kv_both"); /* nothing is said of those */
    must_parse(text);
    must_fail(
        "m --kv-transfer-config '{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_both\","
        "\"kv_connector_extra_config\":{\"prefill\":{\"tp_size\":0}}}'",
        "tp_size must be a number in 1..1024");
}

#define DEVICE(host, id)                                                                           \
    "{\"server_id\":\"" host "\",\"device_id\":\"" id "\",\"device_ip\":\"" host "\"}"

static void write_table(char *path)
{
    static const char text[] =
        "{\"version\":\"1.2\",\"server_count\":\"2\",\"status\":\"completed\","
        "\"prefill_device_list\":[" DEVICE("127.0.0.1", "0") "," DEVICE(
            "127.0.0.1", "1") "],"
                              "\"decode_device_list\":[" DEVICE("127.0.0.1", "2") "," DEVICE(
                                  "127.0.0.1", "3") "," DEVICE("10.9.8.7", "0") "]}";
    int fd = mkstemp(path);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
}

/* Which ranks are this instance's, and that the table knows as many. */
static void rank_tables(void **state)
{
    static const char line[] = "m --host 127.0.0.1 %s --kv-transfer-config "
                               "'{\"kv_connector\":\"LLMDataDistCMgrConnector\",\"kv_role\":\"%s\","
                               "\"kv_port\":\"20001\"}'";
    char path[] = "/tmp/sluice-test-table.XXXXXX", text[400];
    struct run *r;

    (void)state;
    write_table(path);
    setenv("DISAGGREGATED_PREFILL_RANK_TABLE_PATH", path, 1);
    snprintf(text, sizeof text, line, "-tp 2", "kv_producer");
    r = parse(text);
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.kv.port, 5557); /* not kv_port, which may be the API's */
    done(r);
    setenv("VLLM_LLMDD_RPC_PORT", "5659", 1);
    snprintf(text, sizeof text, line, "-tp 2", "kv_consumer");
    r = parse(text);
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.kv.port, 5659);
    done(r);
    snprintf(text, sizeof text, line, "", "kv_consumer");
    must_fail(text,
              "decode_device_list has 2 devices with server_id 127.0.0.1, but this instance has 1 "
              "ranks here");
    setenv("ASCEND_RT_VISIBLE_DEVICES", "3", 1);
    must_parse(text);
    setenv("ASCEND_RT_VISIBLE_DEVICES", "0,1", 1);
    must_fail(text,
              "among ASCEND_RT_VISIBLE_DEVICES, this host's address; it has devices of 127.0.0.1, "
              "10.9.8.7");
    setenv("ASCEND_RT_VISIBLE_DEVICES", "0,,1", 1);
    must_fail(text, "'0,,1' is not a list of devices");
    unsetenv("ASCEND_RT_VISIBLE_DEVICES");
    snprintf(text, sizeof text, line, "-tp 2", "kv_both");
    must_fail(text, "kv_role is kv_producer or kv_consumer");
    setenv("VLLM_LLMDD_RPC_PORT", "x", 1);
    must_fail(text, "VLLM_LLMDD_RPC_PORT: 'x' is not a port");
    unsetenv("VLLM_LLMDD_RPC_PORT");
    unlink(path);
    snprintf(text, sizeof text, line, "-tp 2", "kv_consumer");
    must_fail(text, path);
    unsetenv("DISAGGREGATED_PREFILL_RANK_TABLE_PATH");
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
        { "-dcp 2", "--decode-context-parallel-size 2" },
        { "--enable-eplb", "stay where they are" },
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

/* ---- ranks ---- */

static void ranks_that_do_not_fit_are_refused(void **state)
{
    static const char *const rows[][2] = {
        { "-tp 0", "-tp: 0 is not in 1..1024" },
        { "-pp 65", "-pp: 65 is not in 1..64" },
        { "-pp 64 -tp 17", "1088 ranks; at most 1024 can meet" },
        { "-tp 8 -dp 129 --data-parallel-rank 0 -ep", "1032 ranks; at most 1024" },
        { "-dp 2 --data-parallel-rank 2", "--data-parallel-rank 2 is not below" },
        { "-dp 2 --data-parallel-start-rank 3", "--data-parallel-start-rank 3 is not below" },
        { "-dp 4 --data-parallel-rank 1 --data-parallel-start-rank 2", "differ" },
        { "-dp 4", "`sluice launch --dp-size 4 --dp-size-local 4" },
        { "-dp 4 -dpl 2", "`sluice launch --dp-size 4 --dp-size-local 2" },
        { "-tp 2 --nnodes 2 --node-rank 2", "--node-rank 2 is not below --nnodes 2" },
        { "-tp 3 --nnodes 2", "3 ranks (--pipeline-parallel-size 1 x --tensor-parallel-size 3)" },
        { "-tp 4 --nnodes 3 -dp 2 --data-parallel-rank 0", "--nnodes 3 cannot be shared out" },
        { "-tp 2 --headless", "--headless is for the hosts of --nnodes other than the first" },
        { "-tp 2 -dp 2 -dpn 0 -ep --additional-config "
          "{\"finegrained_tp_config\":{\"lmhead_tensor_parallel_size\":2}}",
          "leave the key out" },
        { "-dp 3 -dpn 0 -ep --additional-config {\"lmhead_tensor_parallel_size\":2}",
          "2 does not divide --data-parallel-size 3" },
        { "--additional-config {\"multistream_overlap_shared_expert\":3}", "true or false" },
        { "--additional-config {\"scheduler_config\":3}", "scheduler_config must be an object" },
        { "-tp 4 --kv-transfer-config {\"kv_connector\":\"MooncakeConnector\",\"kv_role\":"
          "\"kv_both\",\"kv_port\":65533}",
          "65533 leaves no ports for the 4 ranks" },
    };
    char line[300];

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        snprintf(line, sizeof line, "m %s", rows[i][0]);
        must_fail(line, rows[i][1]);
    }
}

static void ranks_of_one_host(void **state)
{
    struct run *r = parse("m -pp 2 -tp 3");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.first_rank, 0);
    assert_int_equal(r->cfg.n_local_ranks, 6);
    assert_string_equal(r->cfg.ranks.host, "127.0.0.1");
    assert_string_equal(r->cfg.ranks.master_host, "127.0.0.1");
    assert_int_equal(r->cfg.ranks.master_port, 0); /* any free one */
    assert_int_equal(r->cfg.ranks.stage_layers[0], 0);
    assert_true(r->cfg.ranks.step_seconds == 300 && r->cfg.ranks.meet_seconds == 120);
    assert_true(r->cfg.threads >= 1); /* not all CPUs for each of six */
    done(r);
    r = parse("m -tp 2 --master-port 4000");
    assert_int_equal(r->cfg.ranks.master_port, 4000);
    done(r);
}

static void ranks_of_several_hosts(void **state)
{
    struct run *r = parse("m -pp 2 -tp 4 --nnodes 4 --node-rank 2 --headless "
                          "--master-addr 127.0.0.1 --master-port 4001");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.first_rank, 4);
    assert_int_equal(r->cfg.n_local_ranks, 2);
    assert_int_equal(r->cfg.ranks.rank, 4);
    assert_string_equal(r->cfg.ranks.master_host, "127.0.0.1");
    assert_int_equal(r->cfg.ranks.master_port, 4001);
    done(r);
    /* hosts are counted over the whole group: here two for each of two instances */
    r = parse("m -tp 4 -dp 2 --data-parallel-rank 1 --nnodes 4 --node-rank 3 --headless");
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.first_rank, 2);
    assert_int_equal(r->cfg.n_local_ranks, 2);
    done(r);
}

static void what_the_environment_says_of_ranks(void **state)
{
    struct run *r;

    (void)state;
    setenv("VLLM_PP_LAYER_PARTITION", "8,15,7", 1);
    setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "30000", 1);
    setenv("HCCL_CONNECT_TIMEOUT", "7", 1);
    setenv("VLLM_ASCEND_ENABLE_FLASHCOMM1", "1", 1);
    r = parse("m -pp 3 -tp 2");
    assert_string_equal(r->e.text, "");
    assert_int_equal(r->cfg.ranks.stage_layers[0], 8);
    assert_int_equal(r->cfg.ranks.stage_layers[1], 15);
    assert_int_equal(r->cfg.ranks.stage_layers[2], 7);
    assert_true(r->cfg.ranks.step_seconds == 30000 && r->cfg.ranks.meet_seconds == 7);
    assert_true(r->cfg.ranks.sequence_parallel);
    done(r);
    r = parse("m -pp 3");
    assert_false(r->cfg.ranks.sequence_parallel); /* there are no rows to share out */
    done(r);
    must_fail("m -pp 2", "'8,15,7' has 3 stages, but --pipeline-parallel-size is 2");
    setenv("VLLM_PP_LAYER_PARTITION", "8,x", 1);
    must_fail("m -pp 2", "'8,x' is not a list of layers");
    setenv("VLLM_PP_LAYER_PARTITION", "8,", 1);
    must_fail("m -pp 2", "'8,' is not a list of layers");
    unsetenv("VLLM_PP_LAYER_PARTITION");
    setenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS", "never", 1);
    must_fail("m", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS: 'never'");
    unsetenv("VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS");
    unsetenv("HCCL_CONNECT_TIMEOUT");
    unsetenv("VLLM_ASCEND_ENABLE_FLASHCOMM1");
}

static void the_environment_sizes_the_kv_cache(void **state)
{
    struct run *r;

    (void)state;
    setenv("VLLM_CPU_KVCACHE_SPACE", "0.5", 1);
    r = parse("m");
    assert_int_equal(r->cfg.kv_bytes, 1 << 29);
    done(r);
    r = parse("m --kv-cache-memory-bytes 4M");
    assert_int_equal(r->cfg.kv_bytes, 4 << 20);
    done(r);
    r = parse("m --num-gpu-blocks-override 7");
    assert_int_equal(r->cfg.kv_bytes, 0);
    done(r);
    setenv("VLLM_CPU_KVCACHE_SPACE", "4G", 1);
    must_fail("m", "VLLM_CPU_KVCACHE_SPACE: '4G' is not a size in GiB");
    unsetenv("VLLM_CPU_KVCACHE_SPACE");
}

static void the_address_is_this_hosts(void **state)
{
    struct run *r;

    (void)state;
    setenv("HCCL_IF_IP", "127.0.1.3", 1);
    setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    r = parse("m -tp 2 --kv-transfer-config.kv_connector MooncakeConnector "
              "--kv-transfer-config.kv_role kv_both");
    assert_string_equal(r->e.text, "");
    assert_string_equal(r->cfg.ranks.host, "127.0.1.3");
    assert_string_equal(r->cfg.ranks.master_host, "127.0.1.3");
    assert_string_equal(r->cfg.kv.host, "127.0.1.3");
    done(r);
    unsetenv("HCCL_IF_IP");
    r = parse("m -tp 2");
    assert_string_equal(r->cfg.ranks.host, "127.0.0.1"); /* of the interface */
    done(r);
    setenv("GLOO_SOCKET_IFNAME", "nosuch0,=lo", 1);
    must_parse("m");
    setenv("GLOO_SOCKET_IFNAME", "nosuch0", 1);
    must_fail("m", "GLOO_SOCKET_IFNAME: there is no interface 'nosuch0'");
    must_fail("m", "127.0.0.1 (lo)");
    setenv("GLOO_SOCKET_IFNAME", "^docker", 1);
    must_fail("m", "excludes interfaces");
    unsetenv("GLOO_SOCKET_IFNAME");
    setenv("HCCL_IF_IP", "192.0.2.77", 1); /* of a network that nobody has */
    must_fail("m", "HCCL_IF_IP: 192.0.2.77 is not an address of this host; it has");
    unsetenv("HCCL_IF_IP");
    setenv("VLLM_HOST_IP", "192.0.2.78", 1);
    must_fail("m", "VLLM_HOST_IP: 192.0.2.78 is not an address of this host");
    unsetenv("VLLM_HOST_IP");
}

/* ---- ports ---- */

static void the_plan_of_ports(void **state)
{
    struct port_use use[PORT_USES_MAX];
    struct run *r = parse("m --host 127.0.0.1 --port 8001 -pp 2 -tp 2 --master-port 4000 -dp 2 "
                          "--data-parallel-rank 0 --data-parallel-rpc-port 4001 "
                          "--kv-transfer-config {\"kv_connector\":\"MooncakeConnector\","
                          "\"kv_role\":\"kv_producer\",\"kv_port\":36000}");

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_int_equal(serve_ports_plan(use, &r->cfg), 4);
    assert_int_equal(use[0].first, 8001);
    assert_int_equal(use[1].first, 4000);
    assert_int_equal(use[2].first, 4001);
    assert_int_equal(use[3].first, 36000);
    assert_int_equal(use[3].n, 4);
    done(r);
    r = parse("m -tp 4 -dp 2 -dpn 1 --nnodes 4 --node-rank 3 --headless --kv-transfer-config "
              "{\"kv_connector\":\"MooncakeConnector\",\"kv_role\":\"kv_producer\","
              "\"kv_port\":36000}");
    assert_int_equal(serve_ports_plan(use, &r->cfg), 1); /* no API, and it waits for nobody */
    assert_int_equal(use[0].first, 36000 + 4 + 2);
    assert_int_equal(use[0].n, 2);
    done(r);
}

static int listen_somewhere(uint16_t *port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0 && listen(fd, 1) == 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static void a_taken_port_is_named(void **state)
{
    static const char *const rows[][2] = {
        { "--port %u", "API (--port): cannot listen on 127.0.0.1:%u" },
        { "--port 0 -tp 2 --master-port %u",
          "ranks (--master-port): cannot listen on 127.0.0.1:%u" },
        { "--port 0 -dp 2 -dpn 0 -dpp %u", "--data-parallel-rpc-port): cannot listen on" },
        { "--port 0 -tp 2 --kv-transfer-config {\"kv_connector\":\"MooncakeConnector\","
          "\"kv_role\":\"kv_both\",\"kv_port\":%u}",
          "KV (kv_port): cannot listen on 127.0.0.1:%u" },
    };
    char fmt[300], line[300], want[100];
    uint16_t port;
    int fd = listen_somewhere(&port);

    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct err e = { "" };
        struct run *r;

        snprintf(fmt, sizeof fmt, "m --host 127.0.0.1 %s", rows[i][0]);
        snprintf(line, sizeof line, fmt, port - (i == 3)); /* the second rank's */
        snprintf(want, sizeof want, rows[i][1], port);
        r = parse(line);
        assert_string_equal(r->e.text, "");
        assert_true(serve_ports_check(&r->cfg, false, &e) < 0);
        if (!strstr(e.text, want) || !strstr(e.text, "held by pid"))
            fail_msg("'%s' lacks '%s'", e.text, want);
        done(r);
    }
    close(fd);
}

/* The local end of a connection, of which nobody listens, is waited for a while and then named. */
static void a_port_of_an_outgoing_connection(void **state)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t len = sizeof a;
    struct err e = { "" };
    char line[100];
    uint16_t port;
    struct run *r;
    int listener = listen_somewhere(&port), fd = socket(AF_INET, SOCK_STREAM, 0);

    (void)state;
    a.sin_port = htons(port);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    snprintf(line, sizeof line, "m --host 127.0.0.1 --port %u", ntohs(a.sin_port));
    r = parse(line);
    assert_int_equal(serve_ports_check(&r->cfg, false, &e), ERR_BUSY);
    assert_non_null(strstr(e.text, "held by an outgoing connection, it seems"));
    close(fd);
    close(listener);
    done(r);
}

static void ports_that_are_wanted_twice(void **state)
{
    struct run *r = parse("m --port 4000 -tp 2 --master-port 4000");
    struct err e = { "" };

    (void)state;
    assert_string_equal(r->e.text, "");
    assert_int_equal(serve_ports_check(&r->cfg, false, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "port 4000 is wanted twice: for API (--port) and for ranks"));
    done(r);
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

/* The table in docs/serving.md: each key is in place on one side, and told of on the other. */
static void keys_are_for_one_side(void **state)
{
    static const struct {
        const char *key, *value;
        bool extra, producer;
    } rows[] = {
        { "kv_load_failure_policy", "\"fail\"", false, false },
        { "kv_peers", "[\"p:1\"]", true, false },
        { "bootstrap_port", "9000", true, true },
    };
    static const char *const roles[] = { "kv_consumer", "kv_producer", "kv_both" };

    (void)state;
    log_set_level(LOG_OFF);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (size_t k = 0; k < 3; k++) {
            char line[300];
            struct run *r;

            snprintf(line, sizeof line,
                     "m --kv-transfer-config {\"kv_connector\":\"MooncakeConnector\","
                     "\"kv_role\":\"%s\",%s\"%s\":%s%s}",
                     roles[k], rows[i].extra ? "\"kv_connector_extra_config\":{" : "", rows[i].key,
                     rows[i].value, rows[i].extra ? "}" : "");
            r = parse(line);
            assert_string_equal(r->e.text, "");
            assert_int_equal(serve_check_roles(&r->cfg), k < 2 && (k == 1) != rows[i].producer);
            done(r);
        }
    log_set_level(LOG_WARNING);
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
        cmocka_unit_test(connectors),
        cmocka_unit_test(connector_faults_are_named),
        cmocka_unit_test(sizes_of_both_sides),
        cmocka_unit_test(rank_tables),
        cmocka_unit_test(connector_settings_are_read),
        cmocka_unit_test(peers_and_the_bootstrap_port),
        cmocka_unit_test(what_is_not_here_is_refused),
        cmocka_unit_test(ranks_that_do_not_fit_are_refused),
        cmocka_unit_test(ranks_of_one_host),
        cmocka_unit_test(ranks_of_several_hosts),
        cmocka_unit_test(what_the_environment_says_of_ranks),
        cmocka_unit_test(the_environment_sizes_the_kv_cache),
        cmocka_unit_test(the_address_is_this_hosts),
        cmocka_unit_test(the_plan_of_ports),
        cmocka_unit_test(a_taken_port_is_named),
        cmocka_unit_test(a_port_of_an_outgoing_connection),
        cmocka_unit_test(ports_that_are_wanted_twice),
        cmocka_unit_test(drafts_are_counted),
        cmocka_unit_test(speculation_of_other_kinds_is_refused),
        cmocka_unit_test(what_the_model_is_told),
        cmocka_unit_test(keys_are_for_one_side),
        cmocka_unit_test(secrets_are_not_shown),
        cmocka_unit_test(a_yaml_file_comes_before_the_line),
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(no_flag_of_the_reference_is_missing),
    };

    log_set_level(LOG_WARNING);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
