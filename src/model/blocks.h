/* The blocks that decoder layers are made of, and the layer itself:
 *
 *     x += attention(norm(x)), then x += ffn(norm(x))
 *
 * Attention is grouped-query (gqa) or multi-head latent (mla); the feed-forward part is dense (mlp)
 * or a mixture of experts (moe). Each block has the same four verbs: load packs its weights and may
 * leave it half built, unload copes with that and with zeros; shape raises what a step must have
 * room for; run is its part of a step, reads the normalized rows in w->act and adds to w->x.
 * Inside the folder only. */
#ifndef SLUICE_MODEL_BLOCKS_H
#define SLUICE_MODEL_BLOCKS_H

#include "model/arch.h"

/* ---- grouped-query attention (gqa.c) ---- */

struct gqa {
    struct k_matrix *qkv; /* rows: query heads, key heads, value heads */
    struct k_matrix *o;
    float *bias;            /* of qkv's rows; NULL: none */
    float *o_bias;          /* NULL: none */
    float *q_norm, *k_norm; /* [head_dim]; NULL: none */
};

int gqa_check(const struct model_config *c, struct err *e);
int gqa_load(struct load *l, struct gqa *y, uint32_t id);
void gqa_unload(const struct model *m, struct gqa *y);
void gqa_shape(const struct model *m, const struct gqa *y, struct work_shape *s);
void gqa_run(const struct model *m, struct model_work *w, const struct gqa *y,
             const struct k_kv *kv, const struct model_batch *b, uint32_t id);

/* ---- multi-head latent attention (mla.c, mla_load.c, mla_work.c) ---- */

struct mla {
    struct k_matrix *a; /* rows: q_a's (q_lora of them), the latent, the rotated part of the key */
    struct norm q_a_norm, kv_a_norm;
    struct k_matrix *q_b; /* rows: for each head nope_dim, then rope_dim */
    struct k_matrix *o;
    /* The parts of kv_b, a matrix a head. A key's unrotated part is key_up times the latent;
     * instead of the key, the query can be taken to the latent's space by key_down = key_up
     * transposed. */
    struct k_matrix **key_down; /* [heads], rows: latent */
    struct k_matrix **key_up;   /* [heads], rows: nope_dim; NULL: never expanded */
    struct k_matrix **value_up; /* [heads], rows: v_dim */
};

int mla_check(const struct model_config *c, struct err *e);
/* True if long prompts are attended in expanded form. */
bool mla_expands(const struct model *m);
int mla_load(struct load *l, struct mla *y, uint32_t id);
void mla_unload(const struct model *m, struct mla *y);
void mla_shape(const struct model *m, const struct mla *y, struct work_shape *s);
void mla_run(const struct model *m, struct model_work *w, const struct mla *y,
             const struct k_kv *kv, const struct model_batch *b, uint32_t id);

/* Rows of a batch that go through attention together: a piece of a sequence each. */
struct mla_slice {
    uint32_t row, n;
    const struct k_seq *seqs; /* rows counted from the slice's first */
    uint32_t n_seqs;
    const uint32_t *gather; /* [heads][n]: which head of which row, in the queries of the slice */
    bool expanded;          /* one sequence, whose keys and values are made from the latents */
};

struct mla_work {
    uint32_t max_tokens;
    uint32_t rows;            /* most of a slice in absorbed form */
    float *q;                 /* [rows][heads][latent] */
    float *ctx;               /* [heads][rows][latent] */
    struct k_act *act;        /* [heads][rows] x the larger of nope_dim and latent */
    uint32_t *gather;         /* [max_tokens][heads] */
    struct k_seq *seqs;       /* [max_tokens] */
    struct mla_slice *slices; /* [max_tokens] */
    uint32_t n_slices;

    /* expanded form; positions is 0 if it is never chosen */
    uint32_t positions, heads; /* at a time, at most */
    uint32_t part;             /* positions that are expanded at a time: whole pieces, or all */
    float *sums;               /* [max_tokens][heads][2], between the parts */
    float *latent, *pe;        /* [positions][latent], [positions][rope_dim] */
    struct k_act *latent_act;
    float *key, *value; /* [heads][positions][nope_dim], [heads][positions][v_dim] */
};

/* Prompts are attended in expanded form, outputs in absorbed form. Absorbed, a (row, key, head) takes 2 *
 * latent + rope multiplications, expanded nope + rope + v, but every key has to be expanded first,
 * for (nope + v) * latent multiplications. With DeepSeek-V3's sizes both are equal at 170 rows of a
 * chunk, whatever its history; measured (AVX-512, bfloat16) they are at 220 rows behind 2,000
 * tokens, and 512 rows take two thirds of the time expanded. A short rest of a prompt behind a long
 * history would be faster absorbed; it is not, so that a row's bits do not depend on where its
 * prompt was cut, or on what the prefix cache had of it. */
/* Floats of expanded keys and values: what bounds the heads that are expanded at a time. */
#define MLA_EXPAND_FLOATS (32u << 20)

int mla_work_create(struct mla_work **out, const struct model *m, uint32_t max_tokens,
                    const struct work_shape *s);
void mla_work_destroy(const struct model *m, struct mla_work *w);
/* Cuts a batch into slices. */
void mla_plan(const struct model *m, struct mla_work *w, const struct model_batch *b);

/* ---- dense feed-forward (mlp.c) ---- */

struct mlp {
    struct k_matrix *gate_up; /* rows: gate, up */
    struct k_matrix *down;
    uint32_t ffn; /* columns of this rank */
};

/* prefix: "mlp", or where else in the layer gate_proj, up_proj and down_proj stand; ffn: columns of all
 * ranks. */
int mlp_load(struct load *l, struct mlp *y, uint32_t id, const char *prefix, uint32_t ffn);
void mlp_unload(const struct model *m, struct mlp *y);
void mlp_shape(const struct model *m, const struct mlp *y, struct work_shape *s);
/* [team] In two steps: gate_up of w->act to w->wide, and to w->act what is multiplied by down. */
void mlp_up(const struct model *m, struct model_work *w, const struct mlp *y, uint32_t n);
void mlp_act(const struct model *m, struct model_work *w, const struct mlp *y, uint32_t n);

/* ---- mixture of experts (moe.c, moe_load.c, moe_exchange.c) ---- */

struct moe {
    struct k_matrix *router;           /* [experts][hidden], multiplied in float32 */
    float *bias;                       /* [experts], of the selection; NULL: none */
    struct share held;                 /* the experts of this rank */
    struct k_matrix **gate_up, **down; /* [held.n] */
    uint32_t ffn;                      /* columns of an expert here */
    struct mlp shared;                 /* ffn 0: none */
};

/* True if experts are whole and rows travel to the ranks that have them. Then moe_run is called
 * outside of a run of the team, also for no rows, and by all ranks. */
static inline bool moe_apart(const struct model *m)
{
    return m->part.ep_size > 1;
}

int moe_load(struct load *l, struct moe *y, uint32_t id);
void moe_unload(const struct model *m, struct moe *y);
void moe_shape(const struct model *m, const struct moe *y, struct work_shape *s);
/* [team], unless moe_apart */
void moe_run(const struct model *m, struct model_work *w, const struct moe *y, uint32_t n,
             uint32_t id);

/* Floats of the widest buffer of sorted rows: with K_MAX_TOKENS it bounds the tokens that are
 * routed together, and the rows that a rank takes at a time. Larger steps are done in slices. */
#define MOE_SLICE_FLOATS (64u << 20)
/* A rank has room for so many times the rows that it would get if all ranks got equally many. */
#define MOE_UNEVEN 2

int moe_work_create(struct moe_work **out, const struct model *m, uint32_t max_tokens,
                    const struct work_shape *s);
void moe_work_destroy(const struct model *m, struct moe_work *w);

/* ---- a layer (layer.c) ---- */

struct layer {
    struct norm attn_norm, ffn_norm;
    struct gqa gqa; /* zeros where attention is latent */
    struct mla mla;
    struct mlp mlp; /* zeros in a layer with experts */
    struct moe moe;
};

/* Sizes that no layer can have, by name. */
int layer_check(const struct model *m, struct err *e);
int layer_load(struct load *l, struct layer *y, uint32_t id);
void layer_unload(const struct model *m, struct layer *y);
void layer_shape(const struct model *m, const struct layer *y, struct work_shape *s);
/* [team] Attention, and the normalized rows that the feed-forward part reads. */
void layer_attend(const struct model *m, struct model_work *w, const struct layer *y,
                  const struct k_kv *kv, const struct model_batch *b, uint32_t id);
/* The feed-forward part. [team], unless it has experts and moe_apart. */
void layer_feed(const struct model *m, struct model_work *w, const struct layer *y, uint32_t n,
                uint32_t id);

/* Layers that a step goes through, the first of them number `id`. */
struct span {
    void (*begin)(void *arg); /* [team] makes the rows that they read */
    void *arg;
    const struct layer *layers;
    uint32_t n, id;
    const struct k_kv *kv; /* [n] */
    const struct model_batch *b;
};
/* In one run of the team; where moe_apart, in one for each layer with experts. */
void layers_run(const struct model *m, struct model_work *w, const struct span *s);

/* ---- the layer for drafts (mtp.c) ---- */

struct mtp {
    struct norm embed_norm, state_norm, head_norm;
    struct k_matrix *join; /* from embedding and state, side by side, to the layer's input */
    struct k_matrix *embed, *head; /* NULL where they repeat the model's */
    struct layer layer;
};

int mtp_load(struct load *l);
void mtp_unload(struct model *m);
void mtp_shape(const struct model *m, struct work_shape *s);

struct mtp_work {
    float *join;    /* [max_tokens][2 * hidden] */
    uint32_t *same; /* 0, 1, 2 .. */
    bool drafted;   /* w->x is the output of a draft, and not of a forward */
};

int mtp_work_create(struct mtp_work **out, const struct model *m, uint32_t max_tokens);
void mtp_work_destroy(const struct model *m, struct mtp_work *w, uint32_t max_tokens);

/* Logits of rows of w->x by a norm and a head. */
float *work_logits(const struct model *m, struct model_work *w, const struct norm *norm,
                   const struct k_matrix *head, const uint32_t *rows, uint32_t n_rows, size_t *ld);

static inline void raise_to(uint32_t *a, uint32_t b)
{
    if (*a < b)
        *a = b;
}

#endif
