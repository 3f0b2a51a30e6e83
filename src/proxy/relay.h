/* One instance's reply on its way to the client: gathered whole, or event by event.
 *
 * The client's status line waits for the first event (or the whole body), so until then another
 * instance can still be asked. An event goes out as soon as it is whole, in one send, whatever pieces
 * it came in. */
#ifndef SLUICE_PROXY_RELAY_H
#define SLUICE_PROXY_RELAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "net/http_client.h"
#include "net/sse.h"

struct http_req;

#define RELAY_KEEP_USAGE (-1ll)

struct relay {
    struct http_req *req;
    long long cached_tokens; /* P's figure for the usage, or RELAY_KEEP_USAGE */
    const char *request_id;  /* X-Request-Id of the reply, if the instance gives none */
    int status;              /* of the reply; 0: no head yet */
    bool events;             /* text/event-stream, status 200 */
    bool committed;          /* the client has its status line */
    bool sent;               /* something of this reply has gone out */
    bool given_back;         /* the output goes on in another reply, behind output_ids */
    struct buf output_ids;   /* JSON list */
    bool complete;           /* [DONE] or an error event has passed */
    uint64_t n_events;
    char type[128];
    struct buf headers; /* name NUL value NUL ... */
    struct buf body;
    struct sse sse;
};

void relay_init(struct relay *r, struct http_req *req, const char *request_id, size_t max_reply);
void relay_finish(struct relay *r);
/* For another attempt: forgets the reply, of which nothing may be sent. */
void relay_reset(struct relay *r, long long cached_tokens);

/* The reply has ended by giving the output back: another one will go on with it. */
void relay_go_on(struct relay *r);

/* From the call. gather: never event by event. */
void relay_head(struct relay *r, struct http_call *c, int status, bool gather);
/* 0; ERR_LIMIT: the client reads too slowly; ERR_TOOLONG, ERR_NOMEM: the reply cannot be taken. */
int relay_data(struct relay *r, const void *data, size_t len);

/* The reply has come to its end in order: whether it is whole as a reply, too. A stream without an
 * event or without an end mark is not. */
bool relay_whole(const struct relay *r);
/* Whether a whole reply has given the output back: output_ids is set. */
bool relay_gave_back(struct relay *r);
/* Sends what is gathered, or ends the stream; the request is gone. */
void relay_send(struct relay *r);
/* A committed stream that broke: an error event, and no [DONE]; the request is gone. */
void relay_break(struct relay *r, int status, const char *message);

#endif
