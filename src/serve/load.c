/* Loading the model while the port already answers 503. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "net/http_server.h"
#include "net/loop.h"
#include "serve/encode.h"
#include "serve/gen.h"
#include "serve/genconf.h"
#include "serve/metrics.h"
#include "serve/state.h"
#include "serve/trace.h"
#include "sys/map.h"
#include "text/template.h"
#include "text/tokenizer.h"
#include "wire/kv_bootstrap.h"

/* What the loader thread makes; handed to the loop thread in one piece. */
struct loaded {
    struct serve *s;
    struct engine *engine;
    struct tokenizer *tok;
    struct encoder *encoder;
    struct template *template;
    struct sampling defaults;
    uint32_t default_max_tokens;
    char *hf_overrides; /* as text, for the loader; NULL: none */
};

static int wake_front(void *arg)
{
    struct serve *s = arg;

    return loop_post(s->loop, gen_drain_events, s);
}

static enum model_dtype dtype_of(const struct serve_config *c)
{
    static const struct {
        const char *name;
        enum model_dtype dtype;
    } names[] = {
        { "half", MODEL_DTYPE_FLOAT16 },
        { "float16", MODEL_DTYPE_FLOAT16 },
        { "bfloat16", MODEL_DTYPE_BFLOAT16 },
    };

    if (c->float32)
        return MODEL_DTYPE_FLOAT32;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (c->dtype && strcmp(c->dtype, names[i].name) == 0)
            return names[i].dtype;
    return MODEL_DTYPE_AUTO;
}

/* hf_overrides: as text, NULL: none. */
static struct engine_options engine_options_of(const struct serve_config *c,
                                               const char *hf_overrides)
{
    uint32_t batched = (uint32_t)c->max_batched_tokens;

    if (c->max_scheduled_tokens > 0 && c->max_scheduled_tokens < c->max_batched_tokens)
        batched = (uint32_t)c->max_scheduled_tokens;
    return (struct engine_options){
        .model = { .path = c->model,
                   .dtype = dtype_of(c),
                   .kv_dtype = c->kv_dtype,
                   .quantization = c->quantization,
                   .hf_overrides = hf_overrides,
                   .mtp = c->n_draft_tokens > 0,
                   .max_model_len = c->max_model_len > 0 ? (uint32_t)c->max_model_len : 0 },
        .ranks = c->ranks,
        .kernel = { .threads = (uint32_t)c->threads },
        .sched = { .block_tokens = (uint32_t)c->block_size,
                   .n_blocks = (uint32_t)c->n_blocks,
                   .max_model_len = c->max_model_len > 0 ? (uint32_t)c->max_model_len : 0,
                   .max_batched_tokens = batched,
                   .max_seqs = (uint32_t)c->max_seqs,
                   .max_waiting = (uint32_t)c->max_queued,
                   /* so that a stage finds the next plan while the last one is still told of */
                   .max_inflight = c->ranks.pp > 1 ? c->ranks.pp + 1 : 1,
                   .long_prefill_threshold = (uint32_t)c->long_prefill,
                   .chunked_prefill = c->chunked_prefill,
                   .prefix_caching = c->prefix_caching,
                   .priority = strcmp(c->policy, "priority") == 0,
                   .chunks = c->chunks,
                   .short_first = c->short_first },
        .n_draft_tokens = c->n_draft_tokens,
        .memory_fraction = c->memory_fraction,
        .kv_bytes = (uint64_t)c->kv_bytes,
        .kv = { .produce = c->kv.produce,
                .consume = c->kv.consume,
                .host = c->kv.host,
                .port = c->kv.port,
                .engine_id = c->kv.engine_id,
                .secret = c->kv.secret,
                .lease_seconds = c->kv.lease_seconds,
                .pull_timeout = c->kv.pull_timeout,
                .connect_timeout = c->kv.connect_timeout,
                .checksums = c->kv.checksums,
                .layerwise = c->kv.layerwise,
                .producers = c->kv.producers,
                .consumers = c->kv.consumers,
                .on_failure = c->kv.fail_on_error ? KV_FAIL_ERROR : KV_FAIL_RECOMPUTE },
        .profile_seconds = c->profile_seconds,
        .step_delay = c->step_delay,
    };
}

static bool is_alone(const struct serve_config *c)
{
    return c->ranks.pp <= 1 && c->ranks.tp <= 1;
}

/* NULL in *out: there are none. The caller frees it. */
static int overrides_text(char **out, const struct serve_config *c)
{
    *out = NULL;
    if (json_object_size(c->hf_overrides) == 0)
        return 0;
    *out = json_dumps(c->hf_overrides, JSON_COMPACT);
    return *out ? 0 : ERR_NOMEM;
}

/* A context beyond what the model was made for gives nonsense without a word. */
static int check_length(const struct serve_config *c, const struct model_config *mc, struct err *e)
{
    const char *allow = getenv("VLLM_ALLOW_LONG_MAX_MODEL_LEN");

    if (c->max_model_len <= (int64_t)mc->max_position)
        return 0;
    if (allow && strcmp(allow, "1") == 0) {
        log_warning("--max-model-len %lld is beyond the model's own %u tokens, as "
                    "VLLM_ALLOW_LONG_MAX_MODEL_LEN allows",
                    (long long)c->max_model_len, mc->max_position);
        return 0;
    }
    return err_set(e, ERR_RANGE,
                   "--max-model-len %lld is beyond the %u tokens that the model was made for; set "
                   "VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 if that is meant",
                   (long long)c->max_model_len, mc->max_position);
}

/* Whether there is a part of the model for every rank. What only some architectures need is for the
 * model to say. */
static int check_parts(const struct serve_config *c, const struct model_config *mc, struct err *e)
{
    const struct engine_ranks *r = &c->ranks;
    uint32_t sum = 0;

    if (r->pp > mc->n_layers)
        return err_set(e, ERR_RANGE, "--pipeline-parallel-size %u is more than the %u layers of %s",
                       r->pp, mc->n_layers, c->model);
    for (uint32_t i = 0; i < r->pp && i < ENGINE_MAX_STAGES; i++)
        sum += r->stage_layers[i];
    if (sum > 0 && sum != mc->n_layers)
        return err_set(e, ERR_INVAL,
                       "VLLM_PP_LAYER_PARTITION: the stages have %u layers together, but %s has %u",
                       sum, c->model, mc->n_layers);
    if (r->tp > 1 && mc->heads % r->tp)
        return err_set(e, ERR_INVAL,
                       "--tensor-parallel-size %u does not divide the %u attention heads of %s",
                       r->tp, mc->heads, c->model);
    return 0;
}

static int check_config(const struct serve_config *c, const char *hf_overrides, struct err *e)
{
    struct model_config mc;
    int st = model_read_config(&mc, c->model, hf_overrides, e);

    if (st < 0)
        return st;
    if (c->n_draft_tokens > 0 && mc.mtp_layers == 0)
        return err_set(e, ERR_UNSUPPORTED,
                       "--speculative-config: %s (%s) has no multi-token prediction layer "
                       "(num_nextn_predict_layers) to draft with; leave the option out",
                       c->model, mc.arch);
    st = check_length(c, &mc, e);
    return st < 0 ? st : check_parts(c, &mc, e);
}

int serve_check_model(const struct serve_config *c, struct err *e)
{
    char *overrides;
    int st = overrides_text(&overrides, c);

    if (st == 0)
        st = check_config(c, overrides, e);
    free(overrides);
    return st;
}

int serve_rank(const struct serve_config *c, struct err *e)
{
    struct engine_options opt;
    char *overrides;
    int st = overrides_text(&overrides, c);

    if (st < 0)
        return st;
    opt = engine_options_of(c, overrides);
    st = engine_worker_serve(&opt, e);
    free(overrides);
    return st;
}

static int no_tokenizer(int st, struct err *e)
{
    struct err why = *e;

    return err_set(e, st,
                   "%.800s; --skip-tokenizer-init serves the model without: token ids in, token "
                   "ids out",
                   why.text);
}

static int load_tokenizer(struct loaded *l, struct err *e)
{
    const struct serve_config *c = l->s->cfg;
    int st;

    if (!c->skip_tokenizer) {
        st = model_load_tokenizer(&l->tok, c->tokenizer ? c->tokenizer : c->model, e);
        if (st < 0)
            return st == ERR_NOTFOUND ? no_tokenizer(st, e) : st;
        return encoder_create(&l->encoder, l->s->loop, l->tok, e);
    }
    log_info("no tokenizer is loaded: prompts are token ids, and replies have ids where "
             "return_token_ids asks for them, but no text");
    if (c->tokenizer)
        log_info("--tokenizer has no effect with --skip-tokenizer-init");
    if (c->chat_template)
        log_info("--chat-template has no effect with --skip-tokenizer-init");
    return 0;
}

/* --chat-template is a file, or the template itself; else the tokenizer's own. */
static int load_template(struct loaded *l, struct err *e)
{
    const char *given = l->s->cfg->chat_template;
    const char *own = l->tok ? tokenizer_chat_template(l->tok) : NULL;
    struct map m = { 0 };
    int st;

    if (!l->tok)
        return 0;
    if (!given && !own) {
        log_warning("the model has no chat template: /v1/chat/completions needs --chat-template");
        return 0;
    }
    if (!given) {
        st = template_compile(&l->template, own, strlen(own), e);
        if (st < 0)
            log_warning("the model's chat template cannot be used (%s): /v1/chat/completions needs "
                        "--chat-template",
                        e->text);
        return st == ERR_NOMEM ? st : 0;
    }
    if (strpbrk(given, "{\n"))
        return template_compile(&l->template, given, strlen(given), e);
    if ((st = map_open(&m, given, e)) < 0)
        return err_prefix(e, st, "--chat-template");
    st = template_compile(&l->template, (const char *)m.data, m.size, e);
    map_close(&m);
    return st < 0 ? err_prefix(e, st, "--chat-template %s", given) : 0;
}

/* kv_peers: what does not match shows before the first request. A producer that does not run yet is no
 * fault. */
static void look_at_peers(struct loaded *l)
{
    json_t *v;
    size_t i;

    json_array_foreach(l->s->cfg->kv.peers, i, v)
    {
        char host[KV_PARAMS_HOST_MAX];
        struct err e = { "" };
        uint16_t port;

        if (kv_address_parse(host, &port, json_string_value(v), NULL, &e) == 0 &&
            engine_kv_probe(l->engine, host, port, &e) == 0)
            log_info("KV producer %s matches", json_string_value(v));
        else
            log_warning("kv_peers: %s", e.text);
    }
}

static int load_all(struct loaded *l, struct err *e)
{
    const struct serve_config *c = l->s->cfg;
    struct engine_options opt;
    int st;

    if ((st = overrides_text(&l->hf_overrides, c)) < 0 ||
        /* ranks have had it looked at before there were several */
        (is_alone(c) && (st = check_config(c, l->hf_overrides, e)) < 0) ||
        (st = genconf_load(c, &l->defaults, &l->default_max_tokens, e)) < 0 ||
        (st = load_tokenizer(l, e)) < 0 || (st = load_template(l, e)) < 0)
        return st;
    opt = engine_options_of(c, l->hf_overrides);
    opt.notify = wake_front;
    opt.notify_arg = l->s;
    opt.timeline = l->s->trace ? trace_step : NULL;
    opt.timeline_arg = l->s->trace;
    if ((st = engine_open(&l->engine, &opt, e)) < 0)
        return st;
    look_at_peers(l);
    return 0;
}

static void loaded_destroy(struct loaded *l)
{
    engine_close(l->engine);
    encoder_destroy(l->encoder);
    template_destroy(l->template);
    tokenizer_destroy(l->tok);
    free(l->hf_overrides);
    free(l);
}

static void load_failed(void *arg)
{
    struct loaded *l = arg;
    struct serve *s = l->s;

    log_error("%s", s->load_error.text[0] ? s->load_error.text : status_text(s->load_status));
    loaded_destroy(l);
    s->loading = NULL;
    s->exit_code = 1;
    loop_stop(s->loop);
}

/* system_fingerprint: tells clients when what computes has changed. */
static void set_fingerprint(struct serve *s)
{
    const char *mode = s->cfg->fingerprint_mode;
    const char *model = s->info.fingerprint ? s->info.fingerprint : "";

    if (strcmp(mode, "full") == 0)
        snprintf(s->fingerprint, sizeof s->fingerprint, "sluice-%s-%.8s", SLUICE_VERSION, model);
    else if (strcmp(mode, "hash") == 0)
        snprintf(s->fingerprint, sizeof s->fingerprint, "%.8s", model);
    else if (strcmp(mode, "custom") == 0 && s->cfg->fingerprint_value)
        snprintf(s->fingerprint, sizeof s->fingerprint, "%s", s->cfg->fingerprint_value);
}

static void log_ready(const struct serve *s)
{
    const char *host = s->cfg->host ? s->cfg->host : "0.0.0.0";
    bool v6 = strchr(host, ':') != NULL;

    if (s->info.kv_port)
        log_info("KV transfer on %s:%u, engine id %s", s->info.kv_host, s->info.kv_port,
                 s->info.engine_id);
    if (s->query)
        log_info("KV bootstrap: GET /query on port %u", http_server_port(s->query));
    log_info("vLLM API server started on %s://%s%s%s:%u", s->cfg->ssl_cert ? "https" : "http",
             v6 ? "[" : "", host, v6 ? "]" : "", http_server_port(s->http));
    log_info("Application startup complete.");
}

static void load_done(void *arg)
{
    struct loaded *l = arg;
    struct serve *s = l->s;

    s->engine = l->engine;
    s->tok = l->tok;
    s->encoder = l->encoder;
    s->template = l->template;
    s->defaults = l->defaults;
    engine_info(s->engine, &s->info);
    s->rules = (struct oai_rules){ .vocab = s->info.model->vocab,
                                   .max_logprobs = (uint32_t)s->cfg->max_logprobs,
                                   .priority = strcmp(s->cfg->policy, "priority") == 0,
                                   .trust_chat_template = s->cfg->trust_request_template,
                                   .force_usage = s->cfg->force_usage,
                                   .tokens_as_ids = s->cfg->tokens_as_ids,
                                   .defaults = &s->defaults,
                                   .default_max_tokens = l->default_max_tokens };
    set_fingerprint(s);
    free(l->hf_overrides);
    free(l);
    s->loading = NULL;
    if (s->phase != SERVE_LOADING)
        return;
    s->phase = SERVE_READY;
    log_ready(s);
}

static void *load_thread(void *arg)
{
    struct loaded *l = arg;
    struct serve *s = l->s;
    int st;

    s->load_status = load_all(l, &s->load_error);
    st = loop_post(s->loop, s->load_status < 0 ? load_failed : load_done, l);
    if (st < 0)
        log_error("%s", status_text(st));
    return NULL;
}

int load_start(struct serve *s, struct err *e)
{
    struct loaded *l = calloc(1, sizeof *l);

    if (!l)
        return ERR_NOMEM;
    l->s = s;
    if (pthread_create(&s->loader, NULL, load_thread, l) != 0) {
        free(l);
        return err_set(e, ERR_NOMEM, "no thread for loading the model can be made");
    }
    s->loader_started = true;
    s->loading = l;
    return 0;
}

void load_join(struct serve *s)
{
    if (s->loader_started)
        pthread_join(s->loader, NULL);
    s->loader_started = false;
    if (s->loading) /* the loop has ended before it could take over */
        loaded_destroy(s->loading);
    s->loading = NULL;
}
