/* What the linears of each layer are given to read, seen on a text: how large each channel gets, and
 * some of the rows themselves, so that a quantized linear can be tried on them. */
#ifndef SLUICE_OPS_CALIBRATE_H
#define SLUICE_OPS_CALIBRATE_H

#include <stddef.h>
#include <stdint.h>

struct err;
struct runner;

/* Where linears read. */
enum site {
    SITE_ATTN_IN,    /* behind the first norm: q, k, v; q_a, kv_a */
    SITE_Q_B_IN,     /* behind the norm of the compressed query: q_b */
    SITE_ATTN_OUT,   /* what attention gives: o */
    SITE_FFN_IN,     /* behind the second norm: gate, up, router, experts */
    SITE_FFN_OUT,    /* inside a dense feed-forward part: down */
    SITE_SHARED_OUT, /* inside the shared experts: down */
    SITE_EXPERT_OUT, /* inside one of the experts: its down. Each has seen something else */
    SITES
};

struct seen {
    uint32_t cols;     /* 0: nothing was seen here */
    float *low, *high; /* [cols] */
    float *rows;       /* [n_rows][cols] */
    float *peak;       /* [n_rows]: the largest magnitude of a row over its root mean square */
    uint32_t n_rows;
};

/* Rows kept of a site: half of them evenly spread over the text, half those with the highest peaks. A
 * scale for a whole token is lost on few tokens, but on those entirely, and rows at random miss them. */
#define CALIBRATE_ROWS       64
#define CALIBRATE_MAX_BYTES  (1ull << 30) /* of all rows kept: fewer of each where that is more */
#define CALIBRATE_MAX_TOKENS (1u << 20)

/* Rows kept of an expert: the first ones. */
#define CALIBRATE_EXPERT_ROWS 8

struct calibration {
    uint32_t n_layers, n_experts;
    struct seen (*layer)[SITES]; /* [n_layers]; SITE_EXPERT_OUT stays empty: */
    struct seen *expert;         /* [n_layers][n_experts] */
};

/* Runs the ids through r (made with MODEL_DTYPE_FLOAT32), in pieces that each begin anew. ERR_NOMEM,
 * ERR_LIMIT. */
int calibrate(struct calibration *out, struct runner *r, const int32_t *ids, size_t n,
              struct err *e);
void calibration_finish(struct calibration *c); /* zeros are fine */

/* The largest magnitude of a channel. */
float seen_max(const struct seen *s, uint32_t col);

#endif
