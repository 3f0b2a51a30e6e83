/* Bytes as a quantization description, and behind a zero byte as config.json: what they say of a few
 * tensors. */
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "model/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct weight weights[] = {
    { .t = { .name = "a.weight", .dtype = "I8", .type = K_I8, .n_dims = 2, .shape = { 4, 8 } } },
    { .t = { .name = "b.weight",
             .dtype = "BF16",
             .type = K_BF16,
             .n_dims = 2,
             .shape = { 4, 8 } } },
    { .t = { .name = "c.weight",
             .dtype = "F8_E4M3",
             .type = K_F8_E4M3,
             .n_dims = 2,
             .shape = { 4, 8 } } },
    { .t = { .name = "c.weight_scale",
             .dtype = "F32",
             .type = K_F32,
             .n_dims = 2,
             .shape = { 4, 1 } } },
};

/* Everything that is asked of it, of each tensor alone: one that is refused hides no other. */
static void ask(const struct quant *q)
{
    static const char *const flags[] = { NULL, "ascend", "fp8", "compressed-tensors", "gptq" };
    char text[QUANT_TEXT];
    struct quant_count n;
    struct err e = { { 0 } };

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        (void)quant_check_flag(q, flags[i], "dir", &e);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        const struct weights w = { .w = &weights[i], .n = 1, .n_layers = UINT32_MAX };

        weights[i].file = "model.safetensors";
        if (quant_check(q, &w, &n, &e) == 0)
            (void)quant_text(text, q, &n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t len = zero ? (size_t)(zero - data) : size;
    struct quant *q = quant_new();
    struct err e = { { 0 } };

    if (!q)
        return 0;
    if (zero &&
        quant_read_config(q, (const char *)zero + 1, size - len - 1, NULL, "config.json", &e) == 0)
        ask(q);
    if (quant_read_description(q, (const char *)data, len, "quant_model_description.json", &e) == 0)
        ask(q);
    quant_close(q);
    return 0;
}
