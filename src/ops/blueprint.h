/* Which tensors a checkpoint of an architecture has: their HuggingFace names and shapes, how large
 * their numbers are in a well-behaved model, and how a quantized layout stores each. From the
 * configuration alone. */
#ifndef SLUICE_OPS_BLUEPRINT_H
#define SLUICE_OPS_BLUEPRINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "model/config.h"

struct err;

/* What a weight is to a quantizer. The recipes of the published checkpoints (ModelSlim's for
 * DeepSeek, DeepSeek's own FP8) tell these apart and nothing else. */
enum blue_role {
    BLUE_FLOAT,     /* embeddings, heads, routers, norms: never quantized */
    BLUE_LATENT,    /* kv_b_proj: FP8 like the rest, but float in W8A8 */
    BLUE_ATTENTION, /* the other linears of attention: static W8A8 */
    BLUE_MLP,       /* dense, shared and routed experts: dynamic W8A8 */
};

enum blue_kind {
    BLUE_MATRIX,     /* [rows][cols], mean 0 */
    BLUE_GAIN,       /* [rows], mean 1 */
    BLUE_VECTOR,     /* [rows], mean 0 */
    BLUE_CORRECTION, /* the same, always float32: the router's bias */
};

struct blue_tensor {
    char name[96]; /* "model.layers.0.self_attn.q_proj.weight" */
    enum blue_kind kind;
    enum blue_role role;
    uint32_t rows, cols; /* cols 1 for vectors */
    float std;           /* of its numbers */
};

struct blueprint {
    struct blue_tensor *t;
    size_t n, cap;
};

/* ERR_UNSUPPORTED names the architecture if it is not one of those that models are made for;
 * ERR_NOMEM. */
int blueprint_make(struct blueprint *out, const struct model_config *c, struct err *e);
void blueprint_finish(struct blueprint *b);

#endif
