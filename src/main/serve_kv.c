/* --kv-transfer-config: vLLM's names into serve_kv_config. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "serve/config.h"
#include "wire/kv_bootstrap.h"

#define LEASE_SECONDS   480.0 /* the reference's VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT */
#define PULL_TIMEOUT    30.0
#define CONNECT_TIMEOUT 5.0
#define MAX_PEERS       64

#define COUNT(a) (sizeof(a) / sizeof(a)[0])

static const char *const keys[] = {
    "kv_connector",
    "kv_role",
    "kv_port",
    "kv_ip",
    "engine_id",
    "kv_rank",
    "kv_parallel_size",
    "kv_buffer_device",
    "kv_buffer_size",
    "kv_load_failure_policy",
    "kv_connector_module_path",
    "kv_connector_extra_config",
    "enable_permute_local_kv",
};
static const char *const extra_keys[] = {
    "prefill",      "decode",          "kv_secret", "kv_host",           "lease_seconds",
    "pull_timeout", "connect_timeout", "checksums", "use_ascend_direct", "mooncake_protocol",
    "num_workers",  "bootstrap_port",  "kv_peers",
};
static const char *const side_keys[] = { "dp_size", "tp_size", "pp_size" };

/* Keys that mean something to devices or libraries that are not here. */
static const char *const idle_keys[] = {
    "kv_rank",           "kv_parallel_size",         "kv_buffer_device",
    "kv_buffer_size",    "kv_connector_module_path", "enable_permute_local_kv",
    "use_ascend_direct", "mooncake_protocol",        "num_workers",
};

static bool is_word(const char *const *words, size_t n, const char *w)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(words[i], w) == 0)
            return true;
    return false;
}

static int check_keys(json_t *o, const char *where, const char *const *known, size_t n,
                      struct err *e)
{
    const char *key;
    json_t *v;
    int st;

    json_object_foreach(o, key, v)
    {
        if ((st = serve_check_key("--kv-transfer-config", where, key, known, n, e)) < 0)
            return st;
        if (is_word(idle_keys, COUNT(idle_keys), key))
            log_info("--kv-transfer-config: %s%s has no effect: KV goes over UCX from main memory",
                     where, key);
    }
    return 0;
}

static int bad(struct err *e, const char *key, const char *wanted)
{
    return err_set(e, ERR_INVAL, "--kv-transfer-config: %s must be %s", key, wanted);
}

static int get_text(json_t *o, const char *key, const char **out, struct err *e)
{
    json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return bad(e, key, "a string");
    *out = json_string_value(v);
    return 0;
}

/* A number, or the text of one: ports are often written as strings. */
static int get_number(json_t *o, const char *key, double min, double max, double *out,
                      struct err *e)
{
    json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);
    char *end = NULL;
    double x = text ? strtod(text, &end) : json_number_value(v);

    if (!v || json_is_null(v))
        return 0;
    if ((!text && !json_is_number(v)) || (text && (end == text || *end)) || !(x >= min && x <= max))
        return err_set(e, ERR_INVAL, "--kv-transfer-config: %s must be a number in %g..%g", key,
                       min, max);
    *out = x;
    return 0;
}

static int get_bool(json_t *o, const char *key, bool *out, struct err *e)
{
    json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return bad(e, key, "true or false");
    *out = json_is_true(v);
    return 0;
}

static int read_connector(json_t *o, struct err *e)
{
    const char *name = NULL;
    int st = get_text(o, "kv_connector", &name, e);

    if (st < 0)
        return st;
    if (!name)
        return bad(e, "kv_connector", "given");
    if (strcmp(name, "MooncakeConnectorV1") == 0 || strcmp(name, "MooncakeConnector") == 0)
        return 0;
    return err_set(e, ERR_UNSUPPORTED,
                   "--kv-transfer-config: kv_connector '%s' is not part of this build, which has "
                   "MooncakeConnectorV1 (also called MooncakeConnector)",
                   name);
}

static int read_role(json_t *o, struct serve_kv_config *kv, struct err *e)
{
    const char *role = NULL;
    int st = get_text(o, "kv_role", &role, e);

    if (st < 0)
        return st;
    if (!role ||
        !is_word((const char *const[]){ "kv_producer", "kv_consumer", "kv_both" }, 3, role))
        return bad(e, "kv_role", "kv_producer, kv_consumer or kv_both");
    kv->produce = strcmp(role, "kv_consumer") != 0;
    kv->consume = strcmp(role, "kv_producer") != 0;
    return 0;
}

static int read_policy(json_t *o, struct serve_kv_config *kv, struct err *e)
{
    const char *policy = "recompute";
    int st = get_text(o, "kv_load_failure_policy", &policy, e);

    if (st < 0)
        return st;
    if (strcmp(policy, "recompute") != 0 && strcmp(policy, "fail") != 0)
        return bad(e, "kv_load_failure_policy", "recompute or fail");
    kv->fail_on_error = policy[0] == 'f';
    return 0;
}

/* The shape of one side. DP ranks are instances of their own; more ranks inside one are not here. */
static int check_side(json_t *extra, const char *side, struct err *e)
{
    json_t *o = json_object_get(extra, side);
    double n = 1;
    int st;

    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return bad(e, side, "an object of dp_size, tp_size and pp_size");
    if ((st = check_keys(o, side, side_keys, COUNT(side_keys), e)) < 0)
        return st;
    for (size_t i = 0; i < COUNT(side_keys); i++) {
        if ((st = get_number(o, side_keys[i], 1, 4096, &n, e)) < 0)
            return st;
        if (i > 0 && n != 1)
            return err_set(e, ERR_UNSUPPORTED,
                           "--kv-transfer-config: %s.%s is %g, but this build serves one rank an "
                           "instance",
                           side, side_keys[i], n);
        n = 1;
    }
    return 0;
}

static int read_peers(json_t *extra, struct serve_kv_config *kv, struct err *e)
{
    json_t *list = json_object_get(extra, "kv_peers"), *v;
    char host[KV_PARAMS_HOST_MAX];
    uint16_t port;
    size_t i;
    int st;

    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list) || json_array_size(list) > MAX_PEERS)
        return bad(e, "kv_peers", "a list of at most 64 texts \"host:port\"");
    json_array_foreach(list, i, v)
    {
        if (!json_is_string(v))
            return bad(e, "kv_peers", "a list of texts \"host:port\"");
        if ((st = kv_address_parse(host, &port, json_string_value(v), NULL, e)) < 0)
            return err_prefix(e, st, "--kv-transfer-config: kv_peers");
    }
    kv->peers = kv->consume ? list : NULL;
    return 0;
}

static int read_extra(json_t *o, struct serve_kv_config *kv, struct err *e)
{
    json_t *x = json_object_get(o, "kv_connector_extra_config");
    double port = kv->bootstrap_port;
    int st;

    if (!x || json_is_null(x))
        return 0;
    if (!json_is_object(x))
        return bad(e, "kv_connector_extra_config", "an object");
    if ((st = check_keys(x, "", extra_keys, COUNT(extra_keys), e)) < 0 ||
        (st = check_side(x, "prefill", e)) < 0 || (st = check_side(x, "decode", e)) < 0 ||
        (st = get_text(x, "kv_secret", &kv->secret, e)) < 0 ||
        (st = get_text(x, "kv_host", &kv->host, e)) < 0 ||
        (st = get_number(x, "lease_seconds", 0.01, 1e6, &kv->lease_seconds, e)) < 0 ||
        (st = get_number(x, "pull_timeout", 0.01, 1e6, &kv->pull_timeout, e)) < 0 ||
        (st = get_number(x, "connect_timeout", 0.01, 1e6, &kv->connect_timeout, e)) < 0)
        return st;
    if ((st = get_number(x, "bootstrap_port", 0, 65535, &port, e)) < 0 ||
        (st = read_peers(x, kv, e)) < 0)
        return st;
    kv->bootstrap_port = (uint16_t)port;
    return get_bool(x, "checksums", &kv->checksums, e);
}

static bool is_wildcard(const char *host)
{
    return !host || host[0] == '\0' || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* The address that a decode instance is told: what was configured for it, else the API's. */
static void choose_host(struct serve_config *cfg)
{
    static const char *const vars[] = { "VLLM_HOST_IP", "HCCL_IF_IP" };

    for (size_t i = 0; i < COUNT(vars) && is_wildcard(cfg->kv.host); i++)
        cfg->kv.host = getenv(vars[i]);
    if (is_wildcard(cfg->kv.host))
        cfg->kv.host = cfg->host;
    if (!is_wildcard(cfg->kv.host))
        return;
    cfg->kv.host = "127.0.0.1";
    log_info("KV transfer listens on 127.0.0.1 only; VLLM_HOST_IP=ADDRESS makes it reachable from "
             "other hosts");
}

static int lease_from_env(struct serve_kv_config *kv, struct err *e)
{
    const char *text = getenv("VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT");
    char *end;

    if (!text || !text[0])
        return 0;
    kv->lease_seconds = strtod(text, &end);
    if (*end || !(kv->lease_seconds > 0) || !isfinite(kv->lease_seconds))
        return err_set(e, ERR_INVAL,
                       "VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT: '%s' is not a time in "
                       "seconds",
                       text);
    return 0;
}

/* A server of its own only where it was asked for, so that several instances of a host do not collide. */
static int bootstrap_from_env(struct serve_kv_config *kv, struct err *e)
{
    const char *text = getenv("VLLM_MOONCAKE_BOOTSTRAP_PORT");
    long port;
    char *end;

    if (!text || !text[0])
        return 0;
    port = strtol(text, &end, 10);
    if (*end || port < 0 || port > 65535)
        return err_set(e, ERR_INVAL, "VLLM_MOONCAKE_BOOTSTRAP_PORT: '%s' is not a port", text);
    kv->bootstrap_port = (uint16_t)port;
    return 0;
}

int serve_check_kv(struct serve_config *cfg, struct err *e)
{
    struct serve_kv_config *kv = &cfg->kv;
    json_t *o = cfg->kv_transfer;
    double port = 0;
    int st;

    *kv = (struct serve_kv_config){ .lease_seconds = LEASE_SECONDS,
                                    .pull_timeout = PULL_TIMEOUT,
                                    .connect_timeout = CONNECT_TIMEOUT,
                                    .checksums = true,
                                    .secret = getenv("SLUICE_KV_SECRET") };
    if (!o || json_object_size(o) == 0)
        return 0;
    if ((st = lease_from_env(kv, e)) < 0 || (st = bootstrap_from_env(kv, e)) < 0 ||
        (st = check_keys(o, "", keys, COUNT(keys), e)) < 0 || (st = read_connector(o, e)) < 0 ||
        (st = read_role(o, kv, e)) < 0 || (st = read_policy(o, kv, e)) < 0 ||
        (st = get_text(o, "engine_id", &kv->engine_id, e)) < 0 ||
        (st = get_text(o, "kv_ip", &kv->host, e)) < 0 ||
        (st = get_number(o, "kv_port", 0, 65535, &port, e)) < 0 || (st = read_extra(o, kv, e)) < 0)
        return st;
    if (kv->secret && !kv->secret[0])
        kv->secret = NULL;
    kv->port = (uint16_t)port;
    if (!kv->produce)
        kv->bootstrap_port = 0;
    choose_host(cfg);
    return 0;
}
