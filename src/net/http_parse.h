/* HTTP/1.1 heads and chunked bodies, pure: bytes in; consumed, incomplete or bad out.
 *
 * A parser of our own, although libevent has evhttp, because evhttp 2.1 cannot keep the promises of
 * http_server.h and http_client.h: it answers errors with its own HTML, does not notice a client that
 * leaves while a reply is pending, takes a body that was cut short for a whole one, and knows one
 * timeout for connect, first byte and silence. Sockets, buffers and timers stay libevent's.
 *
 * Source: RFC 9112. Stricter than it where leniency lets two readers of one stream disagree: no line
 * folding, no space before the colon, no Content-Length beside Transfer-Encoding. */
#ifndef SLUICE_NET_HTTP_PARSE_H
#define SLUICE_NET_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define HTTP_MAX_FIELDS 128u

/* Bytes at..at+len of the head. Offsets, so that a head can be copied and stays parsed. */
struct http_slice {
    uint32_t at, len;
};

struct http_field {
    struct http_slice name, value;
};

enum http_framing {
    HTTP_BODY_NONE,
    HTTP_BODY_LENGTH,
    HTTP_BODY_CHUNKED,
    HTTP_BODY_CLOSE /* a reply that ends with its connection */
};

struct http_head {
    struct http_slice method, target; /* of a request */
    int status;                       /* of a reply */
    int minor;                        /* HTTP/1.minor */
    bool keep_alive;
    bool expect_continue;
    enum http_framing framing;
    uint64_t length; /* HTTP_BODY_LENGTH */
    uint32_t n_fields;
    struct http_field field[HTTP_MAX_FIELDS];
};

/* The length of the head at the start of buf, its blank line included; 0 while it is incomplete.
 * *scanned, 0 at first, remembers what was looked at, so that byte-wise arrival stays linear. */
size_t http_head_end(const char *buf, size_t len, size_t *scanned);

/* Parse a whole head of len bytes as http_head_end found it. Leading empty lines are skipped before a
 * request. 0; ERR_BADMSG; ERR_TOOLONG: more than HTTP_MAX_FIELDS fields. */
int http_parse_request(struct http_head *out, const char *buf, size_t len);
/* A reply without body by its status (1xx, 204, 304) is HTTP_BODY_NONE; that a reply to HEAD has none
 * only the caller knows. */
int http_parse_reply(struct http_head *out, const char *buf, size_t len);

/* Puts a NUL after the method, the target and every name and value: buf is the caller's copy of the
 * parsed bytes. */
void http_head_terminate(const struct http_head *h, char *buf);
/* The value of a field of a terminated head; NULL. */
const char *http_head_field(const struct http_head *h, const char *buf, const char *name);

/* %XX decoded in place (the text gets shorter); with plus, '+' is a space. False: bad digits or a
 * NUL byte. */
bool http_percent_decode(char *text, bool plus);

/* An incremental decoder of one chunked body. Zero-initialise it. */
struct http_chunked {
    enum { CHUNK_SIZE, CHUNK_EXT, CHUNK_DATA, CHUNK_DATA_END, CHUNK_TRAILER, CHUNK_DONE } state;
    uint64_t left;   /* of the size being read, or of the chunk's data */
    uint32_t digits; /* of the size */
    uint32_t line;   /* bytes of the present line */
    uint32_t extra;  /* bytes of extensions and trailers so far */
    bool cr;         /* the last byte was CR */
};

#define HTTP_MAX_CHUNK_EXTRA (64u << 10)

/* Takes bytes up to the end of the next piece of body data: *data (borrowed from in) and *n, n may be
 * 0. Returns the bytes consumed, all of len unless data was found or the body has ended (state
 * CHUNK_DONE: the rest belongs to the next message). ERR_BADMSG. */
ssize_t http_chunked_take(struct http_chunked *c, const char *in, size_t len, const char **data,
                          size_t *n);

#endif
