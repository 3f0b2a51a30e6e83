/* Sampling: exact choices on small rows, log-probabilities against double, order and ties. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEUTRAL                                                                                    \
    {                                                                                              \
        .top_p = 1, .repetition = 1, .n_top = -1, .forced = -1                                     \
    }

static struct k_choice choose(struct check *c, const float *x, uint32_t vocab,
                              const struct k_sample *s)
{
    float *copy = get(c->two, vocab * sizeof *copy);
    struct k_choice out;

    memcpy(copy, x, vocab * sizeof *copy);
    c->two->sample(c->two, &out, copy, vocab, vocab, s, 1);
    c->two->free(c->two, copy, vocab * sizeof *copy);
    return out;
}

static void check_greedy(struct check *c)
{
    float x[37] = { 0 };
    struct k_sample s = NEUTRAL;

    x[5] = x[36] = x[20] = 3;
    expect(c, choose(c, x, 37, &s).id == 5, "the lowest id wins a tie");
    expect(c, isnan(choose(c, x, 37, &s).logprob), "no log-probability unless asked");
    x[36] = 4;
    expect(c, choose(c, x, 37, &s).id == 36, "the last id");
    x[0] = NAN;
    expect(c, choose(c, x, 37, &s).id == 36, "NaN is never chosen");
    for (int i = 0; i < 37; i++)
        x[i] = -INFINITY;
    expect(c, choose(c, x, 37, &s).id == 0, "a row without a choice gives a valid id");
}

static void check_logprobs(struct check *c)
{
    enum { V = 50000 };
    struct rng r = { 7 };
    float *x = malloc(V * sizeof *x);
    int32_t want[2] = { 17, 49999 };
    float wanted[2];
    struct k_sample s = NEUTRAL;
    struct k_choice out;
    double max = -INFINITY, sum = 0;
    uint32_t above = 1;
    bool sorted = true;

    if (!x)
        abort();
    for (int i = 0; i < V; i++)
        x[i] = rng_float(&r) * 12;
    x[31] = x[77] = 13;
    for (int i = 0; i < V; i++)
        max = fmax(max, (double)x[i]);
    for (int i = 0; i < V; i++)
        sum += exp((double)x[i] - max);
    s.n_top = 20;
    s.forced = 123;
    s.want_ids = want;
    s.n_want = 2;
    s.want_out = wanted;
    out = choose(c, x, V, &s);
    for (int i = 0; i < V; i++)
        above += x[i] > x[123];
    expect(c, out.id == 123 && out.rank == above, "rank of a forced id: %u, not %u", out.rank,
           above);
    expect(c, fabs((double)out.logprob - ((double)x[123] - max - log(sum))) < 2e-6,
           "log-probability");
    expect(c, out.n_top == 20 && out.top_id[0] == 31 && out.top_id[1] == 77, "the top ids");
    for (int i = 0; i < 2; i++)
        expect(c, fabs((double)wanted[i] - ((double)x[want[i]] - max - log(sum))) < 2e-6,
               "log-probability of a wanted id");
    for (int i = 1; i < 20; i++)
        sorted = sorted && out.top_logprob[i] <= out.top_logprob[i - 1];
    expect(c, sorted, "the top ids fall");
    expect(c, fabs((double)out.top_logprob[0] - (13 - max - log(sum))) < 2e-6,
           "top log-probability");
    free(x);
}

static void check_adjust(struct check *c)
{
    float x[8] = { 1, 2, 3, 4, -1, -2, 0, 0 };
    struct k_bias bias[2] = { { 3, -INFINITY }, { 0, 5 } };
    struct k_count counts[3] = { { 3, 2, false }, { 2, 0, true }, { 4, 1, true } };
    int32_t allowed[2] = { 5, 4 };
    struct k_sample s = NEUTRAL, p = NEUTRAL;

    s.bias = bias;
    s.n_bias = 1;
    expect(c, choose(c, x, 8, &s).id == 2, "a banned id");
    s.n_bias = 2;
    s.n_top = 0;
    expect(c, choose(c, x, 8, &s).id == 0, "a bias");
    expect(c, choose(c, x, 8, &s).rank == 4, "the rank is that of the raw row");
    s = p;
    s.allowed = allowed;
    s.n_allowed = 2;
    expect(c, choose(c, x, 8, &s).id == 4, "allowed ids");
    p.counts = counts;
    p.n_counts = 3;
    p.repetition = 2;
    expect(c, choose(c, x, 8, &p).id == 1, "repetition: 4/2, 3/2, so 2 at index 1 is first");
    p.repetition = 1;
    p.frequency = 0.75f;
    expect(c, choose(c, x, 8, &p).id == 2, "frequency");
    p.frequency = 0;
    p.presence = 1.5f;
    expect(c, choose(c, x, 8, &p).id == 2, "presence is for the output only");
}

/* How often each id comes for evenly spaced u. */
static void frequencies(struct check *c, const float *x, uint32_t vocab, struct k_sample s,
                        double *freq)
{
    enum { N = 2000 };

    memset(freq, 0, vocab * sizeof *freq);
    for (int i = 0; i < N; i++) {
        s.u = (i + 0.5) / N;
        freq[choose(c, x, vocab, &s).id] += 1.0 / N;
    }
}

static bool near(const double *freq, const double *want, int n)
{
    for (int i = 0; i < n; i++)
        if (fabs(freq[i] - want[i]) > 1.5e-3)
            return false;
    return true;
}

static void check_draw(struct check *c)
{
    const float x[5] = { logf(0.1f), logf(0.4f), logf(0.2f), logf(0.05f), logf(0.25f) };
    const double all[5] = { 0.1, 0.4, 0.2, 0.05, 0.25 };
    const double two[5] = { 0, 0.4 / 0.65, 0, 0, 0.25 / 0.65 };
    const double three[5] = { 0, 0.4 / 0.85, 0.2 / 0.85, 0, 0.25 / 0.85 };
    const double squared[5] = { 0.01 / 0.275, 0.16 / 0.275, 0.04 / 0.275, 0.0025 / 0.275,
                                0.0625 / 0.275 };
    struct k_sample s = NEUTRAL;
    double freq[5];

    s.temperature = 1;
    frequencies(c, x, 5, s, freq);
    expect(c, near(freq, all, 5), "drawing from all");
    s.top_k = 2;
    frequencies(c, x, 5, s, freq);
    expect(c, near(freq, two, 5), "top-k 2");
    s.top_k = 0;
    s.top_p = 0.7f;
    frequencies(c, x, 5, s, freq);
    expect(c, near(freq, three, 5), "top-p 0.7");
    s.top_k = 3;
    s.top_p = 0.6f; /* of the three's own mass: 0.4/0.85 < 0.6 <= 0.65/0.85 */
    frequencies(c, x, 5, s, freq);
    expect(c, near(freq, two, 5), "top-p after top-k");
    s.top_k = 0;
    s.top_p = 1;
    s.min_p = 0.45f;
    frequencies(c, x, 5, s, freq);
    expect(c, near(freq, three, 5), "min-p");
    s.min_p = 0;
    s.temperature = 0.5f;
    frequencies(c, x, 5, s, freq);
    expect(c, near(freq, squared, 5), "temperature");
    s.top_p = 0;
    expect(c, choose(c, x, 5, &s).id == 1, "top-p 0 keeps one");
}

/* On a large row: only ids of the nucleus, found by sorting here. */
static void check_large(struct check *c)
{
    enum { V = 49152 };
    struct rng r = { 8 };
    float *x = malloc(V * sizeof *x);
    struct k_sample s = NEUTRAL;
    bool in_top = true, in_p = true;
    double total = 0;

    if (!x)
        abort();
    for (int i = 0; i < V; i++) {
        x[i] = rng_float(&r) * 10;
        total += exp((double)x[i]);
    }
    s.temperature = 1;
    for (int i = 0; i < 20; i++) {
        uint32_t above = 0;
        double mass = 0;
        int32_t id;

        s.u = i / 20.0;
        s.top_k = 40;
        s.top_p = 1;
        id = choose(c, x, V, &s).id;
        for (int j = 0; j < V; j++)
            above += x[j] > x[id];
        in_top = in_top && above < 40;
        s.top_k = 0;
        s.top_p = 0.9f;
        id = choose(c, x, V, &s).id;
        for (int j = 0; j < V; j++)
            mass += x[j] > x[id] ? exp((double)x[j]) : 0;
        in_p = in_p && mass < 0.9 * total;
    }
    expect(c, in_top, "top-k of a large row");
    expect(c, in_p, "top-p of a large row");
    free(x);
}

void check_sample(struct check *c)
{
    check_greedy(c);
    check_logprobs(c);
    check_adjust(c);
    check_draw(c);
    check_large(c);
}
