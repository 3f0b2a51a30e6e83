/* SmolLM2-135M-Instruct against what an independent engine recorded on the same file.
 *
 *     golden_smollm2 logits | hidden | greedy [--all] | logprobs | auto | dense [--all]
 *
 * All but `auto` run at float32, where the limits are those of the goldens' own README; prompts of
 * 1,500 tokens and more get four times as much, because float32 angles of the reference differ
 * there. `auto` is the default dtype: its perplexity must be within 1 % of float32. --all adds the
 * prompts of 6,000 and 7,900 tokens, which take minutes. `dense` is in smollm2_dense.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "smollm2.h"
#include "sys/clock.h"

double relax(uint32_t n_ids)
{
    return n_ids >= 1500 ? 4 : 1;
}

json_t *load_json(const char *name)
{
    const char *path = golden_path(name);
    json_t *j = path ? json_load_file(path, 0, NULL) : NULL;

    if (!j) {
        printf("cannot read %s\n", name);
        exit(1);
    }
    return j;
}

int32_t *ids_of(const json_t *list, uint32_t *n)
{
    int32_t *ids;

    *n = (uint32_t)json_array_size(list);
    ids = calloc(*n ? *n : 1, sizeof *ids);
    for (uint32_t i = 0; ids && i < *n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return ids;
}

double number_at(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

void open_model(struct rig *r, enum model_dtype dtype, uint32_t pool_tokens)
{
    struct rig_options o = {
        .path = golden_model(),
        .dtype = dtype,
        .pool_tokens = pool_tokens,
        .max_tokens = STEP,
        .max_logits = LOGIT_ROWS,
        .shuffle = 1,
    };
    double t = clock_now();

    rig_open(r, &o);
    printf("%s, %u threads, loaded in %.2f s, %.1f MB packed\n", r->k->isa, r->k->threads,
           clock_now() - t, (double)model_weight_bytes(r->m) / 1e6);
}

/* ---- logits of the last position ---- */

static void check_logits(struct rig *r, const struct golden *g, const char *name)
{
    char key[64];
    size_t n, n_want;
    const int32_t *ids;
    const float *want, *got;
    struct rig_seq s;
    double max, rms;

    snprintf(key, sizeof key, "%s.ids", name);
    ids = golden_i32(g, key, &n);
    snprintf(key, sizeof key, "%s.logits_last", name);
    want = golden_f32(g, key, &n_want);
    if (!ids || !want || n_want != VOCAB)
        return; /* the small copy has fewer */
    rig_seq_init(r, &s, (uint32_t)n);
    got = rig_prefill(r, &s, ids, (uint32_t)n, 0);
    max = max_diff(got, want, VOCAB);
    rms = rms_diff(got, want, VOCAB);
    printf("%-12s %4zu ids: max %.2e rms %.2e\n", name, n, max, rms);
    expect(max <= LOGIT_LIMIT * relax((uint32_t)n), "%s: a logit is off by %g", name, max);
    expect(rms <= 5e-5 * relax((uint32_t)n), "%s: logits are off by %g (rms)", name, rms);
    rig_seq_finish(&s);
}

static void test_logits(bool all)
{
    static const char *const names[] = { "one_token",  "france",    "zh_capital",
                                         "chat_turns", "long_1500", "long_7900" };
    struct golden *g = golden_open(golden_path("smollm2/logits.safetensors"));
    struct rig r;

    open_model(&r, MODEL_DTYPE_FLOAT32, all ? 10000 : 1600);
    for (size_t i = 0; i < (all ? 6 : 5); i++)
        check_logits(&r, g, names[i]);
    rig_close(&r);
    golden_close(g);
}

/* ---- hidden states ---- */

struct hidden {
    const json_t *states;
    double relax;
    double worst; /* difference over rms */
    uint32_t seen;
};

static void check_state(struct hidden *h, const char *name, const json_t *want, const float *rows,
                        size_t ld, uint32_t n, uint32_t cols)
{
    const json_t *first = json_object_get(want, "last_first16");
    double rms = json_number_value(json_object_get(want, "rms")), sum = 0, sq = 0;
    double last_rms = json_number_value(json_object_get(want, "last_rms"));

    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < cols; j++) {
            double v = (double)rows[i * ld + j];

            sum += v;
            sq += v * v;
        }
    sum /= (double)n * cols;
    sq = sqrt(sq / ((double)n * cols));
    expect(fabs(sq - rms) <= 1e-5 * h->relax * rms, "%s: rms is %.8g, not %.8g", name, sq, rms);
    expect(fabs(sum - json_number_value(json_object_get(want, "mean"))) <= 1e-5 * h->relax * rms,
           "%s: mean is %.8g", name, sum);
    for (size_t j = 0; j < json_array_size(first); j++) {
        double d = fabs((double)rows[(n - 1) * ld + j] - number_at(first, j)) / last_rms;

        h->worst = d > h->worst ? d : h->worst;
        expect(d <= 1e-4 * h->relax, "%s: value %zu is off by %g of the rms", name, j, d);
    }
    h->seen++;
}

static void on_probe(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                     uint32_t cols)
{
    struct hidden *h = arg;
    const json_t *want = json_object_get(h->states,
                                         strcmp(name, "L0.k") ? name : "L0.k_after_rope");

    if (want)
        check_state(h, name, want, rows, ld, n, cols);
}

static void check_hidden(struct rig *r, const json_t *p, const int32_t *ids, uint32_t n)
{
    struct hidden h = { .states = json_object_get(p, "states"), .relax = relax(n) };
    struct rig_seq s;

    rig_seq_init(r, &s, n);
    model_set_probe(r->w, on_probe, &h);
    rig_prefill(r, &s, ids, n, 0);
    model_set_probe(r->w, NULL, NULL);
    printf("%-12s %4u ids: %u states, worst value off by %.2e of the rms\n",
           json_string_value(json_object_get(p, "name")), n, h.seen, h.worst);
    expect(h.seen >= 39, "%u states were compared, expected 39", h.seen);
    rig_seq_finish(&s);
}

static void test_hidden(bool unused)
{
    json_t *j = load_json("smollm2/hidden.json");
    struct golden *g = golden_open(golden_path("smollm2/logits.safetensors"));
    const json_t *p;
    struct rig r;
    size_t i;

    (void)unused;
    open_model(&r, MODEL_DTYPE_FLOAT32, 1600);
    json_array_foreach(json_object_get(j, "prompts"), i, p)
    {
        char key[64];
        size_t n;
        const int32_t *ids;

        snprintf(key, sizeof key, "%s.ids", json_string_value(json_object_get(p, "name")));
        ids = golden_i32(g, key, &n);
        /* Statistics are over all positions: the prompt must fit one step. */
        if (ids && n <= STEP)
            check_hidden(&r, p, ids, (uint32_t)n);
    }
    rig_close(&r);
    golden_close(g);
    json_decref(j);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(bool all);
    } tests[] = {
        { "logits", test_logits },     { "hidden", test_hidden }, { "greedy", test_greedy },
        { "logprobs", test_logprobs }, { "auto", test_auto },     { "dense", test_dense },
    };
    bool all = argc > 2 && strcmp(argv[2], "--all") == 0;

    for (size_t i = 0; argc > 1 && i < sizeof tests / sizeof tests[0]; i++)
        if (strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run(all);
            return failures();
        }
    fprintf(stderr, "usage: golden_smollm2 logits|hidden|greedy|logprobs|auto|dense [--all]\n");
    return 2;
}
