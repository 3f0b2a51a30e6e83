/* POST /v1/completions and POST /v1/chat/completions. */
#include <stdlib.h>
#include <string.h>

#include "net/http_server.h"
#include "serve/gen.h"
#include "text/tokenizer.h"

/* A body being turned into token ids. Whatever was not handed on is freed. */
struct intake {
    struct oai_request req;
    struct gen_prompt *prompts;
    uint32_t n_prompts;
    struct oai_text text; /* chat: as rendered */
    struct oai_error e;
};

static void intake_finish(struct intake *in)
{
    for (uint32_t i = 0; i < in->n_prompts; i++)
        free(in->prompts[i].ids);
    free(in->prompts);
    free(in->text.s);
    oai_request_finish(&in->req);
}

static int no_memory(struct intake *in)
{
    return oai_fail(&in->e, 503, oai_error_type(503), NULL, "the server is out of memory");
}

static int make_prompts(struct intake *in, uint32_t n)
{
    in->prompts = calloc(n, sizeof *in->prompts);
    if (!in->prompts)
        return no_memory(in);
    in->n_prompts = n;
    return 0;
}

static int tokenize(struct serve *s, struct intake *in, const char *text, size_t len,
                    struct gen_prompt *p)
{
    unsigned flags = in->req.add_special_tokens ? TOK_ADD_SPECIAL : 0;
    const char *param = in->req.kind == OAI_CHAT ? "messages" : "prompt";
    size_t n = 0;
    int st;

    if (in->req.truncate == 0 && (st = request_text_fits(s, param, len, &in->e)) < 0)
        return st;
    st = tokenizer_encode(s->tok, text, len, flags, &p->ids, &n);
    p->n = (uint32_t)n;
    return st < 0 ? request_not_encoded(param, st, &in->e) : 0;
}

/* Token ids are taken over from the decoded prompt; text is encoded. */
static int completion_prompts(struct serve *s, struct intake *in)
{
    int st = make_prompts(in, in->req.n_prompts);

    for (uint32_t i = 0; i < in->n_prompts && st == 0; i++) {
        struct oai_prompt *from = &in->req.prompts[i];

        if (from->text) {
            st = tokenize(s, in, from->text, from->len, &in->prompts[i]);
        } else {
            in->prompts[i].ids = malloc(from->n_ids * sizeof *from->ids);
            if (!in->prompts[i].ids)
                return no_memory(in);
            memcpy(in->prompts[i].ids, from->ids, from->n_ids * sizeof *from->ids);
            in->prompts[i].n = from->n_ids;
        }
    }
    return st;
}

static int chat_prompt(struct serve *s, struct intake *in)
{
    int st;

    if ((st = chat_render(s, &in->req, &in->text, &in->e)) < 0 || (st = make_prompts(in, 1)) < 0)
        return st;
    return tokenize(s, in, in->text.s, in->text.len, &in->prompts[0]);
}

static int take_in(struct serve *s, struct intake *in, enum oai_kind kind, const char *body,
                   size_t len)
{
    int st = oai_decode(&in->req, kind, body, len, &s->rules, &in->e);

    if (st < 0)
        return st;
    if (!request_model_ok(s, in->req.model))
        return oai_fail(&in->e, 404, oai_error_type(404), "model",
                        "the model '%.200s' is not served here; /v1/models lists what is",
                        in->req.model);
    if (s->cfg->hide_tools_for_none && in->req.tools) {
        json_decref(in->req.tools);
        in->req.tools = NULL;
    }
    if (in->req.stream_interval == 1)
        in->req.stream_interval = (uint32_t)s->cfg->stream_interval;
    st = kind == OAI_CHAT ? chat_prompt(s, in) : completion_prompts(s, in);
    return st < 0 ? st : request_fit(s, &in->req, in->prompts, in->n_prompts, &in->e);
}

static void generate(struct serve *s, struct http_req *r, enum oai_kind kind)
{
    struct intake in = { 0 };
    size_t len;
    const char *body = http_body(r, &len);

    if (take_in(s, &in, kind, body, len) < 0) {
        if (in.req.has_kv) {
            remote_release(s, &in.req.kv);
            remote_refuse(s, &in.req.kv);
        }
        api_reply_error(s, r, &in.e);
    } else {
        gen_start(s, r, &in.req, in.prompts, in.n_prompts, &in.text);
        in.prompts = NULL;
        in.n_prompts = 0;
    }
    intake_finish(&in);
}

void on_completions(struct serve *s, struct http_req *r)
{
    generate(s, r, OAI_COMPLETION);
}

void on_chat(struct serve *s, struct http_req *r)
{
    generate(s, r, OAI_CHAT);
}
