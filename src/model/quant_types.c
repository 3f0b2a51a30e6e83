/* How each matrix of a quantized folder is stored, and which tensors stand beside it. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "model/quant.h"
#include "model/quant_targets.h"

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), m = strlen(tail);

    return n >= m && strcmp(s + n - m, tail) == 0;
}

static const char *const type_names[QUANT_TYPES] = {
    [QUANT_FLOAT] = "FLOAT",
    [QUANT_W8A8] = "W8A8",
    [QUANT_W8A8_DYNAMIC] = "W8A8_DYNAMIC",
    [QUANT_INT8_CHANNEL] = "int8 with a scale a row",
    [QUANT_FP8_BLOCK] = "F8_E4M3 with a scale a block",
};

const char *quant_type_name(enum quant_type t)
{
    return type_names[t];
}

/* deq_scale and quant_bias say all of a static linear: what the older layout has besides is the
 * same in another form, and its bias is part of quant_bias. */
static const struct quant_side w8a8[] = {
    { "input_scale", QUANT_NEEDED }, { "input_offset", QUANT_NEEDED },
    { "deq_scale", QUANT_NEEDED },   { "quant_bias", QUANT_NEEDED },
    { "weight_scale", QUANT_MAYBE }, { "weight_offset", QUANT_MAYBE_0 },
    { "bias", QUANT_MAYBE },         { NULL, QUANT_MAYBE },
};
static const struct quant_side w8a8_dynamic[] = {
    { "weight_scale", QUANT_NEEDED },
    { "weight_offset", QUANT_MAYBE_0 },
    { NULL, QUANT_MAYBE },
};
static const struct quant_side int8_channel[] = {
    { "weight_scale", QUANT_NEEDED },
    { "weight_zero_point", QUANT_MAYBE_0 },
    { NULL, QUANT_MAYBE },
};
static const struct quant_side fp8_block[] = {
    { "weight_scale_inv", QUANT_NEEDED },
    { NULL, QUANT_MAYBE },
};
static const struct quant_side none[] = { { NULL, QUANT_MAYBE } };

const struct quant_side *quant_sides(enum quant_type t)
{
    static const struct quant_side *const sides[QUANT_TYPES] = {
        [QUANT_FLOAT] = none,
        [QUANT_W8A8] = w8a8,
        [QUANT_W8A8_DYNAMIC] = w8a8_dynamic,
        [QUANT_INT8_CHANNEL] = int8_channel,
        [QUANT_FP8_BLOCK] = fp8_block,
    };

    return sides[t];
}

const char *quant_side_name(char out[TENSOR_MAX_NAME], const char *weight, const char *suffix)
{
    size_t n = strlen(weight), stem = n - (sizeof "weight" - 1);

    if (!ends_with(weight, ".weight") || stem + strlen(suffix) >= TENSOR_MAX_NAME)
        return NULL;
    memcpy(out, weight, stem);
    strcpy(out + stem, suffix);
    return out;
}

static bool is_float(enum k_type t)
{
    return t == K_F32 || t == K_F16 || t == K_BF16;
}

static int contradiction(const struct quant *q, const struct weight *w, const char *said,
                         const char *expected, struct err *e)
{
    return err_set(e, ERR_BADMSG,
                   "%s: tensor %s: expected %s, because %s calls it %s, found %s; the description "
                   "and the weights are of different checkpoints",
                   w->file, w->t.name, expected, quant_file(q), said, w->t.dtype);
}

/* The type that a description has for this tensor. */
static int by_description(const struct quant *q, const struct weight *w, enum quant_type *out,
                          struct err *e)
{
    const char *said = quant_entry(q, w->t.name);

    *out = QUANT_FLOAT;
    if (!said && is_float(w->t.type))
        return 0;
    if (!said)
        return err_set(e, ERR_BADMSG,
                       "%s: tensor %s is stored as %s, but %s has no entry for it: expected "
                       "W8A8, W8A8_DYNAMIC or FLOAT",
                       w->file, w->t.name, w->t.dtype, quant_file(q));
    if (strcmp(said, "FLOAT") == 0)
        return is_float(w->t.type) ? 0 : contradiction(q, w, said, "BF16, F16 or F32", e);
    if (strcmp(said, "W8A8") == 0)
        *out = QUANT_W8A8;
    else if (strcmp(said, "W8A8_DYNAMIC") == 0)
        *out = QUANT_W8A8_DYNAMIC;
    else
        return err_set(e, ERR_UNSUPPORTED,
                       "%s: tensor %s is quantized as \"%.32s\", which is not supported; W8A8, "
                       "W8A8_DYNAMIC and FLOAT are",
                       quant_file(q), w->t.name, said);
    return w->t.type == K_I8 ? 0 : contradiction(q, w, said, "I8", e);
}

static int unexplained(const struct quant *q, const struct weight *w, struct err *e)
{
    if (quant_format(q) != QUANT_NONE)
        return err_set(e, ERR_BADMSG,
                       "%s: tensor %s is stored as %s, but the checkpoint is %s (%s)", w->file,
                       w->t.name, w->t.dtype, quant_format_name(quant_format(q)), quant_file(q));
    if (w->t.type == K_I8)
        return err_set(e, ERR_BADMSG,
                       "%s: tensor %s is stored as I8, but nothing says how to read it: expected "
                       "quant_model_description.json in the folder (--quantization ascend), or "
                       "\"quantization_config\" in config.json (compressed-tensors)",
                       w->file, w->t.name);
    return err_set(e, ERR_BADMSG,
                   "%s: tensor %s is stored as F8_E4M3, but config.json has no "
                   "\"quantization_config\" that says how to read it (--quantization fp8)",
                   w->file, w->t.name);
}

/* What "targets" and "ignore" say of this weight, against what it is. */
static int check_targets(const struct quant *q, const struct weight *w, struct err *e)
{
    bool quantized = w->t.type == K_I8;
    char module[TENSOR_MAX_NAME];
    size_t stem;
    const char *entry;
    enum quant_wanted wanted;

    if (!ends_with(w->t.name, ".weight") || (!quantized && !is_float(w->t.type)))
        return 0;
    stem = strlen(w->t.name) - strlen(".weight");
    stem = stem < sizeof module ? stem : sizeof module - 1;
    memcpy(module, w->t.name, stem);
    module[stem] = '\0';
    wanted = quant_targets_of(quant_targets(q), module, &entry);
    if (quantized && (wanted == QUANT_IGNORED || wanted == QUANT_NOT_TARGET))
        return err_set(e, ERR_BADMSG,
                       "%s: tensor %s is stored as I8, but by %s it is not quantized (%s%.100s%s); "
                       "the configuration and the weights are of different checkpoints",
                       w->file, w->t.name, quant_file(q),
                       wanted == QUANT_IGNORED ? "\"ignore\" has \"" : "no \"targets\" name it",
                       entry, wanted == QUANT_IGNORED ? "\"" : "");
    if (!quantized && wanted == QUANT_WANTED)
        return err_set(e, ERR_BADMSG,
                       "%s: tensor %s: expected I8, because %s quantizes it (\"targets\" has "
                       "\"%.100s\" and \"ignore\" does not name it), found %s; the configuration "
                       "and the weights are of different checkpoints",
                       w->file, w->t.name, quant_file(q), entry, w->t.dtype);
    return 0;
}

int quant_type_of(const struct quant *q, const struct weight *w, enum quant_type *out,
                  struct err *e)
{
    enum quant_format f = quant_format(q);
    int st;

    if (f == QUANT_ASCEND)
        return by_description(q, w, out, e);
    *out = QUANT_FLOAT;
    if (f == QUANT_COMPRESSED && (st = check_targets(q, w, e)) < 0)
        return st;
    if (w->t.type != K_I8 && w->t.type != K_F8_E4M3)
        return 0;
    if (f == QUANT_FP8 && w->t.type == K_F8_E4M3)
        *out = QUANT_FP8_BLOCK;
    else if (f == QUANT_COMPRESSED && w->t.type == K_I8)
        *out = QUANT_INT8_CHANNEL;
    else
        return unexplained(q, w, e);
    return 0;
}

const char *quant_text(char out[QUANT_TEXT], const struct quant *q, const struct quant_count *n)
{
    bool quantized = quant_format(q) != QUANT_NONE;
    const char *between = " ", *slash = strrchr(quant_file(q), '/');
    int at = quantized
                 ? snprintf(out, QUANT_TEXT, "quantized as %s (%.200s): linears",
                            quant_format_name(quant_format(q)), slash ? slash + 1 : quant_file(q))
                 : snprintf(out, QUANT_TEXT, "not quantized: linears");

    for (int i = QUANT_TYPES - 1; i >= 0; i--)
        if (n->n[i]) {
            at += snprintf(out + at, QUANT_TEXT - (size_t)at, "%s%zu %s", between, n->n[i],
                           type_names[i]);
            between = ", ";
        }
    return out;
}

bool quant_warning(char out[QUANT_TEXT], const struct quant *q, const struct quant_count *n,
                   const char *dtype, const char *from)
{
    size_t int8 = n->n[QUANT_W8A8] + n->n[QUANT_W8A8_DYNAMIC];

    if (quant_format(q) != QUANT_ASCEND || int8 == 0 ||
        (strcmp(dtype, "float16") != 0 && strcmp(dtype, "half") != 0))
        return false;
    snprintf(out, QUANT_TEXT,
             "%.300s with W8A8 weights is served here, but an NPU stops at it with \"Tensor scale "
             "not implemented for DT_FLOAT16\"; say \"bfloat16\" there",
             from);
    return true;
}
