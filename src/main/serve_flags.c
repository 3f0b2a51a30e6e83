/* Every flag of `vllm serve` as a table: a line a flag, in the order of its own help. A flag works, or
 * is accepted with a line in the log that says why it has no effect (OPT_IGNORED*), or asks for
 * something that this build does not have and is then an error (OPT_REFUSED*). */
#include "main/serve_flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "serve/config.h"

#define AT(member) offsetof(struct serve_config, member)

/* Why something has no effect or is refused. */
/* clang-format off */
#define ALWAYS_ON "this is always done here"
#define BY_LOOKING "found by looking at the files"
#define CONTENT_STRING "templates see contents as strings"
#define ENV_PYTHON "only variables that this server knows are read"
#define FIXED_EP "experts and ranks stay where they are from the start on"
#define GENERATES "this server generates text"
#define HEADER_BYTES \
    "the bytes of a header block are limited instead (--h11-max-incomplete-event-size)"
#define LOG_WHOLE "--enable-log-outputs logs whole outputs"
#define LORA_IDLE "there are no LoRA adapters here"
#define MAPPED "checkpoints are mapped and packed in one pass"
#define MM_IDLE "there is no multi-modal input here"
#define NO_CLIENT_CERTS "client certificates are not checked; use --api-key"
#define NO_CP "a request's context is not split over ranks"
#define NO_DBO "a step is not split in two to hide exchanges"
#define NO_DIFFUSION "diffusion models are not supported"
#define NO_DOCS "no documentation pages are served"
#define NO_EMBEDS "prompts are text or token ids"
#define NO_ENGRAM "engram memories are not supported"
#define NO_EVENTS "KV cache events are not published"
#define NO_GPU "computes on the CPU"
#define NO_GRAMMAR "structured output is not part of this server"
#define NO_GRAPHS \
    "kernels are compiled ahead of time: nothing is captured, traced or tuned at run time"
#define NO_GRPC "only HTTP is served"
#define NO_HUB "models are folders or files of this machine; nothing is downloaded"
#define NO_KEEPALIVE "no comments are sent between events"
#define NO_LORA "LoRA adapters are not supported"
#define NO_MAMBA "models with state-space layers are not supported"
#define NO_MASK "sampling masks are not returned"
#define NO_MM "multi-modal input is not supported"
#define NO_NUMA "threads run where the process may run; use numactl"
#define NO_OFFLOAD "weights and KV are in main memory already"
#define NO_CLASSES "architectures are known by their names"
#define NO_PER_REQUEST "replies carry no timings; /metrics has them"
#define NO_PLUGINS "Python plug-ins cannot be loaded"
#define NO_POOLING "pooling models are not supported"
#define NO_POOLING_IDLE "there are no pooling models here"
#define NO_REASONING "this build has no reasoning parser"
#define NO_REFRESH "certificates are read once, at the start"
#define NO_RELOAD "weights are loaded once, at the start"
#define NO_REMOTE_CODE "no code of a checkpoint is ever run"
#define NO_ROUTES "routes of experts are not returned"
#define NO_ROUTES_IDLE "replies have no auxiliary outputs"
#define NO_SLEEP "the engine cannot be put to sleep"
#define NO_SUCH_API "that API is not served"
#define NO_TOOLS "this build has no tool-call parser"
#define NO_TOKENS_API "there is no path for tokens only; --skip-tokenizer-init serves /v1/completions with them"
#define NO_UDS "only TCP sockets are served"
#define NO_WATERMARK "outputs are not watermarked"
#define NO_WINDOW "attention always sees the whole context"
#define ONE_ENGINE "there is one engine"
#define ONE_FRONT "one thread tokenizes"
#define ONE_KV_TYPE "all layers keep their own KV, in one type"
#define OVER_UCX "ranks exchange tensors over UCX, which chooses the way"
#define OWN_FRONT "each data-parallel rank is an instance with an API of its own; `sluice proxy` is one address for all"
#define OWN_KERNELS "kernels are chosen by the instruction set (SLUICE_ISA)"
#define OWN_LOG "the log has one format; see --log-level"
#define OWN_LOCKSTEP "ranks that share experts agree before each step"
#define OWN_METRICS "/metrics has one set of figures, and nothing is traced"
#define OWN_PREFIX "cached blocks are named by SHA-256 and kept until their memory is needed"
#define OWN_RANKS "`sluice serve` starts the ranks of its host by itself"
#define OWN_RECOVERY "whoever starts the instances (`sluice launch`, a service manager) starts them again"
#define OWN_SAMPLER "the sampler has one precision"
#define OWN_SAMPLER_RANK "one rank of the last stage samples"
#define OWN_SCHEDULER "the scheduler decides this by itself"
#define OWN_TIMES "HCCL_CONNECT_TIMEOUT and VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS say how long ranks wait"
#define QUANT_FOUND "quantization is found by looking at the files"
#define RAW_LOGPROBS \
    "log-probabilities are those of the model, before penalties and temperature (raw_logprobs)"
#define TLS_DEFAULT "OpenSSL's defaults are used"

const struct opt_spec serve_flags[] = {
    /* options */
    { "--aggregate-engine-logging", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ONE_ENGINE },
    { "--api-server-count -asc", OPT_INT, AT(api_servers), "1", NULL, 0, 1024, "front processes; one is enough here" },
    { "--config", OPT_STRING, AT(config_file), NULL, NULL, 0, 0, "YAML file of options; the command line goes before it" },
    { "--disable-log-stats", OPT_FLAG, AT(no_log_stats), NULL, NULL, 0, 0, "no line of figures every ten seconds" },
    { "--enable-log-requests", OPT_BOOL, AT(log_requests), NULL, NULL, 0, 0, "a line for each request" },
    { "--fail-on-environ-validation", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ENV_PYTHON },
    { "--gdn-prefill-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--grpc", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_GRPC },
    { "--headless", OPT_FLAG, AT(headless), NULL, NULL, 0, 0, "only ranks, no API: the other hosts of --nnodes" },
    { "--kda-decode-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--kda-prefill-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--shutdown-timeout", OPT_FLOAT, AT(shutdown_timeout), "0", NULL, 0, 86400, "seconds that running requests have after SIGTERM" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this list" },
    /* Frontend */
    { "--allow-credentials", OPT_BOOL, AT(allow_credentials), NULL, NULL, 0, 0, "cross-origin requests may carry credentials" },
    { "--allowed-headers", OPT_STRING, AT(allowed_headers), "[\"*\"]", NULL, 0, 0, "JSON list" },
    { "--allowed-methods", OPT_STRING, AT(allowed_methods), "[\"*\"]", NULL, 0, 0, "JSON list" },
    { "--allowed-origins", OPT_STRING, AT(allowed_origins), "[]", NULL, 0, 0, "JSON list of origins that browsers may call from" },
    { "--anthropic-disabled-thinking-effort", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_SUCH_API },
    { "--api-key", OPT_LIST, AT(api_keys), NULL, NULL, 0, 0, "keys, one of which every request under /v1 must carry" },
    { "--chat-template", OPT_STRING, AT(chat_template), NULL, NULL, 0, 0, "file with the chat template, or the template itself" },
    { "--chat-template-content-format", OPT_IGNORED, 0, NULL, "auto string", 0, 0, CONTENT_STRING },
    { "--cohere-format", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_SUCH_API },
    { "--cohere-is-reasoning-model", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_SUCH_API },
    { "--data-parallel-supervisor-port", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RECOVERY },
    { "--default-chat-template-kwargs", OPT_JSON, AT(default_template_kwargs), NULL, NULL, 0, 0, "variables for the chat template" },
    { "--disable-access-log-for-endpoints", OPT_STRING, AT(quiet_paths), NULL, NULL, 0, 0, "paths, split by commas" },
    { "--disable-fastapi-docs", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_DOCS },
    { "--disable-uvicorn-access-log", OPT_BOOL, AT(no_access_log), NULL, NULL, 0, 0, "no line for each HTTP reply" },
    { "--dp-supervisor-probe-failure-threshold", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RECOVERY },
    { "--dp-supervisor-probe-interval-s", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RECOVERY },
    { "--dp-supervisor-probe-timeout-s", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RECOVERY },
    { "--enable-auto-tool-choice", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_TOOLS },
    { "--enable-flash-late-interaction", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_POOLING_IDLE },
    { "--enable-force-include-usage", OPT_BOOL, AT(force_usage), NULL, NULL, 0, 0, "usage in every stream" },
    { "--enable-log-deltas", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, LOG_WHOLE },
    { "--enable-log-outputs", OPT_BOOL, AT(log_outputs), NULL, NULL, 0, 0, "the beginning of each output in the log" },
    { "--enable-offline-docs", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_DOCS },
    { "--enable-per-request-metrics", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_PER_REQUEST },
    { "--enable-prompt-tokens-details", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ALWAYS_ON },
    { "--enable-request-id-headers", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ALWAYS_ON },
    { "--enable-scale-out", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, FIXED_EP },
    { "--enable-server-load-tracking", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ALWAYS_ON },
    { "--enable-ssl-refresh", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_REFRESH },
    { "--enable-tokenizer-info-endpoint", OPT_BOOL, AT(tokenizer_info), NULL, NULL, 0, 0, "GET /tokenizer_info" },
    { "--exclude-tools-when-tool-choice-none", OPT_BOOL, AT(hide_tools_for_none), NULL, NULL, 0, 0, "tools are not shown to the template then" },
    { "--fingerprint-mode", OPT_STRING, AT(fingerprint_mode), "full", "custom full hash none", 0, 0, "system_fingerprint of replies" },
    { "--fingerprint-value", OPT_STRING, AT(fingerprint_value), NULL, NULL, 0, 0, "for --fingerprint-mode custom" },
    { "--grpc-port", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_GRPC },
    { "--h11-max-header-count", OPT_IGNORED, 0, NULL, NULL, 0, 0, HEADER_BYTES },
    { "--h11-max-incomplete-event-size", OPT_INT, AT(max_header_bytes), "65536", NULL, 1024, 1 << 30, "most bytes of a header block" },
    { "--host", OPT_STRING, AT(host), NULL, NULL, 0, 0, "address to listen on; all if not given" },
    { "--log-error-stack", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_LOG },
    { "--lora-modules", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_LORA },
    { "--max-log-len", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_LOG },
    { "--middleware", OPT_REFUSED, 0, "[]", NULL, 0, 0, NO_PLUGINS },
    { "--port", OPT_INT, AT(port), "8000", NULL, 0, 65535, "0: any free one" },
    { "--response-role", OPT_STRING, AT(response_role), "assistant", NULL, 0, 0, "role of chat answers" },
    { "--return-tokens-as-token-ids", OPT_BOOL, AT(tokens_as_ids), NULL, NULL, 0, 0, "log-probabilities name tokens by id" },
    { "--root-path", OPT_STRING, AT(root_path), NULL, NULL, 0, 0, "path prefix that a proxy in front does not cut off" },
    { "--sse-keep-alive-interval", OPT_REFUSED, 0, "0", NULL, 0, 0, NO_KEEPALIVE },
    { "--ssl-ca-certs", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_CLIENT_CERTS },
    { "--ssl-cert-reqs", OPT_REFUSED, 0, "0", NULL, 0, 0, NO_CLIENT_CERTS },
    { "--ssl-certfile", OPT_STRING, AT(ssl_cert), NULL, NULL, 0, 0, "serve HTTPS with this certificate" },
    { "--ssl-ciphers", OPT_IGNORED, 0, NULL, NULL, 0, 0, TLS_DEFAULT },
    { "--ssl-keyfile", OPT_STRING, AT(ssl_key), NULL, NULL, 0, 0, "and this key" },
    { "--tokens-only", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_TOKENS_API },
    { "--tool-call-parser", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_TOOLS },
    { "--tool-parser-plugin", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_TOOLS },
    { "--tool-server", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_TOOLS },
    { "--tool-strict-level", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_TOOLS },
    { "--trust-request-chat-template", OPT_BOOL, AT(trust_request_template), NULL, NULL, 0, 0, "requests may bring a template" },
    { "--trust-request-mm-kwargs", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--uds", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_UDS },
    { "--uvicorn-log-level", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_LOG },
    /* ModelConfig */
    { "--allow-deprecated-quantization", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, QUANT_FOUND },
    { "--allowed-local-media-path", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--allowed-media-domains", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--code-revision", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_HUB },
    { "--config-format", OPT_IGNORED, 0, NULL, "auto hf", 0, 0, BY_LOOKING },
    { "--convert", OPT_IGNORED, 0, NULL, "auto none", 0, 0, GENERATES },
    { "--disable-cascade-attn", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--disable-sliding-window", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_WINDOW },
    { "--dtype", OPT_STRING, AT(dtype), "auto", "auto bfloat16 float float16 float32 half", 0, 0, "auto: the fastest path that keeps the quality; float32: exact" },
    { "--enable-cumem-allocator", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--enable-nccl-comm-suspend", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--enable-prompt-embeds", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_EMBEDS },
    { "--enable-return-routed-experts", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_ROUTES },
    { "--enable-sleep-mode", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_SLEEP },
    { "--enable-trace-replay", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--enforce-eager", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--generation-config", OPT_STRING, AT(generation_config), "auto", NULL, 0, 0, "auto, vllm or a folder" },
    { "--hf-config-path", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_HUB },
    { "--hf-overrides", OPT_JSON, AT(hf_overrides), NULL, NULL, 0, 0, "keys over those of config.json" },
    { "--hf-token", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_HUB },
    { "--io-processor-plugin", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_PLUGINS },
    { "--logits-processors", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_PLUGINS },
    { "--logprobs-mode", OPT_REFUSED, 0, "raw_logprobs", NULL, 0, 0, RAW_LOGPROBS },
    { "--max-logprobs", OPT_INT, AT(max_logprobs), "20", NULL, 0, 1024, "most log-probabilities a position" },
    { "--max-model-len", OPT_SIZE, AT(max_model_len), "0", "auto", -1, 1 << 30, "tokens of prompt and output; auto or -1: what fits" },
    { "--model", OPT_STRING, AT(model), NULL, NULL, 0, 0, "folder or GGUF file; usually the first argument" },
    { "--model-class-overrides", OPT_REFUSED, 0, "{}", NULL, 0, 0, NO_CLASSES },
    { "--model-impl", OPT_IGNORED, 0, NULL, "auto vllm", 0, 0, BY_LOOKING },
    { "--override-generation-config", OPT_JSON, AT(override_generation), NULL, NULL, 0, 0, "defaults for sampling" },
    { "--pooler-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_POOLING },
    { "--quantization -q", OPT_STRING, AT(quantization), NULL, NULL, 0, 0, "found by looking at the files; any other than that is refused" },
    { "--quantization-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, QUANT_FOUND },
    { "--renderer-num-workers", OPT_IGNORED, 0, NULL, NULL, 0, 0, ONE_FRONT },
    { "--return-sampling-mask", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_MASK },
    { "--revision", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_HUB },
    { "--runner", OPT_IGNORED, 0, NULL, "auto generate", 0, 0, GENERATES },
    { "--seed", OPT_INT, AT(seed), "0", NULL, 0, 0, "seeds requests that have none, in order of arrival" },
    { "--served-model-name", OPT_LIST, AT(served_names), NULL, NULL, 0, 0, "names that requests may use; the first is shown" },
    { "--skip-tokenizer-init", OPT_BOOL, AT(skip_tokenizer), NULL, NULL, 0, 0, "no tokenizer: token ids in, token ids out" },
    { "--sleep-mode-offload-cudagraph", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--sleep-preserve-parameter-names", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--tokenizer", OPT_STRING, AT(tokenizer), NULL, NULL, 0, 0, "folder or GGUF file of another tokenizer" },
    { "--tokenizer-mode", OPT_IGNORED, 0, NULL, "auto hf slow", 0, 0, BY_LOOKING },
    { "--tokenizer-revision", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_HUB },
    { "--trust-remote-code", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_REMOTE_CODE },
    { "--use-fp64-gumbel", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_SAMPLER },
    /* LoadConfig */
    { "--download-dir", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_HUB },
    { "--ignore-patterns", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, MAPPED },
    { "--load-format", OPT_IGNORED, 0, NULL, "auto safetensors gguf hf", 0, 0, BY_LOOKING },
    { "--model-loader-extra-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, MAPPED },
    { "--pt-load-map-location", OPT_IGNORED, 0, NULL, NULL, 0, 0, MAPPED },
    { "--safetensors-load-strategy", OPT_IGNORED, 0, NULL, NULL, 0, 0, MAPPED },
    { "--safetensors-prefetch-block-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, MAPPED },
    { "--safetensors-prefetch-num-threads", OPT_IGNORED, 0, NULL, NULL, 0, 0, MAPPED },
    { "--use-tqdm-on-load", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MAPPED },
    /* AttentionConfig */
    { "--attention-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    /* MambaConfig */
    { "--enable-mamba-cache-stochastic-rounding", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--mamba-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--mamba-cache-philox-rounds", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--mamba-ssu-algorithm", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    /* StructuredOutputsConfig */
    { "--reasoning-parser", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_REASONING },
    { "--reasoning-parser-plugin", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_REASONING },
    /* ParallelConfig */
    { "--all2all-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OVER_UCX },
    { "--cp-kv-cache-interleave-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_CP },
    { "--cpu-distributed-timeout-seconds", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_TIMES },
    { "--data-parallel-address -dpa", OPT_STRING, AT(dp_host), NULL, NULL, 0, 0, "where rank 0 of the group waits for the others" },
    { "--data-parallel-backend -dpb", OPT_IGNORED, 0, NULL, "mp", 0, 0, OWN_RANKS },
    { "--data-parallel-external-lb -dpe", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_FRONT },
    { "--data-parallel-hybrid-lb -dph", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, OWN_FRONT },
    { "--data-parallel-multi-port-external-lb -dpm", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, OWN_FRONT },
    { "--data-parallel-rank -dpn", OPT_INT, AT(dp_rank), "0", NULL, 0, 4095, "rank of this instance in its group" },
    { "--data-parallel-rpc-port -dpp", OPT_INT, AT(dp_port), "29550", NULL, 1, 65535, "and at which port" },
    { "--data-parallel-size -dp", OPT_INT, AT(dp), "1", NULL, 1, 4096, "instances that form a group" },
    { "--data-parallel-size-local -dpl", OPT_INT, AT(dp_local), "1", NULL, 0, 4096, "ranks of the group in this call: 1; `sluice launch` starts several" },
    { "--data-parallel-start-rank -dpr", OPT_INT, AT(dp_start), "0", NULL, 0, 4095, "the same as --data-parallel-rank" },
    { "--dbo-decode-token-threshold", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_DBO },
    { "--dbo-prefill-token-threshold", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_DBO },
    { "--dcp-comm-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_CP },
    { "--dcp-kv-cache-interleave-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_CP },
    { "--dcp-q-replicate", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_CP },
    { "--decode-context-parallel-size -dcp", OPT_INT, AT(dcp), "1", NULL, 1, 4096, "only 1: a request's context is not split over ranks" },
    { "--device-ids", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--disable-custom-all-reduce", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--disable-nccl-for-dp-synchronization", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--distributed-executor-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RANKS },
    { "--distributed-timeout-seconds", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_TIMES },
    { "--dp-sync-interval", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_LOCKSTEP },
    { "--elastic-ep-max-dp-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, FIXED_EP },
    { "--enable-batch-sharded-sampling", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_SAMPLER_RANK },
    { "--enable-dbo", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_DBO },
    { "--enable-elastic-ep", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, FIXED_EP },
    { "--enable-ep-weight-filter", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ALWAYS_ON },
    { "--enable-eplb", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, FIXED_EP },
    { "--enable-expert-parallel -ep", OPT_BOOL, AT(expert_parallel), NULL, NULL, 0, 0, "whole experts on each rank, of all instances of the group; tokens travel" },
    { "--enable-fault-tolerance", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_RECOVERY },
    { "--enable-hc-sp", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_CP },
    { "--enable-shm-tensor-arena", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--eplb-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, FIXED_EP },
    { "--expert-placement-strategy", OPT_IGNORED, 0, NULL, NULL, 0, 0, FIXED_EP },
    { "--fault-tolerance-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RECOVERY },
    { "--master-addr", OPT_STRING, AT(master_host), "127.0.0.1", NULL, 0, 0, "where rank 0 waits for ranks on other hosts" },
    { "--master-port", OPT_INT, AT(master_port), "29501", NULL, 1, 65535, "and at which port; on one host any free one unless given" },
    { "--max-parallel-loading-workers", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_RANKS },
    { "--nnodes -n", OPT_INT, AT(nnodes), "1", NULL, 1, 4096, "hosts of this instance" },
    { "--node-rank -r", OPT_INT, AT(node_rank), "0", NULL, 0, 4095, "this host among them" },
    { "--numa-bind", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_NUMA },
    { "--numa-bind-cpus", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_NUMA },
    { "--numa-bind-nodes", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_NUMA },
    { "--pipeline-parallel-size -pp", OPT_INT, AT(pp), "1", NULL, 1, ENGINE_MAX_STAGES, "stages: each has some of the layers" },
    { "--prefill-context-parallel-size -pcp", OPT_INT, AT(pcp), "1", NULL, 1, 4096, "only 1: a request's context is not split over ranks" },
    { "--ray-workers-use-nsight", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GPU },
    { "--tensor-parallel-size -tp", OPT_INT, AT(tp), "1", NULL, 1, 1024, "ranks a stage: each has some of the heads and columns" },
    { "--ubatch-size", OPT_REFUSED, 0, "0", NULL, 0, 0, NO_DBO },
    { "--worker-cls", OPT_REFUSED, 0, "auto", NULL, 0, 0, NO_PLUGINS },
    { "--worker-extension-cls", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_PLUGINS },
    /* CacheConfig */
    { "--block-size", OPT_INT, AT(block_size), "16", NULL, 16, 1024, "tokens of a KV block, a multiple of 16" },
    { "--enable-mamba-shared-prefix-checkpoint", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--enable-prefix-caching", OPT_BOOL, AT(prefix_caching), "true", NULL, 0, 0, "prompts with a common beginning share its KV" },
    { "--gpu-memory-utilization --device-memory-utilization", OPT_FLOAT, AT(memory_fraction), "0.92", NULL, 0.01, 1, "part of the free memory for the KV cache" },
    { "--kv-cache-dtype", OPT_STRING, AT(kv_dtype), "auto", "auto float16 float32", 0, 0, "auto: by --dtype" },
    { "--kv-cache-dtype-skip-layers", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, ONE_KV_TYPE },
    { "--kv-cache-memory-bytes", OPT_SIZE, AT(kv_bytes), "0", NULL, 0, 1e15, "exact size of the KV cache" },
    { "--kv-offloading-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--kv-offloading-size", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--kv-sharing-fast-prefill", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, ONE_KV_TYPE },
    { "--mamba-block-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--mamba-cache-dtype", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--mamba-cache-mode", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--mamba-ssm-cache-dtype", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--num-gpu-blocks-override", OPT_INT, AT(n_blocks), "0", NULL, 0, 1 << 30, "exact number of KV blocks" },
    { "--prefix-cache-retention-interval", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_PREFIX },
    { "--prefix-caching-hash-algo", OPT_IGNORED, 0, NULL, "sha256 sha256_cbor", 0, 0, OWN_PREFIX },
    { "--prefix-match-unit", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_PREFIX },
    { "--replayssm-buffer-len", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--swa-bounded-replay", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_MAMBA },
    { "--use-replayssm", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_MAMBA },
    /* OffloadConfig */
    { "--cpu-offload-gb", OPT_REFUSED, 0, "0", NULL, 0, 0, NO_OFFLOAD },
    { "--cpu-offload-params", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--offload-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--offload-group-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--offload-num-in-group", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--offload-params", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    { "--offload-prefetch-step", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_OFFLOAD },
    /* MultiModalConfig */
    { "--enable-mm-embeds", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_MM },
    { "--interleave-mm-strings", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--language-model-only", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--limit-mm-per-prompt", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--media-io-kwargs", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-device-do-normalize", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-encoder-attn-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-encoder-attn-dtype", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-encoder-fp8-scale-path", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-encoder-fp8-scale-save-margin", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-encoder-fp8-scale-save-path", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-encoder-only", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_MM },
    { "--mm-encoder-tp-mode", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-hasher-algorithm", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-ipc-gpu-memory-gb", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-processor-cache-gb", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-processor-cache-type", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-processor-device", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-processor-kwargs", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-shm-cache-max-object-size-mb", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--mm-tensor-ipc", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--skip-mm-profiling", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--video-pruning-method", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--video-pruning-rate", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    /* LoRAConfig */
    { "--default-mm-loras", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_LORA },
    { "--enable-lora", OPT_REFUSED_FLAG, 0, NULL, NULL, 0, 0, NO_LORA },
    { "--enable-mixed-moe-lora-format", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--enable-moe-shared-loras", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--enable-tower-connector-lora", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--fully-sharded-loras", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--lora-dtype", OPT_IGNORED, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--lora-target-modules", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--max-cpu-loras", OPT_IGNORED, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--max-lora-cls-labels", OPT_IGNORED, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--max-lora-rank", OPT_IGNORED, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--max-loras", OPT_IGNORED, 0, NULL, NULL, 0, 0, LORA_IDLE },
    { "--specialize-active-lora", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, LORA_IDLE },
    /* LoggingConfig */
    { "--log-config-file", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_LOG },
    { "--log-level", OPT_STRING, AT(log_level), NULL, "CRITICAL ERROR WARNING INFO DEBUG NOTSET critical error warning info debug", 0, 0, "least level that is logged" },
    { "--logging-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_LOG },
    /* ObservabilityConfig */
    { "--collect-detailed-traces", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--cudagraph-metrics", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--custom-histogram-buckets", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--enable-layerwise-nvtx-tracing", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--enable-logging-iteration-details", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--enable-mfu-metrics", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--jit-monitor-mode", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--jit-monitor-verbose", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--kv-cache-metrics", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--kv-cache-metrics-sample", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--otlp-traces-endpoint", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--per-request-spec-decode-metrics", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_METRICS },
    { "--show-hidden-metrics-for-version", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_METRICS },
    /* SchedulerConfig */
    { "--async-scheduling", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--disable-chunked-mm-input", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--disable-hybrid-kv-cache-manager", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--enable-chunked-prefill", OPT_BOOL, AT(chunked_prefill), "true", NULL, 0, 0, "long prompts are computed in pieces" },
    { "--long-prefill-token-threshold", OPT_INT, AT(long_prefill), "0", NULL, 0, 1 << 30, "most tokens of one prompt in a step; 0: off" },
    { "--long-prefill-token-threshold-adaptive", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--max-num-active-seqs", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--max-num-batched-tokens", OPT_SIZE, AT(max_batched_tokens), "2048", NULL, 1, 1 << 24, "tokens of one step" },
    { "--max-num-queued-reqs", OPT_INT, AT(max_queued), "0", NULL, 0, 1 << 30, "most waiting requests, more get 503; 0: no limit" },
    { "--max-num-queued-tokens", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--max-num-scheduled-tokens", OPT_SIZE, AT(max_scheduled_tokens), "0", NULL, 0, 1 << 24, "a lower limit for --max-num-batched-tokens" },
    { "--max-num-seqs", OPT_SIZE, AT(max_seqs), "128", NULL, 1, 65536, "requests that run at a time" },
    { "--prefill-schedule-interval", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--scheduler-cls", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_PLUGINS },
    { "--scheduler-reserve-full-isl", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    { "--scheduling-policy", OPT_STRING, AT(policy), "fcfs", "fcfs priority", 0, 0, "order of the queue" },
    { "--stream-interval", OPT_INT, AT(stream_interval), "1", NULL, 1, 1 << 20, "tokens a stream event" },
    { "--watermark", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_SCHEDULER },
    /* CompilationConfig */
    { "--cudagraph-capture-sizes", OPT_IGNORED_LIST, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--max-cudagraph-capture-size", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    /* KernelConfig */
    { "--enable-flashinfer-autotune", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--ir-op-priority", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--linear-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--moe-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--sparse-indexer-topk-backend", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    /* VllmConfig */
    { "--additional-config", OPT_JSON, AT(additional), NULL, NULL, 0, 0, "keys are reported one by one" },
    { "--attention-config -ac", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--aux-output-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_ROUTES_IDLE },
    { "--compilation-config -cc", OPT_JSON, AT(compilation), NULL, NULL, 0, 0, "keys are reported one by one" },
    { "--diffusion-config -dc", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_DIFFUSION },
    { "--ec-manager-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, MM_IDLE },
    { "--ec-transfer-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_MM },
    { "--engram-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_ENGRAM },
    { "--kernel-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, OWN_KERNELS },
    { "--kv-events-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_EVENTS },
    { "--kv-transfer-config", OPT_JSON, AT(kv_transfer), NULL, NULL, 0, 0, "KV connector: MooncakeConnectorV1, kv_role, kv_port, ..." },
    { "--optimization-level", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--performance-mode", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--profiler-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_GRAPHS },
    { "--reasoning-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_REASONING },
    { "--spec-method", OPT_STRING, AT(spec_method), NULL, NULL, 0, 0, "method of --speculative-config" },
    { "--spec-model", OPT_STRING, AT(spec_model), NULL, NULL, 0, 0, "model of --speculative-config" },
    { "--spec-tokens", OPT_INT, AT(spec_tokens), "0", NULL, 0, 1024, "num_speculative_tokens of --speculative-config" },
    { "--speculative-config -sc", OPT_JSON, AT(speculative), NULL, NULL, 0, 0, "drafts by the model's own MTP layer: method mtp (or deepseek_mtp), num_speculative_tokens" },
    { "--structured-outputs-config", OPT_IGNORED, 0, NULL, NULL, 0, 0, NO_GRAMMAR },
    { "--watermark-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_WATERMARK },
    { "--weight-transfer-config", OPT_REFUSED, 0, NULL, NULL, 0, 0, NO_RELOAD },
    /* Not vLLM's */
    { "--check", OPT_FLAG, AT(check_only), NULL, NULL, 0, 0, "print which ports will be used, and which of them are taken, and end" },
    { "--keep-alive-timeout", OPT_FLOAT, AT(keep_alive), "5", NULL, 0.1, 86400, "seconds that an idle connection stays open (also VLLM_HTTP_TIMEOUT_KEEP_ALIVE)" },
    { "--max-body-size", OPT_SIZE, AT(max_body_bytes), "64M", NULL, 1024, 1 << 30, "most bytes of a request body, more get 413" },
    { "--stall-timeout", OPT_FLOAT, AT(stall_timeout), "60", NULL, 0.1, 86400, "seconds without a finished step, while work is pending, until /health and /ready say 503" },
    { "--threads", OPT_INT, AT(threads), "0", NULL, 0, 1024, "compute threads; 0: OMP_NUM_THREADS, else all CPUs" },
    { "--trace", OPT_STRING, AT(trace), NULL, NULL, 0, 0, "file for a timeline of steps and stages, in the JSON that chrome://tracing and Perfetto draw" },
    { "--profile-seconds", OPT_FLOAT, AT(profile_seconds), "10", NULL, 0.1, 3600, "seconds at the start to measure the stages in, for profiling_chunk_config" },
    { "--step-delay", OPT_FLOAT, AT(step_delay), "0", NULL, 0, 60, "seconds added to each engine step, for tests" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};
/* clang-format on */

/* --config FILE (or --config=FILE) among the arguments, NULL if it is not there. */
static const char *find_config(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0)
            return argv[i] + 9;
        if (strcmp(argv[i], "--config") == 0 && i + 1 < argc)
            return argv[i + 1];
    }
    return NULL;
}

/* The file's options stand first, so that those of the command line win. */
static int join_arguments(struct serve_args *a, int argc, char **argv, struct err *e)
{
    const char *file = find_config(argc, argv);
    int st;

    if (file && (st = serve_yaml_args(file, &a->owned, &a->n_owned, e)) < 0)
        return st;
    a->argv = calloc((size_t)(a->n_owned + argc), sizeof *a->argv);
    if (!a->argv)
        return ERR_NOMEM;
    for (int i = 0; i < a->n_owned; i++)
        a->argv[a->argc++] = a->owned[i];
    for (int i = 1; i < argc; i++)
        a->argv[a->argc++] = argv[i];
    return 0;
}

static int take_model(struct serve_config *cfg, const struct serve_args *a, struct err *e)
{
    const struct opt_list *p = &a->positional;

    if (p->n > 1)
        return err_set(e, ERR_INVAL, "unexpected argument '%s' after the model '%s'", p->v[1],
                       p->v[0]);
    if (p->n == 1)
        cfg->model = p->v[0];
    if (!cfg->model && !cfg->help)
        return err_set(e, ERR_INVAL,
                       "no model: sluice serve MODEL, where MODEL is a folder with "
                       "config.json and safetensors, or a GGUF file");
    return 0;
}

int serve_flags_parse(struct serve_config *cfg, struct serve_args *args, int argc, char **argv,
                      struct err *e)
{
    int st;

    *cfg = (struct serve_config){ 0 };
    *args = (struct serve_args){ 0 };
    if ((st = join_arguments(args, argc, argv, e)) == 0)
        st = opts_parse(serve_flags, cfg, args->argc, args->argv, &args->positional, &args->seen,
                        e);
    if (st == 0 && ((st = take_model(cfg, args, e)) < 0 ||
                    (!cfg->help && (st = serve_check(cfg, args, e)) < 0)))
        opts_finish(serve_flags, cfg, &args->seen);
    if (st < 0)
        serve_flags_finish(NULL, args);
    return st;
}

void serve_flags_finish(struct serve_config *cfg, struct serve_args *args)
{
    if (cfg) {
        json_decref(cfg->effective);
        cfg->effective = NULL;
        opts_finish(serve_flags, cfg, &args->seen);
    }
    for (int i = 0; i < args->n_owned; i++)
        free(args->owned[i]);
    free(args->owned);
    free(args->argv);
    free(args->positional.v);
    *args = (struct serve_args){ 0 };
}
