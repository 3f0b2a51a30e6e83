#include "fake.h"

#include <stdlib.h>

#define GARBAGE 0xdeadbeefdeadbeefull

void fake_init(struct fake_kv *kv, uint32_t n_blocks, uint32_t block_tokens)
{
    size_t n = (size_t)n_blocks * block_tokens;

    *kv = (struct fake_kv){ .slot = malloc(n * sizeof *kv->slot),
                            .n_blocks = n_blocks,
                            .block_tokens = block_tokens };
    if (!kv->slot)
        abort();
    for (size_t i = 0; i < n; i++)
        kv->slot[i] = GARBAGE;
}

void fake_finish(struct fake_kv *kv)
{
    free(kv->slot);
}

static uint64_t scramble(uint64_t x)
{
    x ^= x >> 31;
    x *= 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9ull;
}

uint64_t fake_mix(uint64_t h, int32_t token)
{
    return scramble(h ^ ((uint64_t)(uint32_t)token + 1));
}

int32_t fake_next_token(uint64_t h)
{
    return (int32_t)((h >> 20) % FAKE_VOCAB);
}

void fake_generate(int32_t *tokens, uint32_t n_prompt, uint32_t n_out, uint64_t salt)
{
    uint64_t h = salt;

    for (uint32_t i = 0; i < n_prompt + n_out; i++) {
        if (i >= n_prompt)
            tokens[i] = fake_next_token(h);
        h = fake_mix(h, tokens[i]);
    }
}

static uint64_t *slot_at(const struct fake_kv *kv, const uint32_t *blocks, uint32_t i)
{
    return &kv->slot[(size_t)blocks[i / kv->block_tokens] * kv->block_tokens +
                     i % kv->block_tokens];
}

bool fake_check(const struct fake_kv *kv, const uint32_t *blocks, const int32_t *tokens,
                uint32_t from, uint32_t to, uint64_t salt)
{
    uint64_t h = salt;

    for (uint32_t i = 0; i < to; i++) {
        h = fake_mix(h, tokens[i]);
        if (i >= from && *slot_at(kv, blocks, i) != h)
            return false;
    }
    return true;
}

void fake_write(struct fake_kv *kv, const uint32_t *blocks, const int32_t *tokens, uint32_t from,
                uint32_t to, uint64_t salt)
{
    uint64_t h = salt;

    for (uint32_t i = 0; i < to; i++) {
        h = fake_mix(h, tokens[i]);
        if (i >= from)
            *slot_at(kv, blocks, i) = h;
    }
}

void fake_write_garbage(struct fake_kv *kv, const uint32_t *blocks, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++)
        *slot_at(kv, blocks, i) = GARBAGE;
}

void fake_put(struct fake_kv *kv, const uint32_t *blocks, uint32_t at, uint64_t h)
{
    *slot_at(kv, blocks, at) = h;
}

uint64_t fake_read(const struct fake_kv *kv, const uint32_t *blocks, uint32_t at)
{
    return *slot_at(kv, blocks, at);
}

uint32_t fake_random(uint64_t *state, uint32_t below)
{
    *state += 0x9e3779b97f4a7c15ull;
    return (uint32_t)((scramble(*state) >> 24) % below);
}
