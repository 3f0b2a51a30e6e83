/* One step's activations, and the step: embedding, layers, and the logits of chosen rows. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "model/blocks.h"

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

/* Rows of the stream, filled up to equal shares of all ranks. */
static uint32_t stream_rows(const struct model_work *w)
{
    return w->max_tokens + w->m->part.tp_size - 1;
}

static uint32_t most_rows(const struct model_work *w)
{
    return w->max_tokens > w->max_logit_rows ? w->max_tokens : w->max_logit_rows;
}

/* What a rank among others needs besides. */
static int create_shared(struct model_work *w)
{
    const struct model *m = w->m;
    const struct kernels *k = m->k;

    if (m->part.tp_size == 1)
        return 0;
    w->sum = work_rows(m, stream_rows(w), m->cfg.hidden);
    w->ids = k->alloc(k, w->max_tokens * sizeof *w->ids);
    w->same = k->alloc(k, most_rows(w) * sizeof *w->same);
    if (!w->sum || !w->ids || !w->same)
        return ERR_NOMEM;
    for (uint32_t i = 0; i < most_rows(w); i++)
        w->same[i] = i;
    return 0;
}

/* The buffers of the layers, and on the last stage those of the head. */
static int create_buffers(struct model_work *w)
{
    const struct model *m = w->m;
    const struct kernels *k = m->k;
    int st;

    w->x = work_rows(m, stream_rows(w), m->cfg.hidden);
    w->wide = work_rows(m, w->max_tokens, w->shape.wide);
    w->ctx = work_rows(m, w->max_tokens, w->shape.ctx);
    if (!w->x || !w->wide || !w->ctx)
        return ERR_NOMEM;
    if ((st = k->act_create(k, &w->act, w->max_tokens, w->shape.act, w->shape.forms)) < 0)
        return st;
    if ((st = create_shared(w)) < 0 || (st = create_parts(w)) < 0)
        return st;
    return head_work_create(w);
}

int model_work_create(struct model_work **out, const struct model *m, uint32_t max_tokens,
                      uint32_t max_logit_rows, struct err *e)
{
    const struct model_part *part = &m->part;
    struct model_work *w;
    int st;

    assert(part->peers || (part->tp_size == 1 && part->ep_size == 1 && part->head_size == 1));
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
    work_rows_free(w->m, w->x, stream_rows(w), w->m->cfg.hidden);
    work_rows_free(w->m, w->sum, stream_rows(w), w->m->cfg.hidden);
    k->free(k, w->ids, w->max_tokens * sizeof *w->ids);
    k->free(k, w->same, most_rows(w) * sizeof *w->same);
    work_rows_free(w->m, w->wide, w->max_tokens, w->shape.wide);
    work_rows_free(w->m, w->ctx, w->max_tokens, w->shape.ctx);
    k->act_destroy(k, w->act);
    head_work_destroy(w);
    mla_work_destroy(w->m, w->mla);
    moe_work_destroy(w->m, w->moe);
    mtp_work_destroy(w->m, w->mtp, w->max_tokens);
    free(w);
}

void model_watch_layers(struct model_work *w, void (*done)(void *arg, uint32_t layer), void *arg)
{
    w->layer_done = done;
    w->layer_arg = arg;
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

void work_run(const struct model *m, const struct model_work *w, void (*fn)(void *arg), void *arg)
{
    if (w->probe)
        fn(arg);
    else
        m->k->run(m->k, fn, arg);
}

struct step {
    const struct model *m;
    struct model_work *w;
    const struct model_batch *b;
};

/* [team] */
static void begin_step(void *arg)
{
    const struct step *s = arg;
    const struct model *m = s->m;

    if (m->first_layer == 0)
        stream_embed(m, s->w, m->embed, s->w->x, s->b->ids, s->b->n);
    if (s->w->probe)
        work_probe(s->w, s->w->x, m->cfg.hidden, s->b->n, m->cfg.hidden, "embed");
}

static void probe_final_norm(const struct model *m, const struct model_work *w, uint32_t n)
{
    uint32_t hidden = m->cfg.hidden;

    m->k->act_norm(m->k, w->act, w->x, hidden, m->final_norm, m->final_norm_bias, n, hidden,
                   m->cfg.norm_eps);
    work_probe(w, m->k->act_floats(w->act), hidden, n, hidden, "final_norm");
}

void work_plan(const struct model *m, struct model_work *w, const struct model_batch *b)
{
    assert(b->n <= w->max_tokens);
    stream_plan(m, w, b->ids, b->n);
    if (w->mla)
        mla_plan(m, w->mla, b);
}

void model_forward(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b)
{
    struct step step = { m, w, b };
    const struct span s = { .begin = begin_step,
                            .arg = &step,
                            .layers = m->layers,
                            .n = m->n_layers,
                            .id = m->first_layer,
                            .kv = kv,
                            .b = b };

    if (w->mtp)
        w->mtp->drafted = false;
    if (b->n == 0 && !moe_apart(m))
        return;
    work_plan(m, w, b);
    layers_run(m, w, &s);
    if (w->probe && m->final_norm)
        probe_final_norm(m, w, b->n);
}

float *model_states(struct model_work *w)
{
    return w->x;
}
