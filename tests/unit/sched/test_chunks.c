/* How prompts are cut where a pipeline computes them: plans, shared steps, and what happens without a
 * model that can be believed. */
#include <math.h>
#include <string.h>

#include "line.h"

#include "sched/profile.h"

/* Fitted to a published case: 128k tokens on two stages. */
static const struct stage_time deepseek = { 1.589e-6, 0.042, 1.26e-3, 25, 0.5, 0 };

static struct chunk_plan want_plan(const struct sched_config *c, uint32_t tokens, uint32_t history)
{
    static struct chunk_plan p;
    struct chunk_task t = { .time = deepseek,
                            .n_stages = c->chunks.n_stages,
                            .tokens = tokens,
                            .history = history,
                            .align = c->block_tokens,
                            .min_chunk = c->chunks.min_chunk,
                            .max_chunk = c->max_batched_tokens };

    chunk_plan(&p, &t);
    return p;
}

static void expect_chunks(const struct line *l, sched_id id, uint32_t history,
                          const struct chunk_plan *p)
{
    uint32_t k = 0;

    for (uint32_t i = 0; i < l->n_log; i++)
        if (l->log[i].id == id && !l->log[i].decode) {
            assert_true(k < p->n);
            assert_int_equal(l->log[i].start, history);
            assert_int_equal(l->log[i].n, p->chunk[k]);
            history += p->chunk[k++];
        }
    assert_int_equal(k, p->n);
}

static struct line g;

static void a_prompt_alone_follows_its_plan(void **state)
{
    struct sched_config c = line_config(2, 32768, 131072 + 8);
    struct chunk_plan p = want_plan(&c, 131072, 0);
    struct sched_chunk_stats st;
    sched_id a;

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    a = line_add(&g, 131072, 0, 1);
    line_run(&g, 1000);
    expect_chunks(&g, a, 0, &p);
    assert_true(fabs(g.first_token[a] * 1e3 / p.makespan_ms - 1) < 1e-6);
    assert_int_equal(g.most_trips, 3); /* stages + 1: chunks go out before the first comes back */
    st = line_stats(&g);
    assert_int_equal(st.mode, SCHED_MODE_PLANNED);
    assert_int_equal(st.plans, 1);
    assert_int_equal(st.plan_chunks, p.n);
    assert_int_equal(st.plan_first, p.chunk[0]);
    assert_int_equal(st.plan_last, p.chunk[p.n - 1]);
    assert_true(fabs(st.plan_ms / p.makespan_ms - 1) < 1e-9 && st.bound_ms < st.plan_ms);
    assert_int_equal(st.n_measured, p.n);
    assert_true(fabs(st.predicted_sum_ms / st.measured_sum_ms - 1) < 1e-6);
    assert_int_equal(g.n_warnings, 0);
    line_close(&g);
}

/* Stage 0 begins the next chunk before the last stage has ended this one. */
static void chunks_overlap(void **state)
{
    struct sched_config c = line_config(4, 8192, 65536);

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 60000, 0, 1);
    line_run(&g, 1000);
    for (uint32_t i = 0; i + 1 < g.n_log; i++)
        assert_true(g.log[i + 1].began < g.log[i].ended);
    line_close(&g);
}

static void a_plan_begins_at_the_prefix_hit(void **state)
{
    struct sched_config c = line_config(2, 32768, 131072 + 8);
    struct chunk_plan p = want_plan(&c, 131072, 65536);
    sched_id b;

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 65536 + 1, 0, 1);
    line_run(&g, 1000);
    g.n_log = 0;
    b = line_add(&g, 131072, 0, 1);
    line_run(&g, 1000);
    expect_chunks(&g, b, 65536, &p);
    line_close(&g);
}

/* min_chunk holds for all chunks but the last; half a smooth_factor goes half the way. */
static void the_settings_hold(void **state)
{
    struct sched_config c = line_config(2, 32768, 131072 + 8);
    struct chunk_plan p;

    (void)state;
    c.chunks.min_chunk = 12800;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 131072, 0, 1);
    line_run(&g, 1000);
    for (uint32_t i = 0; i + 1 < g.n_log; i++)
        assert_true(g.log[i].n >= 12800);
    line_close(&g);

    c.chunks.min_chunk = 128;
    p = want_plan(&c, 131072, 0);
    c.chunks.smooth = 0.5;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 131072, 0, 1);
    line_run(&g, 1000);
    assert_int_equal(g.log[0].n, (32768 + p.chunk[0]) / 2 / 128 * 128);
    assert_true(g.log[1].n > p.chunk[1] && g.log[1].n < 32768);
    line_close(&g);
}

static void static_and_off_fill_the_budget(void **state)
{
    struct sched_config c = line_config(2, 8192, 65536);

    (void)state;
    for (int on = 0; on < 2; on++) {
        c.chunks.policy = on ? SCHED_CHUNK_STATIC : SCHED_CHUNK_OFF;
        line_open(&g, &c, &deepseek);
        line_tell(&g);
        line_add(&g, 60000, 0, 1);
        line_run(&g, 1000);
        for (uint32_t i = 0; i + 1 < g.n_log; i++)
            assert_int_equal(g.log[i].n, 8192);
        assert_int_equal(line_stats(&g).mode, on ? SCHED_MODE_STATIC : SCHED_MODE_OFF);
        assert_int_equal(line_stats(&g).n_measured, on ? 8 : 0);
        line_close(&g);
    }
}

/* The reference's chunks for the published case, after its warm-up of five prompts. */
static void equal_time_is_the_references(void **state)
{
    static const uint32_t want[] = { 32384, 20352, 15744, 13312, 11776, 10624, 9856, 9216, 7808 };
    struct sched_config c = line_config(2, 32768, 131072 + 8);

    (void)state;
    c.chunks.policy = SCHED_CHUNK_EQUAL_TIME;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    for (int i = 0; i < 6; i++) {
        g.n_log = 0;
        line_add(&g, 131072, 200000 * i, 1);
        line_run(&g, 1000);
    }
    assert_int_equal(line_stats(&g).mode, SCHED_MODE_EQUAL_TIME);
    assert_int_equal(g.n_log, 9);
    for (uint32_t i = 0; i < 9; i++)
        assert_true(fabs((double)g.log[i].n - want[i]) <= 0.02 * want[i]);
    line_close(&g);
}

/* Eight requests that decode, and prompts of very different lengths. */
static void a_step_is_shared_by_time(void **state)
{
    static const uint32_t length[] = { 64, 512, 4096 };
    const struct stage_time f = { 1e-5, 0.01, 1e-4, 2, 0.5, 0 };
    struct sched_config c = line_config(2, 4096, 8192);
    uint64_t last[LINE_IDS] = { 0 }, first = 0;
    uint32_t max_prompt = 0;
    bool done[LINE_IDS] = { 0 };
    sched_id id[3];

    (void)state;
    line_open(&g, &c, &f);
    line_tell(&g);
    for (int i = 0; i < 8; i++)
        line_add(&g, 16, 100 * i, 400);
    line_run(&g, 6);
    g.n_log = 0;
    for (int i = 2; i >= 0; i--) /* the longest first */
        id[i] = line_add(&g, length[i], 5000 * (i + 1), 1);
    for (int n = 0; n < 40; n++) {
        double target;
        uint64_t seq = g.n_log ? g.log[g.n_log - 1].seq : 0;

        line_run(&g, 1);
        if (g.log[g.n_log - 1].seq == seq)
            continue;
        seq = g.log[g.n_log - 1].seq;
        first = first ? first : seq;
        target = line_stats(&g).target_ms;
        max_prompt = 0;
        for (uint32_t i = 0; i < g.n_log; i++)
            if (g.log[i].seq == seq && !g.log[i].decode) {
                max_prompt = g.log[i].n > max_prompt ? g.log[i].n : max_prompt;
                last[g.log[i].id] = seq;
            }
        assert_true(line_prefill_ms(&g, seq) <= 1.1 * target || max_prompt <= 128);
        for (int i = 0; i < 3; i++) {
            done[i] = done[i] || g.first_token[id[i]] > 0;
            for (uint32_t k = 0; k < g.n_log; k++)
                done[i] = done[i] ||
                          (g.log[k].id == id[i] && g.log[k].start + g.log[k].n == length[i]);
            assert_true(done[i] || seq - (last[id[i]] ? last[id[i]] : first) < 4);
        }
    }
    line_run(&g, 5000);
    assert_int_equal(g.n_ended, 11);
    line_close(&g);
}

/* A very long prompt is under way: those that come after it go on too, within few steps. */
static void nobody_is_passed_over_for_long(void **state)
{
    struct sched_config c = line_config(2, 8192, 262144);
    uint64_t last[LINE_IDS] = { 0 };

    (void)state;
    c.n_blocks *= 2;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 250000, 0, 1);
    line_run(&g, 2);
    for (int i = 1; i < 6; i++)
        line_add(&g, 20000, 300000 * i, 1);
    line_run(&g, 3000);
    assert_int_equal(g.n_ended, 6);
    for (uint32_t i = 0; i < g.n_log; i++) {
        sched_id id = g.log[i].id;

        assert_true(last[id] == 0 || g.log[i].seq - last[id] <= 12);
        last[id] = g.log[i].seq;
    }
    line_close(&g);
}

/* Many short prompts make as many steps as keep all stages busy, not one. */
static void short_prompts_are_spread_over_the_window(void **state)
{
    const struct stage_time f = { 1e-6, 0.04, 0, 5, 0.5, 0 };
    struct sched_config c = line_config(4, 32768, 8192);

    (void)state;
    line_open(&g, &c, &f);
    line_tell(&g);
    for (int i = 0; i < 12; i++)
        line_add(&g, 2000, 10000 * i, 1);
    line_run(&g, 100);
    assert_int_equal(g.n_ended, 12);
    assert_true(g.most_trips >= 4);
    line_close(&g);
}

static void without_a_model_chunks_are_fixed(void **state)
{
    struct sched_config c = line_config(2, 4096, 16384);

    (void)state;
    line_open(&g, &c, &deepseek);
    g.silent = true;
    for (int i = 0; i < 3; i++)
        line_add(&g, 10000, 20000 * i, 2);
    line_run(&g, 1000);
    assert_int_equal(g.n_ended, 3);
    for (uint32_t i = 0; i < g.n_log; i++)
        assert_true(g.log[i].decode || g.log[i].n <= 4096);
    assert_int_equal(g.log[0].n, 4096);
    assert_int_equal(line_stats(&g).mode, SCHED_MODE_FALLBACK);
    assert_int_equal(g.n_warnings, 1);
    assert_non_null(strstr(g.warning.text, "4096"));
    line_close(&g);
}

/* Serving alone makes the model, with times off by up to a tenth. */
static void a_model_is_learned_from_serving(void **state)
{
    struct sched_config c = line_config(2, 8192, 131072 + 8);
    struct sched_chunk_stats st;

    (void)state;
    line_open(&g, &c, &deepseek);
    g.noise = 0.05;
    for (int i = 0; i < 12; i++) {
        g.n_log = 0;
        line_add(&g, 20000 + 9000 * (uint32_t)i, 200000 * i, 1);
        line_run(&g, 1000);
    }
    st = line_stats(&g);
    assert_int_equal(st.mode, SCHED_MODE_PLANNED);
    assert_true(st.fit_error < 0.08);
    assert_true(fabs(st.fit.b / deepseek.b - 1) < 0.2);
    assert_int_equal(g.n_warnings, 1);
    line_close(&g);
}

/* The kept model is of another day: attention now costs four times as much. It is not believed, then
 * learned. */
static void a_wrong_model_is_put_right(void **state)
{
    struct sched_config c = line_config(2, 8192, 131072 + 8);
    bool doubted = false;

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    for (uint32_t i = 0; i < 2; i++)
        g.truth[i].a *= 4;
    for (int i = 0; i < 12; i++) {
        g.n_log = 0;
        line_add(&g, 130000, 200000 * i, 1);
        line_run(&g, 10);
        doubted = doubted || line_stats(&g).fit_error > 0.15;
        line_run(&g, 1000);
    }
    assert_true(doubted);
    assert_true(line_stats(&g).plans > 12); /* some were made anew on the way */
    assert_true(line_stats(&g).fit_error < 0.05);
    assert_int_equal(line_stats(&g).mode, SCHED_MODE_PLANNED);
    line_close(&g);
}

/* A busy machine makes everything twice as slow: plans stay, predictions follow. */
static void a_busy_machine_changes_no_plan(void **state)
{
    struct sched_config c = line_config(2, 32768, 131072 + 8);
    uint32_t first;

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    for (int i = 0; i < 8; i++) {
        g.n_log = 0;
        line_add(&g, 131072, 200000 * i, 1);
        line_run(&g, 1000);
    }
    first = line_stats(&g).plan_first;
    for (uint32_t i = 0; i < 2; i++) {
        g.truth[i].a *= 2;
        g.truth[i].b *= 2;
        g.truth[i].g *= 2;
        g.truth[i].c *= 2;
    }
    for (int i = 8; i < 15; i++) { /* the sixteenth tries fixed chunks */
        g.n_log = 0;
        line_add(&g, 131072, 200000 * i, 1);
        line_run(&g, 1000);
    }
    assert_true(fabs(line_stats(&g).load - 2) < 0.2 || line_stats(&g).fit_error < 0.05);
    assert_true(fabs((double)line_stats(&g).plan_first / first - 1) < 0.1);
    line_close(&g);
}

static uint32_t first_chunk_at(double ratio)
{
    struct sched_config c = line_config(2, 32768, 131072 + 8);
    uint32_t first;

    line_open(&g, &c, &deepseek);
    g.truth[1].a *= ratio;
    g.truth[1].b *= ratio;
    g.truth[1].g *= ratio;
    g.truth[1].c *= ratio;
    line_tell(&g);
    line_add(&g, 131072, 0, 1);
    line_run(&g, 1000);
    first = g.log[0].n;
    line_close(&g);
    return first;
}

/* Stages that differ by what a profile is uncertain about are planned as equal. */
static void only_clear_differences_of_stages_count(void **state)
{
    (void)state;
    assert_int_equal(first_chunk_at(0.97), first_chunk_at(1));
    assert_true(first_chunk_at(0.8) > first_chunk_at(1)); /* a faster last stage: times fall */
}

/* The profile was made while the machine did much else: it is believed all the same, from the start. */
static void a_profile_of_a_busy_start_is_used(void **state)
{
    struct sched_config c = line_config(2, 32768, 131072 + 8);
    struct chunk_plan p = want_plan(&c, 131072, 0);

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    for (uint32_t i = 0; i < 2; i++) {
        g.truth[i].a /= 2;
        g.truth[i].b /= 2;
        g.truth[i].g /= 2;
        g.truth[i].c /= 2;
    }
    for (int i = 0; i < 6; i++) {
        g.n_log = 0;
        line_add(&g, 131072, 200000 * i, 1);
        line_run(&g, 1000);
        assert_int_equal(line_stats(&g).mode, SCHED_MODE_PLANNED);
        assert_true(fabs(line_stats(&g).plan_chunks / (double)p.n - 1) < 0.2);
    }
    assert_true(fabs(line_stats(&g).load - 0.5) < 0.1);
    assert_int_equal(g.n_warnings, 0);
    line_close(&g);
}

/* Tables of times that no model fits, or only a strange one. */
static double table(int which, double l)
{
    switch (which) {
    case 0:
        return 5; /* flat */
    case 1:
        return 100 - l * 0.01; /* falls */
    case 2:
        return 3 + l * 0.02 + 20 * fabs(sin(l)); /* noise */
    case 3:
        return 1 + l * 0.1 - l * l * 1e-5; /* curved downward */
    case 4:
        return NAN;
    case 5:
        return -1;
    case 6:
        return 0;
    case 7:
        return 1e-12 * l;
    case 8:
        return 1e12;
    default:
        return l < 1000 ? INFINITY : 7 + l * 1e-3;
    }
}

static void serve_all_histories(uint32_t budget)
{
    sched_id a;

    for (uint32_t history = 0; history < 6000; history += 999) {
        line_add(&g, history + 129, 0, 1);
        line_run(&g, 10000);
        a = line_add(&g, 7000, 0, 3);
        line_run(&g, 10000);
        assert_true(g.first_token[a] > 0);
    }
    for (uint32_t i = 0; i < g.n_log; i++)
        assert_true(g.log[i].n >= 1 && g.log[i].n <= budget);
}

static void no_table_of_times_stops_the_scheduler(void **state)
{
    const struct stage_time truth = { 1e-6, 0.01, 0, 1, 0.5, 0 };
    const struct profile_limits limits = { 2, 1024, 128, 8192, 1e6 };

    (void)state;
    for (int which = 0; which < 10; which++) {
        struct sched_config c = line_config(2, 1024, 8192);
        static struct profile p;
        struct profile_point at;
        struct profile_fit f;

        line_open(&g, &c, &truth);
        profile_begin(&p, &limits, 0);
        while (profile_next(&p, 0, &at)) {
            double s = table(which, at.chunk + 0.1 * (double)at.history) / 1e3;

            profile_measured(&p, at.index, (double[]){ s, s }, 0);
        }
        if (profile_fit(&p, &f, NULL) == 0)
            (void)sched_set_latency(g.s, f.stage, f.n_stages, NULL, NULL);
        serve_all_histories(1024);
        line_close(&g);
    }
}

static void strange_times_are_left_out(void **state)
{
    static const double strange[] = { 0, -1, NAN, INFINITY };
    struct sched_config c = line_config(2, 8192, 65536);
    struct sched_chunk_stats before, after;

    (void)state;
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 60000, 0, 1);
    line_run(&g, 2);
    before = line_stats(&g);
    for (int i = 0; i < 4; i++)
        sched_note_times(g.s, g.log[0].seq, (double[]){ 1, strange[i] }, 2);
    sched_note_times(g.s, g.log[0].seq, (double[]){ 1, 1, 1 }, 3);
    sched_note_times(g.s, 12345, (double[]){ 1, 1 }, 2);
    sched_note_times(g.s, 0, (double[]){ 1, 1 }, 2);
    after = line_stats(&g);
    assert_int_equal(before.n_measured, after.n_measured);
    line_run(&g, 1000);
    line_close(&g);
}

static void models_are_checked(void **state)
{
    struct sched_config c = line_config(2, 8192, 65536);
    struct stage_time two[2] = { deepseek, deepseek };
    struct err e = { "" };

    (void)state;
    line_open(&g, &c, &deepseek);
    assert_int_equal(sched_set_latency(g.s, two, 1, NULL, &e), ERR_INVAL);
    two[1].g = NAN;
    assert_int_equal(sched_set_latency(g.s, two, 2, NULL, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "stage 1"));
    two[1] = (struct stage_time){ .kappa = 0.5 };
    assert_int_equal(sched_set_latency(g.s, two, 2, NULL, &e), ERR_INVAL);
    two[1] = deepseek;
    two[1].b = -1;
    assert_int_equal(sched_set_latency(g.s, two, 2, NULL, &e), ERR_INVAL);
    two[1] = deepseek;
    assert_int_equal(sched_set_latency(g.s, two, 2, &(struct stage_link){ -1, 0 }, &e), ERR_INVAL);
    line_close(&g);
}

static void impossible_settings_are_refused(void **state)
{
    struct sched_config good = line_config(2, 8192, 65536), c;
    struct err e = { "" };
    struct sched *s;

    (void)state;
    c = good;
    c.chunks.n_stages = 1;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    assert_non_null(strstr(e.text, "pipeline-parallel-size"));
    c = good;
    c.chunks.smooth = 0;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    c = good;
    c.chunks.min_chunk = 8193;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    c = good;
    c.chunks.max_fit = 5;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    c = good;
    c.chunked_prefill = false;
    c.max_model_len = 8192;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
    c = good;
    c.priority = c.short_first.enabled = true;
    assert_int_equal(sched_create(&s, &c, &e), ERR_INVAL);
}

/* One place: short prompts overtake long ones in the queue, until a long one has waited too long. */
static void short_prompts_go_first(void **state)
{
    struct sched_config c = line_config(2, 4096, 65536);
    sched_id long1, long2, short1, short2;

    (void)state;
    c.max_seqs = 1;
    c.short_first = (struct sched_short_first){ .enabled = true, .threshold = 1000 };
    for (int aged = 0; aged < 2; aged++) {
        c.short_first.long_max_wait = aged ? 1e-3 : 0;
        line_open(&g, &c, &deepseek);
        line_tell(&g);
        line_add(&g, 20000, 0, 1);
        line_run(&g, 1);
        long1 = line_add(&g, 20000, 100000, 1);
        long2 = line_add(&g, 20000, 200000, 1);
        short1 = line_add(&g, 500, 300000, 1);
        short2 = line_add(&g, 1000, 400000, 1);
        line_run(&g, 1000);
        assert_int_equal(g.n_ended, 5);
        assert_true(g.first_token[short1] < g.first_token[short2]);
        assert_true(g.first_token[long1] < g.first_token[long2]);
        assert_true((g.first_token[short2] < g.first_token[long1]) == !aged);
        line_close(&g);
    }
}

/* A long prompt is under way: a short one is in the very next step. */
static void a_short_prompt_passes_a_long_one(void **state)
{
    struct sched_config c = line_config(2, 8192, 131072 + 8);
    sched_id id;

    (void)state;
    c.short_first = (struct sched_short_first){ .enabled = true, .threshold = 1000 };
    line_open(&g, &c, &deepseek);
    line_tell(&g);
    line_add(&g, 131072, 0, 1);
    line_run(&g, 2);
    id = line_add(&g, 900, 200000, 1);
    g.n_log = 0;
    line_run(&g, 1);
    assert_int_equal(g.log[0].id, id);
    assert_int_equal(g.log[0].n, 900);
    assert_true(g.n_log == 2 && g.log[1].n > 1000); /* the rest of the step is the long one's */
    line_run(&g, 1000);
    line_close(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prompt_alone_follows_its_plan),
        cmocka_unit_test(chunks_overlap),
        cmocka_unit_test(a_plan_begins_at_the_prefix_hit),
        cmocka_unit_test(the_settings_hold),
        cmocka_unit_test(static_and_off_fill_the_budget),
        cmocka_unit_test(equal_time_is_the_references),
        cmocka_unit_test(a_step_is_shared_by_time),
        cmocka_unit_test(nobody_is_passed_over_for_long),
        cmocka_unit_test(short_prompts_are_spread_over_the_window),
        cmocka_unit_test(without_a_model_chunks_are_fixed),
        cmocka_unit_test(a_model_is_learned_from_serving),
        cmocka_unit_test(a_wrong_model_is_put_right),
        cmocka_unit_test(a_busy_machine_changes_no_plan),
        cmocka_unit_test(a_profile_of_a_busy_start_is_used),
        cmocka_unit_test(only_clear_differences_of_stages_count),
        cmocka_unit_test(no_table_of_times_stops_the_scheduler),
        cmocka_unit_test(strange_times_are_left_out),
        cmocka_unit_test(models_are_checked),
        cmocka_unit_test(impossible_settings_are_refused),
        cmocka_unit_test(short_prompts_go_first),
        cmocka_unit_test(a_short_prompt_passes_a_long_one),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
