/* Rotary tables. Frequencies and angles are float64; only the finished cosines and sines are
 * rounded to float32.
 *
 * Linear: Chen et al., "Extending context window of large language models via position
 * interpolation". YaRN: Peng et al., "YaRN: efficient context window extension", with the range
 * rounded outwards as every published implementation has it. llama3: the three bands of Llama
 * 3.1. */
#include <math.h>

#include <stddef.h>

#include "model/arch.h"
#include "model/config_parse.h"

static void scale_llama3(const struct model_config *c, double *freq, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        double turns = c->rope_original * freq[i] / (2 * M_PI); /* over the original context */
        double keep = (turns - c->rope_low_freq) / (c->rope_high_freq - c->rope_low_freq);

        keep = fmin(fmax(keep, 0), 1);
        freq[i] = (1 - keep) * freq[i] / c->rope_factor + keep * freq[i];
    }
}

/* The (fractional) dimension whose frequency turns so often over the original context. */
static double yarn_dim(const struct model_config *c, double turns)
{
    return c->rope_dim * log(c->rope_original / (turns * 2 * M_PI)) / (2 * log(c->rope_theta));
}

static void scale_yarn(const struct model_config *c, double *freq, uint32_t n)
{
    double low = fmax(floor(yarn_dim(c, c->yarn_beta_fast)), 0);
    double high = fmin(ceil(yarn_dim(c, c->yarn_beta_slow)), c->rope_dim - 1);

    if (low == high)
        high += 0.001;
    for (uint32_t i = 0; i < n; i++) {
        double stretch = fmin(fmax((i - low) / (high - low), 0), 1);

        freq[i] = stretch * freq[i] / c->rope_factor + (1 - stretch) * freq[i];
    }
}

static double yarn_mscale(double factor, double m)
{
    return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1;
}

static double yarn_scale(const struct model_config *c)
{
    if (c->yarn_attn_factor > 0)
        return c->yarn_attn_factor;
    if (c->yarn_mscale > 0 && c->yarn_mscale_all_dim > 0)
        return yarn_mscale(c->rope_factor, c->yarn_mscale) /
               yarn_mscale(c->rope_factor, c->yarn_mscale_all_dim);
    return yarn_mscale(c->rope_factor, 1);
}

void model_rope_freqs(const struct model_config *c, double *inv_freq, double *scale)
{
    uint32_t n = c->rope_dim / 2;

    *scale = 1;
    for (uint32_t i = 0; i < n; i++)
        inv_freq[i] = pow(c->rope_theta, -2.0 * i / c->rope_dim);
    switch (c->rope_scaling) {
    case ROPE_NONE:
        break;
    case ROPE_LINEAR:
        for (uint32_t i = 0; i < n; i++)
            inv_freq[i] /= c->rope_factor;
        break;
    case ROPE_LLAMA3:
        scale_llama3(c, inv_freq, n);
        break;
    case ROPE_YARN:
        scale_yarn(c, inv_freq, n);
        *scale = yarn_scale(c);
        break;
    }
}

/* DeepSeek has the correction for longer contexts in the softmax, squared because it stands for a
 * factor on queries and keys, of which only a part turns. */
double rope_latent_scale(const struct model_config *c)
{
    double m = 1;

    if (c->rope_scaling == ROPE_YARN && c->yarn_mscale_all_dim > 0)
        m = yarn_mscale(c->rope_factor, c->yarn_mscale_all_dim);
    return m * m / sqrt((double)c->head_dim);
}

void rope_fill(const double *inv_freq, double scale, uint32_t n, uint32_t max_pos, float *cos_out,
               float *sin_out)
{
    for (uint32_t pos = 0; pos < max_pos; pos++)
        for (uint32_t i = 0; i < n; i++) {
            double angle = pos * inv_freq[i];

            cos_out[(size_t)pos * n + i] = (float)(cos(angle) * scale);
            sin_out[(size_t)pos * n + i] = (float)(sin(angle) * scale);
        }
}

void model_rope_table(const struct model_config *c, uint32_t max_pos, float *cos_out,
                      float *sin_out)
{
    double freq[MODEL_MAX_HEAD_DIM / 2], scale;

    model_rope_freqs(c, freq, &scale);
    rope_fill(freq, scale, c->rope_dim / 2, max_pos, cos_out, sin_out);
}
