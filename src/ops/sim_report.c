/* Runs of a simulation side by side: a table for people, JSON for programs. */
#include <jansson.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/status.h"
#include "ops/sim.h"

struct policy {
    const char *name;
    enum sched_chunk_policy policy;
    bool best_size;
};

static const struct policy policies[] = {
    { "static", SCHED_CHUNK_STATIC, false },
    { "static-best", SCHED_CHUNK_STATIC, true },
    { "equal-time", SCHED_CHUNK_EQUAL_TIME, false },
    { "optimal", SCHED_CHUNK_OPTIMAL, false },
};
#define N_POLICIES (sizeof policies / sizeof policies[0])

static bool wanted(const struct sim_plan *p, size_t i)
{
    const bool want[N_POLICIES] = { p->fixed, p->best, p->equal_time, p->optimal };

    return want[i];
}

/* What was measured elsewhere for this very case; 0: nothing. */
static double published(const struct sim_plan *p, const struct sim_options *o, size_t i)
{
    const struct sim_model *m = &p->model;

    if (o->stages != m->stages || o->n_tokens_least != m->prompt || o->n_tokens_most != m->prompt ||
        o->base != m->base || o->n_requests != 1 || o->hit_ratio > 0)
        return 0;
    return i == 0 ? m->published_fixed : i == 2 ? m->published_equal : 0;
}

static void table_head(const struct sim_plan *p, const struct sim_options *o, struct buf *out)
{
    const struct stage_time *f = &o->time;

    buf_printf(out,
               "%s, %u stages of a %.4g b %.4g g %.4g c %.4g ms (kappa %g, w %g), %u in flight\n",
               p->model.name, o->stages, f->a, f->b, f->g, f->c, f->kappa, f->w,
               o->window ? o->window : o->stages + 1);
    buf_printf(
        out,
        "%u requests of %u to %u tokens, %.0f %% of them in the prefix cache; %u tokens a step\n\n",
        o->n_requests, o->n_tokens_least, o->n_tokens_most, 100 * o->hit_ratio, o->base);
    buf_printf(out, "%-12s %9s %9s %9s %11s %8s %7s %7s  %s\n", "policy", "TTFT mean", "p50 s",
               "p99 s", "tokens/s", "bubble", "steps", "size", "beside");
}

static void table_row(struct buf *out, const char *name, const struct sim_result *r, double seen)
{
    buf_printf(out, "%-12s %9.3f %9.3f %9.3f %11.0f %7.1f%% %7llu %7u  ", name, r->ttft_mean,
               r->ttft_p50, r->ttft_p99, r->prompt_per_second, 100 * r->bubble,
               (unsigned long long)r->steps, r->base);
    if (seen > 0)
        buf_printf(out, "published %.1f\n", seen);
    else if (r->n == 1)
        buf_printf(out, "%.3f of the bound\n", r->ttft_mean / r->bound);
    else
        buf_puts(out, "\n");
}

static json_t *json_row(const struct sim_options *o, const char *name, const struct sim_result *r,
                        double seen)
{
    json_t *v = json_pack("{s:i, s:s, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:f}", "stages",
                          (int)o->stages, "policy", name, "size", (int)r->base, "ttft_mean_s",
                          r->ttft_mean, "ttft_p50_s", r->ttft_p50, "ttft_p99_s", r->ttft_p99,
                          "prompt_tokens_per_s", r->prompt_per_second, "bubble", r->bubble,
                          "seconds", r->seconds, "steps", (json_int_t)r->steps, "bound_s",
                          r->bound);

    if (seen > 0)
        json_object_set_new(v, "published_s", json_real(seen));
    if (r->chunks.plan_chunks > 0) {
        json_object_set_new(v, "plan_chunks", json_integer(r->chunks.plan_chunks));
        json_object_set_new(v, "plan_s", json_real(r->chunks.plan_ms / 1e3));
    }
    return v;
}

static int run_policies(const struct sim_plan *p, const struct sim_options *base, struct buf *out,
                        json_t *rows, struct err *e)
{
    for (size_t i = 0; i < N_POLICIES; i++) {
        struct sim_options o = *base;
        struct sim_result r;
        double seen = published(p, base, i);
        int st;

        if (!wanted(p, i))
            continue;
        o.policy = policies[i].policy;
        o.best_size = policies[i].best_size;
        if ((st = sim_run(&o, &r, e)) < 0)
            return st;
        if (rows)
            json_array_append_new(rows, json_row(&o, policies[i].name, &r, seen));
        else
            table_row(out, policies[i].name, &r, seen);
    }
    return 0;
}

int sim_report(const struct sim_plan *p, struct buf *out, struct err *e)
{
    json_t *rows = p->json ? json_array() : NULL, *root;
    int st = 0;

    for (uint32_t i = 0; i < p->n_stages && st == 0; i++) {
        struct sim_options o = p->base;

        o.stages = p->stages[i];
        o.time = sim_model_split(&p->model, o.stages);
        if (!rows)
            table_head(p, &o, out);
        st = run_policies(p, &o, out, rows, e);
        if (!rows)
            buf_puts(out, "\n");
    }
    if (st == 0 && rows) {
        root = json_pack("{s:s, s:O}", "model", p->model.name, "runs", rows);
        json_put_value(out, root);
        buf_putc(out, '\n');
        json_decref(root);
    }
    json_decref(rows);
    return st == 0 && out->status < 0 ? err_set(e, out->status, "the report is too long") : st;
}
