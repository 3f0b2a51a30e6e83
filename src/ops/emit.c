#include "ops/emit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "ops/outdir.h"
#include "ops/progress.h"

#define STEM        "quant_model_weights"
#define CHUNK_BYTES (8u << 20) /* of floats */

struct emitter {
    const struct intake *in;
    const struct plan *p;
    struct parts parts;
    struct shards *shards;
    struct progress progress;
    struct err *e;
};

/* One tensor on its way. */
struct passage {
    size_t i;     /* the intake's number */
    size_t first; /* of its parts */
    uint32_t rows, cols, step;
    float *floats;  /* [step][cols] */
    void *stored;   /* the same as it is stored */
    float *scale;   /* [rows]: W8A8 */
    int32_t *bias;  /* [rows]: quant_bias */
    float *bias_in; /* [rows]: of the layer, or NULL */
};

static int no_memory(struct emitter *m, const char *name)
{
    return err_set(m->e, ERR_NOMEM, "no memory to write tensor %s", name);
}

/* The layer's bias, smoothed: part of quant_bias where scales are static. */
static size_t bias_tensor(const struct emitter *m, size_t i)
{
    const char *name = m->in->blue.t[i].name;
    char bias[TENSOR_MAX_NAME];

    snprintf(bias, sizeof bias, "%.*sbias", (int)(strlen(name) - strlen("weight")), name);
    return intake_find(m->in, bias);
}

static bool in_quant_bias(const struct emitter *m, size_t i)
{
    char weight[TENSOR_MAX_NAME];
    const char *name = m->in->blue.t[i].name;
    size_t n = strlen(name), w;

    if (n < 4 || strcmp(name + n - 4, "bias") != 0)
        return false;
    snprintf(weight, sizeof weight, "%.*sweight", (int)(n - 4), name);
    w = intake_find(m->in, weight);
    return w < m->in->blue.n && m->p->t[w].store == STORE_STATIC;
}

/* A vector keeps what it has: bfloat16 if that is how it came and nothing multiplies it. */
static enum part_store store_of(const struct emitter *m, size_t i)
{
    const struct blue_tensor *t = &m->in->blue.t[i];

    if (t->kind == BLUE_MATRIX || t->kind == BLUE_CORRECTION)
        return m->p->t[i].store;
    return m->in->source[i]->t.type == K_BF16 && !m->p->t[i].out ? STORE_BF16 : STORE_F32;
}

static int list(struct emitter *m)
{
    int st = parts_init(&m->parts, true, m->e);

    for (size_t i = 0; st == 0 && i < m->in->blue.n; i++) {
        const struct blue_tensor *t = &m->in->blue.t[i];

        if (!in_quant_bias(m, i))
            st = parts_add(&m->parts, t->name, i, store_of(m, i), t->rows,
                           t->kind == BLUE_MATRIX ? t->cols : 0, m->e);
    }
    return st;
}

static void scale_rows(const struct emitter *m, struct passage *s, uint32_t first, uint32_t n)
{
    const struct plan_tensor *t = &m->p->t[s->i];

    for (uint32_t r = 0; r < n; r++) {
        float *x = s->floats + (size_t)r * s->cols, out = t->out ? t->out[first + r] : 1;

        for (uint32_t j = 0; (t->in || t->out) && j < s->cols; j++)
            x[j] *= t->in ? t->in[j] * out : out;
    }
}

static void quantize_rows(const struct emitter *m, struct passage *s, uint32_t first, uint32_t n)
{
    const struct plan_tensor *t = &m->p->t[s->i];

    for (uint32_t r = 0; r < n; r++) {
        int8_t *codes = (int8_t *)s->stored + (size_t)r * s->cols;
        float scale = trial_quantize_row(codes, s->floats + (size_t)r * s->cols, s->cols);
        int32_t sum = 0;

        s->scale[first + r] = scale;
        if (t->store != STORE_STATIC)
            continue;
        s->scale[first + r] = scale * t->input.scale;
        for (uint32_t j = 0; j < s->cols; j++)
            sum += codes[j];
        s->bias[first + r] = -(int32_t)t->input.offset * sum;
        if (s->bias_in)
            s->bias[first + r] += (int32_t)lrintf(s->bias_in[first + r] / s->scale[first + r]);
    }
}

static void store_rows(const struct emitter *m, struct passage *s, enum part part, uint32_t first,
                       uint32_t n)
{
    size_t count = (size_t)n * s->cols;
    uint16_t *half = s->stored;

    if (part == PART_I8)
        quantize_rows(m, s, first, n);
    else if (part == PART_F32)
        memcpy(s->stored, s->floats, count * sizeof(float));
    else
        for (size_t k = 0; k < count; k++)
            half[k] = k_float_to_bf16(s->floats[k]);
}

static int write_rows(struct emitter *m, struct passage *s)
{
    size_t bytes = s->cols * (size_t)shard_type_bytes(m->parts.t[s->first].type);
    int st = 0;

    for (uint32_t at = 0; st == 0 && at < s->rows; at += s->step) {
        uint32_t n = s->rows - at < s->step ? s->rows - at : s->step;

        if ((st = intake_rows(m->in, s->i, at, n, s->floats, m->e)) < 0)
            break;
        scale_rows(m, s, at, n);
        store_rows(m, s, m->parts.piece[s->first].part, at, n);
        st = shards_write(m->shards, s->first, at * bytes, s->stored, n * bytes, m->e);
        progress_add(&m->progress, n * bytes);
    }
    return st;
}

static const void *side_data(const struct emitter *m, const struct passage *s, enum part part,
                             const float *zeros)
{
    switch (part) {
    case PART_SCALE:
    case PART_DEQ_SCALE:
        return s->scale;
    case PART_QUANT_BIAS:
        return s->bias;
    case PART_INPUT_SCALE:
        return &m->p->t[s->i].input.scale;
    case PART_INPUT_OFFSET:
        return &m->p->t[s->i].input.offset;
    default:
        return zeros;
    }
}

/* What stands beside the codes. */
static int write_sides(struct emitter *m, struct passage *s, size_t end)
{
    float *zeros = calloc(s->rows, sizeof *zeros);
    int st = zeros ? 0 : no_memory(m, m->parts.t[s->first].name);

    for (size_t k = s->first + 1; st == 0 && k < end; k++) {
        size_t bytes = shard_tensor_bytes(&m->parts.t[k]);

        st = shards_write(m->shards, k, 0, side_data(m, s, m->parts.piece[k].part, zeros), bytes,
                          m->e);
        progress_add(&m->progress, bytes);
    }
    free(zeros);
    return st;
}

static int read_bias(struct emitter *m, struct passage *s)
{
    const float *out;
    size_t b;
    int st;

    if (m->p->t[s->i].store != STORE_STATIC || (b = bias_tensor(m, s->i)) == m->in->blue.n)
        return 0;
    if (!(s->bias_in = malloc(s->rows * sizeof *s->bias_in)))
        return no_memory(m, m->in->blue.t[b].name);
    if ((st = intake_rows(m->in, b, 0, s->rows, s->bias_in, m->e)) < 0)
        return st;
    out = m->p->t[b].out;
    for (uint32_t r = 0; out && r < s->rows; r++)
        s->bias_in[r] *= out[r];
    return 0;
}

static int pass(struct emitter *m, struct passage *s, size_t end)
{
    uint64_t row = s->cols * sizeof(float);
    int st;

    s->step = row >= CHUNK_BYTES ? 1 : (uint32_t)(CHUNK_BYTES / row);
    if (s->step > s->rows)
        s->step = s->rows;
    s->floats = malloc(s->step * row);
    s->stored = malloc(s->step * row);
    s->scale = calloc(s->rows, sizeof *s->scale);
    s->bias = calloc(s->rows, sizeof *s->bias);
    if (!s->floats || !s->stored || !s->scale || !s->bias)
        return no_memory(m, m->parts.t[s->first].name);
    if ((st = read_bias(m, s)) < 0 || (st = write_rows(m, s)) < 0)
        return st;
    intake_drop(m->in, s->i);
    return write_sides(m, s, end);
}

static int write_tensor(struct emitter *m, size_t first, size_t end)
{
    size_t i = m->parts.piece[first].weight;
    const struct blue_tensor *t = &m->in->blue.t[i];
    struct passage s = { .i = i, .first = first, .rows = t->rows, .cols = t->cols };
    int st = pass(m, &s, end);

    free(s.floats);
    free(s.stored);
    free(s.scale);
    free(s.bias);
    free(s.bias_in);
    return st;
}

static int write_all(struct emitter *m)
{
    size_t end;
    int st = 0;

    for (size_t k = 0; st == 0 && k < m->parts.n; k = end) {
        for (end = k + 1;
             end < m->parts.n && m->parts.piece[end].weight == m->parts.piece[k].weight; end++)
            ;
        st = write_tensor(m, k, end);
    }
    return st < 0 ? st : shards_finish(m->shards, m->e);
}

static int write_description(struct emitter *m, struct outdir *dir)
{
    json_t *j = parts_description(&m->parts);
    int st;

    if (!j)
        return err_set(m->e, ERR_NOMEM, "no memory");
    st = outdir_write_json(dir, "quant_model_description.json", j, m->e);
    json_decref(j);
    return st;
}

int emit(struct outdir *dir, const struct intake *in, const struct plan *p,
         uint64_t max_shard_bytes, bool quiet, struct err *e)
{
    struct emitter m = { .in = in, .p = p, .e = e };
    int st;

    if ((st = list(&m)) == 0 && (st = write_description(&m, dir)) == 0 &&
        (st = shards_create(&m.shards, outdir_stage(dir), STEM, max_shard_bytes, m.parts.t,
                            m.parts.n, e)) == 0) {
        progress_init(&m.progress, "writing weights", shards_bytes(m.shards), quiet);
        st = write_all(&m);
        progress_finish(&m.progress);
    }
    shards_destroy(m.shards);
    parts_finish(&m.parts);
    return st;
}
