#include "engine/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rand.h"
#include "base/status.h"

int engine_rows_init(struct sample_rows *s, uint32_t cap, uint32_t max_tokens, uint32_t vocab)
{
    *s = (struct sample_rows){
        .cap = cap,
        .cap_bias = 4 * SAMPLE_MAX_BIAS,
        .cap_counts = 2 * max_tokens,
        .cap_want = SAMPLE_MAX_BIAS,
    };
    s->row = calloc(cap, sizeof *s->row);
    s->bias = calloc(s->cap_bias, sizeof *s->bias);
    s->counts = calloc(s->cap_counts, sizeof *s->counts);
    s->want = calloc(s->cap_want, sizeof *s->want);
    s->seen = calloc(vocab, sizeof *s->seen);
    return s->row && s->bias && s->counts && s->want && s->seen ? 0 : ERR_NOMEM;
}

void engine_rows_finish(struct sample_rows *s)
{
    free(s->row);
    free(s->bias);
    free(s->counts);
    free(s->want);
    free(s->seen);
    *s = (struct sample_rows){ 0 };
}

void engine_rows_reset(struct sample_rows *s)
{
    s->n = s->n_bias = s->n_counts = s->n_want = 0;
}

static bool has_penalties(const struct sampling *sp)
{
    return sp->presence_penalty != 0 || sp->frequency_penalty != 0 || sp->repetition_penalty != 1;
}

/* How often each id occurred among the first n_all: one entry an id, in order of first occurrence. */
static void count_tokens(struct sample_rows *s, struct k_sample *row, const struct plan_entry *en,
                         uint32_t n_all)
{
    struct k_count *c = s->counts + s->n_counts;
    uint32_t n = 0;

    for (uint32_t i = 0; i < n_all; i++) {
        int32_t id = en->all_tokens[i];
        uint32_t *at = &s->seen[id];

        if (*at == 0) {
            c[n] = (struct k_count){ .id = id };
            *at = ++n;
        }
        if (i < en->n_prompt)
            c[*at - 1].in_prompt = true;
        else
            c[*at - 1].n_out++;
    }
    for (uint32_t i = 0; i < n; i++)
        s->seen[c[i].id] = 0;
    row->counts = c;
    row->n_counts = n;
    s->n_counts += n;
}

static void add_bias(struct sample_rows *s, int32_t id, float add)
{
    s->bias[s->n_bias++] = (struct k_bias){ .id = id, .add = add };
}

/* The request's logit biases, and its end tokens while min_tokens forbids them. */
static void collect_bias(struct sample_rows *s, struct k_sample *row, const struct plan_entry *en,
                         bool ban_ends)
{
    const struct sampling *sp = en->sampling;
    uint32_t first = s->n_bias;

    for (uint32_t i = 0; i < sp->n_bias; i++)
        add_bias(s, sp->bias[i].id, sp->bias[i].bias);
    for (uint32_t i = 0; ban_ends && i < en->n_eos; i++)
        add_bias(s, en->eos_ids[i], -INFINITY);
    for (uint32_t i = 0; ban_ends && i < sp->n_stop_ids; i++)
        add_bias(s, sp->stop_ids[i], -INFINITY);
    row->bias = s->bias + first;
    row->n_bias = s->n_bias - first;
}

int engine_rows_choose(struct sample_rows *s, const struct plan_entry *en, uint32_t k)
{
    const struct sampling *sp = en->sampling;
    bool ban_ends = en->out_index + k < sp->min_tokens;
    uint32_t n_bias = sp->n_bias + (ban_ends ? en->n_eos + sp->n_stop_ids : 0);
    uint32_t n_counts = has_penalties(sp) ? en->n_all + k : 0;
    struct k_sample *row;

    if (s->n == s->cap || n_bias > s->cap_bias - s->n_bias ||
        n_counts > s->cap_counts - s->n_counts || sp->n_want > s->cap_want - s->n_want)
        return ERR_AGAIN;
    row = &s->row[s->n++];
    *row = (struct k_sample){
        .temperature = sp->temperature,
        .top_p = sp->top_p,
        .min_p = sp->min_p,
        .top_k = sp->top_k,
        .presence = sp->presence_penalty,
        .frequency = sp->frequency_penalty,
        .repetition = sp->repetition_penalty,
        .allowed = sp->allowed,
        .n_allowed = sp->n_allowed,
        .n_top = sp->logprobs,
        .forced = -1,
        .want_ids = sp->want_ids,
        .n_want = sp->n_want,
        .want_out = s->want + s->n_want,
    };
    if (sp->temperature > 0)
        row->u = rand_uniform(sp->seed, en->out_index + k, 0);
    s->n_want += sp->n_want;
    if (n_counts)
        count_tokens(s, row, en, n_counts);
    if (n_bias)
        collect_bias(s, row, en, ban_ends);
    return 0;
}

int engine_rows_forced(struct sample_rows *s, int32_t token, int32_t n_top)
{
    if (s->n == s->cap)
        return ERR_AGAIN;
    s->row[s->n++] = (struct k_sample){
        .top_p = 1,
        .repetition = 1,
        .n_top = n_top,
        .forced = token,
    };
    return 0;
}

struct sample_call {
    const struct kernels *k;
    struct k_choice *out;
    float *logits;
    size_t ld;
    uint32_t vocab;
    const struct k_sample *rows;
    uint32_t n;
};

static void sample_rows_team(void *arg)
{
    const struct sample_call *c = arg;

    c->k->sample(c->k, c->out, c->logits, c->ld, c->vocab, c->rows, c->n);
}

/* Ids that are sent at a time. */
#define SHARE_IDS 256

/* What comes from a rank that has failed is garbage: it must not lead out of the vocabulary. */
static void share_ids(const struct sample_team *team, struct k_choice *out, uint32_t vocab,
                      uint32_t n)
{
    int32_t id[SHARE_IDS];

    for (uint32_t first = 0; first < n; first += SHARE_IDS) {
        uint32_t part = n - first < SHARE_IDS ? n - first : SHARE_IDS;

        memset(id, 0, sizeof id);
        for (uint32_t i = 0; !team->follows && i < part; i++)
            id[i] = out[first + i].id;
        team->share(team->arg, id, part * sizeof *id);
        for (uint32_t i = 0; team->follows && i < part; i++)
            out[first + i] = (struct k_choice){ .id = (uint32_t)id[i] < vocab ? id[i] : 0 };
    }
}

void engine_sample(const struct kernels *k, const struct sample_team *team, struct k_choice *out,
                   float *logits, size_t ld, uint32_t vocab, const struct k_sample *rows,
                   uint32_t n)
{
    struct sample_call call = { k, out, logits, ld, vocab, rows, n };

    if (!team->follows) {
        k->run(k, sample_rows_team, &call);
        k->sync(k);
    }
    if (team->share)
        share_ids(team, out, vocab, n);
}
