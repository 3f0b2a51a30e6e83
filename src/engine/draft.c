#include "engine/draft.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"
#include "engine/sample.h"

/* An entry whose next draft is due. */
struct asker {
    uint32_t entry;
    uint32_t row; /* of the last model_draft: its logits are the draft's */
    uint32_t pos; /* of that row */
};

struct drafter {
    struct drafter_options o;
    /* a batch for the layer; [max_tokens], seqs [max_seqs] */
    int32_t *ids;
    uint32_t *pos, *from;
    struct k_seq *seqs;
    struct model_batch batch;

    struct asker *asker; /* [max_seqs] */
    uint32_t n_askers;
    uint32_t *row; /* [max_logit_rows] */
    struct k_sample *greedy;
    struct k_choice *choice;
};

static int allocate(struct drafter *d)
{
    uint32_t n = d->o.max_tokens, rows = d->o.max_logit_rows;

    d->ids = calloc(n, sizeof *d->ids);
    d->pos = calloc(n, sizeof *d->pos);
    d->from = calloc(n, sizeof *d->from);
    d->seqs = calloc(d->o.max_seqs, sizeof *d->seqs);
    d->asker = calloc(d->o.max_seqs, sizeof *d->asker);
    d->row = calloc(rows, sizeof *d->row);
    d->greedy = calloc(rows, sizeof *d->greedy);
    d->choice = calloc(rows, sizeof *d->choice);
    if (!d->ids || !d->pos || !d->from || !d->seqs || !d->asker || !d->row || !d->greedy ||
        !d->choice)
        return ERR_NOMEM;
    d->batch = (struct model_batch){ .ids = d->ids, .pos = d->pos, .seqs = d->seqs };
    for (uint32_t i = 0; i < rows; i++)
        d->greedy[i] = (struct k_sample){ .top_p = 1, .repetition = 1, .n_top = -1, .forced = -1 };
    return 0;
}

int engine_drafter_create(struct drafter **out, const struct drafter_options *o, struct err *e)
{
    struct drafter *d = calloc(1, sizeof *d);

    if (d)
        d->o = *o;
    if (!d || allocate(d) < 0) {
        engine_drafter_destroy(d);
        return err_set(e, ERR_NOMEM, "no memory for drafts of %u requests", o->max_seqs);
    }
    *out = d;
    return 0;
}

void engine_drafter_destroy(struct drafter *d)
{
    if (!d)
        return;
    free(d->ids);
    free(d->pos);
    free(d->from);
    free(d->seqs);
    free(d->asker);
    free(d->row);
    free(d->greedy);
    free(d->choice);
    free(d);
}

static void add_seq(struct drafter *d, const struct plan_entry *en, uint32_t pos)
{
    d->seqs[d->batch.n_seqs++] =
        (struct k_seq){ .row = d->batch.n, .n = 0, .pos = pos, .blocks = en->blocks };
}

/* One row more of the last sequence. */
static void add_row(struct drafter *d, int32_t id, uint32_t from)
{
    struct k_seq *s = &d->seqs[d->batch.n_seqs - 1];
    uint32_t n = d->batch.n++;

    d->ids[n] = id;
    d->pos[n] = s->pos + s->n++;
    d->from[n] = from;
}

/* The token after a position that the step computed. A prompt of which nothing is generated has none
 * after its last; then its own stands in. */
static int32_t token_after(const struct plan_entry *en, const struct step_choice *c, uint32_t pos)
{
    uint32_t next = pos + 1;

    if (next < en->n_all)
        return en->all_tokens[next];
    return next - en->n_all < c->n ? c->token[next - en->n_all] : en->all_tokens[pos];
}

/* The step's rows without those of drafts that were wrong. */
static void take_step(struct drafter *d, const struct plan *p, const struct step_choice *out)
{
    uint32_t first = 0;

    d->batch.n = d->batch.n_seqs = d->n_askers = 0;
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];
        uint32_t n = en->n - en->n_draft + (out[i].n ? out[i].n - 1 : 0);

        add_seq(d, en, en->start);
        for (uint32_t t = 0; t < n; t++)
            add_row(d, token_after(en, &out[i], en->start + t), first + t);
        if (en->want_drafts)
            d->asker[d->n_askers++] = (struct asker){ i, d->batch.n - 1, en->start + n - 1 };
        first += en->n;
    }
}

/* With this rank's part of the head, until no rank has rows left. */
static void help_others(struct drafter *d)
{
    size_t ld;

    do
        model_draft_logits(d->o.model, d->o.work, NULL, 0, &ld);
    while (model_head_more(d->o.work));
}

/* The likeliest token of each asker's row. */
static void guess(struct drafter *d, struct step_choice *out)
{
    uint32_t vocab = model_config(d->o.model)->vocab, n;

    for (uint32_t first = 0; first < d->n_askers; first += n) {
        const struct asker *a = d->asker + first;
        float *logits;
        size_t ld;

        n = d->n_askers - first < d->o.max_logit_rows ? d->n_askers - first : d->o.max_logit_rows;
        for (uint32_t i = 0; i < n; i++)
            d->row[i] = a[i].row;
        logits = model_draft_logits(d->o.model, d->o.work, d->row, n, &ld);
        engine_sample(d->o.kernels, &d->o.team, d->choice, logits, ld, vocab, d->greedy, n);
        for (uint32_t i = 0; i < n; i++) {
            struct step_choice *c = &out[a[i].entry];

            c->draft[c->n_draft++] = d->choice[i].id;
        }
    }
    if (d->o.shares_head)
        help_others(d);
}

/* Whether the layer may write the KV of one position more, and a draft more is of use. */
static bool can_go_on(const struct drafter *d, const struct plan_entry *en, const struct asker *a,
                      const struct step_choice *c)
{
    uint64_t places = (uint64_t)en->n_blocks * d->o.kv.block_tokens;

    return c->n_draft < en->want_drafts && a->pos + 1 < places && a->pos + 1 < d->o.max_model_len;
}

/* One row for each that goes on: its last draft, after the row that gave it. What is written there is a
 * guess too, and the next step writes over it. */
static void take_drafts(struct drafter *d, const struct plan *p, const struct step_choice *out)
{
    uint32_t n = 0;

    d->batch.n = d->batch.n_seqs = 0;
    for (uint32_t i = 0; i < d->n_askers; i++) {
        struct asker a = d->asker[i];
        const struct plan_entry *en = &p->entries[a.entry];
        const struct step_choice *c = &out[a.entry];

        if (!can_go_on(d, en, &a, c))
            continue;
        add_seq(d, en, a.pos + 1);
        add_row(d, c->draft[c->n_draft - 1], a.row);
        d->asker[n++] = (struct asker){ a.entry, d->batch.n - 1, a.pos + 1 };
    }
    d->n_askers = n;
}

void engine_drafter_run(struct drafter *d, const struct plan *p, struct step_choice *out)
{
    assert(p->n_tokens <= d->o.max_tokens && p->n_entries <= d->o.max_seqs);
    take_step(d, p, out);
    model_draft(d->o.model, d->o.work, &d->o.kv, &d->batch, d->from);
    for (uint32_t round = 1; d->n_askers > 0 || round <= d->o.rounds; round++) {
        guess(d, out);
        take_drafts(d, p, out);
        if (d->n_askers > 0 || round < d->o.rounds)
            model_draft(d->o.model, d->o.work, &d->o.kv, &d->batch, d->from);
    }
}
