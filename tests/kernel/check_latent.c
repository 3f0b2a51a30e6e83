/* Latent attention, absorbed and expanded, and its cache. */
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 1100
#define SCALE      0.11f

struct shape {
    uint32_t heads, latent, rope;
};

/* A sequence of n tokens. q and pe: [n][heads][latent], [n][heads][rope]; c and k_pe: what is cached,
 * [n][latent], [n][rope]. */
struct seq_data {
    uint32_t n;
    float *q, *pe, *c, *k_pe;
};

struct pool {
    struct k_kv kv;
    size_t bytes;
    uint32_t n_blocks;
    uint32_t ids[2][MAX_TOKENS]; /* two sequences take turns in taking blocks */
};

static float *random_floats(struct rng *r, const struct kernels *k, size_t n, float by)
{
    float *x = get(k, n * sizeof *x);

    for (size_t i = 0; i < n; i++)
        x[i] = rng_float(r) * by;
    return x;
}

static void data_init(struct seq_data *d, struct rng *r, const struct kernels *k,
                      const struct shape *s, uint32_t n)
{
    d->n = n;
    d->q = random_floats(r, k, (size_t)n * s->heads * s->latent, 2);
    d->pe = random_floats(r, k, (size_t)n * s->heads * s->rope, 2);
    d->c = random_floats(r, k, (size_t)n * s->latent, 1);
    d->k_pe = random_floats(r, k, (size_t)n * s->rope, 1);
}

static void data_finish(struct seq_data *d, const struct kernels *k, const struct shape *s)
{
    k->free(k, d->q, (size_t)d->n * s->heads * s->latent * sizeof(float));
    k->free(k, d->pe, (size_t)d->n * s->heads * s->rope * sizeof(float));
    k->free(k, d->c, (size_t)d->n * s->latent * sizeof(float));
    k->free(k, d->k_pe, (size_t)d->n * s->rope * sizeof(float));
}

/* Every slot starts as NaN: what is never written must never be seen. */
static void pool_init(struct pool *p, const struct kernels *k, const struct shape *s,
                      uint32_t block, enum k_type type)
{
    p->n_blocks = 2 * (MAX_TOKENS / block + 1);
    p->kv = (struct k_kv){ .type = type,
                           .block_tokens = block,
                           .kv_heads = 1,
                           .head_dim = s->latent + s->rope,
                           .latent = s->latent };
    p->bytes = (size_t)p->n_blocks * block * p->kv.head_dim * (type == K_F32 ? 4 : 2);
    p->kv.k = memset(get(k, p->bytes), 0xff, p->bytes);
    for (uint32_t i = 0; i < p->n_blocks; i++)
        p->ids[i % 2][i / 2] = p->n_blocks - 1 - i;
}

static void pool_finish(struct pool *p, const struct kernels *k)
{
    k->free(k, p->kv.k, p->bytes);
}

struct call {
    const struct kernels *k;
    const struct shape *s;
    const struct pool *pool;
    float *out, *q, *pe, *c, *k_pe;
    struct k_seq seqs[2];
    uint32_t n_seqs;
};

static struct k_heads vectors(float *p, uint32_t heads, uint32_t dim)
{
    return (struct k_heads){ p, (size_t)heads * dim, dim };
}

static void write_call(void *arg)
{
    const struct call *c = arg;

    c->k->latent_write(c->k, &c->pool->kv, c->c, c->s->latent, c->k_pe, c->s->rope, c->seqs,
                       c->n_seqs);
}

static void attend_call(void *arg)
{
    const struct call *c = arg;
    uint32_t heads = c->s->heads, latent = c->s->latent, rope = c->s->rope;

    write_call(arg);
    c->k->attend_latent(c->k, vectors(c->out, heads, latent), vectors(c->q, heads, latent),
                        vectors(c->pe, heads, rope), heads, SCALE, &c->pool->kv, c->seqs,
                        c->n_seqs);
}

/* A call for positions [from, to) of the sequence, as sequence `which` of the pool. */
static struct call call_range(const struct kernels *k, const struct shape *s, const struct pool *p,
                              const struct seq_data *d, uint32_t which, uint32_t from, uint32_t to,
                              float *out)
{
    struct call c = { .k = k,
                      .s = s,
                      .pool = p,
                      .out = out + (size_t)from * s->heads * s->latent,
                      .q = d->q + (size_t)from * s->heads * s->latent,
                      .pe = d->pe + (size_t)from * s->heads * s->rope,
                      .c = d->c + (size_t)from * s->latent,
                      .k_pe = d->k_pe + (size_t)from * s->rope,
                      .n_seqs = 1 };

    c.seqs[0] = (struct k_seq){ .n = to - from, .pos = from, .blocks = p->ids[which] };
    return c;
}

static void attend_range(const struct kernels *k, const struct shape *s, const struct pool *p,
                         const struct seq_data *d, uint32_t which, uint32_t from, uint32_t to,
                         float *out, bool team)
{
    struct call c = call_range(k, s, p, d, which, from, to, out);

    if (team)
        k->run(k, attend_call, &c);
    else
        attend_call(&c);
}

static double cached(float x, enum k_type type)
{
    return (double)(type == K_F32 ? x : k_half_to_float(k_float_to_half(x)));
}

/* Keys of one query in double: its scores, softmaxed. */
static void softmax_double(double *p, uint32_t n)
{
    double max = -INFINITY, sum = 0;

    for (uint32_t t = 0; t < n; t++)
        max = fmax(max, p[t]);
    for (uint32_t t = 0; t < n; t++)
        sum += p[t] = exp(p[t] - max);
    for (uint32_t t = 0; t < n; t++)
        p[t] /= sum;
}

static double compare_query(const struct shape *s, const struct seq_data *d, enum k_type type,
                            uint32_t row, uint32_t head, const float *out)
{
    const float *q = d->q + ((size_t)row * s->heads + head) * s->latent;
    const float *pe = d->pe + ((size_t)row * s->heads + head) * s->rope;
    double p[MAX_TOKENS], worst = 0;

    for (uint32_t t = 0; t <= row; t++) {
        p[t] = 0;
        for (uint32_t i = 0; i < s->latent; i++)
            p[t] += (double)q[i] * cached(d->c[(size_t)t * s->latent + i], type);
        for (uint32_t i = 0; i < s->rope; i++)
            p[t] += (double)pe[i] * cached(d->k_pe[(size_t)t * s->rope + i], type);
        p[t] *= (double)SCALE;
    }
    softmax_double(p, row + 1);
    for (uint32_t i = 0; i < s->latent; i++) {
        double o = 0;

        for (uint32_t t = 0; t <= row; t++)
            o += p[t] * cached(d->c[(size_t)t * s->latent + i], type);
        worst = isnan(out[i]) ? INFINITY : fmax(worst, fabs(o - (double)out[i]));
    }
    return worst;
}

static void compare_double(struct check *c, const struct shape *s, const struct seq_data *d,
                           enum k_type type, uint32_t from, uint32_t step, const float *out)
{
    double worst = 0;

    for (uint32_t row = from; row < d->n; row += step)
        for (uint32_t h = 0; h<s->heads; h += s->heads> 4 ? 5 : 1)
            worst = fmax(worst, compare_query(s, d, type, row, h,
                                              out + ((size_t)row * s->heads + h) * s->latent));
    expect(c, worst < 5e-6, "attend_latent %u x %u+%u %s, %u rows: off by %g", s->heads, s->latent,
           s->rope, k_type_info[type].name, d->n, worst);
}

/* The same numbers by other chunks, block sizes, threads. */
static void compare_ways(struct check *c, const struct shape *s, const struct seq_data *d,
                         enum k_type type, const float *want)
{
    static const uint32_t blocks[] = { 16, 32, 64 }, chunks[] = { 7, 64, 100 };
    size_t bytes = (size_t)d->n * s->heads * s->latent * sizeof(float);
    float *out = get(c->two, bytes);

    for (size_t i = 0; i < 3; i++) {
        const struct kernels *k = i == 1 ? c->one : c->two;
        struct pool p;

        pool_init(&p, k, s, blocks[i], type);
        for (uint32_t from = 0; from < d->n; from += chunks[i])
            attend_range(k, s, &p, d, i % 2, from,
                         from + chunks[i] < d->n ? from + chunks[i] : d->n, out, i != 2);
        expect(c, same_bits(out, want, bytes),
               "attend_latent %u x %u+%u %s, %u rows: chunks of %u, blocks of %u differ", s->heads,
               s->latent, s->rope, k_type_info[type].name, d->n, chunks[i], blocks[i]);
        pool_finish(&p, k);
    }
    c->two->free(c->two, out, bytes);
}

/* Some rows alone, and what the cache holds of them. */
static void compare_alone(struct check *c, const struct shape *s, const struct pool *p,
                          const struct seq_data *d, const float *want)
{
    size_t vec = (size_t)s->heads * s->latent;
    float *out = get(c->two, d->n * vec * sizeof *out), *back = get(c->two, p->kv.head_dim * 4);

    for (uint32_t row = 0; row < d->n; row += row + 1 < d->n && row + 37 >= d->n ? 1 : 37) {
        struct k_seq seq = { .n = 1, .pos = row, .blocks = p->ids[0] };
        bool ok = true;

        attend_range(c->two, s, p, d, 0, row, row + 1, out, true);
        expect(c, same_bits(out + row * vec, want + row * vec, vec * sizeof *out),
               "attend_latent %u x %u+%u: row %u of %u alone differs", s->heads, s->latent, s->rope,
               row, d->n);
        c->two->latent_read(c->two, back, s->latent, back + s->latent, s->rope, &p->kv, &seq, row,
                            row + 1);
        for (uint32_t i = 0; i < p->kv.head_dim; i++) {
            float x = i < s->latent ? d->c[(size_t)row * s->latent + i]
                                    : d->k_pe[(size_t)row * s->rope + i - s->latent];

            ok = ok && (double)back[i] == cached(x, p->kv.type);
        }
        expect(c, ok, "latent_read %u+%u %s: row %u differs", s->latent, s->rope,
               k_type_info[p->kv.type].name, row);
    }
    c->two->free(c->two, out, d->n * vec * sizeof *out);
    c->two->free(c->two, back, p->kv.head_dim * 4);
}

/* rows [from, n) of a, then all of b. */
static float *joined(const struct kernels *k, const float *a, uint32_t from, const float *b,
                     uint32_t n, size_t vec)
{
    float *x = get(k, (size_t)(2 * n - from) * vec * sizeof *x);

    memcpy(x, a + from * vec, (n - from) * vec * sizeof *x);
    memcpy(x + (n - from) * vec, b, n * vec * sizeof *x);
    return x;
}

/* Two sequences in one call: the tail of one, all of the other. */
static void compare_batch(struct check *c, const struct shape *s, const struct seq_data *d,
                          enum k_type type, const float *want)
{
    const struct kernels *k = c->two;
    uint32_t from = d->n > 5 ? d->n - 5 : 1, rows = 2 * d->n - from;
    size_t vec = (size_t)s->heads * s->latent, pe_vec = (size_t)s->heads * s->rope;
    struct call call = { .k = k, .s = s, .n_seqs = 2 };
    struct pool p;

    call.out = get(k, rows * vec * sizeof(float));
    call.q = joined(k, d->q, from, d->q, d->n, vec);
    call.pe = joined(k, d->pe, from, d->pe, d->n, pe_vec);
    call.c = joined(k, d->c, from, d->c, d->n, s->latent);
    call.k_pe = joined(k, d->k_pe, from, d->k_pe, d->n, s->rope);
    pool_init(&p, k, s, 32, type);
    attend_range(k, s, &p, d, 1, 0, from, call.out, true);
    call.pool = &p;
    call.seqs[0] = (struct k_seq){ .n = d->n - from, .pos = from, .blocks = p.ids[1] };
    call.seqs[1] = (struct k_seq){ .row = d->n - from, .n = d->n, .blocks = p.ids[0] };
    k->run(k, attend_call, &call);
    expect(c,
           same_bits(call.out, want + from * vec, (d->n - from) * vec * sizeof(float)) &&
               same_bits(call.out + (d->n - from) * vec, want, d->n * vec * sizeof(float)),
           "attend_latent %u x %u+%u, %u rows: two sequences in a batch differ", s->heads,
           s->latent, s->rope, d->n);
    pool_finish(&p, k);
    k->free(k, call.out, rows * vec * sizeof(float));
    k->free(k, call.q, rows * vec * sizeof(float));
    k->free(k, call.pe, rows * pe_vec * sizeof(float));
    k->free(k, call.c, (size_t)rows * s->latent * sizeof(float));
    k->free(k, call.k_pe, (size_t)rows * s->rope * sizeof(float));
}

static void one_shape(struct check *c, struct rng *r, const struct shape *s, enum k_type type,
                      uint32_t n)
{
    size_t bytes = (size_t)n * s->heads * s->latent * sizeof(float);
    const struct kernels *k = c->two;
    float *out = get(k, bytes);
    struct seq_data d;
    struct pool p;

    data_init(&d, r, k, s, n);
    pool_init(&p, k, s, 16, type);
    attend_range(k, s, &p, &d, 0, 0, n, out, true);
    compare_double(c, s, &d, type, 0, n > 20 ? 19 : 1, out);
    compare_ways(c, s, &d, type, out);
    compare_alone(c, s, &p, &d, out);
    if (n > 1)
        compare_batch(c, s, &d, type, out);
    pool_finish(&p, k);
    data_finish(&d, k, s);
    k->free(k, out, bytes);
}

/* The last rows of a sequence of several pieces: by whole slabs, by pieces on two threads, alone. */
static void long_sequence(struct check *c, struct rng *r, const struct shape *s, enum k_type type)
{
    enum { ROWS = 3 };
    size_t vec = (size_t)s->heads * s->latent, bytes = MAX_TOKENS * vec * sizeof(float);
    float *want = get(c->two, bytes), *out = get(c->two, bytes);
    uint32_t from = MAX_TOKENS - ROWS;
    struct seq_data d;
    struct pool p;
    struct call all;

    data_init(&d, r, c->two, s, MAX_TOKENS);
    pool_init(&p, c->two, s, 32, type);
    all = call_range(c->two, s, &p, &d, 0, 0, MAX_TOKENS, out);
    c->two->run(c->two, write_call, &all);
    attend_range(c->one, s, &p, &d, 0, from, MAX_TOKENS, want, true);
    compare_double(c, s, &d, type, from, 1, want);
    attend_range(c->two, s, &p, &d, 0, from, MAX_TOKENS, out, true);
    expect(c, same_bits(out + from * vec, want + from * vec, ROWS * vec * sizeof *out),
           "attend_latent %u x %u+%u: pieces differ from whole slabs", s->heads, s->latent,
           s->rope);
    for (uint32_t row = from; row < MAX_TOKENS; row++)
        attend_range(c->two, s, &p, &d, 0, row, row + 1, out, true);
    expect(c, same_bits(out + from * vec, want + from * vec, ROWS * vec * sizeof *out),
           "attend_latent %u x %u+%u: rows alone differ over several pieces", s->heads, s->latent,
           s->rope);
    pool_finish(&p, c->two);
    data_finish(&d, c->two, s);
    c->two->free(c->two, want, bytes);
    c->two->free(c->two, out, bytes);
}

/* The expanded form. */
struct wide_shape {
    uint32_t heads, nope, rope, v;
};

struct wide_data {
    const struct wide_shape *s;
    uint32_t n;
    float *q, *kv, *k_pe; /* kv: [n][heads][nope + v], as kv_b_proj gives it */
};

struct wide_call {
    const struct kernels *k;
    const struct wide_data *d;
    float *out;
    struct k_seq seq;
    const struct k_span *span;
};

static void expanded_call(void *arg)
{
    const struct wide_call *c = arg;
    const struct wide_shape *s = c->d->s;
    struct k_heads key = vectors(c->d->kv, s->heads, s->nope + s->v), value;
    const float *k_pe = c->d->k_pe;

    if (c->span) {
        key.p += c->span->from * key.row;
        k_pe += (size_t)c->span->from * s->rope;
    }
    value = key;
    value.p += s->nope;
    c->k->attend_expanded(c->k, vectors(c->out, s->heads, s->v),
                          vectors(c->d->q, s->heads, s->nope + s->rope), key, k_pe, s->rope, value,
                          s->heads, s->nope, s->rope, s->v, SCALE, &c->seq, c->span);
}

/* Rows [from, to); keys past `to` must not matter. */
static void expanded_range(const struct kernels *k, const struct wide_data *d, uint32_t from,
                           uint32_t to, float *out)
{
    struct wide_call c = {
        .k = k, .d = d, .out = out, .seq = { .row = from, .n = to - from, .pos = from }
    };

    k->run(k, expanded_call, &c);
}

/* The same in parts of the keys. */
static void expanded_parts(struct check *c, const struct wide_data *d, uint32_t from, uint32_t part,
                           float *out)
{
    size_t bytes = (size_t)(d->n - from) * d->s->heads * 2 * sizeof(float);
    struct k_span span = { .to = part, .sums = get(c->two, bytes) };
    struct wide_call call = {
        .k = c->two,
        .d = d,
        .out = out,
        .seq = { .row = from, .n = d->n - from, .pos = from },
        .span = &span,
    };

    for (; span.from < d->n; span.from += part) {
        span.to = d->n - span.from < part ? d->n : span.from + part;
        c->two->run(c->two, expanded_call, &call);
    }
    c->two->free(c->two, span.sums, bytes);
}

static double expanded_error(const struct wide_data *d, uint32_t row, uint32_t head,
                             const float *out)
{
    const struct wide_shape *s = d->s;
    const float *q = d->q + ((size_t)row * s->heads + head) * (s->nope + s->rope);
    size_t step = (size_t)s->heads * (s->nope + s->v);
    const float *kv = d->kv + head * (size_t)(s->nope + s->v);
    double p[MAX_TOKENS], worst = 0;

    for (uint32_t t = 0; t <= row; t++) {
        p[t] = 0;
        for (uint32_t i = 0; i < s->nope; i++)
            p[t] += (double)q[i] * (double)kv[t * step + i];
        for (uint32_t i = 0; i < s->rope; i++)
            p[t] += (double)q[s->nope + i] * (double)d->k_pe[(size_t)t * s->rope + i];
        p[t] *= (double)SCALE;
    }
    softmax_double(p, row + 1);
    for (uint32_t i = 0; i < s->v; i++) {
        double o = 0;

        for (uint32_t t = 0; t <= row; t++)
            o += p[t] * (double)kv[t * step + s->nope + i];
        worst = isnan(out[i]) ? INFINITY : fmax(worst, fabs(o - (double)out[i]));
    }
    return worst;
}

/* The same numbers in chunks, and some rows alone. */
static void expanded_ways(struct check *c, const struct wide_data *d, const float *want)
{
    static const uint32_t chunks[] = { 50, 64, 100 };
    const struct wide_shape *s = d->s;
    size_t vec = (size_t)s->heads * s->v;
    float *out = get(c->two, d->n * vec * sizeof *out);

    for (size_t i = 0; i < 3; i++) {
        for (uint32_t from = 0; from < d->n; from += chunks[i])
            expanded_range(i == 1 ? c->one : c->two, d, from,
                           from + chunks[i] < d->n ? from + chunks[i] : d->n, out);
        expect(c, same_bits(out, want, d->n * vec * sizeof *out),
               "attend_expanded %u x %u+%u/%u, %u rows: chunks of %u differ", s->heads, s->nope,
               s->rope, s->v, d->n, chunks[i]);
    }
    for (uint32_t from = 0; from < d->n; from += d->n / 2 + 1) {
        memset(out, 0, d->n * vec * sizeof *out);
        expanded_parts(c, d, from, KV_PIECE, out);
        expect(c, same_bits(out + from * vec, want + from * vec, (d->n - from) * vec * sizeof *out),
               "attend_expanded %u x %u+%u/%u, rows %u to %u: parts of keys differ", s->heads,
               s->nope, s->rope, s->v, from, d->n);
    }
    memset(out, 0, d->n * vec * sizeof *out);
    for (uint32_t row = 0; row < d->n; row += 23) {
        expanded_range(c->two, d, row, row + 1, out);
        expect(c, same_bits(out + row * vec, want + row * vec, vec * sizeof *out),
               "attend_expanded %u x %u+%u/%u: row %u of %u alone differs", s->heads, s->nope,
               s->rope, s->v, row, d->n);
    }
    c->two->free(c->two, out, d->n * vec * sizeof *out);
}

static void one_expanded(struct check *c, struct rng *r, const struct wide_shape *s, uint32_t n)
{
    size_t nq = (size_t)n * s->heads * (s->nope + s->rope), no = (size_t)n * s->heads * s->v;
    size_t nkv = (size_t)n * s->heads * (s->nope + s->v), npe = (size_t)n * s->rope;
    const struct kernels *k = c->two;
    float *want = get(k, no * sizeof *want);
    struct wide_data d = { s, n, random_floats(r, k, nq, 2), random_floats(r, k, nkv, 1),
                           random_floats(r, k, npe, 1) };
    double worst = 0;

    expanded_range(k, &d, 0, n, want);
    for (uint32_t row = 0; row<n; row += n> 20 ? 17 : 1)
        for (uint32_t h = 0; h < s->heads; h++)
            worst = fmax(worst,
                         expanded_error(&d, row, h, want + ((size_t)row * s->heads + h) * s->v));
    expect(c, worst < 5e-6, "attend_expanded %u x %u+%u/%u, %u rows: off by %g", s->heads, s->nope,
           s->rope, s->v, n, worst);
    expanded_ways(c, &d, want);
    k->free(k, want, no * sizeof *want);
    k->free(k, d.q, nq * sizeof *want);
    k->free(k, d.kv, nkv * sizeof *want);
    k->free(k, d.k_pe, npe * sizeof *want);
}

void check_latent(struct check *c)
{
    static const struct shape shapes[] = {
        { 4, 512, 64 }, { 16, 512, 64 }, { 4, 64, 16 }, { 150, 32, 16 }
    };
    static const struct wide_shape wide[] = {
        { 4, 128, 64, 128 }, { 3, 32, 16, 48 }, { 2, 192, 64, 256 }, { 1, 16, 16, 16 }
    };
    static const uint32_t counts[] = { 1, 17, 65, 200 };
    struct rng r = { 12 };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++)
            for (int wide_type = 0; wide_type < 2; wide_type++)
                if (wanted(c))
                    one_shape(c, &r, &shapes[i], wide_type ? K_F32 : K_F16, counts[j]);
        if (wanted(c))
            long_sequence(c, &r, &shapes[i], i % 2 ? K_F16 : K_F32);
    }
    for (size_t i = 0; i < sizeof wide / sizeof wide[0]; i++)
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++)
            if (wanted(c))
                one_expanded(c, &r, &wide[i], counts[j]);
    one_expanded(c, &r, &wide[1], MAX_TOKENS);
}
