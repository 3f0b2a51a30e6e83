#include "sched/guard.h"

#include <math.h>

#define LEAST_GAIN  0.01
#define MOST_LOSS   0.5 /* of the gain, if the model is wrong */
#define SAMPLE_EACH 16  /* prompts, of which one is done the other way */
#define FIXED_MAX   16  /* samples of fixed chunks, after which no more are taken */
#define LEAST_PLANS 8   /* samples of either side before they are compared */
#define LEAST_FIXED 4

bool guard_prefers(const struct chunk_task *t, const struct chunk_rule *plan,
                   const struct chunk_rule *fixed)
{
    static const double wrong[][3] = {
        { 0.8, 1.2, 1 }, { 1.2, 0.8, 1 }, { 1, 1, 0.5 }, { 1, 1, 2 }
    };

    double gain = chunk_cost(t, &t->time, fixed) / chunk_cost(t, &t->time, plan) - 1;

    if (gain < LEAST_GAIN)
        return false;
    for (unsigned i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct stage_time f = t->time;

        f.a *= wrong[i][0];
        f.b *= wrong[i][1];
        f.c *= wrong[i][2];
        if (chunk_cost(t, &f, plan) > (1 + MOST_LOSS * gain) * chunk_cost(t, &f, fixed))
            return false;
    }
    return true;
}

static struct guard_class *class_of(struct guard *g, uint64_t rest)
{
    int n = 0;

    while (rest >>= 1)
        n++;
    return &g->class[n < GUARD_CLASSES ? n : GUARD_CLASSES - 1];
}

static double error_of(const struct guard_side *s)
{
    return s->spread / ((double)s->n * (s->n - 1));
}

static bool plan_is_slower(const struct guard_class *c)
{
    if (c->plan.n < LEAST_PLANS || c->fixed.n < LEAST_FIXED)
        return false;
    return c->plan.mean > c->fixed.mean + 2 * sqrt(error_of(&c->plan) + error_of(&c->fixed));
}

bool guard_wants_plan(struct guard *g, uint64_t rest)
{
    struct guard_class *c = class_of(g, rest);
    bool other = ++c->seen % SAMPLE_EACH == 0;

    if (plan_is_slower(c))
        return other;
    return !(other && c->fixed.n < FIXED_MAX);
}

void guard_note(struct guard *g, uint64_t rest, bool planned, double over_work)
{
    struct guard_class *c = class_of(g, rest);
    struct guard_side *s = planned ? &c->plan : &c->fixed;
    double off = over_work - s->mean;

    if (!isfinite(over_work) || over_work <= 0)
        return;
    s->n++;
    s->mean += off / s->n;
    s->spread += off * (over_work - s->mean);
}
