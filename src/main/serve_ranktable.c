/* The LLMDataDist connector: where its KV ports are, and this instance's place in the table of devices
 * that all instances of a deployment read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "ops/ranktable.h"
#include "serve/config.h"

#define PATH_VAR     "DISAGGREGATED_PREFILL_RANK_TABLE_PATH"
#define VISIBLE_VAR  "ASCEND_RT_VISIBLE_DEVICES"
#define PORT_VAR     "VLLM_LLMDD_RPC_PORT"
#define PORT_DEFAULT 5557

int serve_ranktable_port(uint32_t *out, double kv_port, struct err *e)
{
    const char *text = getenv(PORT_VAR);
    char *end;
    long port = PORT_DEFAULT;

    if (text && text[0]) {
        port = strtol(text, &end, 10);
        if (*end || port < 1 || port > 65535)
            return err_set(e, ERR_INVAL, PORT_VAR ": '%s' is not a port", text);
    }
    if (kv_port > 0)
        log_info(
            "--kv-transfer-config: kv_port %.0f has no effect with LLMDataDistCMgrConnector: its "
            "KV ports begin at " PORT_VAR ", %ld",
            kv_port, port);
    *out = (uint32_t)port;
    return 0;
}

/* "0,2,3"; none without the variable. *out is free()d. */
static int read_visible(uint32_t **out, uint32_t *n_out, struct err *e)
{
    const char *text = getenv(VISIBLE_VAR), *p = text;
    uint32_t n = 0;

    *out = NULL;
    *n_out = 0;
    if (!text || !text[0])
        return 0;
    *out = malloc((strlen(text) / 2 + 1) * sizeof **out);
    if (!*out)
        return err_set(e, ERR_NOMEM, "no memory for " VISIBLE_VAR);
    while (*p) {
        char *end;
        long id = strtol(p, &end, 10);

        if (end == p || id < 0 || id > 1000000 || (*end && *end != ',') ||
            (*end == ',' && !end[1])) {
            free(*out);
            *out = NULL;
            return err_set(e, ERR_INVAL, VISIBLE_VAR ": '%s' is not a list of devices such as 0,1",
                           text);
        }
        (*out)[n++] = (uint32_t)id;
        p = *end ? end + 1 : end;
    }
    *n_out = n;
    return 0;
}

/* The hosts of a list, each once, for a sentence. */
static void list_hosts(char *out, size_t cap, const struct ranktable_device *d, uint32_t n)
{
    size_t len = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n && len + RANKTABLE_HOST_MAX + 3 < cap; i++) {
        bool seen = false;

        for (uint32_t k = 0; k < i && !seen; k++)
            seen = strcmp(d[k].host, d[i].host) == 0;
        if (!seen)
            len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? ", " : "", d[i].host);
    }
}

/* As many devices of this host as it has ranks of this instance. */
static int check_place(const struct serve_config *cfg, const struct ranktable *t, const char *path,
                       struct err *e)
{
    bool decode = cfg->kv.consume;
    const char *list = decode ? "decode_device_list" : "prefill_device_list";
    const struct ranktable_device *first = NULL;
    char hosts[400];
    uint32_t *visible, n_visible, n;
    int st = read_visible(&visible, &n_visible, e);

    if (st < 0)
        return st;
    n = ranktable_find(t, decode, cfg->kv.host, visible, n_visible, &first, 1);
    free(visible);
    list_hosts(hosts, sizeof hosts, decode ? t->decode : t->prefill,
               decode ? t->n_decode : t->n_prefill);
    if (n == 0)
        return err_set(e, ERR_INVAL,
                       "rank table %s: %s has no device with server_id %s%s, this host's address; "
                       "it has devices of %s",
                       path, list, cfg->kv.host, n_visible ? " among " VISIBLE_VAR : "",
                       hosts[0] ? hosts : "no host");
    if (n != cfg->n_local_ranks)
        return err_set(
            e, ERR_INVAL,
            "rank table %s: %s has %u devices with server_id %s%s, but this instance has "
            "%u ranks here",
            path, list, n, cfg->kv.host, n_visible ? " among " VISIBLE_VAR : "",
            cfg->n_local_ranks);
    list_hosts(hosts, sizeof hosts, decode ? t->prefill : t->decode,
               decode ? t->n_prefill : t->n_decode);
    log_info(
        "rank table: devices %u to %u of %s are this instance's ranks; the other side's are on %s",
        first->device, first->device + n - 1, cfg->kv.host, hosts[0] ? hosts : "no host");
    return 0;
}

int serve_check_ranktable(const struct serve_config *cfg, struct err *e)
{
    const char *path = getenv(PATH_VAR);
    struct ranktable t = { 0 };
    int st;

    if (cfg->kv.produce && cfg->kv.consume)
        return err_set(e, ERR_INVAL,
                       "LLMDataDistCMgrConnector: kv_role is kv_producer or kv_consumer, as a rank "
                       "table has devices of one role each");
    if (!path || !path[0])
        return err_set(e, ERR_INVAL,
                       "LLMDataDistCMgrConnector needs a rank table: set " PATH_VAR
                       " to the file that `sluice ranktable` has written");
    if ((st = ranktable_load(&t, path, e)) < 0)
        return err_prefix(e, st, PATH_VAR);
    st = check_place(cfg, &t, path, e);
    ranktable_finish(&t);
    return st;
}
