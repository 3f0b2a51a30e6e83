/* The weights of a mixture of experts. */
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

/* A router's choice must not move with the weights' number format: it is multiplied in float32. */
static int load_router(struct load *l, struct moe *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    char name[TENSOR_MAX_NAME];
    const struct load_part part = { .name = load_name(name, id, "mlp.gate.weight"),
                                    .rows = c->experts };
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

static int check_expert(struct load *l, const struct k_matrix *gate_up, const struct k_matrix *down,
                        const char *name)
{
    const struct kernels *k = l->m->k;

    if (!k->matrix_static(gate_up) && !k->matrix_static(down))
        return 0;
    return err_set(l->e, ERR_UNSUPPORTED,
                   "%s: tensor %s: experts whose activations have a static scale (W8A8) are not "
                   "supported; W8A8_DYNAMIC ones are",
                   l->w->path, name);
}

/* Expert `expert` becomes the i-th of this rank. The bytes of all experts count: which of them a
 * step reads is not known before. */
static int load_expert(struct load *l, struct moe *y, uint32_t id, uint32_t expert, uint32_t i)
{
    const struct model_config *c = &l->m->cfg;
    char gate[TENSOR_MAX_NAME], up[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    struct load_part gate_up[] = {
        expert_part(l, gate, id, expert, "gate_proj", c->expert_ffn),
        expert_part(l, up, id, expert, "up_proj", c->expert_ffn),
    };
    struct load_part down = expert_part(l, name, id, expert, "down_proj", c->hidden);
    uint64_t *bytes = &l->m->weight_bytes;
    struct share ffn = { 0, c->expert_ffn };
    int st = moe_apart(l->m) ? 0 : part_ffn(l, &ffn, name, c->expert_ffn);

    if (st < 0)
        return st;
    gate_up[0].only_rows = gate_up[1].only_rows = down.only_cols = ffn;
    y->ffn = ffn.n;
    if ((st = load_matrix(l, &y->gate_up[i], gate_up, 2, c->hidden, bytes)) < 0 ||
        (st = load_matrix(l, &y->down[i], &down, 1, c->expert_ffn, bytes)) < 0)
        return st;
    return check_expert(l, y->gate_up[i], y->down[i], name);
}

int moe_load(struct load *l, struct moe *y, uint32_t id)
{
    const struct model_config *c = &l->m->cfg;
    int st = load_router(l, y, id);

    if (st < 0)
        return st;
    y->held = l->m->experts;
    y->gate_up = calloc(y->held.n, sizeof *y->gate_up);
    y->down = calloc(y->held.n, sizeof *y->down);
    if (!y->gate_up || !y->down)
        return err_set(l->e, ERR_NOMEM, "no memory for %u experts of layer %u", y->held.n, id);
    for (uint32_t i = 0; st == 0 && i < y->held.n; i++)
        st = load_expert(l, y, id, y->held.from + i, i);
    if (st < 0 || c->shared_experts == 0)
        return st;
    return mlp_load(l, &y->shared, id, "mlp.shared_experts", c->shared_experts * c->expert_ffn);
}

static void free_experts(const struct model *m, struct k_matrix **w, uint32_t n)
{
    for (uint32_t i = 0; w && i < n; i++)
        m->k->unpack_free(m->k, w[i]);
    free(w);
}

void moe_unload(const struct model *m, struct moe *y)
{
    m->k->unpack_free(m->k, y->router);
    m->k->free(m->k, y->bias, m->cfg.experts * sizeof(float));
    free_experts(m, y->gate_up, y->held.n);
    free_experts(m, y->down, y->held.n);
    mlp_unload(m, &y->shared);
}
