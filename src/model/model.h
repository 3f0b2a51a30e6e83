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
    /* As AUTO; but what config.json says of it is not looked at, and float16 with int8 weights is
     * warned of. */
    MODEL_DTYPE_FLOAT16,
    MODEL_DTYPE_BFLOAT16,
};

/* What ranks do together inside a forward pass (comm/group.h has the same verbs with the details). Called
 * on one thread at a time (of the team or, with overlap_shared_expert, another), in the same order on
 * all ranks. A call that fails leaves garbage, and is remembered by whoever made the struct: the step's results are not used then. */
struct model_peers {
    void *arg;
    /* among the tensor-parallel ranks; sums are taken in order of ranks */
    void (*all_reduce)(void *arg, float *x, size_t n);
    void (*reduce_scatter)(void *arg, float *out, const float *x, size_t n);
    void (*all_gather)(void *arg, void *all, const void *part, size_t bytes);
    /* among the ranks that share the experts: all-to-all */
    void (*exchange)(void *arg, const void *send, const size_t *send_at, const size_t *send_bytes,
                     void *recv, const size_t *recv_at, const size_t *recv_bytes);
    /* the same among the ranks that share the head */
    void (*exchange_head)(void *arg, const void *send, const size_t *send_at,
                          const size_t *send_bytes, void *recv, const size_t *recv_at,
                          const size_t *recv_bytes);
};

/* What of its layers a rank holds. All zeros: everything, alone.
 *
 * Tensor parallel: heads, feed-forward columns and vocabulary rows are shared out evenly, in order of
 * ranks; where there are more ranks than KV heads, neighbours hold the same one. Latents, norms and
 * routers are on every rank. Every rank computes every row; all_reduce makes the sums whole.
 *
 * Experts: with ep_size > 1 each rank holds experts / ep_size whole ones, in order of ranks, and rows
 * travel to them; else every tensor-parallel rank has a slice of every expert. The ranks that share
 * experts are the tensor-parallel ranks of all data-parallel ones: ep_rank = dp_rank * tp_size +
 * tp_rank. */
struct model_part {
    uint32_t tp_rank, tp_size;
    uint32_t ep_rank, ep_size;
    uint32_t head_rank, head_size; /* data-parallel ranks that share the head (tp_size is 1 then) */
    bool
        sequence_parallel; /* between the blocks a tensor-parallel rank keeps a share of the rows */
    bool overlap_shared_expert;      /* the shared expert is computed while rows travel */
    const struct model_peers *peers; /* borrowed until model_close; NULL: alone */
};

struct model_options {
    const char *path; /* a folder or a .gguf file */
    enum model_dtype dtype;
    const char *kv_dtype;           /* NULL or "auto": by dtype; "float16", "float32" */
    uint32_t first_layer, n_layers; /* pipeline stage; n_layers 0: all */
    uint32_t max_model_len;         /* 0: the model's own; sizes the rotary table */
    const char *quantization;       /* NULL: as found; else refused unless it is what was found */
    const char *hf_overrides;       /* JSON object over config.json's keys; NULL: none */
    bool mtp;                       /* load the multi-token prediction layer (last stage) */
    struct model_part part;
    void (*progress)(void *arg, uint64_t bytes_done, uint64_t bytes_total); /* may be NULL */
    void *progress_arg;
};

/* Only the configuration (cheap): what a folder or file is. hf_overrides: NULL, or a JSON object
 * whose keys replace those of config.json. */
int model_read_config(struct model_config *out, const char *path, const char *hf_overrides,
                      struct err *e);

/* What opt would load, and what its steps of up to max_tokens rows need, in bytes: from the files'
 * headers, before a weight is read. Estimates, a few percent off. Errors are those of model_open. */
struct model_estimate {
    uint64_t weights;  /* packed */
    uint64_t floats;   /* of these, those of matrices that are not quantized */
    uint64_t tables;   /* rotary positions */
    uint64_t scratch;  /* activations */
    uint64_t kv_token; /* a token's keys and values, in all layers */
    bool folder;       /* not a GGUF file */
};
int model_estimate(struct model_estimate *out, const struct kernels *k,
                   const struct model_options *opt, uint32_t max_tokens, uint32_t logit_rows,
                   struct err *e);

/* ERR_NOTFOUND, ERR_BADMSG (file, offset, reason), ERR_UNSUPPORTED (architecture or type by name),
 * ERR_NOMEM. k is borrowed until model_close. */
int model_open(struct model **out, const struct kernels *k, const struct model_options *opt,
               struct err *e);
void model_close(struct model *m); /* NULL is fine */

const struct model_config *model_config(const struct model *m);
enum k_type model_kv_type(const struct model *m);
/* What a layer's KV cache looks like; n_layers counts the multi-token prediction layer where it is
 * loaded: its planes are the last. */
struct model_kv_shape {
    uint32_t n_layers, kv_heads, head_dim;
    uint32_t first_head, all_heads; /* of which kv_heads from the first are this rank's */
    uint32_t latent; /* 0: keys and values; else the compressed part of head_dim (kernel.h, k_kv) */
};
void model_kv_shape(const struct model *m, struct model_kv_shape *out);
/* Bytes of packed weights (embedding rows aside): where there are no experts and no layers for
 * drafts, what a decode step reads at least once. */
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
    /* Latent attention has two forms, of which one is faster for many rows; they round differently.
     * So that a row's result does not depend on what was computed with it, the caller says by
     * position which rows take that form: [n_seqs], so many leading rows of each sequence (those of
     * the prompt). NULL: none. */
    const uint32_t *n_prompt_rows;
};

/* Activations of one step at a time: room for max_tokens rows. */
struct model_work;
int model_work_create(struct model_work **out, const struct model *m, uint32_t max_tokens,
                      uint32_t max_logit_rows, struct err *e);
void model_work_destroy(struct model_work *w);

/* Runs the layers over the batch, writing K and V to the planes `kv` (one entry a layer of this
 * model, its block pool) and leaving the residual stream in w. One team run; allocates nothing.
 *
 * Where ranks share experts (model_part.ep_size) all of them must call it, and model_draft, the same
 * number of times: those that have nothing to do with no rows (b->n 0). Its runs of the team end before
 * each exchange then. */
void model_forward(const struct model *m, struct model_work *w, const struct k_kv *kv,
                   const struct model_batch *b);

/* Inside each model_forward from now on: done(arg, layer) on some thread when the batch's keys and values are
 * there in a layer (by its number in the model), while the layer goes on to compute. NULL (default): off,
 * and costs nothing. */
void model_watch_layers(struct model_work *w, void (*done)(void *arg, uint32_t layer), void *arg);

/* The residual stream, [max_tokens][hidden]: what a stage leaves there the next one finds there.
 * A stage that does not begin with the embedding reads it instead of ids; one that is not the last
 * leaves its rows. */
float *model_states(struct model_work *w);

/* Logits [n_rows][vocab] of chosen rows of the last model_forward, n_rows <= max_logit_rows.
 * Borrowed until the next call; the caller may overwrite them (the sampler does). *ld is their
 * row distance. All tensor-parallel ranks of the stage ask for the same rows, and get them. */
float *model_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                    uint32_t n_rows, size_t *ld);

/* True if some rank of those that share the head had rows in the last call of model_logits or
 * model_draft_logits: all of them must call it the same number of times, so those that have no rows
 * (left) call it with none until this is false. False at once where the head is not shared. */
bool model_head_more(const struct model_work *w);

/* Multi-token prediction (DeepSeek-V3 technical report, 2.2). The rows of b are sequences as in
 * model_forward; ids[i] is the token after position pos[i]. The layer joins its embedding with the
 * state of row from[i] (NULL: row i) of the last model_forward or model_draft: after a forward the
 * output of the final norm, after a draft the layer's own. That state is gone afterwards: ask for the
 * logits of a forward before the first draft. Writes the layer's keys and values to
 * kv (one plane pair, not an array of layers). */
void model_draft(const struct model *m, struct model_work *w, const struct k_kv *kv,
                 const struct model_batch *b, const uint32_t *from);
/* Logits of rows of the last model_draft: of the token after the one that was in ids. */
float *model_draft_logits(const struct model *m, struct model_work *w, const uint32_t *rows,
                          uint32_t n_rows, size_t *ld);

/* For calibration and tests: called inside model_forward and model_draft on one thread after the
 * named step with its rows. NULL (default): off, and costs nothing. Tensor-parallel ranks have a probe
 * all or none; heads and feed-forward columns are the rank's, and no rows are shared out.
 *
 *     embed, layer0 .., final_norm         the residual stream, and after the final norm
 *     L0.attn_norm, L0.q                   of each layer: q after its rotation
 *     L0.k, L0.v                           grouped-query attention
 *     L0.q_a_norm, L0.c_kv, L0.k_pe        latent attention: the inputs of q_b and of kv_b, the
 *                                          rotated part of the key
 *     L0.attn_ctx, L0.attn_out             before and after o_proj
 *     L0.ffn_norm, L0.ffn_act, L0.ffn_out  ffn_act: the input of down_proj of a dense layer
 *     L0.shared_act, L0.expert0_act ..     the input of down_proj of the shared experts, and of each
 *                                          expert that has rows (not where experts are apart)
 *     L0.router_ids@0, L0.router_weights@0 [tokens][experts a token], ids as floats; of the tokens
 *                                          from the number on that follows the @ */
typedef void model_probe_fn(void *arg, const char *name, const float *rows, size_t ld, uint32_t n,
                            uint32_t cols);
void model_set_probe(struct model_work *w, model_probe_fn *fn, void *arg);

#endif
