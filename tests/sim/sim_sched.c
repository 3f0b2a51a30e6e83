/* Drives the scheduler with random requests, cancels, slow and failing pulls, holds and several
 * plans in flight on tiny pools, and checks after each step that the books are right and in the
 * end that every request got exactly the tokens it gets when alone.
 *
 *     sim_sched [first seed] [seeds] [requests a seed] */
#include <string.h>

#include "sim.h"

#define MAX_LIVE  24u /* requests in the scheduler at a time */
#define MAX_TICKS (1u << 20)

/* Chunk policies, with models that fit the made-up times and with others. */
static void make_chunks(struct sim *m, struct sched_config *c)
{
    if (!c->chunked_prefill || chance(m, 40))
        return;
    c->chunks =
        (struct sched_chunks){ .policy = (enum sched_chunk_policy)rnd(m, 4),
                               .n_stages = 2 + rnd(m, SIM_MAX_STAGES - 1),
                               .smooth = (1 + rnd(m, 10)) / 10.0,
                               .min_chunk = chance(m, 50) ? 1 + rnd(m, c->max_batched_tokens) : 0,
                               .timing = chance(m, 80),
                               .max_fit = 6 + rnd(m, 30) };
    c->short_first = (struct sched_short_first){ .enabled = !c->priority && chance(m, 50),
                                                 .threshold = rnd(m, 100),
                                                 .long_max_wait = rnd(m, 3) * 20 };
}

static void tell_model(struct sim *m)
{
    struct stage_time f[SIM_MAX_STAGES];
    bool wild = chance(m, 20);

    for (uint32_t i = 0; i < m->cfg.chunks.n_stages; i++)
        f[i] = (struct stage_time){ .a = rnd(m, 100) * 1e-5,
                                    .b = wild ? rnd(m, 1000) : 0.1,
                                    .g = rnd(m, 10) * 1e-3,
                                    .c = wild ? rnd(m, 100000) : 1 + rnd(m, 5),
                                    .kappa = 0.5 + rnd(m, 5) * 0.125,
                                    .w = chance(m, 20) ? rnd(m, 10) : 0 };
    CHECK(m, sched_set_latency(m->s, f, m->cfg.chunks.n_stages, NULL, NULL) == 0 || wild);
}

static void make_config(struct sim *m)
{
    struct sched_config *c = &m->cfg;

    *c = (struct sched_config){ .block_tokens = 16,
                                .n_blocks = 3 + rnd(m, 30),
                                .max_model_len = 24 + rnd(m, 200),
                                .max_batched_tokens = 1 + rnd(m, 120),
                                .max_seqs = 1 + rnd(m, 8),
                                .max_inflight = 1 + rnd(m, SIM_MAX_INFLIGHT),
                                .long_prefill_threshold = chance(m, 30) ? 1 + rnd(m, 40) : 0,
                                .chunked_prefill = chance(m, 80),
                                .prefix_caching = chance(m, 75),
                                .priority = chance(m, 25) };
    make_chunks(m, c);
    c->n_draft_tokens = chance(m, 60) ? 1 + rnd(m, SPEC_MAX_TOKENS) : 0;
    m->good_drafts = rnd(m, 101);
    m->most_prompt = chance(m, 50) ? 40 : SIM_MAX_PROMPT;
    if (!c->chunked_prefill && c->max_batched_tokens < c->max_model_len)
        c->max_batched_tokens = c->max_model_len + rnd(m, 50);
}

static void check_books(struct sim *m)
{
    struct sched_stats st;
    uint32_t used = 0;

    memset(m->holders, 0, m->cfg.n_blocks * sizeof *m->holders);
    for (int q = 0; q < REQ_N_STATES; q++)
        for (const struct req *r = m->s->queue[q].head; r; r = r->next) {
            CHECK(m, (int)r->state == q);
            CHECK(m, r->n_computed <= r->n_planned && r->n_planned <= r->n_all);
            CHECK(m, (q != REQ_WAIT && q != REQ_GONE) || r->table.n == 0);
            CHECK(m, !r->next || req_before(r, r->next));
            for (uint32_t i = 0; i < r->table.n; i++)
                m->holders[r->table.block[i]]++;
        }
    for (uint32_t b = 0; b < m->cfg.n_blocks; b++) {
        CHECK(m, m->holders[b] == kv_pool_holders(m->s->pool, b));
        used += m->holders[b] > 0;
    }
    sched_stats(m->s, &st);
    CHECK(m, st.blocks_used == used && used + kv_pool_free(m->s->pool) == m->cfg.n_blocks);
    CHECK(m, st.n_running <= m->cfg.max_seqs);
}

/* Something is in flight, on its way, held or to be told, or there is nothing to do: else it is stuck. */
static void check_progress(struct sim *m)
{
    bool moving = m->n_out > 0 || m->n_live == 0 || m->s->n_orders > 0 || m->s->event_head;

    for (uint32_t i = 0; i < m->n_added && !moving; i++)
        moving = m->job[i].live && (m->job[i].pulling || m->job[i].held);
    CHECK(m, moving || m->progress_at == m->tick);
    CHECK(m, m->tick < MAX_TICKS);
}

static void check_end(struct sim *m)
{
    struct sched_stats st;

    sched_stats(m->s, &st);
    CHECK(m, m->n_live == 0 && st.blocks_used == 0 && m->s->index.n == 0);
    for (int q = 0; q < REQ_N_STATES; q++)
        CHECK(m, m->s->queue[q].n == 0);
    CHECK(m, sched_reset_prefix_cache(m->s) == 0);
}

static void run_seed(uint64_t seed, uint32_t n_jobs, struct totals *total)
{
    struct sim m = { .seed = seed, .rng = seed * 7919, .n_jobs = n_jobs, .total = total };
    struct sched_stats st;

    make_config(&m);
    m.job = calloc(n_jobs, sizeof *m.job);
    m.holders = calloc(m.cfg.n_blocks, sizeof *m.holders);
    if (!m.job || !m.holders)
        abort();
    fake_init(&m.kv, m.cfg.n_blocks, m.cfg.block_tokens);
    CHECK(&m, sched_create(&m.s, &m.cfg, NULL) == 0);
    if (m.cfg.chunks.policy && chance(&m, 60))
        tell_model(&m);
    for (; m.n_gone < n_jobs; m.tick++) {
        while (m.n_added < n_jobs && m.n_live < MAX_LIVE && chance(&m, 40))
            sim_add_job(&m);
        sim_take_step(&m);
        if (chance(&m, 70))
            sim_fetch_pulls(&m);
        check_books(&m);
        check_progress(&m);
        sim_run_workers(&m);
        sim_run_transfers(&m);
        sim_abort_jobs(&m);
        if (chance(&m, 1))
            (void)sched_reset_prefix_cache(m.s);
        check_books(&m);
        sim_read_events(&m);
    }
    check_end(&m);
    sched_stats(m.s, &st);
    total->ticks += m.tick;
    total->preempted += st.preemptions;
    total->cached += st.prefix_hits;
    sched_destroy(m.s);
    fake_finish(&m.kv);
    free(m.job);
    free(m.holders);
}

int main(int argc, char **argv)
{
    uint64_t first = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    uint32_t n = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 300;
    uint32_t n_jobs = argc > 3 ? (uint32_t)strtoul(argv[3], NULL, 10) : 150;
    struct totals t = { 0 };

    for (uint64_t seed = first; seed < first + n; seed++)
        run_seed(seed, n_jobs, &t);
    printf("%u seeds of %u requests: %llu tokens in %llu ticks, %llu preempted, %llu aborted, "
           "%llu pulls, %llu tokens from the cache, %llu failed steps, %llu of %llu drafts "
           "accepted\n",
           n, n_jobs, (unsigned long long)t.tokens, (unsigned long long)t.ticks,
           (unsigned long long)t.preempted, (unsigned long long)t.aborted,
           (unsigned long long)t.pulls, (unsigned long long)t.cached,
           (unsigned long long)t.failed_steps, (unsigned long long)t.accepted,
           (unsigned long long)t.drafts);
    return n < 100 || (t.preempted > n && t.aborted > n && t.pulls > n && t.cached > n &&
                       t.failed_steps > n && t.accepted > n && t.drafts > t.accepted + n)
               ? 0
               : 1;
}
