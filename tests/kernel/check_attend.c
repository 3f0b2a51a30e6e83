/* Attention and the KV cache. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 1100

struct shape {
    uint32_t heads, kv_heads, dim;
};

/* A sequence of n tokens: what its queries, keys and values are. */
struct seq_data {
    uint32_t n;
    float *q, *k, *v; /* [n][heads][dim], [n][kv_heads][dim] */
};

struct pool {
    struct k_kv kv;
    size_t bytes; /* of each plane */
    uint32_t n_blocks;
    uint32_t ids[2][MAX_TOKENS]; /* two sequences take turns in taking blocks */
};

static void *filled(const struct kernels *k, size_t bytes, int byte)
{
    void *p = get(k, bytes);

    return memset(p, byte, bytes);
}

/* Every slot starts as NaN: what is never written must never be seen. */
static void pool_init(struct pool *p, const struct kernels *k, const struct shape *s,
                      uint32_t block, enum k_type type)
{
    p->n_blocks = 2 * (MAX_TOKENS / block + 1);
    p->bytes = (size_t)p->n_blocks * s->kv_heads * block * s->dim * (type == K_F32 ? 4 : 2);
    p->kv = (struct k_kv){ .k = filled(k, p->bytes, 0xff),
                           .v = filled(k, p->bytes, 0xff),
                           .type = type,
                           .block_tokens = block,
                           .kv_heads = s->kv_heads,
                           .head_dim = s->dim };
    for (uint32_t i = 0; i < p->n_blocks; i++)
        p->ids[i % 2][i / 2] = p->n_blocks - 1 - i;
}

static void pool_finish(struct pool *p, const struct kernels *k)
{
    k->free(k, p->kv.k, p->bytes);
    k->free(k, p->kv.v, p->bytes);
}

struct call {
    const struct kernels *k;
    const struct shape *s;
    const struct pool *pool;
    const struct seq_data *d;
    float *out;
    struct k_seq seqs[2];
    uint32_t n_seqs;
    float *q, *key, *value;
};

static void attend_call(void *arg)
{
    const struct call *c = arg;
    size_t ldq = (size_t)c->s->heads * c->s->dim, ldk = (size_t)c->s->kv_heads * c->s->dim;

    c->k->kv_write(c->k, &c->pool->kv, c->key, c->value, ldk, c->seqs, c->n_seqs);
    c->k->attend(c->k, c->out, ldq, c->q, ldq, c->s->heads, 0.125f, &c->pool->kv, c->seqs,
                 c->n_seqs);
}

/* Writes and attends positions [from, to) of the sequence, as sequence `which` of the pool. */
static void attend_range(const struct kernels *k, const struct shape *s, const struct pool *p,
                         const struct seq_data *d, uint32_t which, uint32_t from, uint32_t to,
                         float *out, bool team)
{
    size_t ldq = (size_t)s->heads * s->dim, ldk = (size_t)s->kv_heads * s->dim;
    struct call c = { .k = k,
                      .s = s,
                      .pool = p,
                      .d = d,
                      .out = out + from * ldq,
                      .n_seqs = 1,
                      .q = d->q + from * ldq,
                      .key = d->k + from * ldk,
                      .value = d->v + from * ldk };

    c.seqs[0] = (struct k_seq){ .n = to - from, .pos = from, .blocks = p->ids[which] };
    if (team)
        k->run(k, attend_call, &c);
    else
        attend_call(&c);
}

/* One query in double, with keys and values rounded as the cache rounds them. */
static double compare_query(const struct shape *s, const struct seq_data *d, enum k_type type,
                            uint32_t row, uint32_t head, const float *out)
{
    uint32_t kvh = head / (s->heads / s->kv_heads);
    const float *q = d->q + ((size_t)row * s->heads + head) * s->dim;
    double p[MAX_TOKENS], max = -INFINITY, sum = 0, worst = 0;

    for (uint32_t t = 0; t <= row; t++) {
        const float *k = d->k + ((size_t)t * s->kv_heads + kvh) * s->dim;

        p[t] = 0;
        for (uint32_t i = 0; i < s->dim; i++)
            p[t] += (double)q[i] *
                    (double)(type == K_F32 ? k[i] : k_half_to_float(k_float_to_half(k[i])));
        p[t] *= 0.125;
        max = fmax(max, p[t]);
    }
    for (uint32_t t = 0; t <= row; t++)
        sum += p[t] = exp(p[t] - max);
    for (uint32_t i = 0; i < s->dim; i++) {
        double o = 0;

        for (uint32_t t = 0; t <= row; t++) {
            float v = d->v[((size_t)t * s->kv_heads + kvh) * s->dim + i];

            o += p[t] * (double)(type == K_F32 ? v : k_half_to_float(k_float_to_half(v)));
        }
        worst = fmax(worst, fabs(o / sum - (double)out[i]));
        if (isnan(out[i]))
            worst = INFINITY;
    }
    return worst;
}

static void compare_double(struct check *c, const struct shape *s, const struct seq_data *d,
                           enum k_type type, const float *out)
{
    double worst = 0;

    for (uint32_t row = 0; row < d->n; row += row < 20 ? 1 : 13)
        for (uint32_t h = 0; h < s->heads; h++)
            worst = fmax(worst, compare_query(s, d, type, row, h,
                                              out + ((size_t)row * s->heads + h) * s->dim));
    expect(c, worst < 3e-6, "attend %u/%u x %u %s: off by %g", s->heads, s->kv_heads, s->dim,
           k_type_info[type].name, worst);
}

/* The same by portable C, which rounds in another order. */
static void compare_portable(struct check *c, const struct shape *s, const struct seq_data *d,
                             enum k_type type, const float *got)
{
    size_t n = (size_t)d->n * s->heads * s->dim;
    float *want = get(c->ref, n * sizeof *want);
    double worst = 0;
    struct pool p;

    pool_init(&p, c->ref, s, 16, type);
    attend_range(c->ref, s, &p, d, 0, 0, d->n, want, false);
    for (size_t i = 0; i < n; i++)
        worst = fmax(worst, isnan(got[i]) ? INFINITY : fabs((double)got[i] - (double)want[i]));
    expect(c, worst < 6e-6, "attend %u/%u x %u %s: off portable C by %g", s->heads, s->kv_heads,
           s->dim, k_type_info[type].name, worst);
    pool_finish(&p, c->ref);
    c->ref->free(c->ref, want, n * sizeof *want);
}

/* The same numbers by other chunks, block sizes, threads, and beside another sequence. */
static void compare_ways(struct check *c, const struct shape *s, const struct seq_data *d,
                         enum k_type type, const float *want)
{
    static const uint32_t blocks[] = { 16, 32, 128 }, chunks[] = { 1, 7, 64, 100 };
    size_t ldq = (size_t)s->heads * s->dim, bytes = d->n * ldq * sizeof(float);
    const struct kernels *k = c->two;
    float *out = get(k, bytes);

    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 4; j++) {
            struct pool p;

            if (chunks[j] == 1 && blocks[i] != 16)
                continue; /* many steps: once is enough */
            pool_init(&p, k, s, blocks[i], type);
            for (uint32_t from = 0; from < d->n; from += chunks[j])
                attend_range(k, s, &p, d, j % 2, from,
                             from + chunks[j] < d->n ? from + chunks[j] : d->n, out, j != 2);
            expect(c, same_bits(out, want, bytes),
                   "attend %u/%u x %u %s: chunks of %u, blocks of %u differ", s->heads, s->kv_heads,
                   s->dim, k_type_info[type].name, chunks[j], blocks[i]);
            pool_finish(&p, k);
        }
    k->free(k, out, bytes);
}

/* Two sequences in one call: the tail of one, all of the other. */
static void compare_batch(struct check *c, const struct shape *s, const struct seq_data *d,
                          enum k_type type, const float *want)
{
    size_t ldq = (size_t)s->heads * s->dim, ldk = (size_t)s->kv_heads * s->dim;
    uint32_t tail = d->n > 5 ? 5 : d->n - 1, n = d->n + tail;
    const struct kernels *k = c->two;
    float *q = get(k, n * ldq * sizeof *q), *out = get(k, n * ldq * sizeof *q);
    float *key = get(k, n * ldk * sizeof *q), *value = get(k, n * ldk * sizeof *q);
    struct call call = {
        .k = k, .s = s, .d = d, .out = out, .n_seqs = 2, .q = q, .key = key, .value = value
    };
    struct pool p;

    pool_init(&p, k, s, 32, type);
    attend_range(k, s, &p, d, 1, 0, d->n - tail, out, true);
    memcpy(q, d->q + (d->n - tail) * ldq, tail * ldq * sizeof *q);
    memcpy(key, d->k + (d->n - tail) * ldk, tail * ldk * sizeof *q);
    memcpy(value, d->v + (d->n - tail) * ldk, tail * ldk * sizeof *q);
    memcpy(q + tail * ldq, d->q, d->n * ldq * sizeof *q);
    memcpy(key + tail * ldk, d->k, d->n * ldk * sizeof *q);
    memcpy(value + tail * ldk, d->v, d->n * ldk * sizeof *q);
    call.pool = &p;
    call.seqs[0] = (struct k_seq){ .row = 0, .n = tail, .pos = d->n - tail, .blocks = p.ids[1] };
    call.seqs[1] = (struct k_seq){ .row = tail, .n = d->n, .blocks = p.ids[0] };
    k->run(k, attend_call, &call);
    expect(c,
           same_bits(out, want + (d->n - tail) * ldq, tail * ldq * sizeof *q) &&
               same_bits(out + tail * ldq, want, d->n * ldq * sizeof *q),
           "attend %u/%u x %u %s: two sequences in a batch differ", s->heads, s->kv_heads, s->dim,
           k_type_info[type].name);
    pool_finish(&p, k);
    k->free(k, q, n * ldq * sizeof *q);
    k->free(k, out, n * ldq * sizeof *q);
    k->free(k, key, n * ldk * sizeof *q);
    k->free(k, value, n * ldk * sizeof *q);
}

static void one_shape(struct check *c, struct rng *r, const struct shape *s, enum k_type type,
                      uint32_t n)
{
    size_t nq = (size_t)n * s->heads * s->dim, nk = (size_t)n * s->kv_heads * s->dim;
    const struct kernels *k = c->two;
    struct seq_data d = { .n = n };
    float *out = get(k, nq * sizeof *out);
    struct pool p;

    d.q = get(k, nq * sizeof *d.q);
    d.k = get(k, nk * sizeof *d.k);
    d.v = get(k, nk * sizeof *d.v);
    rng_fill(r, d.q, nq);
    rng_fill(r, d.k, nk);
    rng_fill(r, d.v, nk);
    for (size_t i = 0; i < nq; i++)
        d.q[i] *= 4;
    pool_init(&p, k, s, 16, type);
    attend_range(k, s, &p, &d, 0, 0, n, out, true);
    compare_double(c, s, &d, type, out);
    if (n == 65 || n > 300)
        compare_portable(c, s, &d, type, out);
    compare_ways(c, s, &d, type, out);
    if (n > 1)
        compare_batch(c, s, &d, type, out);
    pool_finish(&p, k);
    k->free(k, out, nq * sizeof *out);
    k->free(k, d.q, nq * sizeof *d.q);
    k->free(k, d.k, nk * sizeof *d.k);
    k->free(k, d.v, nk * sizeof *d.v);
}

void check_attend(struct check *c)
{
    static const struct shape shapes[] = {
        { 9, 3, 64 }, { 8, 1, 128 }, { 4, 4, 32 }, { 2, 1, 80 }, { 100, 1, 32 },
    };
    static const uint32_t counts[] = { 1, 17, 64, 65, 300 };
    struct rng r = { 2 };

    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (size_t j = 0; j < sizeof counts / sizeof counts[0]; j++) {
            if (wanted(c))
                one_shape(c, &r, &shapes[i], K_F32, counts[j]);
            if (wanted(c))
                one_shape(c, &r, &shapes[i], K_F16, counts[j]);
        }
    /* more than one piece of keys */
    one_shape(c, &r, &shapes[0], K_F16, 513);
    one_shape(c, &r, &shapes[0], K_F16, MAX_TOKENS);
    one_shape(c, &r, &shapes[3], K_F32, MAX_TOKENS);
}
