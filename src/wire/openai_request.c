/* The members of a request as a table: a line a member. What needs more than a type, a range and a
 * place is a function in openai_fields.c. */
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/status.h"
#include "wire/openai_impl.h"

enum { AT_COMPLETION = 1, AT_CHAT = 2, AT_BOTH = 3 };

enum field_kind {
    FIELD_BOOL,   /* bool */
    FIELD_NUMBER, /* float */
    FIELD_U32,
    FIELD_I64,
    FIELD_TEXT,   /* char *, owned */
    FIELD_JSON,   /* json_t *, an object or array, owned reference */
    FIELD_FN,     /* fn reads it */
    FIELD_REFUSED /* only neutral values (null, false, 0, "", [], {}): `range` says what lacks */
};

struct field {
    const char *name;
    unsigned at;
    enum field_kind kind;
    size_t offset;
    double min, max;
    const char *range; /* in words, for the error */
    oai_field_fn *fn;
};

#define SAMPLING(member) offsetof(struct oai_request, sampling.member)
#define REQUEST(member)  offsetof(struct oai_request, member)
#define NO_GRAMMAR       "structured output is not part of this server"

/* clang-format off */
static const struct field fields[] = {
    { "model", AT_BOTH, FIELD_TEXT, REQUEST(model), 0, 0, 0, 0 },
    { "request_id", AT_BOTH, FIELD_TEXT, REQUEST(request_id), 0, 0, 0, 0 },
    { "prompt", AT_COMPLETION, FIELD_FN, 0, 0, 0, 0, oai_get_prompt },
    { "messages", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_messages },
    { "echo", AT_BOTH, FIELD_BOOL, REQUEST(echo), 0, 0, 0, 0 },
    { "n", AT_BOTH, FIELD_U32, REQUEST(n), 1, OAI_MAX_N, "at least 1 and at most 128", 0 },
    { "max_tokens", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_max_tokens },
    { "max_completion_tokens", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_max_completion_tokens },
    { "min_tokens", AT_BOTH, FIELD_U32, SAMPLING(min_tokens), 0, UINT32_MAX, "0 or more", 0 },
    { "temperature", AT_BOTH, FIELD_NUMBER, SAMPLING(temperature), 0, FLT_MAX, "0 or more", 0 },
    { "top_p", AT_BOTH, FIELD_NUMBER, SAMPLING(top_p), DBL_MIN, 1, "in (0, 1]", 0 },
    { "min_p", AT_BOTH, FIELD_NUMBER, SAMPLING(min_p), 0, 1, "in [0, 1]", 0 },
    { "top_k", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_top_k },
    { "seed", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_seed },
    { "presence_penalty", AT_BOTH, FIELD_NUMBER, SAMPLING(presence_penalty), -2, 2, "in [-2, 2]", 0 },
    { "frequency_penalty", AT_BOTH, FIELD_NUMBER, SAMPLING(frequency_penalty), -2, 2, "in [-2, 2]", 0 },
    { "repetition_penalty", AT_BOTH, FIELD_NUMBER, SAMPLING(repetition_penalty), DBL_MIN, FLT_MAX,
      "greater than 0", 0 },
    { "ignore_eos", AT_BOTH, FIELD_BOOL, SAMPLING(ignore_eos), 0, 0, 0, 0 },
    { "stop", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_stop },
    { "stop_token_ids", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_stop_ids },
    { "include_stop_str_in_output", AT_BOTH, FIELD_BOOL, REQUEST(include_stop), 0, 0, 0, 0 },
    { "skip_special_tokens", AT_BOTH, FIELD_BOOL, REQUEST(skip_special), 0, 0, 0, 0 },
    { "logit_bias", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_bias },
    { "allowed_token_ids", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_allowed },
    { "logprobs", AT_COMPLETION, FIELD_FN, 0, 0, 0, 0, oai_get_completion_logprobs },
    { "logprobs", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_chat_logprobs },
    { "top_logprobs", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_top_logprobs },
    { "prompt_logprobs", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_prompt_logprobs },
    { "logprob_token_ids", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_want_ids },
    { "stream", AT_BOTH, FIELD_BOOL, REQUEST(stream), 0, 0, 0, 0 },
    { "stream_options", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_stream_options },
    { "stream_interval", AT_BOTH, FIELD_U32, REQUEST(stream_interval), 1, UINT32_MAX, "1 or more", 0 },
    { "add_special_tokens", AT_BOTH, FIELD_BOOL, REQUEST(add_special_tokens), 0, 0, 0, 0 },
    { "truncate_prompt_tokens", AT_BOTH, FIELD_I64, REQUEST(truncate), -1, 0x1p62, "-1 or more", 0 },
    { "truncation_side", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_truncation_side },
    { "priority", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_priority },
    { "cache_salt", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_salt },
    { "kv_transfer_params", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_kv },
    { "return_tokens_as_token_ids", AT_BOTH, FIELD_BOOL, REQUEST(tokens_as_ids), 0, 0, 0, 0 },
    { "return_token_ids", AT_BOTH, FIELD_BOOL, REQUEST(return_token_ids), 0, 0, 0, 0 },
    { "return_prompt_text", AT_CHAT, FIELD_BOOL, REQUEST(return_prompt_text), 0, 0, 0, 0 },
    { "tools", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_tools },
    { "tool_choice", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_tool_choice },
    { "documents", AT_CHAT, FIELD_JSON, REQUEST(documents), 0, 0, 0, 0 },
    { "chat_template", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_template },
    { "chat_template_kwargs", AT_CHAT, FIELD_FN, 0, 0, 0, 0, oai_get_template_kwargs },
    { "reasoning_effort", AT_CHAT, FIELD_TEXT, REQUEST(reasoning_effort), 0, 0, 0, 0 },
    { "add_generation_prompt", AT_CHAT, FIELD_BOOL, REQUEST(add_generation_prompt), 0, 0, 0, 0 },
    { "continue_final_message", AT_CHAT, FIELD_BOOL, REQUEST(continue_final_message), 0, 0, 0, 0 },
    { "response_format", AT_BOTH, FIELD_FN, 0, 0, 0, 0, oai_get_response_format },
    { "structured_outputs", AT_BOTH, FIELD_REFUSED, 0, 0, 0, NO_GRAMMAR, 0 },
    { "guided_json", AT_BOTH, FIELD_REFUSED, 0, 0, 0, NO_GRAMMAR, 0 },
    { "guided_regex", AT_BOTH, FIELD_REFUSED, 0, 0, 0, NO_GRAMMAR, 0 },
    { "guided_choice", AT_BOTH, FIELD_REFUSED, 0, 0, 0, NO_GRAMMAR, 0 },
    { "guided_grammar", AT_BOTH, FIELD_REFUSED, 0, 0, 0, NO_GRAMMAR, 0 },
    { "suffix", AT_COMPLETION, FIELD_REFUSED, 0, 0, 0, "text cannot be inserted before a suffix", 0 },
    { "prompt_embeds", AT_COMPLETION, FIELD_REFUSED, 0, 0, 0, "prompts are text or token ids", 0 },
    { "use_beam_search", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "beam search is not part of this server", 0 },
    { "bad_words", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "use logit_bias with token ids", 0 },
    { "watermarking", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "outputs are not watermarked here", 0 },
    { "thinking_token_budget", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "thinking has no budget here", 0 },
    { "repetition_detection", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "repetition is not looked for", 0 },
    { "return_token_offsets", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "offsets are not returned", 0 },
    { "return_mm_kwargs", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "there is no multi-modal input", 0 },
    { "mm_processor_kwargs", AT_CHAT, FIELD_REFUSED, 0, 0, 0, "there is no multi-modal input", 0 },
    { "media_io_kwargs", AT_CHAT, FIELD_REFUSED, 0, 0, 0, "there is no multi-modal input", 0 },
    { "ec_transfer_params", AT_BOTH, FIELD_REFUSED, 0, 0, 0, "there is no encoder cache", 0 },
};
/* clang-format on */

int oai_bad_type(struct oai_error *e, const char *member, const char *wanted)
{
    char param[96];

    snprintf(param, sizeof param, "body.%s", member);
    return oai_fail(e, 400, "Bad Request", param, "%s must be %s", member, wanted);
}

int oai_bad_value(struct oai_error *e, const char *member, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return oai_fail(e, 400, oai_error_type(400), member, "%s", text);
}

int oai_no_memory(struct oai_error *e)
{
    oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory for this request");
    return ERR_NOMEM;
}

char *oai_copy_text(const json_t *v, size_t *len)
{
    size_t n = json_string_length(v);
    char *s = malloc(n + 1);

    if (!s)
        return NULL;
    memcpy(s, json_string_value(v), n + 1);
    if (len)
        *len = n;
    return s;
}

/* A whole number: also 3.0, as some clients write it. */
static bool whole(const json_t *v, int64_t *out)
{
    double x;

    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return true;
    }
    x = json_is_real(v) ? json_real_value(v) : NAN;
    if (!(x == floor(x)) || fabs(x) > 0x1p62)
        return false;
    *out = (int64_t)x;
    return true;
}

static int get_number(struct oai_decoding *d, const struct field *f, const json_t *v, float *out)
{
    double x = json_number_value(v);

    if (!json_is_number(v))
        return oai_bad_type(d->e, f->name, "a number");
    if (!(x >= f->min && x <= f->max))
        return oai_bad_value(d->e, f->name, "%s must be %s, got %g", f->name, f->range, x);
    *out = (float)x;
    return 0;
}

static int get_whole(struct oai_decoding *d, const struct field *f, const json_t *v, int64_t *out)
{
    if (!whole(v, out))
        return oai_bad_type(d->e, f->name, "a whole number");
    if ((double)*out < f->min || (double)*out > f->max)
        return oai_bad_value(d->e, f->name, "%s must be %s, got %lld", f->name, f->range,
                             (long long)*out);
    return 0;
}

static int get_text(struct oai_decoding *d, const struct field *f, const json_t *v, char **out)
{
    char *s;

    if (!json_is_string(v))
        return oai_bad_type(d->e, f->name, "a string");
    s = oai_copy_text(v, NULL);
    if (!s)
        return oai_no_memory(d->e);
    free(*out);
    *out = s;
    return 0;
}

/* A value that asks for nothing. */
static bool is_neutral(const json_t *v)
{
    return json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_object(v) && json_object_size(v) == 0);
}

static int get_field(struct oai_decoding *d, const struct field *f, json_t *v)
{
    void *slot = (char *)d->r + f->offset;
    int64_t n;
    int st;

    switch (f->kind) {
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return oai_bad_type(d->e, f->name, "true or false");
        *(bool *)slot = json_is_true(v);
        return 0;
    case FIELD_NUMBER:
        return get_number(d, f, v, slot);
    case FIELD_U32:
        if ((st = get_whole(d, f, v, &n)) == 0)
            *(uint32_t *)slot = (uint32_t)n;
        return st;
    case FIELD_I64:
        if ((st = get_whole(d, f, v, &n)) == 0)
            *(int64_t *)slot = n;
        return st;
    case FIELD_TEXT:
        return get_text(d, f, v, slot);
    case FIELD_JSON:
        if (!json_is_object(v) && !json_is_array(v))
            return oai_bad_type(d->e, f->name, "an object or a list");
        json_decref(*(json_t **)slot);
        *(json_t **)slot = json_deep_copy(v);
        return *(json_t **)slot ? 0 : oai_no_memory(d->e);
    case FIELD_FN:
        return f->fn(d, f->name, v);
    case FIELD_REFUSED:
        return is_neutral(v)
                   ? 0
                   : oai_bad_value(d->e, f->name, "%s is not supported: %s", f->name, f->range);
    }
    return 0;
}

static int get_fields(struct oai_decoding *d, const json_t *body)
{
    unsigned at = d->r->kind == OAI_CHAT ? AT_CHAT : AT_COMPLETION;

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        json_t *v = json_object_get(body, fields[i].name);
        int st;

        if (!(fields[i].at & at) || !v || json_is_null(v))
            continue;
        if ((st = get_field(d, &fields[i], v)) < 0)
            return st;
    }
    return 0;
}

static int defaults(struct oai_decoding *d, enum oai_kind kind)
{
    struct oai_request *r = d->r;
    const struct oai_rules *rules = d->rules;

    *r = (struct oai_request){ .kind = kind,
                               .n = 1,
                               .skip_special = true,
                               .add_generation_prompt = true,
                               .add_special_tokens = kind == OAI_COMPLETION,
                               .stream_interval = 1,
                               .tokens_as_ids = rules->tokens_as_ids,
                               .max_tokens_name = "max_tokens" };
    return sampling_copy(&r->sampling, rules->defaults);
}

int oai_parse_object(json_t **out, const char *body, size_t len, struct oai_error *e)
{
    struct json_fault fault;
    struct err err = { "" };
    char param[96];
    json_t *v;

    if (json_read(&v, body, len, &fault, &err) < 0) {
        if (fault.overflow && fault.key[0])
            return oai_bad_value(e, fault.key, "%s: the number is too large", fault.key);
        snprintf(param, sizeof param, "body.%zu", fault.offset);
        return oai_fail(e, 400, "Bad Request", param, "the body is %s", err.text);
    }
    if (!json_is_object(v)) {
        json_decref(v);
        return oai_fail(e, 400, "Bad Request", "body", "the body must be a JSON object");
    }
    *out = v;
    return 0;
}

/* A member that must be there. */
static int check_required(struct oai_decoding *d)
{
    if (d->r->kind == OAI_CHAT && !d->r->messages)
        return oai_fail(d->e, 400, "Bad Request", "body.messages", "messages is required");
    if (d->r->kind == OAI_COMPLETION && d->r->n_prompts == 0)
        return oai_bad_value(d->e, "prompt", "prompt is required and must not be empty");
    return 0;
}

int oai_decode(struct oai_request *out, enum oai_kind kind, const char *body, size_t len,
               const struct oai_rules *rules, struct oai_error *e)
{
    struct oai_request r;
    struct oai_decoding d = {
        .r = &r, .rules = rules, .e = e, .max_tokens = -1, .max_completion_tokens = -1
    };
    json_t *root;
    int st;

    if ((st = oai_parse_object(&root, body, len, e)) < 0)
        return st;
    d.unlimited = json_is_null(json_object_get(root, "max_tokens"));
    if (defaults(&d, kind) < 0)
        st = oai_no_memory(e);
    else if ((st = get_fields(&d, root)) < 0 || (st = check_required(&d)) < 0 ||
             (st = oai_check_relations(&d)) < 0)
        oai_request_finish(&r);
    json_decref(root);
    if (st == 0)
        *out = r;
    return st;
}

void oai_request_finish(struct oai_request *r)
{
    for (uint32_t i = 0; i < r->n_prompts; i++) {
        free(r->prompts[i].text);
        free(r->prompts[i].ids);
    }
    for (uint32_t i = 0; i < r->n_stops; i++)
        free(r->stops[i].s);
    free(r->prompts);
    free(r->stops);
    free(r->model);
    free(r->request_id);
    free(r->chat_template);
    free(r->reasoning_effort);
    free(r->salt.s);
    json_decref(r->messages);
    json_decref(r->tools);
    json_decref(r->documents);
    json_decref(r->template_kwargs);
    sampling_finish(&r->sampling);
    kv_params_finish(&r->kv);
    *r = (struct oai_request){ 0 };
}
