/* Loading keeps no more of the file in memory than a piece of a tensor: a checkpoint that is nearly
 * all one tensor, of zeros that stand nowhere on the disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/status.h"
#include "model/model.h"

#define VOCAB  200000 /* rows of the embedding: 410 MB */
#define HIDDEN 1024
#define FFN    32
#define HEADS  32

static char dir[] = "/tmp/sluice-peak-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[128];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static uint64_t add(struct buf *b, const char *name, unsigned rows, unsigned cols, uint64_t at)
{
    uint64_t bytes = 2ull * (rows ? rows : 1) * cols;

    buf_printf(b, "%s\"model.%s.weight\":{\"dtype\":\"BF16\",\"shape\":[", at ? "," : "", name);
    if (rows)
        buf_printf(b, "%u,", rows);
    buf_printf(b, "%u],\"data_offsets\":[%llu,%llu]}", cols, (unsigned long long)at,
               (unsigned long long)(at + bytes));
    return at + bytes;
}

static void write_tensors(void)
{
    static const struct {
        const char *name;
        unsigned rows, cols;
    } tensors[] = {
        { "embed_tokens", VOCAB, HIDDEN },
        { "norm", 0, HIDDEN },
        { "layers.0.input_layernorm", 0, HIDDEN },
        { "layers.0.post_attention_layernorm", 0, HIDDEN },
        { "layers.0.self_attn.q_proj", HIDDEN, HIDDEN },
        { "layers.0.self_attn.k_proj", HIDDEN, HIDDEN },
        { "layers.0.self_attn.v_proj", HIDDEN, HIDDEN },
        { "layers.0.self_attn.o_proj", HIDDEN, HIDDEN },
        { "layers.0.mlp.gate_proj", FFN, HIDDEN },
        { "layers.0.mlp.up_proj", FFN, HIDDEN },
        { "layers.0.mlp.down_proj", HIDDEN, FFN },
    };
    FILE *f = fopen(in_dir("model.safetensors"), "wb");
    uint64_t at = 0, n;
    struct buf b;

    assert_non_null(f);
    buf_init(&b, BUF_MAX_LINE);
    buf_putc(&b, '{');
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++)
        at = add(&b, tensors[i].name, tensors[i].rows, tensors[i].cols, at);
    buf_putc(&b, '}');
    n = b.len;
    assert_true(fwrite(&n, 1, 8, f) == 8 && fwrite(b.data, 1, n, f) == n && fflush(f) == 0);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + n + at)), 0);
    fclose(f);
    buf_finish(&b);
}

static void write_config(void)
{
    FILE *f = fopen(in_dir("config.json"), "w");

    assert_non_null(f);
    fprintf(f,
            "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":1,\"hidden_size\":%d,"
            "\"intermediate_size\":%d,\"num_attention_heads\":%d,\"vocab_size\":%d,"
            "\"max_position_embeddings\":64,\"tie_word_embeddings\":true}",
            HIDDEN, FFN, HEADS, VOCAB);
    fclose(f);
}

static uint64_t peak(void)
{
    struct rusage r;

    getrusage(RUSAGE_SELF, &r);
    return (uint64_t)r.ru_maxrss << 10;
}

static void test_peak(void **state)
{
    struct model_options o = { .path = dir };
    struct k_options ko = { .threads = 2 };
    struct kernels *k;
    struct model *m;
    struct err e = { 0 };
    uint64_t weights, before;

    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* shadow memory counts too */
#endif
    assert_non_null(mkdtemp(dir));
    write_config();
    write_tensors();
    assert_int_equal(kernels_open(&k, &ko, &e), 0);
    before = peak();
    if (model_open(&m, k, &o, &e) < 0)
        fail_msg("%s", e.text);
    weights = model_weight_bytes(m);
    assert_in_range(weights, 410000000, 420000000);
    /* Without dropping pages on the way it would be twice the embedding. */
    if (peak() - before > weights + 120000000)
        fail_msg("%llu bytes were resident for %llu of weights",
                 (unsigned long long)(peak() - before), (unsigned long long)weights);
    model_close(m);
    kernels_close(k);
    unlink(in_dir("config.json"));
    unlink(in_dir("model.safetensors"));
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_peak) };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
