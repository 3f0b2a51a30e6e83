/* Mixture of experts: x += the sum of the chosen experts' outputs times their weights, + the shared
 * experts' output. The rows of the tokens are sorted by expert, so that each expert's matrices are
 * read once for all of its tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

/* A router's choice must not move with the weights' number format: it is multiplied in float32. */
static int load_router(struct load *l, struct moe *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    char name[TENSOR_MAX_NAME];
    const struct load_part part = { load_name(name, id, "mlp.gate.weight"), c->experts, 0, 0, 0 };
    int st;

    l->exact = true;
    st = load_matrix(l, &y->router, &part, 1, c->hidden, &l->m->weight_bytes);
    l->exact = false;
    if (st < 0 || !c->expert_bias)
        return st;
    load_name(name, id, "mlp.gate.e_score_correction_bias");
    return load_vector(l, &y->bias, name, c->experts);
}

/* gate_proj, up_proj or down_proj of an expert: a tensor of its own, or in a GGUF file a slice. */
static struct load_part expert_part(const struct load *l, char name[TENSOR_MAX_NAME], uint32_t id,
                                    uint32_t expert, const char *what, uint32_t rows)
{
    struct load_part p = { .name = name, .rows = rows };

    if (l->w->gguf) {
        snprintf(name, TENSOR_MAX_NAME, "model.layers.%u.mlp.experts.%s.weight", id, what);
        p.slice = expert;
        p.slices = l->m->cfg.experts;
    } else {
        snprintf(name, TENSOR_MAX_NAME, "model.layers.%u.mlp.experts.%u.%s.weight", id, expert,
                 what);
    }
    return p;
}

/* The bytes of all experts count: which of them a step reads is not known before. */
static int load_expert(struct load *l, struct moe *y, uint32_t id, uint32_t i)
{
    const struct model_config *c = &l->m->cfg;
    char gate[TENSOR_MAX_NAME], up[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    const struct load_part gate_up[] = {
        expert_part(l, gate, id, i, "gate_proj", c->expert_ffn),
        expert_part(l, up, id, i, "up_proj", c->expert_ffn),
    };
    const struct load_part down = expert_part(l, name, id, i, "down_proj", c->hidden);
    uint64_t *bytes = &l->m->weight_bytes;
    int st;

    if ((st = load_matrix(l, &y->gate_up[i], gate_up, 2, c->hidden, bytes)) < 0 ||
        (st = load_matrix(l, &y->down[i], &down, 1, c->expert_ffn, bytes)) < 0)
        return st;
    if (l->m->k->matrix_static(y->gate_up[i]) || l->m->k->matrix_static(y->down[i]))
        return err_set(
            l->e, ERR_UNSUPPORTED,
            "%s: tensor %s: experts whose activations have a static scale (W8A8) are not "
            "supported; W8A8_DYNAMIC ones are",
            l->w->path, name);
    return 0;
}

int moe_load(struct load *l, struct moe *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    int st = load_router(l, y, id);

    if (st < 0)
        return st;
    y->gate_up = calloc(c->experts, sizeof *y->gate_up);
    y->down = calloc(c->experts, sizeof *y->down);
    if (!y->gate_up || !y->down)
        return err_set(l->e, ERR_NOMEM, "no memory for %u experts of layer %u", c->experts, id);
    for (uint32_t i = 0; st == 0 && i < c->experts; i++)
        st = load_expert(l, y, id, i);
    if (st < 0 || c->shared_experts == 0)
        return st;
    return mlp_load(l, &y->shared, id, "mlp.shared_experts", c->shared_experts * c->expert_ffn);
}

static void free_experts(const struct model *m, struct k_matrix **w)
{
    for (uint32_t i = 0; w && i < m->cfg.experts; i++)
        m->k->unpack_free(m->k, w[i]);
    free(w);
}

void moe_unload(const struct model *m, struct moe *y)
{
    m->k->unpack_free(m->k, y->router);
    m->k->free(m->k, y->bias, m->cfg.experts * sizeof(float));
    free_experts(m, y->gate_up);
    free_experts(m, y->down);
    mlp_unload(m, &y->shared);
}

void moe_shape(const struct model *m, const struct moe *y, struct work_shape *s)
{
    const struct kernels *k = m->k;

    s->forms |= K_FORM_F32; /* the rows that are sorted */
    for (uint32_t i = 0; i < m->cfg.experts; i++)
        s->expert_forms |= work_forms(k, y->gate_up[i]) | work_forms(k, y->down[i]);
    if (y->shared.ffn)
        mlp_shape(m, &y->shared, s);
}

static uint32_t sorted_cols(const struct model_config *c)
{
    return c->hidden > 2 * c->expert_ffn ? c->hidden : 2 * c->expert_ffn;
}

static int create_buffers(struct moe_work *w, const struct model *m, uint32_t forms)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    uint32_t rows = w->slice * c->experts_per_token;
    int st;

    w->logits = work_rows(m, w->max_tokens, c->experts);
    w->up = work_rows(m, rows, 2 * c->expert_ffn);
    w->out = work_rows(m, rows, c->hidden);
    if (!w->logits || !w->up || !w->out)
        return ERR_NOMEM;
    st = k->routes_create(k, &w->routes, w->slice, c->experts, c->experts_per_token);
    if (st < 0)
        return st;
    return k->act_create(k, &w->act, rows, c->hidden > c->expert_ffn ? c->hidden : c->expert_ffn,
                         forms);
}

int moe_work_create(struct moe_work **out, const struct model *m, uint32_t max_tokens,
                    const struct work_shape *s)
{
    const struct model_config *c = &m->cfg;
    struct moe_work *w = *out = calloc(1, sizeof *w);
    uint32_t rows = MOE_SLICE_FLOATS / sorted_cols(c);

    if (!w)
        return ERR_NOMEM;
    if (rows > K_MAX_TOKENS)
        rows = K_MAX_TOKENS;
    w->max_tokens = max_tokens;
    w->slice = rows > c->experts_per_token ? rows / c->experts_per_token : 1;
    if (w->slice > max_tokens)
        w->slice = max_tokens;
    return create_buffers(w, m, s->expert_forms);
}

void moe_work_destroy(const struct model *m, struct moe_work *w)
{
    const struct model_config *c = &m->cfg;
    uint32_t rows;

    if (!w)
        return;
    rows = w->slice * c->experts_per_token;
    work_rows_free(m, w->logits, w->max_tokens, c->experts);
    work_rows_free(m, w->up, rows, 2 * c->expert_ffn);
    work_rows_free(m, w->out, rows, c->hidden);
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

/* The chosen experts of n tokens from `at` on. */
static void run_slice(const struct model *m, struct model_work *w, const struct moe *y, uint32_t at,
                      uint32_t n, uint32_t id)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    const struct moe_work *e = w->moe;
    const struct k_router how = router_of(c, y);
    const float *x = k->act_floats(w->act) + (size_t)at * c->hidden;
    uint32_t rows = n * c->experts_per_token, ffn = c->expert_ffn;

    k->route(k, e->routes, e->logits + (size_t)at * c->experts, c->experts, n, &how);
    if (w->probe)
        probe_routes(w, n, at, id);
    k->act_sorted(k, e->act, x, c->hidden, e->routes, n, c->hidden);
    k->linear_experts(k, e->up, 2 * ffn, e->act, (const struct k_matrix *const *)y->gate_up,
                      e->routes, n);
    k->act_swiglu(k, e->act, e->up, 2 * ffn, rows, ffn);
    k->linear_experts(k, e->out, c->hidden, e->act, (const struct k_matrix *const *)y->down,
                      e->routes, n);
    k->combine(k, w->x + (size_t)at * c->hidden, c->hidden, e->out, c->hidden, e->routes, n,
               c->hidden);
}

void moe_run(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n,
             uint32_t id)
{
    const struct moe_work *e = w->moe;

    work_linear(m->k, e->logits, m->cfg.experts, w->act, y->router, n, false);
    for (uint32_t at = 0; at < n; at += e->slice)
        run_slice(m, w, y, at, n - at < e->slice ? n - at : e->slice, id);
    if (y->shared.ffn)
        mlp_run(m, w, &y->shared, n);
}
