/* Mixture of experts: x += the sum of the chosen experts' outputs times their weights, + the shared
 * experts' output. The rows of the tokens are sorted by expert, so that each expert's matrices are
 * read once for all of its tokens. */
#include "model/moe.h"

#include <stdlib.h>

#include "base/status.h"

void moe_shape(const struct model *m, const struct moe *y, struct work_shape *s)
{
    const struct kernels *k = m->k;

    s->forms |= K_FORM_F32; /* the rows that are sorted */
    raise_to(&s->expert_ffn, y->ffn);
    for (uint32_t i = 0; i < y->held.n; i++)
        s->expert_forms |= work_forms(k, y->gate_up[i]) | work_forms(k, y->down[i]);
    if (y->shared.ffn)
        mlp_shape(m, &y->shared, s);
}

/* Sorted rows that the bound on their buffers allows, and of them tokens. */
static void choose_sizes(struct moe_work *w, const struct model *m)
{
    const struct model_config *c = &m->cfg;
    uint32_t wide = c->hidden > 2 * w->ffn ? c->hidden : 2 * w->ffn;
    uint32_t most = MOE_SLICE_FLOATS / wide;

    if (most > K_MAX_TOKENS)
        most = K_MAX_TOKENS;
    w->slice = most > c->experts_per_token ? most / c->experts_per_token : 1;
    if (w->slice > w->max_tokens)
        w->slice = w->max_tokens;
    w->rows = w->slice * c->experts_per_token;
    if (!moe_apart(m))
        return;
    w->rows = w->rows < most / MOE_UNEVEN ? w->rows * MOE_UNEVEN : most;
    if (w->rows < m->part.ep_size)
        w->rows = m->part.ep_size;
}

static int create_buffers(struct moe_work *w, const struct model *m, const struct work_shape *s)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    int st;

    w->logits = work_rows(m, w->max_tokens, c->experts);
    w->up = work_rows(m, w->rows, 2 * w->ffn);
    w->out = work_rows(m, w->rows, c->hidden);
    if (!w->logits || !w->up || !w->out)
        return ERR_NOMEM;
    st = k->routes_create(k, &w->routes, w->slice, c->experts, c->experts_per_token);
    if (st == 0)
        st = k->act_create(k, &w->act, w->rows, c->hidden > w->ffn ? c->hidden : w->ffn,
                           s->expert_forms);
    return st == 0 && moe_apart(m) ? moe_travel_create(w, m, c->shared_experts > 0) : st;
}

int moe_work_create(struct moe_work **out, const struct model *m, uint32_t max_tokens,
                    const struct work_shape *s)
{
    struct moe_work *w = *out = calloc(1, sizeof *w);

    if (!w)
        return ERR_NOMEM;
    w->max_tokens = max_tokens;
    w->ffn = s->expert_ffn;
    choose_sizes(w, m);
    return create_buffers(w, m, s);
}

void moe_work_destroy(const struct model *m, struct moe_work *w)
{
    const struct model_config *c = &m->cfg;

    if (!w)
        return;
    moe_travel_destroy(m, w);
    work_rows_free(m, w->logits, w->max_tokens, c->experts);
    work_rows_free(m, w->up, w->rows, 2 * w->ffn);
    work_rows_free(m, w->out, w->rows, c->hidden);
    if (w->routes)
        m->k->routes_destroy(m->k, w->routes);
    m->k->act_destroy(m->k, w->act);
    free(w);
}

static struct k_router router_of(const struct model_config *c, const struct moe *y)
{
    return (struct k_router){
        .experts = c->experts,
        .top_k = c->experts_per_token,
        .groups = c->expert_groups,
        .top_groups = c->expert_top_groups,
        .sigmoid = c->expert_sigmoid,
        .group_two = c->expert_group_two,
        .normalize = c->expert_normalize,
        .scale = (float)c->expert_scale,
        .bias = y->bias,
    };
}

/* Ids (as floats) and weights of the slice that starts at token `at`. */
static void probe_routes(const struct model_work *w, uint32_t n, uint32_t at, uint32_t id)
{
    const struct k_routes *r = w->moe->routes;
    size_t count = (size_t)n * r->top_k;
    float *ids = malloc(count * sizeof *ids);

    for (size_t i = 0; ids && i < count; i++)
        ids[i] = (float)r->expert[i];
    work_probe(w, ids, r->top_k, n, r->top_k, "L%u.router_ids@%u", id, at);
    work_probe(w, r->weight, r->top_k, n, r->top_k, "L%u.router_weights@%u", id, at);
    free(ids);
}

void moe_score(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n)
{
    work_linear(m->k, w->moe->logits, m->cfg.experts, w->act, y->router, n, false);
}

void moe_route(const struct model *m, struct model_work *w, const struct moe *y, uint32_t at,
               uint32_t n, uint32_t id)
{
    const struct moe_work *e = w->moe;
    const struct k_router how = router_of(&m->cfg, y);

    m->k->route(m->k, e->routes, e->logits + (size_t)at * how.experts, how.experts, n, &how);
    if (w->probe)
        probe_routes(w, n, at, id);
}

void moe_experts(const struct model *m, struct model_work *w, const struct moe *y, const float *x,
                 const struct k_routes *r, uint32_t n)
{
    const struct kernels *k = m->k;
    const struct moe_work *e = w->moe;
    uint32_t hidden = m->cfg.hidden;

    k->act_sorted(k, e->act, x, hidden, r, n, hidden);
    k->linear_experts(k, e->up, 2 * y->ffn, e->act, (const struct k_matrix *const *)y->gate_up, r,
                      n);
    k->act_swiglu(k, e->act, e->up, 2 * y->ffn, n * r->top_k, y->ffn);
    k->linear_experts(k, e->out, hidden, e->act, (const struct k_matrix *const *)y->down, r, n);
}

/* What each expert's down is given to read, of those that have rows. */
static void probe_experts(const struct model *m, const struct model_work *w, uint32_t ffn,
                          uint32_t id)
{
    const struct k_routes *r = w->moe->routes;
    const float *x = m->k->act_floats(w->moe->act);

    for (uint32_t i = 0; x && i < r->experts; i++)
        if (r->first[i + 1] > r->first[i])
            work_probe(w, x + (size_t)r->first[i] * ffn, ffn, r->first[i + 1] - r->first[i], ffn,
                       "L%u.expert%u_act", id, i);
}

/* The chosen experts of n tokens from `at` on, to x; or, where each rank has a slice of every
 * expert, to the partial sums. */
static void run_slice(const struct model *m, struct model_work *w, const struct moe *y, uint32_t at,
                      uint32_t n, uint32_t id)
{
    const struct moe_work *e = w->moe;
    size_t skip = (size_t)at * m->cfg.hidden;
    float *to = w->sum ? w->sum : w->x;

    moe_route(m, w, y, at, n, id);
    moe_experts(m, w, y, m->k->act_floats(w->act) + skip, e->routes, n);
    if (w->probe)
        probe_experts(m, w, y->ffn, id);
    m->k->combine(m->k, to + skip, m->cfg.hidden, e->out, m->cfg.hidden, e->routes, n,
                  m->cfg.hidden, !w->sum);
}

void moe_run(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n,
             uint32_t id)
{
    const struct moe_work *e = w->moe;

    if (moe_apart(m)) {
        moe_exchange(m, w, y, n, id);
        return;
    }
    moe_score(m, w, y, n);
    for (uint32_t at = 0; at < n; at += e->slice)
        run_slice(m, w, y, at, n - at < e->slice ? n - at : e->slice, id);
    if (y->shared.ffn) {
        mlp_up(m, w, &y->shared, n);
        mlp_act(m, w, &y->shared, n);
        work_linear(m->k, w->sum ? w->sum : w->x, m->cfg.hidden, w->act, y->shared.down, n, true);
        if (w->probe)
            work_probe(w, m->k->act_floats(w->act), y->shared.ffn, n, y->shared.ffn,
                       "L%u.shared_act", id);
    }
    if (w->sum)
        work_sum(m, w, NULL, n);
}
