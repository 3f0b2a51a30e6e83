/* Greedy continuations. All prompts decode side by side, each fed with the reference's tokens
 * (teacher forcing), so that one lost tie does not hide what comes after it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smollm2.h"

#define MAX_PROMPTS 64

struct prompt {
    const char *name;
    const json_t *record;
    struct rig_seq seq;
    int32_t *ids, *greedy, *second;
    uint32_t n, n_new, n_second;
    uint32_t same;    /* steps with the reference's token */
    int32_t parted;   /* first step with another one, or -1 */
    double worst_gap; /* largest difference of a gap */
};

/* The first step's twenty best, by value. */
static void check_top20(const struct prompt *p, const float *x)
{
    const json_t *top = json_object_get(p->record, "top20"), *pair;
    size_t i;

    json_array_foreach(top, i, pair)
    {
        uint32_t id = (uint32_t)json_integer_value(json_array_get(pair, 0));
        double d = fabs((double)x[id] - number_at(pair, 1));

        expect(d <= LOGIT_LIMIT * relax(p->n) + 1e-5, "%s: logit of %u is off by %g", p->name, id,
               d);
    }
}

/* One step: which token, and how far the gap to the runner-up is off. */
static void judge(struct prompt *p, uint32_t step, const float *x)
{
    double gap = number_at(json_object_get(p->record, "gap"), step);
    double mine = (double)x[p->greedy[step]] - (double)x[p->second[step]];

    p->worst_gap = fmax(p->worst_gap, fabs(mine - gap));
    if ((int32_t)argmax(x, VOCAB) == p->greedy[step])
        p->same++;
    else if (p->parted < 0)
        p->parted = (int32_t)step;
}

/* exact_prefix[t]: so many tokens are equal if no logit is off by t/2. */
static void check_strict(const struct prompt *p)
{
    const char *key = relax(p->n) > 1 ? "0.01" : "0.001";
    json_int_t want = json_integer_value(
        json_object_get(json_object_get(p->record, "exact_prefix"), key));

    expect(p->parted < 0 || p->parted >= want, "%s: parts at token %d, exact are %lld", p->name,
           p->parted, (long long)want);
    expect(p->worst_gap <= 2 * LOGIT_LIMIT * relax(p->n), "%s: a gap is off by %g", p->name,
           p->worst_gap);
}

static uint32_t load_prompts(struct prompt *p, const json_t *list, uint32_t max_ids)
{
    const json_t *j;
    uint32_t n = 0;
    size_t i;

    json_array_foreach(list, i, j)
    {
        if (json_integer_value(json_object_get(j, "n_ids")) > max_ids || n == MAX_PROMPTS)
            continue;
        p[n] = (struct prompt){ .name = json_string_value(json_object_get(j, "name")),
                                .record = j,
                                .parted = -1 };
        p[n].ids = ids_of(json_object_get(j, "ids"), &p[n].n);
        p[n].greedy = ids_of(json_object_get(j, "greedy"), &p[n].n_new);
        p[n].second = ids_of(json_object_get(j, "second"), &p[n].n_second);
        n++;
    }
    return n;
}

static void decode_all(struct rig *r, struct prompt *p, uint32_t n)
{
    struct rig_feed feeds[MAX_PROMPTS];
    uint32_t rows[MAX_PROMPTS];

    for (uint32_t step = 1; step < p[0].n_new; step++) {
        const float *x;

        for (uint32_t i = 0; i < n; i++) {
            feeds[i] = (struct rig_feed){ &p[i].seq, &p[i].greedy[step - 1], 1 };
            rows[i] = i;
        }
        rig_step(r, feeds, n);
        x = rig_logits(r, rows, n);
        for (uint32_t i = 0; i < n; i++)
            judge(&p[i], step, x + (size_t)i * VOCAB);
    }
}

void follow_greedy(struct rig *r, uint32_t max_ids, bool strict, struct agreement *out)
{
    json_t *j = load_json("smollm2/greedy.json");
    struct prompt p[MAX_PROMPTS];
    uint32_t n = load_prompts(p, json_object_get(j, "prompts"), max_ids);

    for (uint32_t i = 0; i < n; i++) {
        const float *x;

        rig_seq_init(r, &p[i].seq, p[i].n + p[i].n_new);
        x = rig_prefill(r, &p[i].seq, p[i].ids, p[i].n, 0);
        if (strict)
            check_top20(&p[i], x);
        judge(&p[i], 0, x);
    }
    decode_all(r, p, n);
    *out = (struct agreement){ 0 };
    for (uint32_t i = 0; i < n; i++) {
        if (strict)
            check_strict(&p[i]);
        printf("%-12s %4u ids: %2u of %u, parts at %d, gaps off by %.2e\n", p[i].name, p[i].n,
               p[i].same, p[i].n_new, p[i].parted, p[i].worst_gap);
        out->same += p[i].same;
        out->steps += p[i].n_new;
        rig_seq_finish(&p[i].seq);
        free(p[i].ids);
        free(p[i].greedy);
        free(p[i].second);
    }
    rig_forget(r);
    json_decref(j);
}

void test_greedy(bool all)
{
    struct agreement a;
    struct rig r;

    open_model(&r, MODEL_DTYPE_FLOAT32, all ? 24000 : 8000);
    follow_greedy(&r, all ? 8000 : 1500, true, &a);
    printf("%u of %u tokens\n", a.same, a.steps);
    rig_close(&r);
}
