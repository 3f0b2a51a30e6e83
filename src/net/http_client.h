/* HTTP/1.1 client over libevent with a pool of idle connections a host. Loop thread only. */
#ifndef SLUICE_NET_HTTP_CLIENT_H
#define SLUICE_NET_HTTP_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct err;
struct http_client;
struct http_call;
struct loop;

struct http_client_options {
    double connect_timeout; /* 0: 5 s */
    double idle_reuse;      /* idle connections older than this are not reused; 0: 4 s (below the
                               * server's 5 s) */
    uint32_t max_idle_per_host; /* 0: 64 */
    size_t max_reply;           /* largest non-streamed body; 0: 64 MiB */
};

/* Why a call ended without a whole reply. */
enum http_fail {
    HTTP_OK,
    HTTP_CONNECT,
    HTTP_TIMEOUT_CONNECT,
    HTTP_TIMEOUT_FIRST,
    HTTP_TIMEOUT_IDLE,
    HTTP_RESET,
    HTTP_TRUNCATED,
    HTTP_BAD,
    HTTP_CANCELED
};
const char *http_fail_text(enum http_fail f);

struct http_header_kv {
    const char *name, *value;
};

struct http_call_options {
    const char *host; /* "127.0.0.1", "::1", a name */
    uint16_t port;
    const char *method; /* "POST" */
    const char *path;   /* with query */
    const struct http_header_kv *headers;
    size_t n_headers;
    const void *body; /* copied */
    size_t body_len;
    double first_byte_timeout; /* until the status line; 0: none */
    double idle_timeout;       /* silence between bytes of the body; 0: none */
    bool stream;               /* on_data as bytes come, else one on_data with the whole body */
    bool fresh;                /* never on a reused connection */
    /* on_head: status line and headers are there. on_data: body bytes. on_done: always, exactly once, last.
     * `reused` tells that the connection had served before; got_bytes that any byte of a reply came.
     * The call is gone after on_done. All may cancel other calls; on_head and on_data may cancel this. */
    void (*on_head)(void *arg, struct http_call *c, int status);
    void (*on_data)(void *arg, struct http_call *c, const void *data, size_t len);
    void (*on_done)(void *arg, enum http_fail fail, bool reused, bool got_bytes);
    void *arg;
};

int http_client_create(struct http_client **out, struct loop *l,
                       const struct http_client_options *o, struct err *e);
void http_client_destroy(struct http_client *c); /* cancels what runs; on_done is called */

/* Starts a call. A request that failed with zero reply bytes on a reused connection is sent once more on a
 * fresh one by itself, unseen by the caller. ERR_NOMEM, ERR_INVAL. Callbacks never run inside this call. */
int http_call(struct http_client *c, const struct http_call_options *o, struct http_call **out);
/* Closes the connection at once; on_done(HTTP_CANCELED) runs before this returns. */
void http_call_cancel(struct http_call *c);

/* In on_head and later: */
const char *http_call_header(const struct http_call *c, const char *name); /* NULL */
void http_call_each_header(const struct http_call *c,
                           void (*fn)(void *arg, const char *name, const char *value), void *arg);

#endif
