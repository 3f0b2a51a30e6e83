/* The tiny models in HuggingFace folders against numbers computed in float64 from the stored
 * weights: logits, hidden states, the inside of layers, routes, drafts and greedy tokens.
 *
 *     golden_tiny MODEL
 *
 * Exit 77 (skipped) where the model is not on this machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

#define MAX_TOKENS 300
#define N_GREEDY   16

/* Largest differences of a logit or a state (standard deviations about 3 and 1). */
struct limits {
    double small;          /* prompts of 1 and 7 tokens, and everything inside */
    double large;          /* longer ones */
    uint32_t other_routes; /* tokens of a layer that may take other experts: an int8 that is rounded
                            * the other way changes scores by more than the gap of two of them */
    /* Dtype auto: bfloat16 activations and a float16 cache. A token that takes another expert makes
     * large differences in its row; hence medians, and another limit for the last row of a prompt
     * of 70 tokens. */
    double median, median_large;
    uint32_t greedy; /* of all prompts' greedy tokens, how many may differ */
    double portable; /* largest difference with float weights multiplied exactly */
};

static const struct model_case {
    const char *name;
    bool mtp;
    struct limits limit;
} cases[] = {
    { "llama_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.03, 0, 2e-4 } },
    { "qwen3_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.03, 0, 2e-4 } },
    { "qwen3_moe_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.03, 0, 2e-4 } },
    { "llama_bias_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.03, 0, 2e-4 } },
    { "qwen2_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.03, 0, 2e-4 } },
    { "deepseek_v2_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.3, 2, 2e-4 } },
    { "deepseek_v2_lite_tiny", false, { 2e-4, 2e-4, 0, 0.03, 0.3, 2, 2e-4 } },
    { "deepseek_v3_tiny", true, { 2e-4, 2e-4, 0, 0.03, 0.3, 0, 2e-4 } },
    /* kv_b is rounded to bfloat16 there */
    { "deepseek_v3_tiny_fp8", false, { 2e-4, 2e-4, 0, 0.03, 0.3, 0, 0.1 } },
    { "deepseek_v3_tiny_w8a8", false, { 2e-4, 0.5, 8, 0.12, 0.3, 2, 0.5 } },
    { "deepseek_v3_mini_w8a8_v1", true, { 2e-4, 0.5, 8, 0.12, 0.3, 2, 0.5 } },
};

static const struct model_case *test;
static const struct golden *golden;

/* ---- inside a step ---- */

struct probe {
    const char *prompt;
    double limit;
    uint32_t compared;     /* goldens that were met */
    float *ids;            /* of the layer whose weights come next */
    uint32_t other_routes; /* tokens whose experts are not the golden's */
};

static void compare(const char *what, const float *got, const float *want, size_t n, double limit)
{
    double d = max_diff(got, want, n);

    if (d > limit / 4)
        printf("%-24s max %.2e of %zu\n", what, d, n);
    expect(d <= limit, "%s differs by %g (at most %g)", what, d, limit);
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void compare_median(const char *what, const float *got, const float *want, size_t n,
                           double limit)
{
    float *d = malloc(n * sizeof *d), median;

    for (size_t i = 0; i < n; i++)
        d[i] = fabsf(got[i] - want[i]);
    qsort(d, n, sizeof *d, by_size);
    median = d[n / 2];
    printf("%-24s median %.2e, max %.2e of %zu\n", what, (double)median, (double)d[n - 1], n);
    expect((double)median <= limit, "%s differs by %g in the median (at most %g)", what,
           (double)median, limit);
    free(d);
}

typedef void compare_fn(const char *what, const float *got, const float *want, size_t n,
                        double limit);

static float *packed(const float *rows, size_t ld, uint32_t n, uint32_t cols)
{
    float *out = malloc((size_t)n * cols * sizeof *out);

    for (uint32_t i = 0; i < n; i++)
        memcpy(out + (size_t)i * cols, rows + i * ld, cols * sizeof *out);
    return out;
}

/* The weight that the golden has for an expert of a token; -1 if it has none. */
static float weight_of(const int32_t *ids, const float *weights, uint32_t k, int32_t expert)
{
    for (uint32_t i = 0; i < k; i++)
        if (ids[i] == expert)
            return weights[i];
    return -1;
}

static void check_routes(struct probe *p, const char *layer, const float *weights, uint32_t n,
                         uint32_t k)
{
    char key[128];
    size_t len;
    const int32_t *ids;
    const float *want;

    snprintf(key, sizeof key, "%s.%s.router_ids", p->prompt, layer);
    ids = golden_i32(golden, key, &len);
    snprintf(key, sizeof key, "%s.%s.router_weights", p->prompt, layer);
    want = golden_f32(golden, key, &len);
    expect(ids && want && len == (size_t)n * k, "no golden routes %s", key);
    for (uint32_t i = 0; ids && i < n; i++) {
        bool same = true;

        for (uint32_t j = 0; j < k; j++) {
            float w = weight_of(ids + i * k, want + i * k, k, (int32_t)p->ids[i * k + j]);

            same = same && w >= 0;
            if (w >= 0 && p->other_routes == 0)
                expect(fabs((double)(w - weights[i * k + j])) <= p->limit,
                       "%s: token %u: weight %g, expected %g", key, i, (double)weights[i * k + j],
                       (double)w);
        }
        p->other_routes += !same;
    }
    p->compared += 2;
}

/* A row block of "p7.hidden": row 0 after the embedding, row i + 1 after layer i. */
static const float *hidden_of(const struct probe *p, const char *name, uint32_t n, uint32_t cols)
{
    char key[64];
    size_t len;
    const float *all;
    uint32_t layer = 0;

    if (strcmp(name, "embed") != 0 && sscanf(name, "layer%u", &layer) != 1)
        return NULL;
    layer += strcmp(name, "embed") != 0;
    snprintf(key, sizeof key, "%s.hidden", p->prompt);
    all = golden_f32(golden, key, &len);
    return all && len > (size_t)layer * n * cols ? all + (size_t)layer * n * cols : NULL;
}

static void on_probe(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                     uint32_t cols)
{
    struct probe *p = arg;
    float *x = packed(rows, ld, n, cols);
    const float *want = hidden_of(p, name, n, cols);
    char key[64];
    size_t len;

    if (strstr(name, ".router_ids@")) {
        p->ids = x;
        return;
    }
    if (strstr(name, ".router_weights@")) {
        snprintf(key, sizeof key, "%.*s", (int)strcspn(name, "."), name);
        check_routes(p, key, x, n, cols);
        free(p->ids);
    }
    snprintf(key, sizeof key, "%s.%s", p->prompt, name);
    if (!want && (want = golden_f32(golden, key, &len)) != NULL)
        p->compared++;
    if (want)
        compare(key, x, want, (size_t)n * cols, p->limit);
    free(x);
}

/* ---- prompts ---- */

static const int32_t *ids_of(const char *prompt, const char *what, uint32_t *n)
{
    char key[64];
    size_t len = 0;
    const int32_t *ids;

    snprintf(key, sizeof key, "%s.%s", prompt, what);
    ids = golden_i32(golden, key, &len);
    *n = (uint32_t)len;
    return ids;
}

/* The prompt's step, probed: routes of all layers, and for p7 the inside. */
static void check_inside(struct rig *r, const char *prompt, bool small)
{
    struct probe p = { .prompt = prompt };
    char prefix[32];
    struct rig_seq s;
    uint32_t n, expected;
    const int32_t *ids = ids_of(prompt, "ids", &n);

    p.limit = small ? test->limit.small : test->limit.large;
    rig_seq_init(r, &s, n);
    model_set_probe(r->w, on_probe, &p);
    rig_prefill(r, &s, ids, n, 0);
    model_set_probe(r->w, NULL, NULL);
    snprintf(prefix, sizeof prefix, "%s.L", prompt);
    expected = golden_count(golden, prefix);
    snprintf(prefix, sizeof prefix, "%s.final_norm", prompt);
    expected += golden_count(golden, prefix);
    expect(p.compared == expected, "%s: %u goldens inside were met, expected %u", prompt,
           p.compared, expected);
    expect(p.other_routes <= (small ? 0 : test->limit.other_routes),
           "%s: %u tokens of a layer go to other experts", prompt, p.other_routes);
    if (p.other_routes)
        printf("%s: %u tokens of a layer go to other experts\n", prompt, p.other_routes);
    rig_seq_finish(&s);
}

/* Logits, then N_GREEDY tokens. Returns how many of them are not the golden's; after the first the
 * rest follows the golden. */
static uint32_t check_prompt(struct rig *r, const char *prompt, double limit, uint32_t chunk,
                             compare_fn *compare_logits)
{
    uint32_t n, n_greedy, other = 0, rows[7] = { 0, 1, 2, 3, 4, 5, 6 };
    const int32_t *ids = ids_of(prompt, "ids", &n);
    const int32_t *greedy = ids_of(prompt, "greedy", &n_greedy);
    uint32_t vocab = model_config(r->m)->vocab;
    struct rig_seq s;
    const float *x, *want;
    char key[64];
    size_t len;

    expect(n_greedy == N_GREEDY, "%s: no greedy tokens", prompt);
    rig_seq_init(r, &s, n + n_greedy);
    x = rig_prefill(r, &s, ids, n, chunk);
    snprintf(key, sizeof key, "%s.logits_last", prompt);
    if ((want = golden_f32(golden, key, &len)) == NULL) {
        snprintf(key, sizeof key, "%s.logits", prompt);
        want = golden_f32(golden, key, &len);
        if (chunk == 0)
            x = rig_logits(r, rows, n);
        else
            want += (size_t)(n - 1) * vocab, len = vocab;
    }
    compare_logits(key, x, want, len, limit);
    x = rig_logits(r, &(uint32_t){ (chunk && chunk < n ? (n - 1) % chunk : n - 1) }, 1);
    s.output = true;
    for (uint32_t i = 0; i < n_greedy; i++) {
        other += (int32_t)argmax(x, vocab) != greedy[i];
        x = rig_prefill(r, &s, &greedy[i], 1, 0);
    }
    rig_seq_finish(&s);
    return other;
}

static bool has_prompt(const char *prompt)
{
    uint32_t n;

    return ids_of(prompt, "ids", &n) != NULL;
}

static void open_rig(struct rig *r, enum model_dtype dtype, uint32_t block, const char *isa)
{
    char name[64];
    struct rig_options o = {
        .dtype = dtype,
        .isa = isa,
        .kv_dtype = isa ? "float32" : NULL,
        .block_tokens = block,
        .pool_tokens = 2000,
        .max_tokens = MAX_TOKENS,
        .max_logits = 7,
        .mtp = test->mtp,
        .shuffle = block,
    };

    snprintf(name, sizeof name, "models/%s", test->name);
    o.path = golden_path(name);
    rig_open(r, &o);
}

static const char *const prompts[] = { "p1", "p7", "p70", "p300" };

/* ---- the layer for drafts ---- */

/* Row i: the state of position i and token i + 1. The second half of the rows comes in a draft
 * of its own, from states that stand elsewhere than the rows. */
static void check_drafts(struct rig *r, double limit)
{
    uint32_t n, vocab = model_config(r->m)->vocab, rows[6] = { 0, 1, 2, 3, 4, 5 };
    uint32_t pos[6] = { 0, 1, 2, 3, 4, 5 };
    const int32_t *ids = ids_of("p7", "ids", &n);
    const struct k_kv *plane = &r->planes[model_config(r->m)->n_layers];
    struct rig_seq s;
    size_t len, ld;
    const float *want = golden_f32(golden, "p7.mtp_logits_postnorm", &len);

    expect(want && len == 6 * (size_t)vocab, "no golden drafts");
    rig_seq_init(r, &s, n);
    for (uint32_t from = 0; want && from < 6; from += 3) {
        const struct k_seq seq = { 0, 6 - from, from, s.blocks };
        const struct model_batch b = { 6 - from, ids + from + 1, pos + from, &seq, 1, NULL };
        const float *x;

        s.len = 0;
        rig_prefill(r, &s, ids, n, 0);
        model_draft(r->m, r->w, plane, &b, from ? rows + from : NULL);
        x = model_draft_logits(r->m, r->w, rows, b.n, &ld);
        expect(ld == vocab, "rows of draft logits are %zu apart", ld);
        compare(from ? "drafts from row 3" : "drafts", x, want + (size_t)from * vocab,
                (size_t)b.n * vocab, limit);
    }
    rig_seq_finish(&s);
}

/* A draft whose state is that of the draft before it, at the next position. */
static void check_chain(struct rig *r, double limit)
{
    struct golden *g = golden_open(golden_path("goldens/draft_chain.safetensors"));
    const struct k_kv *plane = &r->planes[model_config(r->m)->n_layers];
    const uint32_t pos[] = { 0, 1, 2, 3, 4, 5 }, last = 4, row = 0;
    size_t n, len, ld;
    const int32_t *ids = golden_i32(g, "p7.ids", &n);
    const float *want = golden_f32(g, "p7.logits", &len);
    struct rig_seq s;
    struct k_seq seq = { 0, 5, 0, NULL };
    struct model_batch b = { 5, ids + 1, pos, &seq, 1, NULL };

    rig_seq_init(r, &s, (uint32_t)n);
    seq.blocks = s.blocks;
    rig_prefill(r, &s, ids, (uint32_t)n, 0);
    model_draft(r->m, r->w, plane, &b, NULL);
    seq = (struct k_seq){ 0, 1, 5, s.blocks };
    b = (struct model_batch){ 1, ids + 6, pos + 5, &seq, 1, NULL };
    model_draft(r->m, r->w, plane, &b, &last);
    compare("draft of a draft", model_draft_logits(r->m, r->w, &row, 1, &ld), want, len, limit);
    rig_seq_finish(&s);
    golden_close(g);
}

/* ---- */

static void check_float32(void)
{
    static const uint32_t chunks[] = { 64, 16, 7 }, blocks[] = { 16, 32, 64 };
    struct rig r;

    open_rig(&r, MODEL_DTYPE_FLOAT32, 16, NULL);
    for (size_t i = 0; i < 4; i++) {
        if (!has_prompt(prompts[i]))
            continue;
        check_inside(&r, prompts[i], i < 2);
        expect(check_prompt(&r, prompts[i], i < 2 ? test->limit.small : test->limit.large, 0,
                            compare) == 0,
               "%s: greedy tokens differ", prompts[i]);
        rig_forget(&r);
    }
    if (test->mtp)
        check_drafts(&r, test->limit.small);
    if (strcmp(test->name, "deepseek_v3_mini_w8a8_v1") == 0)
        check_chain(&r, test->limit.small);
    rig_close(&r);
    for (size_t i = 0; i < 3; i++) {
        open_rig(&r, MODEL_DTYPE_FLOAT32, blocks[i], NULL);
        expect(check_prompt(&r, "p70", test->limit.large, chunks[i], compare) == 0,
               "p70 in chunks of %u and blocks of %u: greedy tokens differ", chunks[i], blocks[i]);
        rig_close(&r);
    }
}

/* isa NULL: the default dtype as it is served. "portable" with a float32 cache multiplies float
 * weights exactly, so that what remains is the other form of latent attention. */
static void check_auto(const char *isa, double small, double large, uint32_t may_differ)
{
    struct rig r;
    uint32_t other = 0;

    open_rig(&r, MODEL_DTYPE_AUTO, 16, isa);
    for (size_t i = 0; i < 4; i++) {
        if (!has_prompt(prompts[i]))
            continue;
        other += check_prompt(&r, prompts[i], i < 2 ? small : large, 0,
                              isa ? compare : compare_median);
        rig_forget(&r);
    }
    expect(other <= may_differ, "%u greedy tokens differ at auto (at most %u)", other, may_differ);
    if (other)
        printf("auto: %u greedy tokens differ\n", other);
    rig_close(&r);
}

int main(int argc, char **argv)
{
    char path[128];
    struct golden *g;

    for (size_t i = 0; argc > 1 && i < sizeof cases / sizeof cases[0]; i++)
        if (strcmp(cases[i].name, argv[1]) == 0)
            test = &cases[i];
    if (!test) {
        printf("usage: golden_tiny MODEL\n");
        return 2;
    }
    snprintf(path, sizeof path, "models/%s", test->name);
    if (!golden_path(path)) {
        printf("skipped: no %s\n", path);
        return 77;
    }
    snprintf(path, sizeof path, "goldens/%s.safetensors", test->name);
    golden = g = golden_open(golden_path(path));
    check_float32();
    check_auto(NULL, test->limit.median, test->limit.median_large, test->limit.greedy);
    check_auto("portable", test->limit.portable, test->limit.portable, test->limit.greedy);
    golden_close(g);
    return failures();
}
