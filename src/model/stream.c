/* The residual stream of a rank among tensor-parallel ones. Every rank computes every row of a block,
 * but only a part of each output: the parts are summed over the ranks, in their order, and added.
 *
 * Sequence parallel, a rank keeps some of the rows between the blocks. It gets the sums of these only,
 * normalizes these only, and the normalized rows of all ranks are gathered. The sums are the same
 * ones, so the results have the same bits. */
#include "model/blocks.h"

/* What a host job does with w->peers. */
struct exchange {
    const struct model_peers *peers;
    float *all, *own;
    size_t n; /* floats: of all, or of each rank's share */
};

static void all_reduce(void *job)
{
    const struct exchange *x = job;

    x->peers->all_reduce(x->peers->arg, x->all, x->n);
}

static void reduce_scatter(void *job)
{
    const struct exchange *x = job;

    x->peers->reduce_scatter(x->peers->arg, x->own, x->all, x->n);
}

static void all_gather(void *job)
{
    const struct exchange *x = job;

    x->peers->all_gather(x->peers->arg, x->all, x->own, x->n * sizeof *x->own);
}

static void exchange(const struct model *m, void (*fn)(void *job), float *all, float *own, size_t n)
{
    struct exchange x = { m->part.peers, all, own, n };

    m->k->host(m->k, fn, &x, sizeof x);
}

void stream_plan(const struct model *m, struct model_work *w, const int32_t *ids, uint32_t n)
{
    uint32_t tp = m->part.tp_size, from;

    w->spread = m->part.sequence_parallel && !w->probe;
    w->each = w->spread ? (n + tp - 1) / tp : n;
    from = w->spread ? m->part.tp_rank * w->each : 0;
    from = from < n ? from : n;
    w->own = (struct share){ from, n - from < w->each ? n - from : w->each };
    for (uint32_t i = 0; w->ids && i < n; i++) {
        uint32_t row = ids ? (uint32_t)ids[i] - m->ids.from : m->ids.n;

        w->ids[i] = row < m->ids.n ? (int32_t)row : -1;
    }
}

/* This rank's share of rows, full or not, in a buffer of all. */
static float *share_of_rows(const struct model *m, const struct model_work *w, float *rows)
{
    return rows + (size_t)m->part.tp_rank * w->each * m->cfg.hidden;
}

void peers_gather(const struct model *m, float *all, size_t n)
{
    exchange(m, all_gather, all, all + m->part.tp_rank * n, n);
}

void stream_gather(const struct model *m, const struct model_work *w, float *rows)
{
    exchange(m, all_gather, rows, share_of_rows(m, w, rows), (size_t)w->each * m->cfg.hidden);
}

void stream_embed(const struct model *m, const struct model_work *w, const struct k_matrix *table,
                  float *rows, const int32_t *ids, uint32_t n)
{
    uint32_t hidden = m->cfg.hidden;

    m->k->embed(m->k, rows, hidden, table, w->ids ? w->ids : ids, n);
    if (w->ids)
        exchange(m, all_reduce, rows, NULL, (size_t)n * hidden);
}

void work_norm(const struct model *m, struct model_work *w, const struct norm *norm, uint32_t n)
{
    uint32_t hidden = m->cfg.hidden;
    const struct kernels *k = m->k;
    size_t at = (size_t)w->own.from * hidden;
    const struct k_heads own = { w->sum + at, hidden, hidden };

    if (!w->spread) {
        k->act_norm(k, w->act, w->x, hidden, norm->gain, norm->bias, n, hidden, m->cfg.norm_eps);
        return;
    }
    k->gather(k, own.p, hidden, w->x + at, hidden, w->same, w->own.n, hidden);
    k->norm_heads(k, own, w->own.n, 1, hidden, norm->gain, norm->bias, m->cfg.norm_eps);
    stream_gather(m, w, w->sum);
    k->act_load(k, w->act, w->sum, hidden, n, hidden);
}

void work_sum(const struct model *m, const struct model_work *w, const float *bias, uint32_t n)
{
    uint32_t hidden = m->cfg.hidden;
    const struct kernels *k = m->k;
    size_t at = (size_t)w->own.from * hidden;

    if (w->spread)
        exchange(m, reduce_scatter, w->sum, share_of_rows(m, w, w->sum), (size_t)w->each * hidden);
    else
        exchange(m, all_reduce, w->sum, NULL, (size_t)n * hidden);
    k->add_rows(k, w->x + at, hidden, w->sum + at, hidden, w->own.n, hidden);
    if (bias)
        k->add_bias(k, w->x + at, hidden, bias, w->own.n, hidden);
}

void work_output(const struct model *m, const struct model_work *w, const struct k_matrix *matrix,
                 const float *bias, uint32_t n)
{
    uint32_t hidden = m->cfg.hidden;

    if (w->sum) {
        work_linear(m->k, w->sum, hidden, w->act, matrix, n, false);
        work_sum(m, w, bias, n);
        return;
    }
    work_linear(m->k, w->x, hidden, w->act, matrix, n, true);
    if (bias)
        m->k->add_bias(m->k, w->x, hidden, bias, n, hidden);
}
