#include "drive.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "base/status.h"
#include "sys/clock.h"

static int on_notify(void *arg)
{
    struct drive *d = arg;

    pthread_mutex_lock(&d->lock);
    d->pending = true;
    pthread_cond_signal(&d->some);
    pthread_mutex_unlock(&d->lock);
    return 0;
}

struct engine_options drive_engine_options(const struct drive_options *o)
{
    return (struct engine_options){
        .model = { .path = o->model, .dtype = MODEL_DTYPE_FLOAT32, .mtp = o->mtp },
        .kernel = { .threads = o->threads ? o->threads : 2 },
        .ranks = o->ranks,
        .sched = { .block_tokens = o->block_tokens ? o->block_tokens : 16,
                   .n_blocks = o->kv_bytes   ? 0
                               : o->n_blocks ? o->n_blocks
                                             : 64,
                   .max_batched_tokens = o->max_batched_tokens ? o->max_batched_tokens : 256,
                   .max_seqs = o->max_seqs ? o->max_seqs : 8,
                   .max_model_len = 512,
                   .max_inflight = o->ranks.pp > 1 ? o->ranks.pp + 1 : 1,
                   .chunked_prefill = true,
                   .chunks = o->chunks,
                   .prefix_caching = !o->no_prefix_cache },
        .kv = { .produce = o->produce,
                .consume = o->consume,
                .host = "127.0.0.1",
                .secret = o->secret,
                .lease_seconds = o->lease_seconds > 0 ? o->lease_seconds : 30,
                .pull_timeout = 5,
                .connect_timeout = 3,
                .checksums = true,
                .on_failure = o->on_failure },
        .kv_bytes = o->kv_bytes,
        .profile_seconds = o->profile_seconds,
        .n_draft_tokens = o->n_draft_tokens,
        .step_delay = o->step_delay,
        .timeline = o->timeline,
        .timeline_arg = o->timeline_arg,
    };
}

void drive_open(struct drive *d, const struct drive_options *o)
{
    struct engine_options opt = drive_engine_options(o);
    struct err err = { "" };

    opt.notify = on_notify;
    opt.notify_arg = d;

    memset(d, 0, sizeof *d);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->some, NULL);
    if (engine_open(&d->e, &opt, &err) < 0)
        fail_msg("engine_open: %s", err.text);
}

void drive_close(struct drive *d)
{
    engine_close(d->e);
    pthread_cond_destroy(&d->some);
    pthread_mutex_destroy(&d->lock);
}

void drive_submit(struct drive *d, struct outcome *o, const int32_t *prompt, uint32_t n,
                  uint32_t n_out, const struct sampling *sp, const struct kv_params *kv)
{
    struct sampling plain;
    struct engine_request r = {
        .prompt = prompt, .n_prompt = n, .sampling = sp ? sp : &plain, .kv = kv, .user = o
    };
    struct err err = { "" };

    sampling_init(&plain);
    plain.temperature = 0;
    plain.max_tokens = n_out;
    plain.ignore_eos = true;
    memset(o, 0, sizeof *o);
    if (engine_submit(d->e, &r, &o->id, &err) < 0)
        fail_msg("engine_submit: %s", err.text);
}

static void take_event(struct engine_event *ev)
{
    struct outcome *o = ev->user;

    switch (ev->kind) {
    case ENGINE_START:
        break;
    case ENGINE_PROMPT:
        for (uint32_t i = 1; i < ev->n_prompt; i++)
            if (ev->prompt[i]) {
                o->prompt_logprob_sum += ev->prompt[i]->chosen.logprob;
                o->n_prompt_logprobs++;
            }
        break;
    case ENGINE_TOKEN:
        assert_true(o->n < DRIVE_MAX_OUT);
        assert_int_equal(ev->out_index, o->n);
        o->logprob[o->n] = ev->logprobs ? ev->logprobs->chosen.logprob : 0;
        o->token[o->n++] = ev->token;
        break;
    case ENGINE_END:
        assert_false(o->ended);
        o->ended = true;
        o->finish = ev->finish;
        o->n_cached = ev->n_cached;
        o->n_external = ev->n_external;
        o->n_preempted = ev->n_preempted;
        o->status = ev->status;
        o->kv = ev->kv;
        ev->kv = NULL;
        break;
    case ENGINE_RESET:
        *(int *)ev->user = ev->status;
        return;
    }
    engine_event_finish(ev);
}

static bool pump(struct drive *d)
{
    struct engine_event ev[32];
    uint32_t n, all = 0;

    pthread_mutex_lock(&d->lock);
    d->pending = false;
    pthread_mutex_unlock(&d->lock);
    while ((n = engine_events(d->e, ev, 32))) {
        for (uint32_t i = 0; i < n; i++)
            take_event(&ev[i]);
        all += n;
    }
    return all > 0;
}

static void sleep_for_event(struct drive *d, double deadline)
{
    struct timespec until;

    if (clock_now() > deadline)
        fail_msg("no answer from the engine in time");
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    pthread_mutex_lock(&d->lock);
    if (!d->pending)
        pthread_cond_timedwait(&d->some, &d->lock, &until);
    pthread_mutex_unlock(&d->lock);
}

void drive_wait(struct drive *d, struct outcome *const *o, uint32_t n)
{
    double deadline = clock_now() + 60;

    for (uint32_t i = 0; i < n;) {
        if (o[i]->ended)
            i++;
        else if (!pump(d))
            sleep_for_event(d, deadline);
    }
}

void drive_wait_tokens(struct drive *d, struct outcome *o, uint32_t n_tokens)
{
    double deadline = clock_now() + 60;

    while (!o->ended && o->n < n_tokens)
        if (!pump(d))
            sleep_for_event(d, deadline);
}

void drive_idle(struct drive *d)
{
    double deadline = clock_now() + 10;
    struct engine_stats st;

    for (;;) {
        pump(d);
        engine_stats(d->e, &st);
        if (st.sched.n_running + st.sched.n_waiting + st.sched.n_waiting_kv + st.sched.n_held ==
                0 &&
            st.sched.blocks_used == 0 && st.transfer.leases == 0 && st.transfer.pulls == 0 &&
            st.transfer.waiting == 0)
            return;
        if (clock_now() > deadline)
            fail_msg("still held: running %u, waiting %u, waiting for KV %u, held %u, blocks %u, "
                     "leases %u, pulls %u",
                     st.sched.n_running, st.sched.n_waiting, st.sched.n_waiting_kv, st.sched.n_held,
                     st.sched.blocks_used, st.transfer.leases, st.transfer.pulls);
        clock_sleep(0.005);
    }
}

void drive_waiting(struct drive *d, uint32_t n)
{
    double deadline = clock_now() + 10;
    struct engine_stats st;

    for (;;) {
        pump(d);
        engine_stats(d->e, &st);
        if (st.transfer.waiting == n)
            return;
        if (clock_now() > deadline)
            fail_msg("%u wait, not %u", st.transfer.waiting, n);
        clock_sleep(0.005);
    }
}

void outcome_finish(struct outcome *o)
{
    engine_kv_free(o->kv);
    o->kv = NULL;
}
