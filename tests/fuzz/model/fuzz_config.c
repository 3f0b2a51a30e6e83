/* Bytes as config.json, and behind a zero byte as generation_config.json. A configuration that is
 * accepted must give finite frequencies. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "model/config_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static double freq[MODEL_MAX_HEAD_DIM / 2];
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t len = zero ? (size_t)(zero - data) : size;
    struct model_config c;
    struct err e = { { 0 } };
    double scale;

    if (config_from_json(&c, (const char *)data, len, zero ? (const char *)zero + 1 : NULL,
                         zero ? size - len - 1 : 0, NULL, &e) < 0)
        return 0;
    model_rope_freqs(&c, freq, &scale);
    assert(isfinite(scale));
    for (uint32_t i = 0; i < c.rope_dim / 2; i++)
        assert(isfinite(freq[i]));
    return 0;
}
