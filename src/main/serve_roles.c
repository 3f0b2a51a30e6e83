/* Keys of --kv-transfer-config that mean something to one side of a transfer only. On the other side they
 * change no result, so they are ignored there; but whoever gave them should know. Times are for both: each
 * side bounds its own waits by them. */
#include "base/log.h"
#include "main/serve_flags.h"
#include "serve/config.h"

enum side { PRODUCER, CONSUMER };

static const char *const names[] = { [PRODUCER] = "producer", [CONSUMER] = "consumer" };

static const struct rule {
    const char *key;
    bool extra; /* in kv_connector_extra_config */
    enum side side;
} rules[] = {
    { "kv_load_failure_policy", false, CONSUMER },
    { "kv_peers", true, CONSUMER },
    { "bootstrap_port", true, PRODUCER },
};

uint32_t serve_check_roles(const struct serve_config *c)
{
    const json_t *extra = json_object_get(c->kv_transfer, "kv_connector_extra_config");
    const bool is[] = { [PRODUCER] = c->kv.produce, [CONSUMER] = c->kv.consume };
    uint32_t n = 0;

    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        const struct rule *r = &rules[i];
        const json_t *v = json_object_get(r->extra ? extra : c->kv_transfer, r->key);

        if (!v || json_is_null(v) || is[r->side])
            continue;
        log_warning("--kv-transfer-config: %s has no effect here: it is for a KV %s, and this is a "
                    "%s only",
                    r->key, names[r->side], names[!r->side]);
        n++;
    }
    return n;
}
