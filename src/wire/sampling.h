/* What a request asks of the sampler and of the stop test. Travels from the HTTP front to the
 * engine core, later also to other processes; plain data, owned as noted. */
#ifndef SLUICE_WIRE_SAMPLING_H
#define SLUICE_WIRE_SAMPLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct logit_bias {
    int32_t id;
    float bias;
};

struct sampling {
    float temperature;                         /* 0: greedy */
    float top_p;                               /* (0, 1] */
    float min_p;                               /* [0, 1] */
    uint32_t top_k;                            /* 0: off */
    float presence_penalty, frequency_penalty; /* [-2, 2] */
    float repetition_penalty;                  /* > 0, 1: off */
    bool has_seed;
    uint64_t seed; /* the front draws one when the request has none: never 0-by-default */

    uint32_t max_tokens; /* most output tokens; 0 only with prompt_only */
    uint32_t min_tokens; /* no end token before this many */
    bool ignore_eos;
    bool prompt_only;        /* echo with max_tokens 0: nothing is generated */
    int32_t logprobs;        /* -1: none; 0: the chosen token's; n: the top n as well */
    int32_t prompt_logprobs; /* the same for the prompt's tokens */

    int32_t *stop_ids; /* owned; ids that end the output (besides EOS) */
    uint32_t n_stop_ids;
    struct logit_bias *bias; /* owned */
    uint32_t n_bias;
    int32_t *allowed; /* owned; NULL: every id is allowed */
    uint32_t n_allowed;
    int32_t *want_ids; /* owned; logprob_token_ids */
    uint32_t n_want;
};

/* Neutral values: temperature 1, top_p 1, max_tokens 16, logprobs -1, everything else off. */
void sampling_init(struct sampling *s);
int sampling_copy(struct sampling *dst, const struct sampling *src); /* deep; 0 or ERR_NOMEM */
void sampling_finish(struct sampling *s);

/* Why an output ended. Names as in OpenAI's finish_reason ("stop", "length", "abort", "error"), and
 * "recomputed": it has not, but goes on elsewhere. */
enum finish {
    FINISH_NONE,
    FINISH_STOP,
    FINISH_LENGTH,
    FINISH_ABORT,
    FINISH_ERROR,
    FINISH_RECOMPUTE,
};
const char *finish_name(enum finish f);

#endif
