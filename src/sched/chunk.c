#include "sched/chunk.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BISECTIONS 14
#define BRACKET    1.04

/* How times weigh in the makespan of proportional stages: sum f by `sum`, the longest by `longest`. */
struct weights {
    double sum, longest;
};

/* One kind of plan that is searched for. */
struct search {
    const struct chunk_task *t;
    struct weights weights;
    uint32_t min_chunk;
    double cap;       /* see chunk_cap; 0: none */
    double work_time; /* of the last count: chunks times the time of one; 0: none yet */
    struct chunk_plan *best;
    struct chunk_plan now;
};

static double ratio_of(const struct chunk_task *t, uint32_t stage)
{
    return t->ratio ? t->ratio[stage] : 1;
}

static uint32_t bottleneck(const struct chunk_task *t)
{
    uint32_t m = 0;

    for (uint32_t s = 1; s < t->n_stages; s++)
        if (ratio_of(t, s) >= ratio_of(t, m))
            m = s;
    return m;
}

static struct weights weights_of(const struct chunk_task *t)
{
    double sum = 0, most = ratio_of(t, bottleneck(t));

    for (uint32_t s = 0; s < t->n_stages; s++)
        sum += ratio_of(t, s);
    return (struct weights){ most, sum - most };
}

static double pure_work(const struct chunk_task *t)
{
    double n = (double)t->tokens, h = (double)t->history;

    return t->time.a * (n * n - h * h) / 2 + t->time.b * (n - h);
}

/* What a chunk costs beside its work, on average over the prompt. */
static double mean_fixed(const struct chunk_task *t)
{
    return t->time.c + t->time.g * ((double)t->history + 2 * (double)t->tokens) / 3;
}

static uint64_t round_up(uint64_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* A kernel that computes more than the causal half of a chunk's square makes long chunks dear: from
 * here on two chunks cost less than one. */
static double chunk_cap(const struct search *s, double history)
{
    const struct stage_time *f = &s->t->time;

    if (!(s->cap > 0))
        return INFINITY;
    return s->cap * sqrt((f->c + f->g * history) / (f->a * (f->kappa - 0.5)));
}

/* The chunk at `history` that takes ms, within the limits; what is left if it is nearly all. */
static uint32_t chunk_at(const struct search *s, uint64_t history, double ms)
{
    const struct chunk_task *t = s->t;
    uint64_t left = t->tokens - history, n;
    double x = stage_time_chunk(&t->time, &t->link, (double)history, ms);

    x = fmin(x, chunk_cap(s, (double)history));
    if (t->max_chunk && x > t->max_chunk)
        x = t->max_chunk;
    if (x >= (double)left)
        return (uint32_t)left;
    n = (uint64_t)x / t->align * t->align;
    if (n < round_up(s->min_chunk, t->align))
        n = round_up(s->min_chunk, t->align);
    return (uint32_t)(n < left ? n : left);
}

/* Cuts the prompt into at most k chunks of at most ms each (chunk i: ms * weight[i], if there are
 * weights). False if they do not suffice. */
static bool cut(struct search *s, double ms, uint32_t k, const double *weight)
{
    struct chunk_plan *p = &s->now;
    double sum = 0;

    p->n = 0;
    p->longest_ms = 0;
    for (uint64_t h = s->t->history; h < s->t->tokens; h += p->chunk[p->n - 1]) {
        double took;

        if (p->n == k)
            return false;
        p->chunk[p->n] = chunk_at(s, h, weight ? ms * weight[p->n] : ms);
        took = stage_time_of(&s->t->time, p->chunk[p->n], (double)h);
        sum += took;
        took += s->t->link.ms + s->t->link.ms_per_token * p->chunk[p->n];
        p->longest_ms = fmax(p->longest_ms, took);
        p->n++;
    }
    p->makespan_ms = s->weights.sum * sum +
                     s->weights.longest * fmax(p->longest_ms, s->t->committed_ms);
    return true;
}

static void keep_best(struct search *s)
{
    if (s->best->n && s->best->makespan_ms <= s->now.makespan_ms)
        return;
    s->best->n = s->now.n;
    s->best->makespan_ms = s->now.makespan_ms;
    s->best->longest_ms = s->now.longest_ms;
    memcpy(s->best->chunk, s->now.chunk, s->now.n * sizeof s->now.chunk[0]);
}

static bool try_cut(struct search *s, double ms, uint32_t k, double *best)
{
    if (!cut(s, ms, k, NULL))
        return false;
    keep_best(s);
    *best = fmin(*best, s->now.makespan_ms);
    return true;
}

/* The makespan of the best cut into at most k chunks; INFINITY if there is none. The shortest time
 * of a chunk that suffices is bracketed by steps from a guess, then bisected; every cut on the way
 * counts. */
static double value(struct search *s, uint32_t k)
{
    const struct chunk_task *t = s->t;
    double rest = (double)(t->tokens - t->history), best = INFINITY;
    double even = (pure_work(t) + t->link.ms_per_token * rest) / k + t->time.c + t->link.ms;
    double high = s->work_time > 0 ? s->work_time / k : even, low = high / BRACKET;

    for (; !try_cut(s, high, k, &best); high *= BRACKET)
        if (high > 1e6 * even)
            return INFINITY;
    low = fmax(low, high / BRACKET);
    while (low > even / 2 && try_cut(s, low, k, &best)) {
        high = low;
        low /= BRACKET;
    }
    for (int i = 0; i < BISECTIONS && high / low > 1.001; i++) {
        double middle = sqrt(low * high);

        if (try_cut(s, middle, k, &best))
            high = middle;
        else
            low = middle;
    }
    s->work_time = high * k;
    return best;
}

static uint32_t clamp(double k, uint32_t low, uint32_t high)
{
    if (!(k > low))
        return low;
    return k < high ? (uint32_t)k : high;
}

/* The least and the most chunks. */
static void counts(const struct search *s, uint32_t *low, uint32_t *high)
{
    const struct chunk_task *t = s->t;
    uint64_t rest = t->tokens - t->history;
    uint64_t most = (rest + s->min_chunk - 1) / s->min_chunk;

    *low = t->max_chunk ? (uint32_t)((rest + t->max_chunk - 1) / t->max_chunk) : 1;
    *high = most < CHUNK_PLAN_MAX ? (uint32_t)most : CHUNK_PLAN_MAX;
    if (*high < *low)
        *high = *low;
}

/* Where the number of chunks is best if sizes were real numbers: the fill of the pipeline, work /
 * K, against the fixed cost of K chunks. */
static double first_count(const struct chunk_task *t)
{
    struct weights w = weights_of(t);
    double rest = (double)(t->tokens - t->history);

    return sqrt(w.longest / w.sum * (pure_work(t) + t->link.ms_per_token * rest) /
                (mean_fixed(t) + t->time.w + 1e-9));
}

typedef double value_fn(struct search *s, uint32_t k);

/* Walks from the estimate by a ratio that shrinks, at least by one, as long as it gets better. */
static void search_counts(struct search *s, value_fn *of)
{
    uint32_t low, high, k, steps = 0;
    double step = 1.3, now;

    counts(s, &low, &high);
    k = clamp(round(first_count(s->t)), low, high);
    now = of(s, k);
    while (steps++ < 24) {
        uint32_t more = clamp(fmax(k + 1, round(k * step)), low, high);
        uint32_t less = clamp(fmin(k - 1.0, round(k / step)), low, high);
        double v;

        if (more != k && (v = of(s, more)) < now) {
            k = more;
            now = v;
        } else if (less != k && (v = of(s, less)) < now) {
            k = less;
            now = v;
        } else if (step < 1.03 || (k * step < k + 1.5 && k / step > k - 1.5)) {
            return;
        } else {
            step = sqrt(step);
        }
    }
}

static void search_flat(struct search *s)
{
    const struct stage_time *f = &s->t->time;

    search_counts(s, value);
    if (f->kappa > 0.5 && f->a > 0)
        for (s->cap = 1; s->cap <= 2; s->cap++)
            search_counts(s, value);
    s->cap = 0;
    if (f->w > 0 && f->b > 0 && f->w / f->b > s->min_chunk) {
        uint32_t own = s->min_chunk;

        s->min_chunk = clamp(ceil(f->w / f->b), own,
                             s->t->max_chunk ? s->t->max_chunk : UINT32_MAX);
        search_counts(s, value);
        s->min_chunk = own;
    }
}

/* Unequal stages. */
struct ramp {
    double up, down; /* ratio of a chunk's time to the next one's, before and after the peak */
    double peak;     /* where it is, as a share of the chunks */
};

static void ramp_weights(const struct ramp *r, uint32_t k, double *weight)
{
    double peak = r->peak * (k - 1);

    for (uint32_t i = 0; i < k; i++)
        weight[i] = i < peak ? pow(r->up, peak - i) : pow(r->down, i - peak);
}

/* The exact makespan of the plan at hand. */
static double exact(const struct chunk_task *t, const struct chunk_plan *p)
{
    struct stage_time stages[FLOW_MAX_STAGES];
    struct flow w = { .stages = stages, .n_stages = t->n_stages, .link = t->link };

    for (uint32_t s = 0; s < t->n_stages; s++) {
        double r = ratio_of(t, s);

        stages[s] = (struct stage_time){ .a = r * t->time.a,
                                         .b = r * t->time.b,
                                         .g = r * t->time.g,
                                         .c = r * t->time.c,
                                         .kappa = t->time.kappa,
                                         .w = r * t->time.w };
    }
    return flow_makespan(&w, p->chunk, p->n, t->history, NULL, NULL);
}

/* The makespan with k chunks whose times follow the ramp. */
static double ramp_value(struct search *s, const struct ramp *r, uint32_t k)
{
    double weight[CHUNK_PLAN_MAX], sum = 0, low, high;

    ramp_weights(r, k, weight);
    for (uint32_t i = 0; i < k; i++)
        sum += weight[i];
    low = pure_work(s->t) / sum / 2;
    for (high = 2 * low; !cut(s, high, k, weight); high *= 1.3)
        if (high > 1e6 * low)
            return INFINITY;
    for (int i = 0; i < BISECTIONS && high / low > 1.0005; i++) {
        double middle = sqrt(low * high);

        if (cut(s, middle, k, weight))
            high = middle;
        else
            low = middle;
    }
    if (!cut(s, high, k, weight))
        return INFINITY;
    s->now.makespan_ms = exact(s->t, &s->now);
    keep_best(s);
    return s->now.makespan_ms;
}

/* Before the bottleneck m stand stages of sum U, behind it of sum D: chunk times rise by U / (U + r_m
 * - r_first) before the peak and fall by D / (D + r_m - r_last) after it. */
static struct ramp ramp_of(const struct chunk_task *t)
{
    uint32_t m = bottleneck(t);
    double up = 0, down = 0, most = ratio_of(t, m);

    for (uint32_t s = 0; s < m; s++)
        up += ratio_of(t, s);
    for (uint32_t s = m + 1; s < t->n_stages; s++)
        down += ratio_of(t, s);
    return (struct ramp){ .up = m ? up / (up + most - ratio_of(t, 0)) : 1,
                          .down = m + 1 < t->n_stages
                                      ? down / (down + most - ratio_of(t, t->n_stages - 1))
                                      : 1,
                          .peak = m == 0 ? 0 : 1 };
}

static void search_ramp(struct search *s)
{
    const struct chunk_task *t = s->t;
    struct ramp r = ramp_of(t), best_ramp;
    uint32_t m = bottleneck(t), low, high, k = s->best->n, best_k = k;
    double best = INFINITY, step = 1.3;

    counts(s, &low, &high);
    if (m != 0 && m + 1 != t->n_stages) {
        best_ramp = r;
        for (r.peak = 0.1; r.peak < 0.95; r.peak += 0.1) {
            double v = ramp_value(s, &r, k);

            if (v < best) {
                best = v;
                best_ramp = r;
            }
        }
        r = best_ramp;
    } else {
        best = ramp_value(s, &r, k);
    }
    for (int i = 0; i < 12 && step > 1.01; i++) {
        uint32_t try[2] = { clamp(fmax(k + 1, round(k * step)), low, high),
                            clamp(fmin(k - 1.0, round(k / step)), low, high) };

        best_k = k;
        for (int j = 0; j < 2; j++) {
            double v = try[j] == k ? INFINITY : ramp_value(s, &r, try[j]);

            if (v < best) {
                best = v;
                best_k = try[j];
            }
        }
        if (best_k == k)
            step = sqrt(step);
        k = best_k;
    }
}

static bool unequal(const struct chunk_task *t)
{
    for (uint32_t s = 1; s < t->n_stages; s++)
        if (ratio_of(t, s) != ratio_of(t, 0))
            return true;
    return false;
}

void chunk_plan(struct chunk_plan *out, const struct chunk_task *t)
{
    struct search s = { .t = t, .weights = weights_of(t), .best = out };
    uint64_t rest = t->tokens > t->history ? t->tokens - t->history : 0;
    uint64_t least = (rest + CHUNK_PLAN_MAX - 1) / CHUNK_PLAN_MAX;

    assert(t->n_stages >= 1 && t->n_stages <= FLOW_MAX_STAGES && t->align >= 1);
    out->n = 0;
    out->makespan_ms = out->longest_ms = 0;
    if (rest == 0)
        return;
    s.min_chunk = t->min_chunk > least ? t->min_chunk : (uint32_t)least;
    if (s.min_chunk < t->align)
        s.min_chunk = t->align;
    if (t->max_chunk && s.min_chunk > t->max_chunk)
        s.min_chunk = t->max_chunk;
    search_flat(&s);
    if (!unequal(t))
        return;
    out->makespan_ms = exact(t, out);
    search_ramp(&s);
}

void chunk_plan_static(struct chunk_plan *out, const struct chunk_task *t, uint32_t size)
{
    uint64_t h = t->history;

    out->longest_ms = 0;
    for (out->n = 0; h < t->tokens && out->n < CHUNK_PLAN_MAX; out->n++) {
        uint64_t left = t->tokens - h;

        if (out->n + 1 == CHUNK_PLAN_MAX)
            size = (uint32_t)left;
        out->chunk[out->n] = left < size ? (uint32_t)left : size;
        out->longest_ms = fmax(out->longest_ms,
                               stage_time_of(&t->time, out->chunk[out->n], (double)h));
        h += out->chunk[out->n];
    }
    out->makespan_ms = exact(t, out);
}

double chunk_bound(const struct chunk_task *t)
{
    double once = t->time.c + t->time.g * (double)t->history;

    return ratio_of(t, bottleneck(t)) * (fmax(pure_work(t), t->time.w) + once) +
           (t->n_stages - 1) * t->link.ms;
}
