#include "sched/chunk.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define BISECTIONS 14
#define BRACKET    1.04
/* In longer plans the time of a chunk is found by steps in proportion instead of bisection, and their
 * number is searched more coarsely, because the makespan is flat around the best one. */
#define LONG_PLAN      12
#define LONG_STEPS     8
#define VERY_LONG_PLAN 96

/* How times weigh in the makespan of proportional stages: sum f by `sum`, the longest by `longest`. */
struct weights {
    double sum, longest;
};

/* One kind of plan that is searched for. */
struct search {
    const struct chunk_task *t;
    struct weights weights;
    struct chunk_rule rule; /* of the cut at hand */
    double work_time;       /* of the last count: chunks times the time of one; 0: none yet */
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

double chunk_work(const struct stage_time *time, uint64_t history, uint64_t tokens)
{
    double n = (double)tokens, h = (double)history;

    return time->a * (n * n - h * h) / 2 + time->b * (n - h);
}

static double pure_work(const struct chunk_task *t)
{
    return chunk_work(&t->time, t->history, t->tokens);
}

/* What a chunk costs beside its work, on average over the prompt. */
static double mean_fixed(const struct chunk_task *t)
{
    return t->time.c + t->time.g * ((double)t->history + 2 * (double)t->tokens) / 3;
}

/* About what each of k chunks takes; never nothing, so that searches from it end. */
static double even_time(const struct chunk_task *t, double k)
{
    double rest = (double)(t->tokens - t->history);
    double fixed = t->time.c + t->time.w + t->time.g * (double)t->history + t->link.ms;

    return (pure_work(t) + t->link.ms_per_token * rest) / k + fixed + 1e-9;
}

static uint64_t round_up(uint64_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

/* A kernel that computes more than the causal half of a chunk's square makes long chunks dear: from
 * here on two chunks cost less than one. */
static double chunk_cap(const struct chunk_rule *r, double history)
{
    const struct stage_time *f = &r->time;

    if (!(r->cap > 0))
        return INFINITY;
    return r->cap * sqrt((f->c + f->g * history) / (f->a * (f->kappa - 0.5)));
}

/* The chunk at `history` that takes ms, within the limits; what is left if it is nearly all. */
static uint32_t chunk_at(const struct chunk_rule *r, uint64_t history, double ms)
{
    uint64_t left = r->tokens - history, n, least;
    double x = stage_time_chunk(&r->time, &r->link, (double)history, ms);

    x = fmin(x, chunk_cap(r, (double)history));
    if (r->max_chunk && x > r->max_chunk)
        x = r->max_chunk;
    if (x >= (double)left)
        return (uint32_t)left;
    n = (uint32_t)x / r->align * r->align;
    least = round_up(r->min_chunk, r->align);
    if (n < least)
        n = least;
    return (uint32_t)(n < left ? n : left);
}

/* Chunk times rise up to the peak and fall behind it. */
static double weight_of(const struct chunk_rule *r, uint32_t index)
{
    if (index < r->peak)
        return r->up < 1 || r->up > 1 ? pow(r->up, r->peak - index) : 1;
    return r->down < 1 || r->down > 1 ? pow(r->down, index - r->peak) : 1;
}

uint32_t chunk_rule_next(const struct chunk_rule *r, uint32_t index, uint64_t history)
{
    uint64_t left = r->tokens - history;

    if (r->fixed)
        return left < r->fixed ? (uint32_t)left : r->fixed;
    return chunk_at(r, history, r->ms * weight_of(r, index));
}

struct chunk_rule chunk_rule_fixed(uint32_t size, uint64_t tokens, uint64_t rest)
{
    return (struct chunk_rule){ .n = (uint32_t)((rest + size - 1) / size),
                                .fixed = size,
                                .tokens = tokens };
}

/* Cuts the prompt into at most k chunks of at most rule.ms each (chunk i: times weight[i], if there are
 * weights). False if they do not suffice; *used, if wanted, is how many would, about. */
static bool cut(struct search *s, uint32_t k, const double *weight, double *used)
{
    struct chunk_plan *p = &s->now;
    const struct chunk_rule *r = &s->rule;
    double sum = 0;

    p->n = 0;
    p->longest_ms = 0;
    for (uint64_t h = s->t->history; h < s->t->tokens; h += p->chunk[p->n - 1]) {
        double took;

        if (p->n == k) {
            if (used)
                *used = k + (double)(s->t->tokens - h) / chunk_at(r, h, r->ms);
            return false;
        }
        p->chunk[p->n] = chunk_at(r, h, weight ? r->ms * weight[p->n] : r->ms);
        took = stage_time_of(&s->t->time, p->chunk[p->n], (double)h);
        sum += took;
        took += s->t->link.ms + s->t->link.ms_per_token * p->chunk[p->n];
        p->longest_ms = fmax(p->longest_ms, took);
        if (used && h + p->chunk[p->n] >= s->t->tokens)
            *used = p->n + fmin(1, took / r->ms);
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
    s->best->rule = s->rule;
    s->best->rule.n = s->now.n;
    memcpy(s->best->chunk, s->now.chunk, s->now.n * sizeof s->now.chunk[0]);
}

/* A cut at ms; the makespan of the best is kept in *best. */
static bool try_cut(struct search *s, double ms, uint32_t k, double *used, double *best)
{
    s->rule.ms = ms;
    if (!cut(s, k, NULL, used))
        return false;
    keep_best(s);
    *best = fmin(*best, s->now.makespan_ms);
    return true;
}

/* The shortest time of a chunk that suffices, bracketed by steps from a guess, then bisected; every cut
 * on the way counts. */
static double bisect(struct search *s, uint32_t k, double guess, double *best)
{
    double even = even_time(s->t, k), high = guess > 0 ? guess : even, low = high / BRACKET;

    for (; !try_cut(s, high, k, NULL, best); high *= BRACKET)
        if (!(high < 1e6 * even))
            return high;
    low = fmax(low, high / BRACKET);
    while (low > even / 2 && try_cut(s, low, k, NULL, best)) {
        high = low;
        low /= BRACKET;
    }
    for (int i = 0; i < BISECTIONS && high / low > 1.001; i++) {
        double middle = sqrt(low * high);

        if (try_cut(s, middle, k, NULL, best))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* The same for many chunks: how many a time needs says how far it is off. */
static double approach(struct search *s, uint32_t k, double guess, double *best)
{
    double ms = guess, low = 0, high = INFINITY, used = k;

    for (int i = 0; i < LONG_STEPS; i++) {
        bool enough = try_cut(s, ms, k, &used, best);

        if (enough)
            high = fmin(high, ms);
        else
            low = fmax(low, ms);
        if (enough && (used > 0.999 * k || high < 1.001 * low))
            break;
        ms *= used / (0.9995 * k);
        if (ms <= low || ms >= high)
            ms = isfinite(high) ? (low > 0 ? sqrt(low * high) : high / BRACKET) : low * BRACKET;
    }
    return isfinite(high) ? high : bisect(s, k, low, best);
}

/* The makespan of the best cut into at most k chunks; INFINITY if there is none. */
static double value(struct search *s, uint32_t k)
{
    double guess = s->work_time > 0 ? s->work_time / k : even_time(s->t, k), best = INFINITY;

    s->work_time = k * (k > LONG_PLAN ? approach(s, k, guess, &best) : bisect(s, k, guess, &best));
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
    uint64_t most = (rest + s->rule.min_chunk - 1) / s->rule.min_chunk;

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

/* The first ratio of counts that are compared, and where it ends. */
static void steps_of(uint32_t k, double *first, double *last)
{
    *first = k > VERY_LONG_PLAN ? 1.1 : k > LONG_PLAN ? 1.14 : 1.3;
    *last = k > VERY_LONG_PLAN ? 1.06 : 1.03;
}

/* Walks from the estimate by a ratio that shrinks, at least by one, as long as it gets better. */
static void search_counts(struct search *s, value_fn *of)
{
    uint32_t low, high, k, steps = 0;
    double step, last, now;

    counts(s, &low, &high);
    k = clamp(round(first_count(s->t)), low, high);
    steps_of(k, &step, &last);
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
        } else if (step < last || (k * step < k + 1.5 && k / step > k - 1.5)) {
            return;
        } else {
            step = sqrt(step);
        }
    }
}

static void search_flat(struct search *s)
{
    const struct stage_time *f = &s->t->time;
    uint32_t own = s->rule.min_chunk;

    search_counts(s, value);
    if (f->kappa > 0.5 && f->a > 0)
        for (s->rule.cap = 1; s->rule.cap <= 2; s->rule.cap++)
            search_counts(s, value);
    s->rule.cap = 0;
    if (!(f->w > 0 && f->b > 0 && f->w / f->b > own))
        return;
    s->rule.min_chunk = clamp(ceil(f->w / f->b), own,
                              s->t->max_chunk ? s->t->max_chunk : UINT32_MAX);
    search_counts(s, value);
    s->rule.min_chunk = own;
}

/* Unequal stages. */
struct ramp {
    double up, down; /* ratio of a chunk's time to the next one's, before and after the peak */
    double peak;     /* where it is, as a share of the chunks */
};

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
    double weight[CHUNK_PLAN_MAX], sum = 0, even, low, high;

    s->rule.up = r->up;
    s->rule.down = r->down;
    s->rule.peak = r->peak * (k - 1);
    for (uint32_t i = 0; i < k; i++)
        sum += weight[i] = weight_of(&s->rule, i);
    even = even_time(s->t, sum);
    high = s->work_time > 0 ? s->work_time / sum : even;
    for (low = high / BRACKET; s->rule.ms = high, !cut(s, k, weight, NULL); high *= BRACKET) {
        if (!(high < 1e6 * even))
            return INFINITY;
        low = high;
    }
    for (; s->rule.ms = low, low > even / 2 && cut(s, k, weight, NULL); low /= BRACKET)
        high = low;
    for (int i = 0; i < BISECTIONS && high / low > (k > LONG_PLAN ? 1.002 : 1.001); i++) {
        s->rule.ms = sqrt(low * high);
        if (cut(s, k, weight, NULL))
            high = s->rule.ms;
        else
            low = s->rule.ms;
    }
    s->rule.ms = high;
    s->work_time = high * sum;
    if (!cut(s, k, weight, NULL))
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
    double best = INFINITY, step, last;

    s->work_time = 0;
    steps_of(k, &step, &last);
    last = fmax(last, k > LONG_PLAN ? 1.06 : 1); /* the flat plan's number is near already */
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
    for (int i = 0; i < 12 && step > last; i++) {
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
    uint32_t min = t->min_chunk > least ? t->min_chunk : (uint32_t)least;

    assert(t->n_stages >= 1 && t->n_stages <= FLOW_MAX_STAGES && t->align >= 1);
    out->n = 0;
    out->makespan_ms = out->longest_ms = 0;
    out->rule = (struct chunk_rule){ 0 };
    if (rest == 0)
        return;
    if (t->max_chunk && least > t->max_chunk) {
        out->rule = chunk_rule_fixed(t->max_chunk, t->tokens, rest);
        return;
    }
    if (min < t->align)
        min = t->align;
    if (t->max_chunk && min > t->max_chunk)
        min = t->max_chunk;
    s.rule = (struct chunk_rule){ .time = t->time,
                                  .link = t->link,
                                  .tokens = t->tokens,
                                  .align = t->align,
                                  .min_chunk = min,
                                  .max_chunk = t->max_chunk,
                                  .up = 1,
                                  .down = 1 };
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
    out->rule = chunk_rule_fixed(size, t->tokens, t->tokens - t->history);
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

/* By the sum and the longest. */
static double flat_cost(const struct chunk_task *t, const struct stage_time *time,
                        const struct chunk_rule *rule)
{
    struct weights w = weights_of(t);
    double sum = 0, longest = t->committed_ms;
    uint64_t h = t->history;

    for (uint32_t i = 0; h < t->tokens; i++) {
        uint32_t chunk = chunk_rule_next(rule, i, h);
        double took = stage_time_of(time, chunk, (double)h);

        sum += took;
        longest = fmax(longest, took + t->link.ms + t->link.ms_per_token * chunk);
        h += chunk;
    }
    return w.sum * sum + w.longest * longest;
}

double chunk_cost(const struct chunk_task *t, const struct stage_time *time,
                  const struct chunk_rule *rule)
{
    double free_at[FLOW_MAX_STAGES] = { 0 };
    uint64_t h = t->history;

    if (!unequal(t))
        return flat_cost(t, time, rule);
    for (uint32_t i = 0; h < t->tokens; i++) {
        uint32_t chunk = chunk_rule_next(rule, i, h);
        double took = stage_time_of(time, chunk, (double)h), at = 0;

        for (uint32_t s = 0; s < t->n_stages; s++) {
            free_at[s] = fmax(at, free_at[s]) + ratio_of(t, s) * took;
            at = free_at[s] + t->link.ms + t->link.ms_per_token * chunk;
        }
        h += chunk;
    }
    return free_at[t->n_stages - 1];
}

/* Sizes go down by a quarter and a third in turn: 1, 3/4, 1/2, 3/8, 1/4, ... of the largest. */
#define STATIC_MAX_CHUNKS 256

uint32_t chunk_best_static(const struct chunk_task *t)
{
    uint64_t rest = t->tokens - t->history;
    uint32_t largest = t->max_chunk && t->max_chunk < rest ? t->max_chunk : (uint32_t)rest;
    uint32_t least = t->min_chunk > t->align ? t->min_chunk : t->align, best_size = largest;
    double best = INFINITY;

    for (uint32_t i = 0; i < 64; i++) {
        uint64_t size = (uint64_t)largest * (i % 2 ? 3 : 4) / 4 >> i / 2;
        struct chunk_rule rule;
        double cost;

        size = i == 0 ? size : size / t->align * t->align;
        if (i > 0 && (size < least || rest / size > STATIC_MAX_CHUNKS))
            break;
        rule = chunk_rule_fixed((uint32_t)size, t->tokens, rest);
        cost = flat_cost(t, &t->time, &rule);
        if (cost < best) {
            best = cost;
            best_size = (uint32_t)size;
        }
    }
    return best_size;
}

double chunk_bound(const struct chunk_task *t)
{
    double once = t->time.c + t->time.g * (double)t->history;

    return ratio_of(t, bottleneck(t)) * (fmax(pure_work(t), t->time.w) + once) +
           (t->n_stages - 1) * t->link.ms;
}
