/* OpenAI's HTTP bodies as vLLM extends them: requests to plain structs, results to text. Pure: knows
 * no socket, tokenizer or engine. Shapes, names and order of members follow vLLM's replies. */
#ifndef SLUICE_WIRE_OPENAI_H
#define SLUICE_WIRE_OPENAI_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/kv_params.h"
#include "wire/sampling.h"

struct buf;
struct json_fault;

#define OAI_MAX_PROMPTS  2048       /* prompts in one completion request */
#define OAI_MAX_N        128        /* choices a prompt */
#define OAI_MAX_CHOICES  2048       /* choices a request */
#define OAI_MAX_STOPS    4          /* stop strings, as OpenAI's own limit */
#define OAI_MAX_STOP_LEN 4096       /* bytes of a stop string */
#define OAI_MAX_IDS      (1u << 16) /* entries of stop_token_ids, logit_bias, ... */
#define OAI_MAX_MESSAGES (1u << 14)
#define OAI_MAX_SALT     1024

/* An error as the client sees it. */
struct oai_error {
    int code;         /* HTTP status */
    const char *type; /* "BadRequestError", ...: static text */
    char param[96];   /* "": null */
    char message[1024];
};

/* Fills the error and returns ERR_INVAL. param NULL: null. */
int oai_fail(struct oai_error *e, int code, const char *type, const char *param, const char *fmt,
             ...) __attribute__((format(printf, 5, 6)));
/* The type that goes with a status code: "BadRequestError", "NotFoundError", ... */
const char *oai_error_type(int code);

/* What this server allows and presumes. */
struct oai_rules {
    uint32_t vocab; /* token ids are below this */
    uint32_t max_logprobs;
    bool priority;                   /* requests may have one */
    bool trust_chat_template;        /* requests may bring one */
    bool force_usage;                /* usage in every stream */
    bool tokens_as_ids;              /* return_tokens_as_token_ids by default */
    const struct sampling *defaults; /* of the model's generation config */
    uint32_t default_max_tokens;     /* chat without a limit: at most this; 0: what fits */
};

struct oai_prompt {
    char *text; /* owned; NULL: ids */
    size_t len;
    int32_t *ids; /* owned */
    uint32_t n_ids;
};

struct oai_text {
    char *s; /* owned, NUL-terminated */
    size_t len;
};

enum oai_kind { OAI_COMPLETION, OAI_CHAT };

/* One decoded request. Everything is owned. */
struct oai_request {
    enum oai_kind kind;
    char *model;      /* NULL when absent */
    char *request_id; /* of the body, NULL when absent */

    struct oai_prompt *prompts; /* completion */
    uint32_t n_prompts;
    json_t
        *messages; /* chat: checked, contents joined to strings, arguments of tool calls parsed */
    json_t *tools; /* NULL when absent or not to be shown to the template */
    json_t *documents;
    json_t *template_kwargs;
    char *chat_template;
    char *reasoning_effort;
    bool add_generation_prompt, continue_final_message;
    bool add_special_tokens;
    int64_t truncate;    /* truncate_prompt_tokens: 0 none, -1 what fits, else most prompt tokens */
    bool truncate_right; /* drop tokens at the end instead of at the beginning */

    struct sampling sampling;
    bool has_max_tokens; /* else sampling.max_tokens is to be set to the room that is left */
    const char
        *max_tokens_name; /* the member that limits: "max_tokens" or "max_completion_tokens" */
    uint32_t n;
    struct oai_text *stops;
    uint32_t n_stops;
    bool include_stop, skip_special;
    bool stream, include_usage, continuous_usage;
    uint32_t stream_interval; /* tokens a chunk; 1 */
    bool echo;
    bool want_logprobs; /* of the output; how many: sampling.logprobs */
    uint32_t top_logprobs;
    bool tokens_as_ids, return_token_ids, return_prompt_text;
    struct oai_text salt; /* cache_salt; s NULL: none */
    int64_t priority;
    bool has_kv;
    struct kv_params kv;
};

/* Reads a body. On failure nothing is kept and e says what to answer. Token ids, ranges and the
 * relations between members are checked; lengths against the context are the caller's business. */
int oai_decode(struct oai_request *out, enum oai_kind kind, const char *body, size_t len,
               const struct oai_rules *rules, struct oai_error *e);
void oai_request_finish(struct oai_request *r);

/* JSON text to an object: the errors of a body that is none. *out is a new reference. */
int oai_parse_object(json_t **out, const char *body, size_t len, struct oai_error *e);
/* The messages of a chat, checked and flattened as in oai_request. New reference. */
int oai_decode_messages(json_t **out, const json_t *messages, struct oai_error *e);

/* ---- replies ---- */

struct oai_head {
    enum oai_kind kind;
    const char *id; /* "chatcmpl-..." */
    int64_t created;
    const char *model;
    const char *fingerprint; /* NULL: null */
};

struct oai_usage {
    uint32_t prompt_tokens, completion_tokens;
    bool cached_known;
    uint32_t cached_tokens;
};

/* One token's log-probability, ready to print. */
struct oai_logprob {
    const char *token; /* valid UTF-8 */
    size_t len;
    const char *bytes; /* what the token really is */
    size_t n_bytes;
    int32_t id;
    uint32_t rank; /* prompt_logprobs only */
    double logprob;
};

/* Log-probabilities of a piece of output, collected as JSON text: columns for completions, a list of
 * entries for chats. */
struct oai_logprobs;
int oai_logprobs_create(struct oai_logprobs **out, enum oai_kind kind);
void oai_logprobs_destroy(struct oai_logprobs *l);
/* alt[0] is the token itself; n of the others stand behind it. known false: the first token of a
 * prompt, which has none. */
int oai_logprobs_add(struct oai_logprobs *l, bool known, const struct oai_logprob *alt, uint32_t n);
/* Empties the columns; text offsets go on from where they were. */
void oai_logprobs_clear(struct oai_logprobs *l);

/* {"id":{"logprob","rank","decoded_token"},...}: one position of prompt_logprobs. */
int oai_put_prompt_logprob(struct buf *b, const struct oai_logprob *alt, uint32_t n);

/* One choice of a reply, or its part in one chunk. All borrowed. */
struct oai_choice {
    uint32_t index;
    const char *text;
    size_t len;
    enum finish finish;          /* FINISH_NONE: not ended */
    const struct oai_text *stop; /* stop_reason: the string, ... */
    int32_t stop_id;             /* ... or the id, or -1 */
    const struct oai_logprobs *logprobs;
    const int32_t *ids; /* token_ids; NULL: null */
    uint32_t n_ids;
    const int32_t *prompt_ids; /* prompt_token_ids; NULL: null */
    uint32_t n_prompt_ids;
    const struct buf *prompt_logprobs; /* JSON text; NULL: null */
};

/* A whole reply. kv and prompt_text may be NULL. Each returns the buffer's status. */
int oai_put_reply(struct buf *b, const struct oai_head *h, const struct oai_choice *choices,
                  uint32_t n, const struct oai_usage *u, const char *role, const json_t *kv,
                  const struct oai_text *prompt_text);

/* Events of a stream, each with "data: " before and an empty line behind. usage NULL: no member. */
int oai_put_role_event(struct buf *b, const struct oai_head *h, const struct oai_choice *c,
                       const char *role, const struct oai_usage *usage,
                       const struct oai_text *prompt_text);
/* with_fingerprint: no usage event will follow this choice's last event. kv: with the last event. */
int oai_put_event(struct buf *b, const struct oai_head *h, const struct oai_choice *c,
                  const struct oai_usage *usage, bool with_fingerprint, const json_t *kv);
int oai_put_usage_event(struct buf *b, const struct oai_head *h, const struct oai_usage *u);
int oai_put_error_event(struct buf *b, const struct oai_error *e);
int oai_put_done_event(struct buf *b);

/* {"error":{"message","type","param","code"}} */
int oai_put_error(struct buf *b, const struct oai_error *e);

#endif
