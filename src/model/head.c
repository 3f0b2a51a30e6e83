/* Logits: the final norm of chosen rows times the head. Tensor-parallel ranks have some of the
 * vocabulary each; what they make is gathered on all of them. Data-parallel ranks that share a head
 * do that in head_exchange.c. */
#include <assert.h>

#include "base/status.h"
#include "model/blocks.h"

const struct k_matrix *model_head(const struct model *m)
{
    return m->head ? m->head : m->embed;
}

static uint32_t head_forms(const struct model *m)
{
    uint32_t forms = work_forms(m->k, model_head(m));

    return m->mtp && m->mtp->head ? forms | work_forms(m->k, m->mtp->head) : forms;
}

/* The largest share of the vocabulary: what each rank has room for. */
static uint32_t largest(const struct model *m)
{
    return part_ids(m, 0).n;
}

int head_work_create(struct model_work *w)
{
    const struct model *m = w->m;
    const struct kernels *k = m->k;
    uint32_t hidden = m->cfg.hidden, rows = w->max_logit_rows, tp = m->part.tp_size;
    int st;

    if (!m->final_norm || rows == 0)
        return 0;
    w->head_x = work_rows(m, rows, hidden);
    w->logits = work_rows(m, rows, m->cfg.vocab);
    if (tp > 1)
        w->parts = work_rows(m, tp * rows, largest(m));
    if (!w->head_x || !w->logits || (tp > 1 && !w->parts))
        return ERR_NOMEM;
    if (m->part.head_size > 1 && (st = head_travel_create(w)) < 0)
        return st;
    if (m->part.head_size > 1)
        rows = head_travel_rows(m, rows);
    return k->act_create(k, &w->head_act, rows, hidden, head_forms(m));
}

void head_work_destroy(struct model_work *w)
{
    const struct model *m = w->m;
    uint32_t rows = w->max_logit_rows;

    head_travel_destroy(w);
    work_rows_free(m, w->head_x, rows, m->cfg.hidden);
    work_rows_free(m, w->logits, rows, m->cfg.vocab);
    work_rows_free(m, w->parts, m->part.tp_size * rows, largest(m));
    m->k->act_destroy(m->k, w->head_act);
}

struct head_step {
    const struct model *m;
    struct model_work *w;
    const struct norm *norm;
    const struct k_matrix *head;
    const uint32_t *rows;
    uint32_t n;
};

/* [team] This rank's part of the rows to its place among those of all, which are then brought side by
 * side. */
static void run_parts(const struct head_step *s)
{
    const struct model *m = s->m;
    const struct kernels *k = m->k;
    struct model_work *w = s->w;
    uint32_t ld = largest(m), vocab = m->cfg.vocab;
    size_t each = (size_t)s->n * ld;

    work_linear(k, w->parts + m->part.tp_rank * each, ld, w->head_act, s->head, s->n, false);
    peers_gather(m, w->parts, each);
    for (uint32_t t = 0; t < m->part.tp_size; t++) {
        struct share ids = part_ids(m, t);

        k->gather(k, w->logits + ids.from, vocab, w->parts + t * each, ld, w->same, s->n, ids.n);
    }
}

/* [team] */
static void run_head(void *arg)
{
    const struct head_step *s = arg;
    const struct model *m = s->m;
    const struct kernels *k = m->k;
    struct model_work *w = s->w;
    uint32_t hidden = m->cfg.hidden;

    k->gather(k, w->head_x, hidden, w->x, hidden, s->rows, s->n, hidden);
    k->act_norm(k, w->head_act, w->head_x, hidden, s->norm->gain, s->norm->bias, s->n, hidden,
                m->cfg.norm_eps);
    if (m->part.tp_size > 1)
        run_parts(s);
    else
        work_linear(k, w->logits, m->cfg.vocab, w->head_act, s->head, s->n, false);
}

float *work_logits(const struct model *m, struct model_work *w, const struct norm *norm,
                   const struct k_matrix *head, const uint32_t *rows, uint32_t n_rows, size_t *ld)
{
    struct head_step s = { m, w, norm, head, rows, n_rows };

    assert(m->final_norm && n_rows <= w->max_logit_rows);
    if (w->head_travel)
        head_exchange(m, w, norm, head, rows, n_rows);
    else if (n_rows > 0)
        m->k->run(m->k, run_head, &s);
    *ld = m->cfg.vocab;
    return w->logits;
}

float *model_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                    uint32_t n_rows, size_t *ld)
{
    const struct norm norm = { m->final_norm, m->final_norm_bias };

    assert(!w->mtp || !w->mtp->drafted);
    return work_logits(m, w, &norm, model_head(m), rows, n_rows, ld);
}
