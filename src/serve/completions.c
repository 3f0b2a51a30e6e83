/* POST /v1/completions and POST /v1/chat/completions: from the body to token ids. */
#include <stdlib.h>
#include <string.h>

#include "net/http_server.h"
#include "serve/encode.h"
#include "serve/gen.h"
#include "text/tokenizer.h"

/* A body being turned into token ids. Long texts are encoded by the encoder's thread: it then waits in
 * serve.intakes. */
struct intake {
    struct serve *s;
    struct http_req *http; /* NULL: the client has left or was answered */
    const char *handler;
    struct oai_request req;
    struct gen_prompt *prompts;
    uint32_t n_prompts;
    struct oai_text text;    /* chat: as rendered */
    struct encode_task task; /* an item for each prompt, empty where it came as ids */
    struct oai_error e;
    struct intake *next, **link; /* of serve.intakes; link NULL: not there */
};

/* ---- life ---- */

static void intake_destroy(struct intake *in)
{
    for (uint32_t i = 0; i < in->n_prompts; i++)
        free(in->prompts[i].ids);
    for (uint32_t i = 0; i < in->task.n_items; i++)
        free(in->task.items[i].ids);
    free(in->task.items);
    free(in->prompts);
    free(in->text.s);
    oai_request_finish(&in->req);
    if (in->link) {
        *in->link = in->next;
        if (in->next)
            in->next->link = in->link;
        in->s->n_intakes--;
    }
    free(in);
}

/* Over without having reached the engine. Another instance may hold or await its KV. */
static void intake_drop(struct intake *in)
{
    if (in->req.has_kv) {
        remote_release(in->s, &in->req.kv);
        remote_refuse(in->s, &in->req.kv);
    }
    intake_destroy(in);
}

static void answer_error(struct intake *in)
{
    struct http_req *http = in->http;

    in->http = NULL;
    in->s->handler = in->handler;
    if (http)
        api_reply_error(in->s, http, &in->e);
}

static int no_memory(struct intake *in)
{
    return oai_fail(&in->e, 503, oai_error_type(503), NULL, "the server is out of memory");
}

/* ---- reading ---- */

/* Without a tokenizer: ids in, ids out. */
static int check_texts(struct intake *in)
{
    const struct oai_request *r = &in->req;
    int st = 0;

    if (r->kind == OAI_CHAT)
        st = request_needs_text(in->s, "messages", "a chat", &in->e);
    for (uint32_t i = 0; i < r->n_prompts && st == 0; i++)
        if (r->prompts[i].text)
            st = request_needs_text(in->s, "prompt", "a text", &in->e);
    if (st == 0 && r->n_stops > 0)
        st = request_needs_text(in->s, "stop", "a stop string", &in->e);
    return st;
}

static int read_request(struct intake *in, enum oai_kind kind, const char *body, size_t len)
{
    struct serve *s = in->s;
    int st = oai_decode(&in->req, kind, body, len, &s->rules, &in->e);

    if (st < 0)
        return st;
    if (!request_model_ok(s, in->req.model))
        return oai_fail(&in->e, 404, oai_error_type(404), "model",
                        "the model '%.200s' is not served here; /v1/models lists what is",
                        in->req.model);
    if ((st = check_texts(in)) < 0)
        return st;
    if (s->cfg->hide_tools_for_none && in->req.tools) {
        json_decref(in->req.tools);
        in->req.tools = NULL;
    }
    if (in->req.stream_interval == 1)
        in->req.stream_interval = (uint32_t)s->cfg->stream_interval;
    return 0;
}

static const char *text_param(const struct intake *in)
{
    return in->req.kind == OAI_CHAT ? "messages" : "prompt";
}

static int make_prompts(struct intake *in, uint32_t n)
{
    in->prompts = calloc(n, sizeof *in->prompts);
    in->task.items = calloc(n, sizeof *in->task.items);
    if (!in->prompts || !in->task.items)
        return no_memory(in);
    in->n_prompts = in->task.n_items = n;
    in->task.flags = in->req.add_special_tokens ? TOK_ADD_SPECIAL : 0;
    return 0;
}

static int add_text(struct intake *in, uint32_t i, const char *text, size_t len)
{
    in->task.items[i] = (struct encode_item){ .text = text, .len = len };
    return request_text_fits(in->s, text_param(in), len, in->req.truncate != 0, &in->e);
}

/* Token ids are taken over from the decoded prompt; texts are to be encoded. */
static int completion_prompts(struct intake *in)
{
    int st = make_prompts(in, in->req.n_prompts);

    for (uint32_t i = 0; i < in->n_prompts && st == 0; i++) {
        const struct oai_prompt *from = &in->req.prompts[i];

        if (from->text) {
            st = add_text(in, i, from->text, from->len);
            continue;
        }
        in->prompts[i].ids = malloc(from->n_ids * sizeof *from->ids);
        if (!in->prompts[i].ids)
            return no_memory(in);
        memcpy(in->prompts[i].ids, from->ids, from->n_ids * sizeof *from->ids);
        in->prompts[i].n = from->n_ids;
    }
    return st;
}

static int chat_prompt(struct intake *in)
{
    int st;

    if ((st = chat_render(in->s, &in->req, &in->text, &in->e)) < 0 ||
        (st = make_prompts(in, 1)) < 0)
        return st;
    return add_text(in, 0, in->text.s, in->text.len);
}

/* ---- going on with the ids ---- */

static int take_ids(struct intake *in)
{
    for (uint32_t i = 0; i < in->n_prompts; i++) {
        struct encode_item *it = &in->task.items[i];

        if (!it->text)
            continue;
        if (it->status < 0)
            return request_not_encoded(text_param(in), it->status, &in->e);
        in->prompts[i] = (struct gen_prompt){ it->ids, (uint32_t)it->n };
        it->ids = NULL;
    }
    return 0;
}

static void go_on(void *arg)
{
    struct intake *in = arg;
    struct serve *s = in->s;

    if (!in->http) {
        intake_drop(in);
        return;
    }
    http_off_close(in->http);
    if (take_ids(in) < 0 || request_fit(s, &in->req, in->prompts, in->n_prompts, &in->e) < 0) {
        answer_error(in);
        intake_drop(in);
        return;
    }
    s->handler = in->handler;
    gen_start(s, in->http, &in->req, in->prompts, in->n_prompts, &in->text);
    in->prompts = NULL;
    in->n_prompts = 0;
    intake_destroy(in);
}

static void client_left(void *arg)
{
    struct intake *in = arg;

    in->http = NULL; /* the encoder still has its texts */
}

static void link_intake(struct intake *in)
{
    struct serve *s = in->s;

    in->next = s->intakes;
    in->link = &s->intakes;
    if (in->next)
        in->next->link = &in->next;
    s->intakes = in;
    s->n_intakes++;
}

/* Short texts here, as to wait for another thread would cost more; long ones there. */
static int encode(struct intake *in)
{
    struct serve *s = in->s;

    if (encode_bytes(&in->task) <= ENCODE_MAX_INLINE) {
        encode_run(s->tok, &in->task, NULL);
        go_on(in);
        return 0;
    }
    in->task.done = go_on;
    in->task.arg = in;
    if (encoder_push(s->encoder, &in->task) < 0)
        return request_encoder_full(&in->e);
    http_on_close(in->http, client_left, in);
    link_intake(in);
    return 0;
}

static void generate(struct serve *s, struct http_req *r, enum oai_kind kind)
{
    struct intake *in = calloc(1, sizeof *in);
    size_t len;
    const char *body = http_body(r, &len);
    int st;

    if (!in) {
        api_reply_status(s, r, 503, "the server is out of memory");
        return;
    }
    in->s = s;
    in->http = r;
    in->handler = s->handler;
    st = read_request(in, kind, body, len);
    if (st == 0)
        st = kind == OAI_CHAT ? chat_prompt(in) : completion_prompts(in);
    if (st < 0 || encode(in) < 0) {
        answer_error(in);
        intake_drop(in);
    }
}

void intake_abort_all(struct serve *s, int code, const char *message)
{
    for (struct intake *in = s->intakes; in; in = in->next) {
        if (!in->http)
            continue;
        http_off_close(in->http);
        oai_fail(&in->e, code, oai_error_type(code), NULL, "%s", message);
        answer_error(in);
    }
}

void on_completions(struct serve *s, struct http_req *r)
{
    generate(s, r, OAI_COMPLETION);
}

void on_chat(struct serve *s, struct http_req *r)
{
    generate(s, r, OAI_CHAT);
}
