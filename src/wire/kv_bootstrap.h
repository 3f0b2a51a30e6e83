/* How a decode instance finds a prefill instance that it knows by an HTTP address only: GET /query there
 * answers, with the reference's names, for each data-parallel rank its engine and, by tensor and
 * pipeline rank, where its KV is served:
 *
 *     {"0": {"engine_id": "...", "worker_addr": {"0": {"0": "tcp://host:port"}}, "block_size": 16}}
 *
 * block_size is ours; a peer without it has our block size, or is refused by the handshake. Pure. */
#ifndef SLUICE_WIRE_KV_BOOTSTRAP_H
#define SLUICE_WIRE_KV_BOOTSTRAP_H

#include <jansson.h>
#include <stdint.h>

#include "wire/kv_params.h"

struct kv_bootstrap {
    char engine_id[KV_PARAMS_ID_MAX];
    char host[KV_PARAMS_HOST_MAX];
    uint16_t port;
    uint32_t block_size; /* tokens; 0: not told */
};

/* "host:port", "[v6]:port", also as "scheme://host:port/": scheme NULL allows none and any other is
 * refused. host has KV_PARAMS_HOST_MAX bytes. ERR_INVAL with a sentence. */
int kv_address_parse(char *host, uint16_t *port, const char *text, const char *scheme,
                     struct err *e);

/* A new reference, NULL without memory. */
json_t *kv_bootstrap_encode(const struct kv_bootstrap *b);
/* The rank of this engine; with one rank only, that one: an engine that was restarted has another id. "":
 * any. ERR_BADMSG, ERR_NOTFOUND with a sentence. */
int kv_bootstrap_decode(struct kv_bootstrap *out, const json_t *reply, const char *engine_id,
                        struct err *e);

#endif
