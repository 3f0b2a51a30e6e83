/* The instances behind the proxy: who they are, whether they answer, and their way in and out.
 *
 *     pending --good probe--> active --failures--> failed --good probes--> active
 *     any --members_remove--> draining --last request ended--> gone
 *
 * Each is probed all the time: GET /ready (it is 503 while the instance cannot work) or, where there
 * is no such path, /health. route.h decides what outcomes mean. Loop thread only. */
#ifndef SLUICE_PROXY_MEMBERS_H
#define SLUICE_PROXY_MEMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proxy/route.h"

#define MEMBER_MAX_HOST 256u

struct err;
struct http_client;
struct loop;
struct members;

enum member_role { MEMBER_PREFILL, MEMBER_DECODE, MEMBER_ROLES };
const char *member_role_name(enum member_role r); /* "prefill" */

struct member {
    struct route_node node; /* the first member: see member_of */
    enum member_role role;
    char host[MEMBER_MAX_HOST];
    uint16_t port;
    char name[MEMBER_MAX_HOST + 10]; /* "host:port", "[::1]:8000" */
    bool no_release;                 /* it does not know how to release leases */
    bool no_params;                  /* it has answered without kv_transfer_params */

    struct members *all; /* members.c */
    struct http_call *probe;
    int probe_status;
    bool no_ready; /* /ready is 404 there */
    double next_probe;
};

struct members_options {
    double probe_interval; /* seconds */
    double wait_interval;  /* between the probes of a pending one */
    double probe_timeout;
    const char *probe_path; /* NULL: /ready, else /health */
    bool no_probes;         /* everyone is active at once */
    uint32_t fail_limit, ok_limit, wait_limit;
};

int members_create(struct members **out, struct loop *l, struct http_client *c,
                   const struct members_options *o, struct err *e);
void members_destroy(struct members *ms);

/* "host:port", "[v6]:port", with or without "http://" before it, into host and port. ERR_INVAL. */
int member_parse(char host[MEMBER_MAX_HOST], uint16_t *port, const char *text, struct err *e);

/* An instance that is there already is left as it is; one that is draining comes back as pending.
 * ERR_LIMIT, ERR_NOMEM. */
int members_add(struct members *ms, enum member_role role, const char *host, uint16_t port,
                struct err *e);
/* ERR_NOTFOUND. */
int members_remove(struct members *ms, enum member_role role, const char *host, uint16_t port);

struct member *members_find(const struct members *ms, enum member_role role, const char *host,
                            uint16_t port); /* NULL */
/* Calls fn for each of the role; fn must not add or remove. */
void members_each(const struct members *ms, enum member_role role,
                  void (*fn)(void *arg, struct member *m), void *arg);
uint32_t members_count(const struct members *ms, enum member_role role, enum route_state s);
uint32_t members_total(const struct members *ms, enum member_role role); /* without draining ones */
/* All have been probed at least once. */
bool members_settled(const struct members *ms);

/* The best untried one, else the best of all, charged with the score; NULL: none is active. It stays
 * until members_release. */
struct member *members_pick(struct members *ms, enum member_role role, double score,
                            const uint64_t *tried, size_t n_tried);
void members_release(struct member *m, double score);
/* KV that stays on a prefill node until unhold; the node stays as long. */
void members_hold(struct member *m, double score);
void members_unhold(struct member *m, double score);
void members_report(struct member *m, enum route_outcome o);

#endif
