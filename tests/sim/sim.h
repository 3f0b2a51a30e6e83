/* One simulated world: a scheduler, clients, workers and transfers, all from one seed. */
#ifndef SLUICE_TESTS_SIM_SIM_H
#define SLUICE_TESTS_SIM_SIM_H

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "fake.h"
#include "sched/core.h"

#define SIM_MAX_PROMPT   200u
#define SIM_MAX_OUT      160u
#define SIM_MAX_INFLIGHT 4u
#define SIM_MAX_STAGES   4u
#define SIM_NEVER        UINT32_MAX

/* One request, as its client and its transfer see it. */
struct job {
    bool live, started, ended, aborted, held, pulling;
    bool poisoned; /* a step of it failed: it must end with an error */
    sched_id id;
    enum sched_role role;
    uint64_t salt;
    int32_t tokens[SIM_MAX_PROMPT + SIM_MAX_OUT]; /* the prompt, then what it gives when alone */
    uint32_t n_prompt, n_out, max_out, min_tokens, hit_multiple;
    bool has_first;
    bool ignore_eos, prompt_only, prompt_logprobs;
    uint32_t logprobs_told; /* positions from 1 on */
    enum finish finish;
    uint32_t abort_at, release_at; /* ticks */
    struct sched_pull pull;
    uint32_t pull_end_at;
    enum sched_pull_result pull_result;
};

/* A plan that is out. */
struct out {
    const struct plan *plan;
    bool executed, failed;
    struct step_choice *choice;
};

/* What was exercised. A simulation that stops preempting proves nothing about it. */
struct totals {
    uint64_t tokens, ticks, preempted, aborted, pulls, cached, failed_steps, drafts, accepted;
};

struct sim {
    uint64_t seed, rng;
    struct sched_config cfg;
    struct sched *s;
    struct fake_kv kv;
    struct job *job;
    uint32_t n_jobs, n_added, n_gone, n_live;
    uint32_t good_drafts; /* percent */
    uint32_t most_prompt; /* tokens: short prompts with long outputs preempt each other */
    uint32_t tick;
    uint32_t progress_at; /* tick of the last plan, release or end of a pull */
    struct out out[SIM_MAX_INFLIGHT];
    uint32_t n_out;
    uint32_t *holders; /* scratch of the book check */
    struct totals *total;
};

#define CHECK(sim, cond)                                                                           \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "sim_sched: seed %llu, tick %u, %s:%d: %s\n",                          \
                    (unsigned long long)(sim)->seed, (sim)->tick, __FILE__, __LINE__, #cond);      \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

static inline uint32_t rnd(struct sim *m, uint32_t below)
{
    return fake_random(&m->rng, below);
}

static inline bool chance(struct sim *m, uint32_t percent)
{
    return rnd(m, 100) < percent;
}

/* client.c: requests come, are aborted, and hear of their end. */
void sim_add_job(struct sim *m);
void sim_abort_jobs(struct sim *m);
void sim_read_events(struct sim *m);

/* worker.c: steps are planned, executed some time later, committed in order. */
void sim_take_step(struct sim *m);
void sim_run_workers(struct sim *m);

/* transfer.c: pulls and holds. */
void sim_fetch_pulls(struct sim *m);
void sim_run_transfers(struct sim *m);

#endif
