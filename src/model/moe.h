/* What the files of the mixture of experts share. Inside the folder only. */
#ifndef SLUICE_MODEL_MOE_H
#define SLUICE_MODEL_MOE_H

#include "model/blocks.h"
#include "model/parcels.h"

struct courier;

/* What expert parallelism needs beside (moe_exchange.c). */
struct moe_travel {
    float *sent;       /* [slice * top_k][hidden]: sorted rows; then what became of them */
    float *taken;      /* [rows][hidden]: rows of all ranks; then what became of them */
    uint32_t *place;   /* [rows]: which sorted row a taken one is */
    uint32_t *token;   /* [rows]: the other way */
    uint32_t *first;   /* [experts held + 1]: first sorted row of each */
    uint32_t *notice;  /* [MOE_NOTICE + experts] */
    uint32_t *notices; /* [ep_size][MOE_NOTICE + experts] */
    struct parcels out, in;
    struct k_routes *routes; /* of the sorted rows */
    struct courier *courier; /* NULL: the shared expert waits */
};

struct moe_work {
    uint32_t max_tokens, slice; /* tokens; most that are routed together */
    uint32_t rows;              /* most that go through the experts here together */
    uint32_t ffn;               /* most columns of an expert here */
    float *logits;              /* [max_tokens][experts] */
    struct k_routes *routes;
    struct k_act *act;         /* [rows] sorted ones */
    float *up, *out;           /* [rows][2 * ffn], [rows][hidden] */
    struct moe_travel *travel; /* NULL: all experts are here */
};

/* [team] The logits of n rows of w->act; which experts `n` of them from `at` on go to. */
void moe_score(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n);
void moe_route(const struct model *m, struct model_work *w, const struct moe *y, uint32_t at,
               uint32_t n, uint32_t id);
/* [team] n tokens of x, sorted as the routes say, through their experts to out. */
void moe_experts(const struct model *m, struct model_work *w, const struct moe *y, const float *x,
                 const struct k_routes *r, uint32_t n);
/* A rank tells these two before its rows for each expert: whether it will have more tokens after
 * this slice, and how many rows it can take at a time. */
enum { MOE_MORE, MOE_ROOM, MOE_NOTICE };

int moe_travel_create(struct moe_work *w, const struct model *m, bool shared);
void moe_travel_destroy(const struct model *m, const struct moe_work *w);
/* moe_run where rows travel. Not within a run of the team. */
void moe_exchange(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n,
                  uint32_t id);

#endif
