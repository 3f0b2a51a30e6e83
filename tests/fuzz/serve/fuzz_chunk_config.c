/* profiling_chunk_config and short_request_first_config: any JSON is refused with a sentence, or gives
 * settings that a scheduler can be made with. The first byte chooses the other options. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/json.h"
#include "base/status.h"
#include "serve/chunk_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_notes(const struct chunk_config *c)
{
    if (c->n_notes > CHUNK_CONFIG_NOTES)
        abort();
    for (uint32_t i = 0; i < c->n_notes; i++)
        if (!c->note[i].text[0])
            abort();
}

static void check_scheduler(const struct chunk_config *c, const struct chunk_config_place *at)
{
    const struct sched_config k = {
        .block_tokens = 16,
        .n_blocks = 64,
        .max_model_len = 512,
        .max_batched_tokens = at->max_batched_tokens,
        .max_seqs = 4,
        .max_inflight = at->pp + 1,
        .chunked_prefill = at->chunked_prefill,
        .priority = at->priority,
        .chunks = c->chunks,
        .short_first = c->short_first,
    };
    struct err e = { "" };
    struct sched *s;

    if (sched_create(&s, &k, &e) < 0)
        abort();
    sched_destroy(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t flags = size ? data[0] : 0;
    const struct chunk_config_place at = { .pp = 1 + (flags & 3),
                                           .max_batched_tokens = 512,
                                           .chunked_prefill = !(flags & 4),
                                           .priority = flags & 8,
                                           .balance = flags & 16 };
    struct chunk_config c;
    struct err e = { "" };
    json_t *root;

    if (size < 2 || json_read(&root, (const char *)data + 1, size - 1, NULL, &e) < 0)
        return 0;
    if (chunk_config_read(&c, root, &at, &e) == 0) {
        check_notes(&c);
        check_scheduler(&c, &at);
    } else if (!e.text[0]) {
        abort();
    }
    json_decref(root);
    return 0;
}
