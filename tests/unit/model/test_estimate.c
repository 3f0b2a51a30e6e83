/* What a model is said to take before it is loaded, against what it takes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "model/model.h"

static struct kernels *kernels;
static struct kernels counting; /* the same, but its memory is counted */
static uint64_t taken;

static void *count_alloc(const struct kernels *k, size_t bytes)
{
    (void)k;
    taken += bytes;
    return kernels->alloc(kernels, bytes);
}

/* Packed weights are not each an allocation of their own. */
static int count_pack(const struct kernels *k, struct k_matrix **out, const struct k_part *parts,
                      uint32_t n_parts, uint32_t cols, enum k_math math, struct err *e)
{
    int st = kernels->pack(kernels, out, parts, n_parts, cols, math, e);

    (void)k;
    taken += st == 0 ? kernels->matrix_bytes(*out) : 0;
    return st;
}

static int setup(void **state)
{
    struct k_options o = { .threads = 1 };
    struct err e = { 0 };

    (void)state;
    if (kernels_open(&kernels, &o, &e) < 0)
        return -1;
    counting = *kernels;
    counting.alloc = count_alloc;
    counting.pack = count_pack;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    kernels_close(kernels);
    return 0;
}

static void close_to(const char *path, const char *what, uint64_t said, uint64_t is, double limit)
{
    double part = (double)said / (double)is;

    if (part < 1 - limit || part > 1 + limit)
        fail_msg("%s: %s: said %llu bytes, it is %llu", path, what, (unsigned long long)said,
                 (unsigned long long)is);
}

static void check_part(struct model_options o)
{
    const char *path = o.path;
    struct model_estimate s;
    struct model_kv_shape kv;
    struct model_work *w;
    struct model *m;
    struct err e = { 0 };
    uint64_t token;

    if (model_estimate(&s, &counting, &o, 512, 16, &e) < 0)
        fail_msg("%s", e.text);
    taken = 0;
    if (model_open(&m, &counting, &o, &e) < 0)
        fail_msg("%s", e.text);
    close_to(path, "weights and tables", s.weights + s.tables, taken, 0.1);
    model_kv_shape(m, &kv);
    token = (uint64_t)kv.n_layers * kv.kv_heads * kv.head_dim * (kv.latent ? 1 : 2) *
            k_type_info[model_kv_type(m)].bytes;
    assert_int_equal(s.kv_token, token);
    taken = 0;
    assert_int_equal(model_work_create(&w, m, 512, 16, &e), 0);
    close_to(path, "scratch", s.scratch, taken, 0.5);
    model_work_destroy(w);
    model_close(m);
}

static void check(const char *path, enum model_dtype dtype)
{
    check_part((struct model_options){ .path = path, .dtype = dtype });
}

/* One of four that share experts and head; ranks of two, of two stages. What they do together is not needed to load. */
static void check_ranks(const char *path)
{
    static const struct model_peers peers;
    struct model_config c;
    struct err e = { 0 };

    assert_int_equal(model_read_config(&c, path, NULL, &e), 0);
    if (c.experts)
        check_part((struct model_options){
            .path = path,
            .part = { .ep_rank = 1, .ep_size = 4, .head_rank = 3, .head_size = 4, .peers = &peers },
        });
    for (uint32_t rank = 0; rank < 2; rank++)
        for (uint32_t stage = 0; stage < 2; stage++)
            check_part((struct model_options){
                .path = path,
                .first_layer = stage,
                .n_layers = stage ? c.n_layers - 1 : 1,
                .part = { .tp_rank = rank, .tp_size = 2, .peers = &peers },
            });
}

static void test_folder(void **state)
{
    struct model_options o = { .path = LLAMA_TINY };
    struct model_estimate s;
    struct err e = { 0 };

    (void)state;
    check(LLAMA_TINY, MODEL_DTYPE_FLOAT32);
    check(LLAMA_TINY, MODEL_DTYPE_AUTO);
    assert_int_equal(model_estimate(&s, kernels, &o, 512, 16, &e), 0);
    assert_true(s.folder && s.floats > s.weights * 9 / 10);
    o.quantization = "ascend";
    assert_int_equal(model_estimate(&s, kernels, &o, 512, 16, &e), ERR_MISMATCH);
}

/* Architectures and formats that are not in the tree. */
static void test_shared(void **state)
{
    static const char *const names[] = { "deepseek_v3_tiny",      "deepseek_v3_tiny_fp8",
                                         "deepseek_v3_tiny_w8a8", "deepseek_v3_mini_w8a8_v1",
                                         "qwen3_moe_tiny",        "qwen3_tiny" };
    char path[512];
    int n = 0;

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/golden/models/%s", SHARED, names[i]);
        if (access(path, R_OK) < 0)
            continue;
        check(path, MODEL_DTYPE_FLOAT32);
        check(path, MODEL_DTYPE_AUTO);
        check_ranks(path);
        n++;
    }
    if (n == 0)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_shared),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
