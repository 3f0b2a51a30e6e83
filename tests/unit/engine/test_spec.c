/* Multi-token prediction on a real, tiny model: the output is the same with it and without, in one
 * instance and through a transfer, whichever side has the prediction layer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "drive.h"

#define N_REQUESTS 6
#define N_OUT      24

static const char *model_path;
static const uint32_t lengths[N_REQUESTS] = { 1, 7, 16, 33, 70, 150 };

/* Without the prediction layer, without a cache. */
static struct outcome plain[N_REQUESTS];

static void make_prompt(int32_t *out, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        out[i] = 2 + (int32_t)((i * 2654435761u + n) >> 8) % 400;
}

/* Greedy and seeded, with penalties, with log-probabilities. */
static struct sampling sampling_of(uint32_t i)
{
    struct sampling sp;

    sampling_init(&sp);
    sp.max_tokens = N_OUT;
    sp.ignore_eos = true;
    sp.temperature = i % 2 ? 0.7f : 0;
    sp.seed = 100 + i;
    sp.logprobs = 1;
    sp.presence_penalty = i % 3 == 1 ? 1 : 0;
    return sp;
}

static void run_all(struct drive *d, const struct kv_params *const *kv, struct outcome *out)
{
    struct outcome *all[N_REQUESTS];
    int32_t prompt[256];

    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        struct sampling sp = sampling_of(i);

        make_prompt(prompt, lengths[i]);
        drive_submit(d, &out[i], prompt, lengths[i], 0, &sp, kv ? kv[i] : NULL);
        all[i] = &out[i];
    }
    drive_wait(d, all, N_REQUESTS);
}

static void assert_same(const struct outcome *got)
{
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        assert_int_equal(got[i].n, plain[i].n);
        assert_memory_equal(got[i].token, plain[i].token, N_OUT * sizeof got[i].token[0]);
        assert_memory_equal(got[i].logprob, plain[i].logprob, N_OUT * sizeof got[i].logprob[0]);
    }
}

static int record_plain(void **state)
{
    struct drive d;

    (void)state;
    drive_open(&d, &(struct drive_options){ .model = model_path, .no_prefix_cache = true });
    run_all(&d, NULL, plain);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        assert_int_equal(plain[i].n, N_OUT);
    drive_close(&d);
    return 0;
}

static void drafts_change_no_token(void **state)
{
    static struct outcome out[N_REQUESTS];
    struct engine_stats st;
    struct drive d;

    (void)state;
    for (uint32_t n = 0; n <= 4; n += n + 1) { /* 0, 1, 3 */
        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .mtp = true,
                                                .n_draft_tokens = n,
                                                .max_batched_tokens = n == 3 ? 40 : 256 });
        for (int warm = 0; warm < 2; warm++) {
            run_all(&d, NULL, out);
            assert_same(out);
        }
        engine_stats(d.e, &st);
        assert_int_equal(st.spec_draft_tokens > 0, n > 0);
        assert_true(st.spec_drafts <= st.spec_draft_tokens);
        assert_true(st.spec_accepted_tokens <= st.spec_draft_tokens);
        assert_true(st.spec_accepted_pos[0] <= st.spec_drafts);
        drive_idle(&d);
        drive_close(&d);
    }
}

/* The layer on P, on D, and on both; blocks of different size. */
static void prefill_and_decode_apart(void **state)
{
    static struct outcome first[N_REQUESTS], out[N_REQUESTS];
    const struct kv_params *kv[N_REQUESTS];
    struct kv_params ask = { .do_remote_decode = true };
    struct drive p, d;

    (void)state;
    log_set_level(LOG_WARNING);
    for (uint32_t who = 1; who <= 3; who++) {
        drive_open(&p,
                   &(struct drive_options){
                       .model = model_path, .produce = true, .mtp = who & 1, .block_tokens = 32 });
        drive_open(&d, &(struct drive_options){ .model = model_path,
                                                .consume = true,
                                                .mtp = who & 2,
                                                .n_draft_tokens = who & 2 ? 2 : 0,
                                                .on_failure = KV_FAIL_ERROR });
        for (uint32_t i = 0; i < N_REQUESTS; i++)
            kv[i] = &ask;
        run_all(&p, kv, first);
        for (uint32_t i = 0; i < N_REQUESTS; i++)
            kv[i] = first[i].kv;
        run_all(&d, kv, out);
        assert_same(out);
        for (uint32_t i = 0; i < N_REQUESTS; i++) {
            assert_int_equal(out[i].n_external, lengths[i] - 1);
            outcome_finish(&first[i]);
        }
        drive_idle(&d);
        drive_idle(&p);
        drive_close(&d);
        drive_close(&p);
    }
    log_set_level(LOG_INFO);
}

static void drafts_need_the_layer(void **state)
{
    struct engine_options opt = {
        .model = { .path = model_path, .dtype = MODEL_DTYPE_FLOAT32 },
        .sched = { .block_tokens = 16,
                   .n_blocks = 8,
                   .max_batched_tokens = 32,
                   .max_seqs = 1,
                   .max_model_len = 64,
                   .chunked_prefill = true },
        .n_draft_tokens = 1,
    };
    struct engine *e;
    struct err err = { 0 };

    (void)state;
    assert_int_equal(engine_open(&e, &opt, &err), ERR_INVAL);
    assert_non_null(strstr(err.text, "prediction layer"));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_change_no_token),
        cmocka_unit_test(prefill_and_decode_apart),
        cmocka_unit_test(drafts_need_the_layer),
    };

    model_path = argc > 1 ? argv[1] : "";
    if (access(model_path, R_OK) != 0) {
        fprintf(stderr, "no model at \"%s\"\n", model_path);
        return 77;
    }
    return cmocka_run_group_tests(tests, record_plain, NULL);
}
