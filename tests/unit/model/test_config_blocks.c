/* Latent attention, experts and overrides in config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "model/config_parse.h"

#define SHAPES                                                                                     \
    "\"hidden_size\":64,\"intermediate_size\":128,\"num_hidden_layers\":8,"                        \
    "\"num_attention_heads\":4,\"num_key_value_heads\":4,\"vocab_size\":100"
#define V3   "\"architectures\":[\"DeepseekV3ForCausalLM\"]," SHAPES
#define V2   "\"architectures\":[\"DeepseekV2ForCausalLM\"]," SHAPES
#define QWEN "\"architectures\":[\"Qwen3MoeForCausalLM\"]," SHAPES
#define LATENT                                                                                     \
    ",\"kv_lora_rank\":64,\"qk_nope_head_dim\":32,\"qk_rope_head_dim\":16,\"v_head_dim\":48"
#define EXPERTS                                                                                    \
    ",\"n_routed_experts\":16,\"num_experts_per_tok\":4,\"moe_intermediate_size\":32,"             \
    "\"n_shared_experts\":2,\"n_group\":4,\"topk_group\":2"

static int read_over(struct model_config *c, const char *json, const char *overrides, struct err *e)
{
    return config_from_json(c, json, strlen(json), NULL, 0, overrides, e);
}

static struct model_config read_ok(const char *json, const char *overrides)
{
    struct model_config c;
    struct err e = { 0 };

    if (read_over(&c, json, overrides, &e) < 0)
        fail_msg("%s", e.text);
    return c;
}

static void refuse(const char *json, const char *overrides, int status, const char *part)
{
    struct model_config c;
    struct err e = { 0 };
    int st = read_over(&c, json, overrides, &e);

    if (st != status || !strstr(e.text, part))
        fail_msg("status %s, sentence \"%s\", expected %s and \"%s\"", status_name(st), e.text,
                 status_name(status), part);
}

static void test_latent(void **state)
{
    struct model_config c = read_ok("{" V3 LATENT ",\"q_lora_rank\":96}", NULL);

    (void)state;
    assert_int_equal(c.kv_lora, 64);
    assert_int_equal(c.q_lora, 96);
    assert_int_equal(c.nope_dim, 32);
    assert_int_equal(c.rope_dim, 16);
    assert_int_equal(c.head_dim, 48);
    assert_int_equal(c.kv_heads, 1);
    assert_int_equal(c.v_dim, 48);
    c = read_ok("{" V2 LATENT ",\"q_lora_rank\":null}", NULL);
    assert_int_equal(c.q_lora, 0);
    refuse("{" V3 ",\"kv_lora_rank\":64}", NULL, ERR_BADMSG, "\"qk_nope_head_dim\" is missing");
    refuse("{" V3 ",\"kv_lora_rank\":64,\"qk_nope_head_dim\":4294967295,\"qk_rope_head_dim\":2,"
           "\"v_head_dim\":16}",
           NULL, ERR_BADMSG, "head size");
    refuse("{" V3 LATENT ",\"q_lora_rank\":4000000}", NULL, ERR_BADMSG, "q_lora_rank: 4000000");
}

static void test_v3_router(void **state)
{
    struct model_config c = read_ok("{" V3 LATENT EXPERTS ",\"first_k_dense_replace\":3,"
                                    "\"routed_scaling_factor\":2.5,\"topk_method\":\"noaux_tc\","
                                    "\"scoring_func\":\"sigmoid\",\"norm_topk_prob\":true,"
                                    "\"num_nextn_predict_layers\":1}",
                                    NULL);

    (void)state;
    assert_true(c.expert_sigmoid && c.expert_bias && c.expert_group_two && c.expert_normalize);
    assert_int_equal(c.experts, 16);
    assert_int_equal(c.experts_per_token, 4);
    assert_int_equal(c.expert_groups, 4);
    assert_int_equal(c.expert_top_groups, 2);
    assert_int_equal(c.shared_experts, 2);
    assert_int_equal(c.mtp_layers, 1);
    assert_true(c.expert_scale == 2.5);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(model_layer_sparse(&c, i), i >= 3);
}

/* Files of the class that came with the library leave out what it does not vary. */
static void test_defaults_of_classes(void **state)
{
    struct model_config c = read_ok("{" V3 LATENT EXPERTS "}", NULL);

    (void)state;
    assert_true(c.expert_sigmoid && c.expert_bias && c.expert_group_two && c.expert_normalize);
    c = read_ok("{" V2 LATENT EXPERTS ",\"topk_method\":\"group_limited_greedy\"}", NULL);
    assert_false(c.expert_sigmoid || c.expert_bias || c.expert_group_two || c.expert_normalize);
    assert_int_equal(c.expert_groups, 4);
    c = read_ok("{" V2 LATENT EXPERTS ",\"topk_method\":\"greedy\"}", NULL);
    assert_int_equal(c.expert_groups, 1);
    assert_int_equal(c.expert_top_groups, 1);
    assert_true(c.expert_scale == 1);
}

static void test_qwen_layers(void **state)
{
    struct model_config c = read_ok("{" QWEN ",\"num_experts\":8,\"num_experts_per_tok\":2,"
                                    "\"moe_intermediate_size\":32,\"norm_topk_prob\":true,"
                                    "\"decoder_sparse_step\":2,\"mlp_only_layers\":[3]}",
                                    NULL);

    (void)state;
    assert_false(c.expert_sigmoid);
    assert_true(c.expert_normalize);
    for (uint32_t i = 0; i < 8; i++)
        assert_int_equal(model_layer_sparse(&c, i), i % 2 == 1 && i != 3);
    refuse("{" QWEN ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,"
           "\"mlp_only_layers\":[-1]}",
           NULL, ERR_BADMSG, "mlp_only_layers");
}

static void test_bad_experts(void **state)
{
    static const struct {
        const char *over, *part;
        int status;
    } bad[] = {
        { "{\"n_routed_experts\":2000}", "2000 experts: at most 1024", ERR_BADMSG },
        { "{\"n_routed_experts\":18}", "18 experts do not make 4 equal groups", ERR_BADMSG },
        { "{\"num_experts_per_tok\":17}", "17 experts a token: not in 1 to 16", ERR_BADMSG },
        { "{\"num_experts_per_tok\":9}", "only 8 are in 2 groups", ERR_BADMSG },
        { "{\"n_group\":0}", "0 equal groups", ERR_BADMSG },
        { "{\"topk_group\":5}", "5 of 4 groups", ERR_BADMSG },
        { "{\"n_group\":16,\"topk_group\":8}", "groups of one expert", ERR_BADMSG },
        { "{\"n_shared_experts\":4294967295}", "4294967295 shared experts", ERR_BADMSG },
        { "{\"moe_intermediate_size\":0}", "the size lies in 1 to", ERR_BADMSG },
        { "{\"routed_scaling_factor\":-1}", "is not above 0", ERR_BADMSG },
        { "{\"num_nextn_predict_layers\":17}", "17 multi-token prediction layers", ERR_BADMSG },
        { "{\"mlp_only_layers\":3}", "must be a list of layer numbers", ERR_BADMSG },
        { "{\"scoring_func\":\"tanh\"}", "\"tanh\" is not supported; softmax and sigmoid",
          ERR_UNSUPPORTED },
        { "{\"topk_method\":\"best\"}", "\"best\" is not supported; greedy", ERR_UNSUPPORTED },
        { "{\"use_sliding_window\":true}", "set it to false", ERR_UNSUPPORTED },
    };

    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        refuse("{" V3 LATENT EXPERTS "}", bad[i].over, bad[i].status, bad[i].part);
}

static void test_overrides(void **state)
{
    static const char json[] = "{" QWEN ",\"rope_theta\":5000,\"rope_scaling\":{\"type\":\"yarn\","
                               "\"factor\":4,\"original_max_position_embeddings\":100}}";
    struct model_config c = read_ok(json, "{\"rope_theta\":7000,\"rope_scaling\":{\"factor\":8},"
                                          "\"torch_dtype\":\"bfloat16\"}");

    (void)state;
    assert_true(c.rope_theta == 7000);
    assert_int_equal(c.rope_scaling, ROPE_YARN); /* what is not named stays */
    assert_true(c.rope_factor == 8);
    assert_int_equal(c.max_position, 800);
    assert_string_equal(c.torch_dtype, "bfloat16");
    c = read_ok(json, "{\"rope_scaling\":null}");
    assert_int_equal(c.rope_scaling, ROPE_NONE);
    assert_string_equal(c.torch_dtype, "");
    refuse(json, "{\"a\":", ERR_BADMSG, "--hf-overrides");
    refuse(json, "[1]", ERR_BADMSG, "--hf-overrides: expected a JSON object");
    refuse(json, "{\"hidden_size\":\"big\"}", ERR_BADMSG,
           "config.json with --hf-overrides: \"hidden_size\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_latent),
        cmocka_unit_test(test_v3_router),
        cmocka_unit_test(test_defaults_of_classes),
        cmocka_unit_test(test_qwen_layers),
        cmocka_unit_test(test_bad_experts),
        cmocka_unit_test(test_overrides),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
