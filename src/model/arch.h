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
struct head_travel;
struct norm;
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
    struct model_part part;         /* sizes are 1 or more */
    uint32_t heads, kv_heads;       /* this rank's; of all ranks: cfg's */
    uint32_t first_head, first_kv_head;
    struct share ids;      /* of the vocabulary: this rank's rows of the embedding */
    struct share head_ids; /* and of the head */
    struct share experts;  /* this rank's: whole where there is expert parallelism, else in part */
    uint32_t max_pos;      /* rows of the rotary table */
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
    uint32_t expert_ffn;   /* most columns of an expert */
};

struct model_work {
    const struct model *m;
    uint32_t max_tokens, max_logit_rows;
    struct work_shape shape;
    float *x;             /* [max_tokens + tp_size - 1][hidden]: the residual stream */
    float *wide;          /* [max_tokens][wide] */
    float *ctx;           /* [max_tokens][ctx] */
    struct k_act *act;    /* [max_tokens][act] */
    struct mla_work *mla; /* NULL: no layer has latent attention */
    struct moe_work *moe; /* NULL: no layer has experts */
    struct mtp_work *mtp; /* NULL: no layer for drafts */
    float *head_x;        /* [max_logit_rows][hidden] */
    struct k_act *head_act;
    float *logits;                   /* [max_logit_rows][vocab] */
    struct head_travel *head_travel; /* NULL: the head is not shared by data-parallel ranks */

    /* Tensor parallel; NULL alone. */
    float *sum;     /* as x: a block's output before it is summed over the ranks */
    int32_t *ids;   /* [max_tokens]: rows of this rank's embedding, -1 where another has it */
    uint32_t *same; /* 0, 1, 2 .. */
    float *parts;   /* [tp_size][max_logit_rows][vocabulary of a rank, the largest] */
    /* The rows of the step that this rank keeps between the blocks (stream.c): all, or with `spread`
     * those from tp_rank * each on, as many of `each` as there are. */
    struct share own;
    uint32_t each;
    bool spread;

    void (*layer_done)(void *arg, uint32_t layer); /* model_watch_layers */
    void *layer_arg;
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
/* [team] The normalized rows of the stream, all of them, to w->act. */
void work_norm(const struct model *m, struct model_work *w, const struct norm *norm, uint32_t n);
/* [team] A block's last product: x += w->act times matrix + bias (NULL: none), summed over the ranks. */
void work_output(const struct model *m, const struct model_work *w, const struct k_matrix *matrix,
                 const float *bias, uint32_t n);
/* [team] The same where this rank's part stands in w->sum (which is not NULL). */
void work_sum(const struct model *m, const struct model_work *w, const float *bias, uint32_t n);
/* [team] All rows of the step in a buffer like x, of which each rank has its own. With w->spread only. */
void stream_gather(const struct model *m, const struct model_work *w, float *rows);
/* [team] Rows of an embedding, of all ranks' parts together. The ids are those of stream_plan. */
void stream_embed(const struct model *m, const struct model_work *w, const struct k_matrix *table,
                  float *rows, const int32_t *ids, uint32_t n);
/* Before a step of n rows: which of them this rank keeps, and where their ids (NULL: none) are. */
void stream_plan(const struct model *m, struct model_work *w, const int32_t *ids, uint32_t n);
/* The forms that an activation must have for w: with those that the others are made from. */
uint32_t work_forms(const struct kernels *k, const struct k_matrix *w);
/* [rows][cols] zeroed floats of the backend, and the way back. */
float *work_rows(const struct model *m, uint32_t rows, uint32_t cols);
void work_rows_free(const struct model *m, float *p, uint32_t rows, uint32_t cols);

/* All ranks' n floats each, of which this rank's stand in their place. [team] */
void peers_gather(const struct model *m, float *all, size_t n);

/* Calls a step's [team] function: by the team, or with a probe, which wants the rows of one operation
 * before the next begins, on the calling thread alone, with the same results. */
void work_run(const struct model *m, const struct model_work *w, void (*fn)(void *arg), void *arg);
/* The last stage's buffers for logits. */
int head_work_create(struct model_work *w);
void head_work_destroy(struct model_work *w);
/* Where data-parallel ranks share the head (head_exchange.c): what that needs besides, and the logits
 * of n rows of w->x. By all of these ranks, not within a run of the team. */
int head_travel_create(struct model_work *w);
uint32_t head_travel_rows(const struct model *m, uint32_t max_logit_rows); /* of w->head_act */
void head_travel_destroy(const struct model_work *w);
void head_exchange(const struct model *m, struct model_work *w, const struct norm *norm,
                   const struct k_matrix *head, const uint32_t *rows, uint32_t n);
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
