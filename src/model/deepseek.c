/* DeepseekV3ForCausalLM (V3, V3.1, R1) and DeepseekV2ForCausalLM: latent attention and experts.
 * How V2 and V3 choose experts differs, but that is in the configuration; a GGUF file does not
 * tell them apart. */
#include "model/arch.h"

const struct arch arch_deepseek_v3 = {
    .hf = "DeepseekV3ForCausalLM",
    .gguf = "deepseek2",
    .latent = true,
    .experts = true,
};

const struct arch arch_deepseek_v2 = {
    .hf = "DeepseekV2ForCausalLM",
    .gguf = "deepseek2",
    .latent = true,
    .experts = true,
};
