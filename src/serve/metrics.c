#include "serve/metrics.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/prom.h"
#include "serve/state.h"

#define MAX_SERIES 96 /* (handler, method, status) that were seen */
#define SAMPLES    1024

/* ---- bounds ---- */

static const double seconds_request[] = { 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                          30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680 };
static const double seconds_token[] = { 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5,
                                        0.75, 1,     2.5,  5,     7.5, 10,   20,  40,  80 };
static const double seconds_first[] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                        0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                        20,    40,    80,   160,  640,  2560 };
static const double tokens_request[] = { 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000 };
static const double tokens_step[] = {
    1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384
};
static const double small_n[] = { 1, 2, 5, 10, 20 };
static const double preemptions[] = { 1, 2, 3, 4, 5, 10, 20 };
static const double http_coarse[] = { 0.1, 0.5, 1 };
static const double http_fine[] = { 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1,  1.5, 2,
                                    2.5,  3,     3.5,  4,     4.5, 5,    7.5, 10,   30, 60 };
static const double seconds_transfer[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                           0.5,   1,      2.5,   5,    10,    30,   60,  120 };

/* ---- histograms by table ---- */

enum hist_id {
    H_E2E,
    H_QUEUE,
    H_INFERENCE,
    H_PREFILL,
    H_DECODE,
    H_TTFT,
    H_ITL,
    H_TPOT,
    H_PROMPT,
    H_GENERATION,
    H_MAX_GENERATION,
    H_MAX_TOKENS,
    H_N,
    H_PREFILL_TOKENS,
    H_PREEMPTIONS,
    H_STEP,
    H_TRANSFER,
    N_HISTS
};

#define BOUNDS(a) a, sizeof(a) / sizeof(a)[0]

/* clang-format off */
static const struct hist_spec {
    const char *name, *help;
    const double *bounds;
    uint32_t n;
} hists[N_HISTS] = {
    [H_E2E] = { "vllm:e2e_request_latency_seconds", "From arrival to the last token.", BOUNDS(seconds_request) },
    [H_QUEUE] = { "vllm:request_queue_time_seconds", "Waiting for the first step.", BOUNDS(seconds_request) },
    [H_INFERENCE] = { "vllm:request_inference_time_seconds", "From the first step to the last token.", BOUNDS(seconds_request) },
    [H_PREFILL] = { "vllm:request_prefill_time_seconds", "From the first step to the first token.", BOUNDS(seconds_request) },
    [H_DECODE] = { "vllm:request_decode_time_seconds", "From the first token to the last.", BOUNDS(seconds_request) },
    [H_TTFT] = { "vllm:time_to_first_token_seconds", "From arrival to the first token.", BOUNDS(seconds_first) },
    [H_ITL] = { "vllm:inter_token_latency_seconds", "Between two tokens of a request.", BOUNDS(seconds_token) },
    [H_TPOT] = { "vllm:request_time_per_output_token_seconds", "Mean time a token after the first, by request.", BOUNDS(seconds_token) },
    [H_PROMPT] = { "vllm:request_prompt_tokens", "Prompt tokens of a request.", BOUNDS(tokens_request) },
    [H_GENERATION] = { "vllm:request_generation_tokens", "Tokens generated for a request.", BOUNDS(tokens_request) },
    [H_MAX_GENERATION] = { "vllm:request_max_num_generation_tokens", "Most tokens generated for a choice of a request.", BOUNDS(tokens_request) },
    [H_MAX_TOKENS] = { "vllm:request_params_max_tokens", "Limit of a request.", BOUNDS(tokens_request) },
    [H_N] = { "vllm:request_params_n", "Choices asked for.", BOUNDS(small_n) },
    [H_PREFILL_TOKENS] = { "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed here.", BOUNDS(tokens_request) },
    [H_PREEMPTIONS] = { "vllm:request_num_preemptions", "Times a request was preempted.", BOUNDS(preemptions) },
    [H_STEP] = { "vllm:iteration_tokens_total", "Tokens of an engine step.", BOUNDS(tokens_step) },
    [H_TRANSFER] = { "sluice:kv_transfer_seconds", "Pulling a request's KV from a prefill instance.", BOUNDS(seconds_transfer) },
};
/* clang-format on */

/* One (handler, method, status) of HTTP. */
struct series {
    const char *handler;
    char method[12];
    int status_class; /* 2 for 2xx */
    uint64_t n, request_bytes, reply_bytes;
    struct prom_hist seconds;
};

struct metrics {
    struct buf labels; /* engine="0",model_name="..." */
    char *model_name;
    char engine[16];
    struct prom_hist hist[N_HISTS];
    struct prom_hist http_fine;
    struct series series[MAX_SERIES];
    uint32_t n_series;
    uint64_t ended[FINISH_RECOMPUTE + 1];
    uint64_t computed, local_hits, external, rejected;
};

int metrics_create(struct metrics **out, const char *model_name, uint32_t engine)
{
    struct metrics *m = calloc(1, sizeof *m);

    if (!m)
        return ERR_NOMEM;
    m->model_name = strdup(model_name);
    if (!m->model_name) {
        free(m);
        return ERR_NOMEM;
    }
    buf_init(&m->labels, BUF_MAX_LINE);
    snprintf(m->engine, sizeof m->engine, "%u", engine);
    prom_label(&m->labels, "engine", m->engine);
    prom_label(&m->labels, "model_name", model_name);
    for (int i = 0; i < N_HISTS; i++)
        prom_hist_init(&m->hist[i], hists[i].bounds, hists[i].n);
    prom_hist_init(&m->http_fine, BOUNDS(http_fine));
    *out = m;
    return 0;
}

void metrics_destroy(struct metrics *m)
{
    if (!m)
        return;
    buf_finish(&m->labels);
    free(m->model_name);
    free(m);
}

/* ---- counting ---- */

void metrics_first_token(struct metrics *m, double seconds)
{
    prom_hist_add(&m->hist[H_TTFT], seconds);
}

void metrics_inter_token(struct metrics *m, double seconds)
{
    prom_hist_add(&m->hist[H_ITL], seconds);
}

static void add_span(struct metrics *m, enum hist_id id, double from, double to)
{
    if (from > 0 && to > 0)
        prom_hist_add(&m->hist[id], to > from ? to - from : 0);
}

void metrics_request(struct metrics *m, const struct metrics_request *r)
{
    m->ended[r->finish]++;
    m->computed += r->n_prefill;
    m->local_hits += r->n_cached;
    m->external += r->n_external;
    add_span(m, H_E2E, r->t_arrive, r->t_end);
    add_span(m, H_QUEUE, r->t_queued, r->t_start);
    add_span(m, H_INFERENCE, r->t_start, r->t_last);
    add_span(m, H_PREFILL, r->t_start, r->t_first);
    add_span(m, H_DECODE, r->t_first, r->t_last);
    if (r->n_out > 1)
        prom_hist_add(&m->hist[H_TPOT], (r->t_last - r->t_first) / (r->n_out - 1));
    prom_hist_add(&m->hist[H_PROMPT], r->n_prompt);
    prom_hist_add(&m->hist[H_GENERATION], r->n_out);
    prom_hist_add(&m->hist[H_MAX_GENERATION], r->n_out);
    prom_hist_add(&m->hist[H_MAX_TOKENS], r->max_tokens);
    prom_hist_add(&m->hist[H_N], r->n);
    prom_hist_add(&m->hist[H_PREFILL_TOKENS], r->n_prefill);
    prom_hist_add(&m->hist[H_PREEMPTIONS], r->n_preempted);
}

void metrics_rejected(struct metrics *m)
{
    m->rejected++;
}

static struct series *find_series(struct metrics *m, const char *handler, const char *method,
                                  int status_class)
{
    struct series *s;

    for (uint32_t i = 0; i < m->n_series; i++) {
        s = &m->series[i];
        if (s->status_class == status_class && strcmp(s->handler, handler) == 0 &&
            strncmp(s->method, method, sizeof s->method - 1) == 0)
            return s;
    }
    if (m->n_series == MAX_SERIES)
        return NULL;
    s = &m->series[m->n_series++];
    *s = (struct series){ .handler = handler, .status_class = status_class };
    snprintf(s->method, sizeof s->method, "%s", method);
    prom_hist_init(&s->seconds, BOUNDS(http_coarse));
    return s;
}

/* Methods that clients make up share one name: they must not use up the series. */
static const char *method_label(const char *method)
{
    static const char *const known[] = {
        "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"
    };

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(method, known[i]) == 0)
            return known[i];
    return "other";
}

void metrics_http(struct metrics *m, const char *handler, const char *method, int status,
                  double seconds, uint64_t request_bytes, uint64_t reply_bytes)
{
    struct series *s = find_series(m, handler, method_label(method), status / 100);

    prom_hist_add(&m->http_fine, seconds);
    if (!s)
        return;
    s->n++;
    s->request_bytes += request_bytes;
    s->reply_bytes += reply_bytes;
    prom_hist_add(&s->seconds, seconds);
}

/* ---- printing ---- */

static void put_one(struct metrics *m, struct buf *b, const char *name, const char *type,
                    const char *help, double v)
{
    prom_family(b, name, type, help);
    prom_value(b, name, buf_str(&m->labels), v);
}

/* A sample with one more label. */
static void put_labelled(struct metrics *m, struct buf *b, const char *name, const char *key,
                         const char *value, double v)
{
    struct buf labels;

    buf_init(&labels, BUF_MAX_LINE);
    buf_puts(&labels, buf_str(&m->labels));
    prom_label(&labels, key, value);
    prom_value(b, name, buf_str(&labels), v);
    buf_finish(&labels);
}

static void put_gauges(struct metrics *m, struct buf *b, const struct engine_stats *st)
{
    const struct sched_stats *s = &st->sched;
    double usage = s->blocks_total ? (double)s->blocks_used / s->blocks_total : 0;

    put_one(m, b, "vllm:num_requests_running", "gauge", "Requests in the running batch.",
            s->n_running);
    put_one(m, b, "vllm:num_requests_waiting", "gauge", "Requests waiting to be scheduled.",
            s->n_waiting + s->n_waiting_kv);
    prom_family(b, "vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by reason.");
    put_labelled(m, b, "vllm:num_requests_waiting_by_reason", "reason", "capacity", s->n_waiting);
    put_labelled(m, b, "vllm:num_requests_waiting_by_reason", "reason", "deferred",
                 s->n_waiting_kv);
    put_one(m, b, "vllm:kv_cache_usage_perc", "gauge", "Used part of the KV cache, 1 is all of it.",
            usage);
    prom_family(b, "vllm:engine_sleep_state", "gauge", "Sleep state of the engine.");
    put_labelled(m, b, "vllm:engine_sleep_state", "sleep_state", "awake", 1);
}

/* Of the front, not of an engine: without that label. */
static void put_rejected(struct metrics *m, struct buf *b)
{
    struct buf l;

    buf_init(&l, BUF_MAX_LINE);
    prom_label(&l, "model_name", m->model_name);
    prom_label(&l, "reason", "max_num_queued_reqs");
    prom_family(b, "vllm:admission_rejections_total", "counter",
                "Requests that found the queue full.");
    prom_value(b, "vllm:admission_rejections_total", buf_str(&l), (double)m->rejected);
    buf_finish(&l);
}

static void put_counters(struct metrics *m, struct buf *b, const struct engine_stats *st)
{
    const struct sched_stats *s = &st->sched;
    const struct {
        const char *name, *help;
        double v;
    } rows[] = {
        { "vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
          (double)s->prefix_queries },
        { "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
          (double)s->prefix_hits },
        { "vllm:external_prefix_cache_queries_total", "Prompt tokens asked of other instances.",
          (double)s->external_queries },
        { "vllm:external_prefix_cache_hits_total", "Prompt tokens that came from other instances.",
          (double)s->external_hits },
        { "vllm:mm_cache_queries_total", "Lookups in the multi-modal cache.", 0 },
        { "vllm:mm_cache_hits_total", "Hits in the multi-modal cache.", 0 },
        { "vllm:num_preemptions_total", "Requests preempted.", (double)s->preemptions },
        { "vllm:prompt_tokens_total", "Prompt tokens processed.", (double)s->prompt_tokens },
        { "vllm:prompt_tokens_cached_total", "Prompt tokens taken from a cache.",
          (double)(m->local_hits + m->external) },
        { "vllm:generation_tokens_total", "Tokens generated.", (double)s->generation_tokens },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        put_one(m, b, rows[i].name, "counter", rows[i].help, rows[i].v);
    prom_family(b, "vllm:prompt_tokens_by_source_total", "counter", "Prompt tokens by origin.");
    put_labelled(m, b, "vllm:prompt_tokens_by_source_total", "source", "local_compute",
                 (double)m->computed);
    put_labelled(m, b, "vllm:prompt_tokens_by_source_total", "source", "local_cache_hit",
                 (double)m->local_hits);
    put_labelled(m, b, "vllm:prompt_tokens_by_source_total", "source", "external_kv_transfer",
                 (double)m->external);
    prom_family(b, "vllm:prompt_tokens_cached_by_source_total", "counter",
                "Cached prompt tokens by where they were.");
    put_labelled(m, b, "vllm:prompt_tokens_cached_by_source_total", "source", "device",
                 (double)m->local_hits);
    put_labelled(m, b, "vllm:prompt_tokens_cached_by_source_total", "source", "p2p",
                 (double)m->external);
    put_rejected(m, b);
    prom_family(b, "vllm:request_success_total", "counter", "Requests that have ended.");
    for (int f = FINISH_STOP; f <= FINISH_RECOMPUTE; f++)
        put_labelled(m, b, "vllm:request_success_total", "finished_reason",
                     finish_name((enum finish)f), (double)m->ended[f]);
}

/* Only where there is speculation, as dashboards show what is there. */
static void put_drafts(struct metrics *m, struct buf *b, const struct engine_stats *st, uint32_t n)
{
    static const char by_place[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total";

    if (n == 0)
        return;
    put_one(m, b, "vllm:spec_decode_num_drafts_total", "counter",
            "Steps of a request that verified drafts.", (double)st->spec_drafts);
    put_one(m, b, "vllm:spec_decode_num_draft_tokens_total", "counter", "Drafts verified.",
            (double)st->spec_draft_tokens);
    put_one(m, b, "vllm:spec_decode_num_accepted_tokens_total", "counter", "Drafts accepted.",
            (double)st->spec_accepted_tokens);
    prom_family(b, by_place, "counter", "Drafts accepted, by their place in the draft.");
    for (uint32_t i = 0; i < n && i < SPEC_MAX_TOKENS; i++) {
        char place[8];

        snprintf(place, sizeof place, "%u", i);
        put_labelled(m, b, by_place, "position", place, (double)st->spec_accepted_pos[i]);
    }
}

static void put_transfer(struct metrics *m, struct buf *b, const struct engine_stats *st)
{
    const struct transfer_stats *t = &st->transfer;

    put_one(m, b, "sluice:kv_leases", "gauge", "Prompts held for a decode elsewhere.", t->leases);
    put_one(m, b, "sluice:kv_pulls", "gauge", "Pulls in progress.", t->pulls);
    put_one(m, b, "sluice:kv_leases_expired_total", "counter", "Leases that nobody ended.",
            (double)t->leases_expired);
    prom_family(b, "sluice:kv_transfer_bytes_total", "counter", "KV bytes by direction.");
    put_labelled(m, b, "sluice:kv_transfer_bytes_total", "direction", "sent",
                 (double)t->bytes_sent);
    put_labelled(m, b, "sluice:kv_transfer_bytes_total", "direction", "received",
                 (double)t->bytes_received);
    put_one(m, b, "sluice:kv_early_bytes_total", "counter",
            "Of the bytes sent: before all layers had their prompt.", (double)t->bytes_early);
    put_one(m, b, "sluice:kv_transfer_failures_total", "counter", "Pulls that failed.",
            (double)st->kv_failures);
    put_one(m, b, "sluice:kv_checksum_errors_total", "counter", "Blocks that arrived damaged.",
            (double)t->checksum_errors);
    put_one(m, b, "sluice:kv_refused_total", "counter", "Peers and reads that were refused.",
            (double)(t->refused + t->protocol_errors));
    put_one(m, b, "sluice:engine_steps_total", "counter", "Engine steps.", (double)st->steps);
    put_one(m, b, "sluice:engine_step_seconds_total", "counter", "Time in engine steps.",
            st->step_seconds);
}

static void put_by_number(struct metrics *m, struct buf *b, const char *name, const char *key,
                          uint32_t number, double v)
{
    char text[16];

    snprintf(text, sizeof text, "%u", number);
    put_labelled(m, b, name, key, text, v);
}

static void put_ranks(struct metrics *m, struct buf *b, const struct engine_stats *st)
{
    const struct engine_dp_stats *dp = &st->dp;

    put_one(m, b, "sluice:ranks", "gauge", "Processes of this instance.", st->n_ranks);
    prom_family(b, "sluice:stage_busy_seconds_total", "counter",
                "Time in which a pipeline stage computed.");
    for (uint32_t i = 0; i < st->n_stages && i < ENGINE_MAX_STAGES; i++)
        put_by_number(m, b, "sluice:stage_busy_seconds_total", "stage", i, st->stage_seconds[i]);
    prom_family(b, "sluice:stage_bubble_seconds_total", "counter",
                "Time in which a pipeline stage waited while others had work.");
    for (uint32_t i = 0; i < st->n_stages && i < ENGINE_MAX_STAGES; i++)
        put_by_number(m, b, "sluice:stage_bubble_seconds_total", "stage", i, st->stage_bubble[i]);
    if (dp->size == 0)
        return;
    prom_family(b, "sluice:dp_rank_up", "gauge", "Whether that instance of the group is there.");
    for (uint32_t i = 0; i < dp->size && i < ENGINE_MAX_DP; i++)
        put_by_number(m, b, "sluice:dp_rank_up", "rank", i, dp->up[i]);
    put_one(m, b, "sluice:dp_meetings_total", "counter", "Times that the whole group has met.",
            (double)dp->meetings);
    put_one(m, b, "sluice:dp_steps", "gauge",
            "Steps in lockstep since the group last met, equal on all its ranks.",
            (double)dp->steps);
}

/* The five numbers of docs/chunk-planning.md, and kappa. */
static void put_fit(struct metrics *m, struct buf *b, const struct stage_time *f)
{
    const struct {
        const char *name;
        double v;
    } rows[] = {
        { "a", f->a }, { "b", f->b }, { "w", f->w },
        { "g", f->g }, { "c", f->c }, { "kappa", f->kappa },
    };

    prom_family(b, "sluice:chunk_fit", "gauge",
                "The slowest stage's model: milliseconds for tokens, by coefficient.");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        put_labelled(m, b, "sluice:chunk_fit", "coefficient", rows[i].name, rows[i].v);
}

/* Only where prompts are cut by plan. */
static void put_chunks(struct metrics *m, struct buf *b, const struct sched_chunk_stats *c)
{
    const struct {
        const char *name, *type, *help;
        double v;
    } rows[] = {
        { "sluice:chunk_plans_total", "counter", "Prompts that a chunk plan was made for.",
          (double)c->plans },
        { "sluice:chunk_plans_fixed_total", "counter",
          "Of these, those for which chunks of one size were as good.", (double)c->fixed },
        { "sluice:chunk_plan_chunks", "gauge", "Chunks of the last plan.", c->plan_chunks },
        { "sluice:chunk_plan_first_tokens", "gauge", "Tokens of its first chunk.", c->plan_first },
        { "sluice:chunk_plan_last_tokens", "gauge", "Tokens of its last chunk.", c->plan_last },
        { "sluice:chunk_plan_seconds", "gauge", "Time that the last plan will take.",
          c->plan_ms / 1e3 },
        { "sluice:chunk_bound_seconds", "gauge", "Time that no plan for that prompt can beat.",
          c->bound_ms / 1e3 },
        { "sluice:chunk_steps_total", "counter", "Steps with prompt tokens that were measured.",
          (double)c->n_measured },
        { "sluice:chunk_predicted_seconds_total", "counter",
          "What the slowest stage was expected to take for them.", c->predicted_sum_ms / 1e3 },
        { "sluice:chunk_measured_seconds_total", "counter",
          "What it took, where something was expected.", c->measured_sum_ms / 1e3 },
        { "sluice:chunk_fit_error", "gauge", "Mean relative error of the last predictions.",
          c->fit_error },
        { "sluice:chunk_load", "gauge", "Factor on all predictions that a busy machine makes.",
          c->load },
    };

    if (c->mode == SCHED_MODE_OFF)
        return;
    prom_family(b, "sluice:chunk_mode", "gauge", "How prompts are cut into chunks.");
    put_labelled(m, b, "sluice:chunk_mode", "mode", sched_chunk_mode_name(c->mode), 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        put_one(m, b, rows[i].name, rows[i].type, rows[i].help, rows[i].v);
    put_fit(m, b, &c->fit);
}

/* vllm:cache_config_info: 1, the configuration in its labels. */
static void put_cache_config(const struct serve *s, struct buf *b)
{
    struct buf l;
    char num[32];

    buf_init(&l, BUF_MAX_LINE);
    snprintf(num, sizeof num, "%u", s->info.block_tokens);
    prom_label(&l, "block_size", num);
    prom_label(&l, "cache_dtype", s->info.kv_dtype ? s->info.kv_dtype : "");
    prom_label(&l, "enable_prefix_caching", s->cfg->prefix_caching ? "True" : "False");
    prom_label(&l, "engine", s->metrics->engine);
    snprintf(num, sizeof num, "%g", s->cfg->memory_fraction);
    prom_label(&l, "gpu_memory_utilization", num);
    snprintf(num, sizeof num, "%llu", (unsigned long long)s->info.pool_bytes);
    prom_label(&l, "kv_cache_memory_bytes", num);
    snprintf(num, sizeof num, "%llu", (unsigned long long)s->info.block_tokens * s->info.n_blocks);
    prom_label(&l, "kv_cache_size_tokens", num);
    snprintf(num, sizeof num, "%u", s->info.n_blocks);
    prom_label(&l, "num_gpu_blocks", num);
    prom_label(&l, "prefix_caching_hash_algo", "sha256");
    prom_family(b, "vllm:cache_config_info", "gauge", "Configuration of the KV cache.");
    prom_value(b, "vllm:cache_config_info", buf_str(&l), 1);
    buf_finish(&l);
}

static void series_labels(struct buf *l, const struct series *s, bool with_status)
{
    char status[8];

    buf_init(l, BUF_MAX_LINE);
    prom_label(l, "handler", s->handler);
    prom_label(l, "method", s->method);
    snprintf(status, sizeof status, "%dxx", s->status_class);
    if (with_status)
        prom_label(l, "status", status);
}

/* The duration is by handler and method: statuses are added up. */
static void put_http_seconds(const struct metrics *m, struct buf *b, uint32_t first)
{
    struct prom_hist sum = m->series[first].seconds;
    struct buf l;

    for (uint32_t i = 0; i < m->n_series; i++) {
        const struct series *s = &m->series[i], *f = &m->series[first];

        if (i == first || strcmp(s->handler, f->handler) != 0 || strcmp(s->method, f->method) != 0)
            continue;
        if (i < first)
            return; /* printed with the earlier one */
        for (uint32_t k = 0; k <= sum.n; k++)
            sum.count[k] += s->seconds.count[k];
        sum.sum += s->seconds.sum;
    }
    series_labels(&l, &m->series[first], false);
    prom_hist_put(b, "http_request_duration_seconds", buf_str(&l), &sum);
    buf_finish(&l);
}

/* Sizes are by handler alone. */
static void put_http_size(const struct metrics *m, struct buf *b, uint32_t first, bool of_reply)
{
    const char *name = of_reply ? "http_response_size_bytes" : "http_request_size_bytes";
    uint64_t n = 0, bytes = 0;
    char full[64];
    struct buf l;

    for (uint32_t i = 0; i < m->n_series; i++) {
        const struct series *s = &m->series[i];

        if (strcmp(s->handler, m->series[first].handler) != 0)
            continue;
        if (i < first)
            return; /* printed with the earlier one */
        n += s->n;
        bytes += of_reply ? s->reply_bytes : s->request_bytes;
    }
    buf_init(&l, BUF_MAX_LINE);
    prom_label(&l, "handler", m->series[first].handler);
    snprintf(full, sizeof full, "%s_count", name);
    prom_value(b, full, buf_str(&l), (double)n);
    snprintf(full, sizeof full, "%s_sum", name);
    prom_value(b, full, buf_str(&l), (double)bytes);
    buf_finish(&l);
}

static void put_http(const struct metrics *m, struct buf *b)
{
    struct buf l;

    prom_family(b, "http_requests_total", "counter", "HTTP replies by handler, method and status.");
    for (uint32_t i = 0; i < m->n_series; i++) {
        series_labels(&l, &m->series[i], true);
        prom_value(b, "http_requests_total", buf_str(&l), (double)m->series[i].n);
        buf_finish(&l);
    }
    prom_family(b, "http_request_duration_seconds", "histogram", "Time to the head of the reply.");
    for (uint32_t i = 0; i < m->n_series; i++)
        put_http_seconds(m, b, i);
    prom_family(b, "http_request_size_bytes", "summary", "Bodies of requests by handler.");
    for (uint32_t i = 0; i < m->n_series; i++)
        put_http_size(m, b, i, false);
    prom_family(b, "http_response_size_bytes", "summary", "Bodies of replies by handler.");
    for (uint32_t i = 0; i < m->n_series; i++)
        put_http_size(m, b, i, true);
    prom_family(b, "http_request_duration_highr_seconds", "histogram",
                "Time to the head of the reply, all handlers.");
    prom_hist_put(b, "http_request_duration_highr_seconds", "", &m->http_fine);
}

void metrics_collect(struct metrics *m, struct engine *e)
{
    static uint32_t sizes[SAMPLES];
    static double times[SAMPLES];
    uint32_t n = engine_step_sizes(e, sizes, SAMPLES);

    for (uint32_t i = 0; i < n; i++)
        prom_hist_add(&m->hist[H_STEP], sizes[i]);
    n = engine_pull_times(e, times, SAMPLES);
    for (uint32_t i = 0; i < n; i++)
        prom_hist_add(&m->hist[H_TRANSFER], times[i]);
}

int metrics_render(struct metrics *m, struct serve *s, struct buf *b)
{
    struct engine_stats st;

    engine_stats(s->engine, &st);
    metrics_collect(m, s->engine);
    put_gauges(m, b, &st);
    put_counters(m, b, &st);
    for (int i = 0; i < N_HISTS; i++) {
        prom_family(b, hists[i].name, "histogram", hists[i].help);
        prom_hist_put(b, hists[i].name, buf_str(&m->labels), &m->hist[i]);
    }
    put_drafts(m, b, &st, s->cfg->n_draft_tokens);
    put_transfer(m, b, &st);
    put_ranks(m, b, &st);
    put_chunks(m, b, &st.sched.chunks);
    put_cache_config(s, b);
    put_http(m, b);
    return b->status;
}
