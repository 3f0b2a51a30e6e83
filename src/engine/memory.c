/* How large the KV pool is, and where its memory comes from. */
#include <string.h>

#include "base/log.h"
#include "engine/internal.h"
#include "sys/topo.h"

/* Blocks beyond this index would not fit the 32-bit block ids with room to spare. */
#define MEMORY_MAX_BLOCKS (1u << 30)

static double gib(uint64_t bytes)
{
    return (double)bytes / (double)(1ull << 30);
}

static uint32_t blocks_for(uint64_t tokens, uint32_t block_tokens)
{
    return (uint32_t)((tokens + block_tokens - 1) / block_tokens);
}

/* What all requests that may run at a time can use at most: a larger pool would only cache. */
static uint64_t useful_blocks(const struct sched_config *s)
{
    return (uint64_t)s->max_seqs * blocks_for(s->max_model_len, s->block_tokens);
}

static uint64_t blocks_by_memory(const struct engine *e, const struct engine_options *opt)
{
    uint64_t block = kv_layout_token_bytes(&e->layout) * e->layout.block_tokens;
    uint64_t bytes = opt->kv_bytes;
    uint64_t n, useful = useful_blocks(&e->sched_config);

    if (!bytes) {
        bytes = (uint64_t)((double)topo_memory_available() * opt->memory_fraction);
        n = bytes / block;
        return n < useful ? n : useful;
    }
    return bytes / block;
}

int engine_memory_plan(struct engine *e, const struct engine_options *opt, struct err *err)
{
    const struct model_config *mc = model_config(e->model);
    struct sched_config *s = &e->sched_config;
    uint64_t n = s->n_blocks, tokens;

    e->layout = (struct kv_layout){
        .n_layers = mc->n_layers,
        .kv_heads = mc->kv_heads,
        .head_dim = mc->head_dim,
        .elem_bytes = model_kv_type(e->model) == K_F32 ? 4 : 2,
        .block_tokens = s->block_tokens,
    };
    if (!n)
        n = blocks_by_memory(e, opt);
    if (n > MEMORY_MAX_BLOCKS)
        n = MEMORY_MAX_BLOCKS;
    if (n == 0)
        return err_set(
            err, ERR_NOMEM,
            "no room for the KV cache: one block of %u tokens takes %llu bytes, %.2f GiB "
            "are free; raise --gpu-memory-utilization (now %.2f) or free memory",
            s->block_tokens,
            (unsigned long long)(kv_layout_token_bytes(&e->layout) * s->block_tokens),
            gib(topo_memory_available()), opt->memory_fraction);
    s->n_blocks = e->layout.n_blocks = (uint32_t)n;
    tokens = n * s->block_tokens;
    if (tokens < s->max_model_len) {
        log_warning("max_model_len %u is more than the KV pool holds (%u blocks of %u tokens = "
                    "%llu); requests are limited to %llu tokens. Raise --gpu-memory-utilization or "
                    "--num-gpu-blocks-override, or lower --max-model-len",
                    s->max_model_len, s->n_blocks, s->block_tokens, (unsigned long long)tokens,
                    (unsigned long long)tokens);
        s->max_model_len = (uint32_t)tokens;
    }
    log_info("memory: weights %.3f GiB, KV pool %.3f GiB (%u blocks of %u tokens, %llu bytes a "
             "token, at most %.1f requests of %u tokens), available %.2f GiB",
             gib(model_weight_bytes(e->model)), gib(kv_layout_pool_bytes(&e->layout)), s->n_blocks,
             s->block_tokens, (unsigned long long)kv_layout_token_bytes(&e->layout),
             (double)tokens / s->max_model_len, s->max_model_len, gib(topo_memory_available()));
    return 0;
}

int engine_memory_make_pool(struct engine *e, struct err *err)
{
    size_t bytes = kv_layout_pool_bytes(&e->layout);

    e->pool_from_link = (e->kv.produce || e->kv.consume) && e->kernels->host_memory;
    if (e->pool_from_link)
        return transfer_memory_alloc(&e->pool, bytes, err);
    e->pool = e->kernels->alloc(e->kernels, bytes);
    if (!e->pool)
        return err_set(err, ERR_NOMEM, "no memory for a KV pool of %zu bytes", bytes);
    return 0;
}

void engine_memory_free_pool(struct engine *e)
{
    size_t bytes = kv_layout_pool_bytes(&e->layout);

    if (!e->pool)
        return;
    if (e->pool_from_link)
        transfer_memory_free(e->pool, bytes);
    else
        e->kernels->free(e->kernels, e->pool, bytes);
}
