/* The latent cache and attention over it, as the team sees them. A work item of attention is a slab
 * of queries; where that gives too few items (decoding few long sequences), one piece of their keys.
 * Both ways add the same pieces in the same order. */
#include "kernel/latent.h"

#include <assert.h>
#include <string.h>

/* Fewer items than this, a thread, are cut into smaller ones. */
#define FEW_ITEMS 4
/* Slabs are not cut below this: two vectors of queries are what keeps the multipliers busy. */
#define LEAST_QUERIES 32

static size_t kv_size(const struct k_kv *kv)
{
    return kv->type == K_F32 ? sizeof(float) : sizeof(uint16_t);
}

static void *latent_ptr(const struct k_kv *kv, const struct k_seq *seq, uint32_t pos)
{
    return (char *)kv->k + latent_at(kv, seq, pos) * kv_size(kv);
}

struct write_job {
    const struct cpu_impl *f;
    struct k_kv kv;
    const float *c, *pe;
    size_t ldc, ldpe;
    const struct k_seq *seqs;
    uint32_t n_seqs, n, pieces; /* n: rows of all sequences */
};

static void write_row(const struct write_job *j, const struct k_seq *seq, uint32_t i)
{
    char *to = latent_ptr(&j->kv, seq, seq->pos + i);
    size_t row = seq->row + i;

    j->f->row_store(j->kv.type, to, j->c + row * j->ldc, j->kv.latent);
    j->f->row_store(j->kv.type, to + j->kv.latent * kv_size(&j->kv), j->pe + row * j->ldpe,
                    j->kv.head_dim - j->kv.latent);
}

static void write_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct write_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from), before = 0;

    (void)thread;
    for (const struct k_seq *q = j->seqs; q < j->seqs + j->n_seqs && before < to; q++) {
        uint32_t i = from > before ? from - before : 0;

        for (; i < q->n && before + i < to; i++)
            write_row(j, q, i);
        before += q->n;
    }
}

void latent_write(const struct kernels *k, const struct k_kv *kv, const float *c, size_t ldc,
                  const float *pe, size_t ldpe, const struct k_seq *seqs, uint32_t n_seqs)
{
    struct write_job job = { &cpu_of(k)->impl, *kv, c, pe, ldc, ldpe, seqs, n_seqs, 0, 0 };

    assert(kv->type == K_F32 || kv->type == K_F16);
    for (uint32_t i = 0; i < n_seqs; i++)
        job.n += seqs[i].n;
    job.pieces = pieces(k, job.n);
    team_items(&cpu_of(k)->team, job.pieces, write_item, &job, sizeof job);
}

struct read_job {
    const struct cpu_impl *f;
    struct k_kv kv;
    float *c, *pe;
    size_t ldc, ldpe;
    struct k_seq seq;
    uint32_t first, n, pieces; /* positions */
};

static void read_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct read_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++) {
        const char *src = latent_ptr(&j->kv, &j->seq, j->first + i);

        j->f->row_load(j->kv.type, j->c + i * j->ldc, src, j->kv.latent);
        j->f->row_load(j->kv.type, j->pe + i * j->ldpe, src + j->kv.latent * kv_size(&j->kv),
                       j->kv.head_dim - j->kv.latent);
    }
}

void latent_read(const struct kernels *k, float *c, size_t ldc, float *pe, size_t ldpe,
                 const struct k_kv *kv, const struct k_seq *seq, uint32_t from, uint32_t to)
{
    struct read_job job = { .f = &cpu_of(k)->impl,
                            .kv = *kv,
                            .c = c,
                            .pe = pe,
                            .ldc = ldc,
                            .ldpe = ldpe,
                            .seq = *seq,
                            .first = from,
                            .n = to - from };

    assert(from <= to);
    job.pieces = pieces(k, job.n);
    team_items(&cpu_of(k)->team, job.pieces, read_item, &job, sizeof job);
}

/* A whole slab: every piece of its keys, in order. */
static void slab_attend(const struct cpu_impl *f, const struct latent_slab *b)
{
    f->latent_queries(b);
    for (uint32_t piece = 0; piece < latent_pieces(b); piece++) {
        f->latent_sum(b, piece);
        f->latent_add(b, piece);
    }
    f->latent_finish(b);
}

/* How attention over latents is cut. */
struct split {
    struct k_heads out, q, pe;
    struct k_kv kv;
    struct cpu *cpu;
    const struct k_seq *seqs;
    uint32_t n_seqs, heads;
    float scale;
    uint32_t queries;        /* in a slab */
    const struct k_seq *seq; /* of the last slab that this thread took, */
    uint32_t first;          /* and the first item of that sequence */
};

static uint32_t slabs(const struct split *s, const struct k_seq *seq)
{
    return (seq->n * s->heads + s->queries - 1) / s->queries;
}

static uint32_t seq_pieces(const struct k_seq *seq)
{
    return (seq->pos + seq->n + KV_PIECE - 1) / KV_PIECE;
}

static struct latent_job job_of(const struct split *s)
{
    return (struct latent_job){ .out = s->out,
                                .q = s->q,
                                .pe = s->pe,
                                .dim = s->kv.head_dim,
                                .rope = s->kv.head_dim - s->kv.latent,
                                .v_dim = s->kv.latent,
                                .scale = s->scale,
                                .kv = s->kv };
}

/* Slab i of a sequence; the last rows see the most keys and come first, so that threads end
 * together. */
static struct latent_slab slab_of(const struct split *s, const struct latent_job *job,
                                  const struct k_seq *seq, uint32_t i, uint32_t thread)
{
    uint32_t from = (slabs(s, seq) - 1 - i) * s->queries, n = seq->n * s->heads;

    return (struct latent_slab){ .job = job,
                                 .seq = seq,
                                 .heads = s->heads,
                                 .from = from,
                                 .to = n - from < s->queries ? n : from + s->queries,
                                 .s = &s->cpu->latent[thread] };
}

static void slab_item(void *arg, uint32_t item, uint32_t thread)
{
    struct split *s = arg;
    struct latent_job job = job_of(s);
    struct latent_slab b;

    for (uint32_t n; item - s->first >= (n = slabs(s, s->seq)); s->seq++)
        s->first += n;
    b = slab_of(s, &job, s->seq, item - s->first, thread);
    slab_attend(&s->cpu->impl, &b);
}

/* Floats of an item's sums while they wait for those of other pieces: o, then m and l. */
static size_t part_floats(const struct split *s)
{
    return (size_t)s->queries * (s->kv.latent + 2);
}

static void move_sums(const struct latent_slab *b, float *part, bool out)
{
    struct latent_sums *s = &b->s->piece;
    size_t n = b->to - b->from, values = n * b->job->v_dim;

    if (out) {
        memcpy(part, s->o, values * sizeof *part);
        memcpy(part + values, s->m, n * sizeof *part);
        memcpy(part + values + n, s->l, n * sizeof *part);
    } else {
        memcpy(s->o, part, values * sizeof *part);
        memcpy(s->m, part + values, n * sizeof *part);
        memcpy(s->l, part + values + n, n * sizeof *part);
    }
}

static void piece_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct split *s = arg;
    struct latent_job job = job_of(s);
    const struct k_seq *seq = s->seqs;
    uint32_t i = item;
    struct latent_slab b;

    for (uint32_t n; i >= (n = slabs(s, seq) * seq_pieces(seq)); seq++)
        i -= n;
    b = slab_of(s, &job, seq, i % slabs(s, seq), thread);
    s->cpu->impl.latent_queries(&b);
    s->cpu->impl.latent_sum(&b, i / slabs(s, seq));
    move_sums(&b, s->cpu->parts + item * part_floats(s), true);
}

static void join_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct split *s = arg;
    struct latent_job job = job_of(s);
    const struct k_seq *seq = s->seqs;
    uint32_t first = 0, step;
    struct latent_slab b;

    for (; item >= (step = slabs(s, seq)); seq++) {
        item -= step;
        first += step * seq_pieces(seq);
    }
    b = slab_of(s, &job, seq, item, thread);
    for (uint32_t piece = 0; piece < latent_pieces(&b); piece++) {
        move_sums(&b, s->cpu->parts + (first + piece * step + item) * part_floats(s), false);
        s->cpu->impl.latent_add(&b, piece);
    }
    s->cpu->impl.latent_finish(&b);
}

/* Items of whole slabs, and of their pieces. */
static uint32_t count(const struct split *s, uint32_t *by_piece)
{
    uint32_t whole = 0;

    *by_piece = 0;
    for (const struct k_seq *q = s->seqs; q < s->seqs + s->n_seqs; q++) {
        whole += slabs(s, q);
        *by_piece += slabs(s, q) * seq_pieces(q);
    }
    return whole;
}

void attend_latent(const struct kernels *k, struct k_heads out, struct k_heads q, struct k_heads pe,
                   uint32_t heads, float scale, const struct k_kv *kv, const struct k_seq *seqs,
                   uint32_t n_seqs)
{
    struct cpu *c = cpu_of(k);
    struct split s = { .out = out,
                       .q = q,
                       .pe = pe,
                       .kv = *kv,
                       .cpu = c,
                       .seqs = seqs,
                       .n_seqs = n_seqs,
                       .heads = heads,
                       .scale = scale,
                       .queries = latent_room(kv->head_dim, kv->latent),
                       .seq = seqs };
    uint32_t wanted = FEW_ITEMS * c->team.threads, by_piece, whole = count(&s, &by_piece);

    assert(kv->latent % 16 == 0 && kv->head_dim % 16 == 0 && kv->head_dim <= K_MAX_LATENT_DIM);
    assert(kv->latent < kv->head_dim && kv->kv_heads == 1);
    while (c->team.threads > 1 && by_piece < wanted && s.queries >= 2 * LEAST_QUERIES) {
        s.queries /= 2;
        whole = count(&s, &by_piece);
    }
    if (c->team.threads == 1 || whole >= wanted || by_piece == whole ||
        by_piece > ATTEND_PARTS / part_floats(&s)) {
        team_items(&c->team, whole, slab_item, &s, sizeof s);
    } else {
        team_items(&c->team, by_piece, piece_item, &s, sizeof s);
        team_items(&c->team, whole, join_item, &s, sizeof s);
    }
}
