#include "ops/synth.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernel/kernel.h"

/* Static scales from what is known of the activations: behind a norm they have a deviation of about
 * 1, and 5 of those are as good as never passed. The offset is there to be used. */
#define INPUT_SCALE  (5.0f / 127)
#define INPUT_OFFSET 3.0f

#define F8_MAX 448.0f
#define I8_MAX 127.0f

struct synth_maker {
    const struct synth *s;
    unsigned char *buf;                                     /* the rows */
    int8_t *codes;                                          /* a row, for its sum */
    float table_std;                                        /* what `table` was made for */
    uint16_t table[NOISE_STEPS][NOISE_STEPS][NOISE_LEVELS]; /* bfloat16 by row and block step */
};

void synth_maker_free(struct synth_maker *w)
{
    if (!w)
        return;
    free(w->buf);
    free(w->codes);
    free(w);
}

struct synth_maker *synth_maker_new(const struct synth *s, uint64_t max_bytes)
{
    struct synth_maker *w = calloc(1, sizeof *w);
    uint32_t cols = 1;

    if (!w)
        return NULL;
    for (size_t i = 0; i < s->blue->n; i++)
        cols = s->blue->t[i].cols > cols ? s->blue->t[i].cols : cols;
    w->s = s;
    w->buf = malloc(max_bytes);
    w->codes = malloc(cols);
    if (w->buf && w->codes)
        return w;
    synth_maker_free(w);
    return NULL;
}

void synth_init(struct synth *m, const struct blueprint *blue, uint64_t seed)
{
    const struct noise *n = &m->noise;
    float top;

    m->blue = blue;
    m->seed = seed;
    noise_init(&m->noise);
    top = n->max * n->max_factor;
    for (uint32_t s = 0; s < NOISE_STEPS; s++)
        for (uint32_t i = 0; i < NOISE_LEVELS; i++) {
            float x = n->level[i] * n->factor[s] / top; /* in [-1, 1] */

            m->f8[s][i] = k_float_to_f8(x * F8_MAX);
            m->i8[s][i] = (uint8_t)(int8_t)lrintf(x * I8_MAX);
        }
}

static void make_bf16_table(struct synth_maker *w, float std)
{
    const struct noise *n = &w->s->noise;

    if (w->table_std == std)
        return;
    w->table_std = std;
    for (uint32_t r = 0; r < NOISE_STEPS; r++)
        for (uint32_t b = 0; b < NOISE_STEPS; b++)
            for (uint32_t i = 0; i < NOISE_LEVELS; i++)
                w->table[r][b][i] = k_float_to_bf16(n->level[i] * n->factor[r] * n->factor[b] *
                                                    std);
}

static void bf16_rows(struct synth_maker *w, const struct blue_tensor *t, uint64_t key,
                      uint32_t first, uint32_t n)
{
    uint16_t *out = (uint16_t *)w->buf;

    make_bf16_table(w, t->std);
    for (uint32_t i = 0; i < n; i++, out += t->cols) {
        uint16_t(*of)[NOISE_LEVELS] = w->table[noise_row_step(key, first + i)];
        const uint16_t *const table[NOISE_STEPS] = { of[0], of[1], of[2], of[3] };

        noise_row_u16(out, table, key, first + i, t->cols);
    }
}

static void f8_rows(struct synth_maker *w, const struct blue_tensor *t, uint64_t key,
                    uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *of = w->s->f8[noise_row_step(key, first + i)];
        const uint8_t *const table[NOISE_STEPS] = { of, of, of, of };

        noise_row_u8(w->buf + (size_t)i * t->cols, table, key, first + i, t->cols);
    }
}

static void i8_row(struct synth_maker *w, const struct blue_tensor *t, uint64_t key, uint32_t row,
                   uint8_t *out)
{
    const uint8_t(*of)[NOISE_LEVELS] = w->s->i8;
    const uint8_t *const table[NOISE_STEPS] = { of[0], of[1], of[2], of[3] };

    noise_row_u8(out, table, key, row, t->cols);
}

static void i8_rows(struct synth_maker *w, const struct blue_tensor *t, uint64_t key,
                    uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        i8_row(w, t, key, first + i, w->buf + (size_t)i * t->cols);
}

/* The scale of an int8 row. */
static float row_scale(const struct synth_maker *w, const struct blue_tensor *t, uint64_t key,
                       uint32_t row)
{
    const struct noise *n = &w->s->noise;

    return t->std * n->factor[noise_row_step(key, row)] * n->max * n->max_factor / I8_MAX;
}

static void block_scales(struct synth_maker *w, const struct blue_tensor *t, uint64_t key,
                         uint32_t first, uint32_t n)
{
    const struct noise *s = &w->s->noise;
    uint32_t across = (t->cols + NOISE_BLOCK - 1) / NOISE_BLOCK;
    float *out = (float *)w->buf;

    for (uint32_t i = first; i < first + n; i++)
        for (uint32_t j = 0; j < across; j++)
            *out++ = t->std * s->factor[noise_block_step(key, i, j)] * s->max * s->max_factor /
                     F8_MAX;
}

/* The number at i of a vector: a gain, a bias. */
static float vector_at(const struct synth *m, const struct blue_tensor *t, uint64_t key, uint32_t i)
{
    return (t->kind == BLUE_GAIN ? 1.0f : 0.0f) +
           t->std * m->noise.level[noise_index(key, 0, t->rows, i)];
}

/* The bias of a linear, 0 where it has none: it stands behind the weight in the list. */
static float bias_of(const struct synth *m, size_t weight, uint32_t row)
{
    const char *name = m->blue->t[weight].name;
    size_t stem = strlen(name) - strlen("weight");

    for (size_t i = weight + 1; i < m->blue->n && i < weight + 8; i++) {
        const struct blue_tensor *t = &m->blue->t[i];

        if (strncmp(t->name, name, stem) == 0 && strcmp(t->name + stem, "bias") == 0)
            return vector_at(m, t, noise_key(m->seed, t->name), row);
    }
    return 0;
}

static int32_t quant_bias(struct synth_maker *w, size_t weight, uint64_t key, uint32_t row)
{
    const struct blue_tensor *t = &w->s->blue->t[weight];
    float deq = row_scale(w, t, key, row) * INPUT_SCALE;
    int32_t sum = 0;

    i8_row(w, t, key, row, (uint8_t *)w->codes);
    for (uint32_t j = 0; j < t->cols; j++)
        sum += w->codes[j];
    return (int32_t)lrintf(bias_of(w->s, weight, row) / deq) - (int32_t)INPUT_OFFSET * sum;
}

/* One number a row. */
static void small_rows(struct synth_maker *w, const struct piece *p, uint64_t key, uint32_t first,
                       uint32_t n)
{
    const struct blue_tensor *t = &w->s->blue->t[p->weight];
    float *f = (float *)w->buf;
    int32_t *whole = (int32_t *)w->buf;
    uint16_t *half = (uint16_t *)w->buf;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t row = first + i;

        switch (p->part) {
        case PART_BF16:
            half[i] = k_float_to_bf16(vector_at(w->s, t, key, row));
            break;
        case PART_F32:
            f[i] = vector_at(w->s, t, key, row);
            break;
        case PART_SCALE:
            f[i] = row_scale(w, t, key, row);
            break;
        case PART_DEQ_SCALE:
            f[i] = row_scale(w, t, key, row) * INPUT_SCALE;
            break;
        case PART_INPUT_SCALE:
            f[i] = INPUT_SCALE;
            break;
        case PART_INPUT_OFFSET:
            f[i] = INPUT_OFFSET;
            break;
        case PART_QUANT_BIAS:
            whole[i] = quant_bias(w, p->weight, key, row);
            break;
        default:
            f[i] = 0;
        }
    }
}

const void *synth_rows(struct synth_maker *w, const struct piece *p, uint32_t first, uint32_t n)
{
    const struct blue_tensor *t = &w->s->blue->t[p->weight];
    uint64_t key = noise_key(w->s->seed, t->name);

    if (p->part == PART_BF16 && t->kind == BLUE_MATRIX)
        bf16_rows(w, t, key, first, n);
    else if (p->part == PART_F8)
        f8_rows(w, t, key, first, n);
    else if (p->part == PART_I8)
        i8_rows(w, t, key, first, n);
    else if (p->part == PART_SCALE_INV)
        block_scales(w, t, key, first, n);
    else
        small_rows(w, p, key, first, n);
    return w->buf;
}
