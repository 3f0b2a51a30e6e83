/* State of the instance, for balancers, operators and proxies. */
#include <string.h>

#include "base/log.h"
#include "net/http_server.h"
#include "serve/metrics.h"
#include "serve/prom.h"
#include "serve/state.h"

#define RESET_TIMEOUT 10.0 /* seconds that a step may take before a reset gives up */

const char *serve_not_ready(struct serve *s)
{
    struct engine_stats st;

    switch (s->phase) {
    case SERVE_LOADING:
        return "the model is still being loaded";
    case SERVE_DRAINING:
        return "the server is shutting down";
    case SERVE_DEAD:
        return "the engine is not running";
    case SERVE_READY:
        break;
    }
    engine_stats(s->engine, &st);
    if (st.busy && st.busy_since_step > s->cfg->stall_timeout)
        return "work is pending and no engine step has ended for too long";
    return NULL;
}

/* Also /health and /ping: balancers that know only those must not send to an instance that cannot
 * answer. */
void on_ready(struct serve *s, struct http_req *r)
{
    const char *why = serve_not_ready(s);

    if (why)
        api_reply_status(s, r, 503, why);
    else
        api_reply(s, r, 200, NULL, NULL, 0);
}

void on_version(struct serve *s, struct http_req *r)
{
    api_reply_json(s, r, 200, json_pack("{ss}", "version", SLUICE_VERSION));
}

void on_load(struct serve *s, struct http_req *r)
{
    api_reply_json(s, r, 200, json_pack("{si}", "server_load", (int)s->n_gens));
}

void on_metrics(struct serve *s, struct http_req *r)
{
    struct buf b;

    buf_init(&b, BUF_MAX_REPLY);
    if (metrics_render(s->metrics, s, &b) < 0)
        api_reply(s, r, 500, NULL, NULL, 0);
    else
        api_reply(s, r, 200, PROM_TYPE, b.data, b.len);
    buf_finish(&b);
}

void on_reset_cache(struct serve *s, struct http_req *r)
{
    int st = engine_reset_prefix_cache(s->engine, RESET_TIMEOUT);

    if (st == ERR_BUSY)
        api_reply_status(s, r, 503,
                         "some cached blocks are in use by running requests and were kept");
    else if (st < 0)
        api_reply_status(s, r, 500, status_text(st));
    else
        api_reply(s, r, 200, NULL, NULL, 0);
}

/* {"kv_transfer_params": {...}} as this instance answered it: nobody will fetch that KV. */
void on_kv_release(struct serve *s, struct http_req *r)
{
    struct oai_error e;
    struct err err = { "" };
    struct kv_params p;
    json_t *body;
    size_t len;
    const char *text = http_body(r, &len);
    int st;

    if (oai_parse_object(&body, text, len, &e) < 0) {
        api_reply_error(s, r, &e);
        return;
    }
    st = kv_params_decode(&p, json_object_get(body, "kv_transfer_params"), &err);
    json_decref(body);
    if (st < 0) {
        oai_fail(&e, 400, oai_error_type(400), "kv_transfer_params", "%s", err.text);
        api_reply_error(s, r, &e);
        return;
    }
    st = engine_kv_release(s->engine, &p);
    kv_params_finish(&p);
    api_reply_json(s, r, 200, json_pack("{sb}", "released", st == 0));
}

void on_server_info(struct serve *s, struct http_req *r)
{
    json_t *o = json_object();

    json_object_set(o, "config", s->cfg->effective ? s->cfg->effective : json_null());
    json_object_set_new(o, "version", json_string(SLUICE_VERSION));
    if (s->engine)
        json_object_set_new(
            o, "engine",
            json_pack("{si si si si si ss# ss si ss ss si}", "max_model_len",
                      (int)s->info.max_model_len, "block_size", (int)s->info.block_tokens,
                      "num_blocks", (int)s->info.n_blocks, "max_num_batched_tokens",
                      (int)s->info.max_batched_tokens, "max_num_seqs", (int)s->info.max_seqs, "isa",
                      s->info.isa, (int)strlen(s->info.isa), "kv_cache_dtype", s->info.kv_dtype,
                      "threads", (int)s->info.threads, "fingerprint", s->info.fingerprint,
                      "engine_id", s->info.engine_id ? s->info.engine_id : "", "kv_port",
                      (int)s->info.kv_port));
    api_reply_json(s, r, 200, o);
}
