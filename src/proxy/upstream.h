/* Talking to instances: which headers pass, one question to several instances, and the release of a
 * lease on P. */
#ifndef SLUICE_PROXY_UPSTREAM_H
#define SLUICE_PROXY_UPSTREAM_H

#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "net/http_client.h"
#include "proxy/members.h"
#include "proxy/splice.h"

#define UPSTREAM_MAX_HEADERS 130u

struct http_req;
struct proxy;
struct upstream_gather;

/* Headers for an instance: the client's, without those that belong to its connection (RFC 9110,
 * 7.6.1) and without Accept-Encoding, since replies are read here. Borrowed from r. */
struct upstream_headers {
    struct http_header_kv kv[UPSTREAM_MAX_HEADERS];
    size_t n;
};
/* request_id NULL: the client's, if it sent one. */
void upstream_headers(struct upstream_headers *out, const struct http_req *r,
                      const char *request_id);
/* Whether a header of an instance's reply goes to the client as it is (the body's length and type are
 * set by who sends the body). */
bool upstream_passes(const char *name);

/* One instance's answer. */
struct upstream_answer {
    char name[MEMBER_MAX_HOST + 10];
    enum http_fail fail;
    int status; /* 0: none */
    char type[128];
    struct buf body;
};

/* Sends the client's request (method, headers, body; path as given) to the members and calls done
 * once, when all have answered or failed; never before this returns. If the client leaves first,
 * all is canceled and done does not run. The answers are borrowed for the call. ERR_NOMEM: r is still
 * the caller's. */
int upstream_ask(struct proxy *p, struct http_req *r, struct member *const *to, size_t n,
                 const char *path,
                 void (*done)(struct proxy *p, struct http_req *r, const struct upstream_answer *a,
                              size_t n));
/* Ends all questions and releases that are on their way. */
void upstream_cancel_all(struct proxy *p);

/* Tells P that nobody will pull what kv_params describe: POST /v1/kv/release. Nobody waits for it;
 * the lease's expiry is the net below. An instance that does not know the path is not asked again.
 * authorization: the client's header, NULL if it sent none. */
void upstream_release(struct proxy *p, struct member *prefiller, struct splice_text kv_params,
                      const char *authorization);

#endif
