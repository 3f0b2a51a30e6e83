/* What one instance is told to be: the values of `sluice serve`'s options, checked. Strings are
 * borrowed from the command line and live as long as the process. */
#ifndef SLUICE_SERVE_CONFIG_H
#define SLUICE_SERVE_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/opts.h"
#include "engine/engine.h"

/* --kv-transfer-config, read. */
struct serve_kv_config {
    bool produce, consume; /* both false: no transfer */
    uint16_t port;
    const char *host;      /* NULL: VLLM_HOST_IP, else the API's host, else loopback */
    const char *engine_id; /* NULL: one is made */
    const char *secret;    /* NULL: none */
    double lease_seconds, pull_timeout, connect_timeout;
    bool checksums;
    bool layerwise;                             /* prompts go out while they are computed */
    bool fail_on_error;                         /* kv_load_failure_policy "fail"; else recompute */
    struct transfer_shape producers, consumers; /* what is said of either side */
    uint16_t bootstrap_port; /* of a server that answers GET /query only; 0: none */
    json_t *peers;           /* "host:port" of producers to look at before ready; borrowed; NULL */
};

struct serve_config {
    /* The API */
    const char *host;
    int64_t port;
    const char *root_path;
    struct opt_list api_keys, served_names;
    const char *ssl_cert, *ssl_key;
    const char *allowed_origins, *allowed_methods, *allowed_headers; /* JSON lists */
    bool allow_credentials;
    int64_t max_header_bytes, max_body_bytes;
    double keep_alive;
    double shutdown_timeout, stall_timeout;
    bool no_access_log, log_requests, log_outputs, no_log_stats;
    const char *quiet_paths; /* no access log for these, split by commas */
    const char *log_level;
    bool tokenizer_info;

    /* Requests and replies */
    const char *chat_template; /* a file, or the template itself */
    json_t *default_template_kwargs;
    bool trust_request_template, hide_tools_for_none;
    const char *response_role;
    bool tokens_as_ids, force_usage;
    int64_t stream_interval, max_logprobs;
    const char *fingerprint_mode, *fingerprint_value;
    const char *generation_config; /* "auto", "vllm" or a folder */
    json_t *override_generation;
    int64_t seed;
    bool has_seed;

    /* The model */
    const char *model, *tokenizer, *dtype, *quantization;
    bool skip_tokenizer;   /* token ids in, token ids out */
    json_t *hf_overrides;  /* over config.json's keys; NULL: none */
    int64_t max_model_len; /* 0: the model's; -1: what fits */
    bool float32;          /* read from dtype */

    /* Speculative decoding: --speculative-config, or the three options that stand for its keys */
    json_t *speculative;
    const char *spec_method, *spec_model;
    int64_t spec_tokens;
    uint32_t n_draft_tokens; /* read from these; 0: off */

    /* The engine */
    int64_t block_size, n_blocks, kv_bytes;
    const char *kv_dtype;
    double memory_fraction;
    bool prefix_caching, chunked_prefill;
    int64_t max_seqs, max_batched_tokens, max_scheduled_tokens, long_prefill, max_queued;
    const char *policy;
    int64_t threads; /* 0: OMP_NUM_THREADS, else all CPUs */
    double step_delay, profile_seconds;
    const char *trace; /* a file for the timeline of steps; NULL: none */

    /* Ranks, as the options say */
    int64_t tp, pp, dp, dp_rank, dp_local, dp_start, dcp, pcp, nnodes, node_rank, api_servers;
    const char *master_host, *dp_host;
    int64_t master_port, dp_port;
    bool expert_parallel, headless;
    bool check_only; /* print the plan of ports, and whether they are free, and end */

    /* Ranks, read from these and the environment */
    char address[64]; /* this host's for all that is not the API; "": nobody chose one */
    struct engine_ranks
        ranks; /* of this process; texts point into this struct or the command line */
    uint32_t first_rank, n_local_ranks; /* those of this host */
    char own_host[64];                  /* ranks.host */
    char secret[72];                    /* ranks.secret where it was made here */
    struct sched_chunks chunks;         /* profiling_chunk_config */
    struct sched_short_first short_first;
    bool recompute_when_full; /* a decode instance gives requests back when it is out of blocks */

    json_t *kv_transfer, *additional, *compilation;
    struct serve_kv_config kv;
    json_t *effective; /* all of this as printed at the start; owned by whoever made it */
    bool help;
    const char *config_file;
};

#endif
