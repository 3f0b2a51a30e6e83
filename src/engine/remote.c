/* Between the scheduler and the transfer: pulls that it orders, leases on what it holds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/rand.h"
#include "engine/internal.h"
#include "sys/clock.h"

int engine_remote_role(const struct engine *e, const struct kv_params *kv, enum sched_role *role,
                       struct err *err)
{
    *role = SCHED_LOCAL;
    if (!kv || (!kv->do_remote_decode && !kv->do_remote_prefill))
        return 0;
    if (kv->do_remote_decode && kv->do_remote_prefill)
        return err_set(err, ERR_INVAL,
                       "kv_transfer_params: do_remote_decode and do_remote_prefill are both true; "
                       "a request is prefilled or decoded remotely, not both");
    if (kv->do_remote_decode && !e->kv.produce)
        return err_set(err, ERR_INVAL,
                       "kv_transfer_params asks for do_remote_decode, but this instance is no KV "
                       "producer; start it with --kv-transfer-config and kv_role kv_producer");
    if (kv->do_remote_prefill && !e->kv.consume)
        return err_set(err, ERR_INVAL,
                       "kv_transfer_params asks for do_remote_prefill, but this instance is no KV "
                       "consumer; start it with --kv-transfer-config and kv_role kv_consumer");
    if (kv->do_remote_decode)
        *role = SCHED_PRODUCE;
    else if ((kv->remote_request_id[0] || kv->transfer_id[0]) && kv->remote_host[0] &&
             kv->remote_port)
        *role = SCHED_CONSUME;
    else
        log_warning("kv_transfer_params has do_remote_prefill but names no remote prefill; "
                    "computing the prompt here");
    return 0;
}

/* A request that names its transfer, but not what P has answered: P may still be at it. */
static bool by_name(const struct kv_params *kv)
{
    return !kv->remote_request_id[0] && kv->transfer_id[0];
}

struct transfer_source engine_remote_source(const struct engine *e, const struct kv_params *kv,
                                            const unsigned char *prompt)
{
    bool named = by_name(kv);

    return (struct transfer_source){
        .host = kv->remote_host,
        .port = kv->remote_port,
        .engine_id = kv->remote_engine_id,
        .transfer_id = named ? kv->transfer_id : kv->remote_request_id,
        .prompt = named ? prompt : NULL,
        .blocks = kv->remote_block_ids,
        .n_blocks = kv->n_blocks,
        .block_tokens = kv->remote_block_size ? kv->remote_block_size : e->layout.block_tokens,
    };
}

static struct transfer_source source_of(const struct engine *e, const struct job *j)
{
    return engine_remote_source(e, &j->kv, j->digest);
}

int engine_remote_expect(struct engine *e, struct job *j)
{
    const struct hash_part part = { j->prompt, j->n_prompt * sizeof *j->prompt };
    struct hash256 digest;
    int st = 0;

    if (j->role == SCHED_LOCAL || !j->kv.transfer_id[0])
        return 0;
    hash_sha256(&digest, &part, 1);
    memcpy(j->digest, digest.b, sizeof j->digest);
    if (j->role == SCHED_PRODUCE)
        st = transfer_expect(e->transfer, j->transfer_id, j->digest);
    j->expected = j->role == SCHED_PRODUCE && st == 0;
    return st;
}

/* Comm thread: the job's own mail carries the news, so this cannot fail. */
void engine_remote_event(void *engine, const struct transfer_event *ev)
{
    struct engine *e = engine;
    struct job *j = (struct job *)(uintptr_t)ev->user;

    if (ev->kind == TRANSFER_LEASE_END) {
        engine_inbox_post(&e->inbox, &j->lease_end);
        return;
    }
    j->pull_status = ev->status;
    j->pull_bytes = ev->bytes;
    j->pull_seconds = ev->seconds;
    snprintf(j->pull_why, sizeof j->pull_why, "%s", ev->why ? ev->why : status_text(ev->status));
    if (ev->status < 0 && ev->status != ERR_CANCELED)
        log_warning("%s", j->pull_why);
    engine_inbox_post(&e->inbox, &j->pulled);
}

static void pull_ended(struct engine *e, struct job *j, const char *why)
{
    enum sched_pull_result r = SCHED_PULL_OK;

    j->pulling = false;
    if (j->pull_status < 0) {
        struct transfer_source src = source_of(e, j);
        char text[1024];

        pthread_mutex_lock(&e->lock);
        e->stats.kv_failures += j->pull_status != ERR_CANCELED;
        pthread_mutex_unlock(&e->lock);
        transfer_release_remote(e->transfer, &src);
        r = e->kv.on_failure == KV_FAIL_ERROR ? SCHED_PULL_FAIL : SCHED_PULL_RECOMPUTE;
        snprintf(text, sizeof text, "KV load from %s:%u failed: %s", j->kv.remote_host,
                 j->kv.remote_port, why);
        if (r == SCHED_PULL_FAIL)
            engine_job_fail(j, j->pull_status, text);
    }
    sched_pull_done(e->sched, j->sched, r, clock_now());
}

void engine_remote_pulled(struct engine *e, struct job *j)
{
    if (j->pull_status == 0) {
        pthread_mutex_lock(&e->lock);
        e->stats.transfer_bytes += j->pull_bytes;
        e->stats.transfer_seconds += j->pull_seconds;
        engine_samples_add(&e->pull_times, j->pull_seconds);
        pthread_mutex_unlock(&e->lock);
    }
    pull_ended(e, j, j->pull_why);
}

void engine_remote_forget(struct engine *e, struct job *j)
{
    struct transfer_source src = source_of(e, j);

    if (!e->transfer) /* closing: all leases and pulls have ended */
        return;
    if (j->expected)
        transfer_drop(e->transfer, j->transfer_id);
    j->expected = false;
    if (j->role != SCHED_CONSUME || j->pull_tried)
        return;
    j->pull_tried = true;
    transfer_release_remote(e->transfer, &src);
}

void engine_remote_start_pulls(struct engine *e)
{
    struct sched_pull p;

    while (sched_next_pull(e->sched, &p)) {
        struct job *j = p.user;
        struct transfer_source src = source_of(e, j);
        uint64_t have = (uint64_t)src.n_blocks * src.block_tokens;
        int st = ERR_MISMATCH;

        /* Once the pull has begun, pull_status is the comm thread's to write. */
        j->pulling = j->pull_tried = true;
        if (src.prompt || have >= p.n_tokens)
            st = transfer_pull(e->transfer, &src, p.blocks, p.n_blocks, p.first_token, p.n_tokens,
                               (uint64_t)(uintptr_t)j);
        if (st == 0)
            continue;
        j->pull_status = st;
        pull_ended(e, j,
                   !src.prompt && have < p.n_tokens
                       ? "remote_block_ids name fewer tokens than the prompt has"
                       : status_text(st));
    }
}

struct kv_params *engine_remote_hold(struct engine *e, struct job *j)
{
    struct kv_params *p = calloc(1, sizeof *p);
    const uint32_t *blocks;
    uint32_t n_blocks, n_tokens;
    int st = p ? sched_held(e->sched, j->sched, &blocks, &n_blocks, &n_tokens) : ERR_NOMEM;

    if (st == 0 && !(p->remote_block_ids = malloc((n_blocks + 1) * sizeof *p->remote_block_ids)))
        st = ERR_NOMEM;
    if (st == 0)
        st = transfer_hold(e->transfer, j->transfer_id, blocks, n_blocks, n_tokens,
                           (uint64_t)(uintptr_t)j);
    if (st < 0) {
        engine_kv_free(p);
        engine_job_fail(j, st, "the prompt's KV blocks cannot be held for the remote decode");
        sched_release(e->sched, j->sched, clock_now());
        return NULL;
    }
    j->expected = false; /* it is there */
    memcpy(p->remote_block_ids, blocks, n_blocks * sizeof *blocks);
    p->n_blocks = n_blocks;
    p->do_remote_prefill = true;
    p->remote_block_size = e->layout.block_tokens;
    p->num_prompt_blocks = n_blocks;
    p->remote_port = transfer_port(e->transfer);
    p->remote_ptp_size = p->remote_pp_size = 1;
    p->last_token_id = j->last_token;
    snprintf(p->remote_engine_id, sizeof p->remote_engine_id, "%s", e->engine_id);
    snprintf(p->remote_request_id, sizeof p->remote_request_id, "%s", j->transfer_id);
    snprintf(p->remote_host, sizeof p->remote_host, "%s", e->kv_host);
    return p;
}
