#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "serve/bootstrap.h"
#include "serve/encode.h"
#include "serve/gen.h"
#include "serve/metrics.h"
#include "serve/state.h"
#include "serve/trace.h"
#include "sys/clock.h"
#include "text/template.h"
#include "text/tokenizer.h"

#define DRAIN_POLL    0.05 /* seconds between looks at what still runs */
#define FLUSH_SECONDS 0.2  /* for the last bytes to leave after the last reply */
#define STATS_SECONDS 10.0

/* ---- a line of figures now and then ---- */

static void log_drafts(const struct engine_stats *now, const struct engine_stats *before)
{
    uint64_t steps = now->spec_drafts - before->spec_drafts;
    uint64_t drafts = now->spec_draft_tokens - before->spec_draft_tokens;
    uint64_t accepted = now->spec_accepted_tokens - before->spec_accepted_tokens;

    if (steps > 0)
        log_info("drafts: %.1f %% accepted, %.2f tokens a step",
                 100.0 * (double)accepted / (double)drafts, 1 + (double)accepted / (double)steps);
}

static void log_stats(void *arg)
{
    struct serve *s = arg;
    struct engine_stats now, before = s->logged;

    if (!s->engine)
        return;
    engine_stats(s->engine, &now);
    if (now.steps != before.steps)
        log_info(
            "prompt %.1f tok/s, generation %.1f tok/s, %u running, %u waiting, KV cache %.1f %%",
            (double)(now.sched.prompt_tokens - before.sched.prompt_tokens) / STATS_SECONDS,
            (double)(now.sched.generation_tokens - before.sched.generation_tokens) / STATS_SECONDS,
            now.sched.n_running, now.sched.n_waiting + now.sched.n_waiting_kv,
            now.sched.blocks_total ? 100.0 * now.sched.blocks_used / now.sched.blocks_total : 0);
    log_drafts(&now, &before);
    s->logged = now;
}

/* ---- the end ---- */

static void stop_loop(void *arg)
{
    struct serve *s = arg;

    loop_stop(s->loop);
}

/* Requests that run, and prompts that a decode elsewhere still has to fetch. */
static bool is_busy(struct serve *s)
{
    struct engine_stats st;

    if (!s->engine)
        return false;
    engine_stats(s->engine, &st);
    return s->n_gens > 0 || s->n_intakes > 0 || st.transfer.leases > 0;
}

/* Answers whoever waits, and stops when the answers have had time to leave. */
static void abort_and_stop(struct serve *s, const char *why)
{
    intake_abort_all(s, 503, why);
    gen_abort_all(s, 503, why);
    loop_timer_destroy(s->drain_timer);
    s->drain_timer = NULL;
    if (loop_timer_create(&s->drain_timer, s->loop, stop_loop, s) < 0)
        loop_stop(s->loop);
    else
        loop_timer_start(s->drain_timer, FLUSH_SECONDS, false);
}

static void drain_poll(void *arg)
{
    struct serve *s = arg;

    if (is_busy(s) && clock_now() < s->drain_deadline)
        return;
    if (s->n_gens + s->n_intakes > 0)
        log_warning("%u requests are still running: they end with an error",
                    s->n_gens + s->n_intakes);
    abort_and_stop(s, "the server is shutting down");
}

void serve_stop(struct serve *s)
{
    if (s->phase == SERVE_DRAINING || s->phase == SERVE_DEAD) {
        log_warning("told to stop a second time: stopping at once");
        loop_stop(s->loop);
        return;
    }
    log_info("shutting down: new requests get 503, %u running ones have %g s to finish",
             s->n_gens + s->n_intakes, s->cfg->shutdown_timeout);
    s->phase = SERVE_DRAINING;
    s->drain_deadline = clock_now() + s->cfg->shutdown_timeout;
    if (loop_timer_create(&s->drain_timer, s->loop, drain_poll, s) < 0) {
        loop_stop(s->loop);
        return;
    }
    loop_timer_start(s->drain_timer, DRAIN_POLL, true);
    drain_poll(s);
}

void serve_fail(struct serve *s, const char *why)
{
    if (s->phase == SERVE_DEAD)
        return;
    snprintf(s->broken, sizeof s->broken, "%s", why);
    s->exit_code = 1;
    s->phase = SERVE_DEAD;
    abort_and_stop(s, s->broken);
}

bool serve_is_loading(const struct serve *s)
{
    return s->loader_started && s->loading;
}

/* ---- the beginning ---- */

static int listen_at(struct serve *s, struct err *e)
{
    const struct serve_config *c = s->cfg;
    struct http_server_options o = { .host = c->host,
                                     .port = (uint16_t)c->port,
                                     .max_body = (size_t)c->max_body_bytes,
                                     .max_headers = (size_t)c->max_header_bytes,
                                     .keep_alive = c->keep_alive,
                                     .tls_cert = c->ssl_cert,
                                     .tls_key = c->ssl_key,
                                     .error_body = api_error_body };

    return http_server_create(&s->http, s->loop, &o, api_handle, s, e);
}

/* A second port for proxies that look for P there; it answers one question. */
static int listen_for_query(struct serve *s, struct err *e)
{
    struct http_server_options o = { .host = s->cfg->host,
                                     .port = s->cfg->kv.bootstrap_port,
                                     .max_body = 1 << 16,
                                     .keep_alive = s->cfg->keep_alive,
                                     .error_body = api_error_body };
    int st;

    if (!o.port)
        return 0;
    st = http_server_create(&s->query, s->loop, &o, api_handle_query, s, e);
    return st < 0 ? err_prefix(e, st, "KV bootstrap port (VLLM_MOONCAKE_BOOTSTRAP_PORT)") : 0;
}

static int start_stats(struct serve *s)
{
    int st;

    if (s->cfg->no_log_stats)
        return 0;
    if ((st = loop_timer_create(&s->stats_timer, s->loop, log_stats, s)) < 0)
        return st;
    loop_timer_start(s->stats_timer, STATS_SECONDS, true);
    return 0;
}

int serve_create(struct serve **out, const struct serve_config *cfg, struct loop *l, struct err *e)
{
    struct serve *s = calloc(1, sizeof *s);
    int st;

    if (!s)
        return ERR_NOMEM;
    s->cfg = cfg;
    s->loop = l;
    s->model_name = cfg->served_names.n ? cfg->served_names.v[0] : cfg->model;
    if ((st = metrics_create(&s->metrics, s->model_name, cfg->ranks.dp_rank)) < 0 ||
        (st = listen_at(s, e)) < 0 || (st = listen_for_query(s, e)) < 0 ||
        (cfg->kv.consume &&
         (st = bootstrap_create(&s->bootstrap, l, cfg->kv.connect_timeout, e)) < 0) ||
        (cfg->trace && (st = trace_open(&s->trace, cfg->trace, e)) < 0) ||
        (st = start_stats(s)) < 0 || (st = load_start(s, e)) < 0) {
        serve_destroy(s);
        return st;
    }
    *out = s;
    return 0;
}

uint16_t serve_port(const struct serve *s)
{
    return http_server_port(s->http);
}

int serve_exit_code(const struct serve *s)
{
    return s->exit_code;
}

void serve_destroy(struct serve *s)
{
    if (!s)
        return;
    load_join(s);
    http_server_destroy(s->query);
    http_server_destroy(s->http); /* clients are told first, then the work behind them ends */
    encoder_destroy(s->encoder);
    bootstrap_destroy(s->bootstrap);
    engine_close(s->engine);
    gen_free_all(s);
    cache_reset_free_all(s);
    loop_timer_destroy(s->drain_timer);
    loop_timer_destroy(s->stats_timer);
    template_destroy(s->template);
    tokenizer_destroy(s->tok);
    metrics_destroy(s->metrics);
    trace_close(s->trace);
    sampling_finish(&s->defaults);
    free(s);
}
