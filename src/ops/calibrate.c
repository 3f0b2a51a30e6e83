#include "ops/calibrate.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "ops/runner.h"

static const char *const site_names[SITES] = {
    [SITE_ATTN_IN] = "attn_norm", [SITE_Q_B_IN] = "q_a_norm", [SITE_ATTN_OUT] = "attn_ctx",
    [SITE_FFN_IN] = "ffn_norm",   [SITE_FFN_OUT] = "ffn_act", [SITE_SHARED_OUT] = "shared_act",
};

struct watch {
    struct calibration *c;
    size_t at, stride;    /* tokens before this piece; every stride-th is kept */
    uint32_t even;        /* so many of them; */
    uint32_t keep;        /* and with the peaks so many rows of a site */
    uint32_t keep_expert; /* rows of an expert: the first ones */
    bool failed;          /* no memory */
};

static bool is_expert(const struct calibration *c, const struct seen *s)
{
    return c->expert && s >= c->expert && s < c->expert + (size_t)c->n_layers * c->n_experts;
}

static struct seen *site_of(struct watch *w, const char *name)
{
    char *rest;
    unsigned long layer;
    unsigned expert;

    if (name[0] != 'L')
        return NULL;
    layer = strtoul(name + 1, &rest, 10);
    if (*rest != '.' || layer >= w->c->n_layers)
        return NULL;
    if (sscanf(rest, ".expert%u_act", &expert) == 1 && expert < w->c->n_experts)
        return &w->c->expert[layer * w->c->n_experts + expert];
    for (int i = 0; i < SITES; i++)
        if (site_names[i] && strcmp(rest + 1, site_names[i]) == 0)
            return &w->c->layer[layer][i];
    return NULL;
}

static bool begin(struct seen *s, uint32_t cols, uint32_t keep)
{
    s->cols = cols;
    s->low = calloc(cols, sizeof *s->low);
    s->high = calloc(cols, sizeof *s->high);
    s->rows = calloc((size_t)keep * cols, sizeof *s->rows);
    s->peak = calloc(keep, sizeof *s->peak);
    return s->low && s->high && s->rows && s->peak;
}

static float peak_of(const float *x, uint32_t cols)
{
    double sum = 0;
    float max = 0;

    for (uint32_t j = 0; j < cols; j++) {
        sum += (double)x[j] * (double)x[j];
        max = fmaxf(max, fabsf(x[j]));
    }
    return sum > 0 ? (float)((double)max / sqrt(sum / cols)) : 0;
}

/* Where the row goes, or keep if it is not kept: the first `even` are spread evenly, the others
 * are replaced by what is more extreme. */
static uint32_t place_for(const struct watch *w, const struct seen *s, size_t token, float peak)
{
    uint32_t least = w->even;

    if (token % w->stride == 0 && token / w->stride < w->even)
        return (uint32_t)(token / w->stride);
    for (uint32_t i = w->even; i < w->keep; i++)
        if (s->peak[i] < s->peak[least])
            least = i;
    return least < w->keep && peak > s->peak[least] ? least : w->keep;
}

static void keep_row(const struct watch *w, struct seen *s, size_t token, const float *x)
{
    float peak;
    uint32_t at;

    if (is_expert(w->c, s)) {
        if (s->n_rows < w->keep_expert)
            memcpy(s->rows + (size_t)s->n_rows++ * s->cols, x, s->cols * sizeof *x);
        return;
    }
    peak = peak_of(x, s->cols);
    at = place_for(w, s, token, peak);
    if (at == w->keep)
        return;
    memcpy(s->rows + (size_t)at * s->cols, x, s->cols * sizeof *x);
    s->peak[at] = peak;
}

/* 0 is always inside [low, high]: a static scale needs it there. */
static void watch_rows(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                       uint32_t cols)
{
    struct watch *w = arg;
    struct seen *s = site_of(w, name);

    if (!s || w->failed)
        return;
    if (s->cols == 0 && !begin(s, cols, is_expert(w->c, s) ? w->keep_expert : w->keep)) {
        w->failed = true;
        return;
    }
    for (uint32_t i = 0; i < n; i++) {
        const float *x = rows + i * ld;

        for (uint32_t j = 0; j < cols; j++) {
            s->low[j] = fminf(s->low[j], x[j]);
            s->high[j] = fmaxf(s->high[j], x[j]);
        }
        keep_row(w, s, w->at + i, x);
    }
}

/* Rows of every site that fit into CALIBRATE_MAX_BYTES. */
static uint32_t rows_to_keep(const struct model_config *c)
{
    uint64_t ctx = (uint64_t)c->heads * (c->kv_lora ? c->v_dim : c->head_dim);
    uint64_t row = 2ull * c->hidden + c->q_lora + ctx + c->ffn +
                   (uint64_t)c->shared_experts * c->expert_ffn;
    uint64_t n = CALIBRATE_MAX_BYTES / (row * sizeof(float) * c->n_layers);

    return n < 1 ? 1 : n > CALIBRATE_ROWS ? CALIBRATE_ROWS : (uint32_t)n;
}

static uint32_t rows_to_keep_of_expert(const struct model_config *c)
{
    uint64_t all = (uint64_t)c->expert_ffn * sizeof(float) * c->experts * c->n_layers;
    uint64_t n = all ? CALIBRATE_MAX_BYTES / all : 0;

    return n < 1 ? 1 : n > CALIBRATE_EXPERT_ROWS ? CALIBRATE_EXPERT_ROWS : (uint32_t)n;
}

/* Counts the rows, those of zeros (a short text fills not all of them) left out. */
static void drop_empty(struct calibration *c, uint32_t keep)
{
    for (uint32_t i = 0; i < c->n_layers; i++)
        for (int k = 0; k < SITES; k++) {
            struct seen *s = &c->layer[i][k];

            for (uint32_t r = 0; s->cols && r < keep; r++)
                if (s->peak[r] > 0)
                    memmove(s->rows + (size_t)s->n_rows++ * s->cols, s->rows + (size_t)r * s->cols,
                            s->cols * sizeof *s->rows);
        }
}

int calibrate(struct calibration *out, struct runner *r, const int32_t *ids, size_t n,
              struct err *e)
{
    const struct model_config *c = runner_config(r);
    uint32_t piece = c->max_position < RUNNER_MAX_TOKENS ? c->max_position : RUNNER_MAX_TOKENS;
    struct watch w = { .c = out,
                       .keep = rows_to_keep(c),
                       .keep_expert = rows_to_keep_of_expert(c) };

    *out = (struct calibration){ .n_layers = c->n_layers, .n_experts = c->experts };
    if (n < 1 || n > CALIBRATE_MAX_TOKENS)
        return err_set(e, ERR_LIMIT, "a calibration text of %zu tokens: 1 to %u are taken", n,
                       CALIBRATE_MAX_TOKENS);
    out->layer = calloc(c->n_layers, sizeof *out->layer);
    out->expert = calloc((size_t)c->n_layers * c->experts + 1, sizeof *out->expert);
    if (!out->layer || !out->expert) {
        calibration_finish(out);
        return err_set(e, ERR_NOMEM, "no memory for the calibration");
    }
    w.even = (w.keep + 1) / 2;
    w.stride = (n + w.even - 1) / w.even;
    runner_probe(r, watch_rows, &w);
    for (; w.at < n; w.at += piece)
        runner_step(r, ids + w.at, n - w.at < piece ? (uint32_t)(n - w.at) : piece);
    runner_probe(r, NULL, NULL);
    drop_empty(out, w.keep);
    if (!w.failed)
        return 0;
    calibration_finish(out);
    return err_set(e, ERR_NOMEM, "no memory for the calibration");
}

static void seen_finish(struct seen *s)
{
    free(s->low);
    free(s->high);
    free(s->rows);
    free(s->peak);
}

void calibration_finish(struct calibration *c)
{
    for (uint32_t i = 0; c->layer && i < c->n_layers; i++)
        for (int k = 0; k < SITES; k++)
            seen_finish(&c->layer[i][k]);
    for (size_t i = 0; c->expert && i < (size_t)c->n_layers * c->n_experts; i++)
        seen_finish(&c->expert[i]);
    free(c->layer);
    free(c->expert);
    *c = (struct calibration){ 0 };
}

float seen_max(const struct seen *s, uint32_t col)
{
    return fmaxf(-s->low[col], s->high[col]);
}
