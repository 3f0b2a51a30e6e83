#include "comm/link_config.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucs/debug/log_def.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/status.h"

/* For links. Shared memory inside a host is comm/region.h; UCX's own (a FIFO that every sleeper must be
 * woken from, without notice of a peer's death) would only be another way for the same small messages.
 * Groups, whose ranks see each other's death by other means, take whatever is fastest: through a
 * host's memory, a fifth of the time of TCP for 4 KB and half of it for 16 MB (bench/coll). */
#define LINK_TLS "^posix,sysv,cma,xpmem,knem"

int link_status(ucs_status_t st)
{
    switch (st) {
    case UCS_OK:
    case UCS_INPROGRESS:
        return 0;
    case UCS_ERR_NO_MEMORY:
        return ERR_NOMEM;
    case UCS_ERR_TIMED_OUT:
        return ERR_TIMEOUT;
    case UCS_ERR_CANCELED:
        return ERR_CANCELED;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return ERR_INVAL;
    case UCS_ERR_BUSY:
        return ERR_BUSY;
    case UCS_ERR_EXCEEDS_LIMIT:
        return ERR_LIMIT;
    default:
        return ERR_CLOSED;
    }
}

int link_resolve(union link_address *out, const char *host, uint16_t port, bool names,
                 struct err *e)
{
    struct addrinfo hints = { .ai_socktype = SOCK_STREAM, .ai_family = AF_UNSPEC };
    struct addrinfo *list = NULL, *pick;
    char service[8];
    int rc;

    if (!names)
        hints.ai_flags = AI_NUMERICHOST;
    snprintf(service, sizeof service, "%u", port);
    rc = getaddrinfo(host, service, &hints, &list);
    if (rc != 0)
        return err_set(e, ERR_NOTFOUND,
                       names ? "cannot resolve '%s': %s" : "'%s' is no numeric address (%s)", host,
                       gai_strerror(rc));
    for (pick = list; pick && pick->ai_family != AF_INET; pick = pick->ai_next)
        ;
    if (!pick)
        pick = list;
    memset(out, 0, sizeof *out);
    memcpy(&out->any, pick->ai_addr, pick->ai_addrlen);
    freeaddrinfo(list);
    return 0;
}

uint16_t link_address_port(const union link_address *a)
{
    return ntohs(a->sa.sa_family == AF_INET6 ? a->in6.sin6_port : a->in.sin_port);
}

socklen_t link_address_len(const union link_address *a)
{
    return a->sa.sa_family == AF_INET6 ? sizeof a->in6 : sizeof a->in;
}

void link_address_host(char out[INET6_ADDRSTRLEN], const union link_address *a)
{
    const void *part = a->sa.sa_family == AF_INET6 ? (const void *)&a->in6.sin6_addr
                                                   : (const void *)&a->in.sin_addr;

    if (!inet_ntop(a->sa.sa_family, part, out, INET6_ADDRSTRLEN))
        out[0] = '\0';
}

void link_address_name(char out[LINK_NAME_MAX], const union link_address *a)
{
    char host[INET6_ADDRSTRLEN];

    link_address_host(host, a);
    if (a->sa.sa_family == AF_INET6)
        snprintf(out, LINK_NAME_MAX, "[%s]:%u", host, link_address_port(a));
    else
        snprintf(out, LINK_NAME_MAX, "%s:%u", host, link_address_port(a));
}

static bool same_host_part(const union link_address *a, const struct sockaddr *b)
{
    union link_address other = { 0 };

    if (!b || b->sa_family != a->sa.sa_family)
        return false;
    memcpy(&other, b, link_address_len(a));
    if (a->sa.sa_family == AF_INET6)
        return memcmp(&a->in6.sin6_addr, &other.in6.sin6_addr, sizeof a->in6.sin6_addr) == 0;
    return a->in.sin_addr.s_addr == other.in.sin_addr.s_addr;
}

static bool is_loopback(const union link_address *a)
{
    if (a->sa.sa_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&a->in6.sin6_addr);
    return (ntohl(a->in.sin_addr.s_addr) >> 24) == 127;
}

/* Any address of 127.0.0.0/8 is this host's, whether an interface lists it or not. */
static bool owns(const struct ifaddrs *i, const union link_address *a)
{
    union link_address other = { 0 };

    if (same_host_part(a, i->ifa_addr))
        return true;
    if (!i->ifa_addr || i->ifa_addr->sa_family != AF_INET || a->sa.sa_family != AF_INET)
        return false;
    memcpy(&other.in, i->ifa_addr, sizeof other.in);
    return is_loopback(a) && is_loopback(&other);
}

void link_served_address(union link_address *a)
{
    if (a->sa.sa_family == AF_INET && is_loopback(a))
        a->in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
}

/* The interface that owns the address. UCX opens its data connections at an interface's first IPv4
 * address whatever was asked for, and at 127.0.0.1 for the loopback interface: at any other address
 * it would listen, but no connection would come about. */
static int find_interface(char out[IFNAMSIZ], const union link_address *addr, bool serve,
                          struct err *e)
{
    struct ifaddrs *list = NULL, *own, *first;
    char name[LINK_NAME_MAX];
    int st = 0;

    link_address_name(name, addr);
    if (getifaddrs(&list) < 0)
        return err_set(e, ERR_IO, "cannot list the network interfaces");
    for (own = list; own && !owns(own, addr); own = own->ifa_next)
        ;
    for (first = list; own && first != own; first = first->ifa_next)
        if (first->ifa_addr && first->ifa_addr->sa_family == AF_INET &&
            addr->sa.sa_family == AF_INET && strcmp(first->ifa_name, own->ifa_name) == 0)
            break;
    if (!own)
        st = err_set(e, ERR_INVAL, "%s is not an address of this host; name one that is", name);
    else if (serve && (first != own || (addr->sa.sa_family == AF_INET6 && is_loopback(addr))))
        st = err_set(e, ERR_UNSUPPORTED,
                     "%s is not the first address of interface %s, and UCX serves no other; name "
                     "that one",
                     name, own->ifa_name);
    else
        snprintf(out, IFNAMSIZ, "%s", own->ifa_name);
    freeifaddrs(list);
    return st;
}

/* The interface, and the RDMA devices, which have no addresses of their own. */
static int device_list(struct buf *out, const char *interface, bool loopback)
{
    DIR *d = loopback ? NULL : opendir("/sys/class/infiniband");
    struct dirent *de;

    buf_puts(out, interface);
    while (d && (de = readdir(d)))
        if (de->d_name[0] != '.')
            buf_printf(out, ",%s:1", de->d_name);
    if (d)
        closedir(d);
    return out->status;
}

static ucs_log_func_rc_t log_from_ucx(const char *file, unsigned line, const char *function,
                                      ucs_log_level_t level,
                                      const ucs_log_component_config_t *component,
                                      const char *message, va_list ap)
{
    char text[512];

    (void)function;
    (void)component;
    if (level > UCS_LOG_LEVEL_WARN)
        return UCS_LOG_FUNC_RC_CONTINUE;
    vsnprintf(text, sizeof text, message, ap);
    /* What UCX calls an error is often a peer that went away, which is reported as such by us. */
    if (level == UCS_LOG_LEVEL_FATAL)
        log_error("UCX: %s (%s:%u)", text, file, line);
    else
        log_debug("UCX: %s (%s:%u)", text, file, line);
    return UCS_LOG_FUNC_RC_STOP;
}

static void take_log(void)
{
    if (!getenv("UCX_LOG_LEVEL"))
        ucs_log_push_handler(log_from_ucx);
}

static ucs_status_t set_default(ucp_config_t *config, const char *name, const char *value)
{
    char env[64];

    snprintf(env, sizeof env, "UCX_%s", name);
    return getenv(env) ? UCS_OK : ucp_config_modify(config, name, value);
}

static ucs_status_t init_context(ucp_context_h *out, const char *devices, bool ipv6,
                                 uint64_t features, const char *tls)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
        .features = features | UCP_FEATURE_WAKEUP,
        .name = "sluice",
    };
    ucp_config_t *config;
    ucs_status_t st;

    pthread_once(&once, take_log);
    st = ucp_config_read(NULL, NULL, &config);
    if (st != UCS_OK)
        return st;
    /* A restarted process must get its old port back although old connections linger, and connecting
     * to a host that does not answer must not hold up the thread. */
    if ((st = set_default(config, "TLS", tls)) == UCS_OK &&
        (st = set_default(config, "NET_DEVICES", devices)) == UCS_OK &&
        (st = set_default(config, "AF_PRIO", ipv6 ? "inet6,inet" : "inet,inet6")) == UCS_OK &&
        (st = set_default(config, "CM_REUSEADDR", "y")) == UCS_OK &&
        (st = set_default(config, "CONN_NB", "y")) == UCS_OK &&
        (st = set_default(config, "WARN_INVALID_CONFIG", "n")) == UCS_OK)
        st = ucp_init(&params, config, out);
    ucp_config_release(config);
    return st;
}

int link_context_create(ucp_context_h *out, const union link_address *addr, uint64_t features,
                        bool serve, struct err *e)
{
    char interface[IFNAMSIZ];
    struct buf devices;
    ucs_status_t ucs;
    int st;

    buf_init(&devices, BUF_MAX_LINE);
    if ((st = find_interface(interface, addr, serve, e)) < 0 ||
        (st = device_list(&devices, interface, is_loopback(addr))) < 0) {
        buf_finish(&devices);
        return st;
    }
    ucs = init_context(out, buf_str(&devices), addr->sa.sa_family == AF_INET6, features,
                       serve ? LINK_TLS : "all");
    if (ucs != UCS_OK)
        st = err_set(e, link_status(ucs), "cannot start UCX on %s: %s", buf_str(&devices),
                     ucs_status_string(ucs));
    buf_finish(&devices);
    return st;
}
