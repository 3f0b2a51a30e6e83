/* State of the instance, for balancers, operators and proxies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/http_server.h"
#include "serve/metrics.h"
#include "serve/prom.h"
#include "serve/state.h"
#include "wire/kv_bootstrap.h"

const char *serve_not_ready(struct serve *s)
{
    struct engine_stats st;

    switch (s->phase) {
    case SERVE_LOADING:
        return "the model is still being loaded";
    case SERVE_DRAINING:
        return "the server is shutting down";
    case SERVE_DEAD:
        return s->broken;
    case SERVE_READY:
        break;
    }
    if (engine_is_apart(s->engine, s->unready, sizeof s->unready))
        return s->unready;
    engine_stats(s->engine, &st);
    if (st.busy && st.busy_since_step > s->cfg->stall_timeout)
        return "work is pending and no engine step has ended for too long";
    if (st.transfer.mismatching > 0 && st.transfer.matching == 0) {
        snprintf(s->unready, sizeof s->unready, "no KV can be pulled: %s", st.transfer.mismatch);
        return s->unready;
    }
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
    api_reply_json(s, r, 200, json_pack("{si}", "server_load", (int)(s->n_gens + s->n_intakes)));
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

/* A reset that the engine does when its step has ended. */
struct cache_reset {
    struct serve *s;
    struct http_req *http; /* NULL: the client has left */
    const char *handler;
    struct cache_reset *next, **link; /* of serve.resets */
};

static void reset_client_left(void *arg)
{
    struct cache_reset *c = arg;

    c->http = NULL;
}

static void reset_free(struct cache_reset *c)
{
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    free(c);
}

void cache_reset_done(struct cache_reset *c, int status)
{
    struct serve *s = c->s;

    if (c->http) {
        http_off_close(c->http);
        s->handler = c->handler;
        if (status == ERR_BUSY)
            api_reply_status(s, c->http, 503,
                             "some cached blocks are in use by running requests and were kept");
        else
            api_reply(s, c->http, 200, NULL, NULL, 0);
    }
    reset_free(c);
}

void cache_reset_free_all(struct serve *s)
{
    while (s->resets)
        reset_free(s->resets);
}

void on_reset_cache(struct serve *s, struct http_req *r)
{
    struct cache_reset *c = calloc(1, sizeof *c);

    if (!c || engine_reset_prefix_cache(s->engine, c) < 0) {
        free(c);
        api_reply_status(s, r, 503, "the server is out of memory");
        return;
    }
    *c = (struct cache_reset){
        .s = s, .http = r, .handler = s->handler, .next = s->resets, .link = &s->resets
    };
    if (c->next)
        c->next->link = &c->next;
    s->resets = c;
    http_on_close(r, reset_client_left, c);
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

/* Where this instance serves KV, as wire/kv_bootstrap.h says. One rank. */
void on_query(struct serve *s, struct http_req *r)
{
    struct kv_bootstrap b = { .port = s->info.kv_port, .block_size = s->info.block_tokens };

    if (!s->cfg->kv.produce || !s->info.kv_port) {
        api_reply_status(s, r, 404, "this instance is no KV producer");
        return;
    }
    snprintf(b.host, sizeof b.host, "%s", s->info.kv_host);
    snprintf(b.engine_id, sizeof b.engine_id, "%s", s->info.engine_id);
    api_reply_json(s, r, 200, kv_bootstrap_encode(&b));
}

void on_server_info(struct serve *s, struct http_req *r)
{
    json_t *o = json_object();

    json_object_set(o, "config", s->cfg->effective ? s->cfg->effective : json_null());
    json_object_set_new(o, "version", json_string(SLUICE_VERSION));
    if (s->engine)
        json_object_set_new(
            o, "engine",
            json_pack("{si si si si si si ss# ss si ss ss si}", "max_model_len",
                      (int)s->info.max_model_len, "vocab_size", (int)s->info.model->vocab,
                      "block_size", (int)s->info.block_tokens, "num_blocks", (int)s->info.n_blocks,
                      "max_num_batched_tokens", (int)s->info.max_batched_tokens, "max_num_seqs",
                      (int)s->info.max_seqs, "isa", s->info.isa, (int)strlen(s->info.isa),
                      "kv_cache_dtype", s->info.kv_dtype, "threads", (int)s->info.threads,
                      "fingerprint", s->info.fingerprint, "engine_id",
                      s->info.engine_id ? s->info.engine_id : "", "kv_port", (int)s->info.kv_port));
    api_reply_json(s, r, 200, o);
}
