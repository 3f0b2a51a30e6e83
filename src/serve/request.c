/* Checks of a request that need the model: its name, its lengths, its chat as text. */
#include <stdlib.h>
#include <string.h>

#include "serve/gen.h"
#include "text/template.h"
#include "text/tokenizer.h"

bool request_model_ok(const struct serve *s, const char *model)
{
    const struct opt_list *names = &s->cfg->served_names;

    if (!model || model[0] == '\0')
        return true;
    if (names->n == 0)
        return strcmp(model, s->cfg->model) == 0;
    for (size_t i = 0; i < names->n; i++)
        if (strcmp(model, names->v[i]) == 0)
            return true;
    return false;
}

/* truncate_prompt_tokens: keeps the end of the prompt, or its beginning. */
static void truncate(const struct serve *s, const struct oai_request *r, struct gen_prompt *p)
{
    int64_t keep = r->truncate;
    uint32_t drop;

    if (keep == 0)
        return;
    if (keep < 0) {
        int64_t out = r->has_max_tokens ? r->sampling.max_tokens : 1;

        keep = (int64_t)s->info.max_model_len - out;
    }
    if (keep < 1 || (int64_t)p->n <= keep)
        return;
    drop = p->n - (uint32_t)keep;
    if (!r->truncate_right)
        memmove(p->ids, p->ids + drop, (size_t)keep * sizeof *p->ids);
    p->n = (uint32_t)keep;
}

static int too_long(const struct serve *s, const struct oai_request *r, uint32_t n,
                    struct oai_error *e)
{
    return oai_fail(e, 400, oai_error_type(400), r->kind == OAI_CHAT ? "messages" : "prompt",
                    "the context of this model is %u tokens, but the prompt has %u tokens, which "
                    "leaves no room for an output; shorten the prompt",
                    s->info.max_model_len, n);
}

int request_needs_text(const struct serve *s, const char *param, const char *what,
                       struct oai_error *e)
{
    if (s->tok)
        return 0;
    return oai_fail(
        e, 400, oai_error_type(400), param,
        "%s cannot be taken: this server runs without a tokenizer "
        "(--skip-tokenizer-init); /v1/completions takes token ids as prompt and answers "
        "with return_token_ids",
        what);
}

int request_text_fits(const struct serve *s, const char *param, size_t len, bool truncated,
                      struct oai_error *e)
{
    size_t most = tokenizer_text_limit(s->tok, s->info.max_model_len);

    if (len <= most || (truncated && len <= REQUEST_MAX_TRUNCATED))
        return 0;
    if (truncated)
        return oai_fail(e, 400, oai_error_type(400), param,
                        "a text of %zu bytes is too long to be truncated, at most %u are; shorten "
                        "the prompt",
                        len, REQUEST_MAX_TRUNCATED);
    return oai_fail(e, 400, oai_error_type(400), param,
                    "the context of this model is %u tokens, which is a text of %zu bytes at most, "
                    "but this one has %zu; shorten the prompt",
                    s->info.max_model_len, most, len);
}

int request_not_encoded(const char *param, int st, struct oai_error *e)
{
    if (st == ERR_NOMEM)
        return oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory");
    return oai_fail(e, 400, oai_error_type(400), param, "the text cannot be tokenized: %s",
                    status_text(st));
}

int request_encoder_full(struct oai_error *e)
{
    return oai_fail(e, 503, oai_error_type(503), NULL,
                    "too many long texts are waiting to be tokenized; try again later");
}

static int limit_too_high(const struct serve *s, const struct oai_request *r, uint32_t n,
                          struct oai_error *e)
{
    return oai_fail(e, 400, oai_error_type(400), r->max_tokens_name,
                    "the context of this model is %u tokens, but %llu were asked for: %u in the "
                    "prompt and %u in the output (%s)",
                    s->info.max_model_len, (unsigned long long)n + r->sampling.max_tokens, n,
                    r->sampling.max_tokens, r->max_tokens_name);
}

int request_fit(struct serve *s, struct oai_request *r, struct gen_prompt *prompts, uint32_t n,
                struct oai_error *e)
{
    uint32_t max = s->info.max_model_len, longest = 0, least_room;

    for (uint32_t i = 0; i < n; i++) {
        truncate(s, r, &prompts[i]);
        if (prompts[i].n == 0)
            return oai_fail(e, 400, oai_error_type(400), "prompt", "the prompt has no tokens");
        longest = prompts[i].n > longest ? prompts[i].n : longest;
    }
    if (longest > max || (longest == max && !r->sampling.prompt_only))
        return too_long(s, r, longest, e);
    least_room = max - longest;
    if (r->has_max_tokens && r->sampling.max_tokens > least_room)
        return limit_too_high(s, r, longest, e);
    if (!r->has_max_tokens) {
        uint32_t most = s->rules.default_max_tokens;

        r->sampling.max_tokens = most > 0 && most < least_room ? most : least_room;
        if (r->sampling.min_tokens > r->sampling.max_tokens)
            return oai_fail(e, 400, oai_error_type(400), "min_tokens",
                            "min_tokens is %u, but only %u tokens of output fit",
                            r->sampling.min_tokens, r->sampling.max_tokens);
    }
    return 0;
}

/* ---- chats ---- */

static int set_special(json_t *vars, const struct tokenizer *tok)
{
    static const char *const names[] = { "bos_token", "eos_token", "pad_token", "unk_token" };

    for (int i = 0; i < 4; i++) {
        const char *text = tokenizer_special(tok, names[i]);

        if (text && json_object_set_new(vars, names[i], json_string(text)) < 0)
            return ERR_NOMEM;
    }
    return 0;
}

/* A borrowed value, or null as templates expect of what is absent. */
static int set_or_null(json_t *vars, const char *name, json_t *v)
{
    return v ? json_object_set(vars, name, v) : json_object_set_new(vars, name, json_null());
}

static json_t *template_vars(struct serve *s, const struct oai_request *r)
{
    json_t *vars = json_object();

    if (!vars || set_special(vars, s->tok) < 0 ||
        json_object_set(vars, "messages", r->messages) < 0 ||
        set_or_null(vars, "tools", r->tools) < 0 ||
        set_or_null(vars, "documents", r->documents) < 0 ||
        json_object_set_new(vars, "add_generation_prompt", json_boolean(r->add_generation_prompt)) <
            0 ||
        (r->reasoning_effort &&
         json_object_set_new(vars, "reasoning_effort", json_string(r->reasoning_effort)) < 0) ||
        (s->cfg->default_template_kwargs &&
         json_object_update(vars, s->cfg->default_template_kwargs) < 0) ||
        (r->template_kwargs && json_object_update(vars, r->template_kwargs) < 0)) {
        json_decref(vars);
        return NULL;
    }
    return vars;
}

/* continue_final_message: the text ends with the last message's content, without what the template
 * puts behind it. */
static void cut_after_final(const struct oai_request *r, struct oai_text *t)
{
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    const json_t *content = json_object_get(last, "content");
    const char *want = json_string_value(content);
    size_t n = json_string_length(content);

    while (n > 0 && strchr(" \t\r\n", want[n - 1]))
        n--;
    for (size_t at = t->len; n > 0 && at >= n; at--) {
        if (memcmp(t->s + at - n, want, n) == 0) {
            t->len = at;
            t->s[at] = '\0';
            return;
        }
    }
}

static int render(const struct template *t, struct serve *s, const struct oai_request *r,
                  struct oai_text *out, struct oai_error *e)
{
    json_t *vars = template_vars(s, r);
    struct err err = { "" };
    int st;

    if (!vars)
        return oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory");
    st = template_render(t, vars, &out->s, &out->len, &err);
    json_decref(vars);
    if (st == ERR_NOMEM)
        return oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory");
    if (st < 0)
        return oai_fail(e, 400, oai_error_type(400), "messages", "the chat template refuses: %s",
                        err.text);
    if (r->continue_final_message)
        cut_after_final(r, out);
    return 0;
}

int chat_render(struct serve *s, const struct oai_request *r, struct oai_text *out,
                struct oai_error *e)
{
    struct template *own = NULL;
    struct err err = { "" };
    int st;

    if (r->chat_template &&
        template_compile(&own, r->chat_template, strlen(r->chat_template), &err) < 0)
        return oai_fail(e, 400, oai_error_type(400), "chat_template", "chat_template: %s",
                        err.text);
    if (!own && !s->template)
        return oai_fail(e, 400, oai_error_type(400), "messages",
                        "this model has no chat template; start the server with --chat-template");
    st = render(own ? own : s->template, s, r, out, e);
    template_destroy(own);
    return st;
}
