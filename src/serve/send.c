/* A generation's reply: whole, or as a stream of events. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/http_server.h"
#include "serve/gen.h"

#define STREAM_TYPE "text/event-stream; charset=utf-8"

static struct oai_head head_of(const struct gen *g)
{
    const struct serve *s = g->s;

    return (struct oai_head){ g->req.kind, g->id, g->created, s->model_name,
                              s->fingerprint[0] ? s->fingerprint : NULL };
}

/* A prompt counts once, whatever the number of its choices. */
static struct oai_usage usage_of(const struct gen *g)
{
    struct oai_usage u = { .cached_known = true };

    for (uint32_t i = 0; i < g->n_prompts; i++) {
        u.prompt_tokens += g->prompts[i].n;
        u.cached_tokens += g->choices[i * g->req.n].n_cached;
    }
    for (uint32_t i = 0; i < g->n_choices; i++)
        u.completion_tokens += g->choices[i].n_out;
    return u;
}

static struct oai_choice view_of(const struct choice *c)
{
    const struct oai_request *r = &c->g->req;
    bool first = !c->sent_any;

    return (struct oai_choice){
        .index = c->index,
        .text = buf_str(&c->text),
        .len = c->text.len,
        .finish = c->ended ? c->finish : FINISH_NONE,
        .stop = c->stop.found,
        .stop_id = c->stop_id,
        .logprobs = c->logprobs,
        .ids = r->return_token_ids ? (c->ids ? c->ids : c->prompt->ids) : NULL,
        .n_ids = c->n_ids,
        .prompt_ids = r->return_token_ids && first ? c->prompt->ids : NULL,
        .n_prompt_ids = c->prompt->n,
        .prompt_logprobs = c->prompt_logprobs.len ? &c->prompt_logprobs : NULL,
    };
}

static const struct oai_text *shown_prompt(const struct gen *g)
{
    return g->req.return_prompt_text && g->prompt_text.s ? &g->prompt_text : NULL;
}

/* The reply is over: the client has all of it. */
static void detach(struct gen *g)
{
    http_off_close(g->http);
    g->http = NULL;
}

/* ---- whole ---- */

static void log_output(const struct gen *g)
{
    if (!g->s->cfg->log_outputs)
        return;
    for (uint32_t i = 0; i < g->n_choices; i++)
        log_info("%s: choice %u, %u tokens: %.200s", g->id, i, g->choices[i].n_out,
                 buf_str(&g->choices[i].text));
}

void send_reply(struct gen *g)
{
    struct oai_choice *views = calloc(g->n_choices, sizeof *views);
    struct oai_head head = head_of(g);
    struct oai_usage usage = usage_of(g);
    struct http_req *http = g->http;
    struct buf b;

    buf_init(&b, BUF_MAX_REPLY);
    for (uint32_t i = 0; views && i < g->n_choices; i++)
        views[i] = view_of(&g->choices[i]);
    log_output(g);
    detach(g);
    if (!views || oai_put_reply(&b, &head, views, g->n_choices, &usage, g->s->cfg->response_role,
                                g->choices[0].kv, shown_prompt(g)) < 0) {
        api_account(g->s, http, g->handler, 500, 0);
        http_reply(http, 500, NULL, NULL, 0);
    } else {
        api_account(g->s, http, g->handler, 200, b.len);
        http_reply(http, 200, "application/json", b.data, b.len);
    }
    buf_finish(&b);
    free(views);
}

/* ---- stream ---- */

/* Sends one event. The client that does not read is left: its request ends. */
static int send_one(struct gen *g, struct buf *b)
{
    struct http_req *http = g->http;
    int st = b->status < 0 ? b->status : http_reply_send(http, b->data, b->len);

    if (st == 0)
        return 0;
    log_warning("%s: the client reads too slowly, its stream is cut", g->id);
    detach(g);
    g->failed = true;
    for (uint32_t i = 0; i < g->n_choices; i++)
        if (g->choices[i].submitted && !g->choices[i].ended)
            engine_cancel(g->s->engine, g->choices[i].engine_id, FINISH_ABORT);
    http_reply_abort(http);
    return st;
}

static struct oai_usage running_usage(const struct choice *c)
{
    return (struct oai_usage){ .prompt_tokens = c->prompt->n, .completion_tokens = c->n_out };
}

/* The status line, and for a chat the role of every choice: with the first token, not before, as
 * clients take the first event for it. */
static int start_stream(struct gen *g, struct buf *b)
{
    struct oai_head head = head_of(g);

    g->started = true;
    api_account(g->s, g->http, g->handler, 200, 0);
    http_set_header(g->http, "Cache-Control", "no-cache");
    http_reply_start(g->http, 200, STREAM_TYPE);
    for (uint32_t i = 0; g->req.kind == OAI_CHAT && i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];
        struct oai_usage u = { .prompt_tokens = c->prompt->n };
        struct oai_choice v = view_of(c);
        int st;

        if (c->n_before)
            continue; /* the client has it */
        buf_reset(b);
        oai_put_role_event(b, &head, &v, g->s->cfg->response_role,
                           g->req.continuous_usage ? &u : NULL, shown_prompt(g));
        if ((st = send_one(g, b)) < 0)
            return st;
    }
    return 0;
}

static bool is_due(const struct choice *c)
{
    return c->dirty && (c->ended || !c->sent_any || c->n_unsent >= c->g->req.stream_interval);
}

static int send_choice(struct choice *c, struct buf *b)
{
    struct gen *g = c->g;
    struct oai_head head = head_of(g);
    struct oai_choice v = view_of(c);
    struct oai_usage u = running_usage(c);
    bool fingerprint = c->ended && !g->req.include_usage;

    buf_reset(b);
    oai_put_event(b, &head, &v, g->req.continuous_usage ? &u : NULL, fingerprint,
                  c->ended ? c->kv : NULL);
    c->dirty = false;
    c->sent_any = true;
    c->n_unsent = 0;
    c->n_ids = 0;
    buf_reset(&c->text);
    if (c->logprobs)
        oai_logprobs_clear(c->logprobs);
    return send_one(g, b);
}

static void end_stream(struct gen *g, struct buf *b)
{
    struct oai_head head = head_of(g);
    struct oai_usage u = usage_of(g);
    struct http_req *http;

    buf_reset(b);
    if (g->req.include_usage && (oai_put_usage_event(b, &head, &u), send_one(g, b) < 0))
        return;
    buf_reset(b);
    oai_put_done_event(b);
    if (send_one(g, b) < 0)
        return;
    http = g->http;
    detach(g);
    http_reply_end(http);
}

void send_events(struct gen *g)
{
    struct buf b;
    int st = 0;

    buf_init(&b, BUF_MAX_REPLY);
    if (!g->started)
        st = start_stream(g, &b);
    for (uint32_t i = 0; i < g->n_choices && st == 0; i++)
        if (is_due(&g->choices[i]))
            st = send_choice(&g->choices[i], &b);
    if (st == 0 && g->n_ended == g->n_choices)
        end_stream(g, &b);
    buf_finish(&b);
}

/* ---- errors ---- */

void send_error(struct gen *g, const struct oai_error *e)
{
    struct http_req *http = g->http;
    struct buf b;

    detach(g);
    buf_init(&b, BUF_MAX_LINE);
    if (g->started) {
        /* An event, and no [DONE]: the stream did not end well. */
        oai_put_error_event(&b, e);
        http_reply_send(http, buf_str(&b), b.len);
        http_reply_end(http);
    } else {
        oai_put_error(&b, e);
        api_account(g->s, http, g->handler, e->code, b.len);
        if (e->code == 503)
            http_set_header(http, "Retry-After", "1");
        http_reply(http, e->code, "application/json", buf_str(&b), b.len);
    }
    buf_finish(&b);
}
