/* A worker runs step plans: it owns the model's work buffers and its part of the KV pool. Each rank of an
 * instance has one. Allocates nothing while it runs. */
#ifndef SLUICE_ENGINE_WORKER_H
#define SLUICE_ENGINE_WORKER_H

#include <stdbool.h>

#include "engine/sample.h"
#include "kernel/kernel.h"
#include "kv/layout.h"
#include "model/model.h"
#include "sched/sched.h"

struct err;
struct worker;

/* What a position's choice was; calls come in order of entries and, for each, of positions. */
struct worker_sink {
    void (*prompt)(void *arg, const struct plan_entry *en, uint32_t position,
                   const struct k_sample *row, const struct k_choice *c);
    /* Of the token with this output index. */
    void (*token)(void *arg, const struct plan_entry *en, uint32_t out_index,
                  const struct k_sample *row, const struct k_choice *c);
    void *arg;
};

/* Logit rows made and sampled at a time: 64 rows of a large vocabulary stay within 40 MB. */
#define WORKER_LOGIT_ROWS 64

struct worker_options {
    const struct kernels *kernels; /* borrowed, as is the model */
    const struct model *model;
    uint32_t max_batched_tokens, max_seqs, max_model_len;
    struct kv_layout layout;
    void *pool;       /* borrowed; kv_layout_pool_bytes of it */
    bool hidden_only; /* a stage before the last: nothing is sampled */
    /* Where several ranks have a part of the last stage: makes what the first of them chose known to the
     * others, who need it for drafts. NULL: alone. */
    void (*share)(void *arg, void *data, size_t bytes);
    void *share_arg;
    bool follows;          /* one of the others */
    uint32_t draft_rounds; /* draft.h: rounds */
    bool shares_head; /* with ranks of other instances: each step ends when no rank has rows left */
};

int engine_worker_create(struct worker **out, const struct worker_options *o, struct err *e);
void engine_worker_destroy(struct worker *w); /* NULL is fine */

/* Runs the plan; out[i] is what it gave entry i: nothing where hidden_only is set. */
void engine_worker_run(struct worker *w, const struct plan *p, struct step_choice *out,
                       const struct worker_sink *sink);

/* Inside each run from now on: layer_done(arg, layer) when keys and values of the plan's tokens are there in
 * a layer (by its number in the model; not in layers for drafts). NULL: no more. */
void engine_worker_watch(struct worker *w, void (*layer_done)(void *arg, uint32_t layer),
                         void *arg);

/* The rows of hidden states, one a token of the plan: those that the stage before has made go there
 * before the run, those for the next one are there after it. */
float *engine_worker_states(struct worker *w);

#endif
