#include "sched/equal_time.h"

#include <math.h>
#include <string.h>

uint32_t equal_time_lengths(uint32_t base, uint32_t out[64])
{
    uint32_t n = 0;

    for (uint32_t j = 0; j < 64; j++) {
        uint32_t length = (uint32_t)((uint64_t)base * (64 - j) / 64);

        if (length)
            out[n++] = length;
    }
    return n;
}

/* Least squares of n rows on three columns by a singular value decomposition (one-sided Jacobi), so
 * that the minimum-norm solution comes out where columns depend on each other. */
struct least {
    uint32_t n;
    double u[EQUAL_TIME_MAX_ROWS][3];
    double v[3][3];
};

static void rotate(struct least *s, int p, int q)
{
    double alpha = 0, beta = 0, gamma = 0, zeta, t, c, sn;

    for (uint32_t i = 0; i < s->n; i++) {
        alpha += s->u[i][p] * s->u[i][p];
        beta += s->u[i][q] * s->u[i][q];
        gamma += s->u[i][p] * s->u[i][q];
    }
    if (fabs(gamma) <= 1e-17 * sqrt(alpha * beta))
        return;
    zeta = (beta - alpha) / (2 * gamma);
    t = copysign(1, zeta) / (fabs(zeta) + sqrt(1 + zeta * zeta));
    c = 1 / sqrt(1 + t * t);
    sn = c * t;
    for (uint32_t i = 0; i < s->n + 3; i++) {
        double *row = i < s->n ? s->u[i] : s->v[i - s->n];
        double x = row[p], y = row[q];

        row[p] = c * x - sn * y;
        row[q] = sn * x + c * y;
    }
}

/* y = rows . out in the least-squares sense. */
static void least_squares(struct least *s, const double *y, double out[3])
{
    double sigma[3] = { 0 }, most = 0;

    memset(s->v, 0, sizeof s->v);
    for (int i = 0; i < 3; i++)
        s->v[i][i] = 1;
    for (int sweep = 0; sweep < 60; sweep++)
        for (int p = 0; p < 2; p++)
            for (int q = p + 1; q < 3; q++)
                rotate(s, p, q);
    for (int j = 0; j < 3; j++) {
        for (uint32_t i = 0; i < s->n; i++)
            sigma[j] += s->u[i][j] * s->u[i][j];
        sigma[j] = sqrt(sigma[j]);
        most = fmax(most, sigma[j]);
    }
    out[0] = out[1] = out[2] = 0;
    for (int j = 0; j < 3; j++) {
        double w = 0;

        if (sigma[j] <= most * 2.3e-16 * (s->n > 3 ? s->n : 3))
            continue;
        for (uint32_t i = 0; i < s->n; i++)
            w += s->u[i][j] * y[i];
        w /= sigma[j] * sigma[j];
        for (int i = 0; i < 3; i++)
            out[i] += s->v[i][j] * w;
    }
}

bool equal_time_fit(struct equal_time *m, const double *length, const double *ms, uint32_t n)
{
    struct least s = { .n = n < EQUAL_TIME_MAX_SAMPLES ? n : EQUAL_TIME_MAX_SAMPLES };
    double out[3], base = m->base;

    if (n < EQUAL_TIME_MIN_SAMPLES)
        return false;
    for (uint32_t i = 0; i < s.n; i++) {
        s.u[i][0] = length[i] * length[i];
        s.u[i][1] = length[i];
        s.u[i][2] = 1;
    }
    least_squares(&s, ms, out);
    m->model = EQUAL_TIME_STARTUP;
    m->a = out[0];
    m->b = out[1];
    m->c = out[2];
    m->target = m->a * base * base + m->b * base;
    if (!(m->target > 0))
        m->target = 1;
    return true;
}

static uint32_t rounded(const struct equal_time *m, double x)
{
    double s = trunc(m->base + m->smooth * (x - m->base));
    uint32_t page = m->page > 64 ? m->page : 64;
    double n = fmax(s, m->min_chunk);

    if (n > UINT32_MAX / 2)
        return UINT32_MAX / 2 / page * page;
    return ((uint32_t)n + page - 1) / page * page;
}

uint32_t equal_time_chunk(const struct equal_time *m, uint64_t history, double budget_ms)
{
    double t = budget_ms > 0 ? budget_ms : m->target, h = (double)history;
    double B = (m->model == EQUAL_TIME_STARTUP ? 2 : 1) * m->a * h + m->b, C = -t, d, x;

    if (m->model == EQUAL_TIME_NONE || m->a == 0)
        return 0;
    if (m->model == EQUAL_TIME_HISTORY)
        C += m->b * h + m->c;
    d = B * B - 4 * m->a * C;
    if (!(d >= 0))
        return 0;
    x = (-B + sqrt(d)) / (2 * m->a);
    return x > 0 ? rounded(m, x) : 0;
}

double equal_time_of(const struct equal_time *m, double chunk, double history)
{
    double end = chunk + history;

    if (m->model == EQUAL_TIME_HISTORY)
        return m->a * chunk * end + m->b * end + m->c;
    return m->a * (end * end - history * history) + m->b * chunk;
}

static void refit(struct equal_time *m)
{
    struct least s = { .n = m->n_rows };
    double ms[EQUAL_TIME_MAX_ROWS], out[3];

    for (uint32_t i = 0; i < s.n; i++) {
        s.u[i][0] = m->row[i].area;
        s.u[i][1] = m->row[i].length;
        s.u[i][2] = m->row[i].requests;
        ms[i] = m->row[i].ms;
    }
    least_squares(&s, ms, out);
    m->model = EQUAL_TIME_HISTORY;
    m->a = out[0];
    m->b = out[1];
    m->c = out[2];
}

#define FIRST_STEPS 3
#define ROWS_TO_FIT 5

void equal_time_measured(struct equal_time *m, const uint32_t *chunk, const uint64_t *history,
                         uint32_t n, double ms)
{
    struct equal_time_row row = { .requests = n, .ms = ms };
    bool fresh = true;

    if (!(ms > 0) || n == 0)
        return;
    for (uint32_t i = 0; i < n; i++) {
        double c = chunk[i], h = (double)history[i];

        row.area += c * (c + h);
        row.length += c + h;
        fresh = fresh && history[i] == 0;
    }
    if (fresh && m->first_steps < FIRST_STEPS) {
        m->target = ms;
        m->first_steps++;
    }
    if (m->frozen)
        return;
    if (m->n_rows >= m->max_fit || m->n_rows == EQUAL_TIME_MAX_ROWS) {
        m->frozen = true;
        return;
    }
    m->row[m->n_rows++] = row;
    if (m->n_rows >= ROWS_TO_FIT)
        refit(m);
}

static uint64_t least_of(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

struct budget {
    const struct equal_time *m;
    const struct equal_time_step *s;
    uint64_t tokens;
    double ms;
};

/* A prefill's n tokens cut to the time left; false: the loop over its queue ends. */
static bool cut(const struct budget *b, const struct equal_time_request *r, uint64_t history,
                uint64_t *n)
{
    uint32_t chunk;

    if (b->m->model == EQUAL_TIME_NONE || r->done >= r->prompt || (b->s->timing && r->done == 0))
        return true;
    chunk = equal_time_chunk(b->m, history, b->ms);
    if (chunk)
        *n = least_of(*n, chunk);
    return chunk || b->s->timing || b->ms == b->m->target;
}

static void take(struct budget *b, const struct equal_time_request *r, uint64_t n)
{
    b->tokens -= n;
    /* the history that a cached prefix makes is not charged: so the reference has it */
    if (b->m->model != EQUAL_TIME_NONE && r->done < r->prompt)
        b->ms -= equal_time_of(b->m, (double)n, (double)r->done);
}

static bool left(const struct budget *b)
{
    return b->tokens > 0 && b->ms > 0;
}

void equal_time_split(const struct equal_time *m, const struct equal_time_step *s,
                      const struct equal_time_request *running, uint32_t n_running,
                      const struct equal_time_request *waiting, uint32_t n_waiting,
                      uint64_t *tokens)
{
    struct budget b = { m, s, s->token_budget, m->model == EQUAL_TIME_NONE ? INFINITY : m->target };

    memset(tokens, 0, (n_running + (size_t)n_waiting) * sizeof *tokens);
    for (uint32_t i = 0; i < n_running && left(&b); i++) {
        const struct equal_time_request *r = &running[i];
        uint64_t n = r->total - r->done;

        if (s->threshold)
            n = least_of(n, s->threshold);
        n = least_of(n, b.tokens);
        n = least_of(n, s->max_model_len - 1 > r->done ? s->max_model_len - 1 - r->done : 0);
        if (!cut(&b, r, r->done, &n))
            break;
        tokens[i] = n;
        take(&b, r, n);
    }
    for (uint32_t i = 0; i < n_waiting && left(&b); i++) {
        const struct equal_time_request *r = &waiting[i];
        uint64_t history = r->done ? r->done : r->hit, n = r->total - history;

        if (s->threshold)
            n = least_of(n, s->threshold);
        if (!cut(&b, r, history, &n))
            break;
        n = least_of(n, b.tokens);
        tokens[n_running + i] = n;
        take(&b, r, n);
    }
}
