/* Sends and receives between ranks, and waiting for them. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/status.h"
#include "comm/group_internal.h"
#include "sys/clock.h"

/* Rounds of progress before a waiting thread sleeps: some ten microseconds. */
#define SPINS         200
#define LEAVE_SECONDS 1.0  /* longest wait for UCX when leaving */
#define QUIET_SECONDS 0.01 /* without an event: UCX has done what it had to do */
#define WIRE_SECONDS  1.0  /* longest wait for that */
#define NAME_SECONDS  2.0  /* longest wait for who it was, when an operation has failed */
#define TESTS_A_LOOK                                                                               \
    64 /* calls of group_test from one look at the meeting connections to the next */
/* UCX tags: group id, sending rank (in the group), tag of the caller. */
#define TAG(id, from, tag) ((uint64_t)(id) << 48 | (uint64_t)(from) << 32 | (tag))
#define UCX_DATA           (~0u)       /* epoll data of UCX's descriptor; else a rank */
#define WATCHED_DATA       (~1u)       /* of the caller's own */
#define WIRE_TAG           0x80000000u /* collectives count from here on, but begin with the next */

uint32_t group_rank(const struct group *g)
{
    return g->rank;
}

uint32_t group_size(const struct group *g)
{
    return g->size;
}

const char *group_why(const struct group *g)
{
    return g->base->why;
}

static int make_worker(struct group_base *b, struct err *e)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SERIALIZED,
    };
    union link_address a;
    ucs_status_t ucs;
    int st;

    if ((st = link_resolve(&a, b->o.host, 0, true, e)) < 0 ||
        (st = link_context_create(&b->context, &a, UCP_FEATURE_TAG, false, e)) < 0)
        return st;
    if ((ucs = ucp_worker_create(b->context, &params, &b->worker)) != UCS_OK ||
        (ucs = ucp_worker_get_efd(b->worker, &b->efd)) != UCS_OK)
        return err_set(e, link_status(ucs), "cannot start UCX: %s", ucs_status_string(ucs));
    return 0;
}

int group_lost(const struct group *g)
{
    return g->base->lost;
}

bool group_has_left(const struct group *g, uint32_t rank)
{
    return g->base->fd[rank] < 0;
}

void group_abandon(struct group *g, const char *why)
{
    group_break(g->base, ERR_CLOSED, "%s", why);
}

static int watch(struct group_base *b, int fd, uint32_t data)
{
    struct epoll_event ev = { .events = EPOLLIN, .data.u32 = data };

    return epoll_ctl(b->epoll, EPOLL_CTL_ADD, fd, &ev) < 0 ? ERR_LIMIT : 0;
}

static int watch_all(struct group_base *b)
{
    int st;

    if ((b->epoll = epoll_create1(EPOLL_CLOEXEC)) < 0)
        return ERR_LIMIT;
    st = watch(b, b->efd, UCX_DATA);
    for (uint32_t r = 0; st == 0 && r < b->o.size; r++)
        if (b->fd[r] >= 0)
            st = watch(b, b->fd[r], r);
    return st;
}

static int meet(struct group_base *b, struct err *e)
{
    ucp_address_t *own;
    size_t len;
    ucs_status_t ucs = ucp_worker_get_address(b->worker, &own, &len);
    int st;

    if (ucs != UCS_OK)
        return err_set(e, link_status(ucs), "UCX has no address: %s", ucs_status_string(ucs));
    if (len > GROUP_ADDRESS_MAX)
        st = err_set(e, ERR_LIMIT,
                     "the UCX address has %zu bytes, more than %d; name fewer devices "
                     "(UCX_NET_DEVICES, UCX_TLS)",
                     len, GROUP_ADDRESS_MAX);
    else
        st = group_meet(b, own, len, e);
    ucp_worker_release_address(b->worker, own);
    return st;
}

static struct group *new_group(struct group_base *b, uint16_t id, uint32_t size)
{
    struct group *g = calloc(1, sizeof *g);

    if (!g)
        return NULL;
    g->base = b;
    g->id = id;
    g->size = size;
    g->ranks = calloc(size, sizeof *g->ranks);
    g->op = calloc(2 * (size_t)size, sizeof *g->op);
    if (!g->ranks || !g->op) {
        free(g->ranks);
        free(g->op);
        free(g);
        return NULL;
    }
    return g;
}

static void free_group(struct group *g)
{
    free(g->ranks);
    free(g->op);
    free(g);
}

static int open_base(struct group_base *b, struct err *e)
{
    int st;

    for (uint32_t r = 0; r < b->o.size; r++)
        b->fd[r] = -1;
    if ((st = make_worker(b, e)) < 0)
        return st;
    if (b->o.size > 1 && (st = meet(b, e)) < 0)
        return st;
    if ((st = watch_all(b)) < 0)
        return err_set(e, st, "no descriptors for a group of %u ranks: %s", b->o.size,
                       strerror(errno));
    return 0;
}

/* What was sent is on its way before the endpoints go. */
static void flush(struct group_base *b)
{
    ucp_request_param_t param = { 0 };
    double until = clock_now() + LEAVE_SECONDS;
    ucs_status_ptr_t p = ucp_worker_flush_nbx(b->worker, &param);

    while (UCS_PTR_IS_PTR(p) && ucp_request_check_status(p) == UCS_INPROGRESS &&
           clock_now() < until)
        if (ucp_worker_progress(b->worker) == 0)
            clock_sleep(0.0002);
    if (UCS_PTR_IS_PTR(p))
        ucp_request_free(p);
}

static void close_endpoints(struct group_base *b)
{
    ucp_request_param_t force = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                  .flags = UCP_EP_CLOSE_FLAG_FORCE };
    double until = clock_now() + LEAVE_SECONDS;

    for (uint32_t r = 0; b->peer && r < b->o.size; r++) {
        ucs_status_ptr_t p = b->peer[r].ep ? ucp_ep_close_nbx(b->peer[r].ep, &force) : NULL;

        while (UCS_PTR_IS_PTR(p) && ucp_request_check_status(p) == UCS_INPROGRESS &&
               clock_now() < until)
            ucp_worker_progress(b->worker);
        if (UCS_PTR_IS_PTR(p))
            ucp_request_free(p);
    }
}

void group_leave(struct group *g)
{
    struct group_base *b;

    if (!g)
        return;
    b = g->base;
    while (b->parts) {
        struct group *part = b->parts;

        b->parts = part->next;
        free_group(part);
    }
    if (b->worker && !b->broken)
        flush(b);
    /* UCX aborts the process if it is in the middle of a copy: rather leave it to the process's end. */
    if (b->worker && (!b->broken || b->settled)) {
        close_endpoints(b);
        ucp_worker_destroy(b->worker);
        b->worker = NULL;
    }
    if (b->context && !b->worker)
        ucp_cleanup(b->context);
    if (b->fd && !b->broken)
        group_say_bye(b);
    for (uint32_t r = 0; b->peer && r < b->o.size; r++) {
        free(b->peer[r].address);
        if (b->fd && b->fd[r] >= 0)
            close(b->fd[r]);
    }
    if (b->epoll >= 0)
        close(b->epoll);
    if (b->o.rank == 0 && b->o.listen_fd >= 0)
        close(b->o.listen_fd);
    free(b->fd);
    free(b->peer);
    free(b->scratch);
    free(b);
    free_group(g);
}

int group_part(struct group **out, struct group *whole, uint16_t id, const uint32_t *ranks,
               uint32_t n, struct err *e)
{
    struct group_base *b = whole->base;
    uint32_t me = n;
    struct group *g;

    for (uint32_t i = 0; i < n; i++)
        if (ranks[i] == b->o.rank)
            me = i;
    if (me == n || id == 0)
        return err_set(e, ERR_INVAL, "rank %u is not in sub-group %u", b->o.rank, id);
    if (!(g = new_group(b, id, n)))
        return err_set(e, ERR_NOMEM, "no memory for a sub-group of %u ranks", n);
    memcpy(g->ranks, ranks, n * sizeof *ranks);
    g->rank = me;
    g->next = b->parts;
    b->parts = g;
    *out = g;
    return 0;
}

/* Endpoints report through the operations that fail; the meeting connection tells who it was. */
static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    (void)arg;
    (void)ep;
    (void)status;
}

static int endpoint(ucp_ep_h *out, struct group *g, uint32_t to)
{
    struct group_base *b = g->base;
    struct group_peer *p = &b->peer[g->ranks[to]];
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = p->address,
        .err_mode = UCP_ERR_HANDLING_MODE_NONE,
        .err_handler = { .cb = on_error },
    };
    ucs_status_t ucs = UCS_OK;
    char name[GROUP_NAME_MAX];

    if (!p->ep && (ucs = ucp_ep_create(b->worker, &params, &p->ep)) != UCS_OK) {
        p->ep = NULL;
        return group_break(b, link_status(ucs), "no connection to %s: %s",
                           group_name(b, g->ranks[to], name), ucs_status_string(ucs));
    }
    *out = p->ep;
    return 0;
}

static int state_of(struct group_op *op)
{
    ucs_status_t ucs;

    if (!op->request)
        return op->status < 0 ? op->status : 1;
    ucs = ucp_request_check_status(op->request);
    if (ucs == UCS_INPROGRESS)
        return 0;
    ucp_request_free(op->request);
    op->request = NULL;
    op->status = ucs == UCS_OK ? 0 : link_status(ucs);
    return op->status < 0 ? op->status : 1;
}

/* Waits until UCX or a meeting connection has something, and hears the latter. */
static void hear(struct group_base *b, int milliseconds)
{
    struct epoll_event ev[16];
    int n = epoll_wait(b->epoll, ev, 16, milliseconds);

    for (int i = 0; i < n; i++)
        if (ev[i].data.u32 < b->o.size)
            group_heard(b, ev[i].data.u32);
}

static void sleep_for_news(struct group_base *b, double until)
{
    double left = until - clock_now();
    bool asleep = left > 0 && ucp_worker_arm(b->worker) == UCS_OK;

    /* Where UCX is never at rest, as after a lost connection, the news must be heard too. */
    hear(b, asleep ? (int)fmin(ceil(left * 1e3), 60e3) : 0);
}

/* The group is broken. What UCX is in the middle of copying comes to its end while the buffers still are
 * what they were; after this nothing moves any more. Returns why it is broken. */
static int give_up(struct group_base *b)
{
    double until = clock_now() + LEAVE_SECONDS;

    while (!b->settled && clock_now() < until)
        b->settled = ucp_worker_progress(b->worker) == 0;
    return b->broken;
}

/* An operation has failed. UCX does not say whose fault it is, but a meeting connection will in a
 * moment, if a rank has died. Returns why the group is broken. */
static int failed(struct group_base *b, int st)
{
    double until = clock_now() + NAME_SECONDS;

    for (hear(b, 0); !b->broken && clock_now() < until; hear(b, 0))
        clock_sleep(0.001);
    group_break(b, st, "an operation of rank %u failed: %s", b->o.rank, status_text(st));
    return give_up(b);
}

static int started(struct group_op *op, uint32_t peer, ucs_status_ptr_t p)
{
    op->started = true;
    op->peer = peer;
    op->request = UCS_PTR_IS_PTR(p) ? p : NULL;
    op->status = UCS_PTR_IS_ERR(p) ? link_status(UCS_PTR_STATUS(p)) : 0;
    return op->status;
}

int group_start_send(struct group *g, struct group_op *op, uint32_t to, uint32_t tag,
                     const void *data, size_t bytes)
{
    ucp_request_param_t param = { 0 };
    ucp_ep_h ep = NULL;
    int st = g->base->broken ? g->base->broken : endpoint(&ep, g, to);

    if (st < 0)
        return st;
    st = started(op, g->ranks[to],
                 ucp_tag_send_nbx(ep, data, bytes, TAG(g->id, g->rank, tag), &param));
    return st < 0 ? failed(g->base, st) : 0;
}

int group_start_recv(struct group *g, struct group_op *op, uint32_t from, uint32_t tag, void *data,
                     size_t bytes)
{
    ucp_request_param_t param = { 0 };
    int st;

    if (g->base->broken)
        return g->base->broken;
    st = started(
        op, g->ranks[from],
        ucp_tag_recv_nbx(g->base->worker, data, bytes, TAG(g->id, from, tag), UINT64_MAX, &param));
    return st < 0 ? failed(g->base, st) : 0;
}

int group_test(struct group *g, struct group_op *op)
{
    struct group_base *b = g->base;
    int st;

    ucp_worker_progress(b->worker);
    if (++b->n_tests % TESTS_A_LOOK == 0)
        hear(b, 0);
    if (b->broken)
        return give_up(b);
    st = state_of(op);
    return st < 0 ? failed(b, st) : st;
}

int group_ended(struct group *g, struct group_op *op)
{
    int st = g->base->broken ? give_up(g->base) : state_of(op);

    return st < 0 ? failed(g->base, st) : st;
}

int group_watch(struct group *g, int fd)
{
    return watch(g->base, fd, WATCHED_DATA);
}

int group_sleep(struct group *g, double seconds)
{
    struct group_base *b = g->base;

    if (!b->broken && ucp_worker_progress(b->worker) == 0)
        sleep_for_news(b, clock_now() + seconds);
    return b->broken ? give_up(b) : 0;
}

int group_wait(struct group *g, struct group_op *op)
{
    struct group_base *b = g->base;
    char me[GROUP_NAME_MAX], other[GROUP_NAME_MAX];
    double until = 0;

    for (unsigned spins = 0;; spins++) {
        int st = state_of(op);

        if (st != 0)
            return st < 0 ? failed(b, st) : 0;
        if (b->broken)
            return give_up(b);
        if (ucp_worker_progress(b->worker) || spins < SPINS)
            continue;
        if (until == 0)
            until = clock_now() + b->o.op_seconds;
        if (clock_now() >= until) {
            group_break(b, ERR_TIMEOUT, "%s waited %.0f s for %s", group_name(b, b->o.rank, me),
                        b->o.op_seconds, group_name(b, op->peer, other));
            return give_up(b);
        }
        sleep_for_news(b, until);
    }
}

int group_send(struct group *g, uint32_t to, uint32_t tag, const void *data, size_t bytes)
{
    struct group_op op = { 0 };
    int st = group_start_send(g, &op, to, tag, data, bytes);

    return st < 0 ? st : group_wait(g, &op);
}

int group_recv(struct group *g, uint32_t from, uint32_t tag, void *data, size_t bytes)
{
    struct group_op op = { 0 };
    int st = group_start_recv(g, &op, from, tag, data, bytes);

    return st < 0 ? st : group_wait(g, &op);
}

/* The lower rank of a pair speaks first, so that UCX does not connect it from both ends at once and
 * throw one connection away. */
static int wire_all(struct group *g)
{
    char byte = 0, in[GROUP_MAX_RANKS];
    int st = 0;

    for (uint32_t r = 0; st == 0 && r < g->size; r++)
        if (r != g->rank)
            st = group_start_recv(g, &g->op[r], r, WIRE_TAG, &in[r], 1);
    for (uint32_t r = g->rank + 1; st == 0 && r < g->size; r++)
        st = group_start_send(g, &g->op[g->size + r], r, WIRE_TAG, &byte, 1);
    for (uint32_t r = 0; st == 0 && r < g->rank; r++)
        if ((st = group_wait(g, &g->op[r])) == 0)
            st = group_start_send(g, &g->op[g->size + r], r, WIRE_TAG, &byte, 1);
    for (uint32_t r = g->rank + 1; st == 0 && r < g->size; r++)
        st = group_wait(g, &g->op[r]);
    for (uint32_t r = 0; st == 0 && r < g->size; r++)
        if (r != g->rank)
            st = group_wait(g, &g->op[g->size + r]);
    return st;
}

static void wait_until_quiet(struct group_base *b)
{
    double now = clock_now(), until = now + WIRE_SECONDS, last = now;

    while (b->broken == 0 && now < until && now - last < QUIET_SECONDS) {
        if (ucp_worker_progress(b->worker))
            last = now;
        else
            sleep_for_news(b, last + QUIET_SECONDS);
        now = clock_now();
    }
}

/* UCX closes what it connected with first, when it has something better. */
static int settle(struct group *g)
{
    flush(g->base);
    wait_until_quiet(g->base);
    return group_barrier(g);
}

/* All at once on a busy host takes longer than an operation may later. */
static int wire(struct group *g)
{
    struct group_base *b = g->base;
    int st;

    b->o.op_seconds = fmax(b->o.op_seconds, b->o.meet_seconds);
    if ((st = wire_all(g)) == 0)
        st = settle(g);
    return st;
}

int group_join(struct group **out, const struct group_options *o, struct err *e)
{
    struct group_base *b = calloc(1, sizeof *b);
    struct group *g = NULL;
    int st = 0;

    if (o->size < 1 || o->size > GROUP_MAX_RANKS || o->rank >= o->size)
        st = err_set(e, ERR_RANGE, "rank %u of %u: a group has 1 to %d ranks", o->rank, o->size,
                     GROUP_MAX_RANKS);
    if (b) {
        b->o = *o;
        b->epoll = b->lost = -1;
        b->fd = calloc(o->size, sizeof *b->fd);
        b->peer = calloc(o->size, sizeof *b->peer);
        b->scratch = malloc(o->scratch + 1);
        g = new_group(b, 0, o->size);
    }
    if (st == 0 && (!b || !b->fd || !b->peer || !b->scratch || !g))
        st = err_set(e, ERR_NOMEM, "no memory for a group of %u ranks", o->size);
    if (st == 0)
        st = open_base(b, e);
    if (st < 0) {
        if (g)
            group_leave(g);
        else
            free(b);
        return st;
    }
    g->rank = o->rank;
    for (uint32_t r = 0; r < o->size; r++)
        g->ranks[r] = r;
    if (g->size > 1 && (st = wire(g)) < 0) {
        err_set(e, st, "%s", group_why(g));
        group_leave(g);
        return st;
    }
    b->o.op_seconds = o->op_seconds;
    *out = g;
    return 0;
}
