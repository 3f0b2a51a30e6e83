/* A request as the handler sees it. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/status.h"
#include "net/server_impl.h"
#include "sys/clock.h"

/* "/path" of "http://host/path"; other targets as they are. */
static const char *origin_form(const char *target)
{
    const char *host = strncasecmp(target, "http://", 7) == 0    ? target + 7
                       : strncasecmp(target, "https://", 8) == 0 ? target + 8
                                                                 : NULL;
    const char *path;

    if (!host)
        return target;
    path = strchr(host, '/');
    return path ? path : "/";
}

/* Writes name NUL value NUL for each pair of "a=1&b&c=%20". A pair that cannot be decoded is left
 * out. `to` has room for twice the text. */
static size_t split_query(char *to, const char *text)
{
    size_t n = 0;

    while (*text) {
        size_t pair = strcspn(text, "&#"), name = strcspn(text, "=&#");
        size_t value = pair > name ? pair - name - 1 : 0;
        char *v = to + name + 1;

        memcpy(to, text, name);
        to[name] = '\0';
        memcpy(v, text + pair - value, value);
        v[value] = '\0';
        if (pair && http_percent_decode(to, true) && http_percent_decode(v, true)) {
            size_t name_len = strlen(to), value_len = strlen(v);

            memmove(to + name_len + 1, v, value_len + 1);
            to += name_len + value_len + 2;
            n++;
        }
        text += pair;
        if (*text == '#')
            break;
        text += *text == '&';
    }
    return n;
}

static int split_target(struct http_req *r)
{
    const char *target = origin_form(r->bytes + r->head.target.at);
    size_t path_len = strcspn(target, "?#");

    r->path = strndup(target, path_len);
    if (!r->path)
        return ERR_NOMEM;
    if (target[path_len] == '?') {
        const char *text = target + path_len + 1;

        r->query = malloc(2 * strlen(text) + 2);
        if (!r->query)
            return ERR_NOMEM;
        r->n_query = split_query(r->query, text);
    }
    return http_percent_decode(r->path, false) ? 0 : ERR_BADMSG;
}

struct http_req *http_req_create(struct http_conn *c, const char *head, size_t len, int *st)
{
    struct http_req *r = malloc(sizeof *r);

    *st = ERR_NOMEM;
    if (!r)
        return NULL;
    /* head (2 KiB of fields) is written by the parser. */
    memset(&r->bytes, 0, sizeof *r - offsetof(struct http_req, bytes));
    r->conn = c;
    r->start = clock_now();
    buf_init(&r->body, c->server->opt.max_body);
    buf_init(&r->headers, BUF_MAX_LINE);
    r->bytes = malloc(len);
    if (r->bytes) {
        memcpy(r->bytes, head, len);
        *st = http_parse_request(&r->head, r->bytes, len);
    }
    if (*st == 0) {
        http_head_terminate(&r->head, r->bytes);
        r->no_body = strcmp(http_method(r), "HEAD") == 0;
        *st = split_target(r);
    }
    if (*st < 0) {
        http_req_destroy(r);
        return NULL;
    }
    return r;
}

void http_req_destroy(struct http_req *r)
{
    if (!r)
        return;
    buf_finish(&r->body);
    buf_finish(&r->headers);
    free(r->bytes);
    free(r->path);
    free(r->query);
    free(r);
}

const char *http_method(const struct http_req *r)
{
    return r->bytes + r->head.method.at;
}

const char *http_path(const struct http_req *r)
{
    return r->path;
}

const char *http_target(const struct http_req *r)
{
    return origin_form(r->bytes + r->head.target.at);
}

const char *http_query(const struct http_req *r, const char *name)
{
    const char *p = r->query;

    for (size_t i = 0; i < r->n_query; i++) {
        const char *value = p + strlen(p) + 1;

        if (strcmp(p, name) == 0)
            return value;
        p = value + strlen(value) + 1;
    }
    return NULL;
}

const char *http_header(const struct http_req *r, const char *name)
{
    return http_head_field(&r->head, r->bytes, name);
}

void http_each_header(const struct http_req *r,
                      void (*fn)(void *arg, const char *name, const char *value), void *arg)
{
    for (uint32_t i = 0; i < r->head.n_fields; i++)
        fn(arg, r->bytes + r->head.field[i].name.at, r->bytes + r->head.field[i].value.at);
}

const char *http_body(const struct http_req *r, size_t *len)
{
    *len = r->body.len;
    return buf_str(&r->body);
}

const char *http_peer(const struct http_req *r)
{
    return r->conn ? r->conn->peer : "gone";
}

double http_start_time(const struct http_req *r)
{
    return r->start;
}
