#include "model/config_notes.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/opts.h"
#include "base/status.h"

/* The keys that are read here: a new one that is read elsewhere in the folder is a word here. */
static const char *const known[] = {
    "architectures",
    "attention_bias",
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "bos_token_id",
    "decoder_sparse_step",
    "dtype",
    "eos_token_id",
    "factor",
    "first_k_dense_replace",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "high_freq_factor",
    "intermediate_size",
    "kv_lora_rank",
    "low_freq_factor",
    "max_position_embeddings",
    "mlp_only_layers",
    "moe_intermediate_size",
    "moe_layer_freq",
    "mscale",
    "mscale_all_dim",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "norm_topk_prob",
    "num_attention_heads",
    "num_experts",
    "num_experts_per_tok",
    "num_hidden_layers",
    "num_key_value_heads",
    "num_nextn_predict_layers",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "q_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "rope_type",
    "routed_scaling_factor",
    "scoring_func",
    "tie_word_embeddings",
    "topk_group",
    "topk_method",
    "torch_dtype",
    "type",
    "use_sliding_window",
    "v_head_dim",
    "vocab_size",
};
#define N_KNOWN (sizeof known / sizeof known[0])

static bool among(const char *const *words, size_t n, const char *word)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(words[i], word) == 0)
            return true;
    return false;
}

/* torch_dtype comes first, as where it is read; what the overrides say comes before the file. */
static void note_dtype(struct config_notes *out, const json_t *file, const json_t *over)
{
    static const char *const keys[] = { "torch_dtype", "dtype" };
    static const char *const names[] = {
        "auto",    "bfloat16", "double",        "float",       "float16",
        "float32", "float64",  "float8_e4m3fn", "float8_e5m2", "half",
    };

    out->dtype_known = true;
    for (int i = 0; i < 4; i++) {
        const char *s = json_string_value(json_object_get(i < 2 ? over : file, keys[i % 2]));

        if (!s || !*s)
            continue;
        snprintf(out->dtype, sizeof out->dtype, "%s", s);
        out->key = keys[i % 2];
        out->overridden = i < 2;
        out->dtype_known = among(names, sizeof names / sizeof names[0], s);
        return;
    }
}

/* The first key of `over` that the file does not have and that is not read. Nested objects follow
 * where the file has one too, and for rope's. */
static bool note_unread(struct config_notes *out, const json_t *file, json_t *over,
                        const char *prefix)
{
    const char *key, *near;
    char path[sizeof out->unread];
    json_t *value;

    json_object_foreach(over, key, value)
    {
        const json_t *old = json_object_get(file, key);

        snprintf(path, sizeof path, "%s%s", prefix, key);
        if (!old && !among(known, N_KNOWN, key)) {
            strcpy(out->unread, path);
            near = opts_nearest_word(known, N_KNOWN, key);
            snprintf(out->near, sizeof out->near, "%s", near ? near : "");
            return true;
        }
        if (!json_is_object(old) && strncmp(key, "rope_", sizeof "rope_" - 1) != 0)
            continue;
        snprintf(path, sizeof path, "%s%s.", prefix, key);
        if (json_is_object(value) && note_unread(out, old, value, path))
            return true;
    }
    return false;
}

void config_notes(struct config_notes *out, const char *json, size_t len, const char *overrides)
{
    json_t *file = json_loadb(json, len, 0, NULL), *over = NULL;

    *out = (struct config_notes){ 0 };
    if (overrides && json_read(&over, overrides, strlen(overrides), NULL, NULL) < 0)
        over = NULL;
    note_dtype(out, file, over);
    note_unread(out, file, over, "");
    json_decref(file);
    json_decref(over);
}
