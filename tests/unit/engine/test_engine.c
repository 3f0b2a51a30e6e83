/* The engine as its callers see it, on a tiny model: the same tokens by every route. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "drive.h"
#include "sys/clock.h"

#define N_OUT 12

static const char *model_path;

/* Allocations larger than this fail. */
static _Atomic size_t most_memory = SIZE_MAX;

void *__real_malloc(size_t n);
void *__wrap_malloc(size_t n);

void *__wrap_malloc(size_t n)
{
    return n > most_memory ? NULL : __real_malloc(n);
}

/* Prompts that differ in every token, from a small congruential generator. */
static void make_prompt(int32_t *out, uint32_t n, uint32_t seed)
{
    uint32_t x = seed * 2654435761u + 1;

    for (uint32_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        out[i] = 2 + (int32_t)(x >> 16) % 500;
    }
}

static void assert_same(const struct outcome *a, const struct outcome *b)
{
    assert_int_equal(a->n, b->n);
    for (uint32_t i = 0; i < a->n; i++)
        assert_int_equal(a->token[i], b->token[i]);
}

static const uint32_t lengths[] = { 1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 64, 100, 130, 200 };
#define N_LENGTHS (sizeof lengths / sizeof *lengths)

/* Reference: one request at a time, whole prompts, no cache. */
static struct outcome solo[N_LENGTHS];

static int record_solo(void **state)
{
    struct drive d;
    int32_t prompt[256];

    (void)state;
    drive_open(&d, &(struct drive_options){ .model = model_path, .no_prefix_cache = true });
    for (size_t i = 0; i < N_LENGTHS; i++) {
        make_prompt(prompt, lengths[i], (uint32_t)i);
        drive_submit(&d, &solo[i], prompt, lengths[i], N_OUT, NULL, NULL);
        drive_wait(&d, &(struct outcome *){ &solo[i] }, 1);
        assert_int_equal(solo[i].finish, FINISH_LENGTH);
        assert_int_equal(solo[i].n, N_OUT);
    }
    drive_idle(&d);
    drive_close(&d);
    return 0;
}

static void run_all(struct drive *d, const struct kv_params *const *kv, struct outcome *out)
{
    struct outcome *all[N_LENGTHS];
    int32_t prompt[256];

    for (size_t i = 0; i < N_LENGTHS; i++) {
        make_prompt(prompt, lengths[i], (uint32_t)i);
        drive_submit(d, &out[i], prompt, lengths[i], N_OUT, NULL, kv ? kv[i] : NULL);
        all[i] = &out[i];
    }
    drive_wait(d, all, N_LENGTHS);
}

static void batched_and_chunked_equal_solo(void **state)
{
    static const uint32_t budgets[] = { 16, 37, 256 };
    static struct outcome out[N_LENGTHS];

    (void)state;
    for (size_t b = 0; b < 3; b++) {
        struct drive d;

        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .max_batched_tokens = budgets[b],
                                                .block_tokens = b == 2 ? 32 : 16 });
        for (int warm = 0; warm < 2; warm++) {
            run_all(&d, NULL, out);
            for (size_t i = 0; i < N_LENGTHS; i++)
                assert_same(&out[i], &solo[i]);
        }
        assert_int_equal(out[N_LENGTHS - 1].n_cached, 192);
        drive_idle(&d);
        drive_close(&d);
    }
}

static void a_small_pool_gives_the_same_tokens(void **state)
{
    static struct outcome out[N_LENGTHS];
    struct drive d;

    (void)state;
    drive_open(&d, &(struct drive_options){ .model = model_path, .n_blocks = 15 });
    run_all(&d, NULL, out);
    for (size_t i = 0; i < N_LENGTHS; i++)
        assert_same(&out[i], &solo[i]);
    drive_idle(&d);
    drive_close(&d);
}

static void a_full_pool_preempts_and_gives_the_same_tokens(void **state)
{
    static const uint32_t length[2] = { 33, 48 };
    static struct outcome alone[2], out[2];
    struct outcome *all[2] = { &out[0], &out[1] };
    struct drive d;
    int32_t prompt[2][48];

    (void)state;
    for (uint32_t i = 0; i < 2; i++)
        make_prompt(prompt[i], length[i], 40 + i);
    drive_open(&d, &(struct drive_options){ .model = model_path, .no_prefix_cache = true });
    for (uint32_t i = 0; i < 2; i++) {
        drive_submit(&d, &alone[i], prompt[i], length[i], 40, NULL, NULL);
        drive_wait(&d, &(struct outcome *){ &alone[i] }, 1);
    }
    drive_close(&d);

    /* Both begin with three blocks of the seven. The younger needs a fourth after one token, the
     * older after 16 steps: if the younger came within these, it has to give way. */
    drive_open(&d,
               &(struct drive_options){ .model = model_path, .n_blocks = 7, .step_delay = 0.02 });
    for (uint32_t i = 0; i < 2; i++)
        drive_submit(&d, &out[i], prompt[i], length[i], 40, NULL, NULL);
    drive_wait(&d, all, 2);
    for (uint32_t i = 0; i < 2; i++)
        assert_same(&out[i], &alone[i]);
    assert_int_equal(out[0].n_preempted, 0);
    assert_true(out[1].n_preempted > 0);
    drive_idle(&d);
    drive_close(&d);
}

static void seeded_sampling_repeats_whatever_runs_beside_it(void **state)
{
    static struct outcome alone, beside, others[4];
    struct sampling sp;
    struct drive d;
    int32_t prompt[64];

    (void)state;
    sampling_init(&sp);
    sp.max_tokens = 40;
    sp.ignore_eos = true;
    sp.seed = 1234;
    sp.logprobs = 2;
    make_prompt(prompt, 50, 9);
    drive_open(&d, &(struct drive_options){ .model = model_path, .no_prefix_cache = true });
    drive_submit(&d, &alone, prompt, 50, 0, &sp, NULL);
    drive_wait(&d, &(struct outcome *){ &alone }, 1);
    for (uint32_t i = 0; i < 4; i++) {
        int32_t other[30];

        make_prompt(other, 30, 100 + i);
        drive_submit(&d, &others[i], other, 30, 20, NULL, NULL);
    }
    drive_submit(&d, &beside, prompt, 50, 0, &sp, NULL);
    drive_wait(&d, (struct outcome *[]){ &beside, &others[0], &others[1], &others[2], &others[3] },
               5);
    assert_same(&alone, &beside);
    for (uint32_t i = 0; i < alone.n; i++)
        assert_true(alone.logprob[i] < 0 && alone.logprob[i] == beside.logprob[i]);
    drive_close(&d);
}

static void prompt_logprobs_do_not_depend_on_chunks(void **state)
{
    static struct outcome whole, chunked;
    struct sampling sp;
    int32_t prompt[100];

    (void)state;
    sampling_init(&sp);
    sp.temperature = 0;
    sp.max_tokens = 1;
    sp.prompt_logprobs = 1;
    make_prompt(prompt, 100, 3);
    for (int i = 0; i < 2; i++) {
        struct outcome *o = i ? &chunked : &whole;
        struct drive d;

        drive_open(
            &d, &(struct drive_options){ .model = model_path, .max_batched_tokens = i ? 16 : 256 });
        drive_submit(&d, o, prompt, 100, 0, &sp, NULL);
        drive_wait(&d, &o, 1);
        assert_int_equal(o->n_prompt_logprobs, 99);
        drive_close(&d);
    }
    assert_true(whole.prompt_logprob_sum == chunked.prompt_logprob_sum);
}

static void a_cancelled_request_ends_and_returns_its_blocks(void **state)
{
    static struct outcome o;
    struct drive d;
    int32_t prompt[100];

    (void)state;
    make_prompt(prompt, 100, 1);
    drive_open(&d, &(struct drive_options){ .model = model_path, .step_delay = 0.002 });
    drive_submit(&d, &o, prompt, 100, 200, NULL, NULL);
    drive_wait_tokens(&d, &o, 3);
    engine_cancel(d.e, o.id, FINISH_ABORT);
    drive_wait(&d, &(struct outcome *){ &o }, 1);
    assert_int_equal(o.finish, FINISH_ABORT);
    assert_true(o.n < 200);
    drive_idle(&d);
    drive_close(&d);
}

static void bad_requests_are_refused_with_a_sentence(void **state)
{
    struct drive d;
    static struct logit_bias bias[5000];
    struct err err = { "" };
    struct sampling sp;
    int32_t prompt[600] = { 0 };
    uint64_t id;

    (void)state;
    sampling_init(&sp);
    drive_open(&d, &(struct drive_options){ .model = model_path });
    assert_int_equal(
        engine_submit(
            d.e, &(struct engine_request){ .prompt = prompt, .n_prompt = 600, .sampling = &sp },
            &id, &err),
        ERR_TOOLONG);
    assert_non_null(strstr(err.text, "512"));
    assert_non_null(strstr(err.text, "600"));
    prompt[1] = 512;
    assert_int_equal(
        engine_submit(d.e,
                      &(struct engine_request){ .prompt = prompt, .n_prompt = 2, .sampling = &sp },
                      &id, &err),
        ERR_RANGE);
    assert_non_null(strstr(err.text, "512"));
    assert_int_equal(engine_submit(d.e,
                                   &(struct engine_request){
                                       .prompt = prompt,
                                       .n_prompt = 1,
                                       .sampling = &sp,
                                       .kv = &(struct kv_params){ .do_remote_decode = true } },
                                   &id, &err),
                     ERR_INVAL);
    sp.bias = bias;
    sp.n_bias = sizeof bias / sizeof *bias; /* more than a step's rows have room for */
    assert_int_equal(
        engine_submit(d.e,
                      &(struct engine_request){ .prompt = prompt, .n_prompt = 1, .sampling = &sp },
                      &id, &err),
        ERR_INVAL);
    assert_non_null(strstr(err.text, "5000"));
    drive_idle(&d);
    drive_close(&d);
}

static void the_prefix_cache_is_reset_between_steps(void **state)
{
    static struct outcome o[3];
    struct drive d;
    int32_t prompt[64];
    int status = 1;

    (void)state;
    make_prompt(prompt, 64, 1);
    drive_open(&d, &(struct drive_options){ .model = model_path });
    for (int i = 0; i < 3; i++) {
        if (i == 2)
            assert_int_equal(engine_reset_prefix_cache(d.e, &status), 0);
        drive_submit(&d, &o[i], prompt, 64, 1, NULL, NULL);
        drive_wait(&d, &(struct outcome *){ &o[i] }, 1);
    }
    assert_int_equal(status, 0);
    assert_int_equal(o[1].n_cached, 48);
    assert_int_equal(o[2].n_cached, 0);
    drive_close(&d);
}

static const struct kv_params ask_produce = { .do_remote_decode = true };

/* Prefill on p, decode on d; everything returned afterwards. */
static void through_pd(struct drive *p, struct drive *d, struct outcome *out)
{
    static struct outcome first[N_LENGTHS];
    const struct kv_params *kv[N_LENGTHS];
    struct outcome *all[N_LENGTHS];
    int32_t prompt[256];

    for (size_t i = 0; i < N_LENGTHS; i++) {
        make_prompt(prompt, lengths[i], (uint32_t)i);
        drive_submit(p, &first[i], prompt, lengths[i], 1, NULL, &ask_produce);
        all[i] = &first[i];
    }
    drive_wait(p, all, N_LENGTHS);
    for (size_t i = 0; i < N_LENGTHS; i++) {
        assert_non_null(first[i].kv);
        assert_int_equal(first[i].token[0], solo[i].token[0]);
        kv[i] = first[i].kv;
    }
    run_all(d, kv, out);
    for (size_t i = 0; i < N_LENGTHS; i++)
        outcome_finish(&first[i]);
}

static void prefill_and_decode_apart_equal_solo(void **state)
{
    static const uint32_t blocks[][2] = { { 16, 16 }, { 16, 32 }, { 32, 16 } };
    static struct outcome out[N_LENGTHS];

    (void)state;
    for (size_t b = 0; b < 3; b++) {
        struct drive p, d;

        drive_open(&p, &(struct drive_options){ .model = model_path,
                                                .produce = true,
                                                .block_tokens = blocks[b][0],
                                                .n_blocks = 128,
                                                .secret = "s" });
        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .consume = true,
                                                .block_tokens = blocks[b][1],
                                                .n_blocks = 128,
                                                .secret = "s" });
        for (int warm = 0; warm < 2; warm++) {
            through_pd(&p, &d, out);
            for (size_t i = 0; i < N_LENGTHS; i++) {
                assert_int_equal(out[i].finish, FINISH_LENGTH);
                assert_same(&out[i], &solo[i]);
            }
            if (!warm)
                assert_int_equal(out[N_LENGTHS - 1].n_external, 200);
        }
        drive_idle(&d);
        drive_idle(&p);
        drive_close(&d);
        drive_close(&p);
    }
}

/* What a proxy tells D at the same time as P: a name, and where P is. */
static void by_name(struct kv_params *p, struct kv_params *d, struct drive *at, uint32_t n)
{
    struct engine_info info;

    engine_info(at->e, &info);
    *p = (struct kv_params){ .do_remote_decode = true, .last_token_id = -1 };
    *d = (struct kv_params){ .do_remote_prefill = true,
                             .last_token_id = -1,
                             .remote_port = info.kv_port,
                             .remote_block_size = info.block_tokens };
    snprintf(p->transfer_id, sizeof p->transfer_id, "xfer-%u", n);
    snprintf(d->transfer_id, sizeof d->transfer_id, "xfer-%u", n);
    snprintf(d->remote_host, sizeof d->remote_host, "%s", info.kv_host);
}

static void both_at_the_same_time_equal_solo(void **state)
{
    static const uint32_t blocks[][2] = { { 16, 16 }, { 32, 16 } };
    static struct outcome first[N_LENGTHS], out[N_LENGTHS];
    struct outcome *at_p[N_LENGTHS], *at_d[N_LENGTHS];
    int32_t prompt[256];

    (void)state;
    for (uint32_t round = 0; round < 4; round++) { /* the second of each finds caches warm */
        static struct drive p, d;

        if (round % 2 == 0) {
            drive_open(&p, &(struct drive_options){ .model = model_path,
                                                    .produce = true,
                                                    .block_tokens = blocks[round / 2][0],
                                                    .n_blocks = 128 });
            drive_open(&d, &(struct drive_options){ .model = model_path,
                                                    .consume = true,
                                                    .on_failure = KV_FAIL_ERROR,
                                                    .block_tokens = blocks[round / 2][1],
                                                    .n_blocks = 128 });
        }
        for (uint32_t i = 0; i < N_LENGTHS; i++) {
            struct kv_params kp, kd;

            by_name(&kp, &kd, &p, round * 100 + i);
            make_prompt(prompt, lengths[i], i);
            if (i % 2)
                drive_submit(&p, &first[i], prompt, lengths[i], 1, NULL, &kp);
            drive_submit(&d, &out[i], prompt, lengths[i], N_OUT, NULL, &kd);
            if (i % 2 == 0)
                drive_submit(&p, &first[i], prompt, lengths[i], 1, NULL, &kp);
            at_p[i] = &first[i];
            at_d[i] = &out[i];
        }
        drive_wait(&d, at_d, N_LENGTHS);
        drive_wait(&p, at_p, N_LENGTHS);
        for (uint32_t i = 0; i < N_LENGTHS; i++) {
            assert_int_equal(out[i].finish, FINISH_LENGTH);
            assert_same(&out[i], &solo[i]);
            outcome_finish(&first[i]);
        }
        if (round % 2 == 0)
            assert_int_equal(out[N_LENGTHS - 1].n_external, 199);
        drive_idle(&d);
        drive_idle(&p);
        if (round % 2) {
            drive_close(&d);
            drive_close(&p);
        }
    }
}

/* P gives the request up while D waits for it: D is told, and goes on by its policy. */
static void an_aborted_prefill_is_told_to_who_waits(void **state)
{
    static struct outcome busy, first, out;
    int32_t prompt[100];

    (void)state;
    make_prompt(prompt, 100, 11); /* solo[11] has 100 tokens */
    for (int policy = 0; policy < 2; policy++) {
        struct kv_params kp, kd;
        struct drive p, d;

        drive_open(&p,
                   &(struct drive_options){
                       .model = model_path, .produce = true, .max_seqs = 1, .step_delay = 0.01 });
        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .consume = true,
                                                .on_failure = policy ? KV_FAIL_ERROR
                                                                     : KV_FAIL_RECOMPUTE });
        by_name(&kp, &kd, &p, 1);
        drive_submit(&p, &busy, prompt, 50, 200, NULL, NULL); /* before it in the queue */
        drive_submit(&p, &first, prompt, 100, 1, NULL, &kp);
        drive_submit(&d, &out, prompt, 100, N_OUT, NULL, &kd);
        drive_waiting(&p, 1);
        engine_cancel(p.e, first.id, FINISH_ABORT);
        drive_wait(&d, &(struct outcome *){ &out }, 1);
        if (policy) {
            assert_int_equal(out.finish, FINISH_ERROR);
            assert_int_equal(out.status, ERR_NOTFOUND);
        } else {
            assert_same(&out, &solo[11]);
        }
        engine_cancel(p.e, busy.id, FINISH_ABORT);
        drive_wait(&p, (struct outcome *[]){ &busy, &first }, 2);
        drive_idle(&d);
        drive_idle(&p);
        drive_close(&d);
        drive_close(&p);
    }
}

/* D's client leaves while D waits: P's lease ends as soon as it begins. */
static void a_decode_that_is_given_up_leaves_no_lease(void **state)
{
    static struct outcome busy, first, out;
    int32_t prompt[100];
    struct kv_params kp, kd;
    struct drive p, d;

    (void)state;
    make_prompt(prompt, 100, 11);
    drive_open(&p, &(struct drive_options){
                       .model = model_path, .produce = true, .max_seqs = 1, .step_delay = 0.01 });
    drive_open(&d, &(struct drive_options){ .model = model_path, .consume = true });
    by_name(&kp, &kd, &p, 1);
    drive_submit(&p, &busy, prompt, 50, 200, NULL, NULL);
    drive_submit(&p, &first, prompt, 100, 1, NULL, &kp);
    drive_submit(&d, &out, prompt, 100, N_OUT, NULL, &kd);
    drive_waiting(&p, 1);
    engine_cancel(d.e, out.id, FINISH_ABORT);
    drive_wait(&d, &(struct outcome *){ &out }, 1);
    drive_idle(&d);
    drive_waiting(&p, 0);
    engine_cancel(p.e, busy.id, FINISH_ABORT);
    drive_wait(&p, (struct outcome *[]){ &busy, &first }, 2);
    drive_idle(&p);
    outcome_finish(&first);
    drive_close(&d);
    drive_close(&p);
}

static void one_name_for_two_prefills_is_refused(void **state)
{
    static struct outcome first;
    struct sampling sp;
    struct err err = { "" };
    int32_t prompt[40];
    struct kv_params kp, kd;
    struct drive p;
    uint64_t id;

    (void)state;
    sampling_init(&sp);
    make_prompt(prompt, 40, 5);
    drive_open(&p, &(struct drive_options){ .model = model_path, .produce = true });
    by_name(&kp, &kd, &p, 7);
    drive_submit(&p, &first, prompt, 40, 1, NULL, &kp);
    assert_int_equal(
        engine_submit(p.e,
                      &(struct engine_request){
                          .prompt = prompt, .n_prompt = 40, .sampling = &sp, .kv = &kp },
                      &id, &err),
        ERR_EXISTS);
    assert_non_null(strstr(err.text, "xfer-7"));
    drive_wait(&p, &(struct outcome *){ &first }, 1);
    assert_int_equal(engine_kv_release(p.e, &kp), 0);
    drive_idle(&p);
    outcome_finish(&first);
    drive_close(&p);
}

/* Block sizes that do not fit: known before the first request, and still right tokens or none. */
static void a_mismatch_is_known(void **state)
{
    static struct outcome out;
    int32_t prompt[100];

    (void)state;
    make_prompt(prompt, 100, 11);
    for (int policy = 0; policy < 2; policy++) {
        struct engine_stats st;
        struct engine_info info;
        struct err err = { "" };
        struct kv_params kp, kd;
        struct drive p, d;

        drive_open(&p, &(struct drive_options){
                           .model = model_path, .produce = true, .block_tokens = 32 });
        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .consume = true,
                                                .block_tokens = 48,
                                                .on_failure = policy ? KV_FAIL_ERROR
                                                                     : KV_FAIL_RECOMPUTE });
        engine_info(p.e, &info);
        assert_int_equal(engine_kv_probe(d.e, info.kv_host, info.kv_port, &err), ERR_MISMATCH);
        engine_stats(d.e, &st);
        assert_int_equal(st.transfer.mismatching, 1);
        assert_non_null(strstr(st.transfer.mismatch, "block size: 32"));
        by_name(&kp, &kd, &p, 1);
        kd.remote_block_size = 0;
        drive_submit(&d, &out, prompt, 100, N_OUT, NULL, &kd);
        drive_wait(&d, &(struct outcome *){ &out }, 1);
        if (policy) {
            assert_int_equal(out.status, ERR_MISMATCH);
            assert_int_equal(out.n, 0);
        } else {
            assert_same(&out, &solo[11]);
        }
        engine_stats(d.e, &st);
        assert_int_equal(st.transfer.mismatching, 1);
        drive_idle(&d);
        drive_close(&d);
        drive_close(&p);
    }
}

/* A lease that P does not know: by policy the prompt is computed on D, or the request fails. */
static void a_failed_pull_never_gives_wrong_tokens(void **state)
{
    static struct outcome first, out;
    int32_t prompt[100];

    (void)state;
    make_prompt(prompt, 100, 11); /* solo[11] has 100 tokens */
    for (int policy = 0; policy < 2; policy++) {
        struct drive p, d;

        drive_open(&p, &(struct drive_options){ .model = model_path, .produce = true });
        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .consume = true,
                                                .on_failure = policy ? KV_FAIL_ERROR
                                                                     : KV_FAIL_RECOMPUTE });
        drive_submit(&p, &first, prompt, 100, 1, NULL, &ask_produce);
        drive_wait(&p, &(struct outcome *){ &first }, 1);
        assert_int_equal(engine_kv_release(p.e, first.kv), 0);
        drive_idle(&p);
        drive_submit(&d, &out, prompt, 100, N_OUT, NULL, first.kv);
        drive_wait(&d, &(struct outcome *){ &out }, 1);
        if (policy) {
            assert_int_equal(out.finish, FINISH_ERROR);
            assert_int_equal(out.n, 0);
            assert_true(out.status < 0);
        } else {
            assert_same(&out, &solo[11]);
        }
        outcome_finish(&first);
        drive_idle(&d);
        drive_close(&d);
        drive_close(&p);
    }
}

static void a_lease_expires_by_itself(void **state)
{
    static struct outcome first;
    struct drive p;
    int32_t prompt[40];

    (void)state;
    make_prompt(prompt, 40, 5);
    drive_open(
        &p, &(struct drive_options){ .model = model_path, .produce = true, .lease_seconds = 0.05 });
    drive_submit(&p, &first, prompt, 40, 1, NULL, &ask_produce);
    drive_wait(&p, &(struct outcome *){ &first }, 1);
    drive_idle(&p);
    outcome_finish(&first);
    drive_close(&p);
}

/* The cancel finds the request already held: the answer that names the lease reaches nobody. */
static void a_client_that_leaves_in_the_last_step_leaves_no_lease(void **state)
{
    static struct outcome first;
    struct drive p;
    int32_t prompt[40];

    (void)state;
    make_prompt(prompt, 40, 7);
    drive_open(&p, &(struct drive_options){ .model = model_path, .produce = true });
    drive_submit(&p, &first, prompt, 40, 1, NULL, &ask_produce);
    drive_wait(&p, &(struct outcome *){ &first }, 1);
    engine_cancel(p.e, first.id, FINISH_ABORT);
    drive_idle(&p);
    outcome_finish(&first);
    drive_close(&p);
}

/* A front that fetches nothing, and no memory for more events: tokens are lost, so their requests end
 * with an error, and every end is told. */
static void without_memory_for_events_requests_end_with_an_error(void **state)
{
    static struct outcome out[20];
    struct outcome *all[20];
    struct engine_stats st;
    struct drive d;
    int32_t prompt[16];
    uint32_t n_whole = 0, n_lost = 0;

    (void)state;
    drive_open(&d, &(struct drive_options){ .model = model_path, .n_blocks = 200 });
    for (uint32_t i = 0; i < 20; i++) {
        make_prompt(prompt, 16, i);
        drive_submit(&d, all[i] = &out[i], prompt, 16, 250, NULL, NULL);
    }
    most_memory = 4096 * sizeof(struct engine_event); /* the events have so much at first */
    do {
        clock_sleep(0.01);
        engine_stats(d.e, &st);
    } while (st.sched.n_running + st.sched.n_waiting > 0);
    drive_wait(&d, all, 20);
    most_memory = SIZE_MAX;
    for (uint32_t i = 0; i < 20; i++) {
        n_whole += out[i].finish == FINISH_LENGTH && out[i].n == 250;
        n_lost += out[i].finish == FINISH_ERROR && out[i].status == ERR_NOMEM && out[i].n < 250;
    }
    assert_true(n_whole > 0 && n_lost > 0 && n_whole + n_lost == 20);
    drive_idle(&d);
    drive_close(&d);
}

static void closing_ends_what_runs(void **state)
{
    static struct outcome running, held;
    struct drive p;
    int32_t prompt[40];

    (void)state;
    make_prompt(prompt, 40, 6);
    drive_open(
        &p, &(struct drive_options){ .model = model_path, .produce = true, .step_delay = 0.002 });
    drive_submit(&p, &held, prompt, 40, 1, NULL, &ask_produce);
    drive_submit(&p, &running, prompt, 40, 200, NULL, NULL);
    drive_wait_tokens(&p, &running, 1);
    drive_close(&p);
    outcome_finish(&held);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batched_and_chunked_equal_solo),
        cmocka_unit_test(a_small_pool_gives_the_same_tokens),
        cmocka_unit_test(a_full_pool_preempts_and_gives_the_same_tokens),
        cmocka_unit_test(seeded_sampling_repeats_whatever_runs_beside_it),
        cmocka_unit_test(prompt_logprobs_do_not_depend_on_chunks),
        cmocka_unit_test(a_cancelled_request_ends_and_returns_its_blocks),
        cmocka_unit_test(bad_requests_are_refused_with_a_sentence),
        cmocka_unit_test(the_prefix_cache_is_reset_between_steps),
        cmocka_unit_test(prefill_and_decode_apart_equal_solo),
        cmocka_unit_test(both_at_the_same_time_equal_solo),
        cmocka_unit_test(an_aborted_prefill_is_told_to_who_waits),
        cmocka_unit_test(a_decode_that_is_given_up_leaves_no_lease),
        cmocka_unit_test(one_name_for_two_prefills_is_refused),
        cmocka_unit_test(a_mismatch_is_known),
        cmocka_unit_test(a_failed_pull_never_gives_wrong_tokens),
        cmocka_unit_test(a_lease_expires_by_itself),
        cmocka_unit_test(a_client_that_leaves_in_the_last_step_leaves_no_lease),
        cmocka_unit_test(without_memory_for_events_requests_end_with_an_error),
        cmocka_unit_test(closing_ends_what_runs),
    };

    model_path = argc > 1 ? argv[1] : "";
    if (access(model_path, R_OK) != 0) {
        fprintf(stderr, "no model at \"%s\"\n", model_path);
        return 77;
    }
    return cmocka_run_group_tests(tests, record_solo, NULL);
}
