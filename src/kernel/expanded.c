/* Attention in expanded form as the team sees it: a work item is one head of some rows. */
#include "kernel/latent.h"

#include <assert.h>
#include <string.h>

/* Fewer items than this, a thread, are cut into items of fewer rows. */
#define FEW_ITEMS  4
#define LEAST_ROWS 32

struct split {
    struct k_heads out, q, k, v;
    const float *k_pe;
    size_t ld_pe;
    uint32_t heads, nope, rope, v_dim;
    float scale;
    uint32_t rows; /* in an item */
    struct k_span span;
    struct k_seq seq;
    struct cpu *cpu;
};

static uint32_t chunks(const struct split *s)
{
    return (s->seq.n + s->rows - 1) / s->rows;
}

/* Sums of the slab's queries while they wait for the keys of the next part. */
static void move_sums(const struct split *s, const struct latent_slab *b, bool out)
{
    struct latent_sums *all = &b->s->all;
    size_t bytes = s->v_dim * sizeof(float);

    for (uint32_t i = 0; i < b->to - b->from; i++) {
        float *values = latent_vector(b, &b->job->out, b->from + i);
        float *rest = s->span.sums + ((size_t)(b->from + i) * s->heads + b->head) * 2;

        if (out) {
            memcpy(values, all->o + i * s->v_dim, bytes);
            rest[0] = all->m[i];
            rest[1] = all->l[i];
        } else {
            memcpy(all->o + i * s->v_dim, values, bytes);
            all->m[i] = rest[0];
            all->l[i] = rest[1];
        }
    }
}

/* The pieces of the slab's keys that are in the span. */
static void slab_span(const struct split *s, const struct latent_slab *b)
{
    const struct cpu_impl *f = &s->cpu->impl;
    uint32_t first = s->span.from / KV_PIECE, last = latent_pieces(b);
    uint32_t end = (s->span.to + KV_PIECE - 1) / KV_PIECE;

    if (first >= last) /* done by the parts before */
        return;
    end = end < last ? end : last;
    f->latent_queries(b);
    if (first)
        move_sums(s, b, false);
    for (uint32_t piece = first; piece < end; piece++) {
        f->latent_sum(b, piece);
        f->latent_add(b, piece);
    }
    if (end < last)
        move_sums(s, b, true);
    else
        f->latent_finish(b);
}

/* The last rows see the most keys and come first, so that threads end together. */
static void rows_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct split *s = arg;
    struct latent_job job = { .out = s->out,
                              .q = s->q,
                              .pe = { s->q.p + s->nope, s->q.row, s->q.head },
                              .dim = s->nope + s->rope,
                              .rope = s->rope,
                              .v_dim = s->v_dim,
                              .scale = s->scale,
                              .k = s->k,
                              .v = s->v,
                              .k_pe = s->k_pe,
                              .ld_pe = s->ld_pe,
                              .first = s->span.from };
    struct latent_slab b = { .job = &job,
                             .seq = &s->seq,
                             .head = item % s->heads,
                             .heads = 1,
                             .from = (chunks(s) - 1 - item / s->heads) * s->rows,
                             .s = &s->cpu->latent[thread] };

    b.to = s->seq.n - b.from < s->rows ? s->seq.n : b.from + s->rows;
    slab_span(s, &b);
}

void attend_expanded(const struct kernels *k, struct k_heads out, struct k_heads q,
                     struct k_heads k_nope, const float *k_pe, size_t ld_pe, struct k_heads v,
                     uint32_t heads, uint32_t nope, uint32_t rope, uint32_t v_dim, float scale,
                     const struct k_seq *seq, const struct k_span *span)
{
    struct cpu *c = cpu_of(k);
    struct split s = { .out = out,
                       .q = q,
                       .k = k_nope,
                       .v = v,
                       .k_pe = k_pe,
                       .ld_pe = ld_pe,
                       .heads = heads,
                       .nope = nope,
                       .rope = rope,
                       .v_dim = v_dim,
                       .scale = scale,
                       .rows = latent_room(nope + rope, v_dim),
                       .span = span ? *span : (struct k_span){ 0, seq->pos + seq->n, NULL },
                       .seq = *seq,
                       .cpu = c };

    assert(nope % 16 == 0 && rope % 16 == 0 && nope + rope <= K_MAX_LATENT_DIM);
    assert(v_dim % 16 == 0 && v_dim <= K_MAX_LATENT_DIM);
    assert(s.span.from % KV_PIECE == 0);
    assert(s.span.to % KV_PIECE == 0 || s.span.to == seq->pos + seq->n);
    while (s.rows >= 2 * LEAST_ROWS && heads * chunks(&s) < FEW_ITEMS * c->team.threads)
        s.rows /= 2;
    team_items(&c->team, heads * chunks(&s), rows_item, &s, sizeof s);
}
