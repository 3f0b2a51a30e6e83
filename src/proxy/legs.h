/* What the two legs of a P/D request are sent, and what is taken from their answers. Pure.
 *
 * P gets the client's body with its output cut to one token; D gets it as the client sent it, with
 * the kv_transfer_params that P answered (design: contracts between the parts). */
#ifndef SLUICE_PROXY_LEGS_H
#define SLUICE_PROXY_LEGS_H

#include <stdbool.h>
#include <stddef.h>

#include "proxy/splice.h"

struct buf;

/* How a request must travel. */
enum legs_plan {
    LEGS_PD,    /* prefill on P, decode on D */
    LEGS_DIRECT /* D alone: what P computes cannot be handed over (several prompts: one answer carries
                  * one kv_transfer_params) or is wanted in the answer (log-probabilities of the
                  * prompt) */
};

struct legs_request {
    struct splice_text body; /* borrowed */
    bool stream;
    enum legs_plan plan;
    /* Set where a decode instance has given the request back: the output so far, as a JSON list of ids.
     * Borrowed; p NULL: none. */
    struct splice_text output_ids;
    const char *
        transfer_id; /* of a prefill whose decode goes out at the same time; borrowed; NULL: none */
};

/* Reads what the proxy has to know. ERR_BADMSG or ERR_TOOLONG with *at, see splice_check. */
int legs_read(struct legs_request *out, const char *body, size_t len, size_t *at);

/* Append the body for P, or for D with what P answered (kv_params.p NULL: none). The buffer's status. */
int legs_prefill_body(struct buf *out, const struct legs_request *r);
int legs_decode_body(struct buf *out, const struct legs_request *r, struct splice_text kv_params);

struct legs_prefilled {
    struct splice_text kv_params; /* into the answer; p NULL: P gave none */
    long long cached_tokens;      /* P's prefix hit; 0 if it did not say */
};

/* ERR_BADMSG: not a JSON object. */
int legs_read_prefilled(struct legs_prefilled *out, const char *answer, size_t len);

/* Whether a reply (or the data of one event) of D ends an output that is to go on elsewhere, as an instance
 * out of KV blocks says it: stop_reason "recomputed". ids: the output so far, into json. */
bool legs_given_back(struct splice_text *ids, const char *json, size_t len);
/* Appends that event as one in the middle of the output. The buffer's status. */
int legs_unfinished(struct buf *out, const char *json, size_t len);

/* D's usage shows the whole prompt as cached, since it came from P: appends the answer (or the data
 * of one event) with P's figure in usage.prompt_tokens_details.cached_tokens. Returns 0, or ERR_AGAIN,
 * with nothing appended, when there is no usage to correct; the buffer's status. */
int legs_fix_usage(struct buf *out, const char *json, size_t len, long long cached_tokens);

#endif
