#include "sched/profile.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/status.h"
#include "sched/pace.h"

#define SIZES        6
#define HISTORIES    4
#define REPEATS      2
#define WARM_UPS     2
#define SMALLEST     128
#define POINT_SHARE  0.2  /* of the time for all that one point may take */
#define KNOWN_FROM   4    /* points that predict the others, */
#define DOUBT        1.5  /* if they are believed only so far */
#define EVEN         4096 /* history from which attention may cost as much as the linear part */
#define LEAST        6    /* points of a fit */
#define LEAST_PASSED 1e-3 /* ms: also where clocks of two hosts make less of it */
#define MOST_ERROR   0.15

/* ---- which points ---- */

static void add_point(struct profile *p, uint64_t chunk, uint64_t history)
{
    const struct profile_limits *l = &p->limits;
    uint32_t i = p->n_points;

    chunk = chunk / l->align * l->align;
    history = history / l->align * l->align;
    if (i == PROFILE_MAX_POINTS || chunk == 0 || history + chunk > l->max_tokens)
        return;
    p->point[p->n_points++] = (struct profile_point){ i, (uint32_t)chunk, history };
}

/* A grid of sizes and histories: from one of either alone, a and g cannot be told apart. */
static void add_grid(struct profile *p)
{
    static const uint32_t shift[SIZES] = { 6, 5, 4, 2, 1, 0 }; /* of the largest size */
    static const double share[HISTORIES] = { 0, 0.125, 0.5, 1 };
    const struct profile_limits *l = &p->limits;

    for (int s = 0; s < SIZES; s++) {
        uint64_t chunk = l->base >> shift[s];
        uint64_t room = l->max_tokens > chunk ? l->max_tokens - chunk : 0;

        for (int h = 0; chunk >= l->align && h < HISTORIES; h++)
            add_point(p, chunk, (uint64_t)(share[h] * (double)room));
    }
}

/* Small chunks without history: where the linear part gets no cheaper. */
static void add_sweep(struct profile *p)
{
    for (uint32_t chunk = SMALLEST; chunk < p->limits.base / 64; chunk *= 2)
        add_point(p, chunk, 0);
}

/* About what points cost beside each other, when nothing is known yet. */
static int by_cost(const void *a, const void *b)
{
    const struct profile_point *x = a, *y = b;
    uint64_t cx = x->chunk * (x->history + EVEN), cy = y->chunk * (y->history + EVEN);

    return (cx > cy) - (cx < cy);
}

/* All points once, the cheap ones first: they tell what the dear ones will take. */
static void add_round(struct profile *p)
{
    uint32_t first = p->n_points;

    add_sweep(p);
    add_grid(p);
    qsort(&p->point[first], p->n_points - first, sizeof p->point[0], by_cost);
    for (uint32_t i = first; i < p->n_points; i++)
        p->point[i].index = i;
}

void profile_begin(struct profile *p, const struct profile_limits *l, double now)
{
    memset(p, 0, sizeof *p);
    p->limits = *l;
    p->began = p->ended = now;
    for (int i = 0; i < WARM_UPS; i++)
        add_point(p, l->base < SMALLEST ? l->base : SMALLEST > l->align ? SMALLEST : l->align, 0);
    p->n_warm_up = p->n_points;
    for (int i = 0; i < REPEATS; i++)
        add_round(p);
}

static bool is_measured(const struct profile *p, uint32_t i)
{
    return p->ms[0][i] > 0;
}

static bool is_same(const struct profile *p, uint32_t i, uint32_t k)
{
    return p->point[i].chunk == p->point[k].chunk && p->point[i].history == p->point[k].history;
}

static bool was_earlier(const struct profile *p, uint32_t i)
{
    for (uint32_t k = p->n_warm_up; k < i; k++)
        if (is_measured(p, k) && is_same(p, i, k))
            return true;
    return false;
}

/* What else the machine does only makes a measurement longer: the shortest of equal ones counts. */
static double shortest(const struct profile *p, uint32_t stage, uint32_t i)
{
    double ms = p->ms[stage][i];

    for (uint32_t k = i + 1; k < p->n_points; k++)
        if (is_measured(p, k) && is_same(p, i, k))
            ms = fmin(ms, p->ms[stage][k]);
    return ms;
}

/* What was measured of a stage, or of all together (stage n_stages). */
static uint32_t samples_of(const struct profile *p, uint32_t stage, struct latency_sample *out)
{
    uint32_t n = 0;

    for (uint32_t i = p->n_warm_up; i < p->n_points; i++) {
        double ms = 0;

        if (!is_measured(p, i) || was_earlier(p, i))
            continue;
        for (uint32_t s = 0; s < p->limits.n_stages; s++)
            ms += s == stage || stage == p->limits.n_stages ? shortest(p, s, i) : 0;
        out[n++] = (struct latency_sample){ p->point[i].chunk, p->point[i].history, ms };
    }
    return n;
}

/* Would it take too long, by what is known so far? */
static bool too_long(const struct profile *p, const struct profile_point *q, double left)
{
    struct latency_sample s[PROFILE_MAX_POINTS];
    uint32_t n = samples_of(p, p->limits.n_stages, s);
    struct stage_time f;
    double seconds;

    if (n < KNOWN_FROM)
        return false;
    latency_fit(&f, 0.5, s, n);
    seconds = DOUBT * stage_time_of(&f, q->chunk, (double)q->history) / 1e3;
    return seconds > left || seconds > POINT_SHARE * p->limits.seconds;
}

int profile_next(struct profile *p, double now, struct profile_point *out)
{
    double left = p->began + p->limits.seconds - now;

    for (; left > 0 && p->next < p->n_points; p->next++)
        if (!too_long(p, &p->point[p->next], left)) {
            *out = p->point[p->next++];
            return 1;
        }
    return 0;
}

static bool all_positive(const double *v, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(v[i]) || v[i] <= 0)
            return false;
    return true;
}

void profile_measured(struct profile *p, uint32_t index, const double *seconds, double now)
{
    p->ended = now;
    if (index >= p->n_points || !all_positive(seconds, p->limits.n_stages))
        return;
    for (uint32_t s = 0; s < p->limits.n_stages; s++)
        p->ms[s][index] = seconds[s] * 1e3;
    p->n_measured++;
}

void profile_passed(struct profile *p, uint32_t index, uint32_t stage, double seconds)
{
    if (index < p->n_points && stage < p->limits.n_stages && isfinite(seconds))
        p->passed_ms[stage][index] = fmax(seconds * 1e3, LEAST_PASSED);
}

double profile_progress(const struct profile *p, double now)
{
    double by_time = (now - p->began) / p->limits.seconds;
    double by_points = p->n_points ? (double)p->next / p->n_points : 1;

    return fmin(fmax(by_time, by_points), 1);
}

/* ---- the fit ---- */

/* The shortest time in which chunks of the size of point i came to the stage; 0 if an earlier point has
 * that size, or it is not known. */
static double shortest_passed(const struct profile *p, uint32_t stage, uint32_t i)
{
    const double *ms = p->passed_ms[stage];
    double least = ms[i];

    for (uint32_t k = p->n_warm_up; k < p->n_points; k++) {
        if (p->point[k].chunk != p->point[i].chunk || !(ms[k] > 0))
            continue;
        if (k < i)
            return 0;
        least = fmin(least, ms[k]);
    }
    return least;
}

/* A line through the shortest times of each size. */
static struct stage_link fit_link(const struct profile *p, uint32_t stage)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    struct stage_link l = { 0 };

    for (uint32_t i = p->n_warm_up; i < p->n_points; i++) {
        double ms = shortest_passed(p, stage, i), c = p->point[i].chunk;

        if (!(ms > 0))
            continue;
        n++;
        x += c;
        y += ms;
        xx += c * c;
        xy += c * ms;
    }
    if (n == 0)
        return l;
    if (n * xx - x * x > 0)
        l.ms_per_token = fmax(0, (n * xy - x * y) / (n * xx - x * x));
    l.ms = (y - l.ms_per_token * x) / n;
    return l.ms >= 0 ? l : (struct stage_link){ 0, xy / xx };
}

/* Where prompts cross several links, the sum of what they take is what counts. */
static struct stage_link fit_links(const struct profile *p)
{
    struct stage_link mean = { 0 };
    uint32_t n = p->limits.n_stages - 1;

    for (uint32_t s = 1; s <= n; s++) {
        struct stage_link l = fit_link(p, s);

        mean.ms += l.ms / n;
        mean.ms_per_token += l.ms_per_token / n;
    }
    return mean;
}

/* All stages with one kappa; the mean of their errors. */
static double fit_stages(const struct profile *p, struct profile_fit *out, double kappa)
{
    struct latency_sample s[PROFILE_MAX_POINTS];
    double sum = 0;

    for (uint32_t i = 0; i < p->limits.n_stages; i++) {
        uint32_t n = samples_of(p, i, s);

        out->error[i] = latency_fit(&out->stage[i], kappa, s, n);
        sum += out->error[i];
    }
    return sum / p->limits.n_stages;
}

int profile_fit(const struct profile *p, struct profile_fit *out, struct err *e)
{
    struct latency_sample s[PROFILE_MAX_POINTS];
    struct profile_fit best = { 0 };
    double least = INFINITY;
    uint32_t n = samples_of(p, 0, s);

    if (n < LEAST)
        return err_set(e, ERR_RANGE,
                       "%u chunks were measured in %.1f s, and at least %d are needed", n,
                       p->ended - p->began, LEAST);
    for (double kappa = 0.5; kappa <= 1; kappa += 0.125) {
        struct profile_fit f = { .n_stages = p->limits.n_stages,
                                 .n_points = n,
                                 .seconds = p->ended - p->began };
        double error = fit_stages(p, &f, kappa);

        if (error < 0.98 * least) { /* not for what is within the noise */
            least = error;
            best = f;
        }
    }
    for (uint32_t i = 0; i < best.n_stages; i++)
        if (!(best.error[i] <= MOST_ERROR))
            return err_set(e, ERR_RANGE,
                           "the times of stage %u follow no model: they are off by %.0f %% on "
                           "average over %u chunks",
                           i, 100 * best.error[i], n);
    if (best.n_stages == 0)
        return err_set(e, ERR_RANGE, "the measured times follow no model");
    best.link = fit_links(p);
    *out = best;
    return 0;
}

/* ---- kept for the next start ---- */

#define VERSION 2

void profile_file_name(char out[PROFILE_NAME_BYTES], const struct profile_key *k)
{
    const struct hash_part parts[] = { { k->fingerprint, strlen(k->fingerprint) + 1 },
                                       { k->shape, strlen(k->shape) + 1 },
                                       { k->host, strlen(k->host) + 1 } };
    char hex[2 * HASH_SHA256_BYTES + 1];
    struct hash256 h;

    hash_sha256(&h, parts, 3);
    hash_hex(hex, &h);
    snprintf(out, PROFILE_NAME_BYTES, "chunks-%.32s.json", hex);
}

static void put_number(struct buf *b, const char *key, double v)
{
    buf_printf(b, "\"%s\": ", key);
    json_put_double(b, v);
}

static void put_stage(struct buf *b, const struct stage_time *f, double error)
{
    const struct {
        const char *key;
        double v;
    } fields[] = { { "a", f->a },         { "b", f->b }, { "g", f->g },     { "c", f->c },
                   { "kappa", f->kappa }, { "w", f->w }, { "error", error } };

    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        buf_puts(b, i ? ", " : "    {");
        put_number(b, fields[i].key, fields[i].v);
    }
    buf_putc(b, '}');
}

int profile_write(struct buf *b, const struct profile_key *k, const struct profile_fit *f)
{
    buf_printf(b, "{\n  \"version\": %d,\n  \"fingerprint\": ", VERSION);
    json_put_text(b, k->fingerprint);
    buf_puts(b, ",\n  \"shape\": ");
    json_put_text(b, k->shape);
    buf_puts(b, ",\n  \"host\": ");
    json_put_text(b, k->host);
    buf_printf(b, ",\n  \"points\": %u,\n  ", f->n_points);
    put_number(b, "seconds", f->seconds);
    buf_puts(b, ",\n  \"link\": {");
    put_number(b, "ms", f->link.ms);
    buf_puts(b, ", ");
    put_number(b, "ms_per_token", f->link.ms_per_token);
    buf_puts(b, "},\n  \"stages\": [\n");
    for (uint32_t i = 0; i < f->n_stages; i++) {
        put_stage(b, &f->stage[i], f->error[i]);
        buf_puts(b, i + 1 < f->n_stages ? ",\n" : "\n");
    }
    return buf_puts(b, "  ]\n}\n");
}

static bool read_number(double *out, const json_t *o, const char *key)
{
    const json_t *v = json_object_get(o, key);

    *out = json_number_value(v);
    return json_is_number(v) && *out >= 0 && *out <= STAGE_TIME_MOST;
}

static bool read_stage(struct profile_fit *f, uint32_t i, const json_t *o)
{
    struct stage_time *t = &f->stage[i];

    return read_number(&t->a, o, "a") && read_number(&t->b, o, "b") && read_number(&t->g, o, "g") &&
           read_number(&t->c, o, "c") && read_number(&t->w, o, "w") &&
           read_number(&t->kappa, o, "kappa") && t->kappa > 0 && t->kappa <= 1 &&
           read_number(&f->error[i], o, "error");
}

static bool is_text(const json_t *root, const char *key, const char *want)
{
    const char *got = json_string_value(json_object_get(root, key));

    return got && strcmp(got, want) == 0;
}

static int read_fit(struct profile_fit *f, const json_t *root, const struct profile_key *k,
                    struct err *e)
{
    const json_t *stages = json_object_get(root, "stages"), *link = json_object_get(root, "link");
    double points = 0;

    if (json_integer_value(json_object_get(root, "version")) != VERSION ||
        !is_text(root, "fingerprint", k->fingerprint) || !is_text(root, "shape", k->shape) ||
        !is_text(root, "host", k->host))
        return err_set(e, ERR_MISMATCH,
                       "the kept profile is of another model, shape, host or version");
    if (json_array_size(stages) == 0 || json_array_size(stages) > FLOW_MAX_STAGES ||
        !read_number(&points, root, "points") || points > PROFILE_MAX_POINTS ||
        !read_number(&f->seconds, root, "seconds") || !read_number(&f->link.ms, link, "ms") ||
        !read_number(&f->link.ms_per_token, link, "ms_per_token"))
        return err_set(e, ERR_BADMSG, "the kept profile has no stages, points, seconds or link");
    f->n_points = (uint32_t)points;
    f->n_stages = (uint32_t)json_array_size(stages);
    for (uint32_t i = 0; i < f->n_stages; i++)
        if (!read_stage(f, i, json_array_get(stages, i)))
            return err_set(
                e, ERR_BADMSG,
                "stage %u of the kept profile lacks a number, or has one that no stage can have",
                i);
    return 0;
}

int profile_read(struct profile_fit *out, const char *text, size_t len, const struct profile_key *k,
                 struct err *e)
{
    struct profile_fit f = { 0 };
    json_t *root;
    int st = json_read(&root, text, len, NULL, e);

    if (st < 0)
        return st;
    st = read_fit(&f, root, k, e);
    json_decref(root);
    if (st == 0)
        *out = f;
    return st;
}

/* ---- the log ---- */

static const char *const policy_names[] = { "off", "static", "optimal", "equal-time" };

struct teller {
    profile_line_fn *line;
    void *arg;
};

static void tell(const struct teller *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void tell(const struct teller *t, const char *fmt, ...)
{
    char text[512];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    t->line(t->arg, text);
}

static void tell_config(const struct teller *t, const struct sched_chunks *k)
{
    char least[32] = "chosen";

    if (k->min_chunk)
        snprintf(least, sizeof least, "%u", k->min_chunk);
    tell(t,
         "profiling_chunk_config enabled: policy %s, smooth_factor %g, min_chunk %s, online "
         "calibration %s",
         policy_names[k->policy], k->smooth, least, k->timing ? "on" : "off (need_timing false)");
}

static void tell_stage(const struct teller *t, const struct profile_fit *f, uint32_t i)
{
    const struct stage_time *s = &f->stage[i];

    tell(t,
         "stage %u takes, in ms for C tokens behind H: %.3g C (H + %g C) + max(%.3g C, %.3g) + "
         "%.3g H + %.3g; mean error %.1f %% over %u chunks, measured in %.1f s",
         i, s->a, s->kappa, s->b, s->w, s->g, s->c, 100 * f->error[i], f->n_points, f->seconds);
}

static void tell_link(const struct teller *t, const struct stage_link *l)
{
    if (l->ms > 0 || l->ms_per_token > 0)
        tell(t, "passing C tokens on to the next stage takes %.3g + %.3g C ms", l->ms,
             l->ms_per_token);
}

static void tell_plan(const struct teller *t, const struct sched_chunk_stats *s, uint32_t tokens,
                      uint32_t stages)
{
    tell(t,
         "plan for %u tokens on %u stages: %u chunks, the first of %u and the last of %u tokens, "
         "%.3f s; if no stage ever waited: %.3f s (%.1f %% less)%s",
         tokens, stages, s->plan_chunks, s->plan_first, s->plan_last, s->plan_ms / 1e3,
         s->bound_ms / 1e3, 100 * (1 - s->bound_ms / s->plan_ms),
         s->fixed ? "; chunks of one size are as good here" : "");
}

int profile_describe(const struct profile_fit *f, const struct sched_config *c,
                     profile_line_fn *line, void *arg, struct err *e)
{
    const struct teller t = { line, arg };
    struct chunk_rule rule;
    struct pace *p;
    int st;

    if (c->chunks.policy == SCHED_CHUNK_OFF)
        return err_set(e, ERR_INVAL, "chunks are not planned: there is nothing to say of them");
    p = malloc(sizeof *p);
    if (!p)
        return err_set(e, ERR_NOMEM, "no memory to plan a prompt");
    pace_init(p, c);
    st = pace_set_latency(p, f->stage, f->n_stages, &f->link, e);
    if (st == 0) {
        tell_config(&t, &c->chunks);
        for (uint32_t i = 0; i < f->n_stages; i++)
            tell_stage(&t, f, i);
        tell_link(&t, &f->link);
        pace_plan(p, &rule, 0, c->max_model_len, 0);
        tell_plan(&t, &p->stats, c->max_model_len, c->chunks.n_stages);
    }
    free(p);
    return st;
}
