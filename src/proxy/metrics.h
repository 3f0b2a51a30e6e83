/* The proxy's own counters, as Prometheus text. */
#ifndef SLUICE_PROXY_METRICS_H
#define SLUICE_PROXY_METRICS_H

#include <stdint.h>

struct buf;
struct members;

/* Why a request was not answered as its client hoped. */
#define PROXY_CAUSE_LIST(X)                                                                        \
    X(CAUSE_UPSTREAM_4XX, "upstream_4xx")                                                          \
    X(CAUSE_UPSTREAM_5XX, "upstream_5xx")                                                          \
    X(CAUSE_CONNECT, "connect")                                                                    \
    X(CAUSE_TIMEOUT, "timeout")                                                                    \
    X(CAUSE_BROKEN, "broken")                                                                      \
    X(CAUSE_NO_INSTANCE, "no_instance")                                                            \
    X(CAUSE_BAD_REQUEST, "bad_request")                                                            \
    X(CAUSE_CLIENT_GONE, "client_gone")                                                            \
    X(CAUSE_CLIENT_SLOW, "client_slow")                                                            \
    X(CAUSE_SHUTDOWN, "shutdown")                                                                  \
    X(CAUSE_INTERNAL, "internal")

enum proxy_cause {
    CAUSE_NONE,
#define CAUSE_ENUM(id, text) id,
    PROXY_CAUSE_LIST(CAUSE_ENUM)
#undef CAUSE_ENUM
        CAUSE_COUNT
};

struct proxy_metrics {
    uint64_t requests[6]; /* by the first digit of the status; 0: the client left */
    uint64_t errors[CAUSE_COUNT];
    uint64_t retries[2]; /* by member_role */
    uint64_t given_back; /* requests that D gave back, prefilled anew */
    uint64_t releases;   /* leases that P was told to let go */
    uint64_t events;     /* of streams, relayed */
    uint64_t prefills;   /* and the seconds that they took */
    double prefill_seconds;
    uint64_t first_bytes; /* replies that began, and the seconds from request to first byte */
    double first_byte_seconds;
    uint32_t running;
};

void metrics_print(struct buf *out, const struct proxy_metrics *m, const struct members *ms);

#endif
