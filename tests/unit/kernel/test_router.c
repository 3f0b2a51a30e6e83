/* The choice of experts against recorded ones: a layer's router over its recorded input. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "kernel/kernel.h"
#include "model/safetensors.h"
#include "sys/map.h"

struct file {
    struct map map;
    struct safetensors *table;
};

/* False if it is not there. */
static bool open_file(struct file *f, const char *root, const char *name)
{
    char path[512];
    struct err e = { 0 };

    snprintf(path, sizeof path, "%s/%s", root, name);
    if (map_open(&f->map, path, &e) < 0)
        return false;
    if (safetensors_parse(&f->table, f->map.data, f->map.size, &e) < 0)
        fail_msg("%s", e.text);
    return true;
}

static void close_file(struct file *f)
{
    safetensors_free(f->table);
    map_close(&f->map);
}

static const struct tensor *find(const struct file *f, const char *name)
{
    size_t n;
    const struct tensor *t = safetensors_tensors(f->table, &n);

    for (size_t i = 0; i < n; i++)
        if (strcmp(t[i].name, name) == 0)
            return &t[i];
    fail_msg("no %s", name);
    return NULL;
}

/* Logits [n][experts] of the layer's router. */
static void make_logits(const struct kernels *k, const struct tensor *gate, const struct tensor *x,
                        float *logits)
{
    uint32_t experts = (uint32_t)gate->shape[0], cols = (uint32_t)gate->shape[1];
    uint32_t n = (uint32_t)x->shape[0];
    struct k_part part = { .type = gate->type,
                           .rows = experts,
                           .data = gate->data,
                           .stride = k_type_bytes(gate->type, cols) };
    struct k_matrix *m;
    struct k_act *a;
    struct err e = { 0 };

    if (k->pack(k, &m, &part, 1, cols, K_MATH_FLOAT, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(k->act_create(k, &a, n, cols, k->matrix_form(m)), 0);
    k->act_load(k, a, (const float *)(const void *)x->data, cols, n, cols);
    k->linear(k, logits, experts, a, m, n, false);
    k->act_destroy(k, a);
    k->unpack_free(k, m);
}

/* ids and weights of n tokens, best first, as the record has them. */
static void compare(const struct kernels *k, const struct file *model, const struct file *golden,
                    const struct k_router *how)
{
    const struct tensor *x = find(golden, "p7.L1.ffn_norm"), *t = find(golden, "p7.L1.router_ids");
    const int32_t *ids = (const int32_t *)(const void *)t->data;
    const float *weights = (const float *)(const void *)find(golden, "p7.L1.router_weights")->data;
    uint32_t n = (uint32_t)x->shape[0];
    float logits[16 * 16];
    struct k_routes *r;

    assert_true(n <= 16 && how->experts <= 16 && t->shape[1] == how->top_k);
    make_logits(k, find(model, "model.layers.1.mlp.gate.weight"), x, logits);
    assert_int_equal(k->routes_create(k, &r, n, how->experts, how->top_k), 0);
    k->route(k, r, logits, how->experts, n, how);
    for (uint32_t i = 0; i < n * how->top_k; i++) {
        assert_int_equal(r->expert[i], ids[i]);
        if (!(fabs((double)r->weight[i] / (double)weights[i] - 1) < 5e-6))
            fail_msg("weight %u is %.9g, not %.9g", i, (double)r->weight[i], (double)weights[i]);
    }
    k->routes_destroy(k, r);
}

static void check_model(const char *root, const char *model, const char *golden,
                        struct k_router how)
{
    static const char *const isas[] = { "portable", NULL };
    struct file m, g;

    if (!open_file(&m, root, model))
        skip();
    assert_true(open_file(&g, root, golden));
    if (how.sigmoid)
        how.bias = (const float *)(const void *)find(
                       &m, "model.layers.1.mlp.gate.e_score_correction_bias")
                       ->data;
    for (size_t i = 0; i < sizeof isas / sizeof isas[0]; i++) {
        struct k_options o = { .isa = isas[i], .threads = 2 };
        struct err e = { 0 };
        struct kernels *k;

        if (kernels_open(&k, &o, &e) < 0)
            fail_msg("%s", e.text);
        compare(k, &m, &g, &how);
        kernels_close(k);
    }
    close_file(&m);
    close_file(&g);
}

static void softmax_without_groups(void **state)
{
    struct k_router how = {
        .experts = 8, .top_k = 3, .groups = 1, .top_groups = 1, .normalize = true, .scale = 1
    };

    (void)state;
    check_model(DATA, "models/qwen3_moe_tiny/model.safetensors",
                "goldens/qwen3_moe_tiny.safetensors", how);
}

static void sigmoid_of_one_group(void **state)
{
    struct k_router how = { .experts = 8,
                            .top_k = 2,
                            .groups = 2,
                            .top_groups = 1,
                            .sigmoid = true,
                            .group_two = true,
                            .normalize = true,
                            .scale = 2.5f };

    (void)state;
    check_model(DATA,
                "models/deepseek_v3_mini_w8a8_v1/"
                "quant_model_weights-00001-of-00001.safetensors",
                "goldens/deepseek_v3_mini_w8a8_v1.safetensors", how);
}

/* Not in the repository for its size. */
static void sigmoid_of_two_groups(void **state)
{
    struct k_router how = { .experts = 16,
                            .top_k = 4,
                            .groups = 4,
                            .top_groups = 2,
                            .sigmoid = true,
                            .group_two = true,
                            .normalize = true,
                            .scale = 2.5f };

    (void)state;
    check_model(SHARED, "models/deepseek_v3_tiny/model.safetensors",
                "goldens/deepseek_v3_tiny.safetensors", how);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(softmax_without_groups),
        cmocka_unit_test(sigmoid_of_one_group),
        cmocka_unit_test(sigmoid_of_two_groups),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
