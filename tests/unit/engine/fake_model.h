/* A language model without arithmetic, behind model.h: what it keeps for a position is a hash of
 * everything before it, its logits are numbers made from that hash. Its prediction layer is right so many
 * times in a hundred. It checks that what it reads from the KV memory is what must stand there. */
#ifndef SLUICE_TESTS_UNIT_ENGINE_FAKE_MODEL_H
#define SLUICE_TESTS_UNIT_ENGINE_FAKE_MODEL_H

#include "kv/layout.h"
#include "model/model.h"

#define FAKE_VOCAB   96
#define FAKE_EOS     7   /* it and the four after it are likelier than others */
#define FAKE_MAX_LEN 100 /* inside of a block */

struct model {
    struct model_config config;
    uint32_t good_drafts;          /* percent */
    bool has_mtp;                  /* two layers: the second is the prediction layer's */
    uint32_t n_wrong;              /* what was read was not what must stand there */
    uint64_t n_rows, n_mtp_rows;   /* computed */
    uint64_t n_forwards, n_drafts; /* calls */
    /* The head is shared with ranks that have so many rounds of logits each time; the call in which
     * nobody has any ends them. */
    uint32_t others, n_round;
    uint64_t n_ends;
};

void fake_model_init(struct model *m, uint32_t good_drafts, bool has_mtp);
/* The layout of its KV memory. */
struct kv_layout fake_model_layout(const struct model *m, uint32_t block_tokens, uint32_t n_blocks);

#endif
