#include "sched/pace.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/status.h"

#define REFERENCE_MIN_CHUNK 4096 /* the reference policy's default */
#define OWN_MIN_CHUNK       512  /* below this the work of a chunk is no longer its tokens', */
#define FIXED_COSTS         10   /* unless it has so many times its fixed cost with fewer tokens, */
#define LEAST_MIN_CHUNK     128  /* but no fewer than these */
#define UNEQUAL             0.02 /* stages that differ by less, or by less than steps do, are equal */
#define MAX_ERROR           0.15
#define ERRORS_KNOWN        8 /* steps before the error of a model that was given counts */
#define LEAST_FIXED_COSTS                                                                          \
    8                    /* of a step that is shared: it is at least so many times its fixed cost */
#define FIXED_SHARE 0.04 /* and at most so long that this share of it is fixed */
#define OFF_BY      0.03

const char *sched_chunk_mode_name(enum sched_chunk_mode m)
{
    static const char *const names[] = { "off", "static", "fallback", "equal-time", "planned" };

    return names[m];
}

static void init_equal_time(struct pace *p)
{
    struct equal_time *m = &p->equal_time;
    uint32_t least = p->cfg.min_chunk ? p->cfg.min_chunk : REFERENCE_MIN_CHUNK;

    m->base = p->base;
    m->page = p->align;
    m->min_chunk = least < p->base ? least : p->base;
    m->smooth = p->cfg.smooth;
    m->max_fit = p->cfg.max_fit;
}

void pace_init(struct pace *p, const struct sched_config *c)
{
    memset(p, 0, sizeof *p);
    p->cfg = c->chunks;
    p->base = c->max_batched_tokens;
    p->align = c->block_tokens;
    p->max_model_len = c->max_model_len;
    p->stats.load = p->stats.fit_error = 1;
    p->stats.mode = p->cfg.policy == SCHED_CHUNK_STATIC ? SCHED_MODE_STATIC : SCHED_MODE_FALLBACK;
    init_equal_time(p);
}

/* ---- the model ---- */

static double reference_time(const struct pace *p, uint32_t s)
{
    struct latency_step step = { 0 };
    double c = fmax(p->base / 2.0, 1), far = fmax(p->max_model_len / 2.0 - c, 0), t;

    latency_step_add(&p->stage[s], &step, c, 0);
    t = latency_predict(&p->stage[s], &step);
    step = (struct latency_step){ 0 };
    latency_step_add(&p->stage[s], &step, c, far);
    return t + latency_predict(&p->stage[s], &step);
}

/* The slowest stage, and the others in proportion to it. */
static void refresh(struct pace *p)
{
    double most = 0;
    uint32_t slowest = 0;

    if (!p->stale)
        return;
    p->stale = false;
    for (uint32_t s = 0; s < p->cfg.n_stages; s++) {
        p->ratio[s] = reference_time(p, s);
        if (p->ratio[s] > most) {
            most = p->ratio[s];
            slowest = s;
        }
    }
    p->equal = true;
    for (uint32_t s = 0; s < p->cfg.n_stages; s++) {
        p->ratio[s] /= most;
        p->equal = p->equal && p->ratio[s] > 1 - fmax(UNEQUAL, p->stage[s].sigma);
    }
    p->slowest = latency_coefficients(&p->stage[slowest]);
    p->stats.fit = p->slowest;
    p->stats.load = latency_gain(&p->stage[slowest]);
    p->stats.fit_error = 0;
    for (uint32_t s = 0; s < p->cfg.n_stages; s++)
        p->stats.fit_error = fmax(p->stats.fit_error, latency_error(&p->stage[s]));
}

static bool usable_value(double v)
{
    return v >= 0 && v <= STAGE_TIME_MOST;
}

static int check_stage(const struct stage_time *f, uint32_t s, struct err *e)
{
    if (!usable_value(f->a) || !usable_value(f->b) || !usable_value(f->g) || !usable_value(f->c) ||
        !usable_value(f->w) || !(f->kappa > 0 && f->kappa <= 1))
        return err_set(
            e, ERR_INVAL,
            "stage %u: a %g, b %g, g %g, c %g, w %g must be within 0 to %g, kappa %g within 0 to 1",
            s, f->a, f->b, f->g, f->c, f->w, STAGE_TIME_MOST, f->kappa);
    if (!(stage_time_of(f, 1, 0) > 0))
        return err_set(e, ERR_INVAL, "stage %u: a chunk of one token would take no time", s);
    return 0;
}

/* What the reference would have measured at its start: whole prompts of 64 lengths. */
static void fit_equal_time(struct pace *p)
{
    uint32_t length[64], n = equal_time_lengths(p->base, length);
    double x[64], ms[64];

    for (uint32_t i = 0; i < n; i++) {
        x[i] = length[i];
        ms[i] = stage_time_of(&p->slowest, length[i], 0);
    }
    if (equal_time_fit(&p->equal_time, x, ms, n))
        p->stats.mode = SCHED_MODE_EQUAL_TIME;
}

int pace_set_latency(struct pace *p, const struct stage_time *stages, uint32_t n,
                     const struct stage_link *link, struct err *e)
{
    if (n != p->cfg.n_stages)
        return err_set(e, ERR_INVAL, "a model of %u stages for a pipeline of %u", n,
                       p->cfg.n_stages);
    if (link && (!usable_value(link->ms) || !usable_value(link->ms_per_token)))
        return err_set(e, ERR_INVAL, "a link of %g ms and %g ms a token", link->ms,
                       link->ms_per_token);
    for (uint32_t s = 0; s < n; s++) {
        int st = check_stage(&stages[s], s, e);

        if (st < 0)
            return st;
    }
    for (uint32_t s = 0; s < n; s++) {
        latency_start(&p->stage[s], &stages[s]);
        latency_under_load(&p->stage[s]);
    }
    p->link = link ? *link : (struct stage_link){ 0 };
    p->given = p->known = p->stale = true;
    refresh(p);
    if (p->cfg.policy == SCHED_CHUNK_EQUAL_TIME)
        fit_equal_time(p);
    else if (p->cfg.policy == SCHED_CHUNK_OPTIMAL)
        p->stats.mode = SCHED_MODE_PLANNED;
    return 0;
}

/* ---- measured steps ---- */

static struct pace_step *step_of(struct pace *p, uint64_t seq)
{
    return &p->step[seq % PACE_STEPS];
}

void pace_step_begin(struct pace *p, uint64_t seq)
{
    *step_of(p, seq) = (struct pace_step){ .seq = seq };
}

void pace_step_add(struct pace *p, uint64_t seq, uint32_t chunk, uint64_t start, bool prefill)
{
    struct pace_step *s = step_of(p, seq);
    double c = chunk, h = (double)start;

    s->tokens += c;
    s->squares += c * c;
    s->area += c * h;
    s->history += h;
    if (!prefill)
        return;
    s->prefill_tokens += chunk;
    if (s->n_chunks < PACE_CHUNKS) {
        s->chunk[s->n_chunks] = chunk;
        s->start[s->n_chunks] = start;
    }
    s->n_chunks++;
}

static struct latency_step as_seen(const struct pace_step *s, const struct latency *l)
{
    return (struct latency_step){ .area = s->area + l->kappa * s->squares,
                                  .tokens = s->tokens,
                                  .history = s->history };
}

void pace_step_end(struct pace *p, uint64_t seq)
{
    struct pace_step *s = step_of(p, seq);

    if (!p->known || s->prefill_tokens == 0)
        return;
    for (uint32_t i = 0; i < p->cfg.n_stages; i++) {
        struct latency_step x = as_seen(s, &p->stage[i]);

        s->predicted_ms = fmax(s->predicted_ms, latency_predict(&p->stage[i], &x));
    }
}

double pace_predicted(struct pace *p, uint64_t seq)
{
    const struct pace_step *s = step_of(p, seq);

    return s->seq == seq ? s->predicted_ms : 0;
}

static void note_measured(struct pace *p, const struct pace_step *s, double ms)
{
    p->stats.n_measured++;
    p->stats.measured_ms = ms;
    p->stats.predicted_ms = s->predicted_ms;
    if (!(s->predicted_ms > 0))
        return;
    p->stats.predicted_sum_ms += s->predicted_ms;
    p->stats.measured_sum_ms += ms;
    p->off[p->n_off++ % 4] = fabs(ms / s->predicted_ms - 1);
}

/* Steps of one chunk each make the first model where no profile did. */
static void collect(struct pace *p, const struct pace_step *s, const double *seconds)
{
    uint32_t i = p->n_samples;

    if (s->n_chunks != 1 || s->tokens > s->prefill_tokens)
        return;
    for (uint32_t k = 0; k < p->cfg.n_stages; k++)
        p->sample[k][i] = (struct latency_sample){ s->chunk[0], s->start[0], seconds[k] * 1e3 };
    if (++p->n_samples < PACE_SAMPLES)
        return;
    for (uint32_t k = 0; k < p->cfg.n_stages; k++) {
        struct stage_time f;

        latency_fit(&f, 0.5, p->sample[k], PACE_SAMPLES);
        latency_start(&p->stage[k], &f);
    }
    p->known = p->stale = true;
}

static void learn(struct pace *p, const struct pace_step *s, const double *seconds, double ms)
{
    uint32_t n = s->n_chunks < PACE_CHUNKS ? s->n_chunks : PACE_CHUNKS;

    if (p->cfg.policy == SCHED_CHUNK_EQUAL_TIME) {
        equal_time_measured(&p->equal_time, s->chunk, s->start, n, ms);
        p->stats.mode = p->equal_time.model ? SCHED_MODE_EQUAL_TIME : SCHED_MODE_FALLBACK;
    }
    if (!p->known) {
        collect(p, s, seconds);
        return;
    }
    for (uint32_t i = 0; i < p->cfg.n_stages; i++) {
        struct latency_step x = as_seen(s, &p->stage[i]);

        latency_measured(&p->stage[i], &x, seconds[i] * 1e3);
    }
    p->stale = true;
}

void pace_note_times(struct pace *p, uint64_t seq, const double *seconds, uint32_t n)
{
    struct pace_step *s = step_of(p, seq);
    double most = 0;

    if (s->seq != seq || seq == 0 || n != p->cfg.n_stages || s->prefill_tokens == 0)
        return;
    for (uint32_t i = 0; i < n; i++) {
        if (!isfinite(seconds[i]) || seconds[i] <= 0)
            return;
        most = fmax(most, seconds[i]);
    }
    s->seq = 0; /* once; pace_predicted is asked about steps in flight only */
    note_measured(p, s, most * 1e3);
    /* Where most tokens are decoded, other kernels do the work. */
    if (p->cfg.timing && p->cfg.policy != SCHED_CHUNK_STATIC && s->prefill_tokens * 2 >= s->tokens)
        learn(p, s, seconds, most * 1e3);
}

/* ---- may it be believed? ---- */

static bool trusted(const struct pace *p, const struct latency *l, uint64_t history,
                    uint64_t tokens)
{
    double rest = (double)(tokens - history), c = fmin(rest, p->base) / 2;
    struct latency_step at[3] = { { 0 } };

    if (p->given && latency_counted(l) < ERRORS_KNOWN)
        return true;
    if (latency_error(l) > MAX_ERROR)
        return false;
    if (p->given)
        return true;
    for (int i = 0; i < 3; i++)
        latency_step_add(l, &at[i], c, (double)history + (rest - c) * i / 2);
    return latency_converged(l, at, 3);
}

bool pace_usable(struct pace *p, uint64_t history, uint64_t tokens)
{
    bool ok = p->known;

    for (uint32_t i = 0; ok && i < p->cfg.n_stages; i++)
        ok = trusted(p, &p->stage[i], history, tokens);
    refresh(p);
    ok = ok && isfinite(stage_time_of(&p->slowest, p->base, p->max_model_len)) &&
         stage_time_of(&p->slowest, 1, 0) > 0;
    p->stats.mode = ok ? SCHED_MODE_PLANNED : SCHED_MODE_FALLBACK;
    p->warn_due = p->warn_due || (!ok && !p->warned);
    p->warned = p->warned || !ok;
    return ok;
}

void pace_warning(const struct pace *p, struct err *out)
{
    if (!p->known)
        err_set(out, 0,
                "chunks cannot be planned: there is no model of the stages' times yet, so prompts "
                "are cut into chunks of up to %u tokens%s",
                p->base, p->cfg.timing ? " until enough steps were measured" : "");
    else
        err_set(
            out, 0,
            "chunks are not planned at present: predictions of step times were off by %.0f %% on "
            "average, so prompts are cut into chunks of one size until they fit again",
            100 * p->stats.fit_error);
}

/* ---- one prompt ---- */

static uint32_t own_min_chunk(const struct pace *p)
{
    const struct stage_time *f = &p->slowest;
    double least = stage_time_chunk(f, NULL, 0, FIXED_COSTS * f->c),
           most = fmax(p->base / 8, p->align);

    least = fmin(fmax(least, LEAST_MIN_CHUNK), OWN_MIN_CHUNK);
    if (f->w > 0 && f->b > 0)
        least = fmax(least, f->w / f->b);
    return (uint32_t)fmin(least, most);
}

static struct chunk_task task_of(const struct pace *p, uint64_t history, uint64_t tokens)
{
    return (struct chunk_task){ .time = p->slowest,
                                .link = p->link,
                                .n_stages = p->cfg.n_stages,
                                .ratio = p->equal ? NULL : p->ratio,
                                .tokens = tokens,
                                .history = history,
                                .align = p->align,
                                .min_chunk = p->cfg.min_chunk ? p->cfg.min_chunk : own_min_chunk(p),
                                .max_chunk = p->base };
}

uint32_t pace_fixed_size(struct pace *p, uint64_t history, uint64_t tokens)
{
    struct chunk_task t;

    refresh(p);
    if (!p->known || tokens <= history || p->cfg.policy != SCHED_CHUNK_OPTIMAL ||
        !isfinite(stage_time_of(&p->slowest, p->base, p->max_model_len)))
        return p->base;
    t = task_of(p, history, tokens);
    return chunk_best_static(&t);
}

static void show_plan(struct pace *p, const struct chunk_task *t, const struct chunk_rule *r)
{
    struct sched_chunk_stats *s = &p->stats;
    uint64_t h = t->history;

    s->plan_first = chunk_rule_next(r, 0, h);
    s->plan_chunks = 0;
    for (; h < t->tokens; s->plan_chunks++) {
        s->plan_last = chunk_rule_next(r, s->plan_chunks, h);
        h += s->plan_last;
    }
    s->plan_ms = p->stats.load * chunk_cost(t, &t->time, r);
    s->bound_ms = p->stats.load * chunk_bound(t);
    s->plans++;
    s->fixed += r->fixed > 0;
}

void pace_plan(struct pace *p, struct chunk_rule *out, uint64_t history, uint64_t tokens,
               double committed_ms)
{
    struct chunk_task t;
    struct chunk_rule fixed;
    bool want = committed_ms > 0 || guard_wants_plan(&p->guard, tokens - history);

    refresh(p);
    t = task_of(p, history, tokens);
    t.committed_ms = committed_ms;
    fixed = chunk_rule_fixed(chunk_best_static(&t), tokens, tokens - history);
    chunk_plan(&p->plan, &t);
    *out = want && p->plan.n > 0 && guard_prefers(&t, &p->plan.rule, &fixed) ? p->plan.rule : fixed;
    out->time = t.time;
    p->n_off = 0;
    show_plan(p, &t, out);
}

uint32_t pace_smooth(const struct pace *p, uint32_t chunk)
{
    double n;

    if (!(p->cfg.smooth < 1))
        return chunk;
    n = p->base + p->cfg.smooth * ((double)chunk - p->base);
    chunk = (uint32_t)n / p->align * p->align;
    return chunk ? chunk : p->align;
}

bool pace_is_off(const struct pace *p)
{
    return p->n_off >= 4 && (p->off[0] + p->off[1] + p->off[2] + p->off[3]) / 4 > OFF_BY;
}

/* ---- several prompts ---- */

double pace_chunk_work(struct pace *p, uint32_t chunk, uint64_t history)
{
    const struct stage_time *f = &p->slowest;

    return f->a * chunk * ((double)history + f->kappa * chunk) + f->b * chunk +
           f->g * (double)history;
}

double pace_work(struct pace *p, uint64_t history, uint64_t tokens)
{
    return chunk_work(&p->slowest, history, tokens) + p->slowest.g * (double)history;
}

double pace_history_work(struct pace *p, uint64_t history)
{
    return p->slowest.g * (double)history;
}

double pace_fixed(struct pace *p)
{
    return p->slowest.c;
}

double pace_target(struct pace *p, double work, uint32_t slots, uint64_t first, uint64_t tokens)
{
    const struct stage_time *f = &p->slowest;
    double low = LEAST_FIXED_COSTS * f->c + f->w;
    double high = (f->c + f->g * (double)(first + tokens) / 2) / FIXED_SHARE;
    double t = work / slots + f->c;

    t = fmax(low, fmin(t, fmax(high, low)));
    p->stats.target_ms = t;
    return t;
}

double pace_chunk(struct pace *p, uint64_t history, double ms)
{
    struct stage_time f = p->slowest;

    f.c = f.w = 0;
    return stage_time_chunk(&f, NULL, (double)history, ms);
}
