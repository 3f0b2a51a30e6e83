/* A tiny LlamaForCausalLM in a HuggingFace folder (bfloat16, llama3 rope, tied embeddings) against
 * logits, hidden states, the inside of two layers and greedy tokens computed in float64. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

/* Largest difference of a logit or a state (standard deviations about 3 and 1). */
#define LIMIT_FLOAT32 2e-4
#define LIMIT_AUTO    0.05 /* a float16 cache; measured 0.0045 */

static const struct golden *golden;
static double limit;

static void compare(const char *what, const float *got, const char *key)
{
    size_t n;
    const float *want = golden_f32(golden, key, &n);
    double d;

    expect(want != NULL, "no golden %s", key);
    if (!want)
        return;
    d = max_diff(got, want, n);
    printf("%-16s max %.2e of %zu\n", what, d, n);
    expect(d <= limit, "%s differs by %g (at most %g)", what, d, limit);
}

/* The probe's rows, packed, against "p7.<name>", or against a row block of "p7.hidden". */
static void on_probe(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                     uint32_t cols)
{
    static const char *const hidden[] = { "embed", "layer0", "layer1", "layer2" };
    float *packed = malloc((size_t)n * cols * sizeof *packed);
    uint32_t *seen = arg;
    const float *want;
    char key[64];
    size_t len;

    ++*seen;
    for (uint32_t i = 0; i < n; i++)
        memcpy(packed + (size_t)i * cols, rows + i * ld, cols * sizeof *packed);
    snprintf(key, sizeof key, "p7.%s", name);
    for (size_t i = 0; i < 4; i++)
        if (strcmp(name, hidden[i]) == 0) {
            want = golden_f32(golden, "p7.hidden", &len);
            expect(max_diff(packed, want + i * n * cols, (size_t)n * cols) <= limit,
                   "%s differs by %g", name,
                   max_diff(packed, want + i * n * cols, (size_t)n * cols));
            free(packed);
            return;
        }
    compare(name, packed, key);
    free(packed);
}

static void check_prompt(struct rig *r, const char *name, bool all_rows)
{
    struct rig_seq s;
    char key[32];
    uint32_t rows[7] = { 0, 1, 2, 3, 4, 5, 6 };
    size_t n, n_greedy;
    const int32_t *ids, *greedy;
    const float *x;

    snprintf(key, sizeof key, "%s.ids", name);
    ids = golden_i32(golden, key, &n);
    snprintf(key, sizeof key, "%s.greedy", name);
    greedy = golden_i32(golden, key, &n_greedy);
    rig_seq_init(r, &s, (uint32_t)(n + n_greedy));
    x = rig_prefill(r, &s, ids, (uint32_t)n, 0);
    snprintf(key, sizeof key, "%s.%s", name, all_rows ? "logits" : "logits_last");
    compare(key, all_rows ? rig_logits(r, rows, (uint32_t)n) : x, key);
    x = rig_logits(r, &(uint32_t){ (uint32_t)n - 1 }, 1);
    for (size_t i = 0; i < n_greedy; i++) {
        int32_t id = (int32_t)argmax(x, 512);

        expect(id == greedy[i], "%s: greedy token %zu is %d, not %d", name, i, id, greedy[i]);
        x = rig_prefill(r, &s, &id, 1, 0);
    }
    rig_seq_finish(&s);
}

static void check_inside(struct rig *r)
{
    struct rig_seq s;
    uint32_t seen = 0;
    size_t n;
    const int32_t *ids = golden_i32(golden, "p7.ids", &n);

    rig_seq_init(r, &s, (uint32_t)n);
    model_set_probe(r->w, on_probe, &seen);
    rig_prefill(r, &s, ids, (uint32_t)n, 0);
    model_set_probe(r->w, NULL, NULL);
    expect(seen == 4 + 1 + 2 * 8, "%u steps were probed, expected 21", seen);
    rig_seq_finish(&s);
}

static void check_dtype(enum model_dtype dtype, double max)
{
    struct rig_options o = {
        .path = golden_path("models/llama_tiny"),
        .dtype = dtype,
        .pool_tokens = 256,
        .max_tokens = 70,
        .max_logits = 7,
    };
    struct rig r;

    limit = max;
    rig_open(&r, &o);
    check_prompt(&r, "p1", true);
    check_prompt(&r, "p7", true);
    check_prompt(&r, "p70", false);
    check_inside(&r);
    rig_close(&r);
}

int main(void)
{
    struct golden *g = golden_open(golden_path("goldens/llama_tiny.safetensors"));

    golden = g;
    check_dtype(MODEL_DTYPE_FLOAT32, LIMIT_FLOAT32);
    check_dtype(MODEL_DTYPE_AUTO, LIMIT_AUTO);
    golden_close(g);
    return failures();
}
