/* Multi-token prediction beside a worker. After each step the model's prediction layer reads the rows
 * that stay, each with the token that came after it: so its KV cache keeps up with the model's, and its
 * logits guess what follows. Only guesses depend on it. Internal to src/engine; allocates nothing while
 * it runs.
 *
 * What the layer keeps for a position depends on the token after it, which a block's key does not
 * cover: after a block that came from the prefix cache, one position may be another continuation's. */
#ifndef SLUICE_ENGINE_DRAFT_H
#define SLUICE_ENGINE_DRAFT_H

#include <stdbool.h>

#include "engine/sample.h"
#include "kernel/kernel.h"
#include "model/model.h"
#include "sched/sched.h"

struct drafter;
struct err;

struct drafter_options {
    const struct kernels *kernels; /* borrowed, as are the model and its work */
    const struct model *model;
    struct model_work *work;
    uint32_t max_tokens, max_seqs, max_logit_rows, max_model_len;
    struct k_kv kv; /* of the prediction layer */
    struct sample_team team;
    /* Ranks that share experts call the model the same number of times: so many rounds of drafts each
     * run. 0: as many as are of use. */
    uint32_t rounds;
    bool shares_head; /* with other ranks: worker.h */
};

int engine_drafter_create(struct drafter **out, const struct drafter_options *o, struct err *e);
void engine_drafter_destroy(struct drafter *d); /* NULL is fine */

/* After the plan's forward pass: fills in out[i].draft and n_draft; out[i].token is chosen already. */
void engine_drafter_run(struct drafter *d, const struct plan *p, struct step_choice *out);

#endif
