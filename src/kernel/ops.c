/* The [team] operations: who does which part. The arithmetic is in ref/ and x86/. */
#include "kernel/cpu.h"

#include <assert.h>
#include <string.h>

/* Bytes of activations that a unit of panels is multiplied with before the next unit: they stay in
 * the second-level cache. */
#define LINEAR_BYTES (384u << 10)
/* Rows in a work item are a multiple of this (whole register tiles of every ISA), and fewer where
 * there are too few units to share out. */
#define LINEAR_ROWS 48
/* Up to so many rows the weights are what is read, and a fixed split reads them in long runs. */
#define LINEAR_FEW 4

static struct share begin(const struct kernels *k)
{
    return team_share(&cpu_of(k)->team);
}

enum act_kind { ACT_LOAD, ACT_NORM, ACT_SWIGLU };

struct act_job {
    enum act_kind kind;
    const float *x, *gain;
    size_t ldx;
    float eps;
};

/* One row of x in the float form, which may be the scratch of the calling thread. */
static const float *act_row(const struct cpu_impl *f, const struct act_job *job, float *y,
                            uint32_t i, uint32_t cols)
{
    const float *x = job->x + i * job->ldx;

    switch (job->kind) {
    case ACT_NORM:
        f->norm_row(y, x, job->gain, cols, job->eps);
        return y;
    case ACT_SWIGLU:
        f->swiglu_row(y, x, cols);
        return y;
    default:
        return x;
    }
}

static void act_fill(const struct kernels *k, struct k_act *a, const struct act_job *job,
                     uint32_t n, uint32_t cols)
{
    const struct cpu_impl *f = &cpu_of(k)->impl;
    struct share s = begin(k);
    uint32_t from, to = share_range(&s, n, &from), blocks = cols / K_BLOCK;

    assert(n <= a->max_tokens && cols <= a->max_cols && cols % K_BLOCK == 0);
    if (s.index == 0)
        a->cols = cols;
    for (uint32_t i = from; i < to; i++) {
        float *y = a->f ? a->f + (size_t)i * cols
                        : (float *)(void *)(a->scratch + s.index * a->scratch_bytes);
        const float *x = act_row(f, job, y, i, cols);

        if (a->f && x != y)
            memcpy(y, x, cols * sizeof *y);
        if (a->q)
            f->quant_row(a->q + (size_t)i * cols, a->scale + (size_t)i * blocks,
                         a->isum + (size_t)i * blocks, a->fsum + (size_t)i * blocks, x, cols);
    }
    team_barrier(&s);
}

static void act_load(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     uint32_t n, uint32_t cols)
{
    struct act_job job = { .kind = ACT_LOAD, .x = x, .ldx = ldx };

    act_fill(k, a, &job, n, cols);
}

static void act_norm(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     const float *gain, uint32_t n, uint32_t cols, float eps)
{
    struct act_job job = { .kind = ACT_NORM, .x = x, .ldx = ldx, .gain = gain, .eps = eps };

    act_fill(k, a, &job, n, cols);
}

static void act_swiglu(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       uint32_t n, uint32_t cols)
{
    struct act_job job = { .kind = ACT_SWIGLU, .x = x, .ldx = ldx };

    act_fill(k, a, &job, n, cols);
}

static const float *act_floats(const struct k_act *a)
{
    return a->f;
}

static uint32_t seg_units(const struct k_seg *s)
{
    return (s->panels + K_UNIT - 1) / K_UNIT;
}

static uint32_t matrix_units(const struct k_matrix *w)
{
    uint32_t units = 0;

    for (uint32_t i = 0; i < w->n_segs; i++)
        units += seg_units(&w->segs[i]);
    return units;
}

/* Units [from, to), counted over all segments, times rows [r0, r1). */
static void linear_units(const struct cpu_impl *f, const struct linear_job *job, uint32_t from,
                         uint32_t to, uint32_t r0, uint32_t r1, void *scratch)
{
    for (const struct k_seg *s = job->w->segs; from < to; s++) {
        uint32_t n = seg_units(s), end = to < n ? to : n;

        if (from < n) {
            uint32_t p1 = end * K_UNIT < s->panels ? end * K_UNIT : s->panels;

            f->linear(job, s, from * K_UNIT, p1, r0, r1, scratch);
            from = end;
        }
        from -= from < n ? from : n;
        to -= to < n ? to : n;
    }
}

/* Rows of one work item. */
static uint32_t linear_rows(const struct k_act *a, const struct k_matrix *w, bool few_units)
{
    uint32_t rows = LINEAR_BYTES / (w->cols * (a->q ? 1u : (uint32_t)sizeof(float)));

    rows = rows < LINEAR_ROWS ? LINEAR_ROWS : rows - rows % LINEAR_ROWS;
    return few_units && rows > 2 * LINEAR_ROWS ? 2 * LINEAR_ROWS : rows;
}

static void linear(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                   const struct k_matrix *w, uint32_t n, bool accumulate)
{
    const struct cpu_impl *f = &cpu_of(k)->impl;
    struct linear_job job = { y, ldy, a, w, accumulate };
    struct share s = begin(k);
    void *scratch = a->scratch + s.index * a->scratch_bytes;
    uint32_t units = matrix_units(w), rows, chunks, i;

    assert(a->cols == w->cols && (a->forms & matrix_form(w)) == matrix_form(w));
    if (n <= LINEAR_FEW) {
        uint32_t from, to = share_range(&s, units, &from);

        if (from < to && n)
            linear_units(f, &job, from, to, 0, n, scratch);
        team_barrier(&s);
        return;
    }
    rows = linear_rows(a, w, units < 4 * s.count);
    chunks = (n + rows - 1) / rows;
    while ((i = team_next(&s, units * chunks)) < units * chunks) {
        uint32_t r0 = i / units * rows, r1 = r0 + rows < n ? r0 + rows : n;

        linear_units(f, &job, i % units, i % units + 1, r0, r1, scratch);
    }
    team_barrier(&s);
}

static void embed(const struct kernels *k, float *y, size_t ldy, const struct k_matrix *table,
                  const int32_t *ids, uint32_t n)
{
    struct share s = begin(k);
    uint32_t from, to = share_range(&s, n, &from);

    for (uint32_t i = from; i < to; i++) {
        assert(ids[i] >= 0 && (uint32_t)ids[i] < table->rows);
        matrix_row(table, (uint32_t)ids[i], y + i * ldy);
    }
    team_barrier(&s);
}

static void gather(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                   const uint32_t *rows, uint32_t n, uint32_t cols)
{
    struct share s = begin(k);
    uint32_t from, to = share_range(&s, n, &from);

    for (uint32_t i = from; i < to; i++)
        memcpy(y + i * ldy, x + rows[i] * ldx, cols * sizeof *y);
    team_barrier(&s);
}

static void rope(const struct kernels *k, float *x, size_t ldx, uint32_t n, uint32_t heads,
                 uint32_t head_dim, const uint32_t *pos, const struct k_rope *r)
{
    const struct cpu_impl *f = &cpu_of(k)->impl;
    struct share s = begin(k);
    uint32_t from, to = share_range(&s, n, &from), half = r->dim / 2;

    assert(r->dim <= head_dim && r->dim % 2 == 0);
    for (uint32_t i = from; i < to; i++) {
        const float *c = r->cos + (size_t)pos[i] * half, *sn = r->sin + (size_t)pos[i] * half;

        assert(pos[i] < r->max_pos);
        for (uint32_t h = 0; h < heads; h++)
            f->rope_head(x + i * ldx + (size_t)h * head_dim, c, sn, r);
    }
    team_barrier(&s);
}

static size_t kv_size(const struct k_kv *kv)
{
    return kv->type == K_F32 ? 4 : 2;
}

/* Stores the rows of seq that fall into the group of 16 positions which starts at `first`. */
static void kv_put_group(const struct cpu_impl *f, const struct k_kv *kv, const float *key,
                         const float *value, size_t ld, const struct k_seq *seq, uint32_t first)
{
    uint32_t from = first > seq->pos ? first : seq->pos, end = seq->pos + seq->n;
    uint32_t to = first + KV_GROUP < end ? first + KV_GROUP : end;
    uint32_t block = seq->blocks[first / kv->block_tokens], in_block = first % kv->block_tokens;
    size_t row = (size_t)(seq->row + from - seq->pos) * ld;

    for (uint32_t h = 0; h < kv->kv_heads; h++) {
        size_t at = kv_group_offset(kv, block, h, in_block), size = kv_size(kv);
        size_t col = row + (size_t)h * kv->head_dim;

        f->kv_put(kv, (char *)kv->k + at * size,
                  (char *)kv->v + (at + (size_t)(from - first) * kv->head_dim) * size, from - first,
                  to - from, key + col, value + col, ld);
    }
}

static void kv_write(const struct kernels *k, const struct k_kv *kv, const float *key,
                     const float *value, size_t ld, const struct k_seq *seqs, uint32_t n_seqs)
{
    const struct cpu_impl *f = &cpu_of(k)->impl;
    struct share s = begin(k);
    uint32_t turn = 0;

    assert(kv->block_tokens % KV_GROUP == 0 && (kv->type == K_F32 || kv->type == K_F16));
    for (const struct k_seq *q = seqs; q < seqs + n_seqs; q++)
        for (uint32_t first = q->pos - q->pos % KV_GROUP; first < q->pos + q->n; first += KV_GROUP)
            if (turn++ % s.count == s.index)
                kv_put_group(f, kv, key, value, ld, q, first);
    team_barrier(&s);
}

/* Rows of a sequence in one work item of attend: with all their heads they fill the scratch. */
static uint32_t attend_rows(uint32_t group)
{
    return group >= K_ATT_QUERIES ? 1 : K_ATT_QUERIES / group;
}

static void attend(const struct kernels *k, float *out, size_t ldo, const float *q, size_t ldq,
                   uint32_t heads, float scale, const struct k_kv *kv, const struct k_seq *seqs,
                   uint32_t n_seqs)
{
    struct cpu *c = cpu_of(k);
    struct attend_job job = { out, q, ldo, ldq, heads, scale, kv };
    struct share s = begin(k);
    uint32_t rows = attend_rows(heads / kv->kv_heads), total = 0, first = 0, i;
    const struct k_seq *seq = seqs;

    assert(heads % kv->kv_heads == 0 && kv->head_dim <= K_MAX_HEAD_DIM && kv->head_dim % 16 == 0);
    for (uint32_t j = 0; j < n_seqs; j++)
        total += (seqs[j].n + rows - 1) / rows * kv->kv_heads;
    while ((i = team_next(&s, total)) < total) {
        uint32_t tiles, r1;

        /* items are taken in order, so the sequence only moves forward */
        while (i - first >= (tiles = (seq->n + rows - 1) / rows) * kv->kv_heads) {
            first += tiles * kv->kv_heads;
            seq++;
        }
        /* the last rows see the most keys: they go first, so that threads end together */
        r1 = seq->n - (i - first) / kv->kv_heads * rows;
        c->impl.attend(&job, seq, (i - first) % kv->kv_heads, r1 > rows ? r1 - rows : 0, r1,
                       &c->attend[s.index]);
    }
    team_barrier(&s);
}

void ops_fill(struct kernels *k)
{
    k->act_load = act_load;
    k->act_norm = act_norm;
    k->act_swiglu = act_swiglu;
    k->act_floats = act_floats;
    k->linear = linear;
    k->embed = embed;
    k->gather = gather;
    k->rope = rope;
    k->kv_write = kv_write;
    k->attend = attend;
    k->sample = sample_rows;
}
