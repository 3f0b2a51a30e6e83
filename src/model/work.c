/* One step's activations, and the step: embedding, layers, and the logits of chosen rows. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

const struct k_matrix *model_head(const struct model *m)
{
    return m->head ? m->head : m->embed;
}

static bool is_last(const struct model *m)
{
    return m->final_norm != NULL;
}

float *work_rows(const struct model *m, uint32_t rows, uint32_t cols)
{
    return m->k->alloc(m->k, (size_t)rows * cols * sizeof(float));
}

void work_rows_free(const struct model *m, float *p, uint32_t rows, uint32_t cols)
{
    m->k->free(m->k, p, (size_t)rows * cols * sizeof(float));
}

uint32_t work_forms(const struct kernels *k, const struct k_matrix *w)
{
    uint32_t forms = k->matrix_form(w);

    return forms & K_FORM_I8S ? forms | K_FORM_F32 : forms;
}

void work_linear(const struct kernels *k, float *y, size_t ldy, struct k_act *a,
                 const struct k_matrix *w, uint32_t n, bool add)
{
    const struct k_static *fixed = k->matrix_static(w);

    if (fixed)
        k->act_static(k, a, n, fixed);
    k->linear(k, y, ldy, a, w, n, add);
}

static struct work_shape shape_of(const struct model *m)
{
    struct work_shape s = { 0 };

    for (uint32_t i = 0; i < m->n_layers; i++)
        layer_shape(m, &m->layers[i], &s);
    if (m->mtp)
        mtp_shape(m, &s);
    return s;
}

/* What only some layers need. */
static int create_parts(struct model_work *w)
{
    const struct model *m = w->m;
    int st = 0;

    if (m->cfg.kv_lora)
        st = mla_work_create(&w->mla, m, w->max_tokens, &w->shape);
    if (st == 0 && m->cfg.experts)
        st = moe_work_create(&w->moe, m, w->max_tokens, &w->shape);
    if (st == 0 && m->mtp)
        st = mtp_work_create(&w->mtp, m, w->max_tokens);
    return st;
}

static uint32_t head_forms(const struct model *m)
{
    uint32_t forms = work_forms(m->k, model_head(m));

    return m->mtp && m->mtp->head ? forms | work_forms(m->k, m->mtp->head) : forms;
}

/* The buffers of the layers, and on the last stage those of the head. */
static int create_buffers(struct model_work *w)
{
    const struct model *m = w->m;
    const struct kernels *k = m->k;
    uint32_t hidden = m->cfg.hidden;
    int st;

    w->x = work_rows(m, w->max_tokens, hidden);
    w->wide = work_rows(m, w->max_tokens, w->shape.wide);
    w->ctx = work_rows(m, w->max_tokens, w->shape.ctx);
    if (!w->x || !w->wide || !w->ctx)
        return ERR_NOMEM;
    if ((st = k->act_create(k, &w->act, w->max_tokens, w->shape.act, w->shape.forms)) < 0)
        return st;
    if ((st = create_parts(w)) < 0)
        return st;
    if (!is_last(m) || w->max_logit_rows == 0)
        return 0;
    w->head_x = work_rows(m, w->max_logit_rows, hidden);
    w->logits = work_rows(m, w->max_logit_rows, m->cfg.vocab);
    if (!w->head_x || !w->logits)
        return ERR_NOMEM;
    return k->act_create(k, &w->head_act, w->max_logit_rows, hidden, head_forms(m));
}

int model_work_create(struct model_work **out, const struct model *m, uint32_t max_tokens,
                      uint32_t max_logit_rows, struct err *e)
{
    struct model_work *w;
    int st;

    if (max_tokens < 1 || max_tokens > K_MAX_TOKENS)
        return err_set(e, ERR_RANGE, "%u tokens a step: at most %d are supported", max_tokens,
                       K_MAX_TOKENS);
    if (!(w = calloc(1, sizeof *w)))
        return err_set(e, ERR_NOMEM, "no memory");
    w->m = m;
    w->max_tokens = max_tokens;
    w->max_logit_rows = max_logit_rows;
    w->shape = shape_of(m);
    if ((st = create_buffers(w)) < 0) {
        model_work_destroy(w);
        return err_set(e, st,
                       "no memory for the activations of %u tokens and %u rows of logits; "
                       "lower --max-num-batched-tokens or --max-num-seqs",
                       max_tokens, max_logit_rows);
    }
    *out = w;
    return 0;
}

void model_work_destroy(struct model_work *w)
{
    const struct kernels *k;

    if (!w)
        return;
    k = w->m->k;
    work_rows_free(w->m, w->x, w->max_tokens, w->m->cfg.hidden);
    work_rows_free(w->m, w->wide, w->max_tokens, w->shape.wide);
    work_rows_free(w->m, w->ctx, w->max_tokens, w->shape.ctx);
    work_rows_free(w->m, w->head_x, w->max_logit_rows, w->m->cfg.hidden);
    work_rows_free(w->m, w->logits, w->max_logit_rows, w->m->cfg.vocab);
    k->act_destroy(k, w->act);
    k->act_destroy(k, w->head_act);
    mla_work_destroy(w->m, w->mla);
    moe_work_destroy(w->m, w->moe);
    mtp_work_destroy(w->m, w->mtp, w->max_tokens);
    free(w);
}

void model_set_probe(struct model_work *w, model_probe_fn *fn, void *arg)
{
    w->probe = fn;
    w->probe_arg = arg;
}

void work_probe(const struct model_work *w, const float *rows, size_t ld, uint32_t n, uint32_t cols,
                const char *fmt, ...)
{
    char name[64];
    va_list ap;

    if (!w->probe || !rows)
        return;
    va_start(ap, fmt);
    vsnprintf(name, sizeof name, fmt, ap);
    va_end(ap);
    w->probe(w->probe_arg, name, rows, ld, n, cols);
}

struct step {
    const struct model *m;
    struct model_work *w;
    const struct k_kv *kv;
    const struct model_batch *b;
};

static void probe_final_norm(const struct model *m, const struct model_work *w, uint32_t n)
{
    uint32_t hidden = m->cfg.hidden;

    m->k->act_norm(m->k, w->act, w->x, hidden, m->final_norm, m->final_norm_bias, n, hidden,
                   m->cfg.norm_eps);
    work_probe(w, m->k->act_floats(w->act), hidden, n, hidden, "final_norm");
}

/* [team] */
static void run_step(void *arg)
{
    const struct step *s = arg;
    const struct model *m = s->m;
    struct model_work *w = s->w;

    if (m->first_layer == 0)
        m->k->embed(m->k, w->x, m->cfg.hidden, m->embed, s->b->ids, s->b->n);
    if (w->probe)
        work_probe(w, w->x, m->cfg.hidden, s->b->n, m->cfg.hidden, "embed");
    for (uint32_t i = 0; i < m->n_layers; i++)
        layer_run(m, w, &m->layers[i], &s->kv[i], s->b, m->first_layer + i);
    if (w->probe && is_last(m))
        probe_final_norm(m, w, s->b->n);
}

void work_plan(const struct model *m, struct model_work *w, const struct model_batch *b)
{
    assert(b->n <= w->max_tokens);
    if (w->mla)
        mla_plan(m, w->mla, b);
}

void model_forward(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b)
{
    struct step s = { m, w, kv, b };

    if (b->n == 0)
        return;
    work_plan(m, w, b);
    if (w->mtp)
        w->mtp->drafted = false;
    /* A probe wants the rows of one step before the next begins: then the calling thread does
     * everything alone, with the same results. */
    if (w->probe)
        run_step(&s);
    else
        m->k->run(m->k, run_step, &s);
}

struct head_step {
    const struct model *m;
    struct model_work *w;
    const struct norm *norm;
    const struct k_matrix *head;
    const uint32_t *rows;
    uint32_t n;
};

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
    work_linear(k, w->logits, m->cfg.vocab, w->head_act, s->head, s->n, false);
}

float *work_logits(const struct model *m, struct model_work *w, const struct norm *norm,
                   const struct k_matrix *head, const uint32_t *rows, uint32_t n_rows, size_t *ld)
{
    struct head_step s = { m, w, norm, head, rows, n_rows };

    assert(is_last(m) && n_rows <= w->max_logit_rows);
    if (n_rows > 0)
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
