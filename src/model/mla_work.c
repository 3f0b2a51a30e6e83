/* What latent attention needs for a step: buffers, and how a batch is cut into slices. */
#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

/* Positions of a sequence whose keys are expanded at once: whole pieces. */
#define MLA_EXPAND_POSITIONS K_MAX_TOKENS
_Static_assert(MLA_EXPAND_POSITIONS % KV_PIECE == 0, "parts of keys end where pieces do");
/* float32 is where the goldens judge: always absorbed. */
bool mla_expands(const struct model *m)
{
    return m->math == K_MATH_FAST;
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t max_u32(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static int create_absorbed(struct mla_work *w, const struct model *m, uint32_t forms)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;
    uint32_t n = w->rows * m->heads;

    w->q = work_rows(m, n, c->kv_lora);
    w->ctx = work_rows(m, n, c->kv_lora);
    w->gather = k->alloc(k, (size_t)w->max_tokens * m->heads * sizeof *w->gather);
    w->seqs = calloc(w->max_tokens, sizeof *w->seqs);
    w->slices = calloc(w->max_tokens, sizeof *w->slices);
    if (!w->q || !w->ctx || !w->gather || !w->seqs || !w->slices)
        return ERR_NOMEM;
    return k->act_create(k, &w->act, n, max_u32(c->nope_dim, c->kv_lora), forms);
}

static int create_expanded(struct mla_work *w, const struct model *m, uint32_t forms)
{
    const struct model_config *c = &m->cfg;
    uint32_t each;

    w->positions = w->part = min_u32(m->max_pos, MLA_EXPAND_POSITIONS);
    each = w->positions * (c->nope_dim + c->v_dim);
    w->heads = min_u32(m->heads, max_u32(1, MLA_EXPAND_FLOATS / each));
    w->latent = work_rows(m, w->positions, c->kv_lora);
    w->pe = work_rows(m, w->positions, c->rope_dim);
    w->key = work_rows(m, w->positions * w->heads, c->nope_dim);
    w->value = work_rows(m, w->positions * w->heads, c->v_dim);
    w->sums = work_rows(m, w->max_tokens * w->heads, 2);
    if (!w->latent || !w->pe || !w->key || !w->value || !w->sums)
        return ERR_NOMEM;
    return m->k->act_create(m->k, &w->latent_act, w->positions, c->kv_lora, forms);
}

int mla_work_create(struct mla_work **out, const struct model *m, uint32_t max_tokens,
                    const struct work_shape *s)
{
    struct mla_work *w = *out = calloc(1, sizeof *w);
    int st;

    if (!w)
        return ERR_NOMEM;
    w->max_tokens = max_tokens;
    w->rows = min_u32(max_tokens, K_MAX_TOKENS / m->heads);
    st = create_absorbed(w, m, s->head_forms);
    if (st < 0 || !mla_expands(m))
        return st;
    return create_expanded(w, m, s->head_forms);
}

void mla_work_destroy(const struct model *m, struct mla_work *w)
{
    const struct model_config *c = &m->cfg;
    const struct kernels *k = m->k;

    if (!w)
        return;
    work_rows_free(m, w->q, w->rows * m->heads, c->kv_lora);
    work_rows_free(m, w->ctx, w->rows * m->heads, c->kv_lora);
    k->free(k, w->gather, (size_t)w->max_tokens * m->heads * sizeof *w->gather);
    work_rows_free(m, w->latent, w->positions, c->kv_lora);
    work_rows_free(m, w->pe, w->positions, c->rope_dim);
    work_rows_free(m, w->key, w->positions * w->heads, c->nope_dim);
    work_rows_free(m, w->value, w->positions * w->heads, c->v_dim);
    work_rows_free(m, w->sums, w->max_tokens * w->heads, 2);
    k->act_destroy(k, w->act);
    k->act_destroy(k, w->latent_act);
    free(w->seqs);
    free(w->slices);
    free(w);
}

/* Leading rows of a sequence that are expanded: all of its prompt. How a prompt is cut, and what else is in
 * the batch, must not change a row. */
static uint32_t expanded_rows(const struct mla_work *w, const struct model_batch *b, uint32_t i)
{
    if (!w->positions || !b->n_prompt_rows)
        return 0;
    return min_u32(b->n_prompt_rows[i], b->seqs[i].n);
}

/* Appends rows [from, from + n) of the sequence to the slice. */
static void add_piece(struct mla_slice *t, struct k_seq *piece, const struct k_seq *s,
                      uint32_t from, uint32_t n)
{
    *piece = (struct k_seq){ t->n, n, s->pos + from, s->blocks };
    if (t->n_seqs++ == 0) {
        t->row = s->row + from;
        t->seqs = piece;
    }
    assert(t->row + t->n == s->row + from);
    t->n += n;
}

static void fill_gather(uint32_t *out, uint32_t n, uint32_t heads)
{
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < n; i++)
            out[(size_t)h * n + i] = i * heads + h;
}

/* Absorbed rows fill slices one after another; the expanded ones of a sequence have a slice of their own.
 * The last entry of slices is the one that is being filled. */
static void cut(struct mla_work *w, const struct model_batch *b)
{
    struct mla_slice *t = w->slices;
    uint32_t n_pieces = 0;

    *t = (struct mla_slice){ 0 };
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct k_seq *s = &b->seqs[i];
        uint32_t first = expanded_rows(w, b, i);

        for (uint32_t at = 0; at < s->n;) {
            bool expanded = at < first;
            uint32_t room = expanded ? first : w->rows - t->n;

            if (t->n && (expanded || t->expanded || room == 0)) {
                *++t = (struct mla_slice){ 0 };
                room = expanded ? first : w->rows;
            }
            room = min_u32(room, (expanded ? first : s->n) - at);
            add_piece(t, &w->seqs[n_pieces++], s, at, room);
            t->expanded = expanded;
            at += room;
        }
    }
    w->n_slices = (uint32_t)(t - w->slices) + (t->n > 0);
}

void mla_plan(const struct model *m, struct mla_work *w, const struct model_batch *b)
{
    cut(w, b);
    for (uint32_t i = 0; i < w->n_slices; i++) {
        struct mla_slice *t = &w->slices[i];
        uint32_t *gather = w->gather + (size_t)t->row * m->heads;

        t->gather = gather;
        if (!t->expanded)
            fill_gather(gather, t->n, m->heads);
    }
}
