/* Bytes as a safetensors file. */
#include <stdint.h>

#include "base/status.h"
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct safetensors *s;
    struct err e = { { 0 } };
    const struct tensor *t;
    volatile unsigned sum = 0;
    size_t n;

    if (safetensors_parse(&s, data, size, &e) < 0)
        return 0;
    t = safetensors_tensors(s, &n);
    for (size_t i = 0; i < n; i++)
        if (t[i].bytes)
            sum += t[i].data[0] + t[i].data[t[i].bytes - 1];
    (void)sum;
    safetensors_free(s);
    return 0;
}
