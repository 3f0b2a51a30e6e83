/* kv_transfer_params: what a prefill instance tells a decode instance, through a proxy that need not
 * understand it. JSON with the reference's names; unknown members are ignored. */
#ifndef SLUICE_WIRE_KV_PARAMS_H
#define SLUICE_WIRE_KV_PARAMS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;

#define KV_PARAMS_ID_MAX     128
#define KV_PARAMS_HOST_MAX   256
#define KV_PARAMS_MAX_BLOCKS (1u << 20)
#define KV_PARAMS_MAX_OUTPUT (1u << 22)

struct kv_params {
    bool do_remote_decode;  /* to P: prefill, then hold the blocks for a decode elsewhere */
    bool do_remote_prefill; /* to D: pull the blocks named below */
    char remote_engine_id[KV_PARAMS_ID_MAX];  /* "" when null */
    char remote_request_id[KV_PARAMS_ID_MAX]; /* the transfer id: names the lease on P */
    char transfer_id[KV_PARAMS_ID_MAX];       /* asked for by the proxy; "" lets P choose one */
    /* To D, with transfer_id: "http://host:port", where GET /query tells the prefill instance's KV
     * address. The prefill may be still to come. */
    char remote_bootstrap_addr[KV_PARAMS_HOST_MAX];
    char remote_host[KV_PARAMS_HOST_MAX];
    uint16_t remote_port;
    uint32_t *remote_block_ids; /* owned; NULL when null */
    uint32_t n_blocks;
    uint32_t remote_block_size; /* tokens; 0 when absent (then equal to ours) */
    uint32_t num_prompt_blocks;
    uint32_t remote_ptp_size, remote_pp_size; /* 1 when absent */
    int32_t last_token_id;                    /* -1 when absent */
    /* To both: output tokens of this request that an earlier decode has told (output_token_ids). What is
     * generated goes on behind them. Owned; NULL when absent. */
    int32_t *output_ids;
    uint32_t n_output;
};

/* Pure. ERR_BADMSG with a sentence that names the member; ERR_LIMIT; ERR_NOMEM. obj is borrowed. */
int kv_params_decode(struct kv_params *out, const json_t *obj, struct err *e);
/* P's answer (do_remote_prefill true ...); a new reference, NULL without memory. */
json_t *kv_params_encode(const struct kv_params *p);
int kv_params_copy(struct kv_params *dst, const struct kv_params *src);
void kv_params_finish(struct kv_params *p);

#endif
