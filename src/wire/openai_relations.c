/* The relations between the members of a request: looked at when all of them were read. */
#include <string.h>

#include "wire/openai_impl.h"

/* Which of the limits counts, and what the model must not do below it. */
static int settle_lengths(struct oai_decoding *d)
{
    struct oai_request *r = d->r;
    struct sampling *s = &r->sampling;
    bool completion_limit = d->max_completion_tokens >= 0;
    int64_t limit = completion_limit ? d->max_completion_tokens : d->max_tokens;

    if (completion_limit)
        r->max_tokens_name = "max_completion_tokens";
    if (limit < 0 && r->kind == OAI_COMPLETION && !d->unlimited)
        limit = 16;
    r->has_max_tokens = limit >= 0;
    if (limit == 0 && !r->echo)
        return oai_bad_value(d->e, "max_tokens", "max_tokens must be at least 1, got 0");
    s->prompt_only = limit == 0;
    if (limit >= 0)
        s->max_tokens = limit > UINT32_MAX ? UINT32_MAX : (uint32_t)limit;
    if (r->has_max_tokens && s->min_tokens > s->max_tokens)
        return oai_bad_value(d->e, "min_tokens", "min_tokens (%u) is above %s (%u)", s->min_tokens,
                             r->max_tokens_name, s->max_tokens);
    return 0;
}

static int settle_logprobs(struct oai_decoding *d)
{
    struct oai_request *r = d->r;
    struct sampling *s = &r->sampling;

    if (r->kind == OAI_CHAT) {
        if (r->top_logprobs > 0 && !r->want_logprobs)
            return oai_bad_value(d->e, "top_logprobs", "top_logprobs needs logprobs to be true");
        if (r->want_logprobs)
            s->logprobs = (int32_t)r->top_logprobs;
    } else {
        r->top_logprobs = r->want_logprobs ? (uint32_t)s->logprobs : 0;
        if (r->echo && r->want_logprobs && s->prompt_logprobs < 0)
            s->prompt_logprobs = s->logprobs;
    }
    if (s->n_want > 0 && !r->want_logprobs)
        return oai_bad_value(d->e, "logprob_token_ids", "logprob_token_ids needs logprobs");
    if (r->stream && s->prompt_logprobs >= 0 && !(r->echo && r->want_logprobs))
        return oai_bad_value(d->e, "prompt_logprobs", "prompt_logprobs cannot be streamed");
    return 0;
}

/* Temperature 0 is the greedy choice: what shapes the distribution has no say then. */
static int settle_sampling(struct oai_decoding *d)
{
    struct sampling *s = &d->r->sampling;

    if (s->temperature < 1e-5f) {
        s->temperature = 0;
        s->top_p = 1;
        s->min_p = 0;
        s->top_k = 0;
        if (d->r->n > 1)
            return oai_bad_value(d->e, "n",
                                 "n must be 1 at temperature 0, where all choices would "
                                 "be equal, got %u",
                                 d->r->n);
    }
    if ((uint64_t)d->r->n * (d->r->n_prompts ? d->r->n_prompts : 1) > OAI_MAX_CHOICES)
        return oai_bad_value(d->e, "n", "n times the number of prompts is above %d",
                             OAI_MAX_CHOICES);
    return 0;
}

static int settle_stream(struct oai_decoding *d)
{
    struct oai_request *r = d->r;

    if (d->has_stream_options && !r->stream)
        return oai_bad_value(d->e, "stream_options", "stream_options needs stream to be true");
    r->include_usage = r->stream && (r->include_usage || d->rules->force_usage);
    r->continuous_usage = r->continuous_usage && r->include_usage;
    return 0;
}

/* Tools are shown to the template; nothing here reads calls out of the answer, so that a choice which
 * needs that is refused. */
static int settle_tools(struct oai_decoding *d)
{
    const json_t *choice = d->tool_choice;
    const char *word = json_string_value(choice);

    if (!choice || (word && strcmp(word, "none") == 0))
        return 0;
    if (!d->has_tools)
        return oai_bad_value(d->e, "tool_choice", "tool_choice needs tools");
    return oai_bad_value(
        d->e, "tool_choice",
        "tool_choice '%.40s' is not supported: this server has no tool-call parser",
        word ? word : "function");
}

static int settle_chat(struct oai_decoding *d)
{
    const struct oai_request *r = d->r;

    if (r->kind != OAI_CHAT)
        return 0;
    if (r->add_generation_prompt && r->continue_final_message)
        return oai_bad_value(d->e, "continue_final_message",
                             "continue_final_message and add_generation_prompt exclude each other");
    return settle_tools(d);
}

int oai_check_relations(struct oai_decoding *d)
{
    struct oai_request *r = d->r;
    int st;

    if ((st = settle_lengths(d)) < 0 || (st = settle_logprobs(d)) < 0 ||
        (st = settle_sampling(d)) < 0 || (st = settle_stream(d)) < 0 || (st = settle_chat(d)) < 0)
        return st;
    if (r->has_kv && r->kv.do_remote_prefill && r->n_prompts > 1)
        return oai_bad_value(d->e, "prompt",
                             "kv_transfer_params of a remote prefill name one prompt, not %u",
                             r->n_prompts);
    return 0;
}
