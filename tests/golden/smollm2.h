/* Shared by the parts of golden_smollm2. */
#ifndef SLUICE_TESTS_GOLDEN_SMOLLM2_H
#define SLUICE_TESTS_GOLDEN_SMOLLM2_H

#include <jansson.h>

#include "rig.h"

#define VOCAB      49152u
#define STEP       1536u /* rows of a step */
#define LOGIT_ROWS 128u

/* The goldens' own limits at float32. */
#define LOGIT_LIMIT   5e-4
#define LOGPROB_LIMIT 1e-4

/* Factor on the limits: float32 angles of the reference differ at 1,500 tokens and more. */
double relax(uint32_t n_ids);

json_t *load_json(const char *name);              /* exits if it cannot */
int32_t *ids_of(const json_t *list, uint32_t *n); /* the caller frees */
double number_at(const json_t *list, size_t i);
void open_model(struct rig *r, enum model_dtype dtype, uint32_t pool_tokens);

void test_greedy(bool all);
void test_logprobs(bool all);
void test_auto(bool all);
void test_dense(bool all);

/* Perplexity over all texts of the goldens. */
double text_perplexity(struct rig *r);

/* Steps of the reference where the engine, given the reference's tokens, takes the same one. */
struct agreement {
    uint32_t same, steps;
};
/* Follows the recorded prompts of up to max_ids tokens. strict: float32's rules are checked. */
void follow_greedy(struct rig *r, uint32_t max_ids, bool strict, struct agreement *out);

#endif
