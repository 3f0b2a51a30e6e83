#include "proxy/proxy.h"

#include <stdlib.h>

#include "base/status.h"
#include "net/http_client.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "proxy/fault.h"
#include "proxy/pair.h"
#include "proxy/proxy_impl.h"
#include "proxy/upstream.h"

#define DRAIN_TICK_SECONDS 0.01
#define FLUSH_SECONDS      2.0 /* for clients to take their last bytes */

int proxy_create(struct proxy **out, struct loop *l, const struct proxy_options *o, struct err *e)
{
    struct http_client_options client = { .connect_timeout = o->connect_timeout,
                                          .max_idle_per_host = 256 };
    struct http_server_options server = { .host = o->host,
                                          .port = o->port,
                                          .max_body = o->max_body,
                                          .keep_alive = o->keep_alive,
                                          .max_connections = o->max_connections,
                                          .error_body = fault_body };
    struct proxy *p = calloc(1, sizeof *p);
    int st;

    if (!p)
        return err_set(e, ERR_NOMEM, "proxy: out of memory");
    p->loop = l;
    p->opt = *o;
    if ((st = http_client_create(&p->client, l, &client, e)) < 0 ||
        (st = members_create(&p->members, l, p->client, &o->members, e)) < 0 ||
        (st = http_server_create(&p->server, l, &server, proxy_handle, p, e)) < 0) {
        proxy_destroy(p);
        return st;
    }
    *out = p;
    return 0;
}

void proxy_destroy(struct proxy *p)
{
    if (!p)
        return;
    p->closing = true;
    loop_timer_destroy(p->drain_tick);
    pd_abort_all(p);
    pair_cancel_all(p);
    upstream_cancel_all(p);
    http_server_destroy(p->server);
    members_destroy(p->members);
    http_client_destroy(p->client);
    free(p);
}

struct members *proxy_members(struct proxy *p)
{
    return p->members;
}

uint16_t proxy_port(const struct proxy *p)
{
    return http_server_port(p->server);
}

/* Leases that are being released count: P should hear of them before the process ends. Then what is
 * written must still reach the clients. */
static void on_drain_tick(void *arg)
{
    struct proxy *p = arg;
    double now = loop_now(p->loop);

    if (p->jobs || p->releases || p->gathers)
        return;
    if (p->flush_until == 0) {
        http_server_stop(p->server);
        p->flush_until = now + FLUSH_SECONDS;
    }
    if (http_server_connections(p->server) && now < p->flush_until)
        return;
    loop_timer_stop(p->drain_tick);
    p->drained(p->drained_arg);
}

int proxy_drain(struct proxy *p, void (*done)(void *arg), void *arg)
{
    int st = p->drain_tick ? 0 : loop_timer_create(&p->drain_tick, p->loop, on_drain_tick, p);

    if (st < 0)
        return st;
    p->draining = true;
    p->drained = done;
    p->drained_arg = arg;
    loop_timer_start(p->drain_tick, DRAIN_TICK_SECONDS, true);
    return 0;
}

void proxy_abort(struct proxy *p)
{
    pd_abort_all(p);
}
