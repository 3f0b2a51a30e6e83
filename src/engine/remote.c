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

/* ---- the ranks ---- */

static int post(void *engine, uint32_t to, const void *data, size_t bytes)
{
    struct engine *e = engine;

    return pipe_post(e->pipe, to, PIPE_KV, data, bytes);
}

/* Of this rank. */
static struct transfer_options transfer_of(const struct engine *e, const struct engine_options *opt)
{
    const struct engine_kv_options *kv = &opt->kv;
    const struct ranks *r = e->ranks;

    return (struct transfer_options){
        .host = kv->host ? kv->host : "127.0.0.1",
        .port = kv->port ? (uint16_t)(kv->port + r->rank) : 0,
        .produce = kv->produce,
        .consume = kv->consume,
        .secret = kv->secret,
        .engine_id = e->engine_id,
        .fingerprint = model_fingerprint(e->model),
        .kv_dtype = k_type_info[model_kv_type(e->model)].name,
        .lease_seconds = kv->lease_seconds,
        .pull_timeout = kv->pull_timeout,
        .connect_timeout = kv->connect_timeout,
        .checksums = kv->checksums,
        .shape = { .pp = r->pp, .tp = r->tp, .dp = opt->ranks.dp_size },
        .rank = r->rank,
        .producers = kv->producers,
        .consumers = kv->consumers,
        .layout = e->layout,
        .pool = e->pool,
    };
}

static int open_follow(struct engine *e, const struct engine_options *opt, struct err *err)
{
    const struct kv_follow_options o = {
        .transfer = transfer_of(e, opt), .post = post, .post_arg = e, .push = e->push
    };

    if (!opt->kv.produce && !opt->kv.consume)
        return 0;
    return kv_follow_create(&e->kv_follow, &o, err);
}

int engine_remote_begin(struct engine *e, const struct engine_options *opt, struct err *err)
{
    int st = 0;

    if (opt->kv.layerwise && opt->kv.produce)
        st = kv_push_create(&e->push, e->sched_config.max_seqs, e->layout.first_layer, err);
    return st < 0 || e->ranks->rank == 0 ? st : open_follow(e, opt, err);
}

struct transfer *engine_remote_transfer(const struct engine *e)
{
    return e->kv_lead     ? kv_lead_transfer(e->kv_lead)
           : e->kv_follow ? kv_follow_transfer(e->kv_follow)
                          : NULL;
}

/* The job's own mail carries the news, so this cannot fail. */
static void on_ended(void *engine, struct kv_track *t)
{
    struct engine *e = engine;
    struct job *j = t->user;

    if (t == &j->lease) {
        engine_inbox_post(&e->inbox, &j->lease_end);
        return;
    }
    if (t->status < 0 && t->status != ERR_CANCELED)
        log_warning("%s", t->why);
    engine_inbox_post(&e->inbox, &j->pulled);
}

int engine_remote_open(struct engine *e, const struct engine_options *opt, struct err *err)
{
    const struct kv_lead_options o = { .transfer = transfer_of(e, opt),
                                       .n = e->ranks->n,
                                       .seconds = e->ranks->step_seconds,
                                       .post = post,
                                       .post_arg = e,
                                       .push = e->push,
                                       .ended = on_ended,
                                       .arg = e };
    int st;

    if (!opt->kv.produce && !opt->kv.consume)
        return 0;
    if (e->push)
        log_info("prompts that a transfer_id is given for go out layer by layer while they are "
                 "computed");
    st = kv_lead_open(&e->kv_lead, &o, err);
    if (st == 0) /* what is announced is numeric: nobody has to resolve it while KV moves */
        snprintf(e->kv_host, sizeof e->kv_host, "%s", kv_lead_host(e->kv_lead));
    return st;
}

void engine_remote_arrived(struct engine *e, uint32_t from, const void *data, size_t bytes)
{
    if (e->kv_lead)
        kv_lead_arrived(e->kv_lead, from, data, bytes);
    else if (e->kv_follow && from == 0)
        kv_follow_arrived(e->kv_follow, data, bytes);
    else
        log_warning("rank %u speaks of KV transfer, which there is none of here", from);
}

/* ---- requests ---- */

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
        st = kv_lead_expect(e->kv_lead, j->transfer_id, j->digest);
    j->expected = j->role == SCHED_PRODUCE && st == 0;
    return st;
}

void engine_remote_started(struct engine *e, struct job *j, sched_id id)
{
    if (e->push && j->expected)
        kv_lead_grow(e->kv_lead, j->transfer_id, id, j->n_prompt);
}

static void pull_ended(struct engine *e, struct job *j, const char *why)
{
    enum sched_pull_result r = SCHED_PULL_OK;

    j->pulling = false;
    if (j->pull.status < 0) {
        struct transfer_source src = source_of(e, j);
        char text[1024];

        pthread_mutex_lock(&e->lock);
        e->stats.kv_failures += j->pull.status != ERR_CANCELED;
        pthread_mutex_unlock(&e->lock);
        kv_lead_release_remote(e->kv_lead, &src);
        r = e->kv.on_failure == KV_FAIL_ERROR ? SCHED_PULL_FAIL : SCHED_PULL_RECOMPUTE;
        snprintf(text, sizeof text, "KV load from %s:%u failed: %s", j->kv.remote_host,
                 j->kv.remote_port, why);
        if (r == SCHED_PULL_FAIL)
            engine_job_fail(j, j->pull.status, text);
    }
    sched_pull_done(e->sched, j->sched, r, clock_now());
}

/* All ranks have what they need. False: the job waits until the producer has answered. */
static bool done_is_said(struct engine *e, struct job *j)
{
    struct transfer_source src = source_of(e, j);
    int st;

    j->pull_bytes += j->pull.bytes;
    j->pull_seconds += j->pull.seconds;
    if (!kv_lead_owes_done(&j->pull))
        return true;
    st = kv_lead_done(e->kv_lead, &j->pull, &src);
    if (st == 0)
        return false;
    j->pull.status = st;
    snprintf(j->pull.why, sizeof j->pull.why, "DONE could not be said: %s", status_text(st));
    return true;
}

void engine_remote_cancel(struct engine *e, struct job *j)
{
    kv_lead_cancel(e->kv_lead, &j->pull);
}

void engine_remote_pulled(struct engine *e, struct job *j)
{
    if (j->pull.status == 0 && !done_is_said(e, j))
        return;
    if (j->pull.status == 0) {
        pthread_mutex_lock(&e->lock);
        e->stats.transfer_bytes += j->pull_bytes;
        e->stats.transfer_seconds += j->pull_seconds;
        engine_samples_add(&e->pull_times, j->pull_seconds);
        pthread_mutex_unlock(&e->lock);
    }
    pull_ended(e, j, j->pull.why);
}

void engine_remote_forget(struct engine *e, struct job *j)
{
    struct transfer_source src = source_of(e, j);

    if (!e->kv_lead)
        return;
    if (j->expected)
        kv_lead_drop(e->kv_lead, j->transfer_id);
    j->expected = false;
    if (j->role != SCHED_CONSUME || j->pull_tried)
        return;
    j->pull_tried = true;
    kv_lead_release_remote(e->kv_lead, &src);
}

void engine_remote_start_pulls(struct engine *e)
{
    struct sched_pull p;

    while (sched_next_pull(e->sched, &p)) {
        struct job *j = p.user;
        struct transfer_source src = source_of(e, j);
        uint64_t have = (uint64_t)src.n_blocks * src.block_tokens;
        int st = ERR_MISMATCH;

        /* Once the pull has begun, the track is the comm thread's to write. */
        j->pulling = j->pull_tried = true;
        j->pull.user = j;
        j->pull.name = src.transfer_id;
        if (src.prompt || have >= p.n_tokens)
            st = kv_lead_pull(e->kv_lead, &j->pull, &src, p.blocks, p.n_blocks, p.first_token,
                              p.n_tokens);
        if (st == 0)
            continue;
        j->pull.status = st;
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
    j->lease.user = j;
    j->lease.name = j->transfer_id;
    if (st == 0)
        st = kv_lead_hold(e->kv_lead, &j->lease, blocks, n_blocks, n_tokens);
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
    p->remote_port = kv_lead_port(e->kv_lead);
    p->remote_ptp_size = e->ranks->tp;
    p->remote_pp_size = e->ranks->pp;
    p->last_token_id = j->last_token;
    snprintf(p->remote_engine_id, sizeof p->remote_engine_id, "%s", e->engine_id);
    snprintf(p->remote_request_id, sizeof p->remote_request_id, "%s", j->transfer_id);
    snprintf(p->remote_host, sizeof p->remote_host, "%s", e->kv_host);
    return p;
}
