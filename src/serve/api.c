/* Routes, and what is common to all replies. Adding a path is adding a line to the table. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/log.h"
#include "net/http_server.h"
#include "serve/metrics.h"
#include "serve/state.h"
#include "sys/clock.h"

enum {
    ROUTE_BODY = 1,   /* takes a JSON body */
    ROUTE_ALWAYS = 2, /* answers while loading and draining */
    ROUTE_PREFIX = 4, /* the path is the beginning */
    ROUTE_WORK = 8,   /* new work: refused while draining */
};

static const struct route {
    const char *method, *path;
    serve_handler *fn;
    unsigned flags;
} routes[] = {
    { "POST", "/v1/completions", on_completions, ROUTE_BODY | ROUTE_WORK },
    { "POST", "/v1/chat/completions", on_chat, ROUTE_BODY | ROUTE_WORK },
    { "GET", "/v1/models", on_models, 0 },
    { "GET", "/v1/models/", on_model, ROUTE_PREFIX },
    { "POST", "/tokenize", on_tokenize, ROUTE_BODY },
    { "POST", "/detokenize", on_detokenize, ROUTE_BODY },
    { "GET", "/tokenizer_info", on_tokenizer_info, 0 },
    { "GET", "/health", on_ready, ROUTE_ALWAYS },
    { "GET", "/ready", on_ready, ROUTE_ALWAYS },
    { "GET", "/ping", on_ready, ROUTE_ALWAYS },
    { "POST", "/ping", on_ready, ROUTE_ALWAYS },
    { "GET", "/version", on_version, ROUTE_ALWAYS },
    { "GET", "/load", on_load, 0 },
    { "GET", "/metrics", on_metrics, 0 },
    { "HEAD", "/metrics", on_metrics, 0 },
    { "POST", "/reset_prefix_cache", on_reset_cache, 0 },
    { "POST", "/v1/kv/release", on_kv_release, ROUTE_BODY },
    { "GET", "/server_info", on_server_info, ROUTE_ALWAYS },
    { "GET", "/query", on_query, 0 },
};
#define N_ROUTES (sizeof routes / sizeof routes[0])

/* ---- replies ---- */

/* Whether the access log is to be silent about a path: --disable-access-log-for-endpoints. */
static bool is_quiet(const struct serve *s, const char *path)
{
    const char *list = s->cfg->quiet_paths;
    size_t n = strlen(path);

    while (list && *list) {
        size_t len = strcspn(list, ",");

        if (len == n && strncmp(list, path, n) == 0)
            return true;
        list += len + (list[len] == ',');
    }
    return false;
}

void api_account(struct serve *s, struct http_req *r, const char *handler, int status, size_t len)
{
    size_t request_len;

    http_body(r, &request_len);
    if (s->metrics)
        metrics_http(s->metrics, handler, http_method(r), status, clock_now() - http_start_time(r),
                     request_len, len);
    if (!s->cfg->no_access_log && !is_quiet(s, http_path(r)))
        log_info("%s - \"%s %s HTTP/1.1\" %d %s", http_peer(r), http_method(r), http_path(r),
                 status, http_reason(status));
}

void api_reply(struct serve *s, struct http_req *r, int status, const char *type, const void *body,
               size_t len)
{
    api_account(s, r, s->handler, status, len);
    http_reply(r, status, type, body, len);
}

void api_reply_buf(struct serve *s, struct http_req *r, int status, struct buf *json)
{
    if (json->status < 0)
        api_reply(s, r, 500, NULL, NULL, 0);
    else
        api_reply(s, r, status, "application/json", buf_str(json), json->len);
    buf_finish(json);
}

void api_reply_json(struct serve *s, struct http_req *r, int status, json_t *json)
{
    struct buf b;

    buf_init(&b, BUF_MAX_REPLY);
    if (!json || json_put_value(&b, json) < 0) {
        buf_reset(&b);
        status = 500;
    }
    json_decref(json);
    api_reply_buf(s, r, status, &b);
}

void api_reply_error(struct serve *s, struct http_req *r, const struct oai_error *e)
{
    struct buf b;

    buf_init(&b, BUF_MAX_LINE);
    oai_put_error(&b, e);
    if (e->code == 503)
        http_set_header(r, "Retry-After", "1");
    api_reply_buf(s, r, e->code, &b);
}

void api_reply_status(struct serve *s, struct http_req *r, int status, const char *message)
{
    struct oai_error e;

    oai_fail(&e, status, oai_error_type(status), NULL, "%s", message);
    api_reply_error(s, r, &e);
}

void api_error_body(struct buf *out, int status, const char *reason)
{
    struct oai_error e;

    oai_fail(&e, status, oai_error_type(status), NULL, "%s", reason);
    oai_put_error(out, &e);
}

/* ---- cross-origin requests ---- */

/* Whether a JSON list of strings (an option's text) holds the word or "*". */
static bool list_has(const char *text, const char *word, bool *any)
{
    json_t *list = NULL;
    const json_t *v;
    bool found = false;
    size_t i;

    *any = false;
    if (!text || json_read(&list, text, strlen(text), NULL, NULL) < 0)
        return false;
    json_array_foreach(list, i, v)
    {
        const char *s = json_string_value(v);

        *any = *any || (s && strcmp(s, "*") == 0);
        found = found || (s && strcmp(s, word) == 0);
    }
    json_decref(list);
    return found || *any;
}

void api_cors(const struct serve *s, struct http_req *r)
{
    const char *origin = http_header(r, "Origin");
    bool any;

    if (!origin || !list_has(s->cfg->allowed_origins, origin, &any))
        return;
    if (any && !s->cfg->allow_credentials) {
        http_set_header(r, "Access-Control-Allow-Origin", "*");
    } else {
        http_set_header(r, "Access-Control-Allow-Origin", origin);
        http_set_header(r, "Vary", "Origin");
    }
    if (s->cfg->allow_credentials)
        http_set_header(r, "Access-Control-Allow-Credentials", "true");
}

/* A header with the words of a JSON list (an option's text), or `all` where the list has "*". */
static void set_list(struct http_req *r, const char *header, const char *text, const char *all)
{
    json_t *list = NULL;
    const json_t *v;
    struct buf b;
    size_t i;
    bool any;

    if (!list_has(text, "*", &any) &&
        (!text || json_read(&list, text, strlen(text), NULL, NULL) < 0))
        return;
    buf_init(&b, BUF_MAX_LINE);
    json_array_foreach(list, i, v)
    {
        buf_printf(&b, "%s%s", i ? ", " : "", json_is_string(v) ? json_string_value(v) : "");
    }
    if (any ? all != NULL : b.len > 0)
        http_set_header(r, header, any ? all : b.data);
    buf_finish(&b);
    json_decref(list);
}

/* OPTIONS with the headers of a preflight, from an origin that is allowed. */
static bool answer_preflight(struct serve *s, struct http_req *r)
{
    const char *method = http_header(r, "Access-Control-Request-Method");
    const char *headers = http_header(r, "Access-Control-Request-Headers");
    const char *origin = http_header(r, "Origin");
    bool any;

    if (!method || !origin || strcmp(http_method(r), "OPTIONS") != 0 ||
        !list_has(s->cfg->allowed_origins, origin, &any))
        return false;
    set_list(r, "Access-Control-Allow-Methods", s->cfg->allowed_methods,
             "GET, HEAD, OPTIONS, POST");
    set_list(r, "Access-Control-Allow-Headers", s->cfg->allowed_headers, headers);
    http_set_header(r, "Access-Control-Max-Age", "600");
    api_reply(s, r, 200, "text/plain; charset=utf-8", "OK", 2);
    return true;
}

/* ---- routing ---- */

bool api_id_ok(const char *id)
{
    size_t n = strlen(id);

    if (n == 0 || n > API_MAX_ID)
        return false;
    for (size_t i = 0; i < n; i++)
        if (!isgraph((unsigned char)id[i]))
            return false;
    return true;
}

const char *api_request_id(const struct http_req *r)
{
    const char *id = http_header(r, "X-Request-Id");

    return id && api_id_ok(id) ? id : NULL;
}

const char *api_path(const struct serve *s, const struct http_req *r)
{
    const char *path = http_path(r), *root = s->cfg->root_path;
    size_t n = root ? strlen(root) : 0;

    while (n > 0 && root[n - 1] == '/')
        n--;
    return n > 0 && strncmp(path, root, n) == 0 && path[n] == '/' ? path + n : path;
}

static bool path_matches(const struct route *t, const char *path)
{
    size_t n = strlen(t->path);

    if (t->flags & ROUTE_PREFIX)
        return strncmp(path, t->path, n) == 0 && path[n] != '\0';
    return strcmp(path, t->path) == 0;
}

static const struct route *find_route(const char *method, const char *path, struct buf *allow)
{
    const struct route *found = NULL;

    for (size_t i = 0; i < N_ROUTES; i++) {
        if (!path_matches(&routes[i], path))
            continue;
        if (strcmp(method, routes[i].method) == 0)
            found = &routes[i];
        buf_printf(allow, "%s%s", allow->len ? ", " : "", routes[i].method);
    }
    return found;
}

static void reply_detail(struct serve *s, struct http_req *r, int status, const char *detail)
{
    struct buf b;

    buf_init(&b, BUF_MAX_LINE);
    buf_puts(&b, "{\"detail\":");
    json_put_text(&b, detail);
    buf_putc(&b, '}');
    api_reply_buf(s, r, status, &b);
}

static bool is_json_type(const char *type)
{
    size_t n = type ? strcspn(type, "; \t") : 0;

    return !type || (n == 16 && strncasecmp(type, "application/json", 16) == 0);
}

/* Says no where the instance or the request is not in a state for it. */
static bool refuse(struct serve *s, struct http_req *r, const struct route *t)
{
    struct oai_error e;

    if (!auth_ok(s, r)) {
        http_set_header(r, "WWW-Authenticate", "Bearer");
        api_reply(s, r, 401, "application/json", "{\"error\":\"Unauthorized\"}", 24);
        return true;
    }
    if (!(t->flags & ROUTE_ALWAYS) && !s->engine) {
        api_reply_status(s, r, 503, "the model is still being loaded");
        return true;
    }
    if ((t->flags & ROUTE_WORK) && s->phase != SERVE_READY) {
        api_reply_status(s, r, 503,
                         s->phase == SERVE_DRAINING ? "the server is shutting down"
                                                    : "the engine is not running");
        return true;
    }
    if ((t->flags & ROUTE_BODY) && !is_json_type(http_header(r, "Content-Type"))) {
        oai_fail(&e, 400, "Bad Request", NULL, "the Content-Type must be application/json");
        api_reply_error(s, r, &e);
        return true;
    }
    return false;
}

void api_handle(void *arg, struct http_req *r)
{
    struct serve *s = arg;
    const char *path = api_path(s, r);
    const struct route *t;
    struct buf allow;

    buf_init(&allow, BUF_MAX_LINE);
    t = find_route(http_method(r), path, &allow);
    s->handler = t ? t->path : allow.len ? "method not allowed" : "not found";
    api_cors(s, r);
    if (api_request_id(r))
        http_set_header(r, "X-Request-Id", api_request_id(r));
    if (answer_preflight(s, r)) {
        /* answered */
    } else if (t) {
        if (!refuse(s, r, t))
            t->fn(s, r);
    } else if (allow.len) {
        http_set_header(r, "Allow", buf_str(&allow));
        reply_detail(s, r, 405, "Method Not Allowed");
    } else {
        reply_detail(s, r, 404, "Not Found");
    }
    buf_finish(&allow);
}

void api_handle_query(void *arg, struct http_req *r)
{
    struct serve *s = arg;

    s->handler = "/query";
    if (strcmp(http_path(r), "/query") != 0 || strcmp(http_method(r), "GET") != 0)
        reply_detail(s, r, 404, "Not Found");
    else if (!s->engine)
        api_reply_status(s, r, 503, "the model is still being loaded");
    else
        on_query(s, r);
}
