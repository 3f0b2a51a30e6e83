#include "proxy/legs.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"

#define TEXT(literal)                                                                              \
    {                                                                                              \
        literal, sizeof literal - 1                                                                \
    }

static const char do_remote_decode[] =
    "{\"do_remote_decode\":true,\"do_remote_prefill\":false,\"remote_engine_id\":null,"
    "\"remote_block_ids\":null,\"remote_host\":null,\"remote_port\":null}";

/* A JSON value that asks for something: not absent, null, false or 0. */
static bool asks(struct splice_text v)
{
    return v.p && !splice_is(v, "null") && !splice_is(v, "false") && !splice_is(v, "0");
}

/* Log-probabilities of the prompt: echo with logprobs (0 asks, too), or prompt_logprobs. */
static bool wants_prompt_logprobs(struct splice_text body)
{
    struct splice_text logprobs = splice_get(body, "logprobs");
    struct splice_text prompt = splice_get(body, "prompt_logprobs");

    if (prompt.p && !splice_is(prompt, "null"))
        return true;
    return splice_is(splice_get(body, "echo"), "true") && logprobs.p &&
           !splice_is(logprobs, "null");
}

/* ["a","b"] and [[1],[2]] are several prompts, [1,2] is one. */
static bool has_several_prompts(struct splice_text body)
{
    struct splice_text prompt = splice_get(body, "prompt");
    size_t at = 1;

    if (splice_array_len(prompt) < 2)
        return false;
    at += strspn(prompt.p + at, " \t\r\n");
    return prompt.p[at] == '"' || prompt.p[at] == '[';
}

int legs_read(struct legs_request *out, const char *body, size_t len, size_t *at)
{
    int st = splice_check(body, len, at);

    if (st < 0)
        return st;
    out->body = (struct splice_text){ body, len };
    out->output_ids = (struct splice_text){ NULL, 0 };
    out->transfer_id = NULL;
    out->stream = splice_is(splice_get(out->body, "stream"), "true");
    out->plan = has_several_prompts(out->body) || wants_prompt_logprobs(out->body) ? LEGS_DIRECT
                                                                                   : LEGS_PD;
    return 0;
}

/* kv_transfer_params with the name of the transfer, if it has one. Appends to b. */
static struct splice_text with_name(struct buf *b, struct splice_text params,
                                    const struct legs_request *r)
{
    struct splice_edit edit = { .key = "transfer_id", .op = SPLICE_SET };
    char quoted[80];

    if (!r->transfer_id)
        return params;
    edit.value.p = quoted;
    edit.value.len = (size_t)snprintf(quoted, sizeof quoted, "\"%s\"", r->transfer_id);
    splice_edit(b, params, &edit, 1);
    return (struct splice_text){ buf_str(b), b->len };
}

/* kv_transfer_params with the output so far, if there is any. Appends to b. */
static struct splice_text with_output(struct buf *b, struct splice_text params,
                                      const struct legs_request *r)
{
    const struct splice_edit edit = { "output_token_ids", SPLICE_SET, r->output_ids };

    if (!r->output_ids.p)
        return params;
    if (!params.p)
        params = (struct splice_text)TEXT("{}");
    splice_edit(b, params, &edit, 1);
    return (struct splice_text){ buf_str(b), b->len };
}

static int prefill_body(struct buf *out, const struct legs_request *r, struct splice_text params)
{
    /* A limit that the client gave as null is one that it did not give. */
    bool limited = asks(splice_get(r->body, "max_completion_tokens"));
    /* Every field that would make P reject one token, or produce more than one. */
    const struct splice_edit edits[] = {
        { "max_tokens", SPLICE_SET, TEXT("1") },
        { "max_completion_tokens", limited ? SPLICE_REPLACE : SPLICE_DELETE, TEXT("1") },
        { "min_tokens", SPLICE_DELETE, { NULL, 0 } },
        { "stream", SPLICE_SET, TEXT("false") },
        { "stream_options", SPLICE_DELETE, { NULL, 0 } },
        { "n", SPLICE_REPLACE, TEXT("1") },
        { "best_of", SPLICE_DELETE, { NULL, 0 } },
        { "echo", SPLICE_DELETE, { NULL, 0 } },
        { "kv_transfer_params", SPLICE_SET, params },
    };

    return splice_edit(out, r->body, edits, sizeof edits / sizeof *edits);
}

int legs_prefill_body(struct buf *out, const struct legs_request *r)
{
    struct splice_text params = { do_remote_decode, sizeof do_remote_decode - 1 };
    struct buf named, b;
    int st;

    buf_init(&named, BUF_MAX_LINE);
    buf_init(&b, BUF_MAX_BODY);
    params = with_output(&b, with_name(&named, params, r), r);
    st = named.status < 0 ? named.status : b.status < 0 ? b.status : prefill_body(out, r, params);
    buf_finish(&b);
    buf_finish(&named);
    return st;
}

int legs_decode_body(struct buf *out, const struct legs_request *r, struct splice_text kv_params)
{
    /* Where blocks are pulled from is never the client's to say. */
    struct splice_edit edit = { .key = "kv_transfer_params" };
    struct buf b;
    int st;

    buf_init(&b, BUF_MAX_BODY);
    edit.value = with_output(&b, kv_params, r);
    edit.op = edit.value.p ? SPLICE_SET : SPLICE_DELETE;
    st = b.status < 0 ? b.status : splice_edit(out, r->body, &edit, 1);
    buf_finish(&b);
    return st;
}

static const char *const cached_path[] = { "usage", "prompt_tokens_details", "cached_tokens",
                                           NULL };

int legs_read_prefilled(struct legs_prefilled *out, const char *answer, size_t len)
{
    struct splice_text text = { answer, len };
    size_t at;

    if (splice_check(answer, len, &at) < 0)
        return ERR_BADMSG;
    out->kv_params = splice_get(text, "kv_transfer_params");
    if (!splice_is_object(out->kv_params))
        out->kv_params = (struct splice_text){ NULL, 0 };
    if (!splice_integer(&out->cached_tokens, splice_path(text, cached_path)))
        out->cached_tokens = 0;
    return 0;
}

static const char *const output_path[] = { "kv_transfer_params", "output_token_ids", NULL };

/* The only choice of a reply; absent if there are several. */
static struct splice_text only_choice(struct splice_text reply)
{
    struct splice_text list = splice_get(reply, "choices"), none = { NULL, 0 };

    if (splice_array_len(list) != 1)
        return none;
    for (list.p++, list.len -= 2; list.len && strchr(" \t\r\n", *list.p); list.len--)
        list.p++;
    while (list.len && strchr(" \t\r\n", list.p[list.len - 1]))
        list.len--;
    return splice_is_object(list) ? list : none;
}

bool legs_given_back(struct splice_text *ids, const char *json, size_t len)
{
    struct splice_text text = { json, len }, choice;
    size_t at;

    if (!memmem(json, len, "\"recomputed\"", 12) || splice_check(json, len, &at) < 0)
        return false;
    choice = only_choice(text);
    if (!choice.p || !splice_is(splice_get(choice, "stop_reason"), "\"recomputed\""))
        return false;
    *ids = splice_path(text, output_path);
    return ids->p && *ids->p == '[';
}

int legs_unfinished(struct buf *out, const char *json, size_t len)
{
    static const struct splice_edit inner[] = {
        { "finish_reason", SPLICE_REPLACE, TEXT("null") },
        { "stop_reason", SPLICE_REPLACE, TEXT("null") },
    };
    struct splice_text text = { json, len };
    struct splice_edit outer[] = {
        { .key = "choices", .op = SPLICE_SET },
        { .key = "kv_transfer_params", .op = SPLICE_DELETE },
    };
    struct buf b;
    int st;

    buf_init(&b, BUF_MAX_BODY);
    buf_putc(&b, '[');
    splice_edit(&b, only_choice(text), inner, 2);
    st = buf_putc(&b, ']');
    outer[0].value = (struct splice_text){ buf_str(&b), b.len };
    if (st == 0)
        st = splice_edit(out, text, outer, 2);
    buf_finish(&b);
    return st;
}

/* Sets the member of the object to the text in `value`, for one step outwards. */
static int set_member(struct buf *out, struct splice_text object, const char *key,
                      const struct buf *value)
{
    struct splice_edit edit = { key, SPLICE_SET, { buf_str(value), value->len } };

    return splice_edit(out, object, &edit, 1);
}

int legs_fix_usage(struct buf *out, const char *json, size_t len, long long cached_tokens)
{
    struct splice_text text = { json, len }, usage, details;
    struct buf number, new_details, new_usage;
    size_t at;
    int st;

    if (!memmem(json, len, "\"usage\"", 7) || splice_check(json, len, &at) < 0)
        return ERR_AGAIN;
    usage = splice_get(text, "usage");
    if (!splice_is_object(usage))
        return ERR_AGAIN;
    details = splice_get(usage, "prompt_tokens_details");
    if (!splice_is_object(details))
        details = (struct splice_text)TEXT("{}");
    buf_init(&number, BUF_MAX_LINE);
    buf_init(&new_details, BUF_MAX_BODY);
    buf_init(&new_usage, BUF_MAX_BODY);
    buf_printf(&number, "%lld", cached_tokens);
    if ((st = number.status) == 0 &&
        (st = set_member(&new_details, details, "cached_tokens", &number)) == 0 &&
        (st = set_member(&new_usage, usage, "prompt_tokens_details", &new_details)) == 0)
        st = set_member(out, text, "usage", &new_usage);
    buf_finish(&number);
    buf_finish(&new_details);
    buf_finish(&new_usage);
    return st;
}
