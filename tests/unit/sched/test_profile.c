/* Which chunks a profile measures, what it makes of their times, and how that is kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/status.h"
#include "sched/profile.h"

static struct profile p;

static const struct profile_limits roomy = { 2, 8192, 128, 131072, 1e9 };

/* Takes each point's time by f from the clock; scale of stage i is 1 + i. Returns how many points. */
static uint32_t measure(const struct profile_limits *l, const struct stage_time *f,
                        double wrong_first)
{
    struct profile_point q;
    double now = 0;
    uint32_t n = 0;

    profile_begin(&p, l, now);
    for (; profile_next(&p, now, &q); n++) {
        double s[FLOW_MAX_STAGES];

        for (uint32_t i = 0; i < l->n_stages; i++) {
            s[i] = (1 + i) * stage_time_of(f, q.chunk, (double)q.history) / 1e3;
            s[i] *= n < 3 ? wrong_first : 1 + 0.02 * ((int)(n % 3) - 1);
            now += s[i];
        }
        assert_true(q.history + q.chunk <= l->max_tokens && q.chunk <= l->base);
        assert_true(q.chunk % l->align == 0 && q.history % l->align == 0 && q.chunk > 0);
        profile_measured(&p, q.index, s, now);
        assert_true(now <= 1.2 * l->seconds);
    }
    assert_true(profile_progress(&p, now) >= 0 && profile_progress(&p, now) <= 1);
    return n;
}

static void expect_near(double got, double want, double within)
{
    if (fabs(got / want - 1) > within)
        fail_msg("%g instead of %g", got, want);
}

/* Machines of every speed, kernels of every kind; the first forwards are thirty times too slow. */
static void the_numbers_are_found(void **state)
{
    static const double kappa[] = { 0.5, 0.75, 1 };

    (void)state;
    for (int speed = -3; speed <= 3; speed++)
        for (int k = 0; k < 3; k++) {
            double by = pow(10, speed);
            struct stage_time f = { 1.6e-6 * by, 0.042 * by, 1.3e-3 * by, 25 * by, kappa[k], 0 };
            struct profile_fit fit;

            measure(&roomy, &f, 30);
            assert_int_equal(profile_fit(&p, &fit, NULL), 0);
            assert_int_equal(fit.n_stages, 2);
            for (uint32_t i = 0; i < 2; i++) {
                assert_true(fit.error[i] < 0.05);
                for (uint64_t h = 0; h <= 122880; h += 40960)
                    for (uint32_t c = 512; c <= 8192; c *= 4)
                        expect_near(stage_time_of(&fit.stage[i], c, (double)h),
                                    (1 + i) * stage_time_of(&f, c, (double)h), 0.05);
                expect_near(fit.stage[i].kappa, kappa[k], 0.26);
            }
        }
}

/* A slow machine: what does not fit is left out, and what was measured is enough. */
static void the_time_is_kept(void **state)
{
    const struct stage_time slow = { 1e-4, 0.25, 0.004, 8, 0.5, 0 };
    struct profile_limits l = { 2, 8192, 16, 32768, 10 };
    struct profile_fit fit;

    (void)state;
    assert_true(measure(&l, &slow, 1) >= 8);
    assert_int_equal(profile_fit(&p, &fit, NULL), 0);
    expect_near(stage_time_of(&fit.stage[0], 1024, 0), stage_time_of(&slow, 1024, 0), 0.1);
    assert_true(fit.seconds <= 12);
}

/* Contexts and steps so small that few points are left. */
static void small_limits_give_small_points(void **state)
{
    const struct stage_time f = { 1e-5, 0.1, 0, 3, 0.5, 0 };
    struct profile_fit fit;

    (void)state;
    measure(&(struct profile_limits){ 2, 16, 16, 64, 10 }, &f, 1);
    measure(&(struct profile_limits){ 2, 100, 16, 300, 10 }, &f, 1);
    assert_int_equal(measure(&(struct profile_limits){ 2, 8, 16, 8, 10 }, &f, 1), 0);
    assert_int_equal(profile_fit(&p, &fit, NULL), ERR_RANGE);
}

static void nonsense_is_refused(void **state)
{
    struct err e = { "" };
    struct profile_fit fit;
    struct profile_point q;
    uint32_t n = 0;

    (void)state;
    profile_begin(&p, &roomy, 0);
    while (profile_next(&p, 0, &q)) {
        double s = 1 + 1000 * fabs(sin(77 * ++n));

        profile_measured(&p, q.index, (double[]){ s * s, s }, 0);
    }
    assert_int_equal(profile_fit(&p, &fit, &e), ERR_RANGE);
    assert_non_null(strstr(e.text, "stage"));
    profile_begin(&p, &roomy, 0);
    while (profile_next(&p, 0, &q))
        profile_measured(&p, q.index, (double[]){ 1, NAN }, 0);
    assert_int_equal(profile_fit(&p, &fit, &e), ERR_RANGE);
    profile_measured(&p, 100000, (double[]){ 1, 1 }, 0);
}

static const struct profile_key key = { "llama \"x\"", "pp2 tp1", "host" };

static struct profile_fit some_fit(void)
{
    const struct stage_time f = { 1.6e-6, 0.042, 1.3e-3, 25, 0.5, 0 };
    struct profile_fit fit;

    measure(&roomy, &f, 1);
    assert_int_equal(profile_fit(&p, &fit, NULL), 0);
    return fit;
}

static void a_fit_is_kept(void **state)
{
    struct profile_fit fit = some_fit(), again;
    struct buf b;

    (void)state;
    buf_init(&b, BUF_MAX_LINE);
    assert_int_equal(profile_write(&b, &key, &fit), 0);
    assert_int_equal(profile_read(&again, b.data, b.len, &key, NULL), 0);
    assert_int_equal(again.n_stages, 2);
    assert_memory_equal(again.stage, fit.stage, 2 * sizeof fit.stage[0]);
    assert_memory_equal(again.error, fit.error, 2 * sizeof fit.error[0]);
    assert_true(again.n_points == fit.n_points);
    buf_finish(&b);
}

static void expect_read(const char *text, int st)
{
    struct profile_fit fit;
    struct err e = { "" };

    assert_int_equal(profile_read(&fit, text, strlen(text), &key, &e), st);
    assert_true(e.text[0] != '\0');
}

static void what_was_kept_is_checked(void **state)
{
    struct profile_key other = key;
    struct profile_fit fit = some_fit(), again;
    char a[PROFILE_NAME_BYTES], b[PROFILE_NAME_BYTES];
    struct buf out;

    (void)state;
    buf_init(&out, BUF_MAX_LINE);
    profile_write(&out, &key, &fit);
    other.shape = "pp3 tp1";
    assert_int_equal(profile_read(&again, out.data, out.len, &other, NULL), ERR_MISMATCH);
    profile_file_name(a, &key);
    profile_file_name(b, &other);
    assert_string_not_equal(a, b);
    assert_true(strncmp(a, "chunks-", 7) == 0 && strcmp(a + strlen(a) - 5, ".json") == 0);
    for (size_t i = 0; i < out.len; i += 7) /* cut off anywhere */
        assert_true(profile_read(&again, out.data, i, &key, NULL) < 0);
    buf_finish(&out);
    expect_read("[]", ERR_MISMATCH);
    expect_read("{\"version\": 2, \"fingerprint\": \"llama \\\"x\\\"\", \"shape\": \"pp2 tp1\", "
                "\"host\": \"host\"}",
                ERR_BADMSG);
    expect_read("{\"version\": 2, \"fingerprint\": \"llama \\\"x\\\"\", \"shape\": \"pp2 tp1\", "
                "\"host\": \"host\", \"points\": 9, \"seconds\": 1, \"stages\": [{\"a\": -1}]}",
                ERR_BADMSG);
}

/* Numbers that no stage can have would make plans of no sense, and search for them for ever. */
static void numbers_out_of_reach_are_refused(void **state)
{
    struct profile_fit fit = some_fit(), again;
    struct buf out;

    (void)state;
    fit.stage[1].w = 1e100;
    buf_init(&out, BUF_MAX_LINE);
    profile_write(&out, &key, &fit);
    assert_int_equal(profile_read(&again, out.data, out.len, &key, NULL), ERR_BADMSG);
    buf_finish(&out);
}

/* Passing C tokens on takes 2 + C / 500 ms, or longer where the machine does something else meanwhile. */
static void links_are_measured(void **state)
{
    const struct stage_time f = { 1.6e-6, 0.042, 1.3e-3, 25, 0.5, 0 };
    struct profile_fit fit, again;
    struct buf out;

    (void)state;
    measure(&roomy, &f, 1);
    assert_int_equal(profile_fit(&p, &fit, NULL), 0);
    assert_true(fit.link.ms <= 0 && fit.link.ms_per_token <= 0);
    for (uint32_t i = 0; i < p.n_points; i++)
        profile_passed(&p, i, 1,
                       (2 + p.point[i].chunk * 2e-3) / 1e3 * (i < 3 || i % 3 == 0 ? 5 : 1));
    profile_passed(&p, 5, 1, NAN);
    profile_passed(&p, PROFILE_MAX_POINTS, 1, 1);
    profile_passed(&p, 5, 2, 1);
    assert_int_equal(profile_fit(&p, &fit, NULL), 0);
    expect_near(fit.link.ms, 2, 0.05);
    expect_near(fit.link.ms_per_token, 2e-3, 0.05);
    buf_init(&out, BUF_MAX_LINE);
    profile_write(&out, &key, &fit);
    assert_int_equal(profile_read(&again, out.data, out.len, &key, NULL), 0);
    assert_memory_equal(&again.link, &fit.link, sizeof fit.link);
    buf_finish(&out);
    for (uint32_t i = 0; i < p.n_points; i++) /* clocks of two hosts that differ */
        profile_passed(&p, i, 1, -1);
    assert_int_equal(profile_fit(&p, &fit, NULL), 0);
    assert_true(fit.link.ms >= 0 && fit.link.ms < 0.01 && fit.link.ms_per_token >= 0);
}

struct lines {
    char text[8][512];
    uint32_t n;
};

static void keep_line(void *arg, const char *line)
{
    struct lines *l = arg;

    snprintf(l->text[l->n++ % 8], sizeof l->text[0], "%s", line);
}

static void the_log_says_what_is_done(void **state)
{
    struct profile_fit fit = some_fit();
    struct sched_config c = { .block_tokens = 128,
                              .max_batched_tokens = 8192,
                              .max_model_len = 131072,
                              .chunks = { .policy = SCHED_CHUNK_OPTIMAL,
                                          .n_stages = 2,
                                          .smooth = 1,
                                          .timing = true,
                                          .max_fit = 30 } };
    struct lines l = { .n = 0 };
    struct err e = { "" };

    (void)state;
    assert_int_equal(profile_describe(&fit, &c, keep_line, &l, NULL), 0);
    assert_int_equal(l.n, 4);
    assert_non_null(strstr(l.text[0], "profiling_chunk_config enabled: policy optimal"));
    assert_non_null(strstr(l.text[1], "stage 0"));
    assert_non_null(strstr(l.text[2], "mean error"));
    assert_non_null(strstr(l.text[3], "plan for 131072 tokens on 2 stages"));
    assert_non_null(strstr(l.text[3], "if no stage ever waited"));
    c.chunks.n_stages = 3;
    assert_int_equal(profile_describe(&fit, &c, keep_line, &l, &e), ERR_INVAL);
    c.chunks.policy = SCHED_CHUNK_OFF;
    assert_int_equal(profile_describe(&fit, &c, keep_line, &l, &e), ERR_INVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_numbers_are_found),
        cmocka_unit_test(the_time_is_kept),
        cmocka_unit_test(small_limits_give_small_points),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(a_fit_is_kept),
        cmocka_unit_test(what_was_kept_is_checked),
        cmocka_unit_test(numbers_out_of_reach_are_refused),
        cmocka_unit_test(links_are_measured),
        cmocka_unit_test(the_log_says_what_is_done),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
