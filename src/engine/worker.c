#include "engine/worker.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "engine/draft.h"

/* One row whose logits are wanted. */
struct pick {
    uint32_t row;      /* of the batch */
    uint32_t entry;    /* of the plan */
    uint32_t position; /* of the token that the logits speak of */
    bool token;        /* chooses it (else: reports the prompt's own) */
    uint32_t drafts;   /* drafts before it: they must have been chosen, or it counts for nothing */
};

struct worker {
    const struct kernels *k;
    const struct model *model;
    struct model_work *work;
    struct k_kv *kv;         /* one a layer */
    struct drafter *drafter; /* NULL without a multi-token prediction layer */
    uint32_t max_tokens, max_seqs;
    bool hidden_only, shares_head;
    struct sample_team team;
    int32_t *ids; /* [max_tokens] */
    uint32_t *pos;
    struct k_seq *seqs; /* [max_seqs] */
    uint32_t *n_prompt_rows;
    struct sample_rows rows;
    struct k_choice *choice; /* [WORKER_LOGIT_ROWS] */
    struct pick pick[WORKER_LOGIT_ROWS];
    uint32_t pick_row[WORKER_LOGIT_ROWS];
    uint32_t n_picks;
};

static void map_pool(struct worker *w, const struct worker_options *o)
{
    const struct kv_layout *l = &o->layout;
    struct model_kv_shape shape;
    char *base = o->pool;

    model_kv_shape(o->model, &shape);
    for (uint32_t i = 0; i < l->n_layers; i++)
        w->kv[i] = (struct k_kv){
            .k = base + kv_layout_offset(l, i, 0, 0),
            .v = l->planes == 2 ? base + kv_layout_offset(l, i, 1, 0) : NULL,
            .latent = shape.latent,
            .type = model_kv_type(o->model),
            .block_tokens = l->block_tokens,
            .kv_heads = l->kv_heads,
            .head_dim = l->head_dim,
        };
}

static int open_drafter(struct worker *w, const struct worker_options *o, struct err *e)
{
    const struct drafter_options d = {
        .kernels = o->kernels,
        .model = o->model,
        .work = w->work,
        .max_tokens = w->max_tokens,
        .max_seqs = w->max_seqs,
        .max_logit_rows = WORKER_LOGIT_ROWS,
        .max_model_len = o->max_model_len,
        .kv = w->kv[o->layout.n_layers - 1],
        .team = w->team,
        .rounds = o->draft_rounds,
        .shares_head = o->shares_head,
    };

    return o->layout.n_draft ? engine_drafter_create(&w->drafter, &d, e) : 0;
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
    w->hidden_only = o->hidden_only;
    w->shares_head = o->shares_head;
    w->team = (struct sample_team){ o->share, o->share_arg, o->follows };
    w->kv = calloc(o->layout.n_layers, sizeof *w->kv);
    w->ids = calloc(w->max_tokens, sizeof *w->ids);
    w->pos = calloc(w->max_tokens, sizeof *w->pos);
    w->seqs = calloc(w->max_seqs, sizeof *w->seqs);
    w->n_prompt_rows = calloc(w->max_seqs, sizeof *w->n_prompt_rows);
    w->choice = calloc(WORKER_LOGIT_ROWS, sizeof *w->choice);
    if (!w->kv || !w->ids || !w->pos || !w->seqs || !w->n_prompt_rows || !w->choice ||
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
    st = open_drafter(w, o, e);
    if (st < 0) {
        engine_worker_destroy(w);
        return st;
    }
    *out = w;
    return 0;
}

void engine_worker_destroy(struct worker *w)
{
    if (!w)
        return;
    engine_drafter_destroy(w->drafter);
    model_work_destroy(w->work);
    engine_rows_finish(&w->rows);
    free(w->kv);
    free(w->ids);
    free(w->pos);
    free(w->seqs);
    free(w->n_prompt_rows);
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
        w->n_prompt_rows[i] = en->start < en->n_prompt ? en->n_prompt - en->start : 0;
        for (uint32_t t = 0; t < en->n; t++, n++) {
            w->ids[n] = en->tokens[t];
            w->pos[n] = en->start + t;
        }
    }
    *b = (struct model_batch){
        .n = n,
        .ids = w->ids,
        .pos = w->pos,
        .seqs = w->seqs,
        .n_seqs = p->n_entries,
        .n_prompt_rows = w->n_prompt_rows,
    };
}

/* The choice of a row stands if everything before the row was chosen too. */
static void take_choice(const struct plan_entry *en, const struct pick *pk,
                        const struct k_sample *row, const struct k_choice *choice,
                        struct step_choice *out, const struct worker_sink *sink)
{
    uint32_t k = pk->drafts;

    if (out->n != k || (k > 0 && out->token[k - 1] != en->all_tokens[en->n_all + k - 1]))
        return;
    out->token[out->n++] = choice->id;
    sink->token(sink->arg, en, en->out_index + k, row, choice);
}

/* Makes the logits of the picked rows, samples them and reports. */
static void flush_picks(struct worker *w, const struct plan *p, struct step_choice *out,
                        const struct worker_sink *sink)
{
    float *logits;
    size_t ld;

    if (w->n_picks == 0)
        return;
    logits = model_logits(w->model, w->work, w->pick_row, w->n_picks, &ld);
    engine_sample(w->k, &w->team, w->choice, logits, ld, model_config(w->model)->vocab, w->rows.row,
                  w->rows.n);
    for (uint32_t i = 0; i < w->n_picks; i++) {
        const struct pick *pk = &w->pick[i];
        const struct plan_entry *en = &p->entries[pk->entry];

        if (pk->token)
            take_choice(en, pk, &w->rows.row[i], &w->choice[i], &out[pk->entry], sink);
        else
            sink->prompt(sink->arg, en, pk->position, &w->rows.row[i], &w->choice[i]);
    }
    w->n_picks = 0;
    engine_rows_reset(&w->rows);
}

static int add_row(struct worker *w, const struct plan_entry *en, const struct pick *pk)
{
    if (pk->token)
        return engine_rows_choose(&w->rows, en, pk->drafts);
    return engine_rows_forced(&w->rows, en->all_tokens[pk->position],
                              en->sampling->prompt_logprobs);
}

static void add_pick(struct worker *w, const struct plan *p, const struct pick *pk,
                     struct step_choice *out, const struct worker_sink *sink)
{
    const struct plan_entry *en = &p->entries[pk->entry];

    if (add_row(w, en, pk) < 0) {
        flush_picks(w, p, out, sink);
        if (add_row(w, en, pk) < 0)
            assert(!"a row that fits no empty set");
    }
    w->pick_row[w->n_picks] = pk->row;
    w->pick[w->n_picks++] = *pk;
}

/* Rows of one entry: those whose next token is the prompt's own, then those that choose. */
static void pick_entry(struct worker *w, const struct plan *p, uint32_t i, uint32_t row,
                       struct step_choice *out, const struct worker_sink *sink)
{
    const struct plan_entry *en = &p->entries[i];
    uint32_t last = en->n - en->n_draft - 1; /* token known */

    for (uint32_t t = 0; en->prompt_logprobs && t < en->n; t++) {
        uint32_t position = en->start + t + 1;

        if (position < en->n_prompt)
            add_pick(w, p, &(struct pick){ .row = row + t, .entry = i, .position = position }, out,
                     sink);
    }
    for (uint32_t k = 0; en->sample && k <= en->n_draft; k++)
        add_pick(w, p,
                 &(struct pick){ .row = row + last + k,
                                 .entry = i,
                                 .position = en->start + last + k + 1,
                                 .token = true,
                                 .drafts = k },
                 out, sink);
}

/* With this rank's part of the head, until no rank has rows left. */
static void help_others(struct worker *w)
{
    size_t ld;

    do
        model_logits(w->model, w->work, NULL, 0, &ld);
    while (model_head_more(w->work));
}

void engine_worker_run(struct worker *w, const struct plan *p, struct step_choice *out,
                       const struct worker_sink *sink)
{
    struct model_batch b;
    uint32_t row = 0;

    fill_batch(w, p, &b);
    model_forward(w->model, w->work, w->kv, &b);
    for (uint32_t i = 0; i < p->n_entries; i++)
        out[i].n = out[i].n_draft = 0;
    if (w->hidden_only)
        return;
    for (uint32_t i = 0; i < p->n_entries; i++) {
        pick_entry(w, p, i, row, out, sink);
        row += p->entries[i].n;
    }
    flush_picks(w, p, out, sink);
    if (w->shares_head)
        help_others(w);
    if (w->drafter)
        engine_drafter_run(w->drafter, p, out);
}

void engine_worker_watch(struct worker *w, void (*layer_done)(void *arg, uint32_t layer), void *arg)
{
    model_watch_layers(w->work, layer_done, arg);
}

float *engine_worker_states(struct worker *w)
{
    return model_states(w->work);
}
