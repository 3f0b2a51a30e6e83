/* A stand-in for the model and the KV memory, to prove that no request ever reads a block that is
 * not its own.
 *
 * What the memory keeps for position i is h(i) = mix(h(i-1), token i), with h(-1) from the salt: as
 * in a real model, it depends on everything before. Computing a chunk reads all slots before it
 * through the block table and checks each; the next token is a function of the last h. */
#ifndef SLUICE_TESTS_SIM_FAKE_H
#define SLUICE_TESTS_SIM_FAKE_H

#include <stdbool.h>
#include <stdint.h>

struct fake_kv {
    uint64_t *slot; /* [block][position in block] */
    uint32_t n_blocks, block_tokens;
};

#define FAKE_EOS   0
#define FAKE_VOCAB 40

void fake_init(struct fake_kv *kv, uint32_t n_blocks, uint32_t block_tokens);
void fake_finish(struct fake_kv *kv);

uint64_t fake_mix(uint64_t h, int32_t token);
int32_t fake_next_token(uint64_t h);
/* Output of a request that is alone in the world: n tokens after the prompt, end tokens included.
 * tokens has room for all. */
void fake_generate(int32_t *tokens, uint32_t n_prompt, uint32_t n_out, uint64_t salt);

/* Do the slots of tokens [from, to) hold what these tokens make them? */
bool fake_check(const struct fake_kv *kv, const uint32_t *blocks, const int32_t *tokens,
                uint32_t from, uint32_t to, uint64_t salt);
void fake_write(struct fake_kv *kv, const uint32_t *blocks, const int32_t *tokens, uint32_t from,
                uint32_t to, uint64_t salt);
void fake_write_garbage(struct fake_kv *kv, const uint32_t *blocks, uint32_t from, uint32_t to);
void fake_put(struct fake_kv *kv, const uint32_t *blocks, uint32_t at, uint64_t h);
/* h(at), read from memory. */
uint64_t fake_read(const struct fake_kv *kv, const uint32_t *blocks, uint32_t at);

/* The simulation's own random numbers: the same for the same seed, everywhere. */
uint32_t fake_random(uint64_t *state, uint32_t below);

#endif
