/* Qwen3ForCausalLM: as Llama, with a norm over each query and key head. */
#include "model/arch.h"

const struct arch arch_qwen3 = {
    .hf = "Qwen3ForCausalLM",
    .gguf = "qwen3",
    .head_norms = true,
};
