/* The dense feed-forward part: x += down(silu(gate(a)) * up(a)). */
#include <stdio.h>

#include "base/status.h"
#include "model/blocks.h"

int mlp_load(struct load *l, struct mlp *y, uint32_t id, const char *prefix, uint32_t ffn)
{
    const struct model_config *c = &l->m->cfg;
    char gate[TENSOR_MAX_NAME], up[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    struct load_part gate_up[] = { { .name = gate, .rows = ffn }, { .name = up, .rows = ffn } };
    struct load_part down = { .name = name, .rows = c->hidden };
    uint64_t *bytes = &l->m->weight_bytes;
    struct share mine;
    int st;

    snprintf(gate, sizeof gate, "model.layers.%u.%s.gate_proj.weight", id, prefix);
    snprintf(up, sizeof up, "model.layers.%u.%s.up_proj.weight", id, prefix);
    snprintf(name, sizeof name, "model.layers.%u.%s.down_proj.weight", id, prefix);
    if ((st = part_ffn(l, &mine, name, ffn)) < 0)
        return st;
    y->ffn = mine.n;
    gate_up[0].only_rows = gate_up[1].only_rows = down.only_cols = mine;
    st = load_matrix(l, &y->gate_up, gate_up, 2, c->hidden, bytes);
    return st < 0 ? st : load_matrix(l, &y->down, &down, 1, ffn, bytes);
}

void mlp_unload(const struct model *m, struct mlp *y)
{
    m->k->unpack_free(m->k, y->gate_up);
    m->k->unpack_free(m->k, y->down);
}

void mlp_shape(const struct model *m, const struct mlp *y, struct work_shape *s)
{
    raise_to(&s->wide, 2 * y->ffn);
    raise_to(&s->act, y->ffn);
    s->forms |= work_forms(m->k, y->gate_up) | work_forms(m->k, y->down);
}

void mlp_up(const struct model *m, struct model_work *w, const struct mlp *y, uint32_t n)
{
    work_linear(m->k, w->wide, 2 * y->ffn, w->act, y->gate_up, n, false);
}

void mlp_act(const struct model *m, struct model_work *w, const struct mlp *y, uint32_t n)
{
    m->k->act_swiglu(m->k, w->act, w->wide, 2 * y->ffn, n, y->ffn);
}
