#include "main/serve_ports.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"
#include "net/port_owner.h"
#include "serve/config.h"
#include "sys/clock.h"

#define CLASH_SECONDS 3.0 /* a port that cannot be had ends the start within 5 */
#define CLASH_PAUSE   0.1

static bool is_any(const char *host)
{
    return !host || !host[0] || strcmp(host, "0.0.0.0") == 0 || strcmp(host, "::") == 0;
}

/* Links are served at 127.0.0.1 for any address of the loopback network (comm/link.h). */
static const char *link_host(const char *host)
{
    return host && strncmp(host, "127.", 4) == 0 ? "127.0.0.1" : host;
}

uint32_t serve_ports_plan(struct port_use use[PORT_USES_MAX], const struct serve_config *c)
{
    const struct engine_ranks *r = &c->ranks;
    uint32_t n = 0, world = r->pp * r->tp;
    bool first = c->first_rank == 0;

    if (first)
        use[n++] = (struct port_use){ "API (--port)", c->host, (uint16_t)c->port, 1 };
    if (first && c->kv.bootstrap_port)
        use[n++] = (struct port_use){ "KV bootstrap", c->host, c->kv.bootstrap_port, 1 };
    if (first && world > 1)
        use[n++] = (struct port_use){ "ranks (--master-port)", r->master_host, r->master_port, 1 };
    if (first && r->dp_size > 1 && r->dp_rank == 0)
        use[n++] = (struct port_use){ "group (--data-parallel-rpc-port)", r->dp_host, r->dp_port,
                                      1 };
    if (c->kv.produce)
        use[n++] = (struct port_use){ "KV (kv_port)", link_host(c->kv.host),
                                      c->kv.port ? (uint16_t)(c->kv.port + c->first_rank) : 0,
                                      c->n_local_ranks };
    return n;
}

static void put_use(struct buf *b, const struct port_use *u)
{
    const char *host = is_any(u->host) ? "*" : u->host;
    bool v6 = strchr(host, ':') != NULL;

    buf_printf(b, "%s %s%s%s:", u->what, v6 ? "[" : "", host, v6 ? "]" : "");
    if (!u->first)
        buf_puts(b, "any");
    else if (u->n == 1)
        buf_printf(b, "%u", u->first);
    else
        buf_printf(b, "%u-%u", u->first, u->first + u->n - 1);
}

static void show(const struct port_use *use, uint32_t n, bool print)
{
    struct buf b;

    buf_init(&b, BUF_MAX_LINE);
    for (uint32_t i = 0; i < n; i++) {
        if (i > 0)
            buf_puts(&b, print ? "\n" : ", ");
        put_use(&b, &use[i]);
    }
    if (print)
        printf("%s\n", buf_str(&b));
    else if (n > 0)
        log_info("ports: %s", buf_str(&b));
    buf_finish(&b);
}

static bool overlap(const struct port_use *a, const struct port_use *b)
{
    if (!a->first || !b->first || a->first + a->n <= b->first || b->first + b->n <= a->first)
        return false;
    return is_any(a->host) || is_any(b->host) || strcmp(a->host, b->host) == 0;
}

static int check_overlaps(const struct port_use *use, uint32_t n, struct err *e)
{
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < i; j++)
            if (overlap(&use[i], &use[j]))
                return err_set(e, ERR_INVAL, "port %u is wanted twice: for %s and for %s",
                               use[i].first > use[j].first ? use[i].first : use[j].first,
                               use[j].what, use[i].what);
    return 0;
}

/* 0, or the errno of what went wrong. */
static int try_address(const struct addrinfo *ai)
{
    int fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0), one = 1, cause = 0;

    if (fd < 0)
        return errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, ai->ai_addr, ai->ai_addrlen) < 0 || listen(fd, 1) < 0)
        cause = errno;
    close(fd);
    return cause;
}

/* A name may have addresses of a family that this host lacks: one that can be had is enough. A port that
 * nobody listens on is that of an outgoing connection, which may end soon. owner: who listens, or "". */
static int try_addresses(const struct addrinfo *list, uint16_t port, char *owner, size_t cap)
{
    double until = clock_now() + CLASH_SECONDS;
    int cause = 0;

    for (;;) {
        for (const struct addrinfo *ai = list; ai; ai = ai->ai_next)
            if ((cause = try_address(ai)) == 0 || cause == EADDRINUSE)
                break;
        if (cause != EADDRINUSE)
            return cause;
        http_port_owner(owner, cap, port);
        if (owner[0] || clock_now() >= until)
            return cause;
        clock_sleep(CLASH_PAUSE);
    }
}

static int try_port(const struct port_use *u, uint16_t port, struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE }, *list;
    char service[8], owner[80] = "";
    int cause, rc;

    snprintf(service, sizeof service, "%u", port);
    if (is_any(u->host))
        hints.ai_family = AF_INET;
    if ((rc = getaddrinfo(is_any(u->host) ? NULL : u->host, service, &hints, &list)) != 0)
        return err_set(e, ERR_INVAL, "%s: '%s': %s", u->what, u->host, gai_strerror(rc));
    cause = try_addresses(list, port, owner, sizeof owner);
    freeaddrinfo(list);
    if (cause == 0)
        return 0;
    if (cause != EADDRINUSE)
        return err_set(e, ERR_INVAL, "%s: cannot listen on %s:%u: %s", u->what,
                       is_any(u->host) ? "*" : u->host, port, strerror(cause));
    return err_set(e, ERR_BUSY,
                   "%s: cannot listen on %s:%u: %s (held by %s); give another port or stop it",
                   u->what, is_any(u->host) ? "*" : u->host, port, strerror(cause),
                   owner[0] ? owner : "an outgoing connection, it seems");
}

/* Ports from which the kernel picks those of outgoing connections may be taken at any start. */
static void warn_of_clashes(const struct port_use *use, uint32_t n)
{
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    unsigned low = 0, high = 0;
    bool known = f && fscanf(f, "%u %u", &low, &high) == 2;

    if (f)
        fclose(f);
    for (uint32_t i = 0; known && i < n; i++)
        if (use[i].first && use[i].n > 1 && use[i].first <= high &&
            use[i].first + use[i].n - 1 >= low)
            log_info("%s: this host takes ports %u-%u for outgoing connections, too; sysctl "
                     "net.ipv4.ip_local_reserved_ports=%u-%u keeps them free",
                     use[i].what, low, high, use[i].first, use[i].first + use[i].n - 1);
}

int serve_ports_check(const struct serve_config *c, bool print, struct err *e)
{
    struct port_use use[PORT_USES_MAX];
    uint32_t n = serve_ports_plan(use, c);
    int st;

    show(use, n, print);
    warn_of_clashes(use, n);
    if ((st = check_overlaps(use, n, e)) < 0)
        return st;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; use[i].first && k < use[i].n; k++)
            if ((st = try_port(&use[i], (uint16_t)(use[i].first + k), e)) < 0)
                return st;
    return 0;
}
