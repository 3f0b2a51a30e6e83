/* Questions that the instances answer: models, tokenizing, and what goes to all of them. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http_server.h"
#include "proxy/fault.h"
#include "proxy/proxy_impl.h"
#include "proxy/upstream.h"

struct targets {
    struct member *m[MEMBER_ROLES * ROUTE_MAX_NODES];
    size_t n;
    bool only_active;
};

static void add_target(void *arg, struct member *m)
{
    struct targets *t = arg;

    if (m->node.state == ROUTE_ACTIVE || (!t->only_active && m->node.state != ROUTE_DRAINING))
        t->m[t->n++] = m;
}

typedef void ask_done(struct proxy *p, struct http_req *r, const struct upstream_answer *a,
                      size_t n);

/* Asks decode instances first, then prefill ones, at most `max` of them. */
static void ask(struct proxy *p, struct http_req *r, const char *path, bool only_active, size_t max,
                ask_done *done)
{
    struct targets *t = calloc(1, sizeof *t);

    if (!t) {
        fault_reply(r, 503, NULL, "the proxy is out of memory");
        return;
    }
    t->only_active = only_active;
    members_each(p->members, MEMBER_DECODE, add_target, t);
    members_each(p->members, MEMBER_PREFILL, add_target, t);
    if (t->n == 0) {
        http_set_header(r, "Retry-After", "1");
        fault_reply(r, 503, NULL, "no instance is available; try again later");
    } else if (upstream_ask(p, r, t->m, t->n < max ? t->n : max, path, done) < 0) {
        fault_reply(r, 503, NULL, "the proxy is out of memory");
    }
    free(t);
}

/* An answer as it came; a missing one is 502. */
static void reply_as_is(struct http_req *r, const struct upstream_answer *a)
{
    if (a->fail != HTTP_OK)
        fault_reply(r, 502, NULL, "instance %s: %s", a->name, http_fail_text(a->fail));
    else
        http_reply(r, a->status, a->type[0] ? a->type : NULL, buf_str(&a->body), a->body.len);
}

/* The first that came at all, to be shown when none is of use. */
static const struct upstream_answer *any_answer(const struct upstream_answer *a, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i].fail == HTTP_OK)
            return &a[i];
    return &a[0];
}

static bool has_model(const json_t *list, const json_t *model)
{
    const json_t *other;
    size_t i;

    json_array_foreach(list, i, other) if (json_equal(json_object_get(other, "id"),
                                                      json_object_get(model, "id"))) return true;
    return false;
}

/* The models of all answers, each id once; NULL: nobody gave a list. */
static json_t *merge_models(const struct upstream_answer *a, size_t n)
{
    json_t *all = NULL;

    for (size_t i = 0; i < n; i++) {
        json_t *answer = NULL, *model;
        size_t k;

        if (a[i].fail != HTTP_OK || a[i].status != 200 ||
            json_read(&answer, buf_str(&a[i].body), a[i].body.len, NULL, NULL) < 0)
            continue;
        if (!all && json_is_array(json_object_get(answer, "data")))
            all = json_array();
        json_array_foreach(json_object_get(answer, "data"), k, model) if (!has_model(all, model))
            json_array_append(all, model);
        json_decref(answer);
    }
    return all;
}

static void reply_json(struct http_req *r, const char *before, const json_t *value,
                       const char *after)
{
    struct buf out;

    buf_init(&out, BUF_MAX_REPLY);
    buf_puts(&out, before);
    json_put_value(&out, value);
    buf_puts(&out, after);
    http_reply(r, 200, "application/json", buf_str(&out), out.len);
    buf_finish(&out);
}

static void listed(struct proxy *p, struct http_req *r, const struct upstream_answer *a, size_t n)
{
    json_t *models = merge_models(a, n);

    (void)p;
    if (models)
        reply_json(r, "{\"object\":\"list\",\"data\":", models, "}");
    else
        reply_as_is(r, any_answer(a, n));
    json_decref(models);
}

void models_list(struct proxy *p, struct http_req *r)
{
    ask(p, r, "/v1/models", true, SIZE_MAX, listed);
}

static void found(struct proxy *p, struct http_req *r, const struct upstream_answer *a, size_t n)
{
    const char *id = http_path(r) + strlen("/v1/models/");
    json_t *models = merge_models(a, n), *model, *wanted = NULL;
    size_t i;

    (void)p;
    json_array_foreach(models, i, model) if (json_is_string(json_object_get(model, "id")) &&
                                             strcmp(json_string_value(json_object_get(model, "id")),
                                                    id) == 0) wanted = model;
    if (wanted)
        reply_json(r, "", wanted, "");
    else if (models)
        fault_reply(r, 404, "model", "The model `%s` does not exist.", id);
    else
        reply_as_is(r, any_answer(a, n));
    json_decref(models);
}

void models_get(struct proxy *p, struct http_req *r)
{
    ask(p, r, "/v1/models", true, SIZE_MAX, found);
}

static void passed(struct proxy *p, struct http_req *r, const struct upstream_answer *a, size_t n)
{
    (void)p;
    (void)n;
    reply_as_is(r, &a[0]);
}

void models_pass(struct proxy *p, struct http_req *r)
{
    ask(p, r, http_target(r), true, 1, passed);
}

static void was_reset(struct proxy *p, struct http_req *r, const struct upstream_answer *a,
                      size_t n)
{
    const char *comma = "";
    struct buf out;

    (void)p;
    buf_init(&out, BUF_MAX_REPLY);
    buf_puts(&out, "{\"failed\":[");
    for (size_t i = 0; i < n; i++) {
        if (a[i].fail == HTTP_OK && a[i].status / 100 == 2)
            continue;
        buf_puts(&out, comma);
        json_put_text(&out, a[i].name);
        comma = ",";
    }
    buf_puts(&out, "]}");
    if (*comma)
        http_reply(r, 500, "application/json", buf_str(&out), out.len);
    else
        http_reply(r, 200, NULL, NULL, 0);
    buf_finish(&out);
}

/* Failed instances are asked as well: the answer is about all that are configured. */
void models_reset_prefix_cache(struct proxy *p, struct http_req *r)
{
    ask(p, r, http_target(r), false, SIZE_MAX, was_reset);
}
