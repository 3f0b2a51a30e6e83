/* Any peer's HELLO and identity against ours, and any PULL against a lease: no crash, and no range that
 * reaches outside of the pool. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "transfer/handshake.h"
#include "transfer/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const struct identity own = {
    .engine_id = "engine",
    .fingerprint = "model",
    .kv_dtype = "float16",
    .produce = true,
    .layout = { .planes = 2,
                .n_layers = 4,
                .first_layer = 2,
                .kv_heads = 4,
                .head_dim = 64,
                .elem_bytes = 2,
                .block_tokens = 32,
                .n_blocks = 8 },
};

static void check_pull(const struct message_pull *p)
{
    static const uint32_t blocks[4] = { 7, 0, 3, 5 };
    uint64_t pool = kv_layout_pool_bytes(&own.layout);
    struct plan plan;

    if (plan_init(&plan, &own.layout, &p->range, blocks, 4) < 0)
        return;
    for (uint64_t piece = 0; piece < plan.n_pieces; piece++)
        for (uint32_t run = 0; run < plan.runs; run++) {
            uint64_t at = plan_offset(&plan, piece, run);

            if (at > pool || plan.run_bytes > pool - at)
                abort();
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct handshake h = { .secret = "secret" };
    struct message m;
    struct err e;

    if (message_decode(&m, data, size) < 0)
        return 0;
    if (m.kind == MESSAGE_HELLO || m.kind == MESSAGE_WELCOME)
        handshake_hello(&h, HANDSHAKE_PRODUCER, &m.u.hello, &e);
    if (m.kind == MESSAGE_PROVE || m.kind == MESSAGE_READY) {
        /* The nonces of this handshake are not random here; still no input knows the secret. */
        if (handshake_verify(&h, HANDSHAKE_CONSUMER, &m.u.ready, &e) != ERR_AUTH)
            abort();
        handshake_compare(&own, &m.u.ready.identity, &e);
    }
    if (m.kind == MESSAGE_PULL)
        check_pull(&m.u.pull);
    return 0;
}
