#include "ops/group.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* Factors further from each other than this would leave the range in which bfloat16 and the float16
 * of a KV cache hold what they are applied to. */
#define MAX_FACTOR 1e4f

static const double alphas[] = { 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9 };
#define N_ALPHAS (sizeof alphas / sizeof *alphas)

/* Factors of the channels, with a geometric mean of 1. */
static void channel_factors(const struct group *g, double alpha, float *s)
{
    double sum = 0;

    for (uint32_t i = 0; i < g->n_channels; i++) {
        double x = (double)g->x_max[i], w = (double)g->w_max[i];

        s[i] = x > 0 && w > 0 ? (float)(pow(x, alpha) / pow(w, 1 - alpha)) : 1;
        sum += log((double)s[i]);
    }
    for (uint32_t i = 0; i < g->n_channels; i++) {
        s[i] = (float)((double)s[i] / exp(sum / g->n_channels));
        s[i] = fminf(fmaxf(s[i], 1 / MAX_FACTOR), MAX_FACTOR);
    }
}

static void spread(const struct group *g, const float *channel, float *columns)
{
    for (uint32_t j = 0; j < g->cols; j++)
        columns[j] = channel[group_channel(g, j)];
}

/* The scale of all activations of the site, once they are divided by the factors (NULL: ones). */
static struct trial_input input_of(const struct group *g, const float *columns)
{
    float low = 0, high = 0;

    for (uint32_t j = 0; j < g->cols; j++) {
        float s = columns ? columns[j] : 1;

        low = fminf(low, g->seen->low[j] / s);
        high = fmaxf(high, g->seen->high[j] / s);
    }
    return trial_input_of(low, high);
}

static bool is_fixed(const struct group *g)
{
    return g->opt->fixed && g->in->blue.t[g->index[0]].role == BLUE_ATTENTION;
}

/* The mean error of the linears with these factors; each one's own to error, unless it is NULL. */
static int try_factors(struct group *g, const float *columns, double *mean, double *error)
{
    struct trial_input fixed = input_of(g, columns);
    double sum = 0, one;

    for (uint32_t i = 0; i < g->n_linears; i++) {
        struct trial_linear *t = &g->linear[i];
        int st;

        t->smooth = columns;
        t->fixed = is_fixed(g) ? &fixed : NULL;
        st = trial_error(&one, g->k, t, g->e);
        t->smooth = NULL;
        t->fixed = NULL;
        if (st < 0)
            return st;
        if (error)
            error[i] = one;
        sum += one;
    }
    *mean = sum / g->n_linears;
    return 0;
}

/* The alpha with the smallest error; below 0 if no factors are the best. */
static int choose_alpha(struct group *g, float *channel, float *columns, struct plan_site *site)
{
    double given = g->opt->alpha, error;
    int st = try_factors(g, NULL, &site->without, NULL);

    site->alpha = -1;
    site->error = site->without;
    for (size_t i = 0; st == 0 && g->opt->smooth && i < (given < 0 ? N_ALPHAS : 1); i++) {
        double alpha = given < 0 ? alphas[i] : given;

        channel_factors(g, alpha, channel);
        spread(g, channel, columns);
        st = try_factors(g, columns, &error, NULL);
        if (st == 0 && (given >= 0 || error < site->error)) {
            site->alpha = alpha;
            site->error = error;
        }
    }
    return st;
}

/* Divides the rows that make the channels. */
static int divide(struct group *g, size_t maker, const float *channel)
{
    uint32_t rows = g->in->blue.t[maker].rows;
    float *out = plan_own(g->p, rows);

    if (!out)
        return plan_no_memory(g->e);
    for (uint32_t r = 0; r < rows; r++)
        out[r] = 1;
    for (uint32_t ch = 0; ch < g->n_channels; ch++)
        out[group_maker_row(g, ch)] = 1 / channel[ch];
    g->p->t[maker].out = out;
    return 0;
}

static int apply(struct group *g, double alpha, float *channel, float *columns)
{
    size_t bias = group_maker_bias(g);
    float *in = plan_own(g->p, g->cols);
    int st;

    if (!in)
        return plan_no_memory(g->e);
    channel_factors(g, alpha, channel);
    spread(g, channel, columns);
    memcpy(in, columns, g->cols * sizeof *in);
    for (size_t i = g->first; i < g->end; i++)
        if (group_reads(g, i))
            g->p->t[i].in = in;
    st = divide(g, group_maker(g), channel);
    return st < 0 || bias == g->end ? st : divide(g, bias, channel);
}

/* Stores and errors of the site's linears, now that the factors are known. */
static int settle(struct group *g, const float *columns, const struct plan_site *site)
{
    struct trial_input fixed = input_of(g, columns);
    /* Experts stay of one type: what is read in front of them decides. */
    bool whole = site->error > g->opt->float_above && g->site != SITE_EXPERT_OUT;
    double error[TRIAL_LINEARS], mean;
    int st = try_factors(g, columns, &mean, error);

    for (size_t i = g->first; st == 0 && i < g->end; i++) {
        if (whole && group_takes_along(g, i))
            g->p->t[i].store = STORE_BF16;
        if (!group_quantizes(g, i))
            continue;
        g->p->t[i].input = fixed;
        if (is_fixed(g))
            g->p->t[i].store = STORE_STATIC;
        if (whole)
            g->p->t[i].store = STORE_BF16;
    }
    if (g->site == SITE_EXPERT_OUT && g->expert >= TRIAL_LINEARS) /* a report names the first few */
        return st;
    for (uint32_t i = 0; st == 0 && i < g->n_linears; i++)
        g->p->t[g->index[i]].error = error[i];
    return st;
}

int smooth_group(struct group *g)
{
    struct plan_site *site = &g->p->site[g->layer][g->site];
    float *channel = calloc(g->cols, sizeof *channel), *columns = calloc(g->cols, sizeof *columns);
    int st = channel && columns ? 0 : plan_no_memory(g->e);

    if (st == 0 && (st = group_read(g)) == 0 && g->n_linears > 0 &&
        (st = choose_alpha(g, channel, columns, site)) == 0) {
        site->tried = true;
        if (site->alpha >= 0)
            st = apply(g, site->alpha, channel, columns);
        if (st == 0)
            st = settle(g, site->alpha >= 0 ? columns : NULL, site);
    }
    free(channel);
    free(columns);
    return st;
}
