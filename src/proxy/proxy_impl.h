/* What the files of proxy/ share; not for others. */
#ifndef SLUICE_PROXY_PROXY_IMPL_H
#define SLUICE_PROXY_PROXY_IMPL_H

#include "proxy/metrics.h"
#include "proxy/proxy.h"

struct http_client;
struct http_req;
struct http_server;
struct pair;
struct pd_job;
struct upstream_gather;
struct upstream_release;

struct proxy {
    struct loop *loop;
    struct proxy_options opt;
    struct http_client *client;
    struct http_server *server;
    struct members *members;
    struct proxy_metrics metrics;
    struct pd_job *jobs;               /* pd.c */
    struct pair *pairs;                /* pair.c */
    struct upstream_gather *gathers;   /* upstream.c */
    struct upstream_release *releases; /* upstream.c */
    bool draining;
    bool closing; /* proxy_destroy: no new calls */
    struct loop_timer *drain_tick;
    double flush_until; /* 0: requests still run */
    void (*drained)(void *arg);
    void *drained_arg;
};

/* api.c: the handler of the HTTP server. */
void proxy_handle(void *proxy, struct http_req *r);

/* pd.c: a completion request, through P and D or D alone. */
void pd_handle(struct proxy *p, struct http_req *r);
void pd_abort_all(struct proxy *p);

/* admin.c */
void admin_healthcheck(struct proxy *p, struct http_req *r);
void admin_add(struct proxy *p, struct http_req *r);
void admin_remove(struct proxy *p, struct http_req *r);

/* models.c: what is asked of the instances on the way. */
void models_list(struct proxy *p, struct http_req *r);
void models_get(struct proxy *p, struct http_req *r);
void models_pass(struct proxy *p, struct http_req *r); /* to one instance and back */
void models_reset_prefix_cache(struct proxy *p, struct http_req *r);

#endif
