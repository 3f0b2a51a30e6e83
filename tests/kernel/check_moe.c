/* Routes, matrices of experts and of heads, and the small operations beside them. */
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_N 400

/* Scores and selection of one token in double, by counting how many experts are better. */
struct want {
    double s[K_MAX_EXPERTS], x[K_MAX_EXPERTS];
    uint32_t expert[K_MAX_TOP_K];
    double weight[K_MAX_TOP_K];
};

static double sum_of_best(const double *x, uint32_t n, uint32_t k)
{
    double sum = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t better = 0;

        for (uint32_t j = 0; j < n; j++)
            better += x[j] > x[i] || (x[j] == x[i] && j < i);
        sum += better < k ? x[i] : 0;
    }
    return sum;
}

static void drop_groups(double *x, const struct k_router *how)
{
    uint32_t size = how->experts / how->groups;
    double of[K_MAX_EXPERTS];

    for (uint32_t g = 0; g < how->groups; g++)
        of[g] = sum_of_best(x + g * size, size, how->group_two ? 2 : 1);
    for (uint32_t g = 0; g < how->groups; g++) {
        uint32_t better = 0;

        for (uint32_t j = 0; j < how->groups; j++)
            better += of[j] > of[g] || (of[j] == of[g] && j < g);
        for (uint32_t e = 0; better >= how->top_groups && e < size; e++)
            x[g * size + e] = -INFINITY;
    }
}

static void route_double(struct want *w, const float *logits, const struct k_router *how)
{
    double max = -INFINITY, sum = 0;

    for (uint32_t e = 0; e < how->experts; e++)
        max = fmax(max, (double)logits[e]);
    for (uint32_t e = 0; e < how->experts; e++)
        sum += exp((double)logits[e] - max);
    for (uint32_t e = 0; e < how->experts; e++) {
        w->s[e] = how->sigmoid ? 1 / (1 + exp(-(double)logits[e]))
                               : exp((double)logits[e] - max) / sum;
        w->x[e] = w->s[e] + (how->bias ? (double)how->bias[e] : 0);
    }
    drop_groups(w->x, how);
    sum = 0;
    for (uint32_t e = 0; e < how->experts; e++) {
        uint32_t better = 0;

        for (uint32_t j = 0; j < how->experts; j++)
            better += w->x[j] > w->x[e] || (w->x[j] == w->x[e] && j < e);
        if (better >= how->top_k || w->x[e] == -INFINITY)
            continue;
        w->expert[better] = e;
        w->weight[better] = w->s[e];
        sum += w->s[e];
    }
    for (uint32_t i = 0; i < how->top_k; i++)
        w->weight[i] *= (double)how->scale / (how->normalize ? sum + 1e-20 : 1);
}

struct route_call {
    const struct kernels *k;
    struct k_routes *r;
    const float *logits;
    uint32_t n;
    const struct k_router *how;
};

static void route_call(void *arg)
{
    const struct route_call *c = arg;

    c->k->route(c->k, c->r, c->logits, c->how->experts, c->n, c->how);
}

/* The arrays that say who stands where agree with the choices. */
static bool sorted_well(const struct k_routes *r, uint32_t n)
{
    uint32_t row = 0;

    for (uint32_t e = 0; e < r->experts; e++) {
        if (r->first[e] != row)
            return false;
        for (uint32_t i = 0; i < n * r->top_k; i++)
            if (r->expert[i] == e) {
                if (r->row[i] != row || r->token[row] != i / r->top_k)
                    return false;
                row++;
            }
    }
    return r->first[r->experts] == row && row == n * r->top_k;
}

static void check_route(struct check *c, struct rng *r, const struct k_router *how, uint32_t n)
{
    size_t count = (size_t)n * how->experts;
    float *logits = get(c->two, count * sizeof *logits), *bias = NULL;
    struct route_call call = { .k = c->two, .logits = logits, .n = n };
    struct k_router h = *how;
    bool same = true;
    double worst = 0;

    rng_fill(r, logits, count);
    if (h.sigmoid) {
        bias = get(c->two, h.experts * sizeof *bias);
        rng_fill(r, bias, h.experts);
        h.bias = bias;
    }
    for (size_t i = 0; i < count; i++)
        logits[i] *= 6;
    call.how = &h;
    if (c->two->routes_create(c->two, &call.r, n, h.experts, h.top_k) < 0)
        abort();
    c->two->run(c->two, route_call, &call);
    for (uint32_t i = 0; i < n; i++) {
        struct want w;

        route_double(&w, logits + (size_t)i * h.experts, &h);
        for (uint32_t j = 0; j < h.top_k; j++) {
            size_t at = (size_t)i * h.top_k + j;

            same = same && call.r->expert[at] == w.expert[j];
            worst = fmax(worst, fabs((double)call.r->weight[at] / w.weight[j] - 1));
        }
    }
    expect(c, same, "route %u of %u, groups %u: other experts", h.top_k, h.experts, h.groups);
    expect(c, worst < 1e-6, "route %u of %u: weights off by %g", h.top_k, h.experts, worst);
    expect(c, sorted_well(call.r, n), "route %u of %u: rows are not sorted", h.top_k, h.experts);
    c->two->routes_destroy(c->two, call.r);
    c->two->free(c->two, logits, count * sizeof *logits);
    c->two->free(c->two, bias, h.experts * sizeof *bias);
}

/* Equal scores go to the lower id, groups likewise; a score below 0 in a group that stays is still
 * better than any in one that does not. NaN chooses something that exists. */
static void check_ties(struct check *c)
{
    float logits[16] = { 0 }, bias[16];
    struct k_router how = { .experts = 16,
                            .top_k = 4,
                            .groups = 4,
                            .top_groups = 2,
                            .sigmoid = true,
                            .group_two = true,
                            .normalize = true,
                            .scale = 1,
                            .bias = bias };
    struct route_call call = { c->two, NULL, logits, 1, &how };
    static const uint32_t tied[4] = { 0, 1, 2, 3 }, low[4] = { 4, 12, 5, 6 };

    for (int i = 0; i < 16; i++)
        bias[i] = -0.25f;
    if (c->two->routes_create(c->two, &call.r, 1, 16, 4) < 0)
        abort();
    route_call(&call);
    expect(c, same_bits(call.r->expert, tied, sizeof tied), "route: ties");
    for (int i = 0; i < 16; i++)
        bias[i] = i / 4 % 2 ? -5 : -4;
    bias[4] = 9;
    bias[12] = 8;
    route_call(&call);
    expect(c, same_bits(call.r->expert, low, sizeof low), "route: scores below zero");
    for (int i = 0; i < 16; i++)
        logits[i] = NAN;
    route_call(&call);
    for (int i = 0; i < 4; i++)
        expect(c, call.r->expert[i] < 16, "route: NaN");
    expect(c, sorted_well(call.r, 1), "route: NaN is not sorted");
    c->two->routes_destroy(c->two, call.r);
}

static struct k_matrix *random_matrix(const struct kernels *k, struct rng *r, enum k_type type,
                                      uint32_t rows, uint32_t cols, enum k_math math)
{
    void *w = random_weights(r, type, (size_t)rows * cols);
    float *scale = get(k, rows * sizeof *scale);
    struct k_part part = {
        .type = type, .rows = rows, .data = w, .stride = k_type_bytes(type, cols), .scale = scale
    };
    struct k_matrix *m;

    for (uint32_t i = 0; i < rows; i++)
        scale[i] = 0.001f * (1 + rng_float(r));
    if (k->pack(k, &m, &part, 1, cols, math, NULL) < 0)
        abort();
    k->free(k, scale, rows * sizeof *scale);
    free(w);
    return m;
}

/* A mixture: [gate, up] and down a expert. */
#define EXPERTS 6
#define HIDDEN  96
#define INNER   64
struct mixture {
    const struct kernels *k;
    struct k_matrix *up[EXPERTS], *down[EXPERTS];
    struct k_router how;
    struct k_routes *r;
    struct k_act *a;
    float *mid, *wide; /* of the sorted rows */
    const float *x, *logits;
    float *y;
    uint32_t n;
};

static void mixture_call(void *arg)
{
    const struct mixture *m = arg;
    const struct kernels *k = m->k;
    uint32_t pairs = m->n * m->how.top_k;

    k->route(k, m->r, m->logits, EXPERTS, m->n, &m->how);
    k->act_sorted(k, m->a, m->x, HIDDEN, m->r, m->n, HIDDEN);
    k->linear_experts(k, m->mid, 2 * INNER, m->a, (const struct k_matrix *const *)m->up, m->r,
                      m->n);
    k->act_swiglu(k, m->a, m->mid, 2 * INNER, pairs, INNER);
    k->linear_experts(k, m->wide, HIDDEN, m->a, (const struct k_matrix *const *)m->down, m->r,
                      m->n);
    k->combine(k, m->y, HIDDEN, m->wide, HIDDEN, m->r, m->n, HIDDEN, true);
}

static void mixture_init(struct mixture *m, const struct kernels *k, enum k_type type,
                         enum k_math math)
{
    struct rng r = { 77 };
    size_t pairs;

    memset(m, 0, sizeof *m);
    m->k = k;
    m->how = (struct k_router){
        .experts = EXPERTS, .top_k = 2, .groups = 1, .top_groups = 1, .normalize = true, .scale = 1
    };
    pairs = MAX_N * (size_t)m->how.top_k;
    for (int e = 0; e < EXPERTS; e++) {
        m->up[e] = random_matrix(k, &r, type, 2 * INNER, HIDDEN, math);
        m->down[e] = random_matrix(k, &r, type, HIDDEN, INNER, math);
    }
    if (k->routes_create(k, &m->r, MAX_N, EXPERTS, m->how.top_k) < 0 ||
        k->act_create(k, &m->a, (uint32_t)pairs, HIDDEN, k->matrix_form(m->up[0])) < 0)
        abort();
    m->mid = get(k, pairs * 2 * INNER * sizeof(float));
    m->wide = get(k, pairs * HIDDEN * sizeof(float));
}

static void mixture_finish(struct mixture *m)
{
    const struct kernels *k = m->k;
    size_t pairs = MAX_N * (size_t)m->how.top_k;

    for (int e = 0; e < EXPERTS; e++) {
        k->unpack_free(k, m->up[e]);
        k->unpack_free(k, m->down[e]);
    }
    k->routes_destroy(k, m->r);
    k->act_destroy(k, m->a);
    k->free(k, m->mid, pairs * 2 * INNER * sizeof(float));
    k->free(k, m->wide, pairs * HIDDEN * sizeof(float));
}

/* Rows [from, to) of the mixture into y. */
static void mixture_rows(struct mixture *m, const float *x, const float *logits, float *y,
                         uint32_t from, uint32_t to)
{
    m->x = x + (size_t)from * HIDDEN;
    m->logits = logits + (size_t)from * EXPERTS;
    m->y = y + (size_t)from * HIDDEN;
    m->n = to - from;
    m->k->run(m->k, mixture_call, m);
}

/* The products of the sorted rows of the last call are those of linear() of each row alone. */
static void compare_products(struct check *c, struct mixture *m, const char *type)
{
    const struct kernels *k = m->k;
    float *row = get(k, HIDDEN * sizeof *row), *in = get(k, 2 * INNER * sizeof *in);
    bool same = true;

    for (uint32_t i = 0; i < m->n * m->how.top_k; i++) {
        memcpy(in, m->mid + (size_t)m->r->row[i] * 2 * INNER, 2 * INNER * sizeof *in);
        k->act_swiglu(k, m->a, in, 2 * INNER, 1, INNER);
        k->linear(k, row, HIDDEN, m->a, m->down[m->r->expert[i]], 1, false);
        same = same &&
               same_bits(row, m->wide + (size_t)m->r->row[i] * HIDDEN, HIDDEN * sizeof *row);
    }
    expect(c, same, "linear_experts %s, %u tokens: differs from linear", type, m->n);
    k->free(k, row, HIDDEN * sizeof *row);
    k->free(k, in, 2 * INNER * sizeof *in);
}

/* Rows of the experts from EXPERTS / 2 on, as a rank would do them that has only those. */
struct share {
    const struct mixture *m;
    struct k_routes *r;
    struct k_act *a;
    const float *x; /* rows in another order than sorted */
    float *mid;
    uint32_t n;
};

static void share_call(void *arg)
{
    const struct share *s = arg;
    const struct kernels *k = s->m->k;

    k->act_sorted(k, s->a, s->x, HIDDEN, s->r, s->n, HIDDEN);
    k->linear_experts(k, s->mid, 2 * INNER, s->a,
                      (const struct k_matrix *const *)s->m->up + EXPERTS / 2, s->r, s->n);
}

/* The second half of the experts with rows given in reverse: the products of the last call. */
static void compare_given(struct check *c, const struct mixture *m, const char *type)
{
    const struct kernels *k = m->k;
    uint32_t begin = m->r->first[EXPERTS / 2], first[EXPERTS / 2 + 1], token[MAX_N * 2];
    struct share s = { .m = m, .n = m->n * m->how.top_k - begin };
    float *x = get(k, (size_t)MAX_N * 2 * HIDDEN * sizeof *x);

    s.x = x;
    s.mid = get(k, (size_t)MAX_N * 2 * 2 * INNER * sizeof *s.mid);
    if (k->routes_create(k, &s.r, MAX_N * 2, EXPERTS / 2, 1) < 0 ||
        k->act_create(k, &s.a, MAX_N * 2, HIDDEN, k->matrix_form(m->up[0])) < 0)
        abort();
    for (uint32_t e = 0; e <= EXPERTS / 2; e++)
        first[e] = m->r->first[EXPERTS / 2 + e] - begin;
    for (uint32_t i = 0; i < s.n; i++) {
        token[i] = s.n - 1 - i;
        memcpy(x + (size_t)token[i] * HIDDEN, m->x + (size_t)m->r->token[begin + i] * HIDDEN,
               HIDDEN * sizeof *x);
    }
    k->routes_given(k, s.r, token, first);
    k->run(k, share_call, &s);
    expect(c,
           same_bits(s.mid, m->mid + (size_t)begin * 2 * INNER,
                     (size_t)s.n * 2 * INNER * sizeof *s.mid),
           "routes_given %s, %u tokens: products differ", type, m->n);
    k->routes_destroy(k, s.r);
    k->act_destroy(k, s.a);
    k->free(k, s.mid, (size_t)MAX_N * 2 * 2 * INNER * sizeof *s.mid);
    k->free(k, x, (size_t)MAX_N * 2 * HIDDEN * sizeof *x);
}

/* combine() that replaces is combine() onto zeros. */
static void compare_replaced(struct check *c, const struct mixture *m)
{
    const struct kernels *k = m->k;
    size_t bytes = (size_t)m->n * HIDDEN * sizeof(float);
    float *y = get(k, bytes), *want = get(k, bytes);

    memset(y, 0xff, bytes);
    memset(want, 0, bytes);
    k->combine(k, want, HIDDEN, m->wide, HIDDEN, m->r, m->n, HIDDEN, true);
    k->combine(k, y, HIDDEN, m->wide, HIDDEN, m->r, m->n, HIDDEN, false);
    expect(c, same_bits(y, want, bytes), "combine, %u tokens: does not replace", m->n);
    k->free(k, y, bytes);
    k->free(k, want, bytes);
}

/* combine() of the last call in double; y was 1 before. */
static void compare_combined(struct check *c, const struct mixture *m, const float *y)
{
    double worst = 0;

    for (uint32_t i = 0; i < m->n; i++)
        for (uint32_t d = 0; d < HIDDEN; d++) {
            double want = 1, size = 1;

            for (uint32_t j = 0; j < m->how.top_k; j++) {
                size_t at = (size_t)i * m->how.top_k + j;
                double add = (double)m->r->weight[at] *
                             (double)m->wide[(size_t)m->r->row[at] * HIDDEN + d];

                want += add;
                size += fabs(add);
            }
            worst = fmax(worst, fabs(want - (double)y[i * HIDDEN + d]) / size);
        }
    expect(c, worst < 3e-7, "combine: off by %g", worst);
}

static void check_mixture(struct check *c, struct rng *r, enum k_type type, enum k_math math)
{
    static const uint32_t counts[] = { 1, 3, 40, MAX_N };
    size_t n = MAX_N * (size_t)HIDDEN;
    struct mixture one, two;
    float *x = get(c->two, n * 4), *want = get(c->two, n * 4), *y = get(c->two, n * 4);
    float *logits = get(c->two, MAX_N * EXPERTS * sizeof *logits);

    rng_fill(r, x, n);
    rng_fill(r, logits, MAX_N * EXPERTS);
    for (uint32_t i = 0; i < MAX_N; i++) { /* one expert gets more than a tile of rows, one none */
        logits[i * EXPERTS + 2] += 1;
        logits[i * EXPERTS + 4] -= 9;
    }
    mixture_init(&one, c->one, type, math);
    mixture_init(&two, c->two, type, math);
    for (size_t j = 0; j < 4; j++) {
        uint32_t rows = counts[j], chunk = rows / 3 + 1;
        size_t bytes = (size_t)rows * HIDDEN * sizeof *y;

        for (size_t i = 0; i < n; i++)
            want[i] = y[i] = 1;
        mixture_rows(&two, x, logits, want, 0, rows);
        compare_combined(c, &two, want);
        compare_replaced(c, &two);
        compare_given(c, &two, k_type_info[type].name);
        compare_products(c, &two, k_type_info[type].name);
        for (uint32_t from = 0; from < rows; from += chunk)
            mixture_rows(&one, x, logits, y, from, from + chunk < rows ? from + chunk : rows);
        expect(c, same_bits(y, want, bytes), "mixture %s, %u tokens: chunks differ",
               k_type_info[type].name, rows);
        for (size_t i = 0; i < n; i++)
            y[i] = 1;
        for (uint32_t from = 0; rows <= 40 && from < rows; from++)
            mixture_rows(&two, x, logits, y, from, from + 1);
        expect(c, rows > 40 || same_bits(y, want, bytes), "mixture %s, %u tokens: alone differs",
               k_type_info[type].name, rows);
    }
    mixture_finish(&one);
    mixture_finish(&two);
    c->two->free(c->two, x, n * 4);
    c->two->free(c->two, want, n * 4);
    c->two->free(c->two, y, n * 4);
    c->two->free(c->two, logits, MAX_N * EXPERTS * sizeof *logits);
}

/* linear_heads against linear of each head. */
#define HEADS     5
#define HEAD_ROWS 80
#define HEAD_COLS 64
struct heads_call {
    const struct kernels *k;
    struct k_act *a;
    struct k_matrix *w[HEADS];
    const float *x; /* [HEADS][n][HEAD_COLS] */
    struct k_heads y;
    uint32_t n;
};

static void heads_call(void *arg)
{
    const struct heads_call *c = arg;

    c->k->act_load(c->k, c->a, c->x, HEAD_COLS, HEADS * c->n, HEAD_COLS);
    c->k->linear_heads(c->k, c->y, c->a, (const struct k_matrix *const *)c->w, HEADS, c->n);
}

static void check_heads(struct check *c, struct rng *r, enum k_type type, enum k_math math)
{
    static const uint32_t counts[] = { 1, 4, 5, 130 };
    enum { LDY = HEADS * HEAD_ROWS };
    struct heads_call call = { .k = c->two };
    size_t nx = HEADS * 130 * HEAD_COLS, ny = 130 * LDY;
    float *x = get(c->two, nx * sizeof *x), *y = get(c->two, ny * sizeof *y);
    float *row = get(c->two, HEAD_ROWS * sizeof *row);

    rng_fill(r, x, nx);
    for (int h = 0; h < HEADS; h++)
        call.w[h] = random_matrix(c->two, r, type, HEAD_ROWS, HEAD_COLS, math);
    if (c->two->act_create(c->two, &call.a, HEADS * 130, HEAD_COLS,
                           c->two->matrix_form(call.w[0])) < 0)
        abort();
    call.x = x;
    call.y = (struct k_heads){ y, LDY, HEAD_ROWS };
    for (size_t j = 0; j < 4; j++) {
        bool same = true;

        call.n = counts[j];
        memset(y, 0xff, ny * sizeof *y);
        c->two->run(c->two, heads_call, &call);
        for (uint32_t i = 0; i<call.n; i += call.n> 5 ? 43 : 1)
            for (uint32_t h = 0; h < HEADS; h++) {
                c->two->act_load(c->two, call.a, x + (h * call.n + i) * HEAD_COLS, HEAD_COLS, 1,
                                 HEAD_COLS);
                c->two->linear(c->two, row, HEAD_ROWS, call.a, call.w[h], 1, false);
                same = same && same_bits(row, y + i * LDY + h * HEAD_ROWS, HEAD_ROWS * 4);
            }
        expect(c, same, "linear_heads %s, %u rows: differs from linear", k_type_info[type].name,
               call.n);
    }
    for (int h = 0; h < HEADS; h++)
        c->two->unpack_free(c->two, call.w[h]);
    c->two->act_destroy(c->two, call.a);
    c->two->free(c->two, x, nx * sizeof *x);
    c->two->free(c->two, y, ny * sizeof *y);
    c->two->free(c->two, row, HEAD_ROWS * sizeof *row);
}

/* norm_heads against double, with and without a bias; what is between the heads stays. */
static void check_norms(struct check *c, struct rng *r, uint32_t dim, bool with_bias)
{
    enum { N = 7, H = 3, GAP = 5, MAX_DIM = 512 };
    static float x[N * H * (MAX_DIM + GAP)], was[N * H * (MAX_DIM + GAP)];
    float gain[MAX_DIM], bias[MAX_DIM];
    uint32_t step = dim + GAP;
    double worst = 0;

    rng_fill(r, was, N * H * step);
    rng_fill(r, gain, dim);
    rng_fill(r, bias, dim);
    memcpy(x, was, sizeof x);
    c->two->norm_heads(c->two, (struct k_heads){ x, (size_t)H * step, step }, N, H, dim, gain,
                       with_bias ? bias : NULL, 1e-6f);
    for (uint32_t v = 0; v < N * H; v++) {
        double sum = 0;

        for (uint32_t d = 0; d < dim; d++)
            sum += (double)was[v * step + d] * (double)was[v * step + d];
        for (uint32_t d = 0; d < step; d++) {
            double want = (double)was[v * step + d];

            if (d < dim)
                want = want / sqrt(sum / dim + 1e-6) * (double)gain[d] +
                       (with_bias ? (double)bias[d] : 0);
            worst = fmax(worst, fabs(want - (double)x[v * step + d]));
        }
    }
    expect(c, worst < 2e-6, "norm_heads of %u: off by %g", dim, worst);
}

static void check_small(struct check *c, struct rng *r)
{
    enum { N = 5, COLS = 96, LD = 100 };
    float x[N * LD], y[N * LD], bias[COLS];
    const uint32_t rows[3] = { 4, 0, 4 };
    struct k_act *a;
    bool same = true;

    rng_fill(r, x, N * LD);
    rng_fill(r, bias, COLS);
    memcpy(y, x, sizeof y);
    c->two->add_bias(c->two, y, LD, bias, N, COLS);
    for (int i = 0; i < N * LD; i++)
        same = same && y[i] == (i % LD < COLS ? x[i] + bias[i % LD] : x[i]);
    expect(c, same, "add_bias");
    if (c->two->act_create(c->two, &a, 3, COLS, K_FORM_F32) < 0)
        abort();
    c->two->act_gather(c->two, a, x, LD, rows, 3, COLS);
    for (int i = 0; i < 3; i++)
        expect(c, same_bits(c->two->act_floats(a) + i * COLS, x + rows[i] * LD, COLS * 4),
               "act_gather");
    c->two->act_destroy(c->two, a);
}

/* Sizes that no routes can have are refused. */
static void check_limits(struct check *c)
{
    static const uint32_t bad[][3] = { { K_MAX_TOKENS + 1, 8, 2 },
                                       { 1, K_MAX_EXPERTS + 1, 2 },
                                       { 1, 8, 9 },
                                       { 1, 8, 0 },
                                       { 1, 64, K_MAX_TOP_K + 1 } };
    struct k_routes *r = NULL;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        expect(c, c->two->routes_create(c->two, &r, bad[i][0], bad[i][1], bad[i][2]) < 0 && !r,
               "routes_create takes %u tokens, %u of %u", bad[i][0], bad[i][2], bad[i][1]);
    c->two->routes_destroy(c->two, NULL);
}

void check_moe(struct check *c)
{
    static const struct k_router routers[] = {
        { .experts = 8, .top_k = 3, .groups = 1, .top_groups = 1, .normalize = true, .scale = 1 },
        { .experts = 128, .top_k = 8, .groups = 1, .top_groups = 1, .scale = 1.5f },
        { .experts = 160, .top_k = 6, .groups = 8, .top_groups = 3, .scale = 16 },
        { .experts = 16,
          .top_k = 4,
          .groups = 4,
          .top_groups = 2,
          .sigmoid = true,
          .group_two = true,
          .normalize = true,
          .scale = 2.5f },
        { .experts = 256,
          .top_k = 8,
          .groups = 8,
          .top_groups = 4,
          .sigmoid = true,
          .group_two = true,
          .normalize = true,
          .scale = 2.5f },
        { .experts = K_MAX_EXPERTS,
          .top_k = K_MAX_TOP_K,
          .groups = 1,
          .top_groups = 1,
          .sigmoid = true,
          .scale = 1 },
    };
    struct rng r = { 21 };

    for (size_t i = 0; i < sizeof routers / sizeof routers[0]; i++) {
        check_route(c, &r, &routers[i], 1);
        check_route(c, &r, &routers[i], 50);
    }
    check_ties(c);
    check_limits(c);
    check_mixture(c, &r, K_F32, K_MATH_FLOAT);
    check_mixture(c, &r, K_BF16, K_MATH_FAST);
    check_mixture(c, &r, K_Q8_0, K_MATH_FAST);
    check_mixture(c, &r, K_I8, K_MATH_FAST);
    check_heads(c, &r, K_F32, K_MATH_FLOAT);
    check_heads(c, &r, K_BF16, K_MATH_FAST);
    check_heads(c, &r, K_Q8_0, K_MATH_FAST);
    check_heads(c, &r, K_I8, K_MATH_FAST);
    check_norms(c, &r, 512, false);
    check_norms(c, &r, 64, true);
    check_norms(c, &r, 32, false);
    check_small(c, &r);
}
