/* The engine's door: opening, closing, requests in, events and figures out. */
#include "engine/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/rand.h"
#include "engine/internal.h"
#include "sys/clock.h"

#define OUTBOX_FIRST 4096

/* Fills in what the options leave to the model. */
static void settle_config(struct engine *e, const struct engine_options *opt)
{
    struct sched_config *s = &e->sched_config;

    *s = opt->sched;
    if (s->max_model_len == 0)
        s->max_model_len = model_config(e->model)->max_position;
    if (s->max_batched_tokens > K_MAX_TOKENS)
        s->max_batched_tokens = K_MAX_TOKENS;
    s->n_draft_tokens = opt->n_draft_tokens;
    if (s->max_inflight == 0)
        s->max_inflight = 1;
}

static int copy_kv_options(struct engine *e, const struct engine_kv_options *kv)
{
    e->kv = *kv;
    e->kv.secret = kv->secret ? strdup(kv->secret) : NULL;
    e->kv.host = e->kv.engine_id = NULL;
    snprintf(e->kv_host, sizeof e->kv_host, "%s", kv->host ? kv->host : "127.0.0.1");
    if (kv->engine_id)
        snprintf(e->engine_id, sizeof e->engine_id, "%s", kv->engine_id);
    else
        rand_hex(e->engine_id, 16);
    return kv->secret && !e->kv.secret ? ERR_NOMEM : 0;
}

static int check_drafts(const struct engine *e, struct err *err)
{
    if (e->sched_config.n_draft_tokens == 0 || e->ranks->facts[ranks_last(e->ranks)].n_draft > 0)
        return 0;
    return err_set(err, ERR_INVAL,
                   "%u speculative tokens are asked for, but no multi-token prediction layer is "
                   "loaded: the checkpoint has none",
                   e->sched_config.n_draft_tokens);
}

static int open_worker(struct engine *e, struct err *err)
{
    struct ranks *r = e->ranks;
    bool shares = r->tp > 1 && e->sched_config.n_draft_tokens > 0;
    const struct worker_options o = {
        .kernels = e->kernels,
        .model = e->model,
        .max_batched_tokens = e->sched_config.max_batched_tokens,
        .max_seqs = e->sched_config.max_seqs,
        .max_model_len = e->sched_config.max_model_len,
        .layout = e->layout,
        .pool = e->pool,
        .hidden_only = r->stage + 1 < r->pp,
        .share = shares ? ranks_share : NULL,
        .share_arg = r,
        .follows = r->place > 0,
        .draft_rounds = e->dp_in_step ? e->sched_config.n_draft_tokens : 0,
        .shares_head = r->part.head_size > 1,
    };

    e->choice = calloc(e->sched_config.max_seqs, sizeof *e->choice);
    if (!e->choice)
        return err_set(err, ERR_NOMEM, "no memory for %u sequences", e->sched_config.max_seqs);
    return engine_worker_create(&e->worker, &o, err);
}

static int start_thread(struct engine *e, struct err *err)
{
    if (pthread_create(&e->thread, NULL, engine_core_thread, e) != 0)
        return err_set(err, ERR_NOMEM, "cannot start the engine thread");
    e->running = true;
    return 0;
}

/* Of all ranks' ways so far: st and err are this one's. */
static int together(struct engine *e, int st, struct err *err)
{
    e->facts.status = st;
    return ranks_gather(e->ranks, &e->facts, err);
}

/* What this rank loads. */
static void choose_part(const struct engine *e, struct engine_options *o)
{
    const struct ranks *r = e->ranks;

    if (r->n_layers) {
        o->model.first_layer = r->first_layer;
        o->model.n_layers = r->n_layers;
    }
    o->model.part = r->part;
}

static int load_part(struct engine *e, const struct engine_options *o, struct err *err)
{
    int st;

    if ((st = together(e, engine_memory_check(e, o, err), err)) < 0)
        return st;
    if ((st = engine_memory_verdict(e, err)) == 0)
        st = model_open(&e->model, e->kernels, &o->model, err);
    if ((st = together(e, st, err)) < 0)
        return st;
    settle_config(e, o);
    engine_memory_facts(e, o);
    return together(e, 0, err);
}

/* The ranks read their checkpoints each for itself. */
static int check_models(const struct engine *e, struct err *err)
{
    const struct ranks *r = e->ranks;
    char name[80];

    for (uint32_t i = 0; i < r->n; i++)
        if (strcmp(r->facts[i].fingerprint, e->facts.fingerprint) != 0)
            return err_set(err, ERR_MISMATCH,
                           "%s has loaded another model than this rank: fingerprint %.16s.., not "
                           "%.16s..; give both the same files",
                           ranks_name(r, i, name, sizeof name), r->facts[i].fingerprint,
                           e->facts.fingerprint);
    return 0;
}

int engine_open_part(struct engine *e, const struct engine_options *opt, struct err *err)
{
    struct engine_options o = *opt;
    int st;

    e->step_delay = opt->step_delay;
    e->kv.produce = opt->kv.produce;
    e->kv.consume = opt->kv.consume;
    if ((st = engine_dp_look(&o, err)) < 0 ||
        (st = kernels_open(&e->kernels, &o.kernel, err)) < 0 ||
        (st = ranks_open(&e->ranks, &o, err)) < 0 || (st = engine_dp_begin(e, &o, err)) < 0)
        return st;
    choose_part(e, &o);
    if ((st = load_part(e, &o, err)) < 0)
        return st;
    if ((st = check_models(e, err)) == 0)
        st = engine_memory_plan(e, &o, err);
    if (st == 0)
        st = check_drafts(e, err);
    if (st == 0)
        st = engine_memory_make_pool(e, err);
    if (st == 0)
        st = open_worker(e, err);
    if (st == 0)
        st = engine_remote_begin(e, opt, err);
    if ((st = together(e, st, err)) < 0 || (st = engine_dp_gather(e, &o, err)) < 0)
        return st;
    return engine_stage_open_pipe(e, err);
}

struct plan_limits engine_plan_limits(const struct engine *e)
{
    return (struct plan_limits){
        .max_seqs = e->sched_config.max_seqs,
        .max_tokens = e->sched_config.max_batched_tokens,
        .max_model_len = e->sched_config.max_model_len,
        .block_tokens = e->sched_config.block_tokens,
        .n_blocks = e->sched_config.n_blocks,
        .vocab = model_config(e->model)->vocab,
    };
}

/* Rank 0's own. */
static int open_core(struct engine *e, struct err *err)
{
    const struct plan_limits limits = engine_plan_limits(e);
    int st;

    buf_init(&e->plan_bytes, PIPE_MAX_MESSAGE);
    e->flight = calloc(e->sched_config.max_inflight, sizeof *e->flight);
    if (!e->flight)
        return err_set(err, ERR_NOMEM, "no memory for %u steps in flight",
                       e->sched_config.max_inflight);
    if (e->pipe && (st = plan_writer_create(&e->writer, &limits, err)) < 0)
        return st;
    e->stats.n_ranks = e->ranks->n;
    e->stats.n_stages = e->ranks->pp;
    return sched_create(&e->sched, &e->sched_config, err);
}

int engine_open(struct engine **out, const struct engine_options *opt, struct err *err)
{
    struct engine *e = calloc(1, sizeof *e);
    int st;

    if (!e)
        return err_set(err, ERR_NOMEM, "no memory for the engine");
    engine_inbox_init(&e->inbox);
    engine_job_table_init(&e->jobs);
    pthread_mutex_init(&e->lock, NULL);
    atomic_store(&e->next_id, 1);
    e->timeline = opt->timeline;
    e->timeline_arg = opt->timeline_arg;
    if ((st = engine_outbox_init(&e->outbox, OUTBOX_FIRST, opt->notify, opt->notify_arg)) < 0 ||
        (st = copy_kv_options(e, &opt->kv)) < 0) {
        err_set(err, st, "no memory for the engine");
        engine_close(e);
        return st;
    }
    if ((st = engine_open_part(e, opt, err)) < 0 || (st = open_core(e, err)) < 0 ||
        (st = engine_profile(e, opt, err)) < 0 || (st = engine_remote_open(e, opt, err)) < 0) {
        engine_close(e);
        return st;
    }
    engine_core_publish(e);
    if ((st = start_thread(e, err)) < 0) {
        engine_close(e);
        return st;
    }
    *out = e;
    return 0;
}

/* With the engine thread gone: every request, pull and lease ends here. */
static void end_all(struct engine *e)
{
    double now = clock_now();
    struct job *j;

    engine_core_mail(e, engine_inbox_take(&e->inbox, 0));
    for (uint32_t i = 0; i < JOB_BUCKETS; i++)
        for (j = e->jobs.bucket[i]; j; j = j->hash_next)
            if (!j->ended)
                sched_abort(e->sched, j->sched, FINISH_ABORT, now);
    engine_core_drop_flights(e);
    kv_lead_close(e->kv_lead); /* answers every pull and ends every lease */
    engine_core_mail(e, engine_inbox_take(&e->inbox, 0));
    engine_core_drain(e);
    engine_core_publish(e);
    engine_outbox_flush(&e->outbox);
}

/* The other ranks end too: as they should, or where one has failed to open, with it. */
static void leave(struct engine *e)
{
    struct ranks *r = e->ranks;

    for (uint32_t i = 1; e->pipe && r->rank == 0 && i < r->n; i++)
        pipe_post(e->pipe, i, PIPE_LEAVE, NULL, 0);
    pipe_destroy(e->pipe);
    if (r && r->pipe_group)
        ranks_abandon(r, "another rank could not start");
    ranks_close(r);
}

bool engine_is_apart(const struct engine *e, char *why, size_t room)
{
    return e->dp && engine_dp_is_apart(e->dp, why, room);
}

const char *engine_broken(const struct engine *e)
{
    return atomic_load(&e->broken) ? e->broken_why : NULL;
}

void engine_close(struct engine *e)
{
    if (!e)
        return;
    atomic_store(&e->closing, true);
    atomic_store(&e->stop, true);
    if (e->running) {
        engine_inbox_wake(&e->inbox);
        pthread_join(e->thread, NULL);
        end_all(e);
    }
    kv_lead_close(e->kv_lead);
    kv_follow_close(e->kv_follow);
    engine_dp_close(e->dp);
    leave(e);
    kv_lead_destroy(e->kv_lead);
    kv_follow_destroy(e->kv_follow);
    kv_push_destroy(e->push);
    engine_worker_destroy(e->worker);
    sched_destroy(e->sched);
    if (e->kernels)
        engine_memory_free_pool(e);
    model_close(e->model);
    kernels_close(e->kernels);
    plan_writer_destroy(e->writer);
    plan_reader_destroy(e->reader);
    result_writer_finish(&e->result);
    buf_finish(&e->plan_bytes);
    for (uint32_t i = 0; i < e->n_boxes; i++)
        buf_finish(&e->box[i].bytes);
    free(e->box);
    free(e->flight);
    engine_outbox_finish(&e->outbox);
    engine_inbox_finish(&e->inbox);
    engine_job_table_finish(&e->jobs);
    pthread_mutex_destroy(&e->lock);
    free((char *)(uintptr_t)e->kv.secret);
    free(e->choice);
    free(e);
}

void engine_info(const struct engine *e, struct engine_info *out)
{
    *out = (struct engine_info){
        .model = model_config(e->model),
        .max_model_len = e->sched_config.max_model_len,
        .block_tokens = e->layout.block_tokens,
        .n_blocks = e->layout.n_blocks,
        .max_batched_tokens = e->sched_config.max_batched_tokens,
        .max_seqs = e->sched_config.max_seqs,
        .pool_bytes = kv_layout_pool_bytes(&e->layout),
        .weight_bytes = model_weight_bytes(e->model),
        .isa = e->kernels->isa,
        .kv_dtype = k_type_info[model_kv_type(e->model)].name,
        .fingerprint = model_fingerprint(e->model),
        .threads = e->kernels->threads,
        .kv_host = e->kv_host,
        .kv_port = e->kv_lead ? kv_lead_port(e->kv_lead) : 0,
        .engine_id = e->engine_id,
    };
}

static int check_ids(const struct engine *e, const int32_t *ids, uint32_t n, const char *what,
                     struct err *err)
{
    uint32_t vocab = model_config(e->model)->vocab;

    for (uint32_t i = 0; i < n; i++)
        if (ids[i] < 0 || (uint32_t)ids[i] >= vocab)
            return err_set(err, ERR_RANGE, "%s: token id %d is outside the vocabulary [0, %u)",
                           what, ids[i], vocab);
    return 0;
}

/* Output tokens that came with the request. */
static int check_output(const struct engine *e, const struct engine_request *r, struct err *err)
{
    const struct kv_params *kv = r->kv;

    if (!kv || kv->n_output == 0)
        return 0;
    if (r->sampling->prompt_logprobs >= 0 || r->sampling->prompt_only)
        return err_set(err, ERR_INVAL,
                       "kv_transfer_params.output_token_ids: an output that goes on has no "
                       "prompt_logprobs");
    if (!kv->do_remote_decode && kv->n_output >= r->sampling->max_tokens)
        return err_set(err, ERR_INVAL,
                       "kv_transfer_params.output_token_ids has %u tokens, so nothing is left of "
                       "max_tokens %u",
                       kv->n_output, r->sampling->max_tokens);
    return check_ids(e, kv->output_ids, kv->n_output, "kv_transfer_params.output_token_ids", err);
}

static int check_lists(const struct engine *e, const struct sampling *s, struct err *err)
{
    int st;

    for (uint32_t i = 0; i < s->n_bias; i++)
        if ((st = check_ids(e, &s->bias[i].id, 1, "logit_bias", err)) < 0)
            return st;
    if ((st = check_ids(e, s->stop_ids, s->n_stop_ids, "stop_token_ids", err)) < 0 ||
        (st = check_ids(e, s->allowed, s->n_allowed, "allowed_token_ids", err)) < 0 ||
        (st = check_ids(e, s->want_ids, s->n_want, "logprob_token_ids", err)) < 0)
        return st;
    if (s->n_bias + s->n_stop_ids > SAMPLE_MAX_BIAS - MODEL_MAX_EOS)
        return err_set(err, ERR_INVAL,
                       "logit_bias and stop_token_ids have %u entries together, at most %d",
                       s->n_bias + s->n_stop_ids, SAMPLE_MAX_BIAS - MODEL_MAX_EOS);
    if (s->n_want > SAMPLE_MAX_BIAS)
        return err_set(err, ERR_INVAL, "logprob_token_ids has %u entries, at most %d", s->n_want,
                       SAMPLE_MAX_BIAS);
    if (s->logprobs > K_MAX_TOP || s->prompt_logprobs > K_MAX_TOP)
        return err_set(err, ERR_INVAL, "at most %d log-probabilities a token are kept", K_MAX_TOP);
    return 0;
}

static int check(const struct engine *e, const struct engine_request *r, struct err *err)
{
    uint32_t limit = e->sched_config.max_model_len;
    uint64_t room = r->sampling->prompt_only ? 0 : 1;
    char why[300];
    int st;

    if (atomic_load(&e->broken))
        return err_set(err, ERR_CLOSED, "%s", e->broken_why);
    if (atomic_load(&e->closing))
        return err_set(err, ERR_CLOSED, "the server is shutting down");
    if (engine_is_apart(e, why, sizeof why))
        return err_set(err, ERR_BUSY, "%s", why);
    if (r->n_prompt == 0)
        return err_set(err, ERR_INVAL, "the prompt is empty");
    if ((st = check_output(e, r, err)) < 0)
        return st;
    if (r->n_prompt + (r->kv ? r->kv->n_output : 0) + room > limit)
        return err_set(err, ERR_TOOLONG,
                       "this model's maximum context length is %u tokens, but the prompt has %u "
                       "tokens and at least %u output token is asked for; shorten the prompt",
                       limit, r->n_prompt, (unsigned)room);
    if ((st = check_ids(e, r->prompt, r->n_prompt, "prompt", err)) < 0)
        return st;
    return check_lists(e, r->sampling, err);
}

int engine_submit(struct engine *e, const struct engine_request *r, uint64_t *id, struct err *err)
{
    enum sched_role role;
    struct job *j;
    int st;

    if ((st = check(e, r, err)) < 0 || (st = engine_remote_role(e, r->kv, &role, err)) < 0)
        return st;
    if (engine_job_create(&j, r) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a prompt of %u tokens", r->n_prompt);
    j->role = role;
    j->id = atomic_fetch_add(&e->next_id, 1);
    j->t_arrive = clock_now();
    if (j->kv.transfer_id[0])
        snprintf(j->transfer_id, sizeof j->transfer_id, "%s", j->kv.transfer_id);
    else
        rand_hex(j->transfer_id, 16);
    if (engine_outbox_reserve(&e->outbox) < 0) { /* its END must not be lost */
        engine_job_destroy(j);
        return err_set(err, ERR_NOMEM, "no memory for one request more");
    }
    if ((st = engine_remote_expect(e, j)) < 0) {
        err_set(err, st, "kv_transfer_params.transfer_id '%s': %s", j->transfer_id,
                status_text(st));
        engine_outbox_unreserve(&e->outbox);
        engine_job_destroy(j);
        return st;
    }
    *id = j->id;
    engine_job_table_add(&e->jobs, j);
    engine_inbox_post(&e->inbox, &j->submit);
    return 0;
}

void engine_cancel(struct engine *e, uint64_t id, enum finish finish)
{
    struct mail *m = engine_job_table_cancel(&e->jobs, id, finish);

    if (m)
        engine_inbox_post(&e->inbox, m);
}

void engine_prompt_free(struct engine_logprobs **p, uint32_t n)
{
    for (uint32_t i = 0; p && i < n; i++)
        free(p[i]);
    free(p);
}

void engine_kv_free(struct kv_params *p)
{
    if (p)
        kv_params_finish(p);
    free(p);
}

void engine_event_finish(struct engine_event *ev)
{
    free(ev->logprobs);
    engine_prompt_free(ev->prompt, ev->n_prompt);
    engine_kv_free(ev->kv);
    free(ev->why);
    ev->logprobs = NULL;
    ev->prompt = NULL;
    ev->kv = NULL;
    ev->why = NULL;
}

uint32_t engine_events(struct engine *e, struct engine_event *out, uint32_t max)
{
    return engine_outbox_take(&e->outbox, out, max);
}

int engine_kv_release(struct engine *e, const struct kv_params *p)
{
    if (!e->kv_lead)
        return ERR_NOTFOUND;
    return kv_lead_abort_hold(e->kv_lead,
                              p->remote_request_id[0] ? p->remote_request_id : p->transfer_id);
}

int engine_kv_release_remote(struct engine *e, const struct kv_params *p)
{
    static const unsigned char any_prompt[TRANSFER_PROMPT_BYTES];
    struct transfer_source src = engine_remote_source(e, p, any_prompt);

    if (!e->kv_lead || !p->remote_host[0] || !p->remote_port)
        return ERR_NOTFOUND;
    return kv_lead_release_remote(e->kv_lead, &src);
}

void engine_kv_refuse(struct engine *e, const struct kv_params *p)
{
    if (e->kv.produce && p->transfer_id[0])
        kv_lead_drop(e->kv_lead, p->transfer_id);
}

int engine_kv_probe(struct engine *e, const char *host, uint16_t port, struct err *err)
{
    if (!e->kv.consume)
        return err_set(err, ERR_INVAL, "this instance is no KV consumer");
    return kv_lead_probe(e->kv_lead, host, port, err);
}

int engine_reset_prefix_cache(struct engine *e, void *user)
{
    struct reset_mail *r = calloc(1, sizeof *r);

    if (!r || engine_outbox_reserve(&e->outbox) < 0) {
        free(r);
        return ERR_NOMEM;
    }
    r->mail.kind = MAIL_RESET;
    r->user = user;
    engine_inbox_post(&e->inbox, &r->mail);
    return 0;
}

void engine_stats(struct engine *e, struct engine_stats *out)
{
    pthread_mutex_lock(&e->lock);
    *out = e->stats;
    out->busy_since_step = e->busy_since > 0 ? clock_now() - e->busy_since : 0;
    pthread_mutex_unlock(&e->lock);
    if (e->dp)
        engine_dp_stats(e->dp, &out->dp);
    if (e->kv_lead)
        kv_lead_stats(e->kv_lead, &out->transfer);
}

uint32_t engine_step_sizes(struct engine *e, uint32_t *out, uint32_t max)
{
    uint32_t n = 0;

    pthread_mutex_lock(&e->lock);
    for (; n < max && e->step_sizes.n; e->step_sizes.n--) {
        out[n++] = (uint32_t)e->step_sizes.v[e->step_sizes.head];
        e->step_sizes.head = (e->step_sizes.head + 1) % ENGINE_SAMPLES;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}

uint32_t engine_pull_times(struct engine *e, double *out, uint32_t max)
{
    uint32_t n = 0;

    pthread_mutex_lock(&e->lock);
    for (; n < max && e->pull_times.n; e->pull_times.n--) {
        out[n++] = e->pull_times.v[e->pull_times.head];
        e->pull_times.head = (e->pull_times.head + 1) % ENGINE_SAMPLES;
    }
    pthread_mutex_unlock(&e->lock);
    return n;
}
