/* What stands beside a quantized weight, made into what the backend packs. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "model/arch.h"
#include "model/load_quant.h"

/* The tensor beside a weight; NULL if there is none (quant_check has refused what may not be). */
static struct weight *side(struct load *l, const struct weight *w, const char *suffix)
{
    char name[TENSOR_MAX_NAME];
    struct weight *s = quant_side_name(name, w->t.name, suffix) ? weights_find(l->w, name) : NULL;

    if (s)
        s->used = true;
    return s;
}

static int need_side(struct load *l, const struct weight *w, const char *suffix,
                     struct weight **out)
{
    *out = side(l, w, suffix);
    return *out ? 0
                : err_set(l->e, ERR_BADMSG, "%s: tensor %s: its %s is missing", w->file, w->t.name,
                          suffix);
}

static int check_numbers(struct load *l, const struct weight *s, uint64_t rows, uint64_t cols,
                         const char *types)
{
    const uint64_t two[2] = { rows, cols };
    char want[TENSOR_SHAPE_TEXT], found[TENSOR_SHAPE_TEXT];
    uint64_t n = 1;

    for (uint32_t i = 0; i < s->t.n_dims; i++)
        n *= s->t.shape[i];
    /* One column may be written without its 1, and one number as no array at all. */
    if (n != rows * cols || s->t.n_dims > 2 || (cols > 1 && s->t.shape[0] != rows))
        return err_set(l->e, ERR_BADMSG, "%s: tensor %s: expected shape %s, found %s", s->file,
                       s->t.name, tensor_shape_text(want, two, cols > 1 || rows > 1 ? 2 : 1),
                       tensor_shape_text(found, s->t.shape, s->t.n_dims));
    if (!strstr(types, s->t.dtype))
        return err_set(l->e, ERR_BADMSG, "%s: tensor %s: expected a dtype of %s, found %s", s->file,
                       s->t.name, types, s->t.dtype);
    return 0;
}

/* Float32 bits in the low half of an I64, however it was extended: how deq_scale is stored for
 * float16 models. */
static void from_wide(float *out, const unsigned char *data, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        memcpy(&out[i], data + i * sizeof(int64_t), sizeof *out);
}

/* rows x cols numbers as float32; *out is the caller's to free. */
static int read_numbers(struct load *l, float **out, const struct weight *s, uint64_t rows,
                        uint64_t cols, const char *types)
{
    uint64_t n = rows * cols;
    int st = check_numbers(l, s, rows, cols, types);

    if (st < 0)
        return st;
    if (!(*out = malloc(n * sizeof **out)))
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", s->t.name);
    if (strcmp(s->t.dtype, "I64") == 0)
        from_wide(*out, s->t.data, n);
    else
        k_dequant(s->t.type, *out, s->t.data, n);
    for (uint64_t i = 0; i < n; i++)
        if (!isfinite((*out)[i]))
            return err_set(l->e, ERR_BADMSG, "%s: tensor %s: number %llu is %g", s->file, s->t.name,
                           (unsigned long long)i, (double)(*out)[i]);
    return 0;
}

/* Offsets and zero points of symmetric weights. */
static int check_zeros(struct load *l, const struct weight *w, const char *suffix, uint64_t rows)
{
    const struct weight *s = side(l, w, suffix);
    float *v = NULL;
    int st;

    if (!s)
        return 0;
    st = read_numbers(l, &v, s, rows, 1, "BF16, F16, F32 or I8");
    for (uint64_t i = 0; st == 0 && i < rows; i++)
        if (v[i] != 0)
            st = err_set(l->e, ERR_UNSUPPORTED,
                         "%s: tensor %s: number %llu is %g: asymmetric weights are not supported, "
                         "all must be 0",
                         s->file, s->t.name, (unsigned long long)i, (double)v[i]);
    free(v);
    return st;
}

static int one_number(struct load *l, float *out, const struct weight *w, const char *suffix,
                      const char *types)
{
    struct weight *s;
    float *v = NULL;
    int st = need_side(l, w, suffix, &s);

    if (st == 0 && (st = read_numbers(l, &v, s, 1, 1, types)) == 0)
        *out = *v;
    free(v);
    return st;
}

static int read_bias(struct load *l, int32_t **out, const struct weight *w, uint32_t rows)
{
    struct weight *s;
    int st = need_side(l, w, "quant_bias", &s);

    if (st < 0 || (st = check_numbers(l, s, rows, 1, "I32")) < 0)
        return st;
    if (!(*out = malloc(rows * sizeof **out)))
        return err_set(l->e, ERR_NOMEM, "no memory to load tensor %s", s->t.name);
    memcpy(*out, s->t.data, rows * sizeof **out);
    return 0;
}

static void note_zeros(struct load *l, const struct weight *s, const float *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        if (v[i] != 0)
            return;
    if (l->n_zero_scales++ == 0)
        l->zero_scale = s;
}

bool load_zero_scales(char out[QUANT_TEXT], const struct load *l)
{
    char more[64] = "";

    if (l->n_zero_scales == 0)
        return false;
    if (l->n_zero_scales > 1)
        snprintf(more, sizeof more, " (and %u more like it)", l->n_zero_scales - 1);
    snprintf(
        out, QUANT_TEXT,
        "%.200s: tensor %.160s%s: all its numbers are 0, so that what it scales gives nothing; "
        "was it exported whole?",
        l->zero_scale->file, l->zero_scale->t.name, more);
    return true;
}

static int read_scale(struct load *l, float **out, const struct weight *w, const char *suffix,
                      uint32_t rows, uint32_t cols, const char *types)
{
    struct weight *s;
    int st = need_side(l, w, suffix, &s);

    if (st < 0 || (st = read_numbers(l, out, s, rows, cols, types)) < 0)
        return st;
    note_zeros(l, s, *out, (uint64_t)rows * cols);
    return 0;
}

/* Its bias is not read: quant_bias has it in it. */
static int static_sides(struct load *l, const struct weight *w, uint32_t rows, struct load_sides *s)
{
    struct k_static *f = &s->fixed;
    int st;

    if ((st = one_number(l, &f->input_scale, w, "input_scale", "BF16, F16 or F32")) < 0 ||
        (st = one_number(l, &f->input_offset, w, "input_offset", "BF16, F16, F32 or I8")) < 0 ||
        (st = read_scale(l, &s->scale, w, "deq_scale", rows, 1, "F32 or I64")) < 0 ||
        (st = read_bias(l, &s->bias, w, rows)) < 0)
        return st;
    if (!(f->input_scale > 0))
        return err_set(l->e, ERR_BADMSG, "%s: tensor %s: its input_scale is %g; it must be above 0",
                       w->file, w->t.name, (double)f->input_scale);
    f->deq = s->scale;
    f->bias = s->bias;
    return 0;
}

int load_sides(struct load *l, const struct weight *w, enum quant_type t, uint32_t rows,
               uint32_t cols, struct load_sides *s)
{
    static const char floats[] = "BF16, F16 or F32";
    int st = 0;

    for (const struct quant_side *i = quant_sides(t); st == 0 && i->suffix; i++)
        if (i->rule == QUANT_MAYBE_0)
            st = check_zeros(l, w, i->suffix, rows);
        else
            side(l, w, i->suffix);
    if (st < 0)
        return st;
    switch (t) {
    case QUANT_W8A8:
        return static_sides(l, w, rows, s);
    case QUANT_W8A8_DYNAMIC:
    case QUANT_INT8_CHANNEL:
        return read_scale(l, &s->scale, w, "weight_scale", rows, 1, floats);
    case QUANT_FP8_BLOCK:
        return read_scale(l, &s->scale, w, "weight_scale_inv", (rows - 1) / K_F8_BLOCK + 1,
                          (cols - 1) / K_F8_BLOCK + 1, floats);
    case QUANT_FLOAT:
    case QUANT_TYPES:
        break;
    }
    return 0;
}

void load_sides_free(struct load_sides *s)
{
    free(s->scale);
    free(s->bias);
    *s = (struct load_sides){ 0 };
}

void load_sides_cut(struct load_sides *s, enum quant_type t, uint32_t rows, uint32_t cols,
                    struct share only)
{
    uint32_t across = (cols - 1) / K_F8_BLOCK + 1, first = only.from / K_F8_BLOCK;
    uint32_t n = (only.n - 1) / K_F8_BLOCK + 1;

    if (only.from > 0)
        s->fixed.bias = NULL;
    for (uint32_t r = 0; t == QUANT_FP8_BLOCK && r <= (rows - 1) / K_F8_BLOCK; r++)
        memmove(s->scale + (size_t)r * n, s->scale + (size_t)r * across + first,
                n * sizeof *s->scale);
}

void load_sides_apply(const struct load_sides *s, enum quant_type t, float *x, struct share rows,
                      struct share cols, uint32_t across)
{
    uint32_t blocks = (across - 1) / K_F8_BLOCK + 1;

    for (uint32_t i = 0; t != QUANT_FLOAT && i < rows.n; i++)
        for (uint32_t j = 0; j < cols.n; j++) {
            uint32_t r = rows.from + i, c = cols.from + j;
            float *v = &x[(size_t)i * cols.n + j];

            if (t == QUANT_FP8_BLOCK)
                *v *= s->scale[(size_t)(r / K_F8_BLOCK) * blocks + c / K_F8_BLOCK];
            else if (t == QUANT_W8A8)
                *v *= s->scale[r] / s->fixed.input_scale;
            else
                *v *= s->scale[r];
        }
}
