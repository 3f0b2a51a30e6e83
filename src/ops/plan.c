#include "ops/plan.h"

#include <stdlib.h>

#include "base/status.h"
#include "ops/group.h"
#include "ops/progress.h"

int plan_no_memory(struct err *e)
{
    return err_set(e, ERR_NOMEM, "no memory for the plan");
}

/* An array that lives as long as the plan. */
float *plan_own(struct plan *p, uint32_t n)
{
    float *a = malloc(n * sizeof *a);

    if (p->n_owned == p->cap_owned) {
        size_t cap = p->cap_owned ? 2 * p->cap_owned : 64;
        float **more = realloc(p->owned, cap * sizeof *more);

        if (!more) {
            free(a);
            return NULL;
        }
        p->owned = more;
        p->cap_owned = cap;
    }
    if (a)
        p->owned[p->n_owned++] = a;
    return a;
}

static int plan_site(struct group g, enum site site, const struct seen *seen)
{
    int st = 0;

    g.site = site;
    g.seen = seen;
    g.cols = g.seen->cols;
    if (g.cols == 0 || g.seen->n_rows == 0)
        return 0;
    g.n_channels = group_count_channels(&g);
    g.x_max = calloc(g.cols, sizeof *g.x_max);
    g.w_max = calloc(g.cols, sizeof *g.w_max);
    st = g.x_max && g.w_max ? smooth_group(&g) : plan_no_memory(g.e);
    for (uint32_t i = 0; i < g.n_linears; i++)
        free(g.taken[i]);
    free(g.x_max);
    free(g.w_max);
    return st;
}

/* Each expert by itself; the site gets their mean. */
static int plan_experts(struct group g, const struct calibration *seen)
{
    struct plan_site *site = &g.p->site[g.layer][SITE_EXPERT_OUT], mean = { .alpha = -1 };
    const struct seen *of = seen->expert + (size_t)g.layer * seen->n_experts;
    uint32_t tried = 0, smoothed = 0;
    double alpha = 0;
    int st = 0;

    for (g.expert = 0; st == 0 && g.expert < seen->n_experts; g.expert++) {
        *site = (struct plan_site){ 0 };
        st = plan_site(g, SITE_EXPERT_OUT, &of[g.expert]);
        if (!site->tried)
            continue;
        tried++;
        mean.error += site->error;
        mean.without += site->without;
        smoothed += site->alpha >= 0;
        alpha += site->alpha >= 0 ? site->alpha : 0;
    }
    if (smoothed)
        mean.alpha = alpha / smoothed;
    mean.tried = tried > 0;
    mean.error /= tried ? tried : 1;
    mean.without /= tried ? tried : 1;
    *site = mean;
    return st;
}

static uint64_t layer_range(const struct intake *in, uint32_t layer, size_t *first, size_t *end)
{
    uint64_t bytes = 0;
    size_t i = 0;

    while (i < in->blue.n && weights_layer_of(in->blue.t[i].name) != (long)layer)
        i++;
    *first = i;
    for (; i < in->blue.n && weights_layer_of(in->blue.t[i].name) == (long)layer; i++)
        bytes += in->source[i]->t.bytes;
    *end = i;
    return bytes;
}

static int plan_layer(struct plan *p, const struct intake *in, uint32_t layer,
                      const struct calibration *seen, const struct kernels *k,
                      const struct plan_options *opt, struct progress *progress, struct err *e)
{
    struct group g = { .p = p, .in = in, .k = k, .opt = opt, .layer = layer, .e = e };
    uint64_t bytes = layer_range(in, layer, &g.first, &g.end);
    int st = 0;

    for (int site = 0; st == 0 && site < SITES; site++)
        st = plan_site(g, (enum site)site, &seen->layer[layer][site]);
    if (st == 0)
        st = plan_experts(g, seen);
    for (size_t i = g.first; i < g.end; i++)
        intake_drop(in, i);
    if (progress)
        progress_add(progress, bytes);
    return st;
}

/* Without a trial: everything quantized with a scale a token. */
static enum part_store first_store(const struct blue_tensor *t)
{
    if (t->kind == BLUE_CORRECTION)
        return STORE_F32;
    return t->role == BLUE_ATTENTION || t->role == BLUE_MLP ? STORE_DYNAMIC : STORE_BF16;
}

int plan_make(struct plan *out, const struct intake *in, const struct calibration *seen,
              const struct kernels *k, const struct plan_options *opt, struct progress *progress,
              struct err *e)
{
    int st = 0;

    *out = (struct plan){ .n = in->blue.n, .n_layers = in->from.cfg.n_layers };
    out->t = calloc(out->n, sizeof *out->t);
    out->site = calloc(out->n_layers, sizeof *out->site);
    if (!out->t || !out->site)
        st = plan_no_memory(e);
    for (size_t i = 0; st == 0 && i < out->n; i++)
        out->t[i] = (struct plan_tensor){ .store = first_store(&in->blue.t[i]), .error = -1 };
    for (uint32_t i = 0; st == 0 && seen && i < out->n_layers; i++)
        st = plan_layer(out, in, i, seen, k, opt, progress, e);
    if (st < 0)
        plan_finish(out);
    return st;
}

void plan_finish(struct plan *p)
{
    for (size_t i = 0; i < p->n_owned; i++)
        free(p->owned[i]);
    free(p->owned);
    free(p->t);
    free(p->site);
    *p = (struct plan){ 0 };
}
