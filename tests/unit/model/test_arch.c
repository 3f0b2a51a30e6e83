/* Architectures against configurations that do not fit them, the layer for drafts, and
 * overrides, on the recorded tiny models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "model/model.h"

static struct kernels *kernels;

static int open_model(struct model **m, const char *name, const char *overrides, bool mtp,
                      struct err *e)
{
    char path[512];
    struct model_options o = { .path = path, .hf_overrides = overrides, .mtp = mtp };

    snprintf(path, sizeof path, "%s/%s", MODELS, name);
    return model_open(m, kernels, &o, e);
}

static void refuse(const char *name, const char *overrides, bool mtp, int status, const char *part)
{
    struct model *m = NULL;
    struct err e = { 0 };
    int st = open_model(&m, name, overrides, mtp, &e);

    if (st != status || !strstr(e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e.text,
                 status_name(status), part);
    assert_null(m);
}

static void test_sizes(void **state)
{
    static const struct {
        const char *model, *over, *part;
        int status;
    } bad[] = {
        { "qwen3_moe_tiny", "{\"hidden_size\":48}", "hidden size 48", ERR_UNSUPPORTED },
        { "qwen3_moe_tiny", "{\"moe_intermediate_size\":40}", "experts' feed-forward size 40",
          ERR_UNSUPPORTED },
        { "qwen3_moe_tiny", "{\"head_dim\":24}", "head size 24", ERR_UNSUPPORTED },
        { "qwen3_moe_tiny", "{\"architectures\":[\"Qwen3ForCausalLM\"]}",
          "has no experts, but the configuration says 8", ERR_BADMSG },
        { "qwen3_moe_tiny", "{\"architectures\":[\"DeepseekV3ForCausalLM\"]}",
          "needs \"kv_lora_rank\"", ERR_BADMSG },
        { "deepseek_v2_tiny", "{\"architectures\":[\"Qwen3MoeForCausalLM\"]}",
          "has no \"kv_lora_rank\"", ERR_BADMSG },
        { "deepseek_v2_tiny", "{\"kv_lora_rank\":576}", "up to 576 together", ERR_UNSUPPORTED },
        { "deepseek_v2_tiny", "{\"kv_lora_rank\":40}", "kv_lora_rank 40", ERR_UNSUPPORTED },
        { "deepseek_v2_tiny", "{\"qk_nope_head_dim\":24}", "qk_nope_head_dim 24", ERR_UNSUPPORTED },
        { "deepseek_v2_tiny", "{\"qk_nope_head_dim\":288}", "heads of 288 and 48",
          ERR_UNSUPPORTED },
        /* what the files hold instead of what the configuration says */
        { "deepseek_v2_tiny", "{\"kv_lora_rank\":64}", "kv_a_proj_with_mqa.weight", ERR_BADMSG },
        { "deepseek_v2_tiny", "{\"first_k_dense_replace\":0}", "layers.0.mlp.gate.weight",
          ERR_BADMSG },
        { "deepseek_v2_tiny", "{\"topk_method\":\"noaux_tc\"}", "e_score_correction_bias",
          ERR_BADMSG },
        { "qwen2_tiny", "{\"architectures\":[\"LlamaForCausalLM\"]}", "k_proj.bias",
          ERR_UNSUPPORTED },
        { "qwen2_tiny", "{\"architectures\":[\"LlamaForCausalLM\"],\"attention_bias\":true}",
          "o_proj.bias is missing", ERR_BADMSG },
        { "qwen2_tiny", "{\"architectures\":[\"Qwen3ForCausalLM\"]}", "q_norm.weight", ERR_BADMSG },
        { "qwen2_tiny", "{\"hidden_size\":", "--hf-overrides", ERR_BADMSG },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse(bad[i].model, bad[i].over, false, bad[i].status, bad[i].part);
}

static void test_kv_shape(void **state)
{
    struct model_kv_shape s;
    struct model *m;
    struct err e = { 0 };

    (void)state;
    assert_int_equal(open_model(&m, "qwen3_moe_tiny", NULL, false, &e), 0);
    model_kv_shape(m, &s);
    assert_int_equal(s.n_layers, 3);
    assert_int_equal(s.kv_heads, 2);
    assert_int_equal(s.head_dim, 32);
    assert_int_equal(s.latent, 0);
    model_close(m);
    for (int mtp = 0; mtp < 2; mtp++) {
        assert_int_equal(open_model(&m, "deepseek_v3_mini_w8a8_v1", NULL, mtp, &e), 0);
        model_kv_shape(m, &s);
        assert_int_equal(s.n_layers, 2 + mtp);
        assert_int_equal(s.kv_heads, 1);
        assert_int_equal(s.head_dim, 80);
        assert_int_equal(s.latent, 64);
        model_close(m);
    }
}

static void test_no_drafts(void **state)
{
    (void)state;
    refuse("qwen3_moe_tiny", NULL, true, ERR_NOTFOUND, "has no multi-token prediction layer");
    refuse("deepseek_v2_tiny", "{\"num_nextn_predict_layers\":1}", true, ERR_NOTFOUND,
           "model.layers.2.eh_proj.weight is missing");
}

/* Parts of a model load alone, with the tensors of the others left out. */
static void test_stages(void **state)
{
    char path[512];
    struct model_options o = { .path = path, .n_layers = 1, .mtp = true };
    struct model_kv_shape s;
    struct err e = { 0 };

    (void)state;
    snprintf(path, sizeof path, "%s/deepseek_v3_mini_w8a8_v1", MODELS);
    for (o.first_layer = 0; o.first_layer < 2; o.first_layer++) {
        struct model *m;

        if (model_open(&m, kernels, &o, &e) < 0)
            fail_msg("%s", e.text);
        model_kv_shape(m, &s);
        assert_int_equal(s.n_layers, o.first_layer == 1 ? 2 : 1);
        model_close(m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_kv_shape),
        cmocka_unit_test(test_no_drafts),
        cmocka_unit_test(test_stages),
    };
    const struct k_options o = { .threads = 1 };
    int failed;

    if (kernels_open(&kernels, &o, NULL) < 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    kernels_close(kernels);
    return failed;
}
