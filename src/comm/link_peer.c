#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/link_internal.h"

/* A send on its way. msg follows the struct. */
struct outgoing {
    link_sent_fn *done;
    void *arg;
    unsigned char msg[];
};

/* A bulk part on its way in; the bytes follow the head. */
struct incoming {
    struct link_peer *peer;
    size_t head_len, len;
    unsigned char head[LINK_HEAD_MAX];
    unsigned char bulk[];
};

void link_close(struct link_peer *p, int why)
{
    if (p->closing)
        return;
    p->closing = true;
    p->why = why;
    p->link->closing_any = true;
    p->link->settle = LINK_SETTLE_WAITS;
}

static void on_ep_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)ep;
    link_close(arg, link_status(status));
}

static struct link_peer *find_peer(const struct link *l, ucp_ep_h ep)
{
    struct link_peer *p = l->peers;

    while (p && p->ep != ep)
        p = p->next;
    return p && !p->closing ? p : NULL;
}

/* ---- receiving ---- */

static void on_bulk(void *request, ucs_status_t status, size_t length, void *arg)
{
    struct incoming *in = arg;
    struct link_peer *p = in->peer;
    const struct link_events *ev = &p->link->ev;

    p->receives--;
    p->in_flight -= in->len;
    if (status != UCS_OK)
        link_close(p, link_status(status));
    else if (!p->closing)
        ev->on_message(ev->arg, p, in->head, in->head_len, in->bulk, length);
    free(in);
    if (request)
        ucp_request_free(request);
}

/* Fetches a bulk part that is still with the sender. */
static ucs_status_t fetch_bulk(struct link_peer *p, const void *head, size_t head_len, void *desc,
                               size_t len)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_bulk,
    };
    struct incoming *in = malloc(sizeof *in + len);
    ucs_status_ptr_t request;

    if (!in) {
        link_close(p, ERR_NOMEM);
        return UCS_OK;
    }
    in->peer = p;
    in->head_len = head_len;
    in->len = len;
    memcpy(in->head, head, head_len);
    p->receives++;
    p->in_flight += len;
    param.user_data = in;
    request = ucp_am_recv_data_nbx(p->link->worker, desc, in->bulk, len, &param);
    if (!UCS_PTR_IS_PTR(request)) /* at once: the callback is not called */
        on_bulk(NULL, UCS_PTR_STATUS(request), len, in);
    return UCS_INPROGRESS;
}

/* A message is the data of an active message without header; one with bulk is the header. */
ucs_status_t link_on_am(void *arg, const void *header, size_t header_len, void *data, size_t len,
                        const ucp_am_recv_param_t *param)
{
    struct link *l = arg;
    bool rendezvous = param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV;
    struct link_peer *p = NULL;

    if (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP)
        p = find_peer(l, param->reply_ep);
    if (!p)
        return UCS_OK;
    if (header_len == 0) {
        if (rendezvous || len > LINK_MESSAGE_MAX)
            link_close(p, ERR_TOOLONG);
        else
            l->ev.on_message(l->ev.arg, p, data, len, NULL, 0);
        return UCS_OK;
    }
    if (header_len > LINK_HEAD_MAX || len > LINK_BULK_MAX || len + p->in_flight > p->allow) {
        link_close(p, ERR_TOOLONG);
        return UCS_OK;
    }
    if (rendezvous)
        return fetch_bulk(p, header, header_len, data, len);
    l->ev.on_message(l->ev.arg, p, header, header_len, data, len);
    return UCS_OK;
}

/* ---- sending ---- */

static void finish_send(struct outgoing *o, ucs_status_t status)
{
    if (o->done)
        o->done(o->arg, link_status(status));
    free(o);
}

static void on_sent(void *request, ucs_status_t status, void *arg)
{
    finish_send(arg, status);
    ucp_request_free(request);
}

int link_send(struct link_peer *p, const void *msg, size_t len, const void *bulk, size_t bulk_len,
              link_sent_fn *done, void *arg)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_sent,
        .flags = UCP_AM_SEND_FLAG_REPLY,
    };
    struct outgoing *o;
    ucs_status_ptr_t request;

    assert(len > 0 && len <= (bulk ? LINK_HEAD_MAX : LINK_MESSAGE_MAX));
    assert(bulk_len <= LINK_BULK_MAX && (!bulk || done));
    if (p->closing)
        return ERR_CLOSED;
    o = malloc(sizeof *o + len);
    if (!o)
        return ERR_NOMEM;
    o->done = done;
    o->arg = arg;
    memcpy(o->msg, msg, len);
    param.user_data = o;
    if (bulk) {
        request = ucp_am_send_nbx(p->ep, LINK_AM_ID, o->msg, len, bulk, bulk_len, &param);
    } else {
        param.flags |= UCP_AM_SEND_FLAG_EAGER;
        request = ucp_am_send_nbx(p->ep, LINK_AM_ID, NULL, 0, o->msg, len, &param);
    }
    if (UCS_PTR_IS_ERR(request)) {
        link_close(p, link_status(UCS_PTR_STATUS(request)));
        free(o);
        return ERR_CLOSED;
    }
    if (!request)
        finish_send(o, UCS_OK);
    return 0;
}

/* ---- connections ---- */

static int make_peer(struct link_peer **out, struct link *l, ucp_ep_params_t *params)
{
    struct link_peer *p = calloc(1, sizeof *p);
    ucs_status_t ucs;

    if (!p)
        return ERR_NOMEM;
    p->link = l;
    params->field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
    params->err_mode = UCP_ERR_HANDLING_MODE_PEER;
    params->err_handler.cb = on_ep_error;
    params->err_handler.arg = p;
    ucs = ucp_ep_create(l->worker, params, &p->ep);
    if (ucs != UCS_OK) {
        free(p);
        return link_status(ucs) < 0 ? link_status(ucs) : ERR_CLOSED;
    }
    p->next = l->peers;
    l->peers = p;
    l->n_peers++;
    *out = p;
    return 0;
}

int link_connect(struct link_peer **out, struct link *l, const char *host, uint16_t port,
                 struct err *e)
{
    union link_address a;
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR,
        .flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER,
    };
    int st;

    if (l->n_peers >= LINK_PEERS_MAX)
        return err_set(e, ERR_LIMIT, "already %u connections", l->n_peers);
    if ((st = link_resolve(&a, host, port, false, e)) < 0)
        return st;
    link_served_address(&a);
    params.sockaddr.addr = &a.sa;
    params.sockaddr.addrlen = link_address_len(&a);
    if ((st = make_peer(out, l, &params)) < 0)
        return err_set(e, st, "cannot connect to %s:%u: %s", host, port, status_text(st));
    link_address_name((*out)->name, &a);
    return 0;
}

void link_on_request(ucp_conn_request_h request, void *arg)
{
    struct link *l = arg;

    if (l->n_pending == LINK_PENDING_MAX)
        ucp_listener_reject(l->listener, request);
    else
        l->pending[l->n_pending++] = request;
}

static void accept_one(struct link *l, ucp_conn_request_h request)
{
    ucp_conn_request_attr_t attr = { .field_mask = UCP_CONN_REQUEST_ATTR_FIELD_CLIENT_ADDR };
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST,
        .conn_request = request,
    };
    union link_address a = { 0 };
    struct link_peer *p = NULL;

    if (ucp_conn_request_query(request, &attr) == UCS_OK)
        a.any = attr.client_address;
    if (l->n_peers >= LINK_PEERS_MAX) {
        ucp_listener_reject(l->listener, request);
        return;
    }
    if (make_peer(&p, l, &params) < 0) /* UCX has rejected it */
        return;
    link_address_name(p->name, &a);
    l->ev.on_accept(l->ev.arg, p);
}

void link_accept_pending(struct link *l)
{
    uint32_t n = l->n_pending;

    l->n_pending = 0; /* nothing comes in while these are looked at: no progress is made */
    for (uint32_t i = 0; i < n; i++)
        accept_one(l, l->pending[i]);
}

void link_set_user(struct link_peer *p, void *user)
{
    p->user = user;
}

void *link_user(const struct link_peer *p)
{
    return p->user;
}

const char *link_peer_name(const struct link_peer *p)
{
    return p->name;
}

void link_allow_bulk(struct link_peer *p, uint64_t max)
{
    p->allow = max;
}

/* ---- ending connections ---- */

static void on_ep_closed(void *request, ucs_status_t status, void *arg)
{
    struct link_peer *p = arg;

    (void)status;
    p->ep_closed = true;
    p->close_request = NULL;
    ucp_request_free(request);
}

static void start_ep_close(struct link_peer *p)
{
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_CALLBACK |
                        UCP_OP_ATTR_FIELD_USER_DATA,
        .flags = UCP_EP_CLOSE_FLAG_FORCE,
        .cb.send = on_ep_closed,
        .user_data = p,
    };
    ucs_status_ptr_t request = ucp_ep_close_nbx(p->ep, &param);

    if (UCS_PTR_IS_PTR(request))
        p->close_request = request;
    else
        p->ep_closed = true;
}

bool link_sweep(struct link *l)
{
    struct link_peer **at = &l->peers;

    if (!l->closing_any)
        return false;
    l->closing_any = false;
    l->settle = LINK_SETTLE_WAITS;
    for (struct link_peer *p = l->peers; p; p = p->next)
        if (p->closing && !p->told) {
            p->told = true;
            l->ev.on_closed(l->ev.arg, p, p->why);
            start_ep_close(p);
        }
    while (*at) {
        struct link_peer *p = *at;

        if (p->closing && p->ep_closed && p->receives == 0) {
            *at = p->next;
            l->n_peers--;
            free(p);
            continue;
        }
        l->closing_any |= p->closing;
        at = &p->next;
    }
    return true;
}
