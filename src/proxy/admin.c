/* Looking at the instances, adding and removing them, with the reference proxy's bodies:
 * {"type": "prefill" or "decode", "instances": ["host:port", ...] or "host:port"}. */
#include <jansson.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "net/http_server.h"
#include "proxy/fault.h"
#include "proxy/proxy_impl.h"

struct list {
    struct buf *out;
    const char *comma;
};

static void put_state(void *arg, struct member *m)
{
    struct list *l = arg;

    buf_printf(l->out, "%s{\"type\":\"%s\",\"instance\":", l->comma, member_role_name(m->role));
    json_put_text(l->out, m->name);
    buf_printf(l->out, ",\"state\":\"%s\",\"requests\":%u,\"load\":%.1f,\"held_kv\":%.1f}",
               route_state_name(m->node.state), m->node.requests, m->node.tokens, m->node.kv);
    l->comma = ",";
}

static void put_name(void *arg, struct member *m)
{
    struct list *l = arg;

    if (m->node.state == ROUTE_DRAINING)
        return;
    buf_puts(l->out, l->comma);
    json_put_text(l->out, m->name);
    l->comma = ",";
}

static void put_states(struct buf *out, const struct members *ms)
{
    struct list l = { out, "" };

    buf_puts(out, "\"instances\":[");
    members_each(ms, MEMBER_PREFILL, put_state, &l);
    members_each(ms, MEMBER_DECODE, put_state, &l);
    buf_puts(out, "]");
}

static void put_names(struct buf *out, const struct members *ms, enum member_role role)
{
    struct list l = { out, "" };

    buf_printf(out, "\"current_%s_instances\":[", member_role_name(role));
    members_each(ms, role, put_name, &l);
    buf_puts(out, "],");
}

/* 503 when a role that there should be has nobody active. */
void admin_healthcheck(struct proxy *p, struct http_req *r)
{
    const struct members *ms = p->members;
    uint32_t prefill = members_total(ms, MEMBER_PREFILL);
    bool ok = members_count(ms, MEMBER_DECODE, ROUTE_ACTIVE) > 0 &&
              (prefill == 0 || members_count(ms, MEMBER_PREFILL, ROUTE_ACTIVE) > 0);
    struct buf out;

    buf_init(&out, BUF_MAX_REPLY);
    buf_printf(&out,
               "{\"status\":\"%s\",\"prefill_instances\":%u,\"decode_instances\":%u,"
               "\"active_prefill_instances\":%u,\"active_decode_instances\":%u,",
               ok ? "ok" : "unavailable", prefill, members_total(ms, MEMBER_DECODE),
               members_count(ms, MEMBER_PREFILL, ROUTE_ACTIVE),
               members_count(ms, MEMBER_DECODE, ROUTE_ACTIVE));
    put_states(&out, ms);
    buf_puts(&out, "}");
    http_reply(r, ok ? 200 : 503, "application/json", buf_str(&out), out.len);
    buf_finish(&out);
}

static int read_role(enum member_role *out, const json_t *type)
{
    const char *name = json_string_value(type);

    for (int role = 0; name && role < MEMBER_ROLES; role++) {
        if (strcmp(name, member_role_name((enum member_role)role)) != 0)
            continue;
        *out = (enum member_role)role;
        return 0;
    }
    return ERR_INVAL;
}

/* Calls fn for each address of the list; NULL fn: only checks that each is one. */
static int each_instance(const json_t *instances,
                         int (*fn)(struct members *ms, enum member_role role, const char *host,
                                   uint16_t port, struct err *e),
                         struct members *ms, enum member_role role, struct err *e)
{
    size_t n = json_is_array(instances) ? json_array_size(instances) : 1;

    if (n == 0)
        return err_set(e, ERR_INVAL, "'instances' is empty; give \"host:port\" or a list of them");
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_array(instances) ? json_array_get(instances, i)
                                                                      : instances);
        char host[MEMBER_MAX_HOST];
        uint16_t port;
        int st;

        if (!text)
            return err_set(e, ERR_INVAL,
                           "'instances' must be \"host:port\" or a list of such strings");
        if ((st = member_parse(host, &port, text, e)) < 0 ||
            (fn && (st = fn(ms, role, host, port, e)) < 0))
            return st;
    }
    return 0;
}

static int remove_one(struct members *ms, enum member_role role, const char *host, uint16_t port,
                      struct err *e)
{
    (void)e;
    return members_remove(ms, role, host, port);
}

static int must_exist(struct members *ms, enum member_role role, const char *host, uint16_t port,
                      struct err *e)
{
    if (members_find(ms, role, host, port))
        return 0;
    return err_set(e, ERR_NOTFOUND, "there is no %s instance %s:%u", member_role_name(role), host,
                   port);
}

static void reply_changed(struct proxy *p, struct http_req *r, const char *message)
{
    struct buf out;

    buf_init(&out, BUF_MAX_REPLY);
    buf_puts(&out, "{\"message\":");
    json_put_text(&out, message);
    buf_puts(&out, ",");
    put_names(&out, p->members, MEMBER_PREFILL);
    put_names(&out, p->members, MEMBER_DECODE);
    put_states(&out, p->members);
    buf_puts(&out, "}");
    http_reply(r, 200, "application/json", buf_str(&out), out.len);
    buf_finish(&out);
}

/* All addresses are checked before the first is changed. */
static void change(struct proxy *p, struct http_req *r, bool add)
{
    enum member_role role;
    struct err e = { "" };
    json_t *body = NULL;
    const json_t *instances;
    const char *text;
    size_t len;
    int st;

    text = http_body(r, &len);
    if (json_read(&body, text, len, NULL, &e) < 0 || !json_is_object(body)) {
        fault_reply(r, 400, NULL, "The request body is not a JSON object%s%s",
                    e.text[0] ? ": " : "", e.text);
        json_decref(body);
        return;
    }
    instances = json_object_get(body, "instances");
    if (read_role(&role, json_object_get(body, "type")) < 0) {
        fault_reply(r, 400, "type", "'type' must be \"prefill\" or \"decode\"");
    } else if ((st = each_instance(instances, NULL, p->members, role, &e)) < 0 ||
               (!add && (st = each_instance(instances, must_exist, p->members, role, &e)) < 0) ||
               (st = each_instance(instances, add ? members_add : remove_one, p->members, role,
                                   &e)) < 0) {
        fault_reply(r,
                    st == ERR_NOTFOUND ? 404
                    : st == ERR_INVAL  ? 400
                                       : 503,
                    "instances", "%s", e.text[0] ? e.text : "an instance is named twice");
    } else {
        reply_changed(p, r,
                      add ? "The instances are added and take requests once they are ready."
                          : "The instances take nothing new and go when idle.");
    }
    json_decref(body);
}

void admin_add(struct proxy *p, struct http_req *r)
{
    change(p, r, true);
}

void admin_remove(struct proxy *p, struct http_req *r)
{
    change(p, r, false);
}
