/* Members of a request that need more than a line of the table in openai_request.c. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "wire/openai_impl.h"

/* ---- prompts ---- */

static int bad_prompt(struct oai_decoding *d)
{
    return oai_bad_type(d->e, "prompt",
                        "a string, a list of strings, a list of token ids or a list of such lists");
}

/* Token ids of a list, all below the vocabulary. */
static int get_ids(struct oai_decoding *d, const char *member, const json_t *list, int32_t **out,
                   uint32_t *n_out)
{
    size_t n = json_array_size(list), i;
    int32_t *ids = malloc((n ? n : 1) * sizeof *ids);
    const json_t *v;
    int st = 0;

    if (!ids)
        return oai_no_memory(d->e);
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_integer_value(v);

        if (!json_is_integer(v))
            st = oai_bad_type(d->e, member, "a list of token ids");
        else if (id < 0 || id >= (json_int_t)d->rules->vocab)
            st = oai_bad_value(d->e, member, "%s: token id %lld is outside the vocabulary (0..%u)",
                               member, (long long)id, d->rules->vocab - 1);
        if (st < 0) {
            free(ids);
            return st;
        }
        ids[i] = (int32_t)id;
    }
    free(*out);
    *out = ids;
    *n_out = (uint32_t)n;
    return 0;
}

static int get_one_prompt(struct oai_decoding *d, struct oai_prompt *p, const json_t *v)
{
    if (json_is_string(v)) {
        if (json_string_length(v) == 0)
            return oai_bad_value(d->e, "prompt", "the prompt is empty");
        p->text = oai_copy_text(v, &p->len);
        return p->text ? 0 : oai_no_memory(d->e);
    }
    if (!json_is_array(v))
        return bad_prompt(d);
    if (json_array_size(v) == 0)
        return oai_bad_value(d->e, "prompt", "the prompt has no token ids");
    return get_ids(d, "prompt", v, &p->ids, &p->n_ids);
}

int oai_get_prompt(struct oai_decoding *d, const char *member, json_t *v)
{
    struct oai_request *r = d->r;
    bool single = json_is_string(v) || json_is_integer(json_array_get(v, 0));
    size_t n = single ? 1 : json_array_size(v);
    int st;

    (void)member;
    if (!json_is_string(v) && !json_is_array(v))
        return bad_prompt(d);
    if (n == 0)
        return oai_bad_value(d->e, "prompt", "the list of prompts is empty");
    if (n > OAI_MAX_PROMPTS)
        return oai_bad_value(d->e, "prompt", "%zu prompts in one request, at most %d", n,
                             OAI_MAX_PROMPTS);
    r->prompts = calloc(n, sizeof *r->prompts);
    if (!r->prompts)
        return oai_no_memory(d->e);
    r->n_prompts = (uint32_t)n;
    for (size_t i = 0; i < n; i++)
        if ((st = get_one_prompt(d, &r->prompts[i], single ? v : json_array_get(v, i))) < 0)
            return st;
    return 0;
}

/* ---- stops ---- */

static int add_stop(struct oai_decoding *d, const json_t *v)
{
    struct oai_text *t = &d->r->stops[d->r->n_stops];

    if (!json_is_string(v))
        return oai_bad_type(d->e, "stop", "a string or a list of strings");
    if (json_string_length(v) == 0)
        return oai_bad_value(d->e, "stop", "a stop string must not be empty");
    if (json_string_length(v) > OAI_MAX_STOP_LEN)
        return oai_bad_value(d->e, "stop", "a stop string is longer than %d bytes",
                             OAI_MAX_STOP_LEN);
    t->s = oai_copy_text(v, &t->len);
    if (!t->s)
        return oai_no_memory(d->e);
    d->r->n_stops++;
    return 0;
}

int oai_get_stop(struct oai_decoding *d, const char *member, json_t *v)
{
    size_t n = json_is_array(v) ? json_array_size(v) : 1;
    int st = 0;

    if (n > OAI_MAX_STOPS)
        return oai_bad_value(d->e, member, "%zu stop strings, at most %d", n, OAI_MAX_STOPS);
    d->r->stops = calloc(n ? n : 1, sizeof *d->r->stops);
    if (!d->r->stops)
        return oai_no_memory(d->e);
    if (!json_is_array(v))
        return add_stop(d, v);
    for (size_t i = 0; i < n && st == 0; i++)
        st = add_stop(d, json_array_get(v, i));
    return st;
}

static int get_id_list(struct oai_decoding *d, const char *member, const json_t *v, int32_t **out,
                       uint32_t *n)
{
    if (!json_is_array(v))
        return oai_bad_type(d->e, member, "a list of token ids");
    if (json_array_size(v) > OAI_MAX_IDS)
        return oai_bad_value(d->e, member, "%s has %zu entries, at most %u", member,
                             json_array_size(v), OAI_MAX_IDS);
    return get_ids(d, member, v, out, n);
}

int oai_get_stop_ids(struct oai_decoding *d, const char *member, json_t *v)
{
    struct sampling *s = &d->r->sampling;

    return get_id_list(d, member, v, &s->stop_ids, &s->n_stop_ids);
}

/* ---- what may be sampled ---- */

int oai_get_allowed(struct oai_decoding *d, const char *member, json_t *v)
{
    struct sampling *s = &d->r->sampling;

    if (json_is_array(v) && json_array_size(v) == 0)
        return oai_bad_value(d->e, member, "%s must not be empty", member);
    return get_id_list(d, member, v, &s->allowed, &s->n_allowed);
}

/* One "id": bias of logit_bias; the bias is cut to [-100, 100] as OpenAI says. */
static int get_one_bias(struct oai_decoding *d, struct logit_bias *out, const char *key,
                        const json_t *v)
{
    char *end;
    long id = strtol(key, &end, 10);
    double b = json_number_value(v);

    if (key[0] == '\0' || *end)
        return oai_bad_value(d->e, "logit_bias", "logit_bias: '%.40s' is no token id", key);
    if (id < 0 || id >= (long)d->rules->vocab)
        return oai_bad_value(d->e, "logit_bias",
                             "logit_bias: token id %ld is outside the vocabulary (0..%u)", id,
                             d->rules->vocab - 1);
    if (!json_is_number(v))
        return oai_bad_type(d->e, "logit_bias", "an object of token ids and numbers");
    *out = (struct logit_bias){ (int32_t)id, (float)fmin(fmax(b, -100), 100) };
    return 0;
}

int oai_get_bias(struct oai_decoding *d, const char *member, json_t *v)
{
    struct sampling *s = &d->r->sampling;
    const char *key;
    json_t *value;
    int st;

    if (!json_is_object(v))
        return oai_bad_type(d->e, member, "an object of token ids and numbers");
    if (json_object_size(v) > OAI_MAX_IDS)
        return oai_bad_value(d->e, member, "%s has %zu entries, at most %u", member,
                             json_object_size(v), OAI_MAX_IDS);
    free(s->bias);
    s->n_bias = 0;
    s->bias = malloc((json_object_size(v) + 1) * sizeof *s->bias);
    if (!s->bias)
        return oai_no_memory(d->e);
    json_object_foreach(v, key, value)
    {
        if ((st = get_one_bias(d, &s->bias[s->n_bias], key, value)) < 0)
            return st;
        s->n_bias++;
    }
    return 0;
}

int oai_get_top_k(struct oai_decoding *d, const char *member, json_t *v)
{
    json_int_t k = json_integer_value(v);

    if (!json_is_integer(v))
        return oai_bad_type(d->e, member, "a whole number");
    if (k < -1 || k > INT32_MAX)
        return oai_bad_value(d->e, member, "top_k must be -1 or 0 (off) or more, got %lld",
                             (long long)k);
    d->r->sampling.top_k = k < 0 ? 0 : (uint32_t)k;
    return 0;
}

int oai_get_seed(struct oai_decoding *d, const char *member, json_t *v)
{
    if (!json_is_integer(v))
        return oai_bad_type(d->e, member, "a whole number of 64 bits");
    d->r->sampling.has_seed = true;
    d->r->sampling.seed = (uint64_t)json_integer_value(v);
    return 0;
}

/* ---- lengths ---- */

static int get_limit(struct oai_decoding *d, const char *member, const json_t *v, int64_t *out)
{
    json_int_t n = json_is_real(v) ? (json_int_t)json_real_value(v) : json_integer_value(v);

    if (!json_is_number(v) || (double)n != json_number_value(v))
        return oai_bad_type(d->e, member, "a whole number");
    if (n < 0 || (n == 0 && d->r->kind == OAI_CHAT))
        return oai_bad_value(d->e, member, "%s must be at least 1, got %lld", member, (long long)n);
    *out = n;
    return 0;
}

int oai_get_max_tokens(struct oai_decoding *d, const char *member, json_t *v)
{
    return get_limit(d, member, v, &d->max_tokens);
}

int oai_get_max_completion_tokens(struct oai_decoding *d, const char *member, json_t *v)
{
    return get_limit(d, member, v, &d->max_completion_tokens);
}

int oai_get_truncation_side(struct oai_decoding *d, const char *member, json_t *v)
{
    const char *side = json_string_value(v);

    if (!side || (strcmp(side, "left") != 0 && strcmp(side, "right") != 0))
        return oai_bad_type(d->e, member, "'left' or 'right'");
    d->r->truncate_right = side[0] == 'r';
    return 0;
}

/* ---- log-probabilities ---- */

static int get_logprob_count(struct oai_decoding *d, const char *member, const json_t *v,
                             int32_t *out)
{
    json_int_t n = json_integer_value(v);

    if (!json_is_integer(v))
        return oai_bad_type(d->e, member, "a whole number");
    if (n < 0 || n > (json_int_t)d->rules->max_logprobs)
        return oai_bad_value(d->e, member, "%s must be in 0..%u, got %lld", member,
                             d->rules->max_logprobs, (long long)n);
    *out = (int32_t)n;
    return 0;
}

int oai_get_completion_logprobs(struct oai_decoding *d, const char *member, json_t *v)
{
    d->r->want_logprobs = true;
    return get_logprob_count(d, member, v, &d->r->sampling.logprobs);
}

int oai_get_chat_logprobs(struct oai_decoding *d, const char *member, json_t *v)
{
    if (!json_is_boolean(v))
        return oai_bad_type(d->e, member, "true or false");
    d->r->want_logprobs = json_is_true(v);
    return 0;
}

int oai_get_top_logprobs(struct oai_decoding *d, const char *member, json_t *v)
{
    int32_t n = 0;
    int st = get_logprob_count(d, member, v, &n);

    d->r->top_logprobs = (uint32_t)n;
    return st;
}

int oai_get_prompt_logprobs(struct oai_decoding *d, const char *member, json_t *v)
{
    return get_logprob_count(d, member, v, &d->r->sampling.prompt_logprobs);
}

int oai_get_want_ids(struct oai_decoding *d, const char *member, json_t *v)
{
    struct sampling *s = &d->r->sampling;

    if (json_is_array(v) && json_array_size(v) > d->rules->max_logprobs)
        return oai_bad_value(d->e, member, "%s has %zu entries, at most %u", member,
                             json_array_size(v), d->rules->max_logprobs);
    return get_id_list(d, member, v, &s->want_ids, &s->n_want);
}

/* ---- the rest ---- */

int oai_get_stream_options(struct oai_decoding *d, const char *member, json_t *v)
{
    static const char *const names[] = { "include_usage", "continuous_usage_stats" };
    bool *const slots[] = { &d->r->include_usage, &d->r->continuous_usage };

    if (!json_is_object(v))
        return oai_bad_type(d->e, member, "an object");
    d->has_stream_options = true;
    for (int i = 0; i < 2; i++) {
        const json_t *o = json_object_get(v, names[i]);

        if (!o || json_is_null(o))
            continue;
        if (!json_is_boolean(o))
            return oai_bad_type(d->e, member, "an object of true and false");
        *slots[i] = json_is_true(o);
    }
    return 0;
}

int oai_get_priority(struct oai_decoding *d, const char *member, json_t *v)
{
    if (!json_is_integer(v))
        return oai_bad_type(d->e, member, "a whole number");
    d->r->priority = json_integer_value(v);
    if (d->r->priority != 0 && !d->rules->priority)
        return oai_bad_value(d->e, member,
                             "priority needs a server with --scheduling-policy priority");
    return 0;
}

int oai_get_salt(struct oai_decoding *d, const char *member, json_t *v)
{
    struct oai_text *t = &d->r->salt;

    if (!json_is_string(v))
        return oai_bad_type(d->e, member, "a string");
    if (json_string_length(v) == 0 || json_string_length(v) > OAI_MAX_SALT)
        return oai_bad_value(d->e, member, "cache_salt must have 1 to %d bytes", OAI_MAX_SALT);
    t->s = oai_copy_text(v, &t->len);
    return t->s ? 0 : oai_no_memory(d->e);
}

int oai_get_kv(struct oai_decoding *d, const char *member, json_t *v)
{
    struct err err = { "" };
    int st = kv_params_decode(&d->r->kv, v, &err);

    if (st == ERR_NOMEM)
        return oai_no_memory(d->e);
    if (st < 0)
        return oai_bad_value(d->e, member, "%s", err.text);
    d->r->has_kv = d->r->kv.do_remote_decode || d->r->kv.do_remote_prefill;
    return 0;
}

/* {"type":"text"} is what is done anyway. */
int oai_get_response_format(struct oai_decoding *d, const char *member, json_t *v)
{
    const char *type = json_string_value(json_object_get(v, "type"));

    if (!type)
        return oai_bad_type(d->e, member, "an object with a type");
    if (strcmp(type, "text") == 0)
        return 0;
    return oai_bad_value(
        d->e, member,
        "response_format '%.40s' is not supported: structured output is not part of "
        "this server",
        type);
}
