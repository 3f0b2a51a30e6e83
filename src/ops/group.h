/* One site of one layer while its factors are chosen: what reads it, and what makes its channels. Inside
 * the planning only (plan.c, group.c, smooth.c). */
#ifndef SLUICE_OPS_GROUP_H
#define SLUICE_OPS_GROUP_H

#include "ops/plan.h"

/* A trial takes so many rows of a weight, evenly spread, and of a layer's experts the first few: the
 * error is a mean that more of them would hardly change. */
#define TRIAL_ROWS    1024
#define TRIAL_LINEARS 6

struct group {
    struct plan *p;
    const struct intake *in;
    const struct seen *seen;
    const struct kernels *k;
    const struct plan_options *opt;
    uint32_t layer;
    enum site site;
    uint32_t expert;   /* SITE_EXPERT_OUT: which */
    size_t first, end; /* the layer's tensors */
    uint32_t cols, n_channels;
    float *x_max, *w_max; /* [n_channels]: over the columns of a channel */
    struct trial_linear linear[TRIAL_LINEARS];
    size_t index[TRIAL_LINEARS]; /* their tensors */
    float *taken[TRIAL_LINEARS]; /* their rows */
    uint32_t n_linears;
    struct err *e;
};

/* Matrices of the layer that read the site, and those of them that are quantized. */
bool group_reads(const struct group *g, size_t i);
bool group_quantizes(const struct group *g, size_t i);
/* Matrices that share the type of what the site decides on, without reading it: an expert's down
 * goes through one operation with its gate and up. */
bool group_takes_along(const struct group *g, size_t i);

/* The channel that makes a column: query heads share the values of their group's head. */
uint32_t group_channel(const struct group *g, uint32_t col);
uint32_t group_count_channels(const struct group *g);

/* What makes the channels: a tensor of the layer (g->end: there is none), and which of its rows. */
size_t group_maker(const struct group *g);
uint32_t group_maker_row(const struct group *g, uint32_t channel);
/* Its bias, g->end if it has none. */
size_t group_maker_bias(const struct group *g);

/* Reads the weights once: x_max and w_max, and the rows that are tried. */
int group_read(struct group *g);

/* smooth.c: the factors, the errors, and how what reads the site is stored. */
int smooth_group(struct group *g);

/* plan.c: an array that lives as long as the plan; NULL without memory. */
float *plan_own(struct plan *p, uint32_t n);
int plan_no_memory(struct err *e);

#endif
