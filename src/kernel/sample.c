/* Sampling: what the row's distribution says (log-probabilities, ranks), then the choice. Rows are
 * shared out over the team; a row is done by one thread in a fixed order. */
#include "kernel/cpu.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* Candidates are found by how far they lie below the largest: steps of 1/32, the last is "farther".*/
#define BUCKETS         1024
#define BUCKETS_PER_NAT 32
#define RADIX_BITS      11
#define RADIX           (1u << RADIX_BITS)

struct cand {
    uint32_t key; /* smaller is more likely */
    int32_t id;
};

/* One a thread; the arrays have room for max_vocab. */
struct sample_scratch {
    float *y; /* adjusted logits, then weights */
    struct cand *cand, *sorted;
    uint32_t count[RADIX];
    double mass[BUCKETS];
};

static size_t vocab_bytes(const struct cpu *c)
{
    return c->max_vocab * (sizeof(float) + 2 * sizeof(struct cand));
}

int sample_scratch_create(struct cpu *c)
{
    const struct kernels *k = &c->table;

    c->sample = k->alloc(k, k->threads * sizeof *c->sample);
    for (uint32_t i = 0; c->sample && i < k->threads; i++) {
        struct sample_scratch *s = &c->sample[i];

        s->y = k->alloc(k, vocab_bytes(c));
        if (!s->y)
            return -1;
        s->cand = (struct cand *)(void *)(s->y + c->max_vocab);
        s->sorted = s->cand + c->max_vocab;
    }
    return c->sample ? 0 : -1;
}

void sample_scratch_destroy(struct cpu *c)
{
    const struct kernels *k = &c->table;

    for (uint32_t i = 0; c->sample && i < k->threads; i++)
        k->free(k, c->sample[i].y, vocab_bytes(c));
    k->free(k, c->sample, k->threads * sizeof *c->sample);
}

/* exp(x) for x <= 0 in float64, to about 1e-15; 0 below -700. Without branches, so that a loop over
 * it is made vectors of. */
static inline double exp_neg(double x)
{
    double clamped = x > -700 ? x : -700, n, r, p;
    union {
        double d;
        int64_t i;
    } u;

    u.d = clamped * 1.4426950408889634 + 0x1.8p52; /* rounds to an integer in the low bits */
    n = u.d - 0x1.8p52;
    r = clamped - n * 0x1.62e42fefap-1 - n * 0x1.cf79abc9e3b39p-40;
    p = 1.0 / 479001600;
    p = p * r + 1.0 / 39916800;
    p = p * r + 1.0 / 3628800;
    p = p * r + 1.0 / 362880;
    p = p * r + 1.0 / 40320;
    p = p * r + 1.0 / 5040;
    p = p * r + 1.0 / 720;
    p = p * r + 1.0 / 120;
    p = p * r + 1.0 / 24;
    p = p * r + 1.0 / 6;
    p = p * r + 0.5;
    p = p * r + 1;
    p = p * r + 1;
    u.i = (int64_t)((uint64_t)u.i << 52) + (int64_t)(1023ull << 52);
    return x > -700 ? p * u.d : 0;
}

/* The largest logit; NaNs are passed over, -infinity if there is nothing else. */
static float row_max(const float *x, uint32_t n)
{
    float lane[16], max = -INFINITY;
    uint32_t i = 0;

    for (int j = 0; j < 16; j++)
        lane[j] = -INFINITY;
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (; i < n; i++)
        lane[0] = x[i] > lane[0] ? x[i] : lane[0];
    for (int j = 0; j < 16; j++)
        max = lane[j] > max ? lane[j] : max;
    return max;
}

static int32_t row_argmax(const float *x, uint32_t n)
{
    float max = row_max(x, n);
    uint32_t i = 0;

    while (i < n && !(x[i] >= max))
        i++;
    return i < n ? (int32_t)i : 0;
}

/* log of the sum of exp(x), in eight fixed partial sums. */
static double log_sum_exp(const float *x, uint32_t n, float max)
{
    double lane[8] = { 0 }, sum = 0;
    uint32_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++)
            lane[j] += exp_neg((double)x[i + j] - (double)max);
    for (; i < n; i++)
        lane[i % 8] += exp_neg((double)x[i] - (double)max);
    for (int j = 0; j < 8; j++)
        sum += lane[j];
    return log(sum) + (double)max;
}

/* The n largest, by falling logit, lower id first. */
static void top_n(struct k_choice *out, const float *x, uint32_t vocab, uint32_t n)
{
    uint32_t have = 0;
    float least = -INFINITY;

    for (uint32_t id = 0; id < vocab; id++) {
        uint32_t at = have < n ? have : n;

        if (have == n && !(x[id] > least))
            continue;
        for (at = have < n ? have++ : n - 1; at && x[id] > x[out->top_id[at - 1]]; at--)
            out->top_id[at] = out->top_id[at - 1];
        out->top_id[at] = (int32_t)id;
        least = x[out->top_id[have - 1]];
    }
    out->n_top = have;
}

static uint32_t rank_of(const float *x, uint32_t n, int32_t id)
{
    float mine = x[id];
    uint32_t above = 0;

    for (uint32_t i = 0; i < n; i++)
        above += x[i] > mine || (x[i] == mine && (int32_t)i < id);
    return above + 1;
}

static void report(struct k_choice *out, const float *x, uint32_t vocab, const struct k_sample *row)
{
    double lse;

    out->n_top = 0;
    out->rank = 0;
    out->logprob = NAN;
    if (row->n_top < 0 && row->n_want == 0)
        return;
    lse = log_sum_exp(x, vocab, row_max(x, vocab));
    for (uint32_t i = 0; i < row->n_want; i++)
        row->want_out[i] = (float)((double)x[row->want_ids[i]] - lse);
    if (row->n_top < 0)
        return;
    out->rank = rank_of(x, vocab, out->id);
    out->logprob = (float)((double)x[out->id] - lse);
    if (row->n_top > 0)
        top_n(out, x, vocab, row->n_top < K_MAX_TOP ? (uint32_t)row->n_top : K_MAX_TOP);
    for (uint32_t i = 0; i < out->n_top; i++)
        out->top_logprob[i] = (float)((double)x[out->top_id[i]] - lse);
}

static bool is_adjusted(const struct k_sample *r)
{
    return r->n_bias || r->allowed ||
           (r->n_counts && (r->presence != 0 || r->frequency != 0 || r->repetition != 1));
}

static void adjust(float *y, const float *x, uint32_t vocab, const struct k_sample *r)
{
    if (r->allowed) {
        for (uint32_t i = 0; i < vocab; i++)
            y[i] = -INFINITY;
        for (uint32_t i = 0; i < r->n_allowed; i++)
            if (r->allowed[i] >= 0 && (uint32_t)r->allowed[i] < vocab)
                y[r->allowed[i]] = x[r->allowed[i]];
    } else {
        memcpy(y, x, vocab * sizeof *y);
    }
    for (uint32_t i = 0; i < r->n_bias; i++)
        if (r->bias[i].id >= 0 && (uint32_t)r->bias[i].id < vocab)
            y[r->bias[i].id] += r->bias[i].add;
    for (uint32_t i = 0; i < r->n_counts; i++) {
        const struct k_count *c = &r->counts[i];
        float *at = y + c->id;

        if (c->id < 0 || (uint32_t)c->id >= vocab)
            continue;
        *at = *at > 0 ? *at / r->repetition : *at * r->repetition;
        *at -= r->frequency * (float)c->n_out + (c->n_out ? r->presence : 0);
    }
}

/* A key that orders as the floats do, largest first. */
static uint32_t falling_key(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof u);
    return u & 0x80000000 ? u : ~(u | 0x80000000);
}

/* Sorts by key; equal keys keep their order. The result is in s->sorted. */
static void sort_cands(struct sample_scratch *s, uint32_t n)
{
    for (uint32_t shift = 0; shift < 32; shift += RADIX_BITS) {
        uint32_t at = 0;
        struct cand *swap;

        memset(s->count, 0, sizeof s->count);
        for (uint32_t i = 0; i < n; i++)
            s->count[s->cand[i].key >> shift & (RADIX - 1)]++;
        for (uint32_t i = 0; i < RADIX; i++) {
            uint32_t c = s->count[i];

            s->count[i] = at;
            at += c;
        }
        for (uint32_t i = 0; i < n; i++)
            s->sorted[s->count[s->cand[i].key >> shift & (RADIX - 1)]++] = s->cand[i];
        swap = s->cand;
        s->cand = s->sorted;
        s->sorted = swap;
    }
    struct cand *swap = s->cand;

    s->cand = s->sorted;
    s->sorted = swap;
}

/* What is drawn from: weights relative to the largest. */
struct weights {
    const float *y;
    uint32_t vocab;
    float max;
    double inv_t;
};

static double weight(const struct weights *w, int32_t id)
{
    return exp_neg(((double)w->y[id] - (double)w->max) * w->inv_t);
}

static uint32_t bucket_of(const struct weights *w, uint32_t id)
{
    double far = ((double)w->max - (double)w->y[id]) * w->inv_t * BUCKETS_PER_NAT;

    return far < BUCKETS - 1 ? (uint32_t)far : BUCKETS - 1; /* NaN too is the farthest */
}

/* Counts and weighs the buckets; the sum of all weights. */
static double fill_buckets(struct sample_scratch *s, const struct weights *w)
{
    double sum = 0;

    memset(s->count, 0, BUCKETS * sizeof *s->count);
    memset(s->mass, 0, sizeof s->mass);
    for (uint32_t id = 0; id < w->vocab; id++) {
        uint32_t b = bucket_of(w, id);

        s->count[b]++;
        s->mass[b] += w->y[id] > -INFINITY ? weight(w, (int32_t)id) : 0;
    }
    for (uint32_t b = 0; b < BUCKETS; b++)
        sum += s->mass[b];
    return sum;
}

/* How many buckets hold the k largest and, if k is 0, the share p of all weight. */
static uint32_t buckets_needed(const struct sample_scratch *s, uint32_t k, double p, double total)
{
    uint32_t n = 0, b = 0;
    double mass = 0;

    /* one bucket more than the sum says: sums in another order differ in the last digits */
    while (b < BUCKETS && (k ? n < k : mass <= p * total)) {
        n += s->count[b];
        mass += s->mass[b++];
    }
    return b + 1;
}

static uint32_t collect(struct sample_scratch *s, const struct weights *w, uint32_t buckets)
{
    uint32_t n = 0;

    for (uint32_t id = 0; id < w->vocab; id++)
        if (w->y[id] > -INFINITY && bucket_of(w, id) < buckets)
            s->cand[n++] = (struct cand){ falling_key(w->y[id]), (int32_t)id };
    return n;
}

/* Draws among sorted candidates after top-k, top-p and min-p. */
static int32_t draw_sorted(const struct sample_scratch *s, const struct weights *w, uint32_t n,
                           double total, const struct k_sample *r)
{
    const struct cand *c = s->sorted;
    double before = 0, sum = 0, u;
    uint32_t keep = 0;

    if (r->top_k && r->top_k < n) {
        uint32_t k = r->top_k;

        while (k < n && c[k].key == c[r->top_k - 1].key) /* ties with the last one stay */
            k++;
        n = k;
    }
    if (r->top_k) {
        total = 0;
        for (uint32_t i = 0; i < n; i++)
            total += weight(w, c[i].id);
    }
    while (keep < n && (keep == 0 || (before < (double)r->top_p * total &&
                                      weight(w, c[keep].id) >= (double)r->min_p)))
        before += weight(w, c[keep++].id);
    u = r->u * before;
    for (uint32_t i = 0; i < keep; i++) {
        sum += weight(w, c[i].id);
        if (u < sum)
            return c[i].id;
    }
    return c[keep - 1].id;
}

/* Draws among all, in order of id; min-p needs no sorting. */
static int32_t draw_all(const struct weights *w, const struct k_sample *r)
{
    double sum = 0, u;
    int32_t last = 0;

    for (uint32_t id = 0; id < w->vocab; id++) {
        double p = w->y[id] > -INFINITY ? weight(w, (int32_t)id) : 0;

        sum += p >= (double)r->min_p ? p : 0;
    }
    u = r->u * sum;
    sum = 0;
    for (uint32_t id = 0; id < w->vocab; id++) {
        double p = w->y[id] > -INFINITY ? weight(w, (int32_t)id) : 0;

        if (p < (double)r->min_p || p == 0)
            continue;
        sum += p;
        last = (int32_t)id;
        if (u < sum)
            break;
    }
    return last;
}

static int32_t draw(struct sample_scratch *s, const float *y, uint32_t vocab,
                    const struct k_sample *r)
{
    struct weights w = { y, vocab, row_max(y, vocab), 1.0 / (double)r->temperature };
    bool top_k = r->top_k && r->top_k < vocab;
    double total;
    uint32_t n;

    if (!(w.max > -INFINITY) || w.max == INFINITY)
        return row_argmax(y, vocab);
    if (!top_k && !(r->top_p < 1))
        return draw_all(&w, r);
    total = fill_buckets(s, &w);
    n = collect(s, &w, buckets_needed(s, top_k ? r->top_k : 0, (double)r->top_p, total));
    sort_cands(s, n);
    return draw_sorted(s, &w, n, total, r);
}

static void sample_row(struct sample_scratch *s, struct k_choice *out, const float *x,
                       uint32_t vocab, const struct k_sample *r)
{
    const float *y = x;

    if (r->forced >= 0) {
        out->id = r->forced;
    } else {
        if (is_adjusted(r)) {
            adjust(s->y, x, vocab, r);
            y = s->y;
        }
        out->id = r->temperature > 0 ? draw(s, y, vocab, r) : row_argmax(y, vocab);
    }
    assert(out->id >= 0 && (uint32_t)out->id < vocab);
    report(out, x, vocab, r);
}

struct sample_job {
    struct cpu *cpu;
    struct k_choice *out;
    const float *logits;
    size_t ld;
    uint32_t vocab;
    const struct k_sample *rows;
};

static void sample_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct sample_job *j = arg;

    sample_row(&j->cpu->sample[thread], &j->out[item], j->logits + item * j->ld, j->vocab,
               &j->rows[item]);
}

void sample_rows(const struct kernels *k, struct k_choice *out, float *logits, size_t ld,
                 uint32_t vocab, const struct k_sample *rows, uint32_t n)
{
    struct sample_job job = { cpu_of(k), out, logits, ld, vocab, rows };

    assert(vocab <= job.cpu->max_vocab);
    team_items(&job.cpu->team, n, sample_item, &job, sizeof job);
}
