/* What the files of serve/ share: one instance's state. Loop thread only, but for what says otherwise. */
#ifndef SLUICE_SERVE_STATE_H
#define SLUICE_SERVE_STATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/status.h"
#include "engine/engine.h"
#include "serve/config.h"
#include "serve/serve.h"
#include "wire/openai.h"

struct bootstrap;
struct cache_reset;
struct encoder;
struct gen;
struct loaded;
struct http_req;
struct http_server;
struct intake;
struct loop;
struct loop_timer;
struct metrics;
struct template;
struct tokenizer;
struct trace;

enum serve_phase {
    SERVE_LOADING, /* the engine is not there yet */
    SERVE_READY,
    SERVE_DRAINING, /* no new requests; running ones may finish */
    SERVE_DEAD,     /* the engine has closed by itself */
};

struct serve {
    const struct serve_config *cfg;
    struct loop *loop;
    struct http_server *http;
    struct http_server *query;   /* the bootstrap port; NULL: none */
    struct bootstrap *bootstrap; /* NULL where KV is not pulled */
    enum serve_phase phase;
    int exit_code;

    struct engine *engine; /* NULL while loading */
    struct engine_info info;
    struct tokenizer *tok;     /* NULL with --skip-tokenizer-init: no texts */
    struct encoder *encoder;   /* NULL where tok is */
    struct template *template; /* NULL: the model has none */
    const char *model_name;    /* the first served name */
    char fingerprint[96];      /* system_fingerprint, "" for none */
    struct sampling defaults;
    struct oai_rules rules;
    uint64_t n_seeded; /* requests that got a seed from --seed so far */

    struct metrics *metrics;
    struct trace *trace; /* NULL: none is wanted. The engine thread's, while there is an engine */
    struct intake *intakes; /* requests whose texts are being encoded */
    uint32_t n_intakes;
    struct gen *gens; /* all other requests that are not over */
    uint32_t n_gens;
    struct gen *dirty;          /* those with output to send */
    struct cache_reset *resets; /* of the prefix cache, not answered yet */
    struct loop_timer *drain_timer, *stats_timer;
    double drain_deadline;
    struct engine_stats logged; /* figures of the last log line */

    pthread_t loader;
    bool loader_started;
    struct loaded *loading; /* what the loader makes, until the loop thread takes it over */
    struct err load_error;  /* written by the loader before it posts */
    int load_status;
    char broken[256];    /* SERVE_DEAD: why */
    char unready[600];   /* the sentence of serve_not_ready, where it is made */
    const char *handler; /* the route in progress, as the metrics call it */
};

/* load.c */
int load_start(struct serve *s, struct err *e);
void load_join(struct serve *s);

/* api.c: the handler of every request, and of those at the bootstrap port */
void api_handle(void *arg, struct http_req *r);
void api_handle_query(void *arg, struct http_req *r);
/* Body of errors that the HTTP server itself answers. */
void api_error_body(struct buf *out, int status, const char *reason);
/* Answers: all count in the metrics. type NULL: no body. */
void api_reply(struct serve *s, struct http_req *r, int status, const char *type, const void *body,
               size_t len);
void api_reply_buf(struct serve *s, struct http_req *r, int status, struct buf *json);
void api_reply_json(struct serve *s, struct http_req *r, int status, json_t *json); /* takes json */
void api_reply_error(struct serve *s, struct http_req *r, const struct oai_error *e);
void api_reply_status(struct serve *s, struct http_req *r, int status, const char *message);
/* The first line of the access log and the counters, for a reply that api.c does not send. len: of its
 * body; 0 for a stream. */
void api_account(struct serve *s, struct http_req *r, const char *handler, int status, size_t len);
#define API_MAX_ID 240          /* bytes of a request id that a client gives */
bool api_id_ok(const char *id); /* visible ASCII, not too long */
/* The client's X-Request-Id if it can be one, else NULL. Borrowed. */
const char *api_request_id(const struct http_req *r);

/* The request's path without --root-path. Borrowed. */
const char *api_path(const struct serve *s, const struct http_req *r);

/* Puts the CORS headers that the request's origin is due. */
void api_cors(const struct serve *s, struct http_req *r);

/* Handlers */
typedef void serve_handler(struct serve *s, struct http_req *r);
serve_handler on_completions, on_chat, on_models, on_model, on_tokenize, on_detokenize,
    on_tokenizer_info, on_ready, on_version, on_load, on_metrics, on_reset_cache, on_kv_release,
    on_server_info, on_query;

/* completions.c: answers all that wait for their texts to be encoded. */
void intake_abort_all(struct serve *s, int code, const char *message);

/* auth.c: whether the request may pass. True without keys. */
bool auth_ok(const struct serve *s, struct http_req *r);

/* admin.c: 0, or why the instance should get no requests now. */
const char *serve_not_ready(struct serve *s);
/* The engine's answer to on_reset_cache; and after engine_close, those that will get none. */
void cache_reset_done(struct cache_reset *c, int status);
void cache_reset_free_all(struct serve *s);

#endif
