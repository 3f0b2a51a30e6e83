/* How large the KV pool is, and where its memory comes from. */
#include <stdio.h>
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
        bytes = topo_memory_available();
        bytes = bytes > e->scratch_bytes ? bytes - e->scratch_bytes : 0;
        bytes = (uint64_t)((double)bytes * opt->memory_fraction);
        n = bytes / block;
        return n < useful ? n : useful;
    }
    return bytes / block;
}

static uint32_t step_tokens(const struct engine_options *opt)
{
    uint32_t n = opt->sched.max_batched_tokens;

    return n > K_MAX_TOKENS ? K_MAX_TOKENS : n;
}

/* Bytes that the KV cache must have: what was asked for, or one block. */
static uint64_t least_kv(const struct engine_options *opt, uint64_t token_bytes)
{
    uint64_t block = token_bytes * opt->sched.block_tokens;

    if (opt->sched.n_blocks)
        return opt->sched.n_blocks * block;
    return opt->kv_bytes ? opt->kv_bytes : block;
}

/* What makes it fit, by what is too large. */
static const char *advice(char *out, size_t room, const struct engine_options *opt,
                          const struct model_estimate *m, uint64_t available)
{
    uint64_t int8 = m->weights - m->floats / 2;

    if (m->weights + m->tables < available)
        snprintf(out, room,
                 "lower --max-num-batched-tokens (now %u), --num-gpu-blocks-override or "
                 "--kv-cache-memory-bytes, or free memory",
                 step_tokens(opt));
    else if (m->folder && m->floats > m->weights / 2)
        snprintf(out, room,
                 "most of the weights are not quantized; as W8A8 they take about %.2f GiB: give "
                 "the quantized folder (--quantization ascend; sluice quantize makes one), or free "
                 "memory",
                 gib(int8));
    else
        snprintf(out, room, "free memory, or use a machine with more");
    return out;
}

int engine_memory_check(struct engine *e, const struct engine_options *opt, struct err *err)
{
    uint64_t available = topo_memory_available(), kv, sum;
    struct model_estimate m;
    char text[256];
    int st = model_estimate(&m, e->kernels, &opt->model, step_tokens(opt), WORKER_LOGIT_ROWS, err);

    if (st < 0)
        return st;
    e->scratch_bytes = m.scratch;
    kv = least_kv(opt, m.kv_token);
    sum = m.weights + m.tables + m.scratch + kv;
    log_info("memory before loading: weights will take %.3f GiB, scratch for steps of %u tokens "
             "about %.3f GiB, the KV cache %llu bytes a token and at least %.3f GiB; available are "
             "%.2f GiB",
             gib(m.weights + m.tables), step_tokens(opt), gib(m.scratch),
             (unsigned long long)m.kv_token, gib(kv), gib(available));
    if (available == 0 || sum <= available)
        return 0;
    return err_set(err, ERR_NOMEM,
                   "%s does not fit into memory: weights %.2f GiB + scratch %.2f GiB + KV cache at "
                   "least %.2f GiB = %.2f GiB, but %.2f GiB are available; %s",
                   opt->model.path, gib(m.weights + m.tables), gib(m.scratch), gib(kv), gib(sum),
                   gib(available), advice(text, sizeof text, opt, &m, available));
}

/* Layers of the stage without those that only drafts read. */
static uint32_t main_layers(const struct engine *e, const struct model_options *m)
{
    return m->n_layers ? m->n_layers : model_config(e->model)->n_layers - m->first_layer;
}

int engine_memory_plan(struct engine *e, const struct engine_options *opt, struct err *err)
{
    struct model_kv_shape shape;
    struct sched_config *s = &e->sched_config;
    uint64_t n = s->n_blocks, tokens;

    model_kv_shape(e->model, &shape);
    e->layout = (struct kv_layout){
        .n_layers = shape.n_layers,
        .n_draft = shape.n_layers - main_layers(e, &opt->model),
        .planes = shape.latent ? 1 : 2,
        .kv_heads = shape.kv_heads,
        .head_dim = shape.head_dim,
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
