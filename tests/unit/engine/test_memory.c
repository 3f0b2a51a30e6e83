/* What does not fit into memory is refused before a weight is read, with numbers and with what would
 * help. */
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
#include "engine/engine.h"

static const char *model_path; /* a small one */

static struct engine_options options(const char *path)
{
    return (struct engine_options){
        .model = { .path = path, .max_model_len = 128 },
        .sched = { .block_tokens = 16,
                   .max_model_len = 128,
                   .max_batched_tokens = 64,
                   .max_seqs = 2,
                   .max_waiting = 16,
                   .chunked_prefill = true },
        .memory_fraction = 0.9,
    };
}

static void refuse(const struct engine_options *o, const char *const *parts)
{
    struct engine *e = NULL;
    struct err err = { 0 };

    assert_int_equal(engine_open(&e, o, &err), ERR_NOMEM);
    assert_null(e);
    for (; *parts; parts++)
        if (!strstr(err.text, *parts))
            fail_msg("sentence \"%s\", expected \"%s\"", err.text, *parts);
}

static void test_kv_too_large(void **state)
{
    static const char *const parts[] = {
        "does not fit into memory: weights 0.00 GiB + scratch ",
        "+ KV cache at least 1048576.00 GiB = ",
        " GiB are available; lower --max-num-batched-tokens (now 64), --num-gpu-blocks-override or "
        "--kv-cache-memory-bytes",
        NULL,
    };
    struct engine_options o = options(model_path);

    (void)state;
    o.kv_bytes = 1ull << 50;
    refuse(&o, parts);
    o.kv_bytes = 0;
    o.sched.n_blocks = 1u << 30;
    refuse(&o, parts + 2);
}

/* A folder whose embedding is two terabytes of nothing. */
static void make_giant(const char *dir)
{
    static const char config[] =
        "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":1,\"hidden_size\":65536,"
        "\"intermediate_size\":64,\"num_attention_heads\":2,\"head_dim\":32,\"vocab_size\":"
        "16777216,"
        "\"tie_word_embeddings\":true}";
    static const char header[] =
        "{\"model.embed_tokens.weight\":{\"dtype\":\"BF16\",\"shape\":[16777216,65536],"
        "\"data_offsets\":[0,2199023255552]}}";
    uint64_t n = sizeof header - 1;
    char path[128];
    FILE *f;

    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_non_null(f = fopen(path, "wb"));
    assert_int_equal(fwrite(config, 1, sizeof config - 1, f), sizeof config - 1);
    fclose(f);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    assert_non_null(f = fopen(path, "wb"));
    assert_int_equal(fwrite(&n, 1, 8, f), 8);
    assert_int_equal(fwrite(header, 1, n, f), n);
    fflush(f);
    assert_int_equal(ftruncate(fileno(f), (off_t)(8 + n + (1ull << 41))), 0);
    fclose(f);
}

static void remove_giant(const char *dir)
{
    char path[128];

    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    unlink(path);
    rmdir(dir);
}

static void test_weights_too_large(void **state)
{
    static const char *const parts[] = {
        "does not fit into memory: weights 2048.00 GiB + scratch ",
        "most of the weights are not quantized; as W8A8 they take about 1024.00 GiB: give the "
        "quantized folder (--quantization ascend; sluice quantize makes one), or free memory",
        NULL,
    };
    char dir[64] = "/tmp/sluice-memory-XXXXXX";
    struct engine_options o = options(dir);

    (void)state;
    assert_non_null(mkdtemp(dir));
    make_giant(dir);
    refuse(&o, parts);
    remove_giant(dir);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kv_too_large),
        cmocka_unit_test(test_weights_too_large),
    };

    if (argc < 2)
        return 1;
    model_path = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
