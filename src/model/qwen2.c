/* Qwen2ForCausalLM, also the class of Qwen2.5: as Llama, with biases on q, k and v. */
#include "model/arch.h"

const struct arch arch_qwen2 = {
    .hf = "Qwen2ForCausalLM",
    .gguf = "qwen2",
    .qkv_bias = true,
};
