#include "ops/calibrate_url.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rand.h"
#include "base/status.h"
#include "ops/ask.h"
#include "ops/chunk_figures.h"
#include "sys/clock.h"

struct row {
    double seconds;             /* until the whole answer, which is one token, was here */
    struct chunk_figures after; /* its plan is the last one */
};

struct calibration {
    const struct calibrate_url_options *o;
    struct ask *ask;
    struct buf question, reply;
    uint32_t vocab, n_tokens;
    uint64_t seed; /* another one each time: what is in the prefix cache is computed by nobody */
    struct chunk_figures before;
    struct row *row;
    uint32_t n;
};

static int read_figures(struct calibration *c, struct chunk_figures *out, struct err *e)
{
    int st = ask_well(c->ask, "/metrics", NULL, &c->reply, e);

    if (st < 0)
        return st;
    if (c->reply.len == 0)
        return err_set(e, ERR_IO, "%s/metrics is empty", c->o->url);
    return chunk_figures_read(out, c->reply.data, e);
}

/* The longest prompt, and the ids it may be made of. */
static int read_limits(struct calibration *c, struct err *e)
{
    int st = ask_well(c->ask, "/server_info", NULL, &c->reply, e);
    json_t *root = NULL;
    const json_t *engine;
    json_int_t len, vocab;

    if (st < 0)
        return st;
    if ((st = json_read(&root, buf_str(&c->reply), c->reply.len, NULL, e)) < 0)
        return st;
    engine = json_object_get(root, "engine");
    len = json_integer_value(json_object_get(engine, "max_model_len"));
    vocab = json_integer_value(json_object_get(engine, "vocab_size"));
    json_decref(root);
    if (len < 2 || vocab < 1 || vocab > INT32_MAX)
        return err_set(e, ERR_IO,
                       "%s does not say how long a prompt may be: it is no instance that is ready",
                       c->o->url);
    len = len > CALIBRATE_URL_MAX_TOKENS ? CALIBRATE_URL_MAX_TOKENS : len;
    c->vocab = (uint32_t)vocab;
    c->n_tokens = c->o->prompt_tokens ? c->o->prompt_tokens : (uint32_t)len - 1;
    if (c->n_tokens > len - 1)
        return err_set(e, ERR_INVAL,
                       "a prompt of %u tokens and one of output are more than the context of %lld",
                       c->n_tokens, (long long)len);
    return 0;
}

static int make_question(struct calibration *c)
{
    struct buf *b = &c->question;
    uint32_t r[4];

    buf_reset(b);
    buf_puts(b, "{\"max_tokens\": 1, \"temperature\": 0, \"prompt\": [");
    for (uint32_t i = 0; i < c->n_tokens; i++) {
        if (i % 4 == 0)
            rand_philox(r, c->seed, i / 4, c->n);
        buf_printf(b, i ? ",%u" : "%u", r[i % 4] % c->vocab);
    }
    return buf_puts(b, "]}");
}

static void log_row(const struct calibration *c, const struct row *r)
{
    const struct chunk_figures *f = &r->after;

    log_info("request %u of %u: %.3f s to the first token, fit off by %.1f %%, mode %s", c->n,
             c->o->n_requests, r->seconds, 100 * f->error, f->mode);
}

static int run_one(struct calibration *c, struct err *e)
{
    struct row *r = &c->row[c->n];
    double began;
    int st = make_question(c);

    if (st < 0)
        return err_set(e, st, "no memory for a prompt of %u tokens", c->n_tokens);
    began = clock_now();
    if ((st = ask_well(c->ask, "/v1/completions", &c->question, &c->reply, e)) < 0)
        return st;
    r->seconds = clock_now() - began;
    if ((st = read_figures(c, &r->after, e)) < 0)
        return st;
    c->n++;
    log_row(c, r);
    return 0;
}

/* ---- what it gave ---- */

static void table_fit(struct buf *out, const char *when, const struct chunk_figures *f)
{
    const struct stage_time *t = &f->fit;

    if (!(t->b > 0 || t->c > 0 || t->a > 0)) {
        buf_printf(out, "%-7s no model of the stages yet (mode %s)\n", when, f->mode);
        return;
    }
    buf_printf(out,
               "%-7s %.4g C (H + %g C) + max(%.4g C, %.4g) + %.4g H + %.4g ms for C tokens behind "
               "H; off by %.1f %%, load %.2f, mode %s\n",
               when, t->a, t->kappa, t->b, t->w, t->g, t->c, 100 * f->error, f->load, f->mode);
}

static void table_row(struct buf *out, uint32_t i, const struct row *r,
                      const struct chunk_figures *last)
{
    const struct chunk_figures *f = &r->after;
    double predicted = f->predicted_seconds - last->predicted_seconds;
    double measured = f->measured_seconds - last->measured_seconds;

    buf_printf(out, "%7u %9.3f", i + 1, r->seconds);
    if (f->plans > last->plans)
        buf_printf(out, " %9.3f %9.3f %7.0f %7.0f %7.0f", f->plan_seconds, f->bound_seconds,
                   f->plan_chunks, f->plan_first, f->plan_last);
    else
        buf_printf(out, " %9s %9s %7.0f %7s %7s", "-", "-", f->steps - last->steps, "-", "-");
    if (measured > 0)
        buf_printf(out, " %9.3f", predicted / measured);
    else
        buf_printf(out, " %9s", "-");
    buf_printf(out, " %7.1f%%\n", 100 * f->error);
}

static void put_table(const struct calibration *c, struct buf *out)
{
    const struct chunk_figures *last = &c->before;

    buf_printf(out, "%u prompts of %u tokens, one output token each, one at a time\n\n", c->n,
               c->n_tokens);
    buf_printf(out, "%7s %9s %9s %9s %7s %7s %7s %9s %8s\n", "request", "TTFT s", "plan s",
               "bound s", "chunks", "first", "last", "pred/real", "fit off");
    for (uint32_t i = 0; i < c->n; i++) {
        table_row(out, i, &c->row[i], last);
        last = &c->row[i].after;
    }
    buf_puts(out, "\nThe slowest stage takes\n");
    table_fit(out, "before", &c->before);
    table_fit(out, "after", last);
}

static json_t *json_fit(const struct chunk_figures *f)
{
    const struct stage_time *t = &f->fit;

    return json_pack("{s:s, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "mode", f->mode, "a", t->a,
                     "b", t->b, "g", t->g, "c", t->c, "kappa", t->kappa, "w", t->w, "load", f->load,
                     "error", f->error);
}

static json_t *json_row(const struct row *r, const struct chunk_figures *last)
{
    const struct chunk_figures *f = &r->after;
    bool planned = f->plans > last->plans;

    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "ttft_s", r->seconds, "plan_s",
                     planned ? f->plan_seconds : 0.0, "bound_s", planned ? f->bound_seconds : 0.0,
                     "chunks", f->steps - last->steps, "predicted_s",
                     f->predicted_seconds - last->predicted_seconds, "measured_s",
                     f->measured_seconds - last->measured_seconds, "error", f->error);
}

static int put_json(const struct calibration *c, struct buf *out)
{
    const struct chunk_figures *last = &c->before;
    json_t *rows = json_array(), *root;

    for (uint32_t i = 0; i < c->n; i++) {
        json_array_append_new(rows, json_row(&c->row[i], last));
        last = &c->row[i].after;
    }
    root = json_pack("{s:i, s:o, s:o, s:o}", "prompt_tokens", (int)c->n_tokens, "before",
                     json_fit(&c->before), "after", json_fit(last), "requests", rows);
    if (!root)
        return ERR_NOMEM;
    json_put_value(out, root);
    json_decref(root);
    return buf_puts(out, "\n");
}

static int run(struct calibration *c, struct buf *out, struct err *e)
{
    int st;

    if ((st = read_limits(c, e)) < 0 || (st = read_figures(c, &c->before, e)) < 0)
        return st;
    log_info("%u prompts of %u tokens, one at a time", c->o->n_requests, c->n_tokens);
    while (c->n < c->o->n_requests)
        if ((st = run_one(c, e)) < 0)
            return st;
    if (c->o->json)
        st = put_json(c, out);
    else
        put_table(c, out);
    st = st < 0 ? st : out->status;
    return st < 0 ? err_set(e, st, "no memory for what was measured") : 0;
}

int calibrate_url(const struct calibrate_url_options *o, struct buf *out, struct err *e)
{
    struct calibration c = { .o = o };
    int st = ask_create(&c.ask, o->url, o->api_key, o->timeout, e);

    if (st < 0)
        return st;
    buf_init(&c.question, BUF_MAX_BODY);
    buf_init(&c.reply, BUF_MAX_REPLY);
    rand_bytes(&c.seed, sizeof c.seed);
    c.row = calloc(o->n_requests, sizeof *c.row);
    st = c.row ? run(&c, out, e) : err_set(e, ERR_NOMEM, "out of memory");
    free(c.row);
    buf_finish(&c.reply);
    buf_finish(&c.question);
    ask_destroy(c.ask);
    return st;
}
