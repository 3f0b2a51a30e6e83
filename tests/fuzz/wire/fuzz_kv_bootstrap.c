/* The answer to /query: what is accepted comes back the same after encoding. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "wire/kv_bootstrap.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kv_bootstrap b, back;
    json_t *o, *again;

    if (json_read(&o, (const char *)data, size, NULL, NULL) < 0)
        return 0;
    if (kv_bootstrap_decode(&b, o, "", NULL) == 0) {
        again = kv_bootstrap_encode(&b);
        if (!again || kv_bootstrap_decode(&back, again, b.engine_id, NULL) < 0 ||
            strcmp(back.host, b.host) != 0 || back.port != b.port ||
            back.block_size != b.block_size)
            abort();
        json_decref(again);
    }
    json_decref(o);
    return 0;
}
