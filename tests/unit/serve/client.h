/* One HTTP call against the front under test, on the same loop. */
#ifndef SERVE_TEST_CLIENT_H
#define SERVE_TEST_CLIENT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "net/http_client.h"

struct loop;

struct reply {
    int status;
    char type[128], request_id[128], allow[128], retry_after[16], allow_origin[64];
    struct buf body;
    enum http_fail fail;
    bool done;
    uint32_t n_data;       /* pieces that the body came in */
    uint32_t cancel_after; /* pieces after which the client leaves; 0: stays */
    struct loop *loop;
};

/* Headers beside Content-Type: "Name: value" or NULL. */
void client_begin(struct http_client *c, struct loop *l, uint16_t port, const char *method,
                  const char *path, const char *header, const char *body, struct reply *r);
/* The same, and runs the loop until the reply is over. */
void client_call(struct http_client *c, struct loop *l, uint16_t port, const char *method,
                 const char *path, const char *header, const char *body, struct reply *r);
void client_finish(struct reply *r);

#endif
