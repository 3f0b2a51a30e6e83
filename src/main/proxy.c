/* sluice proxy: options and wiring. */
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/log.h"
#include "base/opts.h"
#include "base/status.h"
#include "main/main.h"
#include "net/loop.h"
#include "proxy/proxy.h"

struct settings {
    const char *host;
    int64_t port;
    struct opt_list hosts[MEMBER_ROLES], ports[MEMBER_ROLES];
    int64_t max_retries;
    double retry_delay;
    double probe_interval, probe_timeout, wait_interval;
    int64_t fail_limit, ok_limit, wait_limit;
    const char *probe_path;
    bool no_probes;
    const char *connector;
    double connect_timeout, first_byte_timeout, silence_timeout;
    int64_t max_body, max_connections;
    double keep_alive;
    double shutdown_timeout;
    const char *log_level;
    bool help;
};

#define AT(member) offsetof(struct settings, member)
#define FOREVER    1e9
#define CONNECTOR  "MooncakeConnectorV1"
#define LAYERWISE  "MooncakeLayerwiseConnector"

/* The first eight and those of the health checks are the reference proxy's. */
static const struct opt_spec specs[] = {
    { "--host", OPT_STRING, AT(host), "localhost", NULL, 0, 0, "address to listen on" },
    { "--port", OPT_INT, AT(port), "8000", NULL, 0, 65535, "port to listen on" },
    { "--prefiller-hosts --prefiller-host", OPT_LIST, AT(hosts[MEMBER_PREFILL]), NULL, NULL, 0, 0,
      "hosts of the prefill instances" },
    { "--prefiller-ports --prefiller-port", OPT_LIST, AT(ports[MEMBER_PREFILL]), NULL, NULL, 0, 0,
      "their ports, one a host" },
    { "--decoder-hosts --decoder-host", OPT_LIST, AT(hosts[MEMBER_DECODE]), NULL, NULL, 0, 0,
      "hosts of the decode instances" },
    { "--decoder-ports --decoder-port", OPT_LIST, AT(ports[MEMBER_DECODE]), NULL, NULL, 0, 0,
      "their ports, one a host" },
    { "--max-retries", OPT_INT, AT(max_retries), "3", NULL, 0, 100,
      "how often a leg is tried again while the client has been sent nothing" },
    { "--retry-delay", OPT_FLOAT, AT(retry_delay), "0.001", NULL, 0, 60,
      "seconds before the first retry; doubles" },
    { "--health-check-interval", OPT_FLOAT, AT(probe_interval), "5", NULL, 0.05, 3600,
      "seconds between two health checks of an instance" },
    { "--health-check-timeout", OPT_FLOAT, AT(probe_timeout), "2", NULL, 0.05, 600,
      "seconds that a health check may take" },
    { "--health-failure-threshold", OPT_INT, AT(fail_limit), "2", NULL, 1, 1000,
      "failures in a row that put an instance out (one refused connection does)" },
    { "--health-success-threshold", OPT_INT, AT(ok_limit), "1", NULL, 1, 1000,
      "good checks in a row that bring it back" },
    { "--health-check-endpoint", OPT_STRING, AT(probe_path), NULL, NULL, 0, 0,
      "path of the check; default /ready, or /health where there is no such path" },
    { "--disable-health-check", OPT_FLAG, AT(no_probes), NULL, NULL, 0, 0,
      "take every instance for active; one that refuses a connection stays out" },
    { "--max-waiting-retries", OPT_INT, AT(wait_limit), "3", NULL, 1, 1000000,
      "checks that a new instance may fail before it counts as failed" },
    { "--waiting-retry-interval", OPT_FLOAT, AT(wait_interval), "1", NULL, 0.05, 3600,
      "seconds between the checks of a new instance" },
    { "--kv-connector", OPT_STRING, AT(connector), CONNECTOR, CONNECTOR " " LAYERWISE, 0, 0,
      "that of the instances; with " LAYERWISE " both legs are sent at once" },
    { "--connect-timeout", OPT_FLOAT, AT(connect_timeout), "5", NULL, 0.05, 3600,
      "seconds to connect to an instance" },
    { "--first-byte-timeout", OPT_FLOAT, AT(first_byte_timeout), "1800", NULL, 0, FOREVER,
      "seconds until an instance begins to reply (a long prefill, or a whole answer that is not "
      "streamed); 0: no limit" },
    { "--silence-timeout", OPT_FLOAT, AT(silence_timeout), "300", NULL, 0, FOREVER,
      "seconds of silence in the middle of a reply; 0: no limit" },
    { "--max-body-size", OPT_SIZE, AT(max_body), "64M", NULL, 1024, 1 << 30,
      "largest request body in bytes" },
    { "--max-connections", OPT_INT, AT(max_connections), "4096", NULL, 1, 1000000,
      "clients at a time" },
    { "--keep-alive", OPT_FLOAT, AT(keep_alive), "5", NULL, 0.05, 3600,
      "seconds that an idle client connection stays open" },
    { "--shutdown-timeout", OPT_FLOAT, AT(shutdown_timeout), "60", NULL, 0, 86400,
      "seconds that running requests get after SIGTERM" },
    { "--log-level", OPT_STRING, AT(log_level), NULL, NULL, 0, 0, "debug, info, warning or error" },
    { "--workers", OPT_IGNORED, 0, NULL, NULL, 0, 0, "one event loop serves all clients" },
    { "--cb-failure-threshold", OPT_IGNORED, 0, NULL, NULL, 0, 0,
      "--health-failure-threshold counts failed requests, too" },
    { "--cb-success-threshold", OPT_IGNORED, 0, NULL, NULL, 0, 0,
      "health checks bring an instance back" },
    { "--cb-recovery-timeout-secs", OPT_IGNORED, 0, NULL, NULL, 0, 0,
      "health checks bring an instance back" },
    { "--disable-circuit-breaker", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0,
      "an instance that fails is never preferred to one that does not" },
    { "--failover-max-retries", OPT_IGNORED, 0, NULL, NULL, 0, 0,
      "--max-retries counts the retries of a leg on any instance" },
    { "--failover-max-decoders", OPT_IGNORED, 0, NULL, NULL, 0, 0,
      "--max-retries counts the retries of a leg on any instance" },
    { "--disable-failover", OPT_IGNORED_FLAG, 0, NULL, NULL, 0, 0,
      "--max-retries 0 turns retries off" },
    { "--help -h", OPT_FLAG, AT(help), NULL, NULL, 0, 0, "this text" },
    { NULL, OPT_END, 0, NULL, NULL, 0, 0, NULL },
};

static const char *const flag[MEMBER_ROLES] = { "--prefiller", "--decoder" };

struct app {
    struct loop *loop;
    struct proxy *proxy;
    struct loop_timer *timer;
    const struct settings *set;
    int n_signals;
    int exit_code;
};

/* A host of the command line: catches what a lost blank does to a list. */
static int check_host(enum member_role role, size_t i, const char *host, struct err *e)
{
    bool digits_only = strspn(host, "0123456789.") == strlen(host);
    int dots = 0;

    for (const char *p = host; *p; p++)
        dots += *p == '.';
    if (host[0] == '\0' || strstr(host, "--") || strpbrk(host, " /\\,") ||
        (digits_only && dots != 3))
        return err_set(e, ERR_INVAL,
                       "%s-hosts, entry %zu: '%s' is not a host; is a blank missing between two "
                       "of them or before the end of a line?",
                       flag[role], i + 1, host);
    return 0;
}

static int add_instances(struct members *ms, const struct settings *set, enum member_role role,
                         struct err *e)
{
    const struct opt_list *hosts = &set->hosts[role], *ports = &set->ports[role];
    int st = 0;

    if (hosts->n != ports->n)
        return err_set(e, ERR_INVAL,
                       "%s-hosts has %zu entries, %s-ports has %zu: give one port for each host",
                       flag[role], hosts->n, flag[role], ports->n);
    for (size_t i = 0; i < hosts->n && st == 0; i++) {
        char text[MEMBER_MAX_HOST + 16], host[MEMBER_MAX_HOST];
        bool bare_v6 = strchr(hosts->v[i], ':') && hosts->v[i][0] != '[';
        uint16_t port;

        if ((st = check_host(role, i, hosts->v[i], e)) < 0)
            return st;
        snprintf(text, sizeof text, "%s%s%s:%s", bare_v6 ? "[" : "", hosts->v[i],
                 bare_v6 ? "]" : "", ports->v[i]);
        if ((st = member_parse(host, &port, text, e)) < 0)
            return err_prefix(e, st, "%s-ports, entry %zu", flag[role], i + 1);
        if (members_find(ms, role, host, port))
            return err_set(e, ERR_INVAL, "%s-hosts, entry %zu: %s is named twice", flag[role],
                           i + 1, text);
        st = members_add(ms, role, host, port, e);
    }
    return st;
}

/* As the reference: one of each on this machine, if no instance is named at all. */
static int add_all(struct members *ms, const struct settings *set, struct err *e)
{
    bool none = true;
    int st = 0;

    for (int role = 0; role < MEMBER_ROLES; role++)
        none = none && !set->hosts[role].n && !set->ports[role].n;
    if (none) {
        st = members_add(ms, MEMBER_PREFILL, "localhost", 8001, e);
        return st < 0 ? st : members_add(ms, MEMBER_DECODE, "localhost", 8002, e);
    }
    if (!set->hosts[MEMBER_DECODE].n)
        return err_set(e, ERR_INVAL, "--decoder-hosts names no instance: nobody would decode");
    for (int role = 0; role < MEMBER_ROLES && st == 0; role++)
        st = add_instances(ms, set, (enum member_role)role, e);
    return st;
}

static void put_active(void *arg, struct member *m)
{
    struct buf *out = arg;

    if (m->node.state == ROUTE_ACTIVE)
        buf_printf(out, " %s", m->name);
}

static void log_addresses(struct members *ms, enum member_role role)
{
    uint32_t active = members_count(ms, role, ROUTE_ACTIVE), total = members_total(ms, role);
    struct buf line;

    buf_init(&line, BUF_MAX_LINE);
    members_each(ms, role, put_active, &line);
    if (total)
        log_info("%s clients:%s", member_role_name(role),
                 line.len ? buf_str(&line) : " none reached");
    if (active < total)
        log_warning("%u of %u %s instances do not answer yet; they are used as soon as they do",
                    total - active, total, member_role_name(role));
    buf_finish(&line);
}

/* Runs until everyone has been asked once. */
static void on_settling(void *arg)
{
    struct app *a = arg;
    struct members *ms = proxy_members(a->proxy);

    if (!members_settled(ms))
        return;
    loop_timer_stop(a->timer);
    log_info("Initialized %u prefill clients and %u decode clients.",
             members_count(ms, MEMBER_PREFILL, ROUTE_ACTIVE),
             members_count(ms, MEMBER_DECODE, ROUTE_ACTIVE));
    log_addresses(ms, MEMBER_PREFILL);
    log_addresses(ms, MEMBER_DECODE);
    log_info("Listening on %s:%u", a->set->host, proxy_port(a->proxy));
    log_info("Application startup complete.");
}

static void on_drained(void *arg)
{
    struct app *a = arg;

    loop_stop(a->loop);
}

static void on_shutdown_timeout(void *arg)
{
    struct app *a = arg;

    log_warning("ending the requests that still run");
    proxy_abort(a->proxy);
}

static void on_signal(void *arg, int signo)
{
    struct app *a = arg;

    if (++a->n_signals > 1) {
        a->exit_code = 128 + signo;
        loop_stop(a->loop);
        return;
    }
    log_info("%s: taking no new requests, finishing those that run", strsignal(signo));
    loop_timer_destroy(a->timer);
    a->timer = NULL;
    if (loop_timer_create(&a->timer, a->loop, on_shutdown_timeout, a) == 0)
        loop_timer_start(a->timer, a->set->shutdown_timeout, false);
    if (proxy_drain(a->proxy, on_drained, a) < 0)
        loop_stop(a->loop);
}

static void fill_options(struct proxy_options *o, const struct settings *set)
{
    *o = (struct proxy_options){
        .host = set->host,
        .port = (uint16_t)set->port,
        .max_body = (size_t)set->max_body,
        .max_connections = (uint32_t)set->max_connections,
        .keep_alive = set->keep_alive,
        .max_retries = (uint32_t)set->max_retries,
        .together = strcmp(set->connector, LAYERWISE) == 0,
        .retry_delay = set->retry_delay,
        .connect_timeout = set->connect_timeout,
        .first_byte_timeout = set->first_byte_timeout,
        .silence_timeout = set->silence_timeout,
        .members = { .probe_interval = set->probe_interval,
                     .probe_timeout = set->probe_timeout,
                     .wait_interval = set->wait_interval,
                     .probe_path = set->probe_path,
                     .no_probes = set->no_probes,
                     .fail_limit = (uint32_t)set->fail_limit,
                     .ok_limit = (uint32_t)set->ok_limit,
                     .wait_limit = (uint32_t)set->wait_limit },
    };
}

static int start(struct app *a, struct err *e)
{
    static const int signals[] = { SIGTERM, SIGINT, 0 };
    struct proxy_options o;
    int st;

    fill_options(&o, a->set);
    if ((st = loop_create(&a->loop, e)) < 0 || (st = proxy_create(&a->proxy, a->loop, &o, e)) < 0 ||
        (st = add_all(proxy_members(a->proxy), a->set, e)) < 0)
        return st;
    if (loop_signals(a->loop, signals, on_signal, a) < 0 ||
        loop_timer_create(&a->timer, a->loop, on_settling, a) < 0)
        return err_set(e, ERR_NOMEM, "out of memory");
    loop_timer_start(a->timer, 0.01, true);
    return 0;
}

static int run(const struct settings *set, struct err *e)
{
    struct app a = { .set = set };
    int st = start(&a, e);

    if (st == 0)
        st = loop_run(a.loop);
    loop_timer_destroy(a.timer);
    proxy_destroy(a.proxy);
    loop_destroy(a.loop);
    return st < 0 ? st : a.exit_code;
}

int main_proxy(int argc, char **argv)
{
    struct settings set = { 0 };
    struct opts_seen seen = { 0 };
    enum log_level level;
    struct err e = { "" };
    int st;

    log_init("proxy");
    st = opts_parse(specs, &set, argc - 1, argv + 1, NULL, &seen, &e);
    if (st == 0 && set.help) {
        opts_help(specs, "sluice proxy [--prefiller-hosts H.. --prefiller-ports N..] "
                         "--decoder-hosts H.. --decoder-ports N..");
    } else if (st == 0) {
        if (set.log_level && log_parse_level(&level, set.log_level) < 0)
            st = err_set(&e, ERR_INVAL,
                         "--log-level: '%s' is not a level; debug, info, warning, "
                         "error",
                         set.log_level);
        else if (set.log_level)
            log_set_level(level);
        if (st == 0)
            st = run(&set, &e);
    }
    if (st < 0)
        log_error("%s", e.text);
    opts_finish(specs, &set, &seen);
    return st < 0 ? 1 : st;
}
