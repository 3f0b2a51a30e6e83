#include "engine/worker.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

/* Logit rows made and sampled at a time: 64 rows of a large vocabulary stay within 40 MB. */
#define WORKER_LOGIT_ROWS 64

/* One row whose logits are wanted. */
struct pick {
    uint32_t row;      /* of the batch */
    uint32_t entry;    /* of the plan */
    uint32_t position; /* of the token that the logits speak of */
    bool token;        /* chooses it (else: reports the prompt's own) */
};

struct worker {
    const struct kernels *k;
    const struct model *model;
    struct model_work *work;
    struct k_kv *kv; /* one a layer */
    uint32_t max_tokens, max_seqs;
    int32_t *ids; /* [max_tokens] */
    uint32_t *pos;
    struct k_seq *seqs; /* [max_seqs] */
    struct sample_rows rows;
    struct k_choice *choice; /* [WORKER_LOGIT_ROWS] */
    struct pick pick[WORKER_LOGIT_ROWS];
    uint32_t pick_row[WORKER_LOGIT_ROWS];
    uint32_t n_picks;
};

static void map_pool(struct worker *w, const struct worker_options *o)
{
    const struct kv_layout *l = &o->layout;
    char *base = o->pool;

    for (uint32_t i = 0; i < l->n_layers; i++)
        w->kv[i] = (struct k_kv){
            .k = base + kv_layout_offset(l, i, 0, 0),
            .v = base + kv_layout_offset(l, i, 1, 0),
            .type = model_kv_type(o->model),
            .block_tokens = l->block_tokens,
            .kv_heads = l->kv_heads,
            .head_dim = l->head_dim,
        };
}

int engine_worker_create(struct worker **out, const struct worker_options *o, struct err *e)
{
    struct worker *w = calloc(1, sizeof *w);
    uint32_t vocab = model_config(o->model)->vocab;
    int st;

    if (!w)
        return err_set(e, ERR_NOMEM, "no memory for the worker");
    w->k = o->kernels;
    w->model = o->model;
    w->max_tokens = o->max_batched_tokens;
    w->max_seqs = o->max_seqs;
    w->kv = calloc(o->layout.n_layers, sizeof *w->kv);
    w->ids = calloc(w->max_tokens, sizeof *w->ids);
    w->pos = calloc(w->max_tokens, sizeof *w->pos);
    w->seqs = calloc(w->max_seqs, sizeof *w->seqs);
    w->choice = calloc(WORKER_LOGIT_ROWS, sizeof *w->choice);
    if (!w->kv || !w->ids || !w->pos || !w->seqs || !w->choice ||
        engine_rows_init(&w->rows, WORKER_LOGIT_ROWS, o->max_model_len, vocab) < 0) {
        engine_worker_destroy(w);
        return err_set(e, ERR_NOMEM, "no memory for a batch of %u tokens", o->max_batched_tokens);
    }
    st = model_work_create(&w->work, o->model, w->max_tokens, WORKER_LOGIT_ROWS, e);
    if (st < 0) {
        engine_worker_destroy(w);
        return st;
    }
    map_pool(w, o);
    *out = w;
    return 0;
}

void engine_worker_destroy(struct worker *w)
{
    if (!w)
        return;
    model_work_destroy(w->work);
    engine_rows_finish(&w->rows);
    free(w->kv);
    free(w->ids);
    free(w->pos);
    free(w->seqs);
    free(w->choice);
    free(w);
}

/* Lays the plan's tokens out as rows of one batch. */
static void fill_batch(struct worker *w, const struct plan *p, struct model_batch *b)
{
    uint32_t n = 0;

    assert(p->n_tokens <= w->max_tokens && p->n_entries <= w->max_seqs);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];

        w->seqs[i] = (struct k_seq){ .row = n, .n = en->n, .pos = en->start, .blocks = en->blocks };
        for (uint32_t t = 0; t < en->n; t++, n++) {
            w->ids[n] = en->tokens[t];
            w->pos[n] = en->start + t;
        }
    }
    *b = (struct model_batch){
        .n = n, .ids = w->ids, .pos = w->pos, .seqs = w->seqs, .n_seqs = p->n_entries
    };
}

struct sample_call {
    struct worker *w;
    float *logits;
    size_t ld;
    uint32_t vocab;
};

static void sample_team(void *arg)
{
    struct sample_call *c = arg;

    c->w->k->sample(c->w->k, c->w->choice, c->logits, c->ld, c->vocab, c->w->rows.row,
                    c->w->rows.n);
}

/* Makes the logits of the picked rows, samples them and reports. */
static void flush_picks(struct worker *w, const struct plan *p, int32_t *tokens,
                        const struct worker_sink *sink)
{
    struct sample_call call = { .w = w, .vocab = model_config(w->model)->vocab };

    if (w->n_picks == 0)
        return;
    call.logits = model_logits(w->model, w->work, w->pick_row, w->n_picks, &call.ld);
    w->k->run(w->k, sample_team, &call);
    w->k->sync(w->k);
    for (uint32_t i = 0; i < w->n_picks; i++) {
        const struct pick *pk = &w->pick[i];
        const struct plan_entry *en = &p->entries[pk->entry];

        if (pk->token) {
            tokens[pk->entry] = w->choice[i].id;
            sink->token(sink->arg, en, &w->rows.row[i], &w->choice[i]);
        } else {
            sink->prompt(sink->arg, en, pk->position, &w->rows.row[i], &w->choice[i]);
        }
    }
    w->n_picks = 0;
    engine_rows_reset(&w->rows);
}

static int add_row(struct worker *w, const struct plan_entry *en, const struct pick *pk)
{
    if (pk->token)
        return engine_rows_choose(&w->rows, en);
    return engine_rows_forced(&w->rows, en->all_tokens[pk->position],
                              en->sampling->prompt_logprobs);
}

static void add_pick(struct worker *w, const struct plan *p, const struct pick *pk, int32_t *tokens,
                     const struct worker_sink *sink)
{
    const struct plan_entry *en = &p->entries[pk->entry];

    if (add_row(w, en, pk) < 0) {
        flush_picks(w, p, tokens, sink);
        if (add_row(w, en, pk) < 0)
            assert(!"a row that fits no empty set");
    }
    w->pick_row[w->n_picks] = pk->row;
    w->pick[w->n_picks++] = *pk;
}

/* Rows of one entry: those whose next token is the prompt's own, then the one that chooses. */
static void pick_entry(struct worker *w, const struct plan *p, uint32_t i, uint32_t row,
                       int32_t *tokens, const struct worker_sink *sink)
{
    const struct plan_entry *en = &p->entries[i];

    for (uint32_t t = 0; en->prompt_logprobs && t < en->n; t++) {
        uint32_t position = en->start + t + 1;

        if (position < en->n_prompt)
            add_pick(w, p, &(struct pick){ .row = row + t, .entry = i, .position = position },
                     tokens, sink);
    }
    if (en->sample)
        add_pick(
            w, p,
            &(struct pick){
                .row = row + en->n - 1, .entry = i, .position = en->start + en->n, .token = true },
            tokens, sink);
}

void engine_worker_run(struct worker *w, const struct plan *p, int32_t *tokens,
                       const struct worker_sink *sink)
{
    struct model_batch b;
    uint32_t row = 0;

    fill_batch(w, p, &b);
    model_forward(w->model, w->work, w->kv, &b);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        tokens[i] = -1;
        pick_entry(w, p, i, row, tokens, sink);
        row += p->entries[i].n;
    }
    flush_picks(w, p, tokens, sink);
}
