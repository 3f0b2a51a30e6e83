/* How ranks find each other: rank 0 listens, the others connect and say who they are; when all have
 * come, each gets the addresses of all. The connections stay open: that one ends tells that its
 * rank has ended. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/status.h"
#include "comm/group_internal.h"
#include "sys/clock.h"
#include "sys/netif.h"

#define MAGIC       0x736c756963653031ull
#define RETRY_PAUSE 0.05 /* seconds between attempts to reach rank 0, which may not be there yet */
#define NONCE_BYTES 32
/* Seconds without a word until the other end of a meeting connection is asked, and again, so often. */
#define KEEP_IDLE     5
#define KEEP_INTERVAL 3
#define KEEP_COUNT    3

/* Sent by rank 0 first: what the proof of the secret is made from. */
struct hello {
    uint64_t magic;
    unsigned char nonce[NONCE_BYTES];
};

/* The answer, followed by the UCX address. */
struct arrival {
    uint64_t magic, about;
    uint32_t rank, size, address_len;
    struct hash256 proof;
};

/* What rank 0 says of it. */
struct verdict {
    int32_t status;
    char text[200];
};

/* A host that has gone without a word, as when a cable is cut, is missed after so long. */
static void keep_alive(int fd)
{
    const int yes = 1, idle = KEEP_IDLE, interval = KEEP_INTERVAL, count = KEEP_COUNT;

    if (setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count) < 0)
        return; /* then only steps that take too long tell */
}

static int wait_fd(int fd, short events, double until)
{
    struct pollfd p = { .fd = fd, .events = events };
    double left = until - clock_now();
    int n;

    if (left <= 0)
        return ERR_TIMEOUT;
    n = poll(&p, 1, (int)fmin(ceil(left * 1e3), 60e3));
    if (n < 0 && errno != EINTR)
        return ERR_IO;
    return n > 0 ? 0 : ERR_AGAIN;
}

/* All of it, both ways, before `until`. */
static int send_all(int fd, const void *data, size_t n, double until)
{
    const char *p = data;

    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        int st;

        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k < 0 && errno != EAGAIN && errno != EINTR) {
            return ERR_CLOSED;
        } else if ((st = wait_fd(fd, POLLOUT, until)) < 0 && st != ERR_AGAIN) {
            return st;
        }
    }
    return 0;
}

static int recv_all(int fd, void *data, size_t n, double until)
{
    char *p = data;

    while (n > 0) {
        ssize_t k = recv(fd, p, n, MSG_DONTWAIT);
        int st;

        if (k > 0) {
            p += k;
            n -= (size_t)k;
        } else if (k == 0 || (errno != EAGAIN && errno != EINTR)) {
            return ERR_CLOSED;
        } else if ((st = wait_fd(fd, POLLIN, until)) < 0 && st != ERR_AGAIN) {
            return st;
        }
    }
    return 0;
}

/* HMAC of nonce and rank under the secret. */
static void prove(struct hash256 *out, const char *secret, const unsigned char *nonce,
                  uint32_t rank)
{
    const struct hash_part parts[] = { { nonce, NONCE_BYTES }, { &rank, sizeof rank } };

    hash_hmac_sha256(out, secret ? secret : "", secret ? strlen(secret) : 0, parts, 2);
}

int group_listen(int *fd, uint16_t *port_out, const char *host, uint16_t port, struct err *e)
{
    union link_address a;
    socklen_t len;
    char text[NETIF_LIST_MAX];
    int s, one = 1, st = link_resolve(&a, host, port, true, e);

    if (st < 0)
        return st;
    s = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0)
        return err_set(e, ERR_LIMIT, "no socket: %s", strerror(errno));
    setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    len = link_address_len(&a);
    if (bind(s, &a.sa, len) < 0 || listen(s, GROUP_MAX_RANKS) < 0 ||
        getsockname(s, &a.sa, &len) < 0) {
        st = errno;
        close(s);
        if (st == EADDRINUSE)
            return err_set(e, ERR_BUSY, "%s:%u: the port is in use; choose another", host, port);
        netif_list(text);
        return err_set(e, ERR_INVAL, "%s is not an address of this host (%s); it has %s", host,
                       strerror(st), text);
    }
    *fd = s;
    *port_out = link_address_port(&a);
    return 0;
}

static int refuse(int fd, double until, int status, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

static int refuse(int fd, double until, int status, const char *fmt, ...)
{
    struct verdict v = { .status = status };
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(v.text, sizeof v.text, fmt, ap);
    va_end(ap);
    send_all(fd, &v, sizeof v, until);
    close(fd);
    return status;
}

/* One rank at the door: checked, and let in. A stranger, or one that does not fit, is told why and
 * turned away; only a rank that does not fit ends the meeting. */
static int let_in(struct group_base *b, int fd, double until, struct err *e)
{
    struct hello h = { .magic = MAGIC };
    struct arrival a;
    struct hash256 proof;
    struct group_peer *p;
    double patience = fmin(until, clock_now() + 5);

    keep_alive(fd);
    if (getrandom(h.nonce, sizeof h.nonce, 0) != sizeof h.nonce ||
        send_all(fd, &h, sizeof h, patience) < 0 || recv_all(fd, &a, sizeof a, patience) < 0 ||
        a.magic != MAGIC) {
        close(fd);
        return 0;
    }
    prove(&proof, b->o.secret, h.nonce, a.rank);
    if (!hash_equal(&proof, &a.proof)) {
        refuse(fd, patience, ERR_AUTH, "the secret is not that of rank 0");
        return 0;
    }
    if (a.size != b->o.size || a.rank == 0 || a.rank >= b->o.size || b->fd[a.rank] >= 0)
        return err_set(e,
                       refuse(fd, patience, ERR_MISMATCH,
                              "rank %u of %u does not fit a group of %u, or is there already",
                              a.rank, a.size, b->o.size),
                       "rank %u of %u came to a group of %u, or came twice", a.rank, a.size,
                       b->o.size);
    if (a.about != b->o.about)
        return err_set(e,
                       refuse(fd, patience, ERR_MISMATCH,
                              "rank %u has another model, layout or version than rank 0", a.rank),
                       "rank %u has another model, layout or version than rank 0", a.rank);
    p = &b->peer[a.rank];
    if (a.address_len == 0 || a.address_len > GROUP_ADDRESS_MAX ||
        !(p->address = malloc(a.address_len)) ||
        recv_all(fd, p->address, a.address_len, patience) < 0) {
        free(p->address);
        p->address = NULL;
        close(fd);
        return 0;
    }
    p->address_len = a.address_len;
    b->fd[a.rank] = fd;
    return 1;
}

static int missing(const struct group_base *b, struct err *e)
{
    char text[200] = "";
    size_t n = 0;

    for (uint32_t r = 1; r < b->o.size && n + 32 < sizeof text; r++)
        if (b->fd[r] < 0)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%u", n ? ", " : "", r);
    return err_set(e, ERR_TIMEOUT,
                   "rank 0 waited %.0f s at %s:%u; of %u ranks these did not come: %s",
                   b->o.meet_seconds, b->o.master_host, b->o.master_port, b->o.size, text);
}

/* To rank r: the addresses of all. */
static int send_table(struct group_base *b, uint32_t r, double until)
{
    struct verdict v = { 0 };
    int st = send_all(b->fd[r], &v, sizeof v, until);

    for (uint32_t i = 0; st == 0 && i < b->o.size; i++) {
        uint32_t len = (uint32_t)b->peer[i].address_len;

        if ((st = send_all(b->fd[r], &len, sizeof len, until)) == 0)
            st = send_all(b->fd[r], b->peer[i].address, len, until);
    }
    return st;
}

static int meet_as_first(struct group_base *b, double until, struct err *e)
{
    uint32_t here = 1;
    int st;

    while (here < b->o.size) {
        int fd;

        st = wait_fd(b->o.listen_fd, POLLIN, until);
        if (st == ERR_TIMEOUT)
            return missing(b, e);
        if (st < 0)
            continue;
        fd = accept4(b->o.listen_fd, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0)
            continue;
        if ((st = let_in(b, fd, until, e)) < 0)
            return st;
        here += (uint32_t)st;
    }
    for (uint32_t r = 1; r < b->o.size; r++)
        if ((st = send_table(b, r, until)) < 0)
            return err_set(e, st, "rank %u left while the ranks met", r);
    return 0;
}

/* Connects to rank 0, which may start later than we. */
static int reach_first(int *out, const struct group_base *b, double until, struct err *e)
{
    union link_address a;
    int st = link_resolve(&a, b->o.master_host, b->o.master_port, true, e);

    while (st == 0) {
        int fd = socket(a.sa.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

        if (fd < 0)
            return err_set(e, ERR_LIMIT, "no socket: %s", strerror(errno));
        if (connect(fd, &a.sa, link_address_len(&a)) == 0) {
            keep_alive(fd);
            *out = fd;
            return 0;
        }
        close(fd);
        if (clock_now() + RETRY_PAUSE > until)
            return err_set(e, ERR_TIMEOUT, "rank %u did not reach rank 0 at %s:%u within %.0f s",
                           b->o.rank, b->o.master_host, b->o.master_port, b->o.meet_seconds);
        clock_sleep(RETRY_PAUSE);
    }
    return st;
}

static int take_table(struct group_base *b, int fd, double until)
{
    int st = 0;

    for (uint32_t i = 0; st == 0 && i < b->o.size; i++) {
        struct group_peer *p = &b->peer[i];
        uint32_t len;

        if ((st = recv_all(fd, &len, sizeof len, until)) < 0)
            return st;
        if (len == 0 || len > GROUP_ADDRESS_MAX)
            return ERR_BADMSG;
        free(p->address);
        p->address_len = len;
        if (!(p->address = malloc(len)))
            return ERR_NOMEM;
        st = recv_all(fd, p->address, len, until);
    }
    return st;
}

static int meet_as_other(struct group_base *b, const void *own, size_t own_len, double until,
                         struct err *e)
{
    struct arrival a = { .magic = MAGIC,
                         .about = b->o.about,
                         .rank = b->o.rank,
                         .size = b->o.size,
                         .address_len = (uint32_t)own_len };
    struct verdict v;
    struct hello h;
    int st = reach_first(&b->fd[0], b, until, e);

    if (st < 0)
        return st;
    if ((st = recv_all(b->fd[0], &h, sizeof h, until)) == 0 && h.magic != MAGIC)
        st = ERR_BADMSG;
    prove(&a.proof, b->o.secret, h.nonce, a.rank);
    if (st == 0 && (st = send_all(b->fd[0], &a, sizeof a, until)) == 0 &&
        (st = send_all(b->fd[0], own, own_len, until)) == 0)
        st = recv_all(b->fd[0], &v, sizeof v, until);
    if (st == 0 && v.status < 0) {
        v.text[sizeof v.text - 1] = '\0';
        return err_set(e, v.status, "rank 0 at %s:%u refused rank %u: %s", b->o.master_host,
                       b->o.master_port, b->o.rank, v.text);
    }
    if (st == 0)
        st = take_table(b, b->fd[0], until);
    if (st < 0)
        return err_set(e, st, "rank %u met no group at %s:%u: %s", b->o.rank, b->o.master_host,
                       b->o.master_port, status_text(st));
    return 0;
}

int group_meet(struct group_base *b, const void *own, size_t own_len, struct err *e)
{
    double until = clock_now() + b->o.meet_seconds;
    struct group_peer *me = &b->peer[b->o.rank];

    if (b->o.rank > 0)
        return meet_as_other(b, own, own_len, until, e);
    if (!(me->address = malloc(own_len)))
        return err_set(e, ERR_NOMEM, "out of memory");
    memcpy(me->address, own, own_len);
    me->address_len = own_len;
    return meet_as_first(b, until, e);
}

const char *group_name(const struct group_base *b, uint32_t rank, char out[GROUP_NAME_MAX])
{
    uint32_t each = b->o.instance_ranks;

    if (each > 1)
        snprintf(out, GROUP_NAME_MAX, "rank %u of data-parallel rank %u", rank % each, rank / each);
    else
        snprintf(out, GROUP_NAME_MAX, "%srank %u", each ? "data-parallel " : "", rank);
    return out;
}

int group_break(struct group_base *b, int status, const char *fmt, ...)
{
    va_list ap;

    if (b->broken)
        return b->broken;
    va_start(ap, fmt);
    vsnprintf(b->why, sizeof b->why, fmt, ap);
    va_end(ap);
    b->broken = status;
    /* rank 0 tells all others, who tell it: what it says is the sentence */
    for (uint32_t r = 0; b->fd && r < b->o.size; r++)
        if (b->fd[r] >= 0 && send(b->fd[r], b->why, sizeof b->why, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            continue;
    return status;
}

void group_say_bye(struct group_base *b)
{
    for (uint32_t r = 0; r < b->o.size; r++)
        if (b->fd[r] >= 0 && send(b->fd[r], "b", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
            continue; /* it has gone itself */
}

void group_heard(struct group_base *b, uint32_t rank)
{
    char text[GROUP_WHY_MAX], name[GROUP_NAME_MAX];
    ssize_t n = recv(b->fd[rank], text, sizeof text, MSG_DONTWAIT);
    bool out_of_reach = n < 0 && errno != ECONNRESET;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n == 1) { /* it left as it should: whatever it sent has arrived or is on its way */
        close(b->fd[rank]);
        b->fd[rank] = -1;
        return;
    }
    if (n == sizeof text) {
        text[sizeof text - 1] = '\0';
        group_break(b, ERR_CLOSED, "%s", text);
        return;
    }
    close(b->fd[rank]);
    b->fd[rank] = -1;
    if (!b->broken)
        b->lost = (int)rank;
    group_break(b, ERR_CLOSED, "%s %s", group_name(b, rank, name),
                out_of_reach ? "cannot be reached any more" : "has ended");
}
