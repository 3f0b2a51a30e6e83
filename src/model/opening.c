/* From a path to everything that is known of a model before its weights are read. */
#include "model/opening.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/blocks.h"
#include "model/gguf.h"
#include "model/source.h"
#include "sys/map.h"

static int refuse_overrides(const char *path, const char *overrides, struct err *e)
{
    return overrides
               ? err_set(e, ERR_UNSUPPORTED,
                         "%s: --hf-overrides changes config.json, and a GGUF file has none", path)
               : 0;
}

int model_read_config(struct model_config *out, const char *path, const char *hf_overrides,
                      struct err *e)
{
    const struct arch *arch;
    struct map map = { 0 };
    struct gguf *g = NULL;
    bool is_gguf;
    int st = source_is_gguf(&is_gguf, path, e);

    if (st < 0)
        return st;
    if (!is_gguf)
        return source_from_dir(&arch, out, path, hf_overrides, e);
    if ((st = refuse_overrides(path, hf_overrides, e)) < 0)
        return st;
    if ((st = map_open(&map, path, e)) == 0 && ((st = gguf_parse(&g, map.data, map.size, e)) < 0 ||
                                                (st = source_from_gguf(&arch, out, g, e)) < 0))
        err_prefix(e, st, "%s", path);
    gguf_free(g);
    map_close(&map);
    return st;
}

/* Opens the files at opt->path and finds architecture and configuration. */
static int open_source(struct model *m, struct weights **w, const struct model_options *opt,
                       struct err *e)
{
    const char *path = opt->path;
    bool is_gguf;
    int st = source_is_gguf(&is_gguf, path, e);

    if (st == 0 && is_gguf)
        st = refuse_overrides(path, opt->hf_overrides, e);
    if (st < 0)
        return st;
    if (is_gguf) {
        if ((st = weights_open_gguf(w, path, e)) == 0 &&
            (st = source_from_gguf(&m->arch, &m->cfg, weights_gguf(*w), e)) < 0)
            err_prefix(e, st, "%s", path);
        return st < 0 ? st : weights_translate(*w, gguf_names, e);
    }
    if ((st = source_from_dir(&m->arch, &m->cfg, path, opt->hf_overrides, e)) < 0)
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
    m->part = opt->part;
    return part_choose(m, e);
}

/* How the weights are quantized; a GGUF file's blocks say that themselves. */
static int open_quant(struct opening *o, const struct model_options *opt, struct err *e)
{
    int st;

    if (o->w->gguf)
        return quant_open_gguf(&o->quant, opt->quantization, opt->path, e);
    if ((st = quant_open(&o->quant, opt->path, opt->hf_overrides, e)) < 0 ||
        (st = quant_check_flag(o->quant, opt->quantization, opt->path, e)) < 0)
        return st;
    return quant_check(o->quant, o->w, &o->linears, e);
}

bool opening_mtp(const struct model *m, const struct model_options *opt)
{
    return opt->mtp && m->first_layer + m->n_layers == m->cfg.n_layers;
}

/* Multi-token prediction layers stand behind the others. */
static void select_layers(const struct model *m, struct weights *w, const struct model_options *opt)
{
    weights_select(w, m->first_layer, m->n_layers + opening_mtp(m, opt));
    weights_select_experts(w, m->experts.from, m->experts.n);
}

int opening_begin(struct opening *o, const struct kernels *k, const struct model_options *opt,
                  struct err *e)
{
    struct model *m = calloc(1, sizeof *m);
    int st;

    *o = (struct opening){ .m = m };
    if (!m)
        return err_set(e, ERR_NOMEM, "no memory");
    m->k = k;
    if ((st = open_source(m, &o->w, opt, e)) < 0 || (st = choose_types(m, opt, e)) < 0 ||
        (st = layer_check(m, e)) < 0 || (st = choose_stage(m, opt, e)) < 0 ||
        (st = weights_check_layers(o->w, m->cfg.n_layers, m->cfg.mtp_layers, e)) < 0)
        return st;
    select_layers(m, o->w, opt);
    return open_quant(o, opt, e);
}

void opening_end(struct opening *o)
{
    quant_close(o->quant);
    weights_close(o->w);
    model_close(o->m);
    *o = (struct opening){ 0 };
}
