/* HTTP/1.1 server over libevent: bytes and connections, no meaning. Loop thread only.
 *
 * Handlers get a whole request (body within max_body) and answer now or later, in one piece or as a
 * stream. TCP_NODELAY on every accepted socket; each http_reply_send goes out as one send of one chunk.
 * Oversized body 413 (connection closed, memory bounded), header block 431, malformed 400, all with
 * the body that error_body makes. Expect: 100-continue and chunked request bodies are taken. */
#ifndef SLUICE_NET_HTTP_SERVER_H
#define SLUICE_NET_HTTP_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf;
struct err;
struct http_server;
struct http_req; /* lives from the handler call until the reply has ended or http_on_close ran */
struct loop;

typedef void http_handler(void *arg, struct http_req *r);

struct http_server_options {
    const char *host; /* NULL: all addresses, v4 and v6; "::1", "127.0.0.1", names */
    uint16_t port;    /* 0: any free one, see http_server_port */
    size_t max_body;  /* 0: 8 MiB + what a full context needs is the caller's sum; default 64 MiB */
    size_t max_headers;             /* 0: 64 KiB */
    double keep_alive;              /* seconds an idle connection stays open; 0: 5 s as uvicorn */
    uint32_t max_connections;       /* 0: 4096; more are answered 503 and closed */
    const char *tls_cert, *tls_key; /* NULL: plain */
    /* Body of an error that the server itself answers (400, 413, 431, 503), e.g. OpenAI's error object.
     * NULL: {"detail": reason}. */
    void (*error_body)(struct buf *out, int status, const char *reason);
};

/* ERR_IO with the address, the port and, where known, who holds it. */
int http_server_create(struct http_server **out, struct loop *l,
                       const struct http_server_options *o, http_handler *fn, void *arg,
                       struct err *e);
/* Stops accepting (the port is free), keeps running connections. */
void http_server_stop(struct http_server *s);
/* Closes everything; on_close callbacks run. NULL is fine. */
void http_server_destroy(struct http_server *s);
uint16_t http_server_port(const struct http_server *s);
uint32_t http_server_connections(const struct http_server *s);

/* The request. All borrowed until it ends. */
const char *http_method(const struct http_req *r); /* "GET", "POST", ... any method */
const char *http_path(const struct http_req *r);   /* decoded, without query */
const char *http_target(const struct http_req *r); /* path and query as they came */
const char *http_query(const struct http_req *r, const char *name); /* NULL */
const char *http_header(const struct http_req *r,
                        const char *name); /* NULL; case does not matter */
/* Calls fn for each header in order. */
void http_each_header(const struct http_req *r,
                      void (*fn)(void *arg, const char *name, const char *value), void *arg);
const char *http_body(const struct http_req *r, size_t *len);
const char *http_peer(const struct http_req *r);  /* "127.0.0.1:53412" */
double http_start_time(const struct http_req *r); /* monotonic, when its head was complete */

/* fn(arg) runs once if the client goes away before the reply ended; r is gone after it. It is watched
 * for while the handler's work is in progress, not only on the next write. */
void http_on_close(struct http_req *r, void (*fn)(void *arg), void *arg);
/* Done with that: the callback will not run. */
void http_off_close(struct http_req *r);

/* Reply headers: set before http_reply or http_reply_start. */
void http_set_header(struct http_req *r, const char *name, const char *value);
/* A whole reply (r is gone). HEAD sends no body. type NULL: no Content-Type. */
void http_reply(struct http_req *r, int status, const char *type, const void *body, size_t len);
/* A stream: chunked, flushed at once. send returns 0, or ERR_LIMIT when the client reads too slowly
 * (more than max_unsent, 4 MiB, queued): the caller should abort. */
void http_reply_start(struct http_req *r, int status, const char *type);
int http_reply_send(struct http_req *r, const void *data, size_t len);
void http_reply_end(struct http_req *r); /* r is gone */
void http_reply_abort(
    struct http_req *r); /* cuts the connection so that the client notices; r is gone */
bool http_reply_started(const struct http_req *r);

const char *http_reason(int status); /* "Not Found" */

#endif
