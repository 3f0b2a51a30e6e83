/* Qwen3MoeForCausalLM: Qwen3 with experts instead of dense feed-forward layers. */
#include "model/arch.h"

const struct arch arch_qwen3_moe = {
    .hf = "Qwen3MoeForCausalLM",
    .gguf = "qwen3moe",
    .head_norms = true,
    .experts = true,
};
