/* Calibrates the chunk planning of a running instance: a few of the longest prompts, none like another, one
 * at a time, with one token of output. Each is a whole plan of chunks whose times correct the model
 * of the stages; what that gave is printed. */
#ifndef SLUICE_OPS_CALIBRATE_URL_H
#define SLUICE_OPS_CALIBRATE_URL_H

#include <stdbool.h>
#include <stdint.h>

struct buf;
struct err;

#define CALIBRATE_URL_MAX_REQUESTS 1000
#define CALIBRATE_URL_MAX_TOKENS   (16u << 20)

struct calibrate_url_options {
    const char *url;        /* of the instance itself, not of a proxy */
    const char *api_key;    /* NULL: none */
    uint32_t n_requests;    /* 1 to CALIBRATE_URL_MAX_REQUESTS */
    uint32_t prompt_tokens; /* 0: the longest that leave room for the output */
    double timeout;         /* seconds that one may take */
    bool json;
};

/* Appends a table (or JSON) to out; a line a request goes to the log as it ends. ERR_INVAL for a wrong
 * address, ERR_NOTFOUND if that instance plans no chunks, ERR_IO with what the server said. */
int calibrate_url(const struct calibrate_url_options *o, struct buf *out, struct err *e);

#endif
