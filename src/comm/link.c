#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/link_internal.h"
#include "sys/clock.h"

#define PROGRESS_ROUNDS 64  /* worker rounds a link_progress */
#define CLOSE_SECONDS   1.0 /* longest wait for UCX to give an endpoint up */

static int make_worker(struct link *l, struct err *e)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    ucp_am_handler_param_t handler = {
        .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                      UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
        .id = LINK_AM_ID,
        .flags = UCP_AM_FLAG_WHOLE_MSG,
        .cb = link_on_am,
        .arg = l,
    };
    ucs_status_t st;

    if ((st = ucp_worker_create(l->context, &params, &l->worker)) != UCS_OK ||
        (st = ucp_worker_get_efd(l->worker, &l->efd)) != UCS_OK ||
        (st = ucp_worker_set_am_recv_handler(l->worker, &handler)) != UCS_OK)
        return err_set(e, ERR_IO, "cannot start UCX: %s", ucs_status_string(st));
    return 0;
}

int link_create(struct link **out, const char *host, const struct link_events *ev, struct err *e)
{
    struct link *l = calloc(1, sizeof *l);
    int st;

    if (!l)
        return err_set(e, ERR_NOMEM, "out of memory");
    l->ev = *ev;
    st = link_resolve(&l->address, host, 0, true, e);
    link_served_address(&l->address);
    if (st < 0 ||
        (st = link_context_create(&l->context, &l->address, UCP_FEATURE_AM, true, e)) < 0 ||
        (st = make_worker(l, e)) < 0) {
        link_destroy(l);
        return st;
    }
    link_address_host(l->host, &l->address);
    *out = l;
    return 0;
}

int link_listen(struct link *l, uint16_t port, struct err *e)
{
    ucp_listener_params_t params = {
        .field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
        .conn_handler = { .cb = link_on_request, .arg = l },
    };
    ucp_listener_attr_t attr = { .field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR };
    union link_address a = l->address;
    char name[LINK_NAME_MAX];
    ucs_status_t ucs;

    if (a.sa.sa_family == AF_INET6)
        a.in6.sin6_port = htons(port);
    else
        a.in.sin_port = htons(port);
    params.sockaddr.addr = &a.sa;
    params.sockaddr.addrlen = link_address_len(&a);
    ucs = ucp_listener_create(l->worker, &params, &l->listener);
    if (ucs != UCS_OK) {
        link_address_name(name, &a);
        l->listener = NULL;
        return err_set(e, link_status(ucs), "cannot listen at %s: %s; choose another port", name,
                       ucs == UCS_ERR_BUSY ? "the port is in use" : ucs_status_string(ucs));
    }
    if (ucp_listener_query(l->listener, &attr) == UCS_OK)
        a.any = attr.sockaddr;
    l->port = link_address_port(&a);
    return 0;
}

const char *link_host(const struct link *l)
{
    return l->host;
}

uint16_t link_port(const struct link *l)
{
    return l->port;
}

static void close_all(struct link *l)
{
    double until = clock_now() + CLOSE_SECONDS;

    for (struct link_peer *p = l->peers; p; p = p->next)
        link_close(p, ERR_CANCELED);
    for (link_sweep(l); l->peers && clock_now() < until; link_sweep(l))
        if (ucp_worker_progress(l->worker) == 0)
            link_wait(l, 0.001);
}

void link_destroy(struct link *l)
{
    if (!l)
        return;
    if (l->listener) {
        for (uint32_t i = 0; i < l->n_pending; i++)
            ucp_listener_reject(l->listener, l->pending[i]);
        ucp_listener_destroy(l->listener);
    }
    if (l->worker) {
        close_all(l);
        ucp_worker_destroy(l->worker);
    }
    if (l->context)
        ucp_cleanup(l->context);
    while (l->peers) {
        struct link_peer *p = l->peers;

        l->peers = p->next;
        free(p);
    }
    free(l);
}

bool link_progress(struct link *l)
{
    bool any = false;
    int rounds = 0;

    while (rounds++ < PROGRESS_ROUNDS && ucp_worker_progress(l->worker))
        any = true;
    any |= l->n_pending > 0;
    link_accept_pending(l);
    return link_sweep(l) || any;
}

void link_wait(struct link *l, double seconds)
{
    struct pollfd fd = { .fd = l->efd, .events = POLLIN };
    int ms = seconds < 0 ? -1 : (int)fmin(ceil(seconds * 1e3), 60e3);

    /* UCX closes, and tells the other side so, in steps that it does not signal. */
    if (l->settle > 0) {
        l->settle--;
        ms = 1;
    }

    /* Arming fails while events wait to be handled: then there is nothing to sleep for. */
    if (ucp_worker_arm(l->worker) == UCS_OK)
        poll(&fd, 1, ms);
}

void link_wake(struct link *l)
{
    ucp_worker_signal(l->worker);
}
