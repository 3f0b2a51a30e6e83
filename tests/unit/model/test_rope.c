/* Rotary tables against recorded ones: llama3 bands, plain, and YaRN (the DeepSeek shapes). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/config.h"
#include "model/safetensors.h"
#include "sys/map.h"

static struct map map;
static struct safetensors *file;

static const void *find(const char *config, const char *what)
{
    char name[64];
    size_t n;
    const struct tensor *t = safetensors_tensors(file, &n);

    snprintf(name, sizeof name, "%s.%s", config, what);
    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return t[i].data;
    fail_msg("no %s", name);
    return NULL;
}

static void check(const char *name, const struct model_config *c)
{
    const float *want = find(name, "inv_freq"), *cos_want = find(name, "cos"),
                *sin_want = find(name, "sin");
    const int32_t *pos = find(name, "positions");
    double freq[64], scale;
    uint32_t n = c->rope_dim / 2, max_pos = 0;
    float *cos_got, *sin_got;

    model_rope_freqs(c, freq, &scale);
    for (uint32_t i = 0; i < n; i++)
        if (fabs(freq[i] / (double)want[i] - 1) > 1e-6)
            fail_msg("%s: frequency %u is %.9g, not %.9g", name, i, freq[i], (double)want[i]);
    for (int i = 0; i < 8; i++)
        max_pos = (uint32_t)pos[i] + 1 > max_pos ? (uint32_t)pos[i] + 1 : max_pos;
    cos_got = malloc((size_t)max_pos * n * sizeof(float));
    sin_got = malloc((size_t)max_pos * n * sizeof(float));
    assert_true(cos_got && sin_got);
    model_rope_table(c, max_pos, cos_got, sin_got);
    for (uint32_t i = 0; i < 8 * n; i++) {
        size_t at = (size_t)pos[i / n] * n + i % n;

        if (fabsf(cos_got[at] - cos_want[i]) > 1e-6f || fabsf(sin_got[at] - sin_want[i]) > 1e-6f)
            fail_msg("%s: position %d, pair %u: cos %g not %g, sin %g not %g", name, pos[i / n],
                     i % n, (double)cos_got[at], (double)cos_want[i], (double)sin_got[at],
                     (double)sin_want[i]);
    }
    free(cos_got);
    free(sin_got);
}

static void test_plain(void **state)
{
    struct model_config c = { .rope_dim = 128, .rope_theta = 1e6 };

    (void)state;
    check("qwen3_real", &c);
}

static void test_llama3(void **state)
{
    struct model_config c = {
        .rope_dim = 64,
        .rope_theta = 500000,
        .rope_scaling = ROPE_LLAMA3,
        .rope_factor = 32,
        .rope_low_freq = 1,
        .rope_high_freq = 4,
        .rope_original = 8192,
    };

    (void)state;
    check("llama_3.2_1b_real", &c);
    c.rope_dim = 32;
    c.rope_original = 256;
    check("llama_tiny", &c);
}

static void test_yarn(void **state)
{
    struct model_config c = {
        .head_dim = 192,
        .rope_dim = 64,
        .rope_theta = 10000,
        .rope_scaling = ROPE_YARN,
        .rope_factor = 40,
        .rope_original = 4096,
        .yarn_beta_fast = 32,
        .yarn_beta_slow = 1,
        .yarn_mscale = 1,
        .yarn_mscale_all_dim = 1,
    };
    const float *want = find("deepseek_v3_real", "softmax_scale");
    double freq[32], scale;

    (void)state;
    check("deepseek_v3_real", &c);
    assert_true(fabs(rope_latent_scale(&c) - (double)*want) < 1e-7);
    c.yarn_mscale_all_dim = 0; /* not given: the paper's 0.1 ln(s) + 1 */
    model_rope_freqs(&c, freq, &scale);
    assert_true(fabs(scale - (0.1 * log(40) + 1)) < 1e-15);
    c.yarn_attn_factor = 1.5; /* given: replaces it */
    model_rope_freqs(&c, freq, &scale);
    assert_true(scale == 1.5);
}

static void test_linear(void **state)
{
    struct model_config c = {
        .rope_dim = 8, .rope_theta = 10000, .rope_scaling = ROPE_LINEAR, .rope_factor = 4
    };
    double freq[4], scale;

    (void)state;
    model_rope_freqs(&c, freq, &scale);
    assert_true(freq[0] == 0.25 && fabs(freq[2] - 0.0025) < 1e-15 && scale == 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_yarn),
        cmocka_unit_test(test_linear),
    };
    struct err e = { 0 };
    int failed;

    if (map_open(&map, ROPE_VECTORS, &e) < 0 ||
        safetensors_parse(&file, map.data, map.size, &e) < 0) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    safetensors_free(file);
    map_close(&map);
    return failed;
}
