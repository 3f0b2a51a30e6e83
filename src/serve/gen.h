/* One generation request from its decoded body to the last byte of its reply: submits its choices to
 * the engine, turns their events into text, and sends that as one reply or as a stream.
 *
 * A gen lives until its reply is over (or its client has left) and every submitted choice has had its
 * end event. */
#ifndef SLUICE_SERVE_GEN_H
#define SLUICE_SERVE_GEN_H

#include "serve/state.h"
#include "serve/stop.h"
#include "text/detokenizer.h"
#include "wire/openai.h"

#define GEN_MAX_ID 256 /* bytes of a request id with its prefix */

struct gen_prompt {
    int32_t *ids; /* owned */
    uint32_t n;
};

struct choice {
    struct gen *g;
    uint32_t index;
    const struct gen_prompt *prompt;
    uint64_t engine_id; /* 0: not submitted */
    bool submitted, ended;
    bool stopped; /* a stop string was found: later tokens do not count */
    bool dirty;   /* something to send in a stream */

    struct detok detok;
    struct stop_filter stop;
    struct buf raw;                /* text of the token at hand */
    struct buf text;               /* what is to be sent: the next event's, or the whole reply's */
    struct oai_logprobs *logprobs; /* NULL: not asked for. The same extent as text */
    int32_t *ids;                  /* the same extent; NULL until one is needed */
    uint32_t n_ids, cap_ids;
    struct buf prompt_logprobs; /* JSON; empty: not asked for */
    uint32_t n_out;             /* tokens generated, and those that came with the request */
    uint32_t n_before;          /* the latter: an earlier decode has told them */
    struct buf given_back; /* JSON list of all ids without its end, where they may be asked for */
    uint32_t n_unsent;     /* of these not in an event yet */
    bool sent_any;

    enum finish finish;
    int32_t stop_id;
    uint32_t n_cached;
    json_t *kv;             /* kv_transfer_params of the reply, or NULL */
    double t_first, t_last; /* for the metrics; 0: no token yet */
};

struct gen {
    struct serve *s;
    struct http_req *http; /* NULL: the reply is over or the client has left */
    const char *handler;
    struct oai_request req;
    char base_id[API_MAX_ID + 1], id[GEN_MAX_ID];
    int64_t created;
    double t_arrive;

    struct gen_prompt *prompts;
    uint32_t n_prompts;
    struct choice *choices;
    uint32_t n_choices, n_submitted, n_ended;
    struct oai_text prompt_text; /* chat: the rendered template, when it is to be shown */
    bool started;                /* status line and role events are out */
    bool failed;                 /* an error was answered; only end events are waited for */
    bool late_siblings;          /* other choices start when the first one has the prompt here */
    bool finding;                /* the remote prefill's address is being asked for */

    bool in_dirty;
    struct gen *next_dirty;
    struct gen *next, **link; /* of serve.gens */
};

/* Takes the request (req is emptied) and owns the reply from here on: prompts are in prompts (taken
 * too, malloc'ed). Answers errors itself. */
void gen_start(struct serve *s, struct http_req *http, struct oai_request *req,
               struct gen_prompt *prompts, uint32_t n_prompts, struct oai_text *prompt_text);

/* Loop thread: fetches the engine's events and sends what came of them. */
void gen_drain_events(void *serve);

/* Ends every request: with an error if its client still listens. */
void gen_abort_all(struct serve *s, int code, const char *message);

/* After engine_close, which sends no more events: forgets all that is left. */
void gen_free_all(struct serve *s);

/* Answers with an error (in a stream: an error event) and ends what still runs. Once. */
void gen_fail(struct gen *g, int code, const char *message);

/* The prefill instance was found, or will not be: on with it. */
void gen_found(struct gen *g);

/* remote.c: the part of a request that another instance has. */
/* The remote prefill need not hold its blocks for a request that will not be decoded here. */
void remote_release(struct serve *s, const struct kv_params *kv);
/* A prefill that was asked for will not happen here: who waits for it by name is told. */
void remote_refuse(struct serve *s, const struct kv_params *kv);
/* Whether the prefill instance has to be found first: gen_found goes on, later. */
bool remote_find(struct gen *g);

/* submit.c */
void submit_choose_id(struct gen *g);
uint64_t submit_base_seed(struct gen *g); /* of the request's first choice */
/* Settles which choices take part in a KV transfer, and which wait for another. */
void submit_settle_transfer(struct gen *g);
/* Gives the choices from `first` on to the engine: all, or with late_siblings only the first. A failure
 * is answered. */
void submit_from(struct gen *g, uint32_t first);
int submit_http_status(int status); /* of an engine's status */

/* Whether a choice that finds no KV blocks ends, to go on elsewhere. */
bool submit_gives_back(const struct gen *g);

/* output.c: an event of the engine, to text. Marks the choice dirty; gen_flush sends. */
int output_token(struct choice *c, const struct engine_event *ev);
int output_prompt(struct choice *c, const struct engine_event *ev);
int output_end(struct choice *c, const struct engine_event *ev);
/* The prompt itself, for echo; before any token. */
int output_echo(struct choice *c);
/* Output tokens that came with the request, before any other: their text is in the whole reply, but not in
 * a stream. */
int output_resume(struct choice *c);

/* send.c: the reply. May end g->http. */
void send_events(struct gen *g); /* stream: an event for each dirty choice, and the end */
void send_reply(struct gen *g);  /* not a stream: all choices have ended */
void send_error(struct gen *g, const struct oai_error *e);

/* request.c: checks that need the model, and token ids. Each answers nothing; e says what to answer. */
bool request_model_ok(const struct serve *s, const char *model);
/* What needs text is refused where there is no tokenizer (--skip-tokenizer-init). param: what the error
 * names; what: "a text", "stop strings", ... */
int request_needs_text(const struct serve *s, const char *param, const char *what,
                       struct oai_error *e);
/* Texts that cannot fit are refused unseen, for to encode megabytes takes seconds; those to be truncated
 * (which need not fit) above a maximum. param: what the error names. */
#define REQUEST_MAX_TRUNCATED (16u << 20)
int request_text_fits(const struct serve *s, const char *param, size_t len, bool truncated,
                      struct oai_error *e);
/* The error of a text that tokenizer_encode failed on with st. Returns what oai_fail does. */
int request_not_encoded(const char *param, int st, struct oai_error *e);
/* The error where encoder_push took no more. Returns what oai_fail does. */
int request_encoder_full(struct oai_error *e);
/* Cuts, measures and sets max_tokens for prompts of n tokens at most. */
int request_fit(struct serve *s, struct oai_request *r, struct gen_prompt *prompts, uint32_t n,
                struct oai_error *e);
/* The chat of r as the template renders it; *out is owned. */
int chat_render(struct serve *s, const struct oai_request *r, struct oai_text *out,
                struct oai_error *e);

#endif
