/* POST /tokenize and /detokenize, GET /tokenizer_info. */
#include <stdlib.h>
#include <string.h>

#include "net/http_server.h"
#include "serve/encode.h"
#include "serve/gen.h"
#include "text/tokenizer.h"

static int get_bool(const json_t *body, const char *name, bool def, bool *out, struct oai_error *e)
{
    const json_t *v = json_object_get(body, name);
    char param[96];

    *out = def;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v)) {
        snprintf(param, sizeof param, "body.%s", name);
        return oai_fail(e, 400, "Bad Request", param, "%s must be true or false", name);
    }
    *out = json_is_true(v);
    return 0;
}

static int check_model(const struct serve *s, const json_t *body, struct oai_error *e)
{
    const char *model = json_string_value(json_object_get(body, "model"));

    if (request_model_ok(s, model))
        return 0;
    return oai_fail(e, 404, oai_error_type(404), "model", "the model '%.200s' is not served here",
                    model);
}

/* The chat of a /tokenize body as text. */
static int render_messages(struct serve *s, const json_t *body, struct oai_text *out,
                           struct oai_error *e)
{
    struct oai_request r = { .kind = OAI_CHAT };
    int st;

    if ((st = get_bool(body, "add_generation_prompt", true, &r.add_generation_prompt, e)) < 0 ||
        (st = get_bool(body, "continue_final_message", false, &r.continue_final_message, e)) < 0 ||
        (st = oai_decode_messages(&r.messages, json_object_get(body, "messages"), e)) < 0)
        return st;
    r.tools = json_incref(json_object_get(body, "tools"));
    r.template_kwargs = json_incref(json_object_get(body, "chat_template_kwargs"));
    if (r.tools && !json_is_array(r.tools)) {
        json_decref(r.tools);
        r.tools = NULL;
    }
    if (r.template_kwargs && !json_is_object(r.template_kwargs)) {
        json_decref(r.template_kwargs);
        r.template_kwargs = NULL;
    }
    st = chat_render(s, &r, out, e);
    oai_request_finish(&r);
    return st;
}

static int text_of(struct serve *s, const json_t *body, struct oai_text *out, bool *chat,
                   struct oai_error *e)
{
    const json_t *prompt = json_object_get(body, "prompt");

    *chat = json_object_get(body, "messages") != NULL;
    if (*chat)
        return render_messages(s, body, out, e);
    if (!json_is_string(prompt))
        return oai_fail(e, 400, "Bad Request", "body.prompt", "prompt must be a string");
    out->len = json_string_length(prompt);
    out->s = malloc(out->len + 1);
    if (!out->s)
        return oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory");
    memcpy(out->s, json_string_value(prompt), out->len + 1);
    return 0;
}

static json_t *token_list(const int32_t *ids, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_integer(ids[i]));
    return list;
}

static json_t *piece_list(const struct tokenizer *tok, const int32_t *ids, size_t n)
{
    json_t *list = json_array();

    for (size_t i = 0; i < n; i++) {
        const char *piece = tokenizer_piece(tok, ids[i]);

        json_array_append_new(list, json_string(piece ? piece : ""));
    }
    return list;
}

/* ---- /tokenize ---- */

/* A text on its way to token ids, like completions.c's: a long one by the encoder's thread. */
struct tokenizing {
    struct serve *s;
    struct http_req *http; /* NULL: the client has left */
    const char *handler;
    struct oai_text text;
    bool chat, strs;
    struct encode_item item;
    struct encode_task task;
};

static void tokenizing_destroy(struct tokenizing *t)
{
    free(t->item.ids);
    free(t->text.s);
    free(t);
}

static int read_body(struct tokenizing *t, const json_t *body, struct oai_error *e)
{
    struct serve *s = t->s;
    bool special;
    int st;

    if ((st = request_needs_text(s, NULL, "a text", e)) < 0 || (st = check_model(s, body, e)) < 0 ||
        (st = text_of(s, body, &t->text, &t->chat, e)) < 0 ||
        (st = get_bool(body, "add_special_tokens", !t->chat, &special, e)) < 0 ||
        (st = get_bool(body, "return_token_strs", false, &t->strs, e)) < 0 ||
        (st = request_text_fits(s, t->chat ? "messages" : "prompt", t->text.len, false, e)) < 0)
        return st;
    t->item = (struct encode_item){ .text = t->text.s, .len = t->text.len };
    t->task.flags = special ? TOK_ADD_SPECIAL : 0;
    return 0;
}

static void reply_tokens(struct tokenizing *t)
{
    const struct encode_item *it = &t->item;
    struct serve *s = t->s;
    struct oai_error e;

    s->handler = t->handler;
    if (it->status < 0) {
        request_not_encoded(t->chat ? "messages" : "prompt", it->status, &e);
        api_reply_error(s, t->http, &e);
        return;
    }
    api_reply_json(s, t->http, 200,
                   json_pack("{sI si so so}", "count", (json_int_t)it->n, "max_model_len",
                             (int)s->info.max_model_len, "tokens", token_list(it->ids, it->n),
                             "token_strs",
                             t->strs ? piece_list(s->tok, it->ids, it->n) : json_null()));
}

static void on_encoded(void *arg)
{
    struct tokenizing *t = arg;

    if (t->http) {
        http_off_close(t->http);
        reply_tokens(t);
    }
    tokenizing_destroy(t);
}

static void client_left(void *arg)
{
    struct tokenizing *t = arg;

    t->http = NULL;
}

static int encode(struct tokenizing *t, struct oai_error *e)
{
    t->task.items = &t->item;
    t->task.n_items = 1;
    t->task.done = on_encoded;
    t->task.arg = t;
    if (t->item.len <= ENCODE_MAX_INLINE) {
        encode_run(t->s->tok, &t->task, NULL);
        on_encoded(t);
        return 0;
    }
    if (encoder_push(t->s->encoder, &t->task) < 0)
        return request_encoder_full(e);
    http_on_close(t->http, client_left, t);
    return 0;
}

void on_tokenize(struct serve *s, struct http_req *r)
{
    struct tokenizing *t = calloc(1, sizeof *t);
    struct oai_error e;
    json_t *body;
    size_t len;
    const char *text = http_body(r, &len);
    int st;

    if (!t) {
        api_reply_status(s, r, 503, "the server is out of memory");
        return;
    }
    *t = (struct tokenizing){ .s = s, .http = r, .handler = s->handler };
    st = oai_parse_object(&body, text, len, &e);
    if (st == 0) {
        st = read_body(t, body, &e);
        json_decref(body);
    }
    if (st < 0 || encode(t, &e) < 0) {
        api_reply_error(s, r, &e);
        tokenizing_destroy(t);
    }
}

/* ---- the rest ---- */

static int detokenize(struct serve *s, const json_t *body, json_t **out, struct oai_error *e)
{
    const json_t *list = json_object_get(body, "tokens"), *v;
    int32_t *ids;
    char *text = NULL;
    size_t i, len = 0;
    int st;

    if ((st = check_model(s, body, e)) < 0)
        return st;
    if (!json_is_array(list))
        return oai_fail(e, 400, "Bad Request", "body.tokens", "tokens must be a list of token ids");
    ids = malloc((json_array_size(list) + 1) * sizeof *ids);
    if (!ids)
        return oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory");
    json_array_foreach(list, i, v)
    {
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;

        if (id < 0 || id >= (json_int_t)s->rules.vocab) {
            free(ids);
            return oai_fail(e, 400, oai_error_type(400), "tokens",
                            "tokens[%zu] is outside the vocabulary (0..%u)", i, s->rules.vocab - 1);
        }
        ids[i] = (int32_t)id;
    }
    st = tokenizer_decode(s->tok, ids, json_array_size(list), false, &text, &len);
    free(ids);
    if (st < 0)
        return oai_fail(e, 503, oai_error_type(503), NULL, "the server is out of memory");
    *out = json_pack("{ss%}", "prompt", text ? text : "", len);
    free(text);
    return 0;
}

void on_detokenize(struct serve *s, struct http_req *r)
{
    struct oai_error e;
    json_t *body, *out = NULL;
    size_t len;
    const char *text = http_body(r, &len);
    int st = oai_parse_object(&body, text, len, &e);

    if (st == 0) {
        if ((st = request_needs_text(s, NULL, "a list of ids", &e)) == 0)
            st = detokenize(s, body, &out, &e);
        json_decref(body);
    }
    if (st < 0)
        api_reply_error(s, r, &e);
    else
        api_reply_json(s, r, 200, out);
}

void on_tokenizer_info(struct serve *s, struct http_req *r)
{
    static const char *const names[] = { "bos_token", "eos_token", "pad_token", "unk_token" };
    const char *chat = s->tok ? tokenizer_chat_template(s->tok) : NULL;
    struct oai_error e;
    json_t *o;

    if (!s->cfg->tokenizer_info) {
        api_reply(s, r, 404, "application/json", "{\"detail\":\"Not Found\"}", 22);
        return;
    }
    if (request_needs_text(s, NULL, "a question about the tokenizer", &e) < 0) {
        api_reply_error(s, r, &e);
        return;
    }
    o = json_pack("{ss}", "tokenizer_class", "ByteLevelBPE");
    for (int i = 0; i < 4; i++) {
        const char *text = tokenizer_special(s->tok, names[i]);

        json_object_set_new(o, names[i], text ? json_string(text) : json_null());
    }
    json_object_set_new(o, "vocab_size", json_integer(tokenizer_vocab(s->tok)));
    json_object_set_new(o, "model_max_length", json_integer(s->info.max_model_len));
    json_object_set_new(o, "chat_template", chat ? json_string(chat) : json_null());
    api_reply_json(s, r, 200, o);
}
