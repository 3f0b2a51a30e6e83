#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "model/blocks.h"
#include "model/config_notes.h"
#include "model/config_parse.h"
#include "model/load_quant.h"
#include "model/opening.h"
#include "model/source.h"

/* Llama 3.1 in GGUF: the bands of its scaling come as divisors of the frequencies. */
static int apply_freq_factors(double *freq, uint32_t n, struct weights *w, struct err *e)
{
    struct weight *f = w->gguf ? weights_find(w, "rope_freqs.weight") : NULL;

    if (!f)
        return 0;
    if (f->t.type != K_F32 || f->t.bytes != n * sizeof(float))
        return err_set(e, ERR_BADMSG,
                       "%s: tensor rope_freqs.weight: expected %u numbers in F32, "
                       "found %llu bytes in %s",
                       f->file, n, (unsigned long long)f->t.bytes, f->t.dtype);
    for (uint32_t i = 0; i < n; i++) {
        float factor;

        memcpy(&factor, f->t.data + i * sizeof factor, sizeof factor);
        if (!(factor > 0))
            return err_set(e, ERR_BADMSG, "%s: tensor rope_freqs.weight: factor %u is %g", f->file,
                           i, (double)factor);
        freq[i] /= (double)factor;
    }
    return 0;
}

static size_t rope_bytes(const struct model *m)
{
    return (size_t)m->max_pos * (m->cfg.rope_dim / 2) * sizeof(float);
}

static int build_rope(struct model *m, struct weights *w, struct err *e)
{
    const struct kernels *k = m->k;
    double freq[MODEL_MAX_HEAD_DIM / 2], scale;
    float *host;
    int st;

    model_rope_freqs(&m->cfg, freq, &scale);
    if ((st = apply_freq_factors(freq, m->cfg.rope_dim / 2, w, e)) < 0)
        return st;
    m->cos = k->alloc(k, rope_bytes(m));
    m->sin = k->alloc(k, rope_bytes(m));
    host = malloc(2 * rope_bytes(m));
    if (m->cos && m->sin && host) {
        float *sine = host + rope_bytes(m) / sizeof(float);

        rope_fill(freq, scale, m->cfg.rope_dim / 2, m->max_pos, host, sine);
        k->copy(k, m->cos, host, rope_bytes(m));
        k->copy(k, m->sin, sine, rope_bytes(m));
    } else {
        st = err_set(e, ERR_NOMEM,
                     "no memory for the rotary table of %u positions; lower "
                     "--max-model-len",
                     m->max_pos);
    }
    free(host);
    return st;
}

static int load_layers(struct load *l)
{
    struct model *m = l->m;
    int st = 0;

    if (!(m->layers = calloc(m->n_layers, sizeof *m->layers)))
        return err_set(l->e, ERR_NOMEM, "no memory for %u layers", m->n_layers);
    for (uint32_t i = 0; st == 0 && i < m->n_layers; i++)
        st = layer_load(l, &m->layers[i], m->first_layer + i);
    return st == 0 && opening_mtp(m, l->opt) ? mtp_load(l) : st;
}

static int load_all(struct opening *o, const struct model_options *opt, struct err *e)
{
    struct load l = { .m = o->m, .w = o->w, .quant = o->quant, .opt = opt, .e = e };
    char warning[QUANT_TEXT];
    int st;

    l.total = weights_bytes(o->w);
    fingerprint_of(o->m->fingerprint, &o->m->cfg, o->w);
    if ((st = load_ends(&l)) < 0 || (st = load_layers(&l)) < 0 || (st = load_check_rest(&l)) < 0)
        return st;
    if (load_zero_scales(warning, &l))
        log_warning("%s", warning);
    if (opt->progress) /* what is not needed counts as done */
        opt->progress(opt->progress_arg, l.total, l.total);
    return 0;
}

/* float16 with W8A8 weights, wherever it comes from. */
static void log_float16(const struct opening *o, const struct model_options *opt,
                        const struct config_notes *c)
{
    const char *dtype = "", *from = "--dtype float16";
    char warning[QUANT_TEXT], text[QUANT_TEXT];

    if (opt->dtype == MODEL_DTYPE_FLOAT16)
        dtype = "float16";
    else if (opt->dtype == MODEL_DTYPE_AUTO && c->key) {
        dtype = c->dtype;
        snprintf(text, sizeof text, "\"%s\": \"%s\" in %.200s%s", c->key, c->dtype,
                 c->overridden ? "--hf-overrides" : opt->path, c->overridden ? "" : "/config.json");
        from = text;
    }
    if (quant_warning(warning, o->quant, &o->linears, dtype, from))
        log_warning("%s", warning);
}

/* What config.json and what was put over it may have meant otherwise. */
static void log_config(const struct opening *o, const struct model_options *opt)
{
    struct config_notes c;

    source_notes(&c, opt->path, opt->hf_overrides);
    log_float16(o, opt, &c);
    if (!c.dtype_known)
        log_warning("%s%s: \"%s\": \"%s\" is no type that is known here (bfloat16, float16 and "
                    "float32 are); it is left alone",
                    c.overridden ? "--hf-overrides" : opt->path, c.overridden ? "" : "/config.json",
                    c.key, c.dtype);
    if (*c.unread)
        log_warning("--hf-overrides: \"%s\" changes nothing: config.json does not have it and it "
                    "is not read here%s%s%s",
                    c.unread, *c.near ? "; did you mean \"" : "", c.near, *c.near ? "\"?" : "");
}

/* One line on how the weights are quantized. */
static void log_quant(const struct opening *o, const struct model_options *opt)
{
    char text[QUANT_TEXT];

    if (o->w->gguf) {
        log_info("%s: GGUF: %s", opt->path, weights_types(text, sizeof text, o->w));
        return;
    }
    log_info("%s: %s", opt->path, quant_text(text, o->quant, &o->linears));
    log_config(o, opt);
}

/* A layer for drafts that is there, counted or not, and stays out. */
static void log_mtp(const struct opening *o, const struct model_options *opt)
{
    const struct model_config *c = &o->m->cfg;

    if (c->mtp_layers && !opt->mtp)
        log_info("%s: leaving out %u multi-token prediction layer(s), which only speculative "
                 "decoding reads",
                 opt->path, c->mtp_layers);
    if (c->mtp_layers == 0 && weights_has_mtp(o->w, c->n_layers))
        log_info("%s: leaving out a multi-token prediction layer: num_nextn_predict_layers is 0",
                 opt->path);
}

int model_open(struct model **out, const struct kernels *k, const struct model_options *opt,
               struct err *e)
{
    bool alone = opt->part.tp_size <= 1 && opt->part.ep_size <= 1 && opt->part.head_size <= 1;
    struct opening o;
    int st = opening_begin(&o, k, opt, e);

    if (st == 0 && !alone && !opt->part.peers)
        st = err_set(e, ERR_INVAL, "a part of a model needs its peers");
    if (st == 0) {
        log_mtp(&o, opt);
        log_quant(&o, opt);
        if ((st = build_rope(o.m, o.w, e)) == 0 && (st = load_all(&o, opt, e)) == 0) {
            *out = o.m;
            o.m = NULL;
        }
    }
    opening_end(&o);
    return st;
}

void model_close(struct model *m)
{
    const struct kernels *k;

    if (!m)
        return;
    k = m->k;
    for (uint32_t i = 0; m->layers && i < m->n_layers; i++)
        layer_unload(m, &m->layers[i]);
    free(m->layers);
    mtp_unload(m);
    k->unpack_free(k, m->embed);
    k->unpack_free(k, m->head);
    k->free(k, m->final_norm, m->cfg.hidden * sizeof(float));
    k->free(k, m->final_norm_bias, m->cfg.hidden * sizeof(float));
    k->free(k, m->cos, rope_bytes(m));
    k->free(k, m->sin, rope_bytes(m));
    free(m);
}

const struct model_config *model_config(const struct model *m)
{
    return &m->cfg;
}

enum k_type model_kv_type(const struct model *m)
{
    return m->kv_type;
}

void model_kv_shape(const struct model *m, struct model_kv_shape *out)
{
    *out = (struct model_kv_shape){
        .n_layers = m->n_layers + (m->mtp != NULL),
        .kv_heads = m->kv_heads,
        .first_head = m->first_kv_head,
        .all_heads = m->cfg.kv_heads,
        .head_dim = m->cfg.kv_lora ? m->cfg.kv_lora + m->cfg.rope_dim : m->cfg.head_dim,
        .latent = m->cfg.kv_lora,
    };
}

uint64_t model_weight_bytes(const struct model *m)
{
    return m->weight_bytes;
}

const char *model_fingerprint(const struct model *m)
{
    return m->fingerprint;
}
