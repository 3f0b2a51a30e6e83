/* One simulated run: arrivals, steps through the pipeline, commits, in order of virtual time. */
#include "ops/sim.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "base/status.h"
#include "sched/chunk.h"

#define BLOCK_TOKENS 128
#define ANY_TOKEN    7

enum { LANE_LENGTH, LANE_GAP, LANE_JITTER }; /* of the random numbers */

struct client {
    uint32_t n_tokens;
    double arrived, first; /* first: of its first token; 0: not yet */
};

/* A step on its way through the stages. */
struct trip {
    const struct plan *plan;
    double end;
    double seconds[SIM_MAX_STAGES];
};

struct world {
    const struct sim_options *o;
    struct sched *s;
    struct client *client;
    struct step_choice *choice;
    int32_t *tokens; /* scratch: one prompt */
    uint32_t n_added, n_done;
    uint64_t n_jitter;
    double now, next_arrival;
    double free_at[SIM_MAX_STAGES], busy[SIM_MAX_STAGES];
    struct trip trip[SIM_MAX_STAGES + 1]; /* a ring of max_inflight */
    uint32_t n_trips, first_trip, window;
    uint64_t n_steps;
};

static uint32_t prompt_length(const struct sim_options *o, uint32_t i)
{
    double low = log(o->n_tokens_least), high = log(o->n_tokens_most);

    if (o->n_tokens_least == o->n_tokens_most)
        return o->n_tokens_most;
    return (uint32_t)round(exp(low + (high - low) * rand_uniform(o->seed, i, LANE_LENGTH)));
}

/* Ids that only this prompt has follow those that all have in common. */
static void fill_prompt(int32_t *tokens, uint32_t n, uint32_t common, uint32_t which)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t x = (i < common ? 0 : which + 1) * 0x9e3779b1u + i * 0x85ebca6bu;

        tokens[i] = (int32_t)((x ^ x >> 15) & 0xffff);
    }
}

static int add(struct world *w, uint32_t n_tokens, uint32_t n_output, uint32_t which,
               struct client *c)
{
    struct sampling p;
    struct sched_request r = { .prompt = w->tokens, .n_prompt = n_tokens, .sampling = &p };
    sched_id id;

    fill_prompt(w->tokens, n_tokens, (uint32_t)(w->o->hit_ratio * n_tokens), which);
    sampling_init(&p);
    p.max_tokens = n_output;
    r.user = c;
    return sched_add(w->s, &r, w->now, &id, NULL);
}

/* The gap until the next arrival where they come at random. */
static double gap(const struct world *w, uint32_t i)
{
    return -log(1 - rand_uniform(w->o->seed, i, LANE_GAP)) / w->o->rate;
}

static int arrive(struct world *w)
{
    const struct sim_options *o = w->o;
    uint32_t i = w->n_added;
    int st;

    w->client[i] = (struct client){ .n_tokens = prompt_length(o, i), .arrived = w->now };
    st = add(w, w->client[i].n_tokens, o->n_output, i, &w->client[i]);
    w->n_added++;
    if (o->rate > 0)
        w->next_arrival = w->n_added < o->n_requests ? w->now + gap(w, w->n_added) : INFINITY;
    return st;
}

/* Whoever is due: clients that come at random, or those who begin again when they are done. */
static int arrivals(struct world *w)
{
    const struct sim_options *o = w->o;
    int st = 0;

    while (st == 0 && w->n_added < o->n_requests &&
           (o->rate > 0 ? w->next_arrival <= w->now : w->n_added - w->n_done < o->concurrency))
        st = arrive(w);
    return st;
}

static void read_events(struct world *w)
{
    struct sched_event e;

    while (sched_next_event(w->s, &e)) {
        struct client *c = e.user;

        if (e.kind == SCHED_EV_TOKEN && e.out_index == 0)
            c->first = w->now;
        w->n_done += e.kind == SCHED_EV_END;
    }
}

static double step_ms(const struct world *w, const struct plan *p)
{
    const struct stage_time *f = &w->o->time;
    double area = 0, tokens = 0, history = 0;

    for (uint32_t i = 0; i < p->n_entries; i++) {
        double c = p->entries[i].n, h = p->entries[i].start;

        area += c * (h + f->kappa * c);
        tokens += c;
        history += h;
    }
    return f->a * area + fmax(f->b * tokens, f->w) + f->g * history + f->c;
}

static double jittered(struct world *w, double ms)
{
    double u = rand_uniform(w->o->seed, w->n_jitter++, LANE_JITTER);

    return ms * (1 + w->o->jitter * (2 * u - 1));
}

/* Sends a plan on its way; it is through the first stage when that is free again. */
static void depart(struct world *w, const struct plan *p)
{
    struct trip *t = &w->trip[(w->first_trip + w->n_trips++) % w->window];
    double ms = step_ms(w, p), at = w->now;

    t->plan = p;
    w->n_steps++;
    for (uint32_t s = 0; s < w->o->stages; s++) {
        t->seconds[s] = jittered(w, ms) / 1e3;
        w->free_at[s] = fmax(at, w->free_at[s]) + t->seconds[s];
        w->busy[s] += t->seconds[s];
        at = w->free_at[s] + (w->o->link.ms + w->o->link.ms_per_token * p->n_tokens) / 1e3;
    }
    t->end = w->free_at[w->o->stages - 1];
}

static void commit_first(struct world *w)
{
    struct trip *t = &w->trip[w->first_trip];

    for (uint32_t i = 0; i < t->plan->n_entries; i++)
        w->choice[i] = (struct step_choice){ .n = t->plan->entries[i].sample,
                                             .token = { ANY_TOKEN } };
    sched_note_times(w->s, t->plan->seq, t->seconds, w->o->stages);
    sched_commit(w->s, &(struct step_result){ .seq = t->plan->seq, .choice = w->choice }, w->now);
    w->first_trip = (w->first_trip + 1) % w->window;
    w->n_trips--;
    read_events(w);
}

static double next_event(const struct world *w)
{
    double t = INFINITY;

    if (w->n_trips > 0)
        t = w->trip[w->first_trip].end;
    if (w->free_at[0] > w->now)
        t = fmin(t, w->free_at[0]);
    if (w->o->rate > 0)
        t = fmin(t, w->next_arrival);
    return t;
}

/* Until n requests are done, each at its time. */
static int run_until(struct world *w, uint32_t n, bool arriving)
{
    while (w->n_done < n) {
        const struct plan *p = NULL;
        int st = arriving ? arrivals(w) : 0;

        if (st < 0)
            return st;
        if (w->free_at[0] <= w->now && (p = sched_step(w->s, w->now)))
            depart(w, p);
        if (p)
            continue;
        w->now = next_event(w);
        assert(isfinite(w->now));
        while (w->n_trips > 0 && w->trip[w->first_trip].end <= w->now)
            commit_first(w);
    }
    return 0;
}

/* The longest prompts one after another, as an operator warms a server up: what all prompts have in common
 * comes into the prefix cache, and measured times correct the model. Then the clock begins. */
static int warm_up(struct world *w)
{
    struct client nobody;
    uint32_t n = w->o->n_warm_up;

    if (n == 0 && w->o->hit_ratio > 0)
        n = 1;
    for (uint32_t i = 0; i < n; i++) {
        int st = add(w, w->o->n_tokens_most, 1, SIM_MAX_REQUESTS + i, &nobody);

        if (st < 0 || (st = run_until(w, i + 1, false)) < 0)
            return st;
    }
    w->n_done = 0;
    w->n_steps = 0;
    w->now = 0;
    w->next_arrival = 0;
    memset(w->busy, 0, sizeof w->busy);
    memset(w->free_at, 0, sizeof w->free_at);
    return 0;
}

static struct sched_config config_of(const struct sim_options *o, uint32_t base, uint32_t window)
{
    uint32_t blocks = (o->n_tokens_most + o->n_output) / BLOCK_TOKENS + 2;
    uint64_t most = (uint64_t)blocks * (o->max_seqs + 1) + blocks;
    bool one = o->stages == 1, fixed = o->policy == SCHED_CHUNK_STATIC;

    return (struct sched_config){
        .block_tokens = BLOCK_TOKENS,
        .n_blocks =
            (uint32_t)(most < SIM_MAX_TOKENS / BLOCK_TOKENS ? most : SIM_MAX_TOKENS / BLOCK_TOKENS),
        .max_model_len = o->n_tokens_most + o->n_output,
        .max_batched_tokens = base,
        .max_seqs = o->max_seqs,
        .max_inflight = window,
        .chunked_prefill = true,
        .prefix_caching = o->hit_ratio > 0,
        .chunks = { .policy = one && fixed ? SCHED_CHUNK_OFF : o->policy,
                    .n_stages = o->stages,
                    .smooth = o->smooth,
                    .min_chunk = o->min_chunk < base ? o->min_chunk : base,
                    .timing = true,
                    .max_fit = 30 },
        .short_first = o->short_first,
    };
}

static struct chunk_task longest_task(const struct sim_options *o)
{
    uint64_t hit = (uint64_t)(o->hit_ratio * o->n_tokens_most) / BLOCK_TOKENS * BLOCK_TOKENS;

    return (struct chunk_task){ .time = o->time,
                                .link = o->link,
                                .n_stages = o->stages,
                                .tokens = o->n_tokens_most,
                                .history = hit < o->n_tokens_most ? hit : hit - BLOCK_TOKENS,
                                .align = BLOCK_TOKENS,
                                .min_chunk = BLOCK_TOKENS,
                                .max_chunk = o->base };
}

static int open_world(struct world *w, const struct sim_options *o, uint32_t base, struct err *e)
{
    struct stage_time stages[SIM_MAX_STAGES];
    struct sched_config c;
    int st;

    *w = (struct world){ .o = o,
                         .window = o->window ? o->window : o->stages + 1,
                         .next_arrival = INFINITY };
    c = config_of(o, base, w->window);
    w->client = calloc(o->n_requests, sizeof *w->client);
    w->choice = calloc(o->max_seqs, sizeof *w->choice);
    w->tokens = malloc(o->n_tokens_most * sizeof *w->tokens);
    if (!w->client || !w->choice || !w->tokens)
        return err_set(e, ERR_NOMEM, "no memory for %u requests of up to %u tokens", o->n_requests,
                       o->n_tokens_most);
    if ((st = sched_create(&w->s, &c, e)) < 0)
        return st;
    for (uint32_t i = 0; i < o->stages; i++)
        stages[i] = o->time;
    return o->unknown ? 0 : sched_set_latency(w->s, stages, o->stages, &o->link, e);
}

static void close_world(struct world *w)
{
    sched_destroy(w->s);
    free(w->client);
    free(w->choice);
    free(w->tokens);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static int fill_result(struct world *w, struct sim_result *out, struct err *e)
{
    const struct sim_options *o = w->o;
    double *ttft = malloc(o->n_requests * sizeof *ttft), tokens = 0, busy = 0;
    struct sched_stats st;

    if (!ttft)
        return err_set(e, ERR_NOMEM, "no memory for %u requests", o->n_requests);
    out->n = o->n_requests;
    for (uint32_t i = 0; i < o->n_requests; i++) {
        ttft[i] = w->client[i].first - w->client[i].arrived;
        out->ttft_mean += ttft[i] / o->n_requests;
        tokens += w->client[i].n_tokens;
    }
    qsort(ttft, o->n_requests, sizeof *ttft, compare);
    out->ttft_p50 = ttft[o->n_requests / 2];
    out->ttft_p99 = ttft[(uint32_t)(0.99 * (o->n_requests - 1) + 0.5)];
    free(ttft);
    out->seconds = w->now;
    out->prompt_per_second = tokens / w->now;
    for (uint32_t s = 0; s < o->stages; s++)
        busy += w->busy[s];
    out->bubble = 1 - busy / (o->stages * w->now);
    out->steps = w->n_steps;
    sched_stats(w->s, &st);
    out->chunks = st.chunks;
    return 0;
}

int sim_run(const struct sim_options *o, struct sim_result *out, struct err *e)
{
    struct chunk_task longest = longest_task(o);
    uint32_t base = o->best_size ? chunk_best_static(&longest) : o->base;
    struct world w;
    int st = open_world(&w, o, base, e);

    *out = (struct sim_result){ .base = base, .bound = chunk_bound(&longest) / 1e3 };
    if (st == 0)
        st = warm_up(&w);
    if (st == 0)
        st = run_until(&w, o->n_requests, true);
    if (st == 0)
        st = fill_result(&w, out, e);
    else if (e && !e->text[0])
        err_set(e, st, "the simulated server refused a request: %s", status_text(st));
    close_world(&w);
    return st;
}
