/* Inside of a model: what all architectures share, and what each brings. An architecture is one
 * file with one `struct arch`, and one line in the table of model.c. Inside the folder only. */
#ifndef SLUICE_MODEL_ARCH_H
#define SLUICE_MODEL_ARCH_H

#include "model/model.h"
#include "model/weights.h"

struct arch;

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
    void *body;             /* the layers, as the architecture keeps them */
    uint64_t weight_bytes;
    char fingerprint[65];
};

/* What the layers of one step need. Rows are tokens; columns are multiples of 32. */
struct work_shape {
    uint32_t wide; /* columns of model_work.wide and .ctx */
    uint32_t ctx;
    uint32_t act;   /* most columns of an activation */
    uint32_t forms; /* k_form bits that the layers' matrices read */
};

struct model_work {
    const struct model *m;
    uint32_t max_tokens, max_logit_rows;
    struct work_shape shape;
    float *x;          /* [max_tokens][hidden]: the residual stream */
    float *wide;       /* [max_tokens][wide] */
    float *ctx;        /* [max_tokens][ctx] */
    struct k_act *act; /* [max_tokens][act] */
    float *head_x;     /* [max_logit_rows][hidden] */
    struct k_act *head_act;
    float *logits; /* [max_logit_rows][vocab] */
    model_probe_fn *probe;
    void *probe_arg;
};

struct load;

struct arch {
    const char *hf;                  /* config.json's "architectures" */
    const char *gguf;                /* general.architecture; the prefix of its keys */
    const struct weight_name *names; /* of a GGUF file */

    /* Sizes that the layers cannot have, by name. */
    int (*check)(const struct model *m, struct err *e);
    /* Packs the stage's layers into m->body; m->body may be half built on failure. */
    int (*load)(struct load *l);
    void (*unload)(struct model *m); /* copes with NULL and the half-built */
    void (*shape)(const struct model *m, struct work_shape *out);
    /* [team] The stage's layers over w->x, which holds the residual stream before and after. */
    void (*layers)(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b);
};

extern const struct arch arch_llama;

/* load.c: what an architecture's load is made of. Shapes are checked against the configuration;
 * messages name the file, the tensor, what was expected and what was found. */
struct load {
    struct model *m;
    struct weights *w;
    const struct model_options *opt;
    uint64_t done, total; /* bytes, for the progress call */
    struct err *e;
};

/* One part of a packed matrix: a tensor [rows][cols]. head_dim, when not 0, says that a GGUF file
 * has the rows of each head in rotary pairs (2i, 2i+1), to be put back to (i, i + head_dim / 2). */
struct load_part {
    const char *name;
    uint32_t rows;
    uint32_t head_dim;
};
#define LOAD_MAX_PARTS 4

/* "model.layers.<layer>.<rest>" into out. Returns out. */
const char *load_name(char out[TENSOR_MAX_NAME], uint32_t layer, const char *rest);
/* Packs the parts side by side. Adds the packed bytes to *bytes (may be NULL). */
int load_matrix(struct load *l, struct k_matrix **out, const struct load_part *parts,
                uint32_t n_parts, uint32_t cols, uint64_t *bytes);
/* A vector of n numbers as float32 in a buffer of the backend. */
int load_vector(struct load *l, float **out, const char *name, uint32_t n);
/* Embedding, final norm and head of this stage. */
int load_ends(struct load *l);
/* Refuses tensors that nothing has used: they would have changed the result. */
int load_check_rest(const struct load *l);

/* cos and sin [max_pos][n] of pos * inv_freq, times scale. */
void rope_fill(const double *inv_freq, double scale, uint32_t n, uint32_t max_pos, float *cos_out,
               float *sin_out);

/* 64 hex digits over configuration, names, types, shapes and samples of all tensors. */
void fingerprint_of(char out[65], const struct model_config *c, const struct weights *w);

/* The rows of x (an activation's floats, or a float buffer) to the probe, if there is one. Only
 * called where the step runs on one thread. */
void work_probe(const struct model_work *w, const float *rows, size_t ld, uint32_t n, uint32_t cols,
                const char *fmt, ...) __attribute__((format(printf, 6, 7)));

#endif
