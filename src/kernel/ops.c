/* The [team] operations: who does which part. The arithmetic is in ref/ and x86/. */
#include "kernel/i8.h"
#include "kernel/latent.h"
#include "kernel/moe.h"

#include <assert.h>
#include <string.h>

/* Bytes of activations that a unit of panels is multiplied with before the next unit: they stay in
 * the second-level cache. */
#define LINEAR_BYTES (384u << 10)
/* The same for int8 weights, which are not unpacked to anything that takes room there too. */
#define LINEAR_I8_BYTES (768u << 10)
/* Rows in a work item are a multiple of this (whole register tiles of every ISA), and fewer where
 * there are too few units to share out. */
#define LINEAR_ROWS 48
/* Up to so many rows the weights are what is read, and a fixed split reads them in long runs. */
#define LINEAR_FEW 4
/* Bytes of weights that a thread asks for while it waits to begin: some of the second-level cache. */
#define LINEAR_AHEAD (128u << 10)

static void team(const struct kernels *k, uint32_t n, team_item_fn *fn, void *job, size_t job_bytes)
{
    team_items(&cpu_of(k)->team, n, fn, job, job_bytes);
}

enum act_kind { ACT_LOAD, ACT_NORM, ACT_SWIGLU };

struct act_job {
    const struct kernels *k;
    struct k_act *a;
    enum act_kind kind;
    const float *x, *gain, *bias;
    size_t ldx;
    const uint32_t *rows; /* of x; NULL: 0, 1, 2, ... */
    uint32_t n, cols, pieces;
    float eps;
};

/* One row of x in the float form, which may be the scratch of the calling thread. */
static const float *act_row(const struct act_job *job, float *y, uint32_t i)
{
    const struct cpu_impl *f = &cpu_of(job->k)->impl;
    const float *x = job->x + (job->rows ? job->rows[i] : i) * job->ldx;

    switch (job->kind) {
    case ACT_NORM:
        f->norm_row(y, x, job->gain, job->cols, job->eps);
        for (uint32_t c = 0; job->bias && c < job->cols; c++)
            y[c] += job->bias[c];
        return y;
    case ACT_SWIGLU:
        f->swiglu_row(y, x, job->cols);
        return y;
    default:
        return x;
    }
}

static void act_bf16_row(const struct kernels *k, struct k_act *a, uint32_t i, const float *x,
                         uint32_t cols)
{
    size_t at = (size_t)i * bf16_stride(cols);

    cpu_of(k)->impl.bf16_row(a->bf16 + at, a->bf16_wide + at, x, cols);
}

static void act_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct act_job *job = arg;
    struct k_act *a = job->a;
    uint32_t cols = job->cols, blocks = cols / K_BLOCK;
    uint32_t from, to = piece(job->n, job->pieces, item, &from);

    if (item == 0)
        a->cols = cols;
    for (uint32_t i = from; i < to; i++) {
        float *y = a->f ? a->f + (size_t)i * cols
                        : (float *)(void *)(a->scratch + thread * a->scratch_bytes);
        const float *x = act_row(job, y, i);

        if (a->f && x != y)
            memcpy(y, x, cols * sizeof *y);
        if (a->i8.q)
            act_i8_row(job->k, a, i, x, cols);
        if (a->bf16)
            act_bf16_row(job->k, a, i, x, cols);
        if (a->q)
            cpu_of(job->k)->impl.quant_row(a->q + (size_t)i * cols, a->scale + (size_t)i * blocks,
                                           a->isum + (size_t)i * blocks * 2,
                                           a->fsum + (size_t)i * blocks, x, cols);
    }
}

static void act_fill(struct act_job *job)
{
    const struct k_act *a = job->a;

    assert(job->n <= a->max_tokens && job->cols <= a->max_cols &&
           (job->cols % K_BLOCK == 0 || !a->q));
    job->pieces = pieces(job->k, job->n);
    team(job->k, job->pieces, act_item, job, sizeof *job);
}

static void act_load(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     uint32_t n, uint32_t cols)
{
    struct act_job job = {
        .k = k, .a = a, .kind = ACT_LOAD, .x = x, .ldx = ldx, .n = n, .cols = cols
    };

    act_fill(&job);
}

static void act_gather(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       const uint32_t *rows, uint32_t n, uint32_t cols)
{
    struct act_job job = {
        .k = k, .a = a, .kind = ACT_LOAD, .x = x, .ldx = ldx, .rows = rows, .n = n, .cols = cols
    };

    act_fill(&job);
}

static void act_sorted(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       const struct k_routes *r, uint32_t n, uint32_t cols)
{
    act_gather(k, a, x, ldx, r->token, n * r->top_k, cols);
}

static void act_norm(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                     const float *gain, const float *bias, uint32_t n, uint32_t cols, float eps)
{
    struct act_job job = { .k = k,
                           .a = a,
                           .kind = ACT_NORM,
                           .x = x,
                           .ldx = ldx,
                           .gain = gain,
                           .bias = bias,
                           .n = n,
                           .cols = cols,
                           .eps = eps };

    act_fill(&job);
}

static void act_swiglu(const struct kernels *k, struct k_act *a, const float *x, size_t ldx,
                       uint32_t n, uint32_t cols)
{
    struct act_job job = {
        .k = k, .a = a, .kind = ACT_SWIGLU, .x = x, .ldx = ldx, .n = n, .cols = cols
    };

    act_fill(&job);
}

struct static_job {
    const struct kernels *k;
    struct k_act *a;
    uint32_t n, pieces;
    float scale, offset;
};

static void static_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct static_job *job = arg;
    uint32_t from, to = piece(job->n, job->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++)
        act_static_row(job->k, job->a, i, job->scale, job->offset);
}

static void act_static(const struct kernels *k, struct k_act *a, uint32_t n,
                       const struct k_static *s)
{
    struct static_job job = { k, a, n, pieces(k, n), s->input_scale, s->input_offset };

    assert((a->forms & K_FORM_I8S) && n <= a->max_tokens);
    team(k, job.pieces, static_item, &job, sizeof job);
}

static const float *act_floats(const struct k_act *a)
{
    return a->f;
}

static uint32_t seg_units(const struct k_seg *s)
{
    return (s->panels + K_UNIT - 1) / K_UNIT;
}

uint32_t matrix_units(const struct k_matrix *w)
{
    uint32_t units = 0;

    for (uint32_t i = 0; i < w->n_segs; i++)
        units += seg_units(&w->segs[i]);
    return units;
}

void linear_units(const struct cpu_impl *f, const struct linear_job *job, uint32_t from,
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
    bool i8 = w->segs[0].type == K_I8;
    uint32_t rows = LINEAR_BYTES / (w->cols * (a->q ? 1u : (uint32_t)sizeof(float)));

    if (i8)
        rows = LINEAR_I8_BYTES / (w->cols * a->i8_bytes);
    rows = rows < LINEAR_ROWS ? LINEAR_ROWS : rows - rows % LINEAR_ROWS;
    return few_units && rows > 2 * LINEAR_ROWS ? 2 * LINEAR_ROWS : rows;
}

/* How a product is cut: by units into pieces for few rows, else into units times chunks of rows. */
struct linear_split {
    struct linear_job job;
    const struct kernels *k;
    uint32_t n, units, rows, items;
};

static const void *unit_codes(const struct k_matrix *w, uint32_t unit)
{
    const struct k_seg *seg = w->segs;

    for (uint32_t n; unit >= (n = seg_units(seg)); seg++)
        unit -= n;
    return seg->q + (size_t)unit * K_UNIT * seg->q_bytes;
}

static void linear_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct linear_split *s = arg;
    const struct k_act *a = s->job.a;
    const struct cpu_impl *f = &cpu_of(s->k)->impl;
    void *scratch = a->scratch + thread * a->scratch_bytes;

    assert(a->cols == s->job.w->cols);
    if (s->n <= LINEAR_FEW) {
        uint32_t from, to = piece(s->units, s->items, item, &from);

        linear_units(f, &s->job, from, to, 0, s->n, scratch);
    } else {
        uint32_t r0 = item / s->units * s->rows, unit = item % s->units;

        struct linear_job job = s->job;

        job.next = unit_codes(job.w, (unit + s->k->threads) % s->units);
        linear_units(f, &job, unit, unit + 1, r0, r0 + s->rows < s->n ? r0 + s->rows : s->n,
                     scratch);
    }
}

/* Where the weights of an item of few rows begin. */
static void linear_ahead(const void *job, uint32_t item, struct team_ahead *out)
{
    const struct linear_split *s = job;
    const struct k_seg *seg = s->job.w->segs;
    uint32_t from, to = piece(s->units, s->items, item, &from);
    size_t size, panels = (size_t)(to - from) * K_UNIT;

    if (s->n > LINEAR_FEW)
        return;
    for (uint32_t n; from >= (n = seg_units(seg)); seg++)
        from -= n;
    from *= K_UNIT;
    size = seg_scale_size(seg);
    out->at[0] = (const char *)seg->scale + from * seg->scale_count * size;
    out->bytes[0] = K_UNIT * seg->scale_count * size;
    out->at[1] = (const char *)seg->min + from * seg->min_count * size;
    out->bytes[1] = K_UNIT * seg->min_count * size;
    out->at[2] = (const char *)seg->q + from * seg->q_bytes;
    out->bytes[2] = panels * seg->q_bytes < LINEAR_AHEAD ? panels * seg->q_bytes : LINEAR_AHEAD;
}

static void linear(const struct kernels *k, float *y, size_t ldy, const struct k_act *a,
                   const struct k_matrix *w, uint32_t n, bool accumulate)
{
    struct linear_split s = {
        .job = { .y = y, .ldy = ldy, .a = a, .w = w, .accumulate = accumulate }, .k = k, .n = n
    };

    assert((a->forms & matrix_form(w)) == matrix_form(w));
    if (n == 0)
        return;
    s.units = matrix_units(w);
    s.rows = linear_rows(a, w, s.units < 4 * k->threads);
    s.items = n <= LINEAR_FEW ? pieces(k, s.units) : s.units * ((n + s.rows - 1) / s.rows);
    team_items_ahead(&cpu_of(k)->team, s.items, linear_item, linear_ahead, &s, sizeof s);
}

/* embed, gather and add_rows: rows as they are. */
struct rows_job {
    float *y;
    size_t ldy;
    const struct k_matrix *table;
    const int32_t *ids;
    const float *x;
    size_t ldx;
    const uint32_t *rows;
    uint32_t n, cols, pieces;
};

static void embed_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct rows_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++) {
        assert(j->ids[i] < (int64_t)j->table->rows);
        if (j->ids[i] < 0)
            memset(j->y + i * j->ldy, 0, j->table->cols * sizeof *j->y);
        else
            matrix_row(j->table, (uint32_t)j->ids[i], j->y + i * j->ldy);
    }
}

static void embed(const struct kernels *k, float *y, size_t ldy, const struct k_matrix *table,
                  const int32_t *ids, uint32_t n)
{
    struct rows_job job = {
        .y = y, .ldy = ldy, .table = table, .ids = ids, .n = n, .pieces = pieces(k, n)
    };

    team(k, job.pieces, embed_item, &job, sizeof job);
}

static void gather_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct rows_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++)
        memcpy(j->y + i * j->ldy, j->x + j->rows[i] * j->ldx, j->cols * sizeof *j->y);
}

static void gather(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                   const uint32_t *rows, uint32_t n, uint32_t cols)
{
    struct rows_job job = { .y = y,
                            .ldy = ldy,
                            .x = x,
                            .ldx = ldx,
                            .rows = rows,
                            .n = n,
                            .cols = cols,
                            .pieces = pieces(k, n) };

    team(k, job.pieces, gather_item, &job, sizeof job);
}

static void add_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct rows_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t c = 0; c < j->cols; c++)
            j->y[i * j->ldy + c] += j->x[i * j->ldx + c];
}

static void add_rows(const struct kernels *k, float *y, size_t ldy, const float *x, size_t ldx,
                     uint32_t n, uint32_t cols)
{
    struct rows_job job = {
        .y = y, .ldy = ldy, .x = x, .ldx = ldx, .n = n, .cols = cols, .pieces = pieces(k, n)
    };

    team(k, job.pieces, add_item, &job, sizeof job);
}

struct rope_job {
    const struct cpu_impl *f;
    float *x;
    size_t ldx;
    uint32_t n, heads, head_dim, pieces;
    const uint32_t *pos;
    struct k_rope rope;
};

static void rope_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct rope_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from), half = j->rope.dim / 2;

    (void)thread;
    for (uint32_t i = from; i < to; i++) {
        const float *cos = j->rope.cos + (size_t)j->pos[i] * half;
        const float *sin = j->rope.sin + (size_t)j->pos[i] * half;

        assert(j->pos[i] < j->rope.max_pos);
        for (uint32_t h = 0; h < j->heads; h++)
            j->f->rope_head(j->x + i * j->ldx + (size_t)h * j->head_dim, cos, sin, &j->rope);
    }
}

static void rope(const struct kernels *k, float *x, size_t ldx, uint32_t n, uint32_t heads,
                 uint32_t head_dim, const uint32_t *pos, const struct k_rope *r)
{
    struct rope_job job = {
        &cpu_of(k)->impl, x, ldx, n, heads, head_dim, pieces(k, n), pos, *r,
    };

    assert(r->dim <= head_dim && r->dim % 2 == 0);
    team(k, job.pieces, rope_item, &job, sizeof job);
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

struct kv_job {
    const struct cpu_impl *f;
    const struct k_kv *kv;
    const float *key, *value;
    size_t ld;
    const struct k_seq *seqs;
    uint32_t n_seqs, groups, pieces;
};

/* Groups of positions that a sequence writes to. */
static uint32_t seq_groups(const struct k_seq *q)
{
    return (q->pos % KV_GROUP + q->n + KV_GROUP - 1) / KV_GROUP;
}

static void kv_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct kv_job *j = arg;
    uint32_t from, to = piece(j->groups, j->pieces, item, &from), before = 0;

    (void)thread;
    for (const struct k_seq *q = j->seqs; q < j->seqs + j->n_seqs && before < to; q++) {
        uint32_t n = seq_groups(q), g = from > before ? from - before : 0;

        for (; g < n && before + g < to; g++)
            kv_put_group(j->f, j->kv, j->key, j->value, j->ld, q,
                         q->pos - q->pos % KV_GROUP + g * KV_GROUP);
        before += n;
    }
}

static void kv_write(const struct kernels *k, const struct k_kv *kv, const float *key,
                     const float *value, size_t ld, const struct k_seq *seqs, uint32_t n_seqs)
{
    struct kv_job job = { &cpu_of(k)->impl, kv, key, value, ld, seqs, n_seqs, 0, 0 };

    assert(kv->block_tokens % KV_GROUP == 0 && (kv->type == K_F32 || kv->type == K_F16));
    for (uint32_t i = 0; i < n_seqs; i++)
        job.groups += seq_groups(&seqs[i]);
    job.pieces = pieces(k, job.groups);
    team(k, job.pieces, kv_item, &job, sizeof job);
}

void ops_fill(struct kernels *k)
{
    k->act_load = act_load;
    k->act_gather = act_gather;
    k->act_sorted = act_sorted;
    k->act_norm = act_norm;
    k->act_swiglu = act_swiglu;
    k->act_floats = act_floats;
    k->act_static = act_static;
    k->linear = linear;
    k->embed = embed;
    k->gather = gather;
    k->add_rows = add_rows;
    k->rope = rope;
    k->kv_write = kv_write;
    k->attend = attend;
    k->linear_heads = linear_heads;
    k->norm_heads = norm_heads;
    k->add_bias = add_bias;
    k->routes_create = routes_create;
    k->routes_destroy = routes_destroy;
    k->route = route;
    k->routes_given = routes_given;
    k->linear_experts = linear_experts;
    k->combine = combine;
    k->latent_write = latent_write;
    k->latent_read = latent_read;
    k->attend_latent = attend_latent;
    k->attend_expanded = attend_expanded;
    k->sample = sample_rows;
}
