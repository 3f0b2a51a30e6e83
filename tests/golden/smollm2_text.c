/* Log-probabilities of every token of three texts, and the perplexity that follows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smollm2.h"

struct score {
    double sum; /* of log-probabilities */
    uint32_t n;
    uint32_t same_top; /* positions with the reference's most likely token */
    double max, mean;  /* differences of log-probabilities */
};

static double logprob(const float *x, int32_t id)
{
    double top = (double)x[argmax(x, VOCAB)], sum = 0;

    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)x[i] - top);
    return (double)x[id] - top - log(sum);
}

static void add_row(struct score *s, const json_t *t, const int32_t *ids, uint32_t at,
                    const float *x)
{
    double want = number_at(json_object_get(t, "logprobs"), at), got = logprob(x, ids[at]);
    json_int_t top = json_integer_value(json_array_get(json_object_get(t, "top1"), at));

    s->sum += got;
    s->n++;
    s->same_top += argmax(x, VOCAB) == (uint32_t)top;
    s->max = fmax(s->max, fabs(got - want));
    s->mean += fabs(got - want);
}

/* Prefill in steps as large as the rows of logits that one call gives. */
static void score_text(struct rig *r, const json_t *t, struct score *s)
{
    uint32_t n, rows[LOGIT_ROWS];
    int32_t *ids = ids_of(json_object_get(t, "ids"), &n);
    struct rig_seq seq;

    for (uint32_t i = 0; i < LOGIT_ROWS; i++)
        rows[i] = i;
    rig_seq_init(r, &seq, n);
    for (uint32_t at = 0; at < n; at += LOGIT_ROWS) {
        struct rig_feed f = { &seq, ids + at, n - at < LOGIT_ROWS ? n - at : LOGIT_ROWS };
        const float *x;

        rig_step(r, &f, 1);
        x = rig_logits(r, rows, f.n);
        for (uint32_t i = 0; i < f.n && at + i + 1 < n; i++)
            add_row(s, t, ids, at + i + 1, x + (size_t)i * VOCAB);
    }
    rig_seq_finish(&seq);
    rig_forget(r);
    free(ids);
}

/* Scores all texts; each one's figures are printed, and checked if limit is not 0. */
static struct score score_all(struct rig *r, const json_t *texts, double limit)
{
    struct score total = { 0 };
    const json_t *t;
    size_t i;

    json_array_foreach(texts, i, t)
    {
        struct score s = { 0 };
        const char *name = json_string_value(json_object_get(t, "name"));

        score_text(r, t, &s);
        printf(
            "%-8s perplexity %.5f (reference %.5f), log-probabilities off by max %.2e mean %.2e, "
            "same top %u of %u\n",
            name, exp(-s.sum / s.n), json_number_value(json_object_get(t, "perplexity")), s.max,
            s.mean / s.n, s.same_top, s.n);
        expect(s.max <= limit * relax(s.n + 1) + 1e-5, "%s: a log-probability is off by %g", name,
               s.max);
        total.sum += s.sum;
        total.n += s.n;
        total.same_top += s.same_top;
        total.mean += s.mean;
        total.max = fmax(total.max, s.max);
    }
    return total;
}

/* Sum of the reference over the texts that are there (the small copy has one). */
static double reference_perplexity(const json_t *texts)
{
    double sum = 0, n = 0;
    const json_t *t;
    size_t i;

    json_array_foreach(texts, i, t)
    {
        sum += json_number_value(json_object_get(t, "sum_logprob"));
        n += json_number_value(json_object_get(t, "n_scored"));
    }
    return exp(-sum / n);
}

static void check_perplexity(const struct score *s, double want, double limit)
{
    double got = exp(-s->sum / s->n);

    printf("together perplexity %.5f (reference %.5f, %+.4f %%), same top %u of %u\n", got, want,
           100 * (got / want - 1), s->same_top, s->n);
    expect(fabs(got / want - 1) <= limit, "perplexity is %g %% off, allowed are %g %%",
           100 * (got / want - 1), 100 * limit);
}

double text_perplexity(struct rig *r)
{
    json_t *j = load_json("smollm2/logprobs.json");
    struct score s = score_all(r, json_object_get(j, "texts"), INFINITY);

    json_decref(j);
    return exp(-s.sum / s.n);
}

void test_logprobs(bool all)
{
    json_t *j = load_json("smollm2/logprobs.json"), *texts = json_object_get(j, "texts");
    struct score s;
    struct rig r;

    (void)all;
    open_model(&r, MODEL_DTYPE_FLOAT32, 1600);
    s = score_all(&r, texts, LOGPROB_LIMIT);
    check_perplexity(&s, reference_perplexity(texts), 1e-4);
    rig_close(&r);
    json_decref(j);
}

/* The goldens' limits for activations of 8 bits in blocks of 32: log-probabilities max 2, mean
 * 0.1; perplexity 1 %. */
void test_auto(bool all)
{
    json_t *j = load_json("smollm2/logprobs.json"), *texts = json_object_get(j, "texts");
    struct agreement a;
    struct score s;
    struct rig r;

    open_model(&r, MODEL_DTYPE_AUTO, 8000);
    s = score_all(&r, texts, 2);
    check_perplexity(&s, reference_perplexity(texts), 1e-2);
    expect(s.mean / s.n <= 0.1, "log-probabilities are off by %g on average", s.mean / s.n);
    follow_greedy(&r, all ? 1500 : 129, false, &a);
    printf("greedy, the reference's tokens given: %u of %u\n", a.same, a.steps);
    rig_close(&r);
    json_decref(j);
}
