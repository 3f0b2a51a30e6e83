/* Operations on heads: a matrix a head, a norm a head; and the bias of a linear. */
#include "kernel/moe.h"

#include <assert.h>

/* Up to so many rows the weights are what is read: each thread reads long runs of them. */
#define FEW_ROWS 4
/* Rows of a work item otherwise: whole register tiles of every ISA. */
#define CHUNK_ROWS 96

struct heads_split {
    const struct kernels *k;
    const struct k_act *a;
    const struct k_matrix *const *w;
    struct k_heads y;
    uint32_t n, units, total, items; /* units of a head, of all, and work items */
};

/* Units [from, to) of a head times rows [r0, r1) of its own. */
static void head_units(const struct heads_split *s, uint32_t head, uint32_t from, uint32_t to,
                       uint32_t r0, uint32_t r1, uint32_t thread)
{
    struct k_act rows = act_from(s->k, s->a, head * s->n);
    struct linear_job job = {
        .y = s->y.p + head * s->y.head, .ldy = s->y.row, .a = &rows, .w = s->w[head]
    };

    assert((rows.forms & matrix_form(job.w)) == matrix_form(job.w) && rows.cols == job.w->cols);
    linear_units(&cpu_of(s->k)->impl, &job, from, to, r0, r1,
                 rows.scratch + thread * rows.scratch_bytes);
}

/* A piece of all units, for all rows. */
static void few_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct heads_split *s = arg;
    uint32_t from, to = piece(s->total, s->items, item, &from);

    while (from < to) {
        uint32_t head = from / s->units, unit = from % s->units;
        uint32_t end = to - from < s->units - unit ? unit + to - from : s->units;

        head_units(s, head, unit, end, 0, s->n, thread);
        from += end - unit;
    }
}

static uint32_t chunks(const struct heads_split *s)
{
    return (s->n + CHUNK_ROWS - 1) / CHUNK_ROWS;
}

/* A unit of a head times a chunk of its rows. */
static void chunk_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct heads_split *s = arg;
    uint32_t unit = item % s->units, chunk = item / s->units % chunks(s);
    uint32_t r0 = chunk * CHUNK_ROWS, r1 = r0 + CHUNK_ROWS < s->n ? r0 + CHUNK_ROWS : s->n;

    head_units(s, item / s->units / chunks(s), unit, unit + 1, r0, r1, thread);
}

void linear_heads(const struct kernels *k, struct k_heads y, const struct k_act *a,
                  const struct k_matrix *const *w, uint32_t heads, uint32_t n)
{
    struct heads_split s = { .k = k, .a = a, .w = w, .y = y, .n = n };
    bool few = n <= FEW_ROWS;

    if (n == 0 || heads == 0)
        return;
    assert((uint64_t)heads * n <= a->max_tokens);
    s.units = matrix_units(w[0]);
    s.total = s.units * heads;
    s.items = few ? pieces(k, s.total) : s.total * chunks(&s);
    team_items(&cpu_of(k)->team, s.items, few ? few_item : chunk_item, &s, sizeof s);
}

struct norm_job {
    const struct cpu_impl *f;
    struct k_heads x;
    uint32_t n, heads, dim, pieces;
    const float *gain, *bias;
    float eps;
};

static void norm_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct norm_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++)
        for (uint32_t h = 0; h < j->heads; h++) {
            float *x = j->x.p + i * j->x.row + h * j->x.head;

            j->f->norm_row(x, x, j->gain, j->dim, j->eps);
            for (uint32_t d = 0; j->bias && d < j->dim; d++)
                x[d] += j->bias[d];
        }
}

void norm_heads(const struct kernels *k, struct k_heads x, uint32_t n, uint32_t heads, uint32_t dim,
                const float *gain, const float *bias, float eps)
{
    struct norm_job job = { &cpu_of(k)->impl, x, n, heads, dim, pieces(k, n), gain, bias, eps };

    team_items(&cpu_of(k)->team, job.pieces, norm_item, &job, sizeof job);
}

struct bias_job {
    float *y;
    size_t ldy;
    const float *bias;
    uint32_t n, cols, pieces;
};

static void bias_item(void *arg, uint32_t item, uint32_t thread)
{
    const struct bias_job *j = arg;
    uint32_t from, to = piece(j->n, j->pieces, item, &from);

    (void)thread;
    for (uint32_t i = from; i < to; i++) {
        float *y = j->y + i * j->ldy;

        for (uint32_t c = 0; c < j->cols; c++)
            y[c] += j->bias[c];
    }
}

void add_bias(const struct kernels *k, float *y, size_t ldy, const float *bias, uint32_t n,
              uint32_t cols)
{
    struct bias_job job = { y, ldy, bias, n, cols, pieces(k, n) };

    team_items(&cpu_of(k)->team, job.pieces, bias_item, &job, sizeof job);
}
