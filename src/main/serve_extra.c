/* --additional-config and --compilation-config: keys that deployments for other hardware carry. A few
 * mean something here; of the others the log says, key by key, that they have no effect. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/json.h"
#include "base/log.h"
#include "base/status.h"
#include "main/serve_flags.h"
#include "serve/chunk_config.h"
#include "serve/config.h"

#define FLAG     "--additional-config"
#define KEY_MAX  128
#define COUNT(a) (sizeof(a) / sizeof(a)[0])

/* Keys that are known to mean something elsewhere. Others are most likely misspelt. */
static const char *const idle_keys[] = {
    "ascend_scheduler_config",
    "torchair_graph_config",
    "expert_map_path",
    "eplb_config",
    "weight_prefetch_config",
    "enable_shared_expert_dp",
    "refresh",
    "chunked_prefill_for_mla",
    "enable_weight_nz_layout",
    "xlite_graph_config",
    "finegrained_tp_config.oproj_tensor_parallel_size",
    "finegrained_tp_config.embedding_tensor_parallel_size",
    "finegrained_tp_config.mlp_tensor_parallel_size",
    "cudagraph_mode",
    "cudagraph_capture_sizes",
    "mode",
    "level",
    "backend",
    "custom_ops",
    "use_inductor",
    "pass_config",
    "splitting_ops",
    "compile_sizes",
    "cudagraph_num_of_warmups",
    "full_cuda_graph",
    "cache_dir",
};

static void report_idle(const char *flag, const char *key)
{
    for (size_t i = 0; i < COUNT(idle_keys); i++)
        if (strcmp(idle_keys[i], key) == 0) {
            log_info("%s: %s has no effect: it steers other hardware", flag, key);
            return;
        }
    log_warning("%s: %s is unknown and has no effect", flag, key);
}

/* Scripts write booleans as texts now and then. */
static int read_bool(bool *out, const json_t *v, const char *key, struct err *e)
{
    const char *text = json_string_value(v);

    if (json_is_boolean(v))
        *out = json_is_true(v);
    else if (text && (strcasecmp(text, "true") == 0 || strcasecmp(text, "false") == 0))
        *out = strcasecmp(text, "true") == 0;
    else
        return err_set(e, ERR_INVAL, FLAG ": %s must be true or false", key);
    return 0;
}

static int read_overlap(struct serve_config *c, const json_t *v, const char *key, struct err *e)
{
    return read_bool(&c->ranks.overlap_shared_expert, v, key, e);
}

static int read_recompute(struct serve_config *c, const json_t *v, const char *key, struct err *e)
{
    int st = read_bool(&c->recompute_when_full, v, key, e);

    if (st == 0 && c->recompute_when_full && (!c->kv.consume || c->kv.produce)) {
        log_warning(FLAG ": %s has no effect: it is for a decode instance (kv_role kv_consumer), "
                         "whose proxy can have a prompt computed anew",
                    key);
        c->recompute_when_full = false;
    }
    return st;
}

/* Data-parallel ranks that each hold a part of the head. They exchange rows in each step, so they must
 * run in lockstep, which they do where they share experts. */
static int read_head(struct serve_config *c, const json_t *v, const char *key, struct err *e)
{
    int64_t n = json_integer_value(v);

    if (!json_is_integer(v) || n < 1)
        return err_set(e, ERR_INVAL, FLAG ": %s must be a number of 1 or more", key);
    if (n == 1)
        return 0;
    if (c->tp > 1)
        return err_set(e, ERR_UNSUPPORTED,
                       FLAG
                       ": %s %lld with --tensor-parallel-size %lld: the head is shared out over "
                       "the tensor-parallel ranks already; leave the key out",
                       key, (long long)n, (long long)c->tp);
    if (c->dp % n)
        return err_set(e, ERR_INVAL, FLAG ": %s %lld does not divide --data-parallel-size %lld",
                       key, (long long)n, (long long)c->dp);
    if (!c->expert_parallel) {
        log_warning(FLAG ": %s has no effect without --enable-expert-parallel: only then do "
                         "data-parallel ranks run in lockstep",
                    key);
        return 0;
    }
    c->ranks.head_ranks = (uint32_t)n;
    return 0;
}

static int leave(struct serve_config *c, const json_t *v, const char *key, struct err *e)
{
    (void)c;
    (void)v;
    (void)key;
    (void)e;
    return 0;
}

static const struct key {
    const char *name;
    int (*read)(struct serve_config *c, const json_t *v, const char *key, struct err *e);
} keys[] = {
    { "multistream_overlap_shared_expert", read_overlap },
    { "scheduler_config.recompute_scheduler_enable", read_recompute },
    { "recompute_scheduler_enable", read_recompute }, /* where it stood before */
    { "finegrained_tp_config.lmhead_tensor_parallel_size", read_head },
    { "lmhead_tensor_parallel_size", read_head },
    /* these together, by read_chunks */
    { "scheduler_config.profiling_chunk_config", leave },
    { "profiling_chunk_config", leave },
    { "scheduler_config.short_request_first_config", leave },
    { "scheduler_config.enable_balance_scheduling", leave },
    { "enable_balance_scheduling", leave },
};

/* Objects whose members are read one by one. */
static bool is_group(const char *name)
{
    return strcmp(name, "scheduler_config") == 0 || strcmp(name, "finegrained_tp_config") == 0;
}

static int take_key(struct serve_config *c, const char *name, const json_t *v, struct err *e)
{
    if (json_is_null(v))
        return 0;
    for (size_t i = 0; i < COUNT(keys); i++)
        if (strcmp(keys[i].name, name) == 0)
            return keys[i].read(c, v, name, e);
    report_idle(FLAG, name);
    return 0;
}

static int take_group(struct serve_config *c, const char *group, json_t *o, struct err *e)
{
    char name[KEY_MAX];
    const char *key;
    json_t *v;
    int st;

    if (!json_is_object(o))
        return json_is_null(o) ? 0 : err_set(e, ERR_INVAL, FLAG ": %s must be an object", group);
    json_object_foreach(o, key, v)
    {
        snprintf(name, sizeof name, "%s.%s", group, key);
        if ((st = take_key(c, name, v, e)) < 0)
            return st;
    }
    return 0;
}

static int read_chunks(struct serve_config *c, struct err *e)
{
    const char *balance = getenv("VLLM_ASCEND_BALANCE_SCHEDULING");
    struct chunk_config_place at = { .pp = c->ranks.pp,
                                     .max_batched_tokens = (uint32_t)c->max_batched_tokens,
                                     .chunked_prefill = c->chunked_prefill,
                                     .priority = strcmp(c->policy, "priority") == 0,
                                     .balance = balance && strcmp(balance, "1") == 0 };
    struct chunk_config k;
    int st = chunk_config_read(&k, c->additional, &at, e);

    if (st < 0)
        return err_prefix(e, st, FLAG);
    for (uint32_t i = 0; i < k.n_notes; i++)
        log_write(k.note[i].warning ? LOG_WARNING : LOG_INFO, FLAG ": %s", k.note[i].text);
    c->chunks = k.chunks;
    c->short_first = k.short_first;
    return 0;
}

int serve_check_extra(struct serve_config *c, struct err *e)
{
    const char *key;
    json_t *v;
    int st;

    json_object_foreach(c->additional, key, v)
    {
        st = is_group(key) ? take_group(c, key, v, e) : take_key(c, key, v, e);
        if (st < 0)
            return st;
    }
    json_object_foreach(c->compilation, key, v) report_idle("--compilation-config", key);
    return read_chunks(c, e);
}
