/* Worker, drafts and scheduler together over a model without arithmetic: with drafts, right or wrong, every
 * request gets the tokens and log-probabilities that it gets without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "engine/worker.h"
#include "fake_model.h"

#define N_REQUESTS 14
#define MAX_OUT    64

/* Allocations while `watched`. */
static bool watched;
static long n_allocations;

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_malloc(size_t n)
{
    n_allocations += watched;
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    n_allocations += watched;
    return __real_calloc(n, size);
}

struct told {
    int32_t token[MAX_OUT];
    float logprob[MAX_OUT];
    float step_logprob[MAX_OUT]; /* as the worker tells it, before the scheduler has accepted */
    uint32_t n;
    enum finish finish;
    int32_t stop_id;
};

struct run {
    struct sched_config sched;
    uint32_t good_drafts;
    bool has_mtp;
    uint32_t rounds; /* with other instances: so many each step */
    uint32_t others; /* rounds that they have of the shared head */
    uint64_t n_forwards, n_draft_calls, n_ends;
    struct told told[N_REQUESTS];
    uint64_t n_steps, n_preempted, n_drafts, n_accepted, n_cached, n_mtp_rows;
};

static struct sched_config roomy(void)
{
    return (struct sched_config){ .block_tokens = 16,
                                  .n_blocks = 200,
                                  .max_model_len = FAKE_MAX_LEN,
                                  .max_batched_tokens = 512,
                                  .max_seqs = N_REQUESTS,
                                  .max_inflight = 1,
                                  .chunked_prefill = true };
}

/* Greedy and seeded, with and without each thing that a token's choice depends on. */
static void ask(struct sched *s, struct told *told, uint32_t i)
{
    static const int32_t eos[] = { FAKE_EOS };
    int32_t prompt[120], stop[] = { 40, FAKE_EOS + 1 };
    struct sampling sp;
    struct sched_request r = { .prompt = prompt, .sampling = &sp, .eos_ids = eos, .n_eos = 1 };
    sched_id id;

    r.n_prompt = i == 10 ? 60 : 1 + i * 37 % 50;
    r.user = told;
    for (uint32_t t = 0; t < r.n_prompt; t++)
        prompt[t] = (int32_t)((i % 3 * 31 + t * 5) % FAKE_VOCAB);
    sampling_init(&sp);
    sp.max_tokens = i == 10 ? MAX_OUT : 1 + i * 29 % MAX_OUT; /* 10: to the end of the context */
    sp.temperature = i % 2 ? 0.8f : 0;
    sp.seed = i;
    sp.top_p = i % 4 == 1 ? 0.7f : 1;
    sp.presence_penalty = i % 5 == 2 ? 1.5f : 0;
    sp.frequency_penalty = i % 5 == 3 ? 0.5f : 0;
    sp.repetition_penalty = i % 5 == 4 ? 1.3f : 1;
    sp.min_tokens = i % 3 != 1 ? 5 + i : 0;
    sp.ignore_eos = i % 3 != 0;
    sp.logprobs = i % 2 ? -1 : 1;
    if (i % 3 == 2) {
        sp.stop_ids = stop;
        sp.n_stop_ids = 2;
    }
    assert_int_equal(sched_add(s, &r, 0, &id, NULL), 0);
}

static void on_token(void *arg, const struct plan_entry *en, uint32_t out_index,
                     const struct k_sample *row, const struct k_choice *c)
{
    struct told *t = en->user;

    (void)arg;
    (void)row;
    t->step_logprob[out_index] = en->sampling->logprobs >= 0 ? c->logprob : 0;
}

static void on_prompt(void *arg, const struct plan_entry *en, uint32_t position,
                      const struct k_sample *row, const struct k_choice *c)
{
    (void)arg, (void)en, (void)position, (void)row, (void)c;
}

static void read_events(struct sched *s, struct run *r)
{
    struct sched_event e;

    while (sched_next_event(s, &e)) {
        struct told *t = e.user;

        if (e.kind == SCHED_EV_TOKEN) {
            assert_int_equal(e.out_index, t->n);
            t->logprob[t->n] = t->step_logprob[t->n];
            t->token[t->n++] = e.token;
        } else if (e.kind == SCHED_EV_END) {
            t->finish = e.finish;
            t->stop_id = e.stop_id;
            r->n_preempted += e.n_preempted;
            r->n_cached += e.n_cached;
        }
    }
}

static void count_drafts(struct run *r, const struct plan *p, const struct step_choice *c)
{
    for (uint32_t i = 0; i < p->n_entries; i++) {
        r->n_drafts += p->entries[i].n_draft;
        r->n_accepted += c[i].n ? c[i].n - 1 : 0;
    }
}

static struct worker *make_worker(struct model *m, const struct kernels *k, const struct run *r,
                                  void **pool)
{
    const struct sched_config *c = &r->sched;
    struct worker_options o = { .kernels = k,
                                .model = m,
                                .max_batched_tokens = c->max_batched_tokens,
                                .max_seqs = c->max_seqs,
                                .max_model_len = c->max_model_len,
                                .draft_rounds = r->rounds,
                                .shares_head = r->others > 0,
                                .layout = fake_model_layout(m, c->block_tokens, c->n_blocks) };
    struct worker *w = NULL;

    *pool = calloc(1, kv_layout_pool_bytes(&o.layout));
    assert_non_null(*pool);
    o.pool = *pool;
    /* Where the fake's prediction layer finds the main layer: its plane is the one before. */
    m->config.hidden = (uint32_t)(o.layout.n_blocks * kv_layout_block_bytes(&o.layout));
    assert_int_equal(engine_worker_create(&w, &o, NULL), 0);
    return w;
}

/* New requests come while others run. */
static void run_all(struct run *r, struct sched *s, struct worker *w)
{
    static const struct worker_sink sink = { .prompt = on_prompt, .token = on_token };
    static const struct plan nothing; /* others have work */
    struct step_choice choice[N_REQUESTS];
    const struct plan *p;
    uint32_t n_asked = 0;

    for (;; r->n_steps++) {
        if (n_asked < N_REQUESTS && r->n_steps % 3 == 0)
            for (int i = 0; i < 2; i++, n_asked++)
                ask(s, &r->told[n_asked], n_asked);
        p = sched_step(s, 0);
        if (!p && r->rounds && r->n_steps < 100)
            p = &nothing;
        if (!p)
            break;
        watched = true;
        engine_worker_run(w, p, choice, &sink);
        watched = false;
        count_drafts(r, p, choice);
        if (p == &nothing)
            continue;
        sched_commit(s, &(struct step_result){ .seq = p->seq, .choice = choice }, 0);
        read_events(s, r);
    }
    assert_int_equal(n_asked, N_REQUESTS);
    assert_int_equal(n_allocations, 0);
}

static void run(struct run *r)
{
    struct k_options ko = { .threads = 2, .max_vocab = FAKE_VOCAB };
    struct kernels *k;
    struct sched_stats st;
    struct model m;
    struct worker *w;
    struct sched *s;
    void *pool;

    assert_int_equal(kernels_open(&k, &ko, NULL), 0);
    fake_model_init(&m, r->good_drafts, r->has_mtp);
    m.others = r->others;
    w = make_worker(&m, k, r, &pool);
    assert_int_equal(sched_create(&s, &r->sched, NULL), 0);
    run_all(r, s, w);
    sched_stats(s, &st);
    assert_int_equal(st.blocks_used, 0);
    assert_int_equal(m.n_wrong, 0);
    r->n_mtp_rows = m.n_mtp_rows;
    r->n_forwards = m.n_forwards;
    r->n_draft_calls = m.n_drafts;
    r->n_ends = m.n_ends;
    sched_destroy(s);
    engine_worker_destroy(w);
    kernels_close(k);
    free(pool);
}

static const struct run *reference(void)
{
    static struct run r;

    if (r.n_steps == 0) {
        r.sched = roomy();
        run(&r);
        for (int i = 0; i < N_REQUESTS; i++)
            assert_true(r.told[i].n > 0);
    }
    return &r;
}

static void same_output(const struct run *a)
{
    const struct run *b = reference();

    for (int i = 0; i < N_REQUESTS; i++) {
        const struct told *x = &a->told[i], *y = &b->told[i];

        assert_int_equal(x->n, y->n);
        assert_memory_equal(x->token, y->token, x->n * sizeof *x->token);
        assert_memory_equal(x->logprob, y->logprob, x->n * sizeof *x->logprob);
        assert_int_equal(x->finish, y->finish);
        assert_int_equal(x->stop_id, y->stop_id);
    }
}

static void any_number_and_quality_of_drafts(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= SPEC_MAX_TOKENS; n++)
        for (uint32_t good = 0; good <= 100; good += 50) {
            struct run r = { .sched = roomy(), .good_drafts = good, .has_mtp = true };

            r.sched.n_draft_tokens = n;
            run(&r);
            same_output(&r);
            assert_true(r.n_drafts > 0 && r.n_accepted < r.n_drafts);
            assert_true(r.n_steps <= reference()->n_steps);
            if (good == 100)
                assert_true(r.n_steps < reference()->n_steps && r.n_accepted > 40);
        }
}

/* The prediction layer keeps up, so that a decode elsewhere finds its KV. */
static void the_layer_keeps_up_without_drafts(void **state)
{
    struct run r = { .sched = roomy(), .has_mtp = true };

    (void)state;
    run(&r);
    same_output(&r);
    assert_int_equal(r.n_drafts, 0);
    assert_true(r.n_mtp_rows > 500);
}

/* Few blocks, a small budget, chunks, a cache: preempted requests lose their drafts, nothing else. */
static void under_pressure(void **state)
{
    uint64_t n_preempted = 0, n_accepted = 0, n_cached = 0;

    (void)state;
    for (uint32_t n = 1; n <= SPEC_MAX_TOKENS; n += 2)
        for (uint32_t blocks = 8; blocks <= 14; blocks += 2)
            for (uint32_t cache = 0; cache < 2; cache++) {
                struct run r = { .sched = roomy(), .good_drafts = 80, .has_mtp = true };

                r.sched.n_draft_tokens = n;
                r.sched.n_blocks = blocks;
                r.sched.max_batched_tokens = 9 + blocks;
                r.sched.prefix_caching = cache;
                run(&r);
                same_output(&r);
                n_preempted += r.n_preempted;
                n_accepted += r.n_accepted;
                n_cached += r.n_cached;
            }
    assert_true(n_preempted > 10 && n_accepted > 100 && n_cached > 100);
}

/* Each step asks the model for the same, whatever its own requests need: the other ranks do. */
static void the_same_rounds_each_step(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 3; n++)
        for (uint32_t others = 0; others < 3; others++) {
            struct run r = { .sched = roomy(), .good_drafts = 60, .has_mtp = true };

            r.sched.n_draft_tokens = r.rounds = n;
            r.others = others;
            run(&r);
            same_output(&r);
            assert_true(r.n_steps >= 100);
            assert_int_equal(r.n_forwards, r.n_steps);
            assert_int_equal(r.n_draft_calls, r.n_steps * n);
            if (others)
                assert_int_equal(r.n_ends, r.n_steps * (1 + n));
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_and_quality_of_drafts),
        cmocka_unit_test(the_layer_keeps_up_without_drafts),
        cmocka_unit_test(under_pressure),
        cmocka_unit_test(the_same_rounds_each_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
