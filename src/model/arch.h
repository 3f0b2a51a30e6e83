/* Inside of a model: what all architectures share, and what each brings. A layer is made of blocks
 * (blocks.h) by what the configuration says; an architecture is one small file with one `struct
 * arch`, and one line in the table of source.c. Inside the folder only. */
#ifndef SLUICE_MODEL_ARCH_H
#define SLUICE_MODEL_ARCH_H

#include "model/load.h"
#include "model/model.h"
#include "model/weights.h"

struct layer;
struct mla_work;
struct moe_work;
struct mtp;
struct mtp_work;

struct arch {
    const char *hf;   /* config.json's "architectures" */
    const char *gguf; /* general.architecture; the prefix of its keys */
    bool gguf_pairs;  /* a GGUF file has the rows of q and k in rotary pairs (2i, 2i+1) */
    bool qkv_bias;    /* q, k and v have biases, which no key of config.json says */
    bool head_norms;  /* each query and key head is normalized before it turns */
    bool latent;      /* multi-head latent attention */
    bool experts;     /* some layers may have a mixture of experts */
};

extern const struct arch arch_llama, arch_qwen2, arch_qwen3, arch_qwen3_moe, arch_deepseek_v2,
    arch_deepseek_v3;

struct model {
    struct model_config cfg;
    const struct arch *arch;
    const struct kernels *k; /* borrowed */
    enum k_math math;
    enum k_type kv_type;
    uint32_t first_layer, n_layers; /* this stage's */
    uint32_t max_pos;               /* rows of the rotary table */
    float *cos, *sin;
    struct k_matrix *embed; /* first stage; the last one too if it is also the head */
    struct k_matrix *head;  /* last stage; NULL elsewhere, and where embed serves */
    float *final_norm;      /* last stage */
    float *final_norm_bias; /* NULL: none */
    struct layer *layers;   /* [n_layers] */
    struct mtp *mtp;        /* NULL: not loaded */
    uint64_t weight_bytes;
    char fingerprint[65];
};

/* What the layers of one step need. Rows are tokens; columns are multiples of 16. */
struct work_shape {
    uint32_t wide; /* columns of model_work.wide and .ctx */
    uint32_t ctx;
    uint32_t act;          /* most columns of model_work.act */
    uint32_t forms;        /* k_form bits that the matrices which read it want */
    uint32_t head_forms;   /* the same of the matrices of a head (latent attention) */
    uint32_t expert_forms; /* and of those of an expert */
};

struct model_work {
    const struct model *m;
    uint32_t max_tokens, max_logit_rows;
    struct work_shape shape;
    float *x;             /* [max_tokens][hidden]: the residual stream */
    float *wide;          /* [max_tokens][wide] */
    float *ctx;           /* [max_tokens][ctx] */
    struct k_act *act;    /* [max_tokens][act] */
    struct mla_work *mla; /* NULL: no layer has latent attention */
    struct moe_work *moe; /* NULL: no layer has experts */
    struct mtp_work *mtp; /* NULL: no layer for drafts */
    float *head_x;        /* [max_logit_rows][hidden] */
    struct k_act *head_act;
    float *logits; /* [max_logit_rows][vocab] */
    model_probe_fn *probe;
    void *probe_arg;
};

/* A norm's gain, and the bias that a quantizer may have folded into it (NULL: none). */
struct norm {
    float *gain, *bias;
};

/* `name` without its ".weight". */
int norm_load(struct load *l, struct norm *out, const char *name, uint32_t n);
void norm_free(const struct model *m, struct norm *x, uint32_t n);

/* y (= or +=) a times w. A matrix of int8 whose activations have one scale gets them first.
 * [team] */
void work_linear(const struct kernels *k, float *y, size_t ldy, struct k_act *a,
                 const struct k_matrix *w, uint32_t n, bool add);
/* The forms that an activation must have for w: with those that the others are made from. */
uint32_t work_forms(const struct kernels *k, const struct k_matrix *w);
/* [rows][cols] zeroed floats of the backend, and the way back. */
float *work_rows(const struct model *m, uint32_t rows, uint32_t cols);
void work_rows_free(const struct model *m, float *p, uint32_t rows, uint32_t cols);

/* The matrix that logits come from: the head, or the embedding where that is tied. */
const struct k_matrix *model_head(const struct model *m);
/* Everything of a step that depends on the shape of the batch only, before its run. */
void work_plan(const struct model *m, struct model_work *w, const struct model_batch *b);

/* cos and sin [max_pos][n] of pos * inv_freq, times scale. */
void rope_fill(const double *inv_freq, double scale, uint32_t n, uint32_t max_pos, float *cos_out,
               float *sin_out);

/* The factor on q.k of latent attention: 1 / sqrt(head_dim) times YaRN's correction. */
double rope_latent_scale(const struct model_config *c);

/* 64 hex digits over configuration, names, types, shapes and samples of all tensors. */
void fingerprint_of(char out[65], const struct model_config *c, const struct weights *w);

/* The rows of x (an activation's floats, or a float buffer) to the probe, if there is one. Only
 * called where the step runs on one thread. */
void work_probe(const struct model_work *w, const float *rows, size_t ld, uint32_t n, uint32_t cols,
                const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#endif
