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

/* What the ranks of one host have and need together. */
struct host_sum {
    uint64_t available, need, scratch, block;
    uint32_t n;
};

static struct host_sum sum_of_host(const struct ranks *r, const char *host)
{
    struct host_sum s = { .available = UINT64_MAX };

    for (uint32_t i = 0; i < r->n; i++) {
        const struct rank_facts *f = &r->facts[i];

        if (strcmp(f->host, host) != 0)
            continue;
        if (f->available < s.available)
            s.available = f->available;
        s.need += f->need;
        s.scratch += f->scratch;
        s.block += f->block;
        s.n++;
    }
    return s;
}

/* Blocks that the memory of a rank's host has room for, where all of that host's ranks have as many. */
static uint64_t blocks_on_host(const struct engine *e, const struct engine_options *opt,
                               const char *host)
{
    struct host_sum s = sum_of_host(e->ranks, host);
    uint64_t bytes = s.available > s.scratch ? s.available - s.scratch : 0;
    uint64_t n = (uint64_t)((double)bytes * opt->memory_fraction) / s.block;
    uint64_t useful = useful_blocks(&e->sched_config);

    return n < useful ? n : useful;
}

/* The ranks have equally many blocks: as many as each of them has room for. */
static uint64_t blocks_by_memory(const struct engine *e, const struct engine_options *opt)
{
    uint64_t least = UINT64_MAX;

    for (uint32_t i = 0; i < e->ranks->n; i++) {
        const struct rank_facts *f = &e->ranks->facts[i];
        uint64_t n = f->pool ? f->pool / f->block : blocks_on_host(e, opt, f->host);

        if (n < least)
            least = n;
    }
    return least;
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
    e->facts.need = sum;
    e->facts.available = available;
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

int engine_memory_verdict(const struct engine *e, struct err *err)
{
    const struct ranks *r = e->ranks;
    struct host_sum s = sum_of_host(r, r->facts[r->rank].host);

    if (s.n <= 1 || s.available == 0 || s.need <= s.available)
        return 0;
    return err_set(
        err, ERR_NOMEM,
        "the %u ranks on this host do not fit into its memory: weights, scratch and a "
        "least KV cache take %.2f GiB together, but %.2f GiB are available; free memory, "
        "or spread the ranks over more hosts",
        s.n, gib(s.need), gib(s.available));
}

/* Layers of the stage without those that only drafts read. */
static uint32_t main_layers(const struct engine *e, const struct model_options *m)
{
    return m->n_layers ? m->n_layers : model_config(e->model)->n_layers - m->first_layer;
}

static void fill_layout(struct engine *e, const struct engine_options *opt)
{
    struct model_kv_shape shape;

    model_kv_shape(e->model, &shape);
    e->layout = (struct kv_layout){
        .n_layers = shape.n_layers,
        .first_layer = opt->model.first_layer,
        .n_draft = shape.n_layers - main_layers(e, &opt->model),
        .planes = shape.latent ? 1 : 2,
        .kv_heads = shape.kv_heads,
        .first_head = shape.first_head,
        .all_layers = model_config(e->model)->n_layers,
        .all_heads = shape.all_heads,
        .head_dim = shape.head_dim,
        .elem_bytes = model_kv_type(e->model) == K_F32 ? 4 : 2,
        .block_tokens = e->sched_config.block_tokens,
    };
}

/* Buffers in which states travel from stage to stage. */
static uint64_t state_buffers(const struct engine *e)
{
    const struct ranks *r = e->ranks;
    uint64_t ways = (r->stage > 0) + (r->stage + 1 < r->pp);

    return 2 * ways * e->sched_config.max_batched_tokens * model_config(e->model)->hidden *
           sizeof(float);
}

void engine_memory_facts(struct engine *e, const struct engine_options *opt)
{
    struct rank_facts *f = &e->facts;

    fill_layout(e, opt);
    f->available = topo_memory_available();
    f->scratch = e->scratch_bytes + state_buffers(e);
    f->block = kv_layout_token_bytes(&e->layout) * e->layout.block_tokens;
    f->pool = opt->kv_bytes;
    f->n_draft = e->layout.n_draft;
    snprintf(f->fingerprint, sizeof f->fingerprint, "%s", model_fingerprint(e->model));
}

int engine_memory_plan(struct engine *e, const struct engine_options *opt, struct err *err)
{
    struct sched_config *s = &e->sched_config;
    uint64_t n = s->n_blocks, tokens;

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
