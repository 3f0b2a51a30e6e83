#include "proxy/metrics.h"

#include "base/buf.h"
#include "proxy/members.h"

static const char *const causes[CAUSE_COUNT] = { "none",
#define CAUSE_TEXT(id, text) text,
                                                 PROXY_CAUSE_LIST(CAUSE_TEXT)
#undef CAUSE_TEXT
};

static void family(struct buf *out, const char *name, const char *type, const char *help)
{
    buf_printf(out, "# HELP sluice:proxy_%s %s\n# TYPE sluice:proxy_%s %s\n", name, help, name,
               type);
}

static void summary(struct buf *out, const char *name, const char *help, uint64_t n, double sum)
{
    family(out, name, "summary", help);
    buf_printf(out, "sluice:proxy_%s_sum %.6f\nsluice:proxy_%s_count %llu\n", name, sum, name,
               (unsigned long long)n);
}

static void instances(struct buf *out, const struct members *ms)
{
    family(out, "instances", "gauge", "Instances by role and state.");
    for (int role = 0; role < MEMBER_ROLES; role++)
        for (int s = ROUTE_PENDING; s <= ROUTE_DRAINING; s++)
            buf_printf(out, "sluice:proxy_instances{role=\"%s\",state=\"%s\"} %u\n",
                       member_role_name((enum member_role)role),
                       route_state_name((enum route_state)s),
                       members_count(ms, (enum member_role)role, (enum route_state)s));
}

void metrics_print(struct buf *out, const struct proxy_metrics *m, const struct members *ms)
{
    family(out, "requests_total", "counter", "Completion requests by class of status.");
    for (int i = 2; i < 6; i++)
        buf_printf(out, "sluice:proxy_requests_total{status=\"%dxx\"} %llu\n", i,
                   (unsigned long long)m->requests[i]);
    buf_printf(out, "sluice:proxy_requests_total{status=\"client_gone\"} %llu\n",
               (unsigned long long)m->requests[0]);
    family(out, "errors_total", "counter", "Requests that failed, by cause.");
    for (int i = CAUSE_NONE + 1; i < CAUSE_COUNT; i++)
        buf_printf(out, "sluice:proxy_errors_total{cause=\"%s\"} %llu\n", causes[i],
                   (unsigned long long)m->errors[i]);
    family(out, "retries_total", "counter", "Legs that were tried again.");
    for (int role = 0; role < MEMBER_ROLES; role++)
        buf_printf(out, "sluice:proxy_retries_total{role=\"%s\"} %llu\n",
                   member_role_name((enum member_role)role), (unsigned long long)m->retries[role]);
    family(out, "given_back_total", "counter",
           "Requests that a decode instance without KV blocks gave back, prefilled anew.");
    buf_printf(out, "sluice:proxy_given_back_total %llu\n", (unsigned long long)m->given_back);
    family(out, "lease_releases_total", "counter", "KV leases that prefill was told to let go.");
    buf_printf(out, "sluice:proxy_lease_releases_total %llu\n", (unsigned long long)m->releases);
    family(out, "events_total", "counter", "Server-sent events relayed.");
    buf_printf(out, "sluice:proxy_events_total %llu\n", (unsigned long long)m->events);
    family(out, "requests_running", "gauge", "Completion requests in progress.");
    buf_printf(out, "sluice:proxy_requests_running %u\n", m->running);
    summary(out, "prefill_seconds", "Time of the prefill leg.", m->prefills, m->prefill_seconds);
    summary(out, "first_byte_seconds", "Time from request to first byte of the reply.",
            m->first_bytes, m->first_byte_seconds);
    instances(out, ms);
}
