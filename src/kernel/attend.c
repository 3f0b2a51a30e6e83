/* Attention as the team sees it. A work item is one kv head of some rows of a sequence; where that
 * gives too few items (decoding few long sequences), one piece of their keys. Both ways add the
 * same pieces in the same order. */
#include "kernel/cpu.h"

#include <assert.h>
#include <string.h>

/* Fewer items than this, a thread, are cut into pieces. */
#define FEW_ITEMS 4

static struct attend_slab slab_of(const struct attend_job *job, const struct k_seq *seq,
                                  uint32_t kv_head, uint32_t r0, struct attend_scratch *s)
{
    return (struct attend_slab){ .job = job,
                                 .seq = seq,
                                 .kv_head = kv_head,
                                 .group = job->heads / job->kv->kv_heads,
                                 .dim = job->kv->head_dim,
                                 .r0 = r0,
                                 .s = s };
}

/* Pieces that hold the keys of the slab's last query. */
static uint32_t slab_pieces(const struct attend_slab *b)
{
    return (attend_sees(b, b->to - 1) + KV_PIECE - 1) / KV_PIECE;
}

/* Rows [r0, r1) of a sequence, one kv head. */
static void attend_rows(const struct cpu_impl *f, const struct attend_job *job,
                        const struct k_seq *seq, uint32_t kv_head, uint32_t r0, uint32_t r1,
                        struct attend_scratch *s)
{
    struct attend_slab b = slab_of(job, seq, kv_head, r0, s);
    uint32_t n = (r1 - r0) * b.group;

    for (; b.from < n; b.from = b.to) {
        b.to = b.from + K_ATT_QUERIES < n ? b.from + K_ATT_QUERIES : n;
        for (uint32_t piece = 0; piece < slab_pieces(&b); piece++) {
            f->attend_sum(&b, piece);
            f->attend_add(&b, piece);
        }
        f->attend_finish(&b);
    }
}

/* The items of whole rows: kv heads of chunks of rows of sequences. */
struct row_split {
    struct attend_job job;
    struct cpu *cpu;
    uint32_t rows;           /* in a chunk: with all their heads they fill the scratch */
    const struct k_seq *seq; /* of the last item that this thread took, */
    uint32_t first;          /* and the first item of that sequence */
};

static uint32_t row_items(const struct row_split *s, const struct k_seq *seq)
{
    return (seq->n + s->rows - 1) / s->rows * s->job.kv->kv_heads;
}

static void row_item(void *arg, uint32_t item, uint32_t thread)
{
    struct row_split *s = arg;
    uint32_t heads = s->job.kv->kv_heads, r1;

    for (uint32_t n; item - s->first >= (n = row_items(s, s->seq)); s->seq++)
        s->first += n;
    /* the last rows see the most keys: they go first, so that threads end together */
    r1 = s->seq->n - (item - s->first) / heads * s->rows;
    attend_rows(&s->cpu->impl, &s->job, s->seq, (item - s->first) % heads,
                r1 > s->rows ? r1 - s->rows : 0, r1, &s->cpu->attend[thread]);
}

/* The items of pieces: for sequences of so few rows that a kv head's queries make one slab. */
struct piece_split {
    struct attend_job job;
    struct cpu *cpu;
    size_t part; /* floats of an item's sums: [query] of m, l, o[dim] */
    const struct k_seq *seqs;
};

static uint32_t piece_items(const struct k_seq *seq, uint32_t kv_heads)
{
    return (seq->pos + seq->n + KV_PIECE - 1) / KV_PIECE * kv_heads;
}

/* Sums of one query to where they wait for the other pieces, or back. */
static void move_sums(struct attend_sums *s, uint32_t i, uint32_t dim, float *part, bool out)
{
    float *o = s->o + (size_t)i * dim;

    if (out) {
        part[0] = s->m[i];
        part[1] = s->l[i];
        memcpy(part + 2, o, dim * sizeof *o);
    } else {
        s->m[i] = part[0];
        s->l[i] = part[1];
        memcpy(o, part + 2, dim * sizeof *o);
    }
}

static void move_slab(const struct attend_slab *b, float *part, bool out)
{
    for (uint32_t i = 0; i < b->to; i++)
        move_sums(&b->s->piece, i, b->dim, part + i * (size_t)(b->dim + 2), out);
}

static void piece_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct piece_split *s = arg;
    const struct k_seq *seq = s->seqs;
    uint32_t heads = s->job.kv->kv_heads, i = item;
    struct attend_slab b;

    for (uint32_t n; i >= (n = piece_items(seq, heads)); seq++)
        i -= n;
    b = slab_of(&s->job, seq, i % heads, 0, &s->cpu->attend[thread]);
    b.to = seq->n * b.group;
    s->cpu->impl.attend_sum(&b, i / heads);
    move_slab(&b, s->cpu->parts + item * s->part, true);
}

static void join_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct piece_split *s = arg;
    uint32_t heads = s->job.kv->kv_heads, first = item % heads;
    const struct k_seq *seq = s->seqs + item / heads;
    struct attend_slab b = slab_of(&s->job, seq, item % heads, 0, &s->cpu->attend[thread]);

    b.to = seq->n * b.group;
    for (const struct k_seq *q = s->seqs; q < seq; q++)
        first += piece_items(q, heads);
    for (uint32_t piece = 0; piece < slab_pieces(&b); piece++) {
        move_slab(&b, s->cpu->parts + (first + piece * heads) * s->part, false);
        s->cpu->impl.attend_add(&b, piece);
    }
    s->cpu->impl.attend_finish(&b);
}

/* Items of pieces, or 0 if items of whole rows (`whole` of them) do better. */
static uint32_t by_pieces(struct piece_split *s, uint32_t n_seqs, uint32_t whole)
{
    uint32_t heads = s->job.kv->kv_heads, group = s->job.heads / heads;
    uint32_t threads = s->cpu->team.threads, items = 0, rows = 1;

    if (threads == 1 || whole != n_seqs * heads || whole >= FEW_ITEMS * threads)
        return 0;
    for (uint32_t i = 0; i < n_seqs; i++) {
        items += piece_items(&s->seqs[i], heads);
        rows = s->seqs[i].n > rows ? s->seqs[i].n : rows;
    }
    s->part = (size_t)rows * group * (s->job.kv->head_dim + 2);
    if (items == whole || rows * group > K_ATT_QUERIES || items > ATTEND_PARTS / s->part)
        return 0;
    return items;
}

void attend(const struct kernels *k, float *out, size_t ldo, const float *q, size_t ldq,
            uint32_t heads, float scale, const struct k_kv *kv, const struct k_seq *seqs,
            uint32_t n_seqs)
{
    struct attend_job job = { out, q, ldo, ldq, heads, scale, kv };
    struct cpu *c = cpu_of(k);
    struct row_split rows = { .job = job, .cpu = c, .seq = seqs };
    struct piece_split pieces = { .job = job, .cpu = c, .seqs = seqs };
    uint32_t group = heads / kv->kv_heads, whole = 0, items;

    assert(heads % kv->kv_heads == 0 && kv->head_dim <= K_MAX_HEAD_DIM && kv->head_dim % 16 == 0);
    rows.rows = group >= K_ATT_QUERIES ? 1 : K_ATT_QUERIES / group;
    for (uint32_t i = 0; i < n_seqs; i++)
        whole += row_items(&rows, &seqs[i]);
    items = by_pieces(&pieces, n_seqs, whole);
    if (items) {
        team_items(&c->team, items, piece_item, &pieces, sizeof pieces);
        team_items(&c->team, whole, join_item, &pieces, sizeof pieces);
    } else {
        team_items(&c->team, whole, row_item, &rows, sizeof rows);
    }
}
