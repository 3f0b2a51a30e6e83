/* Plans and results as bytes: what a real scheduler plans (with preemptions, drafts, more requests than
 * places) arrives as it was, and bytes that are damaged lead nowhere. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "engine/plan_wire.h"

#define VOCAB     500
#define MAX_SEQS  4
#define MAX_PLANS 400

static uint64_t dice_state;

static uint32_t dice(uint32_t n)
{
    dice_state = dice_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(dice_state >> 33) % n;
}

static struct sched_config config_of(uint32_t n_draft, uint32_t n_blocks)
{
    return (struct sched_config){ .block_tokens = 16,
                                  .n_blocks = n_blocks,
                                  .max_model_len = 200,
                                  .max_batched_tokens = 48,
                                  .max_seqs = MAX_SEQS,
                                  .max_inflight = 3,
                                  .n_draft_tokens = n_draft,
                                  .chunked_prefill = true,
                                  .prefix_caching = true };
}

static struct plan_limits limits_of(const struct sched_config *c)
{
    return (struct plan_limits){ .max_seqs = c->max_seqs,
                                 .max_tokens = c->max_batched_tokens,
                                 .max_model_len = c->max_model_len,
                                 .block_tokens = c->block_tokens,
                                 .n_blocks = c->n_blocks,
                                 .vocab = VOCAB };
}

static void random_sampling(struct sampling *sp, int32_t *ids, struct logit_bias *bias)
{
    sampling_init(sp);
    sp->temperature = (float)dice(3);
    sp->top_p = 0.5f + (float)dice(5) / 10;
    sp->min_p = (float)dice(2) / 10;
    sp->top_k = dice(40);
    sp->presence_penalty = (float)dice(3) - 1;
    sp->frequency_penalty = (float)dice(3) - 1;
    sp->repetition_penalty = 1 + (float)dice(2);
    sp->seed = dice(1u << 30);
    sp->max_tokens = 1 + dice(60);
    sp->min_tokens = dice(3);
    sp->ignore_eos = dice(2);
    sp->logprobs = (int32_t)dice(6) - 1;
    sp->prompt_logprobs = dice(4) ? -1 : (int32_t)dice(4);
    for (uint32_t i = 0; i < 40; i++)
        ids[i] = (int32_t)dice(VOCAB);
    bias[0] = (struct logit_bias){ ids[0], 2 };
    bias[1] = (struct logit_bias){ ids[1], -2 };
    sp->stop_ids = ids;
    sp->n_stop_ids = dice(3);
    sp->bias = bias;
    sp->n_bias = dice(3);
    sp->allowed = dice(2) ? ids + 3 : NULL;
    sp->n_allowed = sp->allowed ? 20 : 0;
    sp->want_ids = ids + 25;
    sp->n_want = dice(4);
}

static void add_request(struct sched *s, uint32_t n)
{
    struct sampling sp;
    struct logit_bias bias[2];
    int32_t ids[40], prompt[200];
    struct sched_request r = { .prompt = prompt,
                               .n_prompt = 1 + dice(n),
                               .sampling = &sp,
                               .eos_ids = (int32_t[]){ 7, 9 },
                               .n_eos = 2 };
    struct err e = { "" };
    sched_id id;

    random_sampling(&sp, ids, bias);
    for (uint32_t i = 0; i < r.n_prompt; i++)
        prompt[i] = (int32_t)dice(VOCAB);
    if (sched_add(s, &r, 0, &id, &e) < 0)
        fail_msg("%s", e.text);
}

static void same_list(const void *a, uint32_t na, const void *b, uint32_t nb, size_t size)
{
    assert_int_equal(na, nb);
    if (na)
        assert_memory_equal(a, b, na * size);
}

static void same_sampling(const struct sampling *a, const struct sampling *b)
{
    assert_true(a->temperature == b->temperature && a->top_p == b->top_p && a->min_p == b->min_p);
    assert_true(a->presence_penalty == b->presence_penalty &&
                a->frequency_penalty == b->frequency_penalty &&
                a->repetition_penalty == b->repetition_penalty);
    assert_true(a->seed == b->seed && a->top_k == b->top_k && a->max_tokens == b->max_tokens);
    assert_true(a->min_tokens == b->min_tokens && a->ignore_eos == b->ignore_eos &&
                a->prompt_only == b->prompt_only);
    assert_true(a->logprobs == b->logprobs && a->prompt_logprobs == b->prompt_logprobs);
    same_list(a->stop_ids, a->n_stop_ids, b->stop_ids, b->n_stop_ids, sizeof *a->stop_ids);
    same_list(a->bias, a->n_bias, b->bias, b->n_bias, sizeof *a->bias);
    assert_int_equal(!a->allowed, !b->allowed);
    same_list(a->allowed, a->n_allowed, b->allowed, b->n_allowed, sizeof *a->allowed);
    same_list(a->want_ids, a->n_want, b->want_ids, b->n_want, sizeof *a->want_ids);
}

static void same_entry(const struct plan_entry *a, const struct plan_entry *b)
{
    assert_true(a->id == b->id);
    assert_int_equal(a->start, b->start);
    assert_int_equal(a->n_draft, b->n_draft);
    assert_int_equal(a->want_drafts, b->want_drafts);
    same_list(a->tokens, a->n, b->tokens, b->n, sizeof *a->tokens);
    same_list(a->blocks, a->n_blocks, b->blocks, b->n_blocks, sizeof *a->blocks);
    assert_int_equal(a->sample, b->sample);
    assert_int_equal(a->out_index, b->out_index);
    assert_int_equal(a->prompt_logprobs, b->prompt_logprobs);
    same_sampling(a->sampling, b->sampling);
    same_list(a->all_tokens, a->n_all + a->n_draft, b->all_tokens, b->n_all + b->n_draft,
              sizeof *a->all_tokens);
    assert_int_equal(a->n_prompt, b->n_prompt);
    assert_int_equal(a->n_all, b->n_all);
    same_list(a->eos_ids, a->n_eos, b->eos_ids, b->n_eos, sizeof *a->eos_ids);
}

static void same_plan(const struct plan *a, const struct plan *b)
{
    assert_true(a->seq == b->seq);
    assert_int_equal(a->n_entries, b->n_entries);
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_int_equal(a->n_prefill_tokens, b->n_prefill_tokens);
    for (uint32_t i = 0; i < a->n_entries; i++)
        same_entry(&a->entries[i], &b->entries[i]);
}

/* What a step might give: drafts that are right to some point, log-probabilities. */
static void random_choices(const struct plan *p, struct step_choice *out)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];
        uint32_t right = en->n_draft ? dice(en->n_draft + 1) : 0;

        out[i] = (struct step_choice){ 0 };
        if (!en->sample)
            continue;
        for (; out[i].n < right; out[i].n++)
            out[i].token[out[i].n] = en->tokens[en->n - en->n_draft + out[i].n];
        out[i].token[out[i].n++] = (int32_t)dice(VOCAB);
        out[i].n_draft = en->want_drafts ? dice(en->want_drafts + 1) : 0;
        for (uint32_t k = 0; k < out[i].n_draft; k++)
            out[i].draft[k] = (int32_t)dice(VOCAB);
    }
}

/* What the sink was told, as text. */
struct told {
    char text[1u << 16];
    size_t n;
};

static void tell(struct told *t, const char *kind, const struct plan_entry *en, uint32_t index,
                 const struct k_sample *row, const struct k_choice *c)
{
    t->n += (size_t)snprintf(t->text + t->n, sizeof t->text - t->n, "%s %llu %u: %d %a %u", kind,
                             (unsigned long long)en->id, index, c->id, (double)c->logprob, c->rank);
    for (uint32_t i = 0; i < c->n_top; i++)
        t->n += (size_t)snprintf(t->text + t->n, sizeof t->text - t->n, " %d:%a", c->top_id[i],
                                 (double)c->top_logprob[i]);
    for (uint32_t i = 0; i < row->n_want; i++)
        t->n += (size_t)snprintf(t->text + t->n, sizeof t->text - t->n, " want %d:%a",
                                 row->want_ids[i], (double)row->want_out[i]);
    assert_true(t->n < sizeof t->text - 4096);
}

static void tell_prompt(void *arg, const struct plan_entry *en, uint32_t index,
                        const struct k_sample *row, const struct k_choice *c)
{
    tell(arg, "prompt", en, index, row, c);
}

static void tell_token(void *arg, const struct plan_entry *en, uint32_t index,
                       const struct k_sample *row, const struct k_choice *c)
{
    tell(arg, "token", en, index, row, c);
}

/* The worker's part: reports of every position to `sink`. */
static void report(const struct plan *p, const struct step_choice *choice,
                   const struct worker_sink *sink, bool all)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];
        float want[8];
        struct k_choice c = { .rank = 3 };
        struct k_sample row = { .want_ids = en->sampling->want_ids, .want_out = want };

        for (uint32_t k = 0; k < 8; k++)
            want[k] = -(float)k;
        for (uint32_t t = 0; en->prompt_logprobs && t < en->n; t++) {
            uint32_t at = en->start + t + 1;

            c.id = (int32_t)(at % VOCAB);
            c.logprob = -(float)at;
            c.n_top = (uint32_t)en->sampling->prompt_logprobs;
            for (uint32_t k = 0; k < c.n_top; k++) {
                c.top_id[k] = (int32_t)k;
                c.top_logprob[k] = -(float)k / 3;
            }
            if (at < en->n_prompt)
                sink->prompt(sink->arg, en, at, &row, &c);
        }
        row.n_want = en->sampling->n_want;
        c.n_top = en->sampling->logprobs > 0 ? (uint32_t)en->sampling->logprobs : 0;
        for (uint32_t k = 0; k < choice[i].n; k++) {
            c.id = choice[i].token[k];
            if (all || en->sampling->logprobs >= 0 || en->sampling->n_want)
                sink->token(sink->arg, en, en->out_index + k, &row, &c);
        }
    }
}

static void same_result(const struct plan *there, const struct plan *here, struct result_writer *w,
                        const struct step_choice *choice)
{
    static struct told want, got;
    struct step_choice back[MAX_SEQS];
    const struct pipe_time times[2] = { { 1, 2 }, { 3, 4.5 } };
    struct pipe_time seen[ENGINE_MAX_STAGES];
    struct worker_sink sink = result_sink(w);
    uint32_t n_times;
    uint64_t seq;

    want.n = got.n = 0;
    report(here, choice, &(struct worker_sink){ tell_prompt, tell_token, &want }, false);
    result_begin(w, there);
    report(there, choice, &sink, true);
    assert_int_equal(result_end(w, choice, times, 2), 0);
    assert_int_equal(result_seq(&seq, w->b.data, w->b.len), 0);
    assert_true(seq == here->seq);
    assert_int_equal(result_read(w->b.data, w->b.len, here, VOCAB, back,
                                 &(struct worker_sink){ tell_prompt, tell_token, &got }, seen,
                                 &n_times),
                     0);
    assert_int_equal(n_times, 2);
    assert_memory_equal(seen, times, sizeof times);
    assert_int_equal(got.n, want.n);
    assert_memory_equal(got.text, want.text, want.n);
    for (uint32_t i = 0; i < here->n_entries; i++) {
        assert_int_equal(back[i].n, choice[i].n);
        assert_int_equal(back[i].n_draft, choice[i].n_draft);
        assert_memory_equal(back[i].token, choice[i].token, choice[i].n * sizeof(int32_t));
        assert_memory_equal(back[i].draft, choice[i].draft, choice[i].n_draft * sizeof(int32_t));
    }
}

/* All plans of a run, as bytes. */
struct run {
    struct plan_limits limits;
    struct buf plan[MAX_PLANS];
    uint32_t n;
    uint64_t preempted;
};

static void drain(struct sched *s, struct plan_writer *w)
{
    struct sched_event ev;

    while (sched_next_event(s, &ev))
        if (ev.kind == SCHED_EV_GONE)
            plan_writer_forget(w, ev.id);
}

/* Several plans in flight; some requests are aborted. */
static void go(struct run *r, uint32_t n_draft, uint32_t n_blocks, uint32_t n_requests)
{
    const struct sched_config c = config_of(n_draft, n_blocks);
    struct step_choice choice[3][MAX_SEQS];
    const struct plan *flight[3];
    struct plan_writer *w;
    struct plan_reader *rd;
    struct result_writer rw;
    struct sched *s;
    struct sched_stats st;
    struct err e = { "" };
    uint32_t n_flights = 0, added = 0;

    r->n = 0;
    r->limits = limits_of(&c);
    assert_int_equal(sched_create(&s, &c, &e), 0);
    assert_int_equal(plan_writer_create(&w, &r->limits, &e), 0);
    assert_int_equal(plan_reader_create(&rd, &r->limits, &e), 0);
    result_writer_init(&rw);
    while (r->n < MAX_PLANS) {
        const struct plan *p, *there;

        while (added < n_requests && dice(3)) {
            add_request(s, n_blocks * 16 < 120 ? n_blocks * 16 : 120);
            added++;
        }
        if (dice(15) == 0)
            sched_abort(s, 1 + dice(added ? added : 1), FINISH_ABORT, 0);
        if ((p = sched_step(s, 0))) {
            buf_init(&r->plan[r->n], BUF_MAX_BODY);
            assert_int_equal(plan_write(w, p, &r->plan[r->n]), 0);
            assert_int_equal(plan_read(rd, r->plan[r->n].data, r->plan[r->n].len, &there), 0);
            same_plan(p, there);
            random_choices(p, choice[n_flights]);
            same_result(there, p, &rw, choice[n_flights]);
            flight[n_flights++] = p;
            r->n++;
        }
        drain(s, w);
        if (n_flights == 3 || (n_flights && (!p || dice(3)))) {
            sched_commit(s, &(struct step_result){ flight[0]->seq, choice[0], false }, 0);
            memmove(flight, flight + 1, sizeof flight - sizeof *flight);
            memmove(choice, choice + 1, sizeof choice - sizeof *choice);
            n_flights--;
        } else if (!p && added == n_requests) {
            break;
        }
    }
    for (uint32_t i = 0; i < n_flights; i++)
        sched_commit(s, &(struct step_result){ flight[i]->seq, choice[i], false }, 0);
    sched_stats(s, &st);
    r->preempted = st.preemptions;
    drain(s, w);
    result_writer_finish(&rw);
    plan_reader_destroy(rd);
    plan_writer_destroy(w);
    sched_destroy(s);
}

static void run_finish(struct run *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        buf_finish(&r->plan[i]);
}

static struct run run;

static void test_round_trip(void **state)
{
    uint64_t preempted = 0;

    (void)state;
    for (uint32_t round = 0; round < 20; round++) {
        dice_state = round;
        go(&run, round % 3, 9 + 6 * (round % 4), 40);
        assert_true(run.n > 20);
        preempted += run.preempted;
        run_finish(&run);
    }
    assert_true(preempted > 10);
}

/* A request comes in full once; a step of decoding takes a few numbers then. */
static void test_only_changes_travel(void **state)
{
    (void)state;
    dice_state = 5;
    go(&run, 0, 14, 1);
    assert_true(run.n > 4);
    for (uint32_t i = 1; i < run.n; i++)
        assert_true(run.plan[i].len < 200);
    run_finish(&run);
}

/* No entries: a step in which others have work. */
static void test_empty_plan(void **state)
{
    const struct sched_config c = config_of(0, 20);
    const struct plan_limits l = limits_of(&c);
    const struct plan empty = { .seq = 9 };
    const struct plan *there;
    struct plan_writer *w;
    struct plan_reader *rd;
    struct buf b;

    (void)state;
    buf_init(&b, 4096);
    assert_int_equal(plan_writer_create(&w, &l, NULL), 0);
    assert_int_equal(plan_reader_create(&rd, &l, NULL), 0);
    assert_int_equal(plan_write(w, &empty, &b), 0);
    assert_int_equal(plan_read(rd, b.data, b.len, &there), 0);
    same_plan(&empty, there);
    assert_int_equal(plan_read(rd, b.data, b.len, &there), ERR_BADMSG); /* once more */
    buf_finish(&b);
    plan_reader_destroy(rd);
    plan_writer_destroy(w);
}

/* Everything that a rank does with a plan stays within bounds. */
static void within_bounds(const struct plan *p, const struct plan_limits *l)
{
    uint32_t n = 0;

    assert_true(p->n_entries <= l->max_seqs);
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const struct plan_entry *en = &p->entries[i];

        n += en->n;
        assert_true(en->n > en->n_draft && en->start + en->n <= l->max_model_len);
        assert_true(en->start + en->n <= en->n_all + en->n_draft);
        assert_true(en->start + en->n <= en->n_blocks * l->block_tokens);
        for (uint32_t k = 0; k < en->n_blocks; k++)
            assert_true(en->blocks[k] < l->n_blocks);
        for (uint32_t k = 0; k < en->n_all + en->n_draft; k++)
            assert_true(en->all_tokens[k] >= 0 && en->all_tokens[k] < VOCAB);
    }
    assert_int_equal(n, p->n_tokens);
    assert_true(n <= l->max_tokens);
}

/* The first k plans as they are, then one that is damaged, then all others. */
static void feed_damaged(uint32_t k)
{
    struct plan_reader *rd;
    const struct plan *p;
    char *copy = malloc(run.plan[k].len);
    size_t len = run.plan[k].len;

    assert_int_equal(plan_reader_create(&rd, &run.limits, NULL), 0);
    for (uint32_t i = 0; i < k; i++)
        assert_int_equal(plan_read(rd, run.plan[i].data, run.plan[i].len, &p), 0);
    memcpy(copy, run.plan[k].data, len);
    for (uint32_t i = 1 + dice(3); i > 0; i--) {
        uint32_t at = dice((uint32_t)len), value = dice(4) ? dice(256) : 0xff;

        copy[at] = (char)value;
    }
    if (dice(4) == 0)
        len = dice((uint32_t)len);
    if (plan_read(rd, copy, len, &p) == 0)
        within_bounds(p, &run.limits);
    free(copy);
    plan_reader_destroy(rd);
}

static void test_damage(void **state)
{
    (void)state;
    dice_state = 77;
    go(&run, 2, 30, 12);
    for (uint32_t round = 0; round < 3000; round++)
        feed_damaged(dice(run.n < 40 ? run.n : 40));
    run_finish(&run);
}

/* Results likewise: what is taken keeps to what the scheduler relies on. */
static void test_damaged_results(void **state)
{
    static struct told told;
    const int32_t tokens[] = { 1, 2, 3, 4, 5 };
    const uint32_t blocks[] = { 0 };
    struct sampling sp;
    struct plan_entry en[2] = {
        { .id = 1,
          .start = 2,
          .n = 3,
          .n_draft = 2,
          .want_drafts = 2,
          .tokens = tokens + 2,
          .blocks = blocks,
          .n_blocks = 1,
          .sample = true,
          .out_index = 1,
          .sampling = &sp,
          .all_tokens = tokens,
          .n_prompt = 2,
          .n_all = 3 },
        { .id = 2,
          .n = 4,
          .tokens = tokens,
          .blocks = blocks,
          .n_blocks = 1,
          .prompt_logprobs = true,
          .sampling = &sp,
          .all_tokens = tokens,
          .n_prompt = 5,
          .n_all = 5 },
    };
    const struct plan p = { .seq = 3, .n_entries = 2, .n_tokens = 7, .entries = en };
    struct step_choice choice[2], back[MAX_SEQS];
    struct pipe_time times[ENGINE_MAX_STAGES] = { { 1, 2 } };
    struct result_writer w;
    struct worker_sink sink;
    char *copy;

    (void)state;
    dice_state = 3;
    sampling_init(&sp);
    sp.logprobs = 2;
    sp.prompt_logprobs = 1;
    random_choices(&p, choice);
    result_writer_init(&w);
    result_begin(&w, &p);
    sink = result_sink(&w);
    report(&p, choice, &sink, true);
    assert_int_equal(result_end(&w, choice, times, 1), 0);
    copy = malloc(w.b.len);
    for (uint32_t round = 0; round < 20000; round++) {
        size_t len = dice(5) ? w.b.len : dice((uint32_t)w.b.len);
        uint32_t n_times;

        told.n = 0;
        memcpy(copy, w.b.data, w.b.len);
        copy[dice((uint32_t)w.b.len)] = (char)dice(256);
        if (result_read(copy, len, &p, VOCAB, back,
                        &(struct worker_sink){ tell_prompt, tell_token, &told }, times,
                        &n_times) < 0)
            continue;
        assert_int_equal(len, w.b.len);
        assert_true(n_times <= ENGINE_MAX_STAGES);
        assert_true(back[0].n >= 1 && back[0].n <= 3 && back[0].n_draft <= 2 && back[1].n == 0);
        for (uint32_t i = 0; i + 1 < back[0].n; i++)
            assert_int_equal(back[0].token[i], tokens[3 + i]);
        assert_true(back[0].token[back[0].n - 1] >= 0 && back[0].token[back[0].n - 1] < VOCAB);
    }
    free(copy);
    result_writer_finish(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),      cmocka_unit_test(test_only_changes_travel),
        cmocka_unit_test(test_empty_plan),      cmocka_unit_test(test_damage),
        cmocka_unit_test(test_damaged_results),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
