#include "sched/stage_time.h"

#include <assert.h>
#include <math.h>

double stage_time_of(const struct stage_time *f, double chunk, double history)
{
    return f->a * chunk * (history + f->kappa * chunk) + fmax(f->b * chunk, f->w) + f->g * history +
           f->c;
}

/* The positive root of A x^2 + B x = r, in the form that also holds for A = 0. */
static double root(double A, double B, double r)
{
    double d;

    if (r <= 0)
        return 0;
    d = B + sqrt(B * B + 4 * A * r);
    return d > 0 ? 2 * r / d : INFINITY;
}

double stage_time_chunk(const struct stage_time *f, const struct stage_link *link, double history,
                        double ms)
{
    double per_token = link ? link->ms_per_token : 0;
    double left = ms - f->c - f->g * history - (link ? link->ms : 0);
    double A = f->a * f->kappa, attention = f->a * history + per_token;
    double x = root(A, attention + f->b, left);

    if (f->w > 0)
        x = fmin(x, root(A, attention, left - f->w));
    return x;
}

double flow_makespan(const struct flow *w, const uint32_t *chunks, uint32_t n, uint64_t history,
                     flow_ended_fn *ended, void *arg)
{
    double free_at[FLOW_MAX_STAGES] = { 0 }; /* when the stage has ended what it had */
    double left[FLOW_MAX_WINDOW] = { 0 };    /* when chunk k left the last stage, at k % window */

    assert(w->n_stages >= 1 && w->n_stages <= FLOW_MAX_STAGES && w->window <= FLOW_MAX_WINDOW);
    for (uint32_t k = 0; k < n; k++) {
        double at = 0;

        if (w->window && k >= w->window)
            at = left[k % w->window] + w->dispatch_ms;
        for (uint32_t s = 0; s < w->n_stages; s++) {
            double start = fmax(at, free_at[s]);
            double end = start + stage_time_of(&w->stages[s], chunks[k], (double)history);

            if (ended)
                ended(arg, k, s, start, end);
            free_at[s] = end;
            at = end + w->link.ms + w->link.ms_per_token * chunks[k];
        }
        if (w->window)
            left[k % w->window] = free_at[w->n_stages - 1];
        history += chunks[k];
    }
    return free_at[w->n_stages - 1];
}
