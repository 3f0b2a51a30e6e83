/* What the table of flags cannot say: see serve_flags.h. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "serve/config.h"

/* ---- ranks ---- */

static int check_ranks(const struct serve_config *c, struct err *e)
{
    const struct {
        const char *flag;
        int64_t value, only;
    } rows[] = {
        { "--tensor-parallel-size", c->tp, 1 },
        { "--pipeline-parallel-size", c->pp, 1 },
        { "--data-parallel-size", c->dp, 1 },
        { "--data-parallel-rank", c->dp_rank, 0 },
        { "--data-parallel-start-rank", c->dp_start, 0 },
        { "--decode-context-parallel-size", c->dcp, 1 },
        { "--prefill-context-parallel-size", c->pcp, 1 },
        { "--nnodes", c->nnodes, 1 },
        { "--node-rank", c->node_rank, 0 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        if (rows[i].value != rows[i].only)
            return err_set(e, ERR_UNSUPPORTED,
                           "%s %lld: this build serves one rank; leave it out or use %lld",
                           rows[i].flag, (long long)rows[i].value, (long long)rows[i].only);
    if (c->dp_local > 1 || c->api_servers > 1)
        return err_set(e, ERR_UNSUPPORTED, "%s %lld: this build serves one rank with one front",
                       c->dp_local > 1 ? "--data-parallel-size-local" : "--api-server-count",
                       (long long)(c->dp_local > 1 ? c->dp_local : c->api_servers));
    return 0;
}

/* ---- the model's numbers ---- */

static int check_types(struct serve_config *c, struct err *e)
{
    c->float32 = strcmp(c->dtype, "float32") == 0 || strcmp(c->dtype, "float") == 0;
    if (!c->float32 && strcmp(c->dtype, "auto") != 0)
        log_info("--dtype %s: the same as auto: activations are what the format of the weights "
                 "calls for, the KV cache is float16",
                 c->dtype);
    if (c->block_size % 16)
        return err_set(e, ERR_INVAL, "--block-size: %lld is not a multiple of 16",
                       (long long)c->block_size);
    return 0;
}

/* ---- the front ---- */

static int check_list(const char *flag, const char *text, struct err *e)
{
    json_t *v;
    int st = json_read(&v, text, strlen(text), NULL, e);

    if (st < 0)
        return err_prefix(e, ERR_INVAL, "%s", flag);
    st = json_is_array(v) ? 0
                          : err_set(e, ERR_INVAL, "%s: a JSON list is wanted, as [\"*\"]", flag);
    json_decref(v);
    return st;
}

static int keys_from_env(struct serve_config *c)
{
    const char *key = getenv("VLLM_API_KEY");

    if (c->api_keys.n > 0 || !key || !key[0])
        return 0;
    c->api_keys.v = malloc(sizeof *c->api_keys.v);
    if (!c->api_keys.v)
        return ERR_NOMEM;
    c->api_keys.v[0] = key;
    c->api_keys.n = 1;
    return 0;
}

static int keep_alive_from_env(struct serve_config *c, struct err *e)
{
    const char *text = getenv("VLLM_HTTP_TIMEOUT_KEEP_ALIVE");
    char *end;

    if (!text || !text[0])
        return 0;
    c->keep_alive = strtod(text, &end);
    if (*end || !(c->keep_alive > 0))
        return err_set(e, ERR_INVAL, "VLLM_HTTP_TIMEOUT_KEEP_ALIVE: '%s' is not a time in seconds",
                       text);
    return 0;
}

static int check_front(struct serve_config *c, const struct serve_args *a, struct err *e)
{
    int st;

    if (!c->ssl_cert != !c->ssl_key)
        return err_set(e, ERR_INVAL, "--ssl-certfile and --ssl-keyfile need each other");
    if (strcmp(c->fingerprint_mode, "custom") == 0 && !c->fingerprint_value)
        return err_set(e, ERR_INVAL, "--fingerprint-mode custom needs --fingerprint-value");
    if ((st = check_list("--allowed-origins", c->allowed_origins, e)) < 0 ||
        (st = check_list("--allowed-methods", c->allowed_methods, e)) < 0 ||
        (st = check_list("--allowed-headers", c->allowed_headers, e)) < 0 ||
        (st = keys_from_env(c)) < 0)
        return st;
    if (!opts_given(serve_flags, &a->seen, "--keep-alive-timeout"))
        return keep_alive_from_env(c, e);
    return 0;
}

/* ---- free-form configuration ---- */

/* Keys that deployments for other hardware carry. Whatever they ask for is not done here, and the log
 * says so, key by key. */
static const char *const known_keys[] = {
    "scheduler_config.profiling_chunk_config",
    "scheduler_config.recompute_scheduler_enable",
    "ascend_scheduler_config",
    "torchair_graph_config",
    "multistream_overlap_shared_expert",
    "finegrained_tp_config",
    "expert_map_path",
    "eplb_config",
    "weight_prefetch_config",
    "enable_shared_expert_dp",
    "lmhead_tensor_parallel_size",
    "refresh",
    "chunked_prefill_for_mla",
    "enable_weight_nz_layout",
    "xlite_graph_config",
    "cudagraph_mode",
    "cudagraph_capture_sizes",
    "mode",
    "level",
    "backend",
    "custom_ops",
    "use_inductor",
    "pass_config",
    "splitting_ops",
    "compile_sizes",
    "cudagraph_num_of_warmups",
    "full_cuda_graph",
    "cache_dir",
};

static bool is_known(const char *key)
{
    for (size_t i = 0; i < sizeof known_keys / sizeof known_keys[0]; i++)
        if (strcmp(known_keys[i], key) == 0)
            return true;
    return false;
}

static void report_keys(const char *flag, json_t *o)
{
    const char *key, *inner;
    json_t *v, *w;
    char path[128];

    json_object_foreach(o, key, v)
    {
        if (strcmp(key, "scheduler_config") != 0) {
            log_info("%s: %s %s", flag, key,
                     is_known(key) ? "has no effect: this build computes on the CPU, one rank"
                                   : "is unknown and has no effect");
            continue;
        }
        json_object_foreach(v, inner, w)
        {
            snprintf(path, sizeof path, "%s.%s", key, inner);
            log_info("%s: %s %s", flag, path,
                     is_known(path) ? "has no effect in this build"
                                    : "is unknown and has no effect");
        }
    }
}

int serve_check_key(const char *flag, const char *where, const char *key, const char *const *known,
                    size_t n, struct err *e)
{
    const char *near;

    for (size_t i = 0; i < n; i++)
        if (strcmp(known[i], key) == 0)
            return 0;
    near = opts_nearest_word(known, n, key);
    return err_set(e, ERR_INVAL, "%s: unknown key '%s%s'%s%s%s", flag, where, key,
                   near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

/* ---- the effective configuration ---- */

/* "--max-num-seqs -x" to "max_num_seqs". */
static void member_name(char *out, size_t cap, const char *names)
{
    size_t n = strcspn(names + 2, " ");

    n = n < cap ? n : cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = names[2 + i] == '-' ? '_' : names[2 + i];
    out[n] = '\0';
}

/* Secrets are shown as "***". */
static json_t *list_value(const struct opt_list *l, bool secret)
{
    json_t *a = json_array();

    for (size_t i = 0; i < l->n; i++)
        json_array_append_new(a, json_string(secret ? "***" : l->v[i]));
    return a;
}

static json_t *json_value(const json_t *v)
{
    json_t *copy = v ? json_deep_copy(v) : json_null();
    json_t *extra = json_object_get(copy, "kv_connector_extra_config");

    if (json_object_get(extra, "kv_secret"))
        json_object_set_new(extra, "kv_secret", json_string("***"));
    return copy;
}

static json_t *option_value(const struct opt_spec *s, const struct serve_config *c)
{
    const void *at = (const char *)c + s->offset;

    switch (s->kind) {
    case OPT_FLAG:
    case OPT_BOOL:
        return json_boolean(*(const bool *)at);
    case OPT_INT:
    case OPT_SIZE:
        return json_integer(*(const int64_t *)at);
    case OPT_FLOAT:
        return json_real(*(const double *)at);
    case OPT_STRING:
        return *(const char *const *)at ? json_string(*(const char *const *)at) : json_null();
    case OPT_LIST:
        return list_value(at, s->offset == offsetof(struct serve_config, api_keys));
    case OPT_JSON:
        return json_value(*(json_t *const *)at);
    default:
        return NULL;
    }
}

static int make_effective(struct serve_config *c)
{
    json_t *o = json_object(), *v;
    char name[64];

    if (!o)
        return ERR_NOMEM;
    for (const struct opt_spec *s = serve_flags; s->kind != OPT_END; s++) {
        member_name(name, sizeof name, s->names);
        v = option_value(s, c);
        if (v && json_object_set_new(o, name, v) < 0) {
            json_decref(o);
            return ERR_NOMEM;
        }
    }
    c->effective = o;
    return 0;
}

int serve_check(struct serve_config *c, const struct serve_args *a, struct err *e)
{
    int st;

    if ((st = check_ranks(c, e)) < 0 || (st = check_types(c, e)) < 0 ||
        (st = check_front(c, a, e)) < 0 || (st = serve_check_kv(c, e)) < 0 ||
        (st = serve_check_spec(c, e)) < 0)
        return st;
    report_keys("--additional-config", c->additional);
    report_keys("--compilation-config", c->compilation);
    c->has_seed = opts_given(serve_flags, &a->seen, "--seed");
    return make_effective(c);
}
