#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/config_parse.h"
#include "model/gguf.h"
#include "model/source.h"
#include "sys/map.h"

int model_read_config(struct model_config *out, const char *path, struct err *e)
{
    const struct arch *arch;
    struct map map = { 0 };
    struct gguf *g = NULL;
    bool is_gguf;
    int st = source_is_gguf(&is_gguf, path, e);

    if (st < 0)
        return st;
    if (!is_gguf)
        return source_from_dir(&arch, out, path, e);
    if ((st = map_open(&map, path, e)) == 0 && ((st = gguf_parse(&g, map.data, map.size, e)) < 0 ||
                                                (st = source_from_gguf(&arch, out, g, e)) < 0))
        err_prefix(e, st, "%s", path);
    gguf_free(g);
    map_close(&map);
    return st;
}

/* Opens the files at opt->path and finds architecture and configuration. */
static int open_source(struct model *m, struct weights **w, const char *path, struct err *e)
{
    bool is_gguf;
    int st = source_is_gguf(&is_gguf, path, e);

    if (st < 0)
        return st;
    if (is_gguf) {
        if ((st = weights_open_gguf(w, path, e)) == 0 &&
            (st = source_from_gguf(&m->arch, &m->cfg, weights_gguf(*w), e)) < 0)
            err_prefix(e, st, "%s", path);
        return st < 0 ? st : weights_translate(*w, m->arch->names, e);
    }
    if ((st = source_from_dir(&m->arch, &m->cfg, path, e)) < 0)
        return st;
    return weights_open_dir(w, path, e);
}

static int choose_types(struct model *m, const struct model_options *opt, struct err *e)
{
    const char *kv = opt->kv_dtype;

    m->math = opt->dtype == MODEL_DTYPE_FLOAT32 ? K_MATH_FLOAT : K_MATH_FAST;
    m->kv_type = opt->dtype == MODEL_DTYPE_FLOAT32 ? K_F32 : K_F16;
    if (!kv || strcmp(kv, "auto") == 0)
        return 0;
    if (strcmp(kv, "float32") == 0)
        m->kv_type = K_F32;
    else if (strcmp(kv, "float16") == 0)
        m->kv_type = K_F16;
    else
        return err_set(e, ERR_UNSUPPORTED,
                       "--kv-cache-dtype %s is not supported; auto, float16 and float32 are", kv);
    return 0;
}

static int choose_stage(struct model *m, const struct model_options *opt, struct err *e)
{
    m->first_layer = opt->first_layer;
    m->n_layers = opt->n_layers ? opt->n_layers : m->cfg.n_layers;
    if (m->first_layer >= m->cfg.n_layers || m->n_layers > m->cfg.n_layers - m->first_layer)
        return err_set(e, ERR_RANGE, "%s: layers %u to %u asked for, but the model has %u",
                       opt->path, m->first_layer, m->first_layer + m->n_layers - 1,
                       m->cfg.n_layers);
    m->max_pos = opt->max_model_len ? opt->max_model_len : m->cfg.max_position;
    return 0;
}

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

static int load_all(struct model *m, struct weights *w, const struct model_options *opt,
                    struct err *e)
{
    struct load l = { .m = m, .w = w, .opt = opt, .e = e };
    int st;

    weights_select(w, m->first_layer, m->n_layers);
    l.total = weights_bytes(w);
    fingerprint_of(m->fingerprint, &m->cfg, w);
    if ((st = load_ends(&l)) < 0 || (st = m->arch->load(&l)) < 0 || (st = load_check_rest(&l)) < 0)
        return st;
    if (opt->progress) /* what is not needed counts as done */
        opt->progress(opt->progress_arg, l.total, l.total);
    return 0;
}

int model_open(struct model **out, const struct kernels *k, const struct model_options *opt,
               struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    struct weights *w = NULL;
    int st;

    if (!m)
        return err_set(e, ERR_NOMEM, "no memory");
    m->k = k;
    if ((st = open_source(m, &w, opt->path, e)) < 0 || (st = choose_types(m, opt, e)) < 0 ||
        (st = choose_stage(m, opt, e)) < 0 || (st = m->arch->check(m, e)) < 0 ||
        (st = build_rope(m, w, e)) < 0 || (st = load_all(m, w, opt, e)) < 0) {
        weights_close(w);
        model_close(m);
        return st;
    }
    weights_close(w);
    *out = m;
    return 0;
}

void model_close(struct model *m)
{
    const struct kernels *k;

    if (!m)
        return;
    k = m->k;
    if (m->arch)
        m->arch->unload(m);
    k->unpack_free(k, m->embed);
    k->unpack_free(k, m->head);
    k->free(k, m->final_norm, m->cfg.hidden * sizeof(float));
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

uint64_t model_weight_bytes(const struct model *m)
{
    return m->weight_bytes;
}

const char *model_fingerprint(const struct model *m)
{
    return m->fingerprint;
}
