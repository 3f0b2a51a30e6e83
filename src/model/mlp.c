/* The dense feed-forward part: x += down(silu(gate(a)) * up(a)). */
#include <stdio.h>

#include "base/status.h"
#include "model/blocks.h"

int mlp_load(struct load *l, struct mlp *y, uint32_t id, const char *prefix, uint32_t ffn)
{
    const struct model_config *c = &l->m->cfg;
    char gate[TENSOR_MAX_NAME], up[TENSOR_MAX_NAME], name[TENSOR_MAX_NAME];
    const struct load_part gate_up[] = { { gate, ffn, 0, 0, 0 }, { up, ffn, 0, 0, 0 } };
    const struct load_part down = { name, c->hidden, 0, 0, 0 };
    uint64_t *bytes = &l->m->weight_bytes;
    int st;

    y->ffn = ffn;
    snprintf(gate, sizeof gate, "model.layers.%u.%s.gate_proj.weight", id, prefix);
    snprintf(up, sizeof up, "model.layers.%u.%s.up_proj.weight", id, prefix);
    snprintf(name, sizeof name, "model.layers.%u.%s.down_proj.weight", id, prefix);
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

void mlp_run(const struct model *m, struct model_work *w, const struct mlp *y, uint32_t n)
{
    const struct kernels *k = m->k;

    work_linear(k, w->wide, 2 * y->ffn, w->act, y->gate_up, n, false);
    k->act_swiglu(k, w->act, w->wide, 2 * y->ffn, n, y->ffn);
    work_linear(k, w->x, m->cfg.hidden, w->act, y->down, n, true);
}
