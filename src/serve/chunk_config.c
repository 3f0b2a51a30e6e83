#include "serve/chunk_config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/opts.h"
#include "base/status.h"
#include "sched/equal_time.h"

#define CHUNKS      "profiling_chunk_config"
#define SHORT_FIRST "short_request_first_config"
#define COUNT(a)    (sizeof(a) / sizeof(a)[0])

#define DEFAULT_FIT       30
#define DEFAULT_THRESHOLD 256

static void note(struct chunk_config *c, bool warning, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void note(struct chunk_config *c, bool warning, const char *fmt, ...)
{
    struct chunk_config_note *n;
    va_list ap;

    if (c->n_notes == CHUNK_CONFIG_NOTES)
        return;
    n = &c->note[c->n_notes++];
    n->warning = warning;
    va_start(ap, fmt);
    vsnprintf(n->text, sizeof n->text, fmt, ap);
    va_end(ap);
}

/* ---- keys ---- */

/* The key with what word processors make of an underscore, a dash of any length, turned back. False if
 * there is none in it. */
static bool undash(char *out, size_t cap, const char *key)
{
    static const char *const dashes[] = { "\xe2\x80\x93", "\xe2\x80\x94", "\xe2\x88\x92", "-" };
    size_t n = 0;
    bool found = false;

    while (*key && n + 1 < cap) {
        size_t skip = 0;

        for (size_t i = 0; i < COUNT(dashes) && skip == 0; i++)
            if (strncmp(key, dashes[i], strlen(dashes[i])) == 0)
                skip = strlen(dashes[i]);
        found = found || skip > 0;
        out[n++] = skip ? '_' : *key;
        key += skip ? skip : 1;
    }
    out[n] = '\0';
    return found;
}

static bool is_one_of(const char *const *known, size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(known[i], key) == 0)
            return true;
    return false;
}

static int check_keys(const json_t *o, const char *where, const char *const *known, size_t n,
                      struct err *e)
{
    const char *key, *near;
    char plain[64];
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)o, key, v)
    {
        if (is_one_of(known, n, key))
            continue;
        if (undash(plain, sizeof plain, key) && is_one_of(known, n, plain))
            return err_set(e, ERR_INVAL, "%s: the key '%s' has a dash where %s has an underscore",
                           where, key, plain);
        near = opts_nearest_word(known, n, key);
        return err_set(e, ERR_INVAL, "%s: unknown key '%s'%s%s%s", where, key,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    }
    return 0;
}

/* A dash in the name of the whole object would make it an unknown one. */
static int check_names(const json_t *o, struct err *e)
{
    const char *key;
    char plain[64];
    json_t *v;

    json_object_foreach(
        (json_t *)(uintptr_t)o, key,
        v) if (undash(plain, sizeof plain, key) &&
               (strcmp(plain, CHUNKS) == 0 ||
                strcmp(plain, SHORT_FIRST) ==
                    0)) return err_set(e, ERR_INVAL,
                                       "the key '%s' has a dash where %s has an underscore", key,
                                       plain);
    return 0;
}

/* ---- values ---- */

static int read_bool(bool *out, const json_t *o, const char *where, const char *key, struct err *e)
{
    const json_t *v = json_object_get(o, key);
    const char *text = json_string_value(v);

    if (!v || json_is_null(v))
        return 0;
    if (text && (strcasecmp(text, "true") == 0 || strcasecmp(text, "false") == 0))
        return err_set(e, ERR_INVAL, "%s: %s is the text \"%s\"; write %s without quotes", where,
                       key, text, strcasecmp(text, "true") == 0 ? "true" : "false");
    if (!json_is_boolean(v))
        return err_set(e, ERR_INVAL, "%s: %s must be true or false", where, key);
    *out = json_is_true(v);
    return 0;
}

static int read_number(double *out, const json_t *o, const char *where, const char *key,
                       struct err *e)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v))
        return 0;
    if (json_is_string(v))
        return err_set(e, ERR_INVAL, "%s: %s is the text \"%s\"; write the number without quotes",
                       where, key, json_string_value(v));
    if (!json_is_number(v))
        return err_set(e, ERR_INVAL, "%s: %s must be a number", where, key);
    *out = json_number_value(v);
    return 0;
}

/* A whole number from least to most. */
static int read_count(uint32_t *out, const json_t *o, const char *where, const char *key,
                      double least, double most, struct err *e)
{
    double v = NAN;
    int st = read_number(&v, o, where, key, e);

    if (st < 0 || isnan(v))
        return st;
    if (!(v >= least && v <= most) || trunc(v) < v)
        return err_set(e, ERR_INVAL, "%s: %s is %g; it must be a whole number from %.0f to %.0f",
                       where, key, v, least, most);
    *out = (uint32_t)v;
    return 0;
}

static int read_policy(enum sched_chunk_policy *out, const json_t *o, struct err *e)
{
    static const char *const names[] = { "optimal", "equal-time", "static" };
    static const enum sched_chunk_policy values[] = { SCHED_CHUNK_OPTIMAL, SCHED_CHUNK_EQUAL_TIME,
                                                      SCHED_CHUNK_STATIC };
    const json_t *v = json_object_get(o, "policy");
    const char *text = json_string_value(v);

    *out = SCHED_CHUNK_OPTIMAL;
    if (!v || json_is_null(v))
        return 0;
    for (size_t i = 0; text && i < COUNT(names); i++)
        if (strcmp(names[i], text) == 0) {
            *out = values[i];
            return 0;
        }
    return err_set(e, ERR_INVAL,
                   CHUNKS ": policy is %s%s%s; it must be optimal, equal-time or static",
                   text ? "'" : "", text ? text : "no text", text ? "'" : "");
}

/* ---- profiling_chunk_config ---- */

static bool balance_is_on(const json_t *additional, const struct chunk_config_place *at)
{
    const char *key = "enable_balance_scheduling";
    const json_t *sched = json_object_get(additional, "scheduler_config");

    return at->balance || json_is_true(json_object_get(additional, key)) ||
           json_is_true(json_object_get(sched, key));
}

static int check_place(const json_t *additional, const struct chunk_config_place *at, struct err *e)
{
    if (at->pp < 2)
        return err_set(e, ERR_INVAL,
                       CHUNKS
                       ": enabled needs pipeline stages, but --pipeline-parallel-size is %u; "
                       "raise it to 2 or more, or set enabled to false",
                       at->pp);
    if (!at->chunked_prefill)
        return err_set(e, ERR_INVAL,
                       CHUNKS ": enabled needs chunked prefill, but it is off "
                              "(--no-enable-chunked-prefill)");
    if (balance_is_on(additional, at))
        return err_set(e, ERR_INVAL,
                       CHUNKS
                       ": enabled does not go with balance scheduling "
                       "(VLLM_ASCEND_BALANCE_SCHEDULING, enable_balance_scheduling); switch one "
                       "of them off");
    return 0;
}

static int read_values(struct chunk_config *c, const json_t *o, struct err *e)
{
    struct sched_chunks *k = &c->chunks;
    int st;

    k->smooth = 1;
    k->timing = true;
    k->max_fit = DEFAULT_FIT;
    if ((st = read_policy(&k->policy, o, e)) < 0 ||
        (st = read_number(&k->smooth, o, CHUNKS, "smooth_factor", e)) < 0 ||
        (st = read_count(&k->min_chunk, o, CHUNKS, "min_chunk", 1, UINT32_MAX, e)) < 0 ||
        (st = read_bool(&k->timing, o, CHUNKS, "need_timing", e)) < 0 ||
        (st = read_count(&k->max_fit, o, CHUNKS, "max_fit_chunk", 6, EQUAL_TIME_MAX_ROWS, e)) < 0)
        return st;
    if (!(k->smooth > 0 && k->smooth <= 1))
        return err_set(e, ERR_INVAL,
                       CHUNKS
                       ": smooth_factor is %g; it must be above 0 and at most 1 (policy static "
                       "gives fixed chunks)",
                       k->smooth);
    return 0;
}

static void settle(struct chunk_config *c, const json_t *o, const struct chunk_config_place *at)
{
    struct sched_chunks *k = &c->chunks;

    k->n_stages = at->pp;
    if (k->min_chunk > at->max_batched_tokens) {
        note(c, true,
             CHUNKS ": min_chunk %u is above --max-num-batched-tokens %u, which is used instead",
             k->min_chunk, at->max_batched_tokens);
        k->min_chunk = at->max_batched_tokens;
    }
    if (json_object_get(o, "max_fit_chunk") && k->policy != SCHED_CHUNK_EQUAL_TIME)
        note(c, false,
             CHUNKS ": max_fit_chunk has no effect: only policy equal-time ends its calibration");
}

static int read_chunks(struct chunk_config *c, const json_t *o, const json_t *additional,
                       const struct chunk_config_place *at, struct err *e)
{
    static const char *const known[] = { "enabled",     "smooth_factor", "min_chunk",
                                         "need_timing", "max_fit_chunk", "policy" };
    bool enabled = false;
    int st;

    if (!json_is_object(o))
        return err_set(e, ERR_INVAL, CHUNKS " must be an object");
    st = read_bool(&enabled, o, CHUNKS, "enabled", e);
    if (st < 0)
        return st;
    if (!enabled) {
        if (!json_object_get(o, "enabled") &&
            (st = check_keys(o, CHUNKS, known, COUNT(known), e)) < 0)
            return st;
        note(c, false, CHUNKS ": off, because enabled is %s",
             json_object_get(o, "enabled") ? "false" : "not set");
        return 0;
    }
    if ((st = check_keys(o, CHUNKS, known, COUNT(known), e)) < 0 ||
        (st = check_place(additional, at, e)) < 0 || (st = read_values(c, o, e)) < 0)
        return st;
    settle(c, o, at);
    return 0;
}

/* ---- short_request_first_config ---- */

static int read_short_first(struct chunk_config *c, const json_t *o,
                            const struct chunk_config_place *at, struct err *e)
{
    static const char *const known[] = { "enabled", "threshold", "long_max_wait_ms" };
    struct sched_short_first s = { .threshold = DEFAULT_THRESHOLD };
    double wait_ms = 0;
    int st;

    if (!json_is_object(o))
        return err_set(e, ERR_INVAL, SHORT_FIRST " must be an object");
    if ((st = read_bool(&s.enabled, o, SHORT_FIRST, "enabled", e)) < 0 || !s.enabled)
        return st;
    if ((st = check_keys(o, SHORT_FIRST, known, COUNT(known), e)) < 0 ||
        (st = read_count(&s.threshold, o, SHORT_FIRST, "threshold", 0, UINT32_MAX, e)) < 0 ||
        (st = read_number(&wait_ms, o, SHORT_FIRST, "long_max_wait_ms", e)) < 0)
        return st;
    if (!(wait_ms >= 0))
        return err_set(e, ERR_INVAL, SHORT_FIRST ": long_max_wait_ms is %g; it must be 0 or more",
                       wait_ms);
    if (at->priority)
        return err_set(e, ERR_INVAL,
                       SHORT_FIRST ": enabled does not go with --scheduling-policy priority, which "
                                   "has an order of its own");
    s.long_max_wait = wait_ms / 1e3;
    c->short_first = s;
    return 0;
}

int chunk_config_read(struct chunk_config *out, const json_t *additional,
                      const struct chunk_config_place *at, struct err *e)
{
    const json_t *sched = json_object_get(additional, "scheduler_config");
    const json_t *chunks = json_object_get(sched, CHUNKS),
                 *old = json_object_get(additional, CHUNKS);
    const json_t *first = json_object_get(sched, SHORT_FIRST);
    struct chunk_config c = { 0 };
    int st = 0;

    if ((st = check_names(additional, e)) < 0 || (st = check_names(sched, e)) < 0)
        return st;
    if (chunks && old)
        note(&c, true,
             CHUNKS ": the one under scheduler_config counts, the one at the top level not");
    else if (old)
        note(&c, false,
             CHUNKS ": it belongs under scheduler_config now, and is read here all the same");
    chunks = chunks ? chunks : old;
    if (chunks && (st = read_chunks(&c, chunks, additional, at, e)) < 0)
        return st;
    if (first && (st = read_short_first(&c, first, at, e)) < 0)
        return st;
    *out = c;
    return 0;
}
