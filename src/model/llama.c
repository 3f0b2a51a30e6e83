/* LlamaForCausalLM: grouped-query attention without biases, dense feed-forward layers. */
#include "model/arch.h"

const struct arch arch_llama = {
    .hf = "LlamaForCausalLM",
    .gguf = "llama",
    .gguf_pairs = true,
};
