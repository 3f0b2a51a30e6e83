/* A loaded model: its configuration, its weights in the backend's layout, and its forward pass.
 *
 * A model is opened from a HuggingFace folder (config.json, safetensors) or a GGUF file; the format
 * is found by looking. Files are mapped; weights are packed once, tensor by tensor, and the pages of
 * the file dropped, so that peak memory stays near the packed size. */
#ifndef SLUICE_MODEL_MODEL_H
#define SLUICE_MODEL_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernel/kernel.h"
#include "model/config.h"

struct err;
struct model;
struct tokenizer;

enum model_dtype {
    MODEL_DTYPE_AUTO,    /* the fastest path whose perplexity is within 1 % of float32: int8
                          * activations in blocks of 32 for quantized weights, float16 KV cache */
    MODEL_DTYPE_FLOAT32, /* float32 activations and KV cache, weights dequantized exactly */
};

struct model_options {
    const char *path; /* a folder or a .gguf file */
    enum model_dtype dtype;
    const char *kv_dtype;           /* NULL or "auto": by dtype; "float16", "float32" */
    uint32_t first_layer, n_layers; /* pipeline stage; n_layers 0: all */
    uint32_t max_model_len;         /* 0: the model's own; sizes the rotary table */
    void (*progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
    void *progress_arg;
};

/* Only the configuration (cheap): what a folder or file is, and what serving it will take. */
int model_read_config(struct model_config *out, const char *path, struct err *e);

/* ERR_NOTFOUND, ERR_BADMSG (file, offset, reason), ERR_UNSUPPORTED (architecture or type by name),
 * ERR_NOMEM. k is borrowed until model_close. */
int model_open(struct model **out, const struct kernels *k, const struct model_options *opt,
               struct err *e);
void model_close(struct model *m); /* NULL is fine */

const struct model_config *model_config(const struct model *m);
enum k_type model_kv_type(const struct model *m);
/* Bytes of packed weights: what a decode step reads at least once (embedding rows aside). */
uint64_t model_weight_bytes(const struct model *m);
/* 64 hex digits over architecture, shapes, types and a sample of every tensor's bytes: two instances
 * with equal fingerprints hold the same weights. */
const char *model_fingerprint(const struct model *m);

/* The tokenizer that came with the checkpoint; owned by the caller. ERR_NOTFOUND if it has none. */
int model_load_tokenizer(struct tokenizer **out, const char *path, struct err *e);

/* One step's input. Rows of all sequences stand one after another in ids and pos. */
struct model_batch {
    uint32_t n;               /* rows */
    const int32_t *ids;       /* [n], in [0, vocab) */
    const uint32_t *pos;      /* [n], below max_model_len */
    const struct k_seq *seqs; /* every row belongs to exactly one */
    uint32_t n_seqs;
};

/* Activations of one step at a time: room for max_tokens rows. */
struct model_work;
int model_work_create(struct model_work **out, const struct model *m, uint32_t max_tokens,
                      uint32_t max_logit_rows, struct err *e);
void model_work_destroy(struct model_work *w);

/* Runs the layers over the batch, writing K and V to the planes `kv` (one entry a layer of this
 * model, its block pool) and leaving the residual stream in w. One team run; allocates nothing. */
void model_forward(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b);

/* Logits [n_rows][vocab] of chosen rows of the last model_forward, n_rows <= max_logit_rows.
 * Borrowed until the next call; the caller may overwrite them (the sampler does). *ld is their
 * row distance. */
float *model_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                    uint32_t n_rows, size_t *ld);

/* For tests: called inside model_forward on one thread after the named step ("embed", "layer0", ...,
 * "final_norm", and inside layer 0 and 1 "L0.attn_norm", "L0.q", "L0.k", "L0.v", "L0.attn_ctx",
 * "L0.attn_out", "L0.ffn_norm", "L0.ffn_out") with its rows. NULL (default): off, and costs nothing. */
typedef void model_probe_fn(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                            uint32_t cols);
void model_set_probe(struct model_work *w, model_probe_fn *fn, void *arg);

#endif
