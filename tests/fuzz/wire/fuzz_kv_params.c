/* kv_transfer_params: what is accepted comes back the same after encoding. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "wire/kv_params.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void round_trip(const struct kv_params *p)
{
    json_t *o = kv_params_encode(p);
    struct kv_params back;

    if (!o || kv_params_decode(&back, o, NULL) < 0)
        abort();
    if (back.n_blocks != p->n_blocks || back.remote_port != p->remote_port ||
        strcmp(back.remote_request_id, p->remote_request_id) != 0 ||
        back.last_token_id != p->last_token_id)
        abort();
    kv_params_finish(&back);
    json_decref(o);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct kv_params p;
    json_t *o;

    if (json_read(&o, (const char *)data, size, NULL, NULL) < 0)
        return 0;
    if (kv_params_decode(&p, o, NULL) == 0) {
        round_trip(&p);
        kv_params_finish(&p);
    }
    json_decref(o);
    return 0;
}
