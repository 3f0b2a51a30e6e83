/* What http_server.c, http_conn.c and http_reply.c share; not for others. */
#ifndef SLUICE_NET_SERVER_IMPL_H
#define SLUICE_NET_SERVER_IMPL_H

#include <event2/util.h>

#include "base/buf.h"
#include "net/http_parse.h"
#include "net/http_server.h"
#include "net/port_owner.h"

struct bufferevent;
struct event;
struct event_base;
struct evconnlistener;
struct ssl_ctx_st;

#define HTTP_MAX_LISTENERS  8
#define HTTP_MAX_UNSENT     (4u << 20)
#define HTTP_HEAD_SECONDS   30.0 /* from a head's first byte to its last */
#define HTTP_BODY_SECONDS   60.0 /* silence within a request body */
#define HTTP_WRITE_SECONDS  60.0 /* no byte of a reply taken by the client */
#define HTTP_LINGER_SECONDS 2.0

struct http_server {
    struct loop *loop;
    struct event_base *base;
    struct http_server_options opt; /* defaults filled in */
    http_handler *fn;
    void *arg;
    struct evconnlistener *listeners[HTTP_MAX_LISTENERS];
    int n_listeners;
    struct event *rest; /* ends a pause of accepting */
    uint16_t port;
    struct ssl_ctx_st *tls;
    bool stopping;
    struct http_conn *conns;
    uint32_t n_conns;
};

enum conn_state {
    CONN_HEAD,    /* waits for a request head; idle while no byte of it has come */
    CONN_BODY,    /* its body */
    CONN_HANDLER, /* the handler has the request; the reply has not ended */
    CONN_LAST,    /* the last reply is being sent, then the connection closes */
    CONN_LINGER   /* our side is shut; what the client still sends is thrown away, so that it
                   * sees the reply and not a reset */
};

struct http_conn {
    struct http_server *server;
    struct http_conn *prev, *next;
    struct bufferevent *bev;
    struct event *timer;
    enum conn_state state;
    struct http_req *req; /* CONN_BODY, CONN_HANDLER */
    size_t scanned;       /* of the head */
    bool started_head;
    bool served; /* has answered before */
    bool unread; /* the client may still be sending: linger */
    bool busy;   /* conn_advance is on the stack: free later */
    bool closed;
    char peer[64];
};

struct http_req {
    struct http_conn *conn; /* NULL: the client has gone, replies are dropped */
    struct http_head head;
    char *bytes; /* the head, terminated */
    char *path;  /* decoded */
    char *query; /* n_query times name NUL value NUL, decoded; NULL: none */
    size_t n_query;
    struct buf body;
    struct http_chunked chunked;
    double start;
    void (*close_fn)(void *arg);
    void *close_arg;
    struct buf headers; /* of the reply */
    bool started;
    bool no_body; /* HEAD, or a status without body */
    bool chunked_reply;
};

/* Takes over an accepted socket. NULL: no memory (fd is closed). refuse: answer 503 and close. */
struct http_conn *http_conn_create(struct http_server *s, evutil_socket_t fd,
                                   const struct sockaddr *peer, bool refuse);
/* Closes at once; a waiting handler's close_fn runs. */
void http_conn_close(struct http_conn *c);
/* The reply to c->req has ended (req is freed by the caller): next request, or close after sending. */
void http_conn_replied(struct http_conn *c, bool keep);
/* The server takes nothing new: an idle connection closes, once its last reply is sent. */
void http_conn_stop(struct http_conn *c);

/* NULL: no memory. Takes a copy of the head. *st: 0, ERR_NOMEM, ERR_BADMSG, ERR_TOOLONG. */
struct http_req *http_req_create(struct http_conn *c, const char *head, size_t len, int *st);
void http_req_destroy(struct http_req *r);

/* Appends "HTTP/1.1 status reason, Date". */
void http_reply_head(struct buf *out, int status);

/* "127.0.0.1:80", "[::1]:80". */
void http_format_address(char *out, size_t size, const struct sockaddr *sa);

#endif
