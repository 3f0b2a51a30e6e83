#include "sched/latency.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Scales that bring the columns near one: a per 1e6 token pairs, b per 100 tokens, g per 1000, c in
 * tens of milliseconds. */
static const double scale[4] = { 1e6, 1e2, 1e3, 0.1 };
static const double start[4] = { 1, 1, 0.1, 1 };
static const double lowest[4] = { 1e-4, 1e-4, 0, 0 };

#define START_VARIANCE 100
#define MAX_TRACE      400
#define PASSES         8
#define FORGET         0.998
#define HUBER          2.5 /* standard deviations from which a step counts less */
#define FIRST_DROPPED  8   /* steps that warm up */
#define GAIN_FROM      64 /* steps before the load gain is tracked, where all is still to be learned */
#define GAIN_QUIET     0.08 /* logs of gains below this are noise */
#define GAIN_CLIP      1.1
#define GAIN_SPEED     0.3
/* From chunks of one size alone, time that grows with history is taken for attention's. */
#define HISTORY_DOUBT 10

void latency_init(struct latency *l, double kappa)
{
    memset(l, 0, sizeof *l);
    l->kappa = kappa;
    l->sigma = 0.1;
    l->gain_from = GAIN_FROM;
    for (int i = 0; i < 4; i++) {
        l->unit[i] = scale[i];
        l->theta[i] = start[i];
        l->p[i][i] = START_VARIANCE;
    }
}

/* Coefficients of an earlier fit are good to about a tenth: that is what a variance of four, with the
 * relative error of one in twenty, comes to. One that was nothing may turn out to be a tenth of the
 * time of a common chunk. */
#define KNOWN_VARIANCE 4
#define NONE_VARIANCE  4e-2
#define KNOWN_SIGMA    0.05
#define COMMON_CHUNK   1024

/* Scales are such that coefficients are 1 each, so it does not matter how fast the machine is. */
void latency_start(struct latency *l, const struct stage_time *f)
{
    const double value[4] = { f->a, f->b, f->g, f->c }, n = COMMON_CHUNK;
    const double common[4] = { n * n * (1 + f->kappa), n, n, 1 };
    double ms = stage_time_of(f, n, n);

    latency_init(l, f->kappa);
    l->floor_tokens = f->w > 0 && f->b > 0 ? f->w / f->b : 0;
    l->sigma = KNOWN_SIGMA;
    l->grid = true;
    for (int i = 0; i < 4; i++) {
        bool none = !(value[i] * common[i] > 1e-6 * ms);

        l->unit[i] = none ? common[i] / ms : 1 / value[i];
        l->theta[i] = none ? lowest[i] : 1;
        l->p[i][i] = none ? NONE_VARIANCE : KNOWN_VARIANCE;
    }
}

void latency_under_load(struct latency *l)
{
    l->gain_from = FIRST_DROPPED - 5; /* what the median is of */
}

void latency_step_add(const struct latency *l, struct latency_step *s, double chunk, double history)
{
    s->area += chunk * (history + l->kappa * chunk);
    s->tokens += chunk;
    s->history += history;
}

static void columns(const struct latency *l, const struct latency_step *s, double x[4])
{
    x[0] = s->area / l->unit[0];
    x[1] = fmax(s->tokens, l->floor_tokens) / l->unit[1];
    x[2] = s->history / l->unit[2];
    x[3] = 1 / l->unit[3];
}

static double dot(const double a[4], const double b[4])
{
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2] + a[3] * b[3];
}

/* P z */
static void spread(const struct latency *l, const double z[4], double out[4])
{
    for (int i = 0; i < 4; i++)
        out[i] = dot(l->p[i], z);
}

/* P = (P - gain (P z)^T) / forget, kept symmetric and bounded. */
static void shrink(struct latency *l, const double gain[4], const double pz[4], double forget)
{
    double trace = 0;

    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            l->p[i][j] = (l->p[i][j] - gain[i] * pz[j]) / forget;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < i; j++)
            l->p[i][j] = l->p[j][i] = (l->p[i][j] + l->p[j][i]) / 2;
    for (int i = 0; i < 4; i++)
        trace += l->p[i][i];
    for (int i = 0; trace > MAX_TRACE && i < 4; i++)
        for (int j = 0; j < 4; j++)
            l->p[i][j] *= MAX_TRACE / trace;
}

/* Moves coefficients that fell below their bounds onto them, and the others along with what they are
 * correlated with; the worst one first. */
static void project(struct latency *l)
{
    for (int round = 0; round < 4; round++) {
        int worst = -1;
        double by;

        for (int i = 0; i < 4; i++)
            if (l->theta[i] < lowest[i] &&
                (worst < 0 || l->theta[i] - lowest[i] < l->theta[worst] - lowest[worst]))
                worst = i;
        if (worst < 0)
            return;
        by = (lowest[worst] - l->theta[worst]) / l->p[worst][worst];
        for (int i = 0; isfinite(by) && i < 4; i++)
            l->theta[i] += l->p[i][worst] * by;
        l->theta[worst] = lowest[worst];
    }
    for (int i = 0; i < 4; i++)
        l->theta[i] = fmax(l->theta[i], lowest[i]);
}

/* One update with the relative error e at columns x, whose prediction is m. */
static void update(struct latency *l, const double x[4], double m, double e, double forget,
                   double weight)
{
    double z[4], pz[4], gain[4], by;

    for (int i = 0; i < 4; i++)
        z[i] = x[i] / m;
    spread(l, z, pz);
    by = forget / weight + dot(z, pz);
    for (int i = 0; i < 4; i++) {
        gain[i] = pz[i] / by;
        l->theta[i] += gain[i] * e;
    }
    shrink(l, gain, pz, forget);
    project(l);
}

static bool usable(double ms)
{
    return isfinite(ms) && ms > 0;
}

static double median5(const double v[5])
{
    double s[5];

    memcpy(s, v, sizeof s);
    for (int i = 1; i < 5; i++)
        for (int j = i; j > 0 && s[j] < s[j - 1]; j--) {
            double t = s[j];

            s[j] = s[j - 1];
            s[j - 1] = t;
        }
    return s[2];
}

double latency_gain(const struct latency *l)
{
    return fabs(l->gain) > GAIN_QUIET ? exp(l->gain) : 1;
}

/* The last ratios of measured to predicted move the load gain; steps that warm up set it. */
static void track_gain(struct latency *l, double ratio)
{
    double middle, by;

    l->ratio[l->n_steps % 5] = log(ratio);
    middle = fmax(-GAIN_CLIP, fmin(GAIN_CLIP, median5(l->ratio)));
    by = l->n_steps <= FIRST_DROPPED ? 1 : GAIN_SPEED;
    l->gain += by * (middle - l->gain);
}

void latency_measured(struct latency *l, const struct latency_step *s, double ms)
{
    double x[4], m, e, limit, seen;

    if (!usable(ms))
        return;
    columns(l, s, x);
    m = dot(x, l->theta);
    if (++l->n_steps > l->gain_from)
        track_gain(l, ms / m);
    if (l->n_steps <= FIRST_DROPPED)
        return;
    e = ms / latency_gain(l) / m - 1;
    l->error[l->n_steps % LATENCY_ERRORS] = fmin(fabs(e), 0.5);
    limit = HUBER * l->sigma;
    update(l, x, m, e, FORGET, fabs(e) > limit ? limit / fabs(e) : 1);
    seen = fmin(fabs(e), limit);
    l->sigma = sqrt(0.98 * l->sigma * l->sigma + 0.02 * seen * seen);
    l->sigma = fmax(0.01, fmin(0.5, l->sigma));
}

double latency_predict(const struct latency *l, const struct latency_step *s)
{
    double x[4];

    columns(l, s, x);
    return latency_gain(l) * dot(x, l->theta);
}

struct stage_time latency_coefficients(const struct latency *l)
{
    double b = l->theta[1] / l->unit[1];

    return (struct stage_time){ .a = l->theta[0] / l->unit[0],
                                .b = b,
                                .g = l->theta[2] / l->unit[2],
                                .c = l->theta[3] / l->unit[3],
                                .kappa = l->kappa,
                                .w = b * l->floor_tokens };
}

uint64_t latency_counted(const struct latency *l)
{
    return l->n_steps > FIRST_DROPPED ? l->n_steps - FIRST_DROPPED : 0;
}

double latency_error(const struct latency *l)
{
    uint64_t n = latency_counted(l);
    double sum = 0;

    if (n == 0)
        return 1;
    for (uint32_t i = 0; i < LATENCY_ERRORS; i++)
        sum += l->error[i];
    return sum / (double)(n < LATENCY_ERRORS ? n : LATENCY_ERRORS);
}

/* Log of measured over fitted of a sample. */
static double log_ratio(const struct latency *l, const struct latency_sample *s)
{
    struct latency_step step = { 0 };
    double x[4];

    latency_step_add(l, &step, s->chunk, (double)s->history);
    columns(l, &step, x);
    return log(s->ms / dot(x, l->theta));
}

/* One pass of least squares over the samples that are not left out, from where theta is. Relative
 * errors above `limit` count as if they were it. */
static void pass(struct latency *l, const struct latency_sample *s, uint32_t n, const bool *out,
                 double limit)
{
    memset(l->p, 0, sizeof l->p);
    for (int i = 0; i < 4; i++)
        l->p[i][i] = START_VARIANCE;
    for (uint32_t i = 0; i < n; i++) {
        struct latency_step step = { 0 };
        double x[4], m, e;

        if (out[i])
            continue;
        latency_step_add(l, &step, s[i].chunk, (double)s[i].history);
        columns(l, &step, x);
        m = dot(x, l->theta);
        e = s[i].ms / m - 1;
        update(l, x, m, e, 1, fabs(e) > limit ? limit / fabs(e) : 1);
    }
}

/* Passes repeat, because bounds that were met on the way bend the result, and because coefficients may
 * lie far from the start. */
static void fit(struct latency *l, double floor_tokens, const struct latency_sample *s, uint32_t n,
                const bool *out, double limit)
{
    double kappa = l->kappa, unit[4];

    memcpy(unit, l->unit, sizeof unit);
    latency_init(l, kappa);
    memcpy(l->unit, unit, sizeof unit);
    l->floor_tokens = floor_tokens;
    for (int i = 0; i < PASSES; i++)
        pass(l, s, n, out, limit);
}

/* Mean of the squared relative errors, clipped. */
static double misfit(const struct latency *l, const struct latency_sample *s, uint32_t n,
                     const bool *out)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        double e = out[i] ? 0 : fmin(fabs(expm1(log_ratio(l, &s[i]))), 0.2);

        sum += e * e;
    }
    return sum / n;
}

static int order(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Leaves out what is three times off while most are not. */
static void leave_out(const struct latency *l, const struct latency_sample *s, uint32_t n,
                      bool *out)
{
    double r[LATENCY_MAX_SAMPLES], middle;
    uint32_t used = 0;

    for (uint32_t i = 0; i < n; i++)
        if (!out[i])
            r[used++] = log_ratio(l, &s[i]);
    if (used == 0)
        return;
    qsort(r, used, sizeof *r, order);
    middle = r[used / 2];
    for (uint32_t i = 0; i < n; i++)
        if (!out[i] && fabs(log_ratio(l, &s[i]) - middle) > log(3))
            out[i] = true;
}

/* The floor shows as chunks below some size that take as long as that size does. */
static void find_floor(struct latency *l, const struct latency_sample *s, uint32_t n,
                       const bool *out)
{
    double best = 0.9 * misfit(l, s, n, out), chosen = 0;

    for (double tokens = 256; tokens <= 8192; tokens *= sqrt(2)) {
        double e;

        fit(l, tokens, s, n, out, INFINITY);
        e = misfit(l, s, n, out);
        if (e < best) {
            best = e;
            chosen = tokens;
        }
    }
    fit(l, chosen, s, n, out, INFINITY);
}

void latency_profile(struct latency *l, const struct latency_sample *s, uint32_t n)
{
    bool out[LATENCY_MAX_SAMPLES] = { 0 }, grid = false;

    if (n > LATENCY_MAX_SAMPLES)
        n = LATENCY_MAX_SAMPLES;
    for (uint32_t i = 0; i < n; i++) {
        out[i] = !usable(s[i].ms) || s[i].chunk == 0;
        grid = grid || (!out[i] && s[i].history > 0);
    }
    fit(l, 0, s, n, out, 0.3);
    leave_out(l, s, n, out);
    fit(l, 0, s, n, out, INFINITY);
    find_floor(l, s, n, out);
    l->grid = grid;
}

/* Units with which each term, at the coefficients that a fit starts from, makes a like part of the time
 * on average: so it does not matter how fast the machine is, nor what costs most on it. */
static bool choose_units(struct latency *l, const struct latency_sample *s, uint32_t n)
{
    double sum[4] = { 0 };
    uint32_t used = 0;

    for (uint32_t i = 0; i < n; i++) {
        double c = s[i].chunk, h = (double)s[i].history;
        const double raw[4] = { c * (h + l->kappa * c), c, h, 1 };

        if (!usable(s[i].ms) || s[i].chunk == 0)
            continue;
        used++;
        for (int k = 0; k < 4; k++)
            sum[k] += raw[k] / s[i].ms;
    }
    for (int k = 0; k < 4; k++)
        if (sum[k] > 0 && isfinite(sum[k]))
            l->unit[k] = 4 * sum[k] / used;
    l->unit[2] *= HISTORY_DOUBT;
    return used > 0;
}

static double mean_error(const struct stage_time *f, const struct latency_sample *s, uint32_t n)
{
    double sum = 0;
    uint32_t used = 0;

    for (uint32_t i = 0; i < n; i++)
        if (usable(s[i].ms) && s[i].chunk > 0) {
            double t = stage_time_of(f, s[i].chunk, (double)s[i].history);

            sum += fmin(fabs(t / s[i].ms - 1), 0.5);
            used++;
        }
    return sum / used;
}

double latency_fit(struct stage_time *out, double kappa, const struct latency_sample *s, uint32_t n)
{
    struct latency l;

    n = n < LATENCY_MAX_SAMPLES ? n : LATENCY_MAX_SAMPLES;
    latency_init(&l, kappa);
    if (!choose_units(&l, s, n))
        return 1;
    latency_profile(&l, s, n);
    *out = latency_coefficients(&l);
    return mean_error(out, s, n);
}

bool latency_converged(const struct latency *l, const struct latency_step *points, uint32_t n)
{
    uint64_t least = l->grid ? 16 : 64;

    if (l->n_steps < least + FIRST_DROPPED || latency_error(l) > 0.08)
        return false;
    for (uint32_t i = 0; i < n; i++) {
        double x[4], pz[4], m;

        columns(l, &points[i], x);
        m = dot(x, l->theta);
        for (int j = 0; j < 4; j++)
            x[j] /= m;
        spread(l, x, pz);
        if (l->sigma * sqrt(fmax(dot(x, pz), 0)) > 0.03)
            return false;
    }
    return true;
}
