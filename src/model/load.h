/* Tensors of a checkpoint into the backend's buffers. */
#ifndef SLUICE_MODEL_LOAD_H
#define SLUICE_MODEL_LOAD_H

#include "kernel/kernel.h"
#include "model/part.h"
#include "model/weights.h"

struct model;
struct model_options;
struct quant;

/* What an architecture's load is made of. Shapes are checked against the configuration;
 * messages name the file, the tensor, what was expected and what was found. Inside the folder only.
 *
 * Tensors are asked for by their weight's name ("....weight"); how it is stored (plain, blocks of a
 * GGUF file, ModelSlim's int8, block-scaled FP8, compressed-tensors' int8) and which other tensors
 * belong to it is found here. */
struct load {
    struct model *m;
    struct weights *w;
    const struct quant *quant; /* how the folder is quantized */
    const struct model_options *opt;
    uint64_t done, total;            /* bytes, for the progress call */
    const struct weight *zero_scale; /* the first of the scales that are zeros only, and how many */
    uint32_t n_zero_scales;
    bool exact; /* matrices are packed for float32 activations, whatever the model's math */
    struct err *e;
};

/* One part of a packed matrix: a tensor [rows][cols]. head_dim, when not 0, says that a GGUF file
 * has the rows of each head in rotary pairs (2i, 2i+1), to be put back to (i, i + head_dim / 2). */
struct load_part {
    const char *name;
    uint32_t rows;
    uint32_t head_dim;
    uint32_t slice, slices; /* the tensor is `slices` matrices one after another (a GGUF file's
                             * experts), this is one of them; slices 0: one matrix */
    /* What of the matrix is wanted: rows counted in HuggingFace's order, columns from a border of the
     * type's blocks to one. n 0: all. A bias inside (quant_bias) is in the first columns' share. */
    struct share only_rows, only_cols;
};
#define LOAD_MAX_PARTS 4

/* "model.layers.<layer>.<rest>" into out. Returns out. */
const char *load_name(char out[TENSOR_MAX_NAME], uint32_t layer, const char *rest);
/* Packs the parts side by side; cols are the tensors'. Adds the packed bytes to *bytes (may be NULL). */
int load_matrix(struct load *l, struct k_matrix **out, const struct load_part *parts,
                uint32_t n_parts, uint32_t cols, uint64_t *bytes);
/* A vector of n numbers as float32 in a buffer of the backend. */
int load_vector(struct load *l, float **out, const char *name, uint32_t n);
/* The same, with *out NULL if there is no such tensor: biases that only some checkpoints have. NULL
 * too for the bias of a static int8 linear, whose quant_bias has it already. */
int load_vector_if(struct load *l, float **out, const char *name, uint32_t n);
/* The numbers of a part as exact float32, in memory of the caller's (free()): for what is folded or
 * transposed before it is packed. The order of rows is the file's. */
int load_floats(struct load *l, float **out, const struct load_part *p, uint32_t cols);
/* Packs numbers of the caller's [rows][cols] as type (K_F32, or K_BF16: rounded). */
int load_made(struct load *l, struct k_matrix **out, const float *numbers, uint32_t rows,
              uint32_t cols, enum k_type type, uint64_t *bytes);
/* How the weight is stored; ERR_BADMSG if it is not there. */
int load_type(struct load *l, const char *name, enum k_type *out);
/* Embedding, final norm and head of this stage. */
int load_ends(struct load *l);
/* Refuses tensors that nothing has used: they would have changed the result. */
int load_check_rest(const struct load *l);

#endif
