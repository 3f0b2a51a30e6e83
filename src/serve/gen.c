#include "serve/gen.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "serve/bootstrap.h"
#include "serve/metrics.h"
#include "sys/clock.h"

#define EVENTS_A_TIME 256

/* ---- life ---- */

static void choice_finish(struct choice *c)
{
    stop_finish(&c->stop);
    buf_finish(&c->raw);
    buf_finish(&c->text);
    buf_finish(&c->prompt_logprobs);
    buf_finish(&c->given_back);
    oai_logprobs_destroy(c->logprobs);
    free(c->ids);
    json_decref(c->kv);
}

static void gen_destroy(struct gen *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++)
        choice_finish(&g->choices[i]);
    for (uint32_t i = 0; i < g->n_prompts; i++)
        free(g->prompts[i].ids);
    free(g->choices);
    free(g->prompts);
    free(g->prompt_text.s);
    oai_request_finish(&g->req);
    if (g->link) {
        *g->link = g->next;
        if (g->next)
            g->next->link = g->link;
        g->s->n_gens--;
    }
    free(g);
}

/* Over: nobody waits for the reply and the engine will not name it any more. */
static void destroy_if_over(struct gen *g)
{
    if (!g->http && g->n_submitted == g->n_ended && !g->in_dirty && !g->finding)
        gen_destroy(g);
}

static void cancel_choices(struct gen *g)
{
    for (uint32_t i = 0; i < g->n_choices; i++) {
        struct choice *c = &g->choices[i];

        if (c->submitted && !c->ended)
            engine_cancel(g->s->engine, c->engine_id, FINISH_ABORT);
    }
}

static void client_left(void *arg)
{
    struct gen *g = arg;

    g->http = NULL;
    g->failed = true;
    if (g->s->cfg->log_requests)
        log_info("%s: the client has left", g->id);
    cancel_choices(g);
    destroy_if_over(g);
}

void gen_fail(struct gen *g, int code, const char *message)
{
    struct oai_error e;

    if (g->failed)
        return;
    g->failed = true;
    cancel_choices(g);
    if (!g->http)
        return;
    oai_fail(&e, code, oai_error_type(code), NULL, "%s", message);
    send_error(g, &e);
}

/* ---- creating ---- */

static int choice_init(struct choice *c, struct gen *g, uint32_t index)
{
    struct oai_request *r = &g->req;
    int st = 0;

    *c = (struct choice){
        .g = g, .index = index, .prompt = &g->prompts[index / r->n], .stop_id = -1
    };
    detok_init(&c->detok, g->s->tok, r->skip_special);
    stop_init(&c->stop, r->stops, r->n_stops, r->include_stop);
    buf_init(&c->raw, BUF_MAX_LINE);
    buf_init(&c->text, BUF_MAX_REPLY);
    buf_init(&c->prompt_logprobs, BUF_MAX_REPLY);
    buf_init(&c->given_back, BUF_MAX_REPLY);
    if (r->want_logprobs)
        st = oai_logprobs_create(&c->logprobs, r->kind);
    if (st == 0)
        st = output_echo(c);
    return st < 0 ? st : output_resume(c);
}

static int make_choices(struct gen *g)
{
    uint32_t n = g->n_prompts * g->req.n;
    int st;

    g->choices = calloc(n, sizeof *g->choices);
    if (!g->choices)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < n; i++) {
        st = choice_init(&g->choices[i], g, i);
        g->n_choices++;
        if (st < 0)
            return st;
    }
    return 0;
}

static void link_gen(struct gen *g)
{
    struct serve *s = g->s;

    g->next = s->gens;
    g->link = &s->gens;
    if (g->next)
        g->next->link = &g->next;
    s->gens = g;
    s->n_gens++;
}

void gen_start(struct serve *s, struct http_req *http, struct oai_request *req,
               struct gen_prompt *prompts, uint32_t n_prompts, struct oai_text *prompt_text)
{
    struct gen *g = calloc(1, sizeof *g);

    if (!g) {
        for (uint32_t i = 0; i < n_prompts; i++)
            free(prompts[i].ids);
        free(prompts);
        api_reply_status(s, http, 503, "the server is out of memory for this request");
        return;
    }
    *g = (struct gen){ .s = s,
                       .http = http,
                       .handler = s->handler,
                       .req = *req,
                       .created = (int64_t)clock_wall(),
                       .t_arrive = http_start_time(http),
                       .prompts = prompts,
                       .n_prompts = n_prompts,
                       .prompt_text = *prompt_text };
    *req = (struct oai_request){ 0 };
    *prompt_text = (struct oai_text){ 0 };
    link_gen(g);
    submit_choose_id(g);
    submit_settle_transfer(g);
    g->req.sampling.seed = submit_base_seed(g);
    g->in_dirty = true; /* kept alive to the end of this function */
    http_on_close(http, client_left, g);
    if (s->cfg->log_requests)
        log_info("%s: %u prompts, %u choices each, max_tokens %u", g->id, n_prompts, g->req.n,
                 g->req.sampling.max_tokens);
    if (make_choices(g) < 0)
        gen_fail(g, 503, "the server is out of memory for this request");
    else if (!remote_find(g))
        submit_from(g, 0);
    g->in_dirty = false;
    destroy_if_over(g);
}

void gen_found(struct gen *g)
{
    bool was = g->in_dirty; /* found at once: gen_start is still at it */

    g->in_dirty = true; /* kept alive to the end of this function */
    if (!g->failed)
        submit_from(g, 0);
    g->in_dirty = was;
    destroy_if_over(g);
}

/* ---- events ---- */

static void mark_dirty(struct choice *c)
{
    struct gen *g = c->g;

    c->dirty = true;
    if (g->in_dirty)
        return;
    g->in_dirty = true;
    g->next_dirty = g->s->dirty;
    g->s->dirty = g;
}

static void start_siblings(struct gen *g)
{
    if (!g->late_siblings || g->failed)
        return;
    g->late_siblings = false;
    submit_from(g, 1);
}

static void on_token(struct choice *c, struct engine_event *ev)
{
    struct metrics *m = c->g->s->metrics;

    if (c->t_first == 0) {
        c->t_first = ev->time;
        metrics_first_token(m, ev->time - c->g->t_arrive);
    } else if (ev->time > c->t_last) { /* else an accepted draft: it came in the same step */
        metrics_inter_token(m, ev->time - c->t_last);
    }
    c->t_last = ev->time;
    start_siblings(c->g);
    if (c->stopped || c->g->failed)
        return;
    if (output_token(c, ev) < 0)
        gen_fail(c->g, 500, "the output is too large for this server");
    else if (c->stop.found) {
        c->stopped = true;
        engine_cancel(c->g->s->engine, c->engine_id, FINISH_STOP);
    } else if (ev->finish == FINISH_NONE && c->g->req.stream) {
        mark_dirty(c); /* the last token goes out with its end, which is on its way */
    }
}

/* An end that is none of the client's doing. */
static void on_bad_end(struct choice *c, const struct engine_event *ev)
{
    struct gen *g = c->g;
    int code = submit_http_status(ev->status);
    const char *prefix = "";
    char text[512];

    if (ev->finish == FINISH_ABORT) {
        gen_fail(g, 503, "the request was aborted: the server is shutting down");
        return;
    }
    if (g->req.has_kv && g->s->bootstrap)
        bootstrap_forget(g->s->bootstrap, g->req.kv.remote_bootstrap_addr);
    /* A full queue is told as such: the KV was not even asked for. */
    if (g->req.has_kv && g->req.kv.do_remote_prefill && ev->status != ERR_LIMIT) {
        code = 500;
        prefix = "KV load failed: ";
    }
    if (ev->status == ERR_LIMIT)
        metrics_rejected(g->s->metrics);
    snprintf(text, sizeof text, "%s%s", prefix, ev->why ? ev->why : status_text(ev->status));
    log_warning("%s: %s", g->id, text);
    gen_fail(g, code, text);
}

static void count_end(struct choice *c, const struct engine_event *ev)
{
    struct gen *g = c->g;

    metrics_request(g->s->metrics, &(struct metrics_request){
                                       .finish = c->stopped ? FINISH_STOP : ev->finish,
                                       .n_prompt = c->prompt->n,
                                       .n_out = c->n_out - c->n_before,
                                       .n_cached = ev->n_cached,
                                       .n_external = ev->n_external,
                                       .n_prefill = ev->n_prefill,
                                       .n_preempted = ev->n_preempted,
                                       .max_tokens = g->req.sampling.max_tokens,
                                       .n = g->req.n,
                                       .t_arrive = g->t_arrive,
                                       .t_queued = ev->t_arrive,
                                       .t_start = ev->t_start,
                                       .t_first = c->t_first,
                                       .t_last = c->t_last,
                                       .t_end = ev->time,
                                   });
}

static void on_end(struct choice *c, struct engine_event *ev)
{
    struct gen *g = c->g;

    c->ended = true;
    g->n_ended++;
    count_end(c, ev);
    if (!g->failed && !c->stopped && (ev->finish == FINISH_ERROR || ev->finish == FINISH_ABORT))
        on_bad_end(c, ev);
    else if (!g->failed && output_end(c, ev) < 0)
        gen_fail(g, 500, "the output is too large for this server");
    start_siblings(g);
    mark_dirty(c); /* also so that a gen without a client is looked at once more */
}

static void on_event(struct engine_event *ev)
{
    struct choice *c = ev->user; /* but of RESET */

    switch (ev->kind) {
    case ENGINE_START:
        break;
    case ENGINE_PROMPT:
        if (!c->g->failed && output_prompt(c, ev) < 0)
            gen_fail(c->g, 500, "the log-probabilities are too large for this server");
        break;
    case ENGINE_TOKEN:
        on_token(c, ev);
        break;
    case ENGINE_END:
        on_end(c, ev);
        break;
    case ENGINE_RESET:
        cache_reset_done(ev->user, ev->status);
        break;
    }
}

static void flush_dirty(struct serve *s)
{
    while (s->dirty) {
        struct gen *g = s->dirty;

        s->dirty = g->next_dirty;
        if (g->http && g->req.stream)
            send_events(g);
        else if (g->http && g->n_ended == g->n_choices)
            send_reply(g);
        g->in_dirty = false;
        destroy_if_over(g);
    }
}

void gen_drain_events(void *serve)
{
    struct serve *s = serve;
    struct engine_event ev[EVENTS_A_TIME];
    const char *broken;
    uint32_t n;

    if (!s->engine)
        return;
    do {
        n = engine_events(s->engine, ev, EVENTS_A_TIME);
        for (uint32_t i = 0; i < n; i++) {
            on_event(&ev[i]);
            engine_event_finish(&ev[i]);
        }
    } while (n == EVENTS_A_TIME);
    metrics_collect(s->metrics, s->engine);
    flush_dirty(s);
    broken = engine_broken(s->engine);
    if (broken)
        serve_fail(s, broken);
}

void gen_abort_all(struct serve *s, int code, const char *message)
{
    struct gen *next;

    for (struct gen *g = s->gens; g; g = next) {
        next = g->next;
        gen_fail(g, code, message);
        destroy_if_over(g);
    }
}

void gen_free_all(struct serve *s)
{
    while (s->gens)
        gen_destroy(s->gens);
}
