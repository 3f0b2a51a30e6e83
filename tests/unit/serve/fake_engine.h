/* An engine that follows a script: the same symbols as src/engine, no model. Token ids below 256 are
 * bytes; 256 <|im_start|>, 257 <|im_end|> (the end token), 258 <|endoftext|>, 259 a long one. Loop thread only, but for
 * engine_open. */
#ifndef FAKE_ENGINE_H
#define FAKE_ENGINE_H

#include "engine/engine.h"

#define FAKE_VOCAB    49152
#define FAKE_CONTEXT  4096
#define FAKE_REQUESTS 64
/* Texts of few tokens may be long. */
#define FAKE_LONG_TOKEN "<|------------------------------------------------------------|>"

struct fake_request {
    uint64_t id;
    void *user;
    struct sampling sampling; /* its lists are not kept */
    int32_t prompt[64];       /* the first tokens */
    uint32_t n_prompt, n_out;
    bool has_kv, ended, cancelled;
    struct kv_params kv; /* block ids are not kept */
    enum finish cancel_finish;
};

extern struct fake {
    /* What the test sets. */
    const char *text;  /* what every request answers, byte by byte, over and over */
    bool end_token;    /* the end token after the text, instead of over and over */
    bool manual;       /* nothing happens by itself: fake_token, fake_end */
    int submit_status; /* engine_submit fails with it */
    const char *submit_why;
    uint32_t n_cached;
    struct kv_params *answer_kv; /* copied into the reply of requests with do_remote_decode */
    void (*on_submit)(struct fake_request *r);
    int reset_status;
    bool is_producer;            /* engine_info has a KV port */
    bool no_tokenizer;           /* the model's folder has none */
    uint32_t mtp_layers;         /* of the model */
    bool one_step;               /* all tokens of an answer come in one step */
    struct transfer_stats stats; /* of engine_stats */
    enum sched_chunk_mode chunk_mode;
    char broken[100]; /* of engine_broken; "": it is well */
    char apart[100];  /* of engine_is_apart; "": it is not */
    uint64_t spec[4]; /* of engine_stats: drafts, their tokens, accepted at places 0 and 1 */

    /* What it sees. */
    struct model_options opened; /* by engine_open; its texts are gone, but for: */
    char overrides[256], quantization[32];
    uint32_t n_draft_tokens;
    struct fake_request req[FAKE_REQUESTS];
    uint32_t n_req, n_cancelled, n_released, n_released_remote, n_refused, n_probed;
    struct kv_params released_remote; /* the last; without block ids */
    void *reset_user;                 /* of the last reset of the prefix cache */
} fake;

void fake_reset(void);
void fake_break(const char *why); /* and tells of it */
void fake_hold_load(bool hold);   /* engine_open waits while held */
void fake_fail_load(bool fail);

void fake_reset_done(void); /* answers that reset; manual only */
void fake_token(struct fake_request *r, int32_t token);
void fake_end(struct fake_request *r, enum finish f, int status, const char *why);

#endif
