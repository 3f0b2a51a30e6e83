#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "model/arch.h"

#define SAMPLE_BYTES 64
#define SAMPLES      8

/* h = SHA-256(h, parts). */
static void chain(struct hash256 *h, const void *a, size_t na, const void *b, size_t nb)
{
    const struct hash_part parts[] = { { h->b, sizeof h->b }, { a, na }, { b, nb } };
    struct hash256 next;

    hash_sha256(&next, parts, 3);
    *h = next;
}

static void add_config(struct hash256 *h, const struct model_config *c)
{
    char text[512];
    int n = snprintf(text, sizeof text,
                     "%s %u %u %u %u/%u/%u %u eps %a rope %a %u %d %a %a %a %u %a %a "
                     "%a %a %a",
                     c->arch, c->n_layers, c->hidden, c->ffn, c->heads, c->kv_heads, c->head_dim,
                     c->vocab, (double)c->norm_eps, c->rope_theta, c->rope_dim,
                     (int)c->rope_scaling, c->rope_factor, c->rope_low_freq, c->rope_high_freq,
                     c->rope_original, c->yarn_beta_fast, c->yarn_beta_slow, c->yarn_attn_factor,
                     c->yarn_mscale, c->yarn_mscale_all_dim);

    chain(h, text, (size_t)n, NULL, 0);
}

/* Apart from the above, so that models without experts keep the fingerprint that they had. */
static void add_router(struct hash256 *h, const struct model_config *c)
{
    char text[256];
    int n = snprintf(text, sizeof text, "experts %u of %u groups %u of %u %d %d %d scale %a",
                     c->experts_per_token, c->experts, c->expert_top_groups, c->expert_groups,
                     c->expert_sigmoid, c->expert_group_two, c->expert_normalize, c->expert_scale);

    chain(h, text, (size_t)n, NULL, 0);
}

static void add_tensor(struct hash256 *h, const struct tensor *t)
{
    char text[TENSOR_MAX_NAME + 32 + TENSOR_SHAPE_TEXT], shape[TENSOR_SHAPE_TEXT];
    uint64_t piece = t->bytes < SAMPLE_BYTES ? t->bytes : SAMPLE_BYTES;
    int n = snprintf(text, sizeof text, "%s %s %s", t->name, t->dtype,
                     tensor_shape_text(shape, t->shape, t->n_dims));

    chain(h, text, (size_t)n, NULL, 0);
    for (uint64_t i = 0; piece && i < SAMPLES; i++)
        chain(h, t->data + (t->bytes - piece) / (SAMPLES - 1) * i, piece, NULL, 0);
}

/* All tensors count, on every stage: the stages of one instance have the same fingerprint. */
void fingerprint_of(char out[65], const struct model_config *c, const struct weights *w)
{
    struct hash256 h = { { 0 } };

    add_config(&h, c);
    if (c->experts)
        add_router(&h, c);
    for (size_t i = 0; i < w->n; i++) {
        add_tensor(&h, &w->w[i].t);
        weights_drop(&w->w[i], 0, w->w[i].t.bytes); /* a sample brings its neighbours */
    }
    hash_hex(out, &h);
}
