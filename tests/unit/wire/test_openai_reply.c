/* Recorded replies of the reference are taken apart and put together again: what comes out must be
 * the same members, in the same order; events the same bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "wire/openai.h"

#define MAX_CHOICES 4
#define MAX_ALT     4
#define MAX_IDS     64

/* A recorded choice as the encoder wants it; points into the JSON it came from. */
struct taken {
    struct oai_choice c;
    struct oai_text stop;
    struct oai_logprobs *logprobs;
    int32_t ids[MAX_IDS], prompt_ids[MAX_IDS];
    struct buf prompt_logprobs;
};

static const char *str(const json_t *o, const char *key)
{
    return json_string_value(json_object_get(o, key));
}

static uint32_t num(const json_t *o, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(o, key));
}

static struct oai_logprob named(const char *token, const json_t *logprob)
{
    return (struct oai_logprob){ .token = token,
                                 .len = strlen(token),
                                 .bytes = token,
                                 .n_bytes = strlen(token),
                                 .logprob = json_number_value(logprob) };
}

static void take_chat_logprobs(struct oai_logprobs *l, json_t *v)
{
    json_t *entry, *top;
    size_t i, k;

    json_array_foreach(json_object_get(v, "content"), i, entry)
    {
        struct oai_logprob alt[MAX_ALT] = { named(str(entry, "token"),
                                                  json_object_get(entry, "logprob")) };

        json_array_foreach(json_object_get(entry, "top_logprobs"), k, top)
        {
            alt[k] = named(str(top, "token"), json_object_get(top, "logprob"));
        }
        assert_int_equal(oai_logprobs_add(l, true, alt, (uint32_t)k), 0);
    }
}

static void take_columns(struct oai_logprobs *l, json_t *v)
{
    json_t *token, *value;
    const char *key;
    size_t i;

    json_array_foreach(json_object_get(v, "tokens"), i, token)
    {
        const json_t *lp = json_array_get(json_object_get(v, "token_logprobs"), i);
        struct oai_logprob alt[MAX_ALT] = { named(json_string_value(token), lp) };
        uint32_t n = 0;

        json_object_foreach(json_array_get(json_object_get(v, "top_logprobs"), i), key, value)
        {
            alt[n++] = named(key, value);
        }
        assert_int_equal(oai_logprobs_add(l, !json_is_null(lp), alt, n ? n - 1 : 0), 0);
    }
}

static void take_prompt_logprobs(struct buf *b, json_t *list)
{
    json_t *position, *value;
    const char *key;
    size_t i;

    buf_init(b, BUF_MAX_LINE);
    json_array_foreach(list, i, position)
    {
        struct oai_logprob alt[MAX_ALT];
        uint32_t n = 0;

        buf_putc(b, i ? ',' : '[');
        json_object_foreach(position, key, value)
        {
            alt[n] = named(str(value, "decoded_token"), json_object_get(value, "logprob"));
            alt[n].id = atoi(key);
            alt[n++].rank = num(value, "rank");
        }
        if (n)
            oai_put_prompt_logprob(b, alt, n - 1);
        else
            buf_puts(b, "null");
    }
    buf_putc(b, ']');
}

static uint32_t take_ids(int32_t *out, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return (uint32_t)json_array_size(list);
}

static enum finish finish_of(const json_t *c)
{
    const char *s = str(c, "finish_reason");

    return !s ? FINISH_NONE : strcmp(s, "stop") == 0 ? FINISH_STOP : FINISH_LENGTH;
}

static void take(struct taken *t, enum oai_kind kind, json_t *c, const json_t *text)
{
    json_t *lp = json_object_get(c, "logprobs"), *stop = json_object_get(c, "stop_reason");
    json_t *plp = json_object_get(c, "prompt_logprobs");

    memset(t, 0, sizeof *t);
    t->c = (struct oai_choice){ .index = num(c, "index"),
                                .finish = finish_of(c),
                                .stop_id = -1,
                                .text = json_string_value(text),
                                .len = json_string_length(text) };
    if (json_is_integer(stop))
        t->c.stop_id = (int32_t)json_integer_value(stop);
    t->stop = (struct oai_text){ NULL, json_string_length(stop) };
    if (json_is_string(stop)) {
        t->stop.s = strdup(json_string_value(stop));
        t->c.stop = &t->stop;
    }
    if (json_is_object(lp)) {
        assert_int_equal(oai_logprobs_create(&t->logprobs, kind), 0);
        (kind == OAI_CHAT ? take_chat_logprobs : take_columns)(t->logprobs, lp);
        t->c.logprobs = t->logprobs;
    }
    if (json_is_array(json_object_get(c, "token_ids"))) {
        t->c.n_ids = take_ids(t->ids, json_object_get(c, "token_ids"));
        t->c.ids = t->ids;
    }
    if (json_is_array(json_object_get(c, "prompt_token_ids"))) {
        t->c.n_prompt_ids = take_ids(t->prompt_ids, json_object_get(c, "prompt_token_ids"));
        t->c.prompt_ids = t->prompt_ids;
    }
    if (json_is_array(plp)) {
        take_prompt_logprobs(&t->prompt_logprobs, plp);
        t->c.prompt_logprobs = &t->prompt_logprobs;
    }
}

static void give_back(struct taken *t)
{
    oai_logprobs_destroy(t->logprobs);
    free(t->stop.s);
    if (t->c.prompt_logprobs)
        buf_finish(&t->prompt_logprobs);
}

static struct oai_head head_of(const json_t *reply, enum oai_kind kind)
{
    return (struct oai_head){ kind, str(reply, "id"),
                              json_integer_value(json_object_get(reply, "created")),
                              str(reply, "model"), str(reply, "system_fingerprint") };
}

static struct oai_usage usage_of(const json_t *reply)
{
    const json_t *u = json_object_get(reply, "usage");
    const json_t *d = json_object_get(u, "prompt_tokens_details");

    return (struct oai_usage){ num(u, "prompt_tokens"), num(u, "completion_tokens"), d != NULL,
                               num(d, "cached_tokens") };
}

static bool has_calls(const json_t *reply)
{
    const json_t *c = json_array_get(json_object_get(reply, "choices"), 0);
    const json_t *delta = json_object_get(c, "delta");

    return json_object_get(json_object_get(c, "message"), "tool_calls") ||
           json_object_get(delta, "tool_calls") ||
           (json_is_object(delta) && json_object_size(delta) == 0);
}

static void check_whole(json_t *reply, enum oai_kind kind)
{
    struct taken taken[MAX_CHOICES];
    struct oai_choice views[MAX_CHOICES];
    struct oai_head head = head_of(reply, kind);
    struct oai_usage usage = usage_of(reply);
    char *want = json_dumps(reply, JSON_COMPACT), *got;
    json_t *c, *back;
    struct buf b;
    size_t n;

    buf_init(&b, BUF_MAX_LINE);
    json_array_foreach(json_object_get(reply, "choices"), n, c)
    {
        const json_t *text = kind == OAI_CHAT
                                 ? json_object_get(json_object_get(c, "message"), "content")
                                 : json_object_get(c, "text");

        take(&taken[n], kind, c, text);
        views[n] = taken[n].c;
    }
    assert_int_equal(oai_put_reply(&b, &head, views, (uint32_t)n, &usage, "assistant", NULL, NULL),
                     0);
    back = json_loads(buf_str(&b), 0, NULL);
    assert_non_null(back);
    got = json_dumps(back, JSON_COMPACT);
    assert_string_equal(got, want);
    while (n > 0)
        give_back(&taken[--n]);
    json_decref(back);
    free(got);
    free(want);
    buf_finish(&b);
}

static void check_event(const char *event, size_t len, enum oai_kind kind)
{
    json_t *o = json_loadb(event + 6, len - 6, JSON_DISABLE_EOF_CHECK, NULL);
    json_t *c = json_array_get(json_object_get(o, "choices"), 0);
    const json_t *delta = json_object_get(c, "delta");
    struct oai_head head = head_of(o, kind);
    struct oai_usage usage = usage_of(o), *running = json_object_get(o, "usage") ? &usage : NULL;
    struct taken t = { 0 };
    struct buf b;

    assert_non_null(o);
    buf_init(&b, BUF_MAX_LINE);
    if (c)
        take(&t, kind, c,
             json_object_get(kind == OAI_CHAT ? delta : c, kind == OAI_CHAT ? "content" : "text"));
    if (!c)
        oai_put_usage_event(&b, &head, &usage);
    else if (json_object_get(delta, "role"))
        oai_put_role_event(&b, &head, &t.c, "assistant", running, NULL);
    else
        oai_put_event(&b, &head, &t.c, running, head.fingerprint != NULL, NULL);
    if (!has_calls(o)) {
        assert_int_equal(b.len, len);
        assert_memory_equal(b.data, event, len);
    }
    give_back(&t);
    json_decref(o);
    buf_finish(&b);
}

static int check_stream(const char *text, enum oai_kind kind)
{
    int n = 0;

    for (const char *end; (end = strstr(text, "\n\n")); text = end + 2) {
        if (strncmp(text, "data: [DONE]", 12) == 0)
            continue;
        check_event(text, (size_t)(end + 2 - text), kind);
        n++;
    }
    return n;
}

static void recorded_replies(void **state)
{
    FILE *f = fopen(WIRE_DATA "/wire.jsonl", "r");
    int whole = 0, events = 0;
    char *line = NULL;
    size_t cap = 0;

    (void)state;
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        json_t *o = json_loads(line, 0, NULL), *reply = json_object_get(o, "response");
        const char *path = str(o, "path");
        enum oai_kind kind = strstr(path, "chat") ? OAI_CHAT : OAI_COMPLETION;

        if (!strstr(path, "completions") || num(o, "status") != 200) {
            json_decref(o);
            continue;
        }
        if (json_is_string(reply)) {
            events += check_stream(json_string_value(reply), kind);
        } else if (!has_calls(reply)) {
            check_whole(reply, kind);
            whole++;
        }
        json_decref(o);
    }
    assert_int_equal(whole, 17);
    assert_int_equal(events, 41);
    free(line);
    fclose(f);
}

static void errors_have_one_shape(void **state)
{
    struct oai_error e;
    struct buf b;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    oai_fail(&e, 404, oai_error_type(404), "model", "no '%s'", "a\"b");
    oai_put_error(&b, &e);
    assert_string_equal(buf_str(&b), "{\"error\":{\"message\":\"no 'a\\\"b'\",\"type\":"
                                     "\"NotFoundError\",\"param\":\"model\",\"code\":404}}");
    buf_reset(&b);
    oai_fail(&e, 500, oai_error_type(500), NULL, "cut \xe2\x82");
    oai_put_error_event(&b, &e);
    assert_string_equal(buf_str(&b), "data: {\"error\":{\"message\":\"cut ??\",\"type\":"
                                     "\"InternalServerError\",\"param\":null,\"code\":500}}\n\n");
    oai_fail(&e, 404, oai_error_type(404), NULL, "%s", "a surrogate \xed\xa0\x80, \xc3\xa9");
    assert_string_equal(e.message, "a surrogate ???, \xc3\xa9");
    buf_finish(&b);
}

static void what_cannot_be_sampled_is_finite(void **state)
{
    struct oai_logprob alt[2] = { { .token = "a", .len = 1, .logprob = -1.0 / 0.0 },
                                  { .token = "a", .len = 1, .logprob = -1 } };
    struct oai_logprobs *l;
    struct oai_choice c = { .text = "", .stop_id = -1 };
    struct oai_head h = { OAI_COMPLETION, "i", 0, "m", NULL };
    struct buf b;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    assert_int_equal(oai_logprobs_create(&l, OAI_COMPLETION), 0);
    assert_int_equal(oai_logprobs_add(l, true, alt, 1), 0); /* one text twice: one member */
    c.logprobs = l;
    oai_put_event(&b, &h, &c, NULL, false, NULL);
    assert_non_null(strstr(buf_str(&b), "\"top_logprobs\":[{\"a\":-9999.0}]"));
    oai_logprobs_clear(l); /* the next piece goes on where this one ended */
    oai_logprobs_add(l, true, alt, 0);
    buf_reset(&b);
    oai_put_event(&b, &h, &c, NULL, false, NULL);
    assert_non_null(strstr(buf_str(&b), "\"text_offset\":[1]"));
    oai_logprobs_destroy(l);
    buf_finish(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recorded_replies),
        cmocka_unit_test(errors_have_one_shape),
        cmocka_unit_test(what_cannot_be_sampled_is_finite),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
