/* The members that only chats have: messages, tools, templates. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "wire/openai_impl.h"

static int bad_messages(struct oai_error *e, size_t i, const char *what)
{
    char param[96];

    snprintf(param, sizeof param, "body.messages.%zu", i);
    return oai_fail(e, 400, "Bad Request", param, "messages[%zu]%s", i, what);
}

/* A part of a content list: text is appended, a line each. */
static int add_part(struct buf *text, size_t n_before, const json_t *part, size_t i,
                    struct oai_error *e)
{
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *t = json_object_get(part, "text");

    if (json_is_string(part))
        t = part;
    else if (!type || !json_is_object(part))
        return bad_messages(e, i, ".content: each part needs a type");
    else if (strcmp(type, "text") != 0 && strcmp(type, "input_text") != 0 &&
             strcmp(type, "output_text") != 0 && strcmp(type, "refusal") != 0)
        return oai_bad_value(e, "messages",
                             "messages[%zu].content: a part of type '%.40s' is not "
                             "supported, only text",
                             i, type);
    if (type && strcmp(type, "refusal") == 0)
        t = json_object_get(part, "refusal");
    if (!json_is_string(t))
        return bad_messages(e, i, ".content: a text part needs its text");
    if (n_before > 0)
        buf_putc(text, '\n');
    return buf_append(text, json_string_value(t), json_string_length(t)) < 0 ? oai_no_memory(e) : 0;
}

/* The content as one string: a new reference. */
static int flatten(json_t **out, const json_t *content, size_t i, struct oai_error *e)
{
    struct buf text;
    const json_t *part;
    size_t k;
    int st = 0;

    buf_init(&text, BUF_MAX_BODY);
    json_array_foreach(content, k, part)
    {
        if ((st = add_part(&text, k, part, i, e)) < 0)
            break;
    }
    if (st == 0) {
        *out = json_stringn(text.data ? text.data : "", text.len);
        st = *out ? 0 : oai_no_memory(e);
    }
    buf_finish(&text);
    return st;
}

/* Templates write arguments as JSON; clients send them as a string of it. */
static int parse_arguments(json_t *call)
{
    json_t *fn = json_object_get(call, "function"), *args = json_object_get(fn, "arguments"), *v;

    if (!json_is_string(args))
        return 0;
    if (json_read(&v, json_string_value(args), json_string_length(args), NULL, NULL) < 0)
        return 0;
    return json_object_set_new(fn, "arguments", v) < 0 ? ERR_NOMEM : 0;
}

static int check_message(json_t *m, size_t i, struct oai_error *e)
{
    json_t *content = json_object_get(m, "content"), *flat, *call;
    size_t k;
    int st;

    if (!json_is_object(m))
        return bad_messages(e, i, " must be an object");
    if (!json_is_string(json_object_get(m, "role")))
        return bad_messages(e, i, ".role must be a string");
    if (content && !json_is_null(content) && !json_is_string(content) && !json_is_array(content))
        return bad_messages(e, i, ".content must be a string, a list of parts or null");
    if (!json_is_string(content)) {
        if ((st = flatten(&flat, content, i, e)) < 0)
            return st;
        if (json_object_set_new(m, "content", flat) < 0)
            return oai_no_memory(e);
    }
    json_array_foreach(json_object_get(m, "tool_calls"), k, call)
    {
        if (parse_arguments(call) < 0)
            return oai_no_memory(e);
    }
    return 0;
}

int oai_decode_messages(json_t **out, const json_t *messages, struct oai_error *e)
{
    size_t n = json_array_size(messages);
    json_t *copy;
    int st = 0;

    if (!json_is_array(messages))
        return oai_bad_type(e, "messages", "a list of messages");
    if (n == 0)
        return oai_bad_value(e, "messages", "messages must not be empty");
    if (n > OAI_MAX_MESSAGES)
        return oai_bad_value(e, "messages", "%zu messages, at most %d", n, OAI_MAX_MESSAGES);
    copy = json_deep_copy(messages);
    if (!copy)
        return oai_no_memory(e);
    for (size_t i = 0; i < n && st == 0; i++)
        st = check_message(json_array_get(copy, i), i, e);
    if (st < 0)
        json_decref(copy);
    else
        *out = copy;
    return st;
}

int oai_get_messages(struct oai_decoding *d, const char *member, json_t *v)
{
    (void)member;
    return oai_decode_messages(&d->r->messages, v, d->e);
}

int oai_get_tools(struct oai_decoding *d, const char *member, json_t *v)
{
    const json_t *tool;
    size_t i;

    if (!json_is_array(v))
        return oai_bad_type(d->e, member, "a list of tools");
    json_array_foreach(v, i, tool)
    {
        const json_t *fn = json_object_get(tool, "function");

        if (!json_is_object(tool) || !json_is_string(json_object_get(fn, "name")))
            return oai_bad_type(d->e, member, "a list of objects with a function and its name");
    }
    if (json_array_size(v) == 0)
        return 0;
    d->has_tools = true;
    d->r->tools = json_deep_copy(v);
    return d->r->tools ? 0 : oai_no_memory(d->e);
}

int oai_get_tool_choice(struct oai_decoding *d, const char *member, json_t *v)
{
    static const char *const words[] = { "none", "auto", "required" };
    const char *word = json_string_value(v);
    bool known = json_is_object(v);

    for (int i = 0; i < 3; i++)
        known = known || (word && strcmp(word, words[i]) == 0);
    if (!known)
        return oai_bad_type(d->e, member, "'none', 'auto', 'required' or a named function");
    d->tool_choice = v;
    return 0;
}

int oai_get_template(struct oai_decoding *d, const char *member, json_t *v)
{
    if (!json_is_string(v))
        return oai_bad_type(d->e, member, "a string");
    if (!d->rules->trust_chat_template)
        return oai_bad_value(d->e, member,
                             "a chat_template in the request needs a server with "
                             "--trust-request-chat-template");
    d->r->chat_template = oai_copy_text(v, NULL);
    return d->r->chat_template ? 0 : oai_no_memory(d->e);
}

/* The switches that models know must be what they look like: "false" as a string would be true. */
int oai_get_template_kwargs(struct oai_decoding *d, const char *member, json_t *v)
{
    static const char *const switches[] = { "thinking", "enable_thinking" };

    if (!json_is_object(v))
        return oai_bad_type(d->e, member, "an object");
    for (int i = 0; i < 2; i++) {
        const json_t *s = json_object_get(v, switches[i]);

        if (s && !json_is_boolean(s))
            return oai_bad_value(d->e, member, "chat_template_kwargs.%s must be true or false",
                                 switches[i]);
    }
    json_decref(d->r->template_kwargs);
    d->r->template_kwargs = json_deep_copy(v);
    return d->r->template_kwargs ? 0 : oai_no_memory(d->e);
}
