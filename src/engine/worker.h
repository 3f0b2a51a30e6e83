/* A worker runs step plans: it owns the model's work buffers and its part of the KV pool. One rank of
 * an instance; here the only one, on the engine thread. Allocates nothing while it runs. */
#ifndef SLUICE_ENGINE_WORKER_H
#define SLUICE_ENGINE_WORKER_H

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
    void *pool; /* borrowed; kv_layout_pool_bytes of it */
};

int engine_worker_create(struct worker **out, const struct worker_options *o, struct err *e);
void engine_worker_destroy(struct worker *w); /* NULL is fine */

/* Runs the plan; out[i] is what it gave entry i. */
void engine_worker_run(struct worker *w, const struct plan *p, struct step_choice *out,
                       const struct worker_sink *sink);

#endif
