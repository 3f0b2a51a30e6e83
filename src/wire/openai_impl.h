/* What the files of the request decoder share. */
#ifndef SLUICE_WIRE_OPENAI_IMPL_H
#define SLUICE_WIRE_OPENAI_IMPL_H

#include "wire/openai.h"

/* A decoding in progress. */
struct oai_decoding {
    struct oai_request *r;
    const struct oai_rules *rules;
    struct oai_error *e;
    const json_t *tool_choice; /* borrowed from the body */
    bool has_tools, has_stream_options;
    bool unlimited;                            /* max_tokens is null, not absent: no default */
    int64_t max_tokens, max_completion_tokens; /* -1: not given */
};

/* "member must be ...": the JSON type is wrong. Returns ERR_INVAL. */
int oai_bad_type(struct oai_error *e, const char *member, const char *wanted);
/* The value is outside what is allowed. Returns ERR_INVAL. */
int oai_bad_value(struct oai_error *e, const char *member, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
int oai_no_memory(struct oai_error *e);

/* A member that needs more than a line of the table. v is never null. */
typedef int oai_field_fn(struct oai_decoding *d, const char *member, json_t *v);
oai_field_fn oai_get_prompt, oai_get_stop, oai_get_stop_ids, oai_get_allowed, oai_get_want_ids,
    oai_get_bias, oai_get_stream_options, oai_get_messages, oai_get_tools, oai_get_tool_choice,
    oai_get_response_format, oai_get_kv, oai_get_salt, oai_get_seed, oai_get_top_k,
    oai_get_truncation_side, oai_get_template, oai_get_template_kwargs, oai_get_completion_logprobs,
    oai_get_chat_logprobs, oai_get_top_logprobs, oai_get_prompt_logprobs, oai_get_max_tokens,
    oai_get_max_completion_tokens, oai_get_priority;

/* The relations between members, after all of them were read. */
int oai_check_relations(struct oai_decoding *d);

/* A new NUL-terminated copy of a JSON string; NULL without memory. */
char *oai_copy_text(const json_t *v, size_t *len);

#endif
