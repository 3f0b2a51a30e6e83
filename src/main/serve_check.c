/* What the table of flags cannot say: see serve_flags.h. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "serve/config.h"

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

/* vLLM's CPU backend sizes the KV cache of each rank by this. */
static int kv_space_from_env(struct serve_config *c, struct err *e)
{
    const char *text = getenv("VLLM_CPU_KVCACHE_SPACE");
    double gib;
    char *end;

    if (!text || !text[0])
        return 0;
    gib = strtod(text, &end);
    if (end == text || *end || !(gib > 0) || gib > 1e6)
        return err_set(e, ERR_INVAL,
                       "VLLM_CPU_KVCACHE_SPACE: '%s' is not a size in GiB, such as 4 or 0.5", text);
    if (c->kv_bytes > 0 || c->n_blocks > 0) {
        log_info("VLLM_CPU_KVCACHE_SPACE has no effect: %s says how large the KV cache is",
                 c->n_blocks > 0 ? "--num-gpu-blocks-override" : "--kv-cache-memory-bytes");
        return 0;
    }
    c->kv_bytes = (int64_t)(gib * (double)(1 << 30));
    log_info("KV cache: %g GiB a rank, as VLLM_CPU_KVCACHE_SPACE says", gib);
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

/* ---- keys of JSON options ---- */

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

    if ((st = check_types(c, e)) < 0 || (st = kv_space_from_env(c, e)) < 0 ||
        (st = check_front(c, a, e)) < 0 || (st = serve_check_address(c, e)) < 0 ||
        (st = serve_check_shape(c, a, e)) < 0 || (st = serve_check_kv(c, e)) < 0 ||
        (st = serve_check_spec(c, e)) < 0 || (st = serve_check_extra(c, e)) < 0)
        return st;
    serve_check_roles(c);
    c->has_seed = opts_given(serve_flags, &a->seen, "--seed");
    return make_effective(c);
}
