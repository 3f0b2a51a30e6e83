#include "fake_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define WORDS 8 /* 64-bit numbers that a position has room for */

/* What stands in the memory for a position. */
struct slot {
    uint64_t hash;
    int32_t token; /* main layer: of this position; prediction layer: of the next */
};

struct model_work {
    uint32_t max_tokens, max_logit_rows;
    uint64_t *state, *next_state; /* of the rows of the last forward or draft */
    uint32_t *pos, *next_pos;
    bool after_forward; /* that it was a forward */
    bool more;          /* model_head_more */
    uint64_t *main_state;
    float *logits;
};

void fake_model_init(struct model *m, uint32_t good_drafts, bool has_mtp)
{
    *m = (struct model){ .config = { .n_layers = 1, .vocab = FAKE_VOCAB },
                         .good_drafts = good_drafts,
                         .has_mtp = has_mtp };
}

struct kv_layout fake_model_layout(const struct model *m, uint32_t block_tokens, uint32_t n_blocks)
{
    return (struct kv_layout){ .n_layers = m->has_mtp ? 2 : 1,
                               .n_draft = m->has_mtp,
                               .planes = 1,
                               .kv_heads = 1,
                               .head_dim = 2 * WORDS,
                               .elem_bytes = 4,
                               .block_tokens = block_tokens,
                               .n_blocks = n_blocks };
}

const struct model_config *model_config(const struct model *m)
{
    return &m->config;
}

enum k_type model_kv_type(const struct model *m)
{
    (void)m;
    return K_F32;
}

void model_kv_shape(const struct model *m, struct model_kv_shape *out)
{
    *out = (struct model_kv_shape){
        .n_layers = m->has_mtp ? 2 : 1, .kv_heads = 1, .head_dim = 2 * WORDS, .latent = 2 * WORDS
    };
}

int model_work_create(struct model_work **out, const struct model *m, uint32_t max_tokens,
                      uint32_t max_logit_rows, struct err *e)
{
    struct model_work *w = calloc(1, sizeof *w);

    (void)m;
    (void)e;
    if (!w)
        abort();
    w->max_tokens = max_tokens;
    w->max_logit_rows = max_logit_rows;
    w->state = calloc(max_tokens, sizeof *w->state);
    w->next_state = calloc(max_tokens, sizeof *w->next_state);
    w->main_state = calloc(max_tokens, sizeof *w->main_state);
    w->pos = calloc(max_tokens, sizeof *w->pos);
    w->next_pos = calloc(max_tokens, sizeof *w->next_pos);
    w->logits = calloc((size_t)max_logit_rows * FAKE_VOCAB, sizeof *w->logits);
    if (!w->state || !w->next_state || !w->main_state || !w->pos || !w->next_pos || !w->logits)
        abort();
    *out = w;
    return 0;
}

void model_work_destroy(struct model_work *w)
{
    if (!w)
        return;
    free(w->state);
    free(w->next_state);
    free(w->main_state);
    free(w->pos);
    free(w->next_pos);
    free(w->logits);
    free(w);
}

static uint64_t mix(uint64_t h, uint64_t x)
{
    h ^= x + 0x9e3779b97f4a7c15ull + (h << 6) + (h >> 2);
    h ^= h >> 31;
    h *= 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

static struct slot *slot_at(const struct k_kv *kv, const uint32_t *blocks, uint32_t pos)
{
    size_t at = (size_t)blocks[pos / kv->block_tokens] * kv->block_tokens + pos % kv->block_tokens;

    return (struct slot *)(void *)((uint64_t *)kv->k + at * WORDS);
}

/* All positions before pos hold the hash of what is before them. */
static bool history_fits(const struct k_kv *kv, const uint32_t *blocks, uint32_t pos)
{
    uint64_t h = 1;

    for (uint32_t i = 0; i < pos; i++) {
        const struct slot *s = slot_at(kv, blocks, i);

        h = mix(h, (uint64_t)s->token);
        if (s->hash != h)
            return false;
    }
    return true;
}

static struct model *counters(const struct model *m)
{
    return (struct model *)(uintptr_t)m;
}

void model_forward(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b)
{
    counters(m)->n_forwards++;
    for (uint32_t i = 0; i < b->n_seqs; i++) {
        const struct k_seq *s = &b->seqs[i];

        counters(m)->n_wrong += !history_fits(kv, s->blocks, s->pos);
        for (uint32_t t = 0; t < s->n; t++) {
            uint32_t row = s->row + t, pos = s->pos + t;
            uint64_t before = pos ? slot_at(kv, s->blocks, pos - 1)->hash : 1;
            struct slot *at = slot_at(kv, s->blocks, pos);

            counters(m)->n_wrong += b->pos[row] != pos || pos >= FAKE_MAX_LEN;
            *at = (struct slot){ mix(before, (uint64_t)b->ids[row]), b->ids[row] };
            w->state[row] = at->hash;
            w->pos[row] = pos;
        }
    }
    memcpy(w->main_state, w->state, b->n * sizeof *w->state);
    w->after_forward = true;
    counters(m)->n_rows += b->n;
}

/* Between 0 and 6, the same for the same state and token; a few tokens are likelier, so that what forbids
 * or punishes repetition matters. */
static void make_logits(float *out, uint64_t state)
{
    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        out[i] = (float)(mix(state, i) % 10000) * 6e-4f;
    for (uint32_t i = FAKE_EOS; i < FAKE_EOS + 5; i++)
        out[i] += 2;
}

/* A round of those that share the head. */
static void count_round(const struct model *m, struct model_work *w, uint32_t n_rows)
{
    struct model *c = counters(m);

    w->more = n_rows > 0 || c->n_round < c->others;
    c->n_round = w->more ? c->n_round + 1 : 0;
    c->n_ends += !w->more;
}

float *model_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                    uint32_t n_rows, size_t *ld)
{
    counters(m)->n_wrong += n_rows > w->max_logit_rows;
    count_round(m, w, n_rows);
    for (uint32_t i = 0; i < n_rows; i++)
        make_logits(w->logits + (size_t)i * FAKE_VOCAB, w->main_state[rows[i]]);
    *ld = FAKE_VOCAB;
    return w->logits;
}

/* All positions before pos were joined with the token that the main layer keeps for the next. The first
 * after a block from the cache may have been joined with another. */
static bool joined_right(const struct k_kv *main, const struct k_kv *own, const uint32_t *blocks,
                         uint32_t pos)
{
    for (uint32_t i = 0; i < pos; i++) {
        const struct slot *s = slot_at(own, blocks, i);
        bool last_of_block = i % own->block_tokens == own->block_tokens - 1;

        if (s->hash != mix(slot_at(main, blocks, i)->hash, (uint64_t)s->token))
            return false;
        if (!last_of_block && s->token != slot_at(main, blocks, i + 1)->token)
            return false;
    }
    return true;
}

/* The plane before the layer's own is the main layer's. */
static struct k_kv main_plane(const struct k_kv *own, uint64_t plane_bytes)
{
    struct k_kv main = *own;

    main.k = (char *)own->k - plane_bytes;
    return main;
}

static void draft_seq(const struct model *m, struct model_work *w, const struct k_kv *kv,
                      const struct model_batch *b, const struct k_seq *s, const uint32_t *from)
{
    struct k_kv main = main_plane(kv, m->config.hidden);

    if (w->after_forward && s->n > 0)
        counters(m)->n_wrong += !joined_right(&main, kv, s->blocks, s->pos);
    for (uint32_t t = 0; t < s->n; t++) {
        uint32_t row = s->row + t, pos = s->pos + t;
        struct slot *at = slot_at(kv, s->blocks, pos);

        counters(m)->n_wrong += b->pos[row] != pos || pos >= FAKE_MAX_LEN ||
                                w->pos[from[row]] != (w->after_forward ? pos : pos - 1);
        *at = (struct slot){ mix(w->state[from[row]], (uint64_t)b->ids[row]), b->ids[row] };
        w->next_state[row] = at->hash;
        w->next_pos[row] = pos;
    }
}

void model_draft(const struct model *m, struct model_work *w, const struct k_kv *kv,
                 const struct model_batch *b, const uint32_t *from)
{
    uint64_t *state = w->state;
    uint32_t *pos = w->pos;

    counters(m)->n_wrong += b->n > w->max_tokens;
    for (uint32_t i = 0; i < b->n_seqs; i++)
        draft_seq(m, w, kv, b, &b->seqs[i], from);
    w->state = w->next_state;
    w->pos = w->next_pos;
    w->next_state = state;
    w->next_pos = pos;
    w->after_forward = false;
    counters(m)->n_mtp_rows += b->n;
    counters(m)->n_drafts++;
}

bool model_head_more(const struct model_work *w)
{
    return w->more;
}

float *model_draft_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                          uint32_t n_rows, size_t *ld)
{
    counters(m)->n_wrong += n_rows > w->max_logit_rows;
    count_round(m, w, n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        uint64_t state = w->state[rows[i]];
        bool good = mix(state, 77) % 100 < m->good_drafts;

        make_logits(w->logits + (size_t)i * FAKE_VOCAB, good ? state : mix(state, 5));
    }
    *ld = FAKE_VOCAB;
    return w->logits;
}

/* It is no stage of several. */
float *model_states(struct model_work *w)
{
    (void)w;
    return NULL;
}

/* Nobody sends its layers away. */
void model_watch_layers(struct model_work *w, void (*done)(void *arg, uint32_t layer), void *arg)
{
    (void)w;
    (void)done;
    (void)arg;
}
