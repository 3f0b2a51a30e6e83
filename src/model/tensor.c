#include "model/tensor.h"

#include <stdio.h>

char *tensor_shape_text(char out[TENSOR_SHAPE_TEXT], const uint64_t *shape, uint32_t n_dims)
{
    int n = snprintf(out, TENSOR_SHAPE_TEXT, "[");

    for (uint32_t i = 0; i < n_dims && i < TENSOR_MAX_DIMS; i++)
        n += snprintf(out + n, TENSOR_SHAPE_TEXT - (size_t)n, "%s%llu", i ? ", " : "",
                      (unsigned long long)shape[i]);
    snprintf(out + n, TENSOR_SHAPE_TEXT - (size_t)n, "]");
    return out;
}
