/* The proxy's routes. */
#include <string.h>

#include "base/buf.h"
#include "net/http_server.h"
#include "proxy/fault.h"
#include "proxy/proxy_impl.h"

static void on_health(struct proxy *p, struct http_req *r)
{
    (void)p;
    http_reply(r, 200, NULL, NULL, 0);
}

static bool can_serve(const struct proxy *p)
{
    bool needs_prefill = members_total(p->members, MEMBER_PREFILL) > 0;

    return !p->draining && members_count(p->members, MEMBER_DECODE, ROUTE_ACTIVE) > 0 &&
           (!needs_prefill || members_count(p->members, MEMBER_PREFILL, ROUTE_ACTIVE) > 0);
}

static void on_ready(struct proxy *p, struct http_req *r)
{
    http_reply(r, can_serve(p) ? 200 : 503, NULL, NULL, 0);
}

static void on_version(struct proxy *p, struct http_req *r)
{
    static const char body[] = "{\"version\":\"" SLUICE_VERSION "\"}";

    (void)p;
    http_reply(r, 200, "application/json", body, sizeof body - 1);
}

static void on_metrics(struct proxy *p, struct http_req *r)
{
    struct buf out;

    buf_init(&out, BUF_MAX_REPLY);
    metrics_print(&out, &p->metrics, p->members);
    http_reply(r, 200, "text/plain; version=0.0.4; charset=utf-8", buf_str(&out), out.len);
    buf_finish(&out);
}

/* A path that ends in '*' stands for everything below it. */
static const struct api_route {
    const char *method, *path;
    void (*fn)(struct proxy *p, struct http_req *r);
    bool while_draining;
} routes[] = {
    { "POST", "/v1/completions", pd_handle, false },
    { "POST", "/v1/chat/completions", pd_handle, false },
    { "GET", "/v1/models", models_list, false },
    { "GET", "/v1/models/*", models_get, false },
    { "POST", "/tokenize", models_pass, false },
    { "POST", "/detokenize", models_pass, false },
    { "GET", "/health", on_health, true },
    { "GET", "/ready", on_ready, true },
    { "GET", "/healthcheck", admin_healthcheck, true },
    { "POST", "/instances/add", admin_add, false },
    { "POST", "/instances/remove", admin_remove, true },
    { "POST", "/reset_prefix_cache", models_reset_prefix_cache, false },
    { "GET", "/metrics", on_metrics, true },
    { "GET", "/version", on_version, true },
};
#define N_ROUTES (sizeof routes / sizeof *routes)

static bool path_matches(const struct api_route *route, const char *path)
{
    size_t n = strlen(route->path);

    if (route->path[n - 1] == '*')
        return strncmp(route->path, path, n - 1) == 0 && path[n - 1];
    return strcmp(route->path, path) == 0;
}

static bool method_matches(const struct api_route *route, const char *method)
{
    return strcmp(route->method, method) == 0 ||
           (strcmp(method, "HEAD") == 0 && strcmp(route->method, "GET") == 0);
}

static void no_route(struct http_req *r, const char *allow)
{
    static const char not_found[] = "{\"detail\":\"Not Found\"}";
    static const char not_allowed[] = "{\"detail\":\"Method Not Allowed\"}";

    if (!allow) {
        http_reply(r, 404, "application/json", not_found, sizeof not_found - 1);
        return;
    }
    http_set_header(r, "Allow", strcmp(allow, "GET") == 0 ? "GET, HEAD" : allow);
    http_reply(r, 405, "application/json", not_allowed, sizeof not_allowed - 1);
}

void proxy_handle(void *proxy, struct http_req *r)
{
    struct proxy *p = proxy;
    const char *path = http_path(r), *allow = NULL;

    for (size_t i = 0; i < N_ROUTES; i++) {
        if (!path_matches(&routes[i], path))
            continue;
        allow = routes[i].method;
        if (!method_matches(&routes[i], http_method(r)))
            continue;
        if (p->draining && !routes[i].while_draining)
            fault_reply(r, 503, NULL, "the proxy is shutting down");
        else
            routes[i].fn(p, r);
        return;
    }
    no_route(r, allow);
}
