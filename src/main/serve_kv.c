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

/* The connectors differ in how an instance is told where it is; what moves KV is the same. */
static int read_connector(json_t *o, bool *by_table, bool *layerwise, struct err *e)
{
    const char *name = NULL;
    int st = get_text(o, "kv_connector", &name, e);

    *by_table = false;

    if (st < 0)
        return st;
    if (!name)
        return bad(e, "kv_connector", "given");
    if (strcmp(name, "MooncakeConnectorV1") == 0 || strcmp(name, "MooncakeConnector") == 0)
        return 0;
    *by_table = strcmp(name, "LLMDataDistCMgrConnector") == 0;
    *layerwise = strcmp(name, "MooncakeLayerwiseConnector") == 0;
    if (*by_table || *layerwise)
        return 0;
    return err_set(
        e, ERR_UNSUPPORTED,
        "--kv-transfer-config: kv_connector '%s' is not part of this build, which has "
        "MooncakeConnectorV1 (also called MooncakeConnector), MooncakeLayerwiseConnector and "
        "LLMDataDistCMgrConnector",
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

/* The shape of one side; 0 where nothing is said. */
static int read_side(json_t *extra, const char *side, struct transfer_shape *out, struct err *e)
{
    json_t *o = json_object_get(extra, side);
    double pp = 0, tp = 0, dp = 0;
    int st;

    if (!o || json_is_null(o))
        return 0;
    if (!json_is_object(o))
        return bad(e, side, "an object of dp_size, tp_size and pp_size");
    if ((st = check_keys(o, side, side_keys, COUNT(side_keys), e)) < 0 ||
        (st = get_number(o, "pp_size", 1, TRANSFER_RANKS_MAX, &pp, e)) < 0 ||
        (st = get_number(o, "tp_size", 1, TRANSFER_RANKS_MAX, &tp, e)) < 0 ||
        (st = get_number(o, "dp_size", 1, TRANSFER_RANKS_MAX, &dp, e)) < 0)
        return st;
    *out = (struct transfer_shape){ (uint32_t)pp, (uint32_t)tp, (uint32_t)dp };
    return 0;
}

static int check_size(const char *side, const char *key, uint32_t said, const char *flag,
                      uint32_t is, struct err *e)
{
    if (said == 0 || said == is)
        return 0;
    return err_set(
        e, ERR_INVAL,
        "--kv-transfer-config: %s.%s is %u, but this instance, which is on that side, has "
        "%s %u; give both the same",
        side, key, said, flag, is);
}

/* What is said of this instance's own side must be so. The other side is looked at when it is met. */
static int check_own_side(const struct serve_config *cfg, struct err *e)
{
    const struct serve_kv_config *kv = &cfg->kv;
    const struct transfer_shape *s = kv->produce ? &kv->producers : &kv->consumers;
    const char *side = kv->produce ? "prefill" : "decode";
    const struct engine_ranks *r = &cfg->ranks;
    int st;

    if (kv->produce == kv->consume) /* of an instance with both roles nothing is said */
        return 0;
    if ((st = check_size(side, "pp_size", s->pp, "--pipeline-parallel-size", r->pp ? r->pp : 1,
                         e)) < 0 ||
        (st = check_size(side, "tp_size", s->tp, "--tensor-parallel-size", r->tp ? r->tp : 1, e)) <
            0)
        return st;
    return check_size(side, "dp_size", s->dp, "--data-parallel-size", r->dp_size ? r->dp_size : 1,
                      e);
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
        (st = read_side(x, "prefill", &kv->producers, e)) < 0 ||
        (st = read_side(x, "decode", &kv->consumers, e)) < 0 ||
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
    if (is_wildcard(cfg->kv.host))
        cfg->kv.host = cfg->address; /* of the environment */
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

/* Each rank has the next port, and so have the ranks of the group's next instance: those of one host do
 * not collide. */
static int settle_port(struct serve_config *cfg, uint32_t port, struct err *e)
{
    uint32_t world = cfg->ranks.pp * cfg->ranks.tp, first = port + cfg->ranks.dp_rank * world;

    if (port > 0 && first + world - 1 > 65535)
        return err_set(e, ERR_RANGE,
                       "--kv-transfer-config: kv_port %u leaves no ports for the %u ranks of "
                       "instance %u, which would need %u to %u",
                       port, world, cfg->ranks.dp_rank, first, first + world - 1);
    cfg->kv.port = (uint16_t)(port > 0 ? first : 0);
    return 0;
}

int serve_check_kv(struct serve_config *cfg, struct err *e)
{
    struct serve_kv_config *kv = &cfg->kv;
    json_t *o = cfg->kv_transfer;
    uint32_t first_port;
    double port = 0;
    bool by_table;
    int st;

    *kv = (struct serve_kv_config){ .lease_seconds = LEASE_SECONDS,
                                    .pull_timeout = PULL_TIMEOUT,
                                    .connect_timeout = CONNECT_TIMEOUT,
                                    .checksums = true,
                                    .secret = getenv("SLUICE_KV_SECRET") };
    if (!o || json_object_size(o) == 0)
        return 0;
    if ((st = lease_from_env(kv, e)) < 0 || (st = bootstrap_from_env(kv, e)) < 0 ||
        (st = check_keys(o, "", keys, COUNT(keys), e)) < 0 ||
        (st = read_connector(o, &by_table, &kv->layerwise, e)) < 0 ||
        (st = read_role(o, kv, e)) < 0 || (st = read_policy(o, kv, e)) < 0 ||
        (st = get_text(o, "engine_id", &kv->engine_id, e)) < 0 ||
        (st = get_text(o, "kv_ip", &kv->host, e)) < 0 ||
        (st = get_number(o, "kv_port", 0, 65535, &port, e)) < 0 || (st = read_extra(o, kv, e)) < 0)
        return st;
    if (kv->secret && !kv->secret[0])
        kv->secret = NULL;
    first_port = (uint32_t)port;
    if ((by_table && (st = serve_ranktable_port(&first_port, port, e)) < 0) ||
        (st = check_own_side(cfg, e)) < 0 || (st = settle_port(cfg, first_port, e)) < 0)
        return st;
    if (!kv->produce)
        kv->bootstrap_port = 0;
    choose_host(cfg);
    return by_table ? serve_check_ranktable(cfg, e) : 0;
}
