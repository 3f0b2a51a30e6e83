#include "ops/rope_fit.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

#include "base/status.h"

#define MIN_CONTEXT 64u
#define MAX_CONTEXT (1u << 24)

static bool fits(const struct model_config *c, const float *divisors, double *plain, double *scaled)
{
    struct model_config base = *c;
    uint32_t n = c->rope_dim / 2;
    double unused;

    base.rope_scaling = ROPE_NONE;
    model_rope_freqs(&base, plain, &unused);
    model_rope_freqs(c, scaled, &unused);
    for (uint32_t i = 0; i < n; i++)
        if (!(fabs(plain[i] / scaled[i] / (double)divisors[i] - 1) < 1e-4))
            return false;
    return true;
}

int rope_fit_llama3(struct model_config *c, const float *divisors, struct err *e)
{
    struct model_config try = *c;
    uint32_t n = c->rope_dim / 2;
    double *freq = malloc(2 * n * sizeof *freq);
    bool found = false;

    if (!freq)
        return err_set(e, ERR_NOMEM, "no memory");
    try.rope_scaling = ROPE_LLAMA3;
    try.rope_low_freq = 1;
    try.rope_high_freq = 4;
    try.rope_factor = 1;
    for (uint32_t i = 0; i < n; i++)
        try.rope_factor = fmax(try.rope_factor, (double)divisors[i]);
    for (uint32_t length = MIN_CONTEXT; !found && length <= MAX_CONTEXT; length *= 2) {
        try.rope_original = length;
        found = fits(&try, divisors, freq, freq + n);
    }
    free(freq);
    if (!found)
        return err_set(e, ERR_UNSUPPORTED,
                       "the file's frequency factors (rope_freqs.weight) are not those of Llama "
                       "3.1's scaling, and config.json has no other way to say them");
    *c = try;
    return 0;
}
