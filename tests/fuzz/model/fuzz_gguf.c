/* Bytes as a GGUF file: the table, and everything that is asked of the metadata. */
#include <stdint.h>

#include "base/status.h"
#include "model/config_parse.h"
#include "model/gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads the last byte of every tensor. */
static unsigned touch(const struct gguf *g)
{
    uint64_t n;
    const struct tensor *t = gguf_tensors(g, &n);
    unsigned sum = 0;

    for (uint64_t i = 0; i < n; i++)
        if (t[i].bytes)
            sum += t[i].data[0] + t[i].data[t[i].bytes - 1];
    return sum;
}

static unsigned walk(const struct gguf *g, const char *key)
{
    struct gguf_array a;
    const unsigned char *p;
    unsigned sum = 0;
    size_t n;

    if (gguf_array(g, key, GGUF_STRING, &a, NULL) < 0)
        return 0;
    p = a.data;
    for (uint64_t i = 0; i < a.n; i++) {
        const char *s = gguf_next_string(&p, &n);

        sum += n ? (unsigned char)s[n - 1] : 0;
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct model_config c;
    struct err e = { { 0 } };
    struct gguf *g;
    volatile unsigned sum;

    if (gguf_parse(&g, data, size, &e) < 0)
        return 0;
    sum = touch(g) + walk(g, "tokenizer.ggml.tokens") + walk(g, "tokenizer.ggml.merges");
    (void)sum;
    (void)config_from_gguf(&c, g, "LlamaForCausalLM", "llama", &e);
    gguf_free(g);
    return 0;
}
