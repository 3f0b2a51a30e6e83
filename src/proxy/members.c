#include "proxy/members.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "net/http_client.h"
#include "net/loop.h"

#define TICK_SECONDS 0.05 /* how closely probe times are kept */

struct members {
    struct loop *loop;
    struct http_client *client;
    struct members_options opt;
    struct route route[MEMBER_ROLES];
    struct loop_timer *tick;
    uint64_t next_id;
};

const char *member_role_name(enum member_role r)
{
    return r == MEMBER_PREFILL ? "prefill" : "decode";
}

static struct member *member_of(struct route_node *n)
{
    return (struct member *)(void *)n;
}

static void log_state(const struct member *m, const char *why)
{
    if (m->node.state == ROUTE_ACTIVE)
        log_info("%s instance %s is active", member_role_name(m->role), m->name);
    else
        log_warning("%s instance %s is %s: %s", member_role_name(m->role), m->name,
                    route_state_name(m->node.state), why);
}

static void member_free(struct member *m)
{
    struct http_call *probe = m->probe;

    m->probe = NULL;
    if (probe)
        http_call_cancel(probe);
    route_remove(&m->all->route[m->role], &m->node);
    free(m);
}

/* A draining member goes with its last request. */
static void drop_if_drained(struct member *m)
{
    if (m->node.state != ROUTE_DRAINING || m->node.requests || m->node.holds)
        return;
    log_info("%s instance %s is removed", member_role_name(m->role), m->name);
    member_free(m);
}

static void on_probe_head(void *arg, struct http_call *c, int status)
{
    struct member *m = arg;

    (void)c;
    m->probe_status = status;
}

static void on_probe_done(void *arg, enum http_fail fail, bool reused, bool got_bytes)
{
    struct member *m = arg;
    const struct members *ms = m->all;
    enum route_outcome o = ROUTE_ERROR;
    char why[96];

    (void)reused;
    (void)got_bytes;
    if (!m->probe)
        return; /* canceled by member_free */
    m->probe = NULL;
    m->next_probe = loop_now(ms->loop) + (m->node.state == ROUTE_PENDING ? ms->opt.wait_interval
                                                                         : ms->opt.probe_interval);
    if (fail == HTTP_OK && m->probe_status == 404 && !m->no_ready && !ms->opt.probe_path) {
        m->no_ready = true;
        m->next_probe = 0;
        return;
    }
    if (fail == HTTP_OK && m->probe_status / 100 == 2)
        o = ROUTE_OK;
    else if (fail == HTTP_CONNECT)
        o = ROUTE_NO_CONNECT;
    if (fail == HTTP_OK)
        snprintf(why, sizeof why, "its health check answers %d", m->probe_status);
    else
        snprintf(why, sizeof why, "health check: %s", http_fail_text(fail));
    if (route_report_probe(&ms->route[m->role], &m->node, o))
        log_state(m, why);
}

/* On a connection of its own: one that was open already proves nothing, and one that only carried a
 * probe is not kept for requests. */
static void probe(struct member *m)
{
    static const struct http_header_kv close = { "Connection", "close" };
    const struct members *ms = m->all;
    struct http_call_options o = {
        .host = m->host,
        .port = m->port,
        .method = "GET",
        .path = ms->opt.probe_path ? ms->opt.probe_path
                : m->no_ready      ? "/health"
                                   : "/ready",
        .first_byte_timeout = ms->opt.probe_timeout,
        .idle_timeout = ms->opt.probe_timeout,
        .headers = &close,
        .n_headers = 1,
        .fresh = true,
        .on_head = on_probe_head,
        .on_done = on_probe_done,
        .arg = m,
    };

    m->probe_status = 0;
    http_call(ms->client, &o, &m->probe);
}

static void on_tick(void *arg)
{
    struct members *ms = arg;
    double now = loop_now(ms->loop);

    for (int role = 0; role < MEMBER_ROLES; role++) {
        struct route *r = &ms->route[role];

        for (uint32_t i = 0; i < r->n; i++) {
            struct member *m = member_of(r->node[i]);

            if (!m->probe && now >= m->next_probe && m->node.state != ROUTE_DRAINING)
                probe(m);
        }
    }
}

int members_create(struct members **out, struct loop *l, struct http_client *c,
                   const struct members_options *o, struct err *e)
{
    struct members *ms = calloc(1, sizeof *ms);

    if (!ms || loop_timer_create(&ms->tick, l, on_tick, ms) < 0) {
        free(ms);
        return err_set(e, ERR_NOMEM, "proxy: out of memory");
    }
    ms->loop = l;
    ms->client = c;
    ms->opt = *o;
    ms->next_id = 1;
    for (int role = 0; role < MEMBER_ROLES; role++) {
        ms->route[role].fail_limit = o->fail_limit;
        ms->route[role].ok_limit = o->ok_limit;
        ms->route[role].wait_limit = o->wait_limit;
    }
    if (!o->no_probes)
        loop_timer_start(ms->tick, TICK_SECONDS, true);
    *out = ms;
    return 0;
}

void members_destroy(struct members *ms)
{
    if (!ms)
        return;
    for (int role = 0; role < MEMBER_ROLES; role++)
        while (ms->route[role].n)
            member_free(member_of(ms->route[role].node[0]));
    loop_timer_destroy(ms->tick);
    free(ms);
}

int member_parse(char host[MEMBER_MAX_HOST], uint16_t *port, const char *text, struct err *e)
{
    const char *p = strncmp(text, "http://", 7) == 0 ? text + 7 : text, *colon, *digits;
    size_t len;
    char *end;
    long v;

    colon = *p == '[' ? strstr(p, "]:") : strchr(p, ':');
    if (!colon)
        return err_set(e, ERR_INVAL, "instance '%s' is not host:port or [v6 address]:port", text);
    len = (size_t)(colon - p);
    digits = colon + 1;
    if (*p == '[') {
        p++;
        len--;
        digits++;
    }
    if (len == 0 || len >= MEMBER_MAX_HOST || strcspn(p, " /\\@?#\"'\t\r\n") < len)
        return err_set(e, ERR_INVAL, "instance '%s': bad host", text);
    errno = 0;
    v = strtol(digits, &end, 10);
    if (end == digits || (*end && strcmp(end, "/") != 0) || *digits < '0' || *digits > '9' ||
        errno || v < 1 || v > 65535)
        return err_set(e, ERR_INVAL, "instance '%s': the port is not a number from 1 to 65535",
                       text);
    memcpy(host, p, len);
    host[len] = '\0';
    *port = (uint16_t)v;
    return 0;
}

struct member *members_find(const struct members *ms, enum member_role role, const char *host,
                            uint16_t port)
{
    const struct route *r = &ms->route[role];

    for (uint32_t i = 0; i < r->n; i++) {
        struct member *m = member_of(r->node[i]);

        if (m->port == port && strcmp(m->host, host) == 0)
            return m;
    }
    return NULL;
}

int members_add(struct members *ms, enum member_role role, const char *host, uint16_t port,
                struct err *e)
{
    struct member *m = members_find(ms, role, host, port);
    bool v6 = strchr(host, ':');

    if (m) {
        if (m->node.state == ROUTE_DRAINING)
            m->node.state = ms->opt.no_probes ? ROUTE_ACTIVE : ROUTE_PENDING;
        m->next_probe = 0;
        return 0;
    }
    if (strlen(host) >= MEMBER_MAX_HOST)
        return err_set(e, ERR_INVAL, "instance host '%.64s...' is too long", host);
    m = calloc(1, sizeof *m);
    if (!m)
        return err_set(e, ERR_NOMEM, "instance %s: out of memory", host);
    m->all = ms;
    m->role = role;
    m->port = port;
    m->node.id = ms->next_id++;
    m->node.state = ms->opt.no_probes ? ROUTE_ACTIVE : ROUTE_PENDING;
    snprintf(m->host, sizeof m->host, "%s", host);
    snprintf(m->name, sizeof m->name, "%s%s%s:%u", v6 ? "[" : "", host, v6 ? "]" : "", port);
    if (route_add(&ms->route[role], &m->node) < 0) {
        free(m);
        return err_set(e, ERR_LIMIT, "more than %u %s instances", ROUTE_MAX_NODES,
                       member_role_name(role));
    }
    if (!ms->opt.no_probes)
        probe(m);
    return 0;
}

int members_remove(struct members *ms, enum member_role role, const char *host, uint16_t port)
{
    struct member *m = members_find(ms, role, host, port);

    if (!m)
        return ERR_NOTFOUND;
    m->node.state = ROUTE_DRAINING;
    drop_if_drained(m);
    return 0;
}

void members_each(const struct members *ms, enum member_role role,
                  void (*fn)(void *arg, struct member *m), void *arg)
{
    for (uint32_t i = 0; i < ms->route[role].n; i++)
        fn(arg, member_of(ms->route[role].node[i]));
}

uint32_t members_count(const struct members *ms, enum member_role role, enum route_state s)
{
    return route_count(&ms->route[role], s);
}

uint32_t members_total(const struct members *ms, enum member_role role)
{
    return ms->route[role].n - members_count(ms, role, ROUTE_DRAINING);
}

bool members_settled(const struct members *ms)
{
    for (int role = 0; role < MEMBER_ROLES; role++)
        for (uint32_t i = 0; i < ms->route[role].n; i++) {
            const struct route_node *n = ms->route[role].node[i];

            if (n->state == ROUTE_PENDING && n->probe_fails == 0)
                return false;
        }
    return true;
}

struct member *members_pick(struct members *ms, enum member_role role, double score,
                            const uint64_t *tried, size_t n_tried)
{
    struct route_node *n = route_pick(&ms->route[role], score, tried, n_tried);

    if (!n && n_tried)
        n = route_pick(&ms->route[role], score, NULL, 0);
    return n ? member_of(n) : NULL;
}

void members_release(struct member *m, double score)
{
    route_release(&m->node, score);
    drop_if_drained(m);
}

void members_hold(struct member *m, double score)
{
    route_hold(&m->node, score);
}

void members_unhold(struct member *m, double score)
{
    route_unhold(&m->node, score);
    drop_if_drained(m);
}

void members_report(struct member *m, enum route_outcome o)
{
    if (route_report(&m->all->route[m->role], &m->node, o))
        log_state(m,
                  o == ROUTE_NO_CONNECT ? "a request could not connect" : "requests fail in a row");
}
